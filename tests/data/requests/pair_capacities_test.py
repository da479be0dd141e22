import itertools

import numpy as np
import pytest

from genrec_jax.data import capacities
from genrec_jax.data.requests.pair_capacities import (
  PairCapacities,
  choose_pairs,
)

U = capacities.UNIT


def best_slowly(sums, first):
  """The pair, of those that some batch could need, that saves the most."""
  values = [sorted({-(-s[i] // U) * U for s in sums}) for i in (0, 1)]
  saved = {}
  for a, b in itertools.product(*values):
    fits = [s for s in sums if s[0] <= a and s[1] <= b]
    saved[a, b] = len(fits) * max(0, sum(first) - a - b)
  return max(saved.values()), saved


def test_the_second_pair_saves_the_most():
  rng = np.random.default_rng(0)
  for _ in range(20):
    sums = rng.integers(1, 10 * U, (30, 2)).tolist()
    chosen = choose_pairs(sums, 2)
    first = tuple(-(-max(s[i] for s in sums) // U) * U for i in (0, 1))
    assert chosen.sizes[0] == first and chosen.since[0] == 0
    most, saved = best_slowly(sums, first)
    if most:
      assert saved[chosen.sizes[1]] == most
      pays = -(-capacities.PROGRAM_TOKENS * len(sums) // most)
      assert chosen.since[1] == pays


def test_a_stream_may_use_a_pair_at_once_if_it_pays_within_the_epoch():
  # A tenth of the batches is short; each saves 9 + 1 units.
  sums = [(10 * U, 2 * U)] * 9 + [(U, U)]
  saved = capacities.PROGRAM_TOKENS * 10 / (10 * U)
  enough, few = int(saved), int(saved) - 1
  assert choose_pairs(sums, 3, enough) == PairCapacities(
    ((10 * U, 2 * U), (U, U)), (0, 0)
  )
  assert len(choose_pairs(sums, 3, few).sizes) == 1


def test_pairs_that_save_nothing_are_left_out():
  assert choose_pairs([(5, 5), (7, 9)], 4).sizes == ((U, U),)


def test_programs_and_words():
  pairs = PairCapacities(((512, 256), (256, 128)), (0, 100))
  assert [pairs.count_programs(n) for n in (1, 100, 101)] == [1, 1, 2]
  assert pairs.describe() == (
    'room for a batch of 512 events and 256 candidates, or of 256 events and '
    '128 candidates from step 100'
  )


def test_a_batch_has_the_smallest_pair_with_room():
  pairs = PairCapacities(((512, 256), (256, 128)), (0, 100))
  cases = [(200, 100, 99), (256, 128, 99), (257, 1, 100), (1, 129, 100)]
  for case in cases:
    assert pairs.find_room(*case) == (512, 256)
  assert pairs.find_room(256, 128, 100) == (256, 128)


@pytest.mark.parametrize('number', [0, 200])
def test_what_no_pair_has_room_for_is_rounded_up(number):
  pairs = PairCapacities(((512, 256), (256, 128)), (0, 100))
  assert pairs.find_room(600, 10, number) == (640, 256)
  assert pairs.find_room(600, 300, number) == (640, 320)
  assert pairs.find_room(512, 256, number) == (512, 256)
