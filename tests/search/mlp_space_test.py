"""Which MLPs there are, and what they cost in the mean."""

import itertools

import pytest

from genrec_jax.search import mlp_space
from genrec_jax.search.mlp_space import MlpSpace
from tests.search import spaces

WIDTH = 7


def count(hidden, outputs=1):
  return sum(
    2 * a * b for a, b in itertools.pairwise((WIDTH, *hidden, outputs))
  )


@pytest.mark.parametrize(
  'widths',
  [((2, 3, 5),) * 2, ((2, 3),) * 3, ((2, 3), (3, 4), (3,)), ((2, 3),), ((4,),)],
)
@pytest.mark.parametrize('skips', [True, False])
def test_costs_are_those_of_all_draws(widths, skips):
  space = MlpSpace('top', widths, 1, skips)
  weights = spaces.draw_weights(space.choices)
  expected = sum(p * count(h) for p, h in spaces.list_mlps(space, weights))
  cost = mlp_space.count_operations
  found = space.measure(weights, WIDTH, cost, cost)
  assert found == pytest.approx(expected, rel=1e-12)


def test_what_is_left_out_counts():
  """The published code drops it, and finds too little."""
  space = MlpSpace('top', ((2, 3, 5),) * 3, 1)
  weights = spaces.draw_weights(space.choices)
  cost = mlp_space.count_operations
  whole = space.measure(weights, WIDTH, cost, cost)
  dropped = space.measure(weights, WIDTH, cost, cost, drop_skips=True)
  assert dropped < 0.95 * whole


@pytest.mark.parametrize(
  'widths', [((2, 3),) * 3, ((2, 3), (3, 4), (3,)), ((2,),)]
)
def test_mlps_are_named_and_found_again(widths):
  space = MlpSpace('top', widths, 1)
  weights = spaces.draw_weights(space.choices)
  known = {hidden for _, hidden in spaces.list_mlps(space, weights)}
  assert set(space.list_mlps()) == known
  assert space.count_mlps() == len(known)
  for hidden in known:
    assert space.choose_hidden(space.describe_hidden(hidden)) == hidden
  cost = mlp_space.count_operations
  least, most = (
    space.find_extreme(WIDTH, cost, cost, pick) for pick in (min, max)
  )
  costs = {hidden: count(hidden) for hidden in known}
  assert costs[least] == min(costs.values())
  assert costs[most] == max(costs.values())


def test_mlps_of_other_spaces_are_refused():
  space = MlpSpace('top', ((2, 3),) * 2, 1, skips=False)
  with pytest.raises(ValueError, match=r'\(2,\) is none of the MLPs'):
    space.describe_hidden((2,))
  with pytest.raises(ValueError, match='layer 2 .* cannot be left out'):
    MlpSpace('top', ((2, 3), (4, 5)), 1)
