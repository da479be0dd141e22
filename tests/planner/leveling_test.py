"""Arrays that are about as deep on all devices, counted in plain Python."""

import dataclasses

import numpy as np
import pytest

from genrec_jax.embedding.layout import lay_out
from genrec_jax.embedding.plan import count_real_rows
from genrec_jax.planner import Constraint, hardware, leveling, make_plan
from genrec_jax.planner.workload import Feature, Load

BATCH = 8_192


def draw_loads(count, seed=0, most=2e7):
  rng = np.random.default_rng(seed)
  rows = np.minimum(np.exp(rng.normal(13, 2, count)), most).astype(int) + 1
  widths = rng.choice([32, 64, 128], count)
  return [
    Load(
      f't{i}', int(n), int(width), features=(Feature(2.0, name=f'f{i}'),)
    )
    for i, (n, width) in enumerate(zip(rows, widths, strict=True))
  ]  # fmt: skip


def count_padding(plan) -> float:
  """The share of the elements of all arrays that no row of a table has."""
  held, real = 0, 0
  for stack in lay_out(plan).stacks.values():
    held += stack.devices * stack.depth * stack.columns
    for piece in stack.pieces:
      owners = len(piece.owners)
      real += piece.columns * sum(
        count_real_rows(piece.rows, owners, piece.split, place)
        for place in range(owners)
      )
  return 1 - real / held


@pytest.fixture
def small_machine():
  """Of little memory, so that the tables are a good part of it."""
  return dataclasses.replace(
    hardware.find_topology('h100', hosts=2), memory=20 * hardware.GIB
  )


@pytest.mark.parametrize('seed', range(3))
def test_at_most_a_tenth_is_padding(seed, small_machine, monkeypatch):
  loads = draw_loads(60, seed)
  plan, report = make_plan(loads, small_machine, batch=BATCH)
  assert count_padding(plan) <= leveling.MOST_PADDING
  assert 'level arrays' in report.made_by
  padding = 1 - report.row_bytes.mean() / report.allocated
  assert padding == pytest.approx(count_padding(plan), abs=0.01)
  tenth = leveling.MOST_PADDING
  monkeypatch.setattr(leveling, 'MOST_PADDING', 1.0)
  plan, without = make_plan(loads, small_machine, batch=BATCH)
  assert count_padding(plan) > 1.5 * tenth
  assert without.allocated > report.allocated


def test_little_memory_is_no_reason_to_cut_tables():
  machine = hardware.find_topology('h100', hosts=2)
  _, report = make_plan(draw_loads(9, most=1e4), machine, batch=BATCH)
  assert 'level' not in report.made_by


def test_a_table_stays_where_it_has_to(small_machine):
  loads = draw_loads(60)
  heaviest = max(loads, key=lambda load: load.rows * load.dim)
  fixed = {heaviest.name: Constraint(schemes=('table_wise',), at=(3,))}
  plan, _ = make_plan(loads, small_machine, batch=BATCH, constraints=fixed)
  assert plan.tables[heaviest.name].scheme == 'table_wise'
  assert plan.tables[heaviest.name].at == (3,)
