"""Draws what benchmarks/dmt_speedup.py models; nothing in it was measured."""

from collections.abc import Mapping

from benchmarks.dmt_model import ASSUMED
from genrec_jax.report import chart_files, charts
from genrec_jax.report.axes import linear_axis

PAPER = ASSUMED['published']['speedup']
PAPER_SHARE = ASSUMED['published']['exposed_share']['value']
ASKED = 1.5
SHOWN = {1: 'SPTT alone', 4: 'compression 4', 16: 'compression 16'}
MOST_SHARE, MOST_X = 0.6, 4.2


def draw(rows: list[Mapping]) -> str:
  """Returns the picture: speed-ups of a model, and the one of the paper."""
  return chart_files.draw_file([_draw_devices(rows), _draw_shares(rows)])


def _draw_devices(rows: list[Mapping]) -> charts.Chart:
  """Over devices, with bands over latencies and exposed shares."""
  steps = [r for r in rows if _is(r, 'step', model='small')]
  series = []
  for i, (c, name) in enumerate(SHOWN.items()):
    points = [(r['devices'], r[f'speedup_{c}_x']) for r in steps]
    band = [
      (r['devices'], r[f'speedup_{c}_low_x'], r[f'speedup_{c}_high_x'])
      for r in steps
    ]
    color = chart_files.pick_color(i)
    series.append(charts.Series(name, points, color, band=band))
  counts = [r['devices'] for r in steps]
  return charts.Chart(
    'Speed-up (model, not measured): H100, MLPs of 5 M',
    chart_files.log_axis(counts, 'devices'),
    linear_axis(0.5, MOST_X),
    [*series, _mark_paper(PAPER['devices'])],
  )


def _draw_shares(rows: list[Mapping]) -> charts.Chart:
  """Over the exposed share of a flat step, with bands over latencies."""
  shares = [i / 50 for i in range(round(50 * MOST_SHARE) + 1)]
  limit = [(s, 1 / (1 - s)) for s in shares]
  series = [charts.Series('no exchange', limit, 'muted', 'dashes')]
  for i, (c, name) in enumerate(SHOWN.items()):
    (row,) = (r for r in rows if _is(r, 'share', devices=64, compression=c))
    keys = 'ratio_high_x', 'ratio_x', 'ratio_low_x'
    gains = [[1 / (1 - s + s * row[key]) for key in keys] for s in shares]
    points = [(s, gain[1]) for s, gain in zip(shares, gains, strict=True)]
    band = [
      (s, gain[0], gain[2]) for s, gain in zip(shares, gains, strict=True)
    ]
    color = chart_files.pick_color(i)
    series.append(charts.Series(name, points, color, band=band))
  return charts.Chart(
    'Speed-up (model): 64 H100, the same rest',
    linear_axis(0, MOST_SHARE, 'exposed share of a flat step', '{:.0%}'.format),
    linear_axis(0.5, 2.6),
    [
      *series,
      charts.reference_level('', ASKED),
      _mark_paper(PAPER_SHARE),
    ],
  )


def _mark_paper(x: float) -> charts.Series:
  # A point alone is a dot; a line of no width around it makes it be seen.
  y = PAPER['value']
  return charts.Series(
    'paper, at most', [(x, y)], 'ink', band=[(x, y - 0.06, y + 0.06)],
    whiskers=True,
  )  # fmt: skip


def _is(row: Mapping, kind: str, **fields) -> bool:
  fields |= {'kind': kind, 'of': 'h100'}
  return all(row.get(key) == value for key, value in fields.items())
