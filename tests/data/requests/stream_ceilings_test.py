"""What the best predictor reaches in a step, against counting pairs."""

import doctest
import itertools
import json
import math
import pathlib

import pytest

from genrec_jax.config.request_sets import StreamOptions
from genrec_jax.data.requests import stream_ceilings
from tests.data.requests.slow_stream import what_ratings

ITEMS = {5: 0.2, 4: 0.25, 3: 0.25, 2: 0.2, 1: 0.1}
RESULTS = pathlib.Path(__file__).parents[3] / 'benchmarks/results/cpu2'


def measure_plainly(step: int, places: int, knows_place: bool) -> dict:
  """One step's NE and AUC by definition, case by case."""
  cases = {}
  for place, (item, share) in itertools.product(range(places), ITEMS.items()):
    sums = cases.setdefault((place if knows_place else None, item), [0, 0])
    for rating, chance in zip(*what_ratings(place, places, step), strict=True):
      liked = (rating + item) / 2 >= 3.5
      sums[int(liked)] += chance * share / places
  down, up = (sum(sums[i] for sums in cases.values()) for i in range(2))
  scored = [(b / (a + b), a, b) for a, b in cases.values()]
  wins = sum(
    b * a * ((s > r + 1e-9) + (abs(s - r) <= 1e-9) / 2)
    for (s, _, b), (r, a, _) in itertools.product(scored, scored)
  )
  loss = -sum(
    n * math.log(p)
    for s, a, b in scored
    for n, p in ((a, 1 - s), (b, s))
    if n > 1e-12
  )
  entropy = -down * math.log(down) - up * math.log(up)
  return {'step': step, 'ne': loss / entropy, 'auc': wins / (up * down)}


def test_examples():
  assert doctest.testmod(stream_ceilings).failed == 0


@pytest.mark.parametrize('places', [4, 6])
def test_each_step_has_its_own(places):
  options = StreamOptions(steps=6, train_steps=4, categories_per_user=places)
  found = stream_ceilings.measure_steps(options)
  assert len(found) == 2
  for name, rows in found.items():
    expected = [measure_plainly(t, places, 'place' in name) for t in range(6)]
    assert rows == [pytest.approx(row, rel=1e-9, abs=1e-12) for row in expected]
  # A line for all steps would be above some of them and below others.
  by_item, by_both = ([row['auc'] for row in rows] for rows in found.values())
  assert max(by_item) - min(by_item) > 0.04
  assert all(a < b for a, b in zip(by_item, by_both, strict=True))


def test_they_are_those_of_the_benchmark():
  rows = json.loads((RESULTS / 'gr_stream_ceilings.json').read_text())['rows']
  rows = {row['case']: row for row in rows}
  found = stream_ceilings.measure_steps(StreamOptions())
  cases = ('item rating, step', 'place, item rating, step')
  for case, measured in zip(cases, found.values(), strict=True):
    assert [row['step'] for row in measured] == list(range(100))
    for row in measured[90:]:
      for name in ('ne', 'auc'):
        published = rows[case][f'{name}@{row["step"]}']
        # The file holds five digits.
        assert row[name] == pytest.approx(published, abs=5.1e-6)
