"""When the base is renewed, against the paper's own example."""

import pytest

from genrec_jax.checkpoint import policy


def renewals(name, sizes, full_every=0):
  """Which of the saves 0, 1, ... are bases; sizes[i] is that of the i-th delta
  behind a base."""
  history, found = None, []
  for save in range(40):
    if policy.wants_base(name, history, full_every):
      found.append(save)
      history = []
    else:
      history = [*history, sizes(len(history) + 1)]
  return found


def test_full_one_shot_and_consecutive():
  assert renewals('full', lambda i: 0.2) == list(range(40))
  assert renewals('one_shot', lambda i: 0.9) == [0]
  assert renewals('consecutive', lambda i: 0.9) == [0]
  assert renewals('consecutive', lambda i: 0.3, 5) == [
    0,
    5,
    10,
    *range(15, 40, 5),
  ]


def test_intermittent_renews_as_soon_as_history_repeated_is_cheaper():
  def grown(i):  # .26 of the rows an interval, .52 in the end
    return 0.52 * (1 - 0.5**i)

  found = renewals('intermittent', grown)
  # By hand: F = 1 + S_1 + ... + S_i against I = (i + 1) S_i.
  for i in range(1, 40):
    sizes = [grown(j) for j in range(1, i + 1)]
    if 1 + sum(sizes) <= (i + 1) * sizes[-1]:
      break
  assert i < 39
  assert found[:2] == [0, i + 1]
  assert {b - a for a, b in zip(found, found[1:])} == {i + 1}


def test_deltas_that_do_not_grow_need_no_new_base():
  assert renewals('intermittent', lambda i: 0.3) == [0]


def test_an_unknown_policy_is_refused():
  with pytest.raises(
    ValueError, match="'daily', must be one of full, one_shot"
  ):
    policy.wants_base('daily', None)
