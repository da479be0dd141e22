import numpy as np
import pytest

from benchmarks import plan_costs
from genrec_jax.embedding.scheme import SCHEMES


def test_equal_numbers_share_their_rank():
  # By hand: ranks 0, 1.5, 1.5, 3 and 1, 0, 2, 3.
  a, b = [0, 1.5, 1.5, 3], [1, 0, 2, 3]
  assert plan_costs.correlate_ranks(
    [5, 7, 7, 9], [20, 10, 30, 40]
  ) == pytest.approx(np.corrcoef(a, b)[0, 1])
  assert plan_costs.correlate_ranks([1, 2, 3], [9, 8, 7]) == pytest.approx(-1)


def test_drawn_plans_are_the_same_again_and_use_every_scheme():
  loads = plan_costs.draw_tables()
  plans = [plan_costs.draw_plan(seed, loads, 2, 4) for seed in range(56)]
  again = [plan_costs.draw_plan(seed, loads, 2, 4) for seed in range(56)]
  assert plans == again and len({str(p) for p in plans}) == 56
  used = {t.scheme for plan in plans for t in plan.tables.values()}
  assert used == {*SCHEMES}


def test_a_plan_is_predicted_and_measured(capsys):
  plan_costs.main(['--smoke', '--only', '0'])
  out = capsys.readouterr().out
  assert 'devices/0' in out and 'nothing is written' in out
