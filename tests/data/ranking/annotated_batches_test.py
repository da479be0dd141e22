"""Times, ids, label weights and extras: from files to batches."""

import jax
import numpy as np
import pytest

from genrec_jax.data.ranking import batches, collation, id_words, raw
from tests.data.ranking.annotations_cases import ASKED, load, row, write


def in_batch(batch, i):
  """Whether a batch tells of the rows number `i` what `row` has, in order."""
  real = batch.weights > 0
  ids = id_words.join_words(batch.example_id)[real]
  assert ids.tolist() == [big(n) for n in i]
  assert batch.time[real].tolist() == [1000 + n for n in i]
  assert batch.labels.names == batch.label_weights.names == ('click', 'seconds')
  weights = batch.label_weights['seconds'][real]
  assert weights.tolist() == [1 + n % 3 for n in i]
  assert np.all(batch.label_weights['click'][real] == 1)
  assert batch.extra('score')[real].tolist() == [n / 8 for n in i]
  assert batch.extra('position')[real].tolist() == [n % 5 for n in i]
  dtypes = {x.dtype.name for x in jax.tree.leaves(batch)}
  assert dtypes == {'int32', 'float32'}
  for x in (batch.example_id, batch.time, batch.label_weights.values):
    assert not x[~real].any()


def big(i):
  """An id that 32 bits do not hold, on both sides of 0."""
  return (i - 20) * 3**30


def test_a_batch_has_what_the_files_tell_of_its_rows(tmp_path):
  rows = [row(i, number=big(i)) for i in range(50)]
  path = write(tmp_path / 'x.csv', rows)
  ds = load(path, tmp_path / 'c', block_rows=8, **ASKED)
  found = list(
    batches.eval_batches(ds.splits['train'], batch_size=16, shards=4)
  )
  count = len(ds.splits['train'])
  for first, batch in zip(range(0, count, 16), found, strict=True):
    in_batch(batch, range(first, min(first + 16, count)))
  shuffled = iter(
    batches.train_batches(ds.splits['train'], batch_size=16, seed=0, prefetch=0)
  )
  batch = next(shuffled)
  in_batch(batch, [int(t) - 1000 for t in batch.time])
  with pytest.raises(KeyError, match="'scor'.*score, position"):
    batch.extra('scor')


def test_rows_to_be_scored_need_no_labels(tmp_path):
  path = write(tmp_path / 'x.csv', [row(i) for i in range(50)])
  encoder = load(path, tmp_path / 'c', **ASKED).store.encoder
  chunk = raw.from_records([{'user': 'u1'}, {'user': 'u2'}], ['user'])
  (batch,) = collation.raw_batches(encoder, [chunk], batch_size=4)
  assert batch.labels.values.tolist() == [[0, 0]] * 4
  assert batch.label_weights is batch.time is batch.extras is None


def test_times_that_a_batch_cannot_hold_are_refused(tmp_path):
  rows = [row(i, when=1_700_000_000_000 + i) for i in range(8)]
  path = write(tmp_path / 'x.csv', rows)
  split = load(path, tmp_path / 'c', **ASKED).splits['train']
  with pytest.raises(ValueError, match='data.time: 17.* seconds'):
    list(batches.eval_batches(split, batch_size=4))
