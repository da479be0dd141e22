"""How much room batches have, and that it is known before they are made."""

import doctest

import jax
import numpy as np
import pytest

from genrec_jax.data import capacities as capacities_lib
from genrec_jax.data import histories, pipeline, splits


def make(lengths):
  user = np.repeat(np.arange(len(lengths)), lengths)
  item = np.random.default_rng(0).integers(1, 30, len(user))
  return histories.from_arrays(user, item)


@pytest.mark.parametrize('shards', [1, 4])
def test_few_capacities_are_chosen_from_the_order_of_the_epochs(
  shards, monkeypatch
):
  monkeypatch.setattr(capacities_lib, 'PROGRAM_TOKENS', 3000)
  sizes = np.random.default_rng(0).geometric(0.02, 500) + 1
  h = make(sizes)
  examples = splits.keep_whole(h)
  options = dict(batch_size=64, max_len=200, seed=3, shards=shards)
  chosen = pipeline.choose_capacities(examples, 3, **options)
  assert chosen == pipeline.choose_capacities(examples, 3, **options)
  assert len(chosen.sizes) == 3 and chosen.since[0] == 0
  assert list(chosen.since) == sorted(chosen.since)
  assert pipeline.choose_capacities(examples, 0, **options) is None
  it = iter(
    pipeline.train_batches(
      h, examples, prefetch=0, capacities=chosen, **options
    )
  )
  met = {}
  for number in range(chosen.since[-1] + 24):
    found = next(it).jagged['events']
    capacity = len(found['item']) // shards
    most = max(x.sum() for x in np.split(found.lengths, shards))
    usable = [
      size
      for size, since in zip(chosen.sizes, chosen.since, strict=True)
      if since <= number and size >= most
    ]
    assert capacity == min(usable)
    met.setdefault(capacity, number)
  assert set(met) == set(chosen.sizes)
  # Those that come into use later are met later, and the state goes on alike.
  assert all(met[c] >= n for c, n in zip(*vars(chosen).values(), strict=True))
  again = iter(
    pipeline.train_batches(
      h, examples, prefetch=2, capacities=chosen, **options
    )
  )
  again.set_state(it.get_state())
  jax.tree.map(np.testing.assert_array_equal, next(again), next(it))
  again.close()


def test_a_batch_beyond_all_capacities_is_on_the_ladder():
  h = make([300] * 4)
  small = capacities_lib.Capacities((128,), (0,))
  it = iter(
    pipeline.train_batches(
      h,
      splits.keep_whole(h),
      batch_size=4,
      max_len=999,
      seed=0,
      prefetch=0,
      capacities=small,
    )
  )
  assert len(next(it).jagged['events']['item']) == pipeline.capacity_for(1200)


def test_examples_in_docstrings():
  assert doctest.testmod(capacities_lib).failed == 0


@pytest.mark.parametrize('mean, most_waste', [(20, 0.2), (100, 0.15)])
def test_one_capacity_pads_little_and_more_pad_less(mean, most_waste):
  sizes = np.random.default_rng(1).geometric(1 / mean, 2000) + 1
  sums = sizes[: 15 * 128].reshape(15, 128).sum(axis=1)
  wastes = []
  for most in (1, 2, 3):
    chosen = capacities_lib.choose_capacities(sums, most)
    assert len(chosen.sizes) == most and len({*chosen.sizes}) == most
    room = [chosen.fit(int(tokens), 1 << 40) for tokens in sums]
    wastes.append(sum(room) / sums.sum() - 1)
  assert most_waste > wastes[0] > wastes[1] > wastes[2]


def test_equal_batches_have_one_capacity_however_many_are_allowed():
  assert capacities_lib.choose_capacities([256] * 9, 3).sizes == (256,)


@pytest.mark.parametrize('rows', [40, 43])
@pytest.mark.parametrize('shards', [1, 2, 4])
def test_the_room_is_that_of_the_longest_shard(rows, shards):
  """Counted by a loop; in the last batch some shards may be empty."""
  sizes = np.random.default_rng(7).integers(2, 900, rows)
  sizes[-3:] = 950  # those of the last batch, if it is not full
  examples = splits.keep_whole(make(sizes))
  options = dict(batch_size=8, max_len=700, seed=0, shuffle=False)
  chosen = pipeline.choose_capacities(examples, 1, shards=shards, **options)
  longest = 0
  for first in range(0, rows, 8 // shards):  # a shard
    shard = sizes[first : first + 8 // shards]
    longest = max(longest, sum(min(int(size) - 1, 700) for size in shard))
  unit = capacities_lib.UNIT
  assert chosen.sizes == (-(-longest // unit) * unit,)


@pytest.mark.parametrize(
  ('size', 'parts', 'sizes'), [(128, 3, '126 or 129'), (2, 4, '4')]
)
def test_a_batch_that_cannot_be_divided_names_sizes_that_can(
  size, parts, sizes
):
  with pytest.raises(ValueError) as e:
    capacities_lib.share_of(size, parts, 'train.batch_size')
  said = str(e.value)
  assert said.startswith(f'train.batch_size is {size}, and must be a multiple')
  assert f'of {parts}: ' in said
  assert 'parallel.devices' in said and 'parallel.microbatches' in said
  assert said.endswith(f'set train.batch_size to {sizes}')
  assert capacities_lib.share_of(129, 3) == 43
