"""How many arrays a batch is: each is a transfer to every device."""

import jax
import numpy as np
import pytest

from genrec_jax.data import histories, pipeline, splits
from genrec_jax.data.ranking import batches
from genrec_jax.data.ranking.rows import Bags, ColumnNames, Rows
from tests import ranking_examples


def log(extras=None):
  return histories.from_arrays([1] * 5 + [2] * 4, range(9), extras=extras)


@pytest.mark.parametrize(
  'extras, more',
  [
    ({}, 0),
    ({'stars': np.arange(9, dtype=np.int32)}, 0),  # in the array of the items
    ({'watched': np.arange(9.0), 'score': np.arange(9.0)}, 1),
  ],
)
def test_of_retrieval(extras, more):
  h = log(extras)
  examples = splits.keep_whole(h)
  options = dict(batch_size=2, max_len=9)
  (batch,) = pipeline.eval_batches(
    h, examples, capacity=20, seen='history', **options
  )
  assert len(jax.tree.leaves(batch)) == 7 + more
  it = iter(pipeline.train_batches(h, examples, seed=0, prefetch=0, **options))
  found = [next(it) for _ in range(3)]
  assert {len(jax.tree.leaves(b)) for b in found} == {5 + more}
  assert len({jax.tree.structure(b) for b in found}) == 1


@pytest.mark.parametrize(
  'others, more',
  [
    ({}, 0),
    (dict(label_weights=np.ones((5, 2), np.float32)), 1),
    (dict(time=np.arange(5), example_id=np.arange(5)), 2),
    (dict(extras={'a': np.zeros(5, np.float32), 'b': np.arange(5)}), 2),
  ],
)
@pytest.mark.parametrize('bags', [0, 2])
def test_of_ranking(others, more, bags):
  lists = Bags(np.arange(5, dtype=np.int32), np.ones(5, np.int32))
  rows = Rows(
    labels=np.zeros((5, 2), np.uint8),
    ids=np.zeros((5, 3), np.int32),
    numbers=np.zeros((5, 2), np.float32),
    group=np.zeros(5, np.int32),
    bags={f'b{i}': lists for i in range(bags)},
    **others,
  )
  names = ColumnNames(('click', 'buy'), ('x', 'y', 'z'), ('m', 'n'))
  part = ranking_examples.hold_in_memory('train', rows, names, 2)
  for batch in batches.eval_batches(part, batch_size=4):  # one is not full
    assert len(jax.tree.leaves(batch)) == 6 + 2 * bags + more
