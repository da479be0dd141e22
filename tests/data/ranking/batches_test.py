import tracemalloc

import jax
import numpy as np
import pytest

from genrec_jax.data import capacities as capacities_lib
from genrec_jax.data import pipeline
from genrec_jax.data.ranking import (
  batches,
  clicks,
  collation,
  datasets,
  raw,
  store,
)
from genrec_jax.data.ranking import prepare as prepare_lib
from genrec_jax.data.ranking import schema as schema_lib
from genrec_jax.data.ranking.rows import Bags, ColumnNames, Rows
from tests import ranking_examples

NAMES = ColumnNames(labels=('y',), ids=('n', 'm'), numbers=('a', 'b', 'c'))


def part(rows=53, block_rows=10, seed=0, lists=True):
  """Rows whose first id is their number."""
  rng = np.random.default_rng(seed)
  lengths = rng.integers(0, 4, rows).astype(np.int32)
  number = np.arange(rows, dtype=np.int32)
  made = Rows(
    rng.integers(0, 2, (rows, 1)).astype(np.uint8),
    np.stack([number, number + 1], axis=1),
    rng.random((rows, 3), np.float32),
    number // 2,
    {'b': Bags(np.repeat(number, lengths), lengths)} if lists else {},
  )
  return ranking_examples.hold_in_memory('train', made, NAMES, block_rows)


def take(dataset, count):
  iterator = iter(dataset)
  return [next(iterator) for _ in range(count)]


def numbers(batch):
  return batch.ids['n'][batch.weights > 0]


def check(batch, shards):
  """Every array of a batch tells of the row that its id names."""
  share = len(batch.weights) // shards
  capacity = len(batch.jagged['b']['b']) // shards
  for s in range(shards):
    rows = slice(s * share, (s + 1) * share)
    real = batch.weights[rows] > 0
    assert not np.diff(real.astype(int)).clip(0).any()  # padding at the end
    number = batch.ids['n'][rows]
    np.testing.assert_array_equal(batch.ids['m'][rows], (number + 1) * real)
    np.testing.assert_array_equal(
      batch.group[rows], np.where(real, number // 2, -1)
    )
    lengths = batch.jagged['b'].lengths[rows]
    values = batch.jagged['b']['b'][s * capacity : (s + 1) * capacity]
    np.testing.assert_array_equal(
      values[: lengths.sum()], np.repeat(number, lengths)
    )
    assert not values[lengths.sum() :].any()
    assert batch.first[s] == min(s * share, (batch.weights > 0).sum())


@pytest.mark.parametrize('shuffle_rows', [1, 25, 1000])
def test_an_epoch_takes_every_row_once_in_an_order_of_its_own(shuffle_rows):
  data = batches.train_batches(
    part(), batch_size=8, seed=3, shuffle_rows=shuffle_rows, prefetch=0
  )
  steps = pipeline.steps_per_epoch(part(), 8)
  assert steps == 7
  found = take(data, 2 * steps)
  for batch in found:
    check(batch, 1)
  first = np.concatenate([numbers(b) for b in found[:steps]])
  second = np.concatenate([numbers(b) for b in found[steps:]])
  assert sorted(first) == sorted(second) == list(range(53))
  assert list(first) != list(second)
  assert list(first) != list(range(53))
  spans = [np.ptp(np.flatnonzero(first // 10 == b)) for b in range(6)]
  most = {1: 10, 25: 20, 1000: 53}[shuffle_rows]  # rows of a window
  assert most // 2 <= max(spans) < most


def test_without_shuffling_rows_come_in_order():
  found = take(
    batches.train_batches(part(), batch_size=8, seed=0, shuffle=False), 14
  )
  for epoch in (found[:7], found[7:]):
    order = np.concatenate([numbers(b) for b in epoch])
    np.testing.assert_array_equal(order, np.arange(53))


@pytest.mark.parametrize('prefetch', [0, 2])
def test_a_saved_state_goes_on_exactly(prefetch):
  def iterator():
    return iter(
      batches.train_batches(
        part(), batch_size=8, seed=3, shuffle_rows=25, prefetch=prefetch
      )
    )

  straight = iterator()
  want = [next(straight) for _ in range(20)]
  for at in (1, 6, 7, 15):
    before = iterator()
    for _ in range(at):
      next(before)
    after = iterator()
    after.set_state(before.get_state())
    for batch in want[at:]:
      np.testing.assert_array_equal(next(after).ids.values, batch.ids.values)


@pytest.mark.parametrize('batch_size', [8, 24, 64])
def test_shards_hold_the_rows_of_the_whole_batch(batch_size):
  options = dict(batch_size=batch_size, seed=1, shuffle_rows=25, prefetch=0)
  whole = take(batches.train_batches(part(), **options), 9)
  cut = take(batches.train_batches(part(), shards=4, **options), 9)
  own = take(
    batches.train_batches(part(), shards=4, own=range(1, 3), **options), 9
  )
  share = batch_size // 4
  for a, b, c in zip(whole, cut, own, strict=True):
    check(b, 4)
    np.testing.assert_array_equal(a.ids.values, b.ids.values)
    np.testing.assert_array_equal(a.jagged['b'].lengths, b.jagged['b'].lengths)
    np.testing.assert_array_equal(
      b.dense.values[share : 3 * share], c.dense.values
    )
    np.testing.assert_array_equal(b.first[1:3], c.first)
    values = np.split(b.jagged['b']['b'], 4)
    np.testing.assert_array_equal(
      np.concatenate(values[1:3]), c.jagged['b']['b']
    )
  with pytest.raises(ValueError, match='train.batch_size is 9'):
    batches.train_batches(part(), batch_size=9, seed=0, shards=4)


@pytest.mark.parametrize('shuffle', [True, False])
@pytest.mark.parametrize('own', [range(1), range(1, 3), range(3, 4)])
@pytest.mark.parametrize('batch_size', [8, 24, 64])
def test_without_lists_a_process_reads_its_own_rows_alone(
  batch_size, own, shuffle
):
  options = dict(
    batch_size=batch_size, seed=1, shuffle=shuffle, shuffle_rows=25, prefetch=0,
    shards=4,
  )  # fmt: skip
  data = part(lists=False)
  whole = take(batches.train_batches(data, **options), 15)
  found = take(batches.train_batches(data, own=own, **options), 15)
  for a, b in zip(whole, found, strict=True):
    cut = jax.tree.map(
      lambda x: np.concatenate(np.split(x, 4)[own.start : own.stop]), a
    )
    assert jax.tree.structure(cut) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, cut, b)


@pytest.mark.parametrize('shards', [1, 2, 4])
@pytest.mark.parametrize('batch_size', [8, 16, 64])
def test_evaluation_batches_have_one_shape_and_all_rows(batch_size, shards):
  data = part(rows=531, block_rows=100)
  found = list(batches.eval_batches(data, batch_size=batch_size, shards=shards))
  for batch in found:
    check(batch, shards)
  np.testing.assert_array_equal(
    np.concatenate([numbers(b) for b in found]), np.arange(531)
  )
  assert len({b.jagged['b']['b'].shape for b in found}) == 1
  # As tight as the longest shard asks for.
  total = [
    int(s.sum()) for b in found for s in np.split(b.jagged['b'].lengths, shards)
  ]
  assert found[0].jagged['b']['b'].size == shards * pipeline.capacity_for(
    max(total)
  )


@pytest.mark.parametrize('shuffle', [True, False])
@pytest.mark.parametrize('shards', [1, 4])
def test_lists_have_one_capacity(shards, shuffle):
  data = part(rows=1000, block_rows=100)
  options = dict(batch_size=64, seed=0, shuffle=shuffle, shards=shards)
  fixed = take(batches.train_batches(data, fixed_lists=True, **options), 40)
  loose = take(batches.train_batches(data, **options), 40)
  assert len({b.jagged['b']['b'].shape for b in fixed}) == 1
  for a, b in zip(fixed, loose, strict=True):
    check(a, shards)
    np.testing.assert_array_equal(a.ids.values, b.ids.values)
    np.testing.assert_array_equal(a.jagged['b'].lengths, b.jagged['b'].lengths)
  rows = data.rows(0, 64)
  batch = collation.collate_rows(
    rows, NAMES, batch_size=64, capacities={'b': rows.bags['b'].values.size - 1}
  )
  assert batch.jagged['b']['b'].size == 128  # too few: that of the ladder


@pytest.mark.parametrize('shuffle', [True, False])
@pytest.mark.parametrize('shards', [1, 4])
def test_the_room_for_lists_is_that_of_a_sample(shards, shuffle, monkeypatch):
  """Two deviations above the longest shard of four batches, by a loop."""
  monkeypatch.setattr(batches, 'SAMPLED', 4)
  monkeypatch.setattr(capacities_lib, 'UNIT', 1)
  data = part(rows=330)
  options = dict(batch_size=16, seed=0, shuffle=shuffle, shards=shards)
  (fixed,) = take(batches.train_batches(data, fixed_lists=True, **options), 1)
  loose = take(batches.train_batches(data, **options), 21)  # an epoch
  # Rows in order are sampled from the beginning to the end.
  sample = loose[:4] if shuffle else loose[:21:6]
  longest = []
  for batch in sample:
    shard = np.split(batch.jagged['b'].lengths, shards)
    longest.append(max(int(lengths.sum()) for lengths in shard))
  room = max(longest) + int(2 * np.std(longest))
  assert fixed.jagged['b']['b'].size == shards * room


def test_an_empty_part_is_refused():
  empty = store.SplitStore('train', [], [], NAMES)
  with pytest.raises(ValueError, match='the train split is empty'):
    batches.train_batches(empty, batch_size=4, seed=0)
  with pytest.raises(ValueError, match='data.shuffle_rows'):
    batches.train_batches(part(), batch_size=4, seed=0, shuffle_rows=0)


def test_few_blocks_stay_decoded(monkeypatch):
  monkeypatch.setattr(store, 'CACHE_BYTES', 1)
  reads = []
  made = part()

  class Counted(list):
    def __getitem__(self, i):
      reads.append(i)
      return list.__getitem__(self, i)

  counted = store.SplitStore('x', np.diff(made.starts), Counted(made), NAMES)
  for _ in range(2):
    for i in (0, 0, 1, 1):
      counted.block(i)
  assert reads == [0, 1, 0, 1]


def _prepared(tmp_path, rows):
  log = clicks.ClickLog(rows=rows, fields=4, values=50, numbers=2, terms=2)
  source = prepare_lib.RowSource(lambda wanted: clicks.read_chunks(log, wanted))
  schema = schema_lib.build_schema({}, log.names, log.options, 'clicks')
  return prepare_lib.prepare_store(
    {'train': source},
    schema,
    tmp_path / str(rows),
    block_rows=4096,
    log=lambda line: None,
  )


def test_preparing_and_streaming_take_constant_memory(tmp_path, monkeypatch):
  monkeypatch.setattr(store, 'CACHE_BYTES', 1 << 18)
  peaks = []
  _prepared(tmp_path, 2_000)  # whatever is made once
  for rows in (40_000, 200_000):
    tracemalloc.start()
    train = _prepared(tmp_path, rows).splits['train']
    steps = pipeline.steps_per_epoch(train, 4096)
    data = iter(
      batches.train_batches(
        train, batch_size=4096, seed=0, shuffle_rows=8192, prefetch=0
      )
    )
    for _ in range(steps):
      last = next(data)
    assert last.weights.sum() == rows - (steps - 1) * 4096
    peaks.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
  assert peaks[1] < 1.5 * peaks[0] + (1 << 20)


def test_raw_rows_come_as_batches_without_labels(tmp_path):
  ds = datasets.load(
    {'name': 'clicks', 'clicks': {'rows': 500, 'fields': 3, 'numbers': 1}},
    tmp_path,
    lambda line: None,
  )
  records = [{'c0': 1, 'c1': None, 'c2': '2', 'n0': 0.5}] * 5
  chunk = raw.from_records(records, ds.encoder.schema.sources)
  found = list(ds.encode([chunk], batch_size=4))
  assert [b.weights.sum() for b in found] == [4, 1]
  labels = found[0].labels.values
  assert labels.shape == (4, 1) and not labels.any()
  row = dict(
    zip(('c0', 'c1', 'c2'), found[0].ids.values[0].tolist(), strict=True)
  )
  assert row['c1'] == 0
  vocabularies = ds.vocabularies
  assert vocabularies['c0'].decode([row['c0']]) == ['1']
  assert vocabularies['c2'].decode([row['c2']]) == ['2']
  with pytest.raises(ValueError, match="row 0: no value for 'n0'"):
    raw.from_records([{'c0': 1, 'c1': 1, 'c2': 1}], ['c0', 'n0'])
