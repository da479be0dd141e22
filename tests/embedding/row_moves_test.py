"""What rows of a new map begin with, against all permutations."""

import itertools

import numpy as np
import pytest

from genrec_jax.embedding import row_moves
from genrec_jax.embedding.row_moves import NEW, plan_moves


def draw(seed: int, values: int, old_rows: int, new_rows: int):
  rng = np.random.default_rng(seed)
  old = rng.integers(1, old_rows, values)
  new = rng.integers(1, new_rows, values)
  return old, new, rng.integers(1, 100, values)


@pytest.mark.parametrize('seed', range(8))
def test_matched_rows_have_the_most_in_common(seed):
  old, new, counts = draw(seed, 12, 6, 5)
  moves = plan_moves(old, new, counts, 6, 5)

  def add_up(kept):
    return sum(counts[(new == n) & (old == o)].sum() for n, o in kept)

  found = [(n, o) for n, o in enumerate(moves.kept.tolist()) if o > 0]
  assert len({o for _, o in found}) == len(found), 'no old row twice'
  best = max(
    add_up(zip(range(1, 5), chosen, strict=True))
    for chosen in itertools.permutations(range(1, 6), 4)
  )
  assert add_up(found) == best
  assert moves.kept[0] == 0
  for n, o in found:
    assert counts[(new == n) & (old == o)].sum() > 0


@pytest.mark.parametrize('seed', range(4))
def test_rows_begin_as_their_members_were(seed):
  old, new, counts = draw(seed, 30, 12, 9)
  rng = np.random.default_rng(seed)
  table = rng.normal(size=(12, 3)).astype(np.float32)
  slots = rng.random((12, 3)).astype(np.float32)
  fresh = np.full((9, 3), 7.0, np.float32)
  moves = plan_moves(old, new, counts, 12, 9)
  moved = moves.move_weights(table, fresh)
  moved_slots = moves.move_slots('variance', slots, fresh)
  for row in range(9):
    members = new == row
    if (before := moves.kept[row]) != NEW:
      np.testing.assert_array_equal(moved[row], table[before])
      np.testing.assert_array_equal(moved_slots[row], slots[before])
    elif members.any():
      mean = np.average(table[old[members]], axis=0, weights=counts[members])
      np.testing.assert_allclose(moved[row], mean, rtol=1e-5)
      np.testing.assert_array_equal(
        moved_slots[row], slots[old[members]].max(axis=0)
      )
    else:
      assert np.all(moved[row] == 7) and np.all(moved_slots[row] == 7)


def test_the_same_map_moves_nothing():
  old, _, counts = draw(3, 50, 9, 9)
  moves = plan_moves(old, old, counts, 9, 9)
  used = np.unique(old)
  assert moves.kept[used].tolist() == used.tolist()


def test_a_renamed_map_keeps_all_its_rows():
  old, _, counts = draw(3, 500, 40, 40)
  names = np.append(0, 1 + np.random.default_rng(0).permutation(39))
  moves = plan_moves(old, names[old], counts, 40, 40)
  table = np.random.default_rng(1).normal(size=(40, 2))
  moved = moves.move_weights(table, np.zeros((40, 2)))
  np.testing.assert_array_equal(moved[names[old]], table[old])


def test_values_that_nobody_counted_say_nothing():
  moves = plan_moves(np.array([1, 2]), np.array([1, 2]), np.array([0, 5]), 3, 3)
  assert moves.kept.tolist() == [0, NEW, 2]
  fresh = np.full((3, 1), 9.0)
  moved = moves.move_weights(np.array([[0.0], [1.0], [2.0]]), fresh)
  assert moved[:, 0].tolist() == [0, 9, 2]


def test_what_cannot_be():
  one = np.array([1])
  with pytest.raises(ValueError, match='are not of the same values'):
    plan_moves(one, np.array([1, 2]), one, 3, 3)
  with pytest.raises(ValueError, match='new rows are 5 to 5.*1 to 2'):
    plan_moves(one, np.array([5]), one, 3, 3)


def test_many_rows():
  old, new, counts = draw(0, 60_000, 5_000, 5_000)
  moves = plan_moves(old, new, counts, 5_000, 5_000)
  assert np.sum(moves.kept >= 0) > 4_000
  assert row_moves.NEW not in moves.kept[:1]
