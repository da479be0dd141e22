"""Draws what maps cost, from the rows of benchmarks/learned_hash*.py.

`draw_clicks` and `draw_films`: NE and log loss against how many times smaller
tables are, by rows and by bytes with the map. `draw_rows`: NE against how many
examples there are, and what k-means finds of the kinds against how often values
stand in the training split. `draw_deciles`: for which films and users a map is
worth something. `draw_ages`: what a map loses while it grows old.
"""

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.learned_hash import AS_KINDS, ROWS
from benchmarks.learned_hash_drift import EVERY
from benchmarks.learned_hash_kinds import DECILES
from genrec_jax.report import chart_files, charts
from genrec_jax.report.axes import linear_axis

# Map -> (name, color, shape).
MAPS = {
  'hash': ('hash', 'muted', 'curve'),
  'ordered': ('ordered', 'green', 'dashes'),
  'frequency': ('frequency', 'green', 'curve'),
  'qr': ('qr', 'purple', 'dashes'),
  'double': ('double', 'purple', 'curve'),
  'embedding': ('embedding', 'blue', 'dashes'),
  'learned': ('learned', 'blue', 'curve'),
  'oracle': ('oracle', 'orange', 'curve'),
}


def draw_clicks(rows: Sequence[Mapping]) -> str:
  """Returns the picture of generated clicks."""
  own = _choose_means(rows, 'clicks/2000')
  return _draw_both(own, 'ne', 'Generated clicks, 2,000 values a field: NE')


def draw_films(rows: Sequence[Mapping]) -> str:
  """Returns the picture of MovieLens 1M."""
  own = _choose_means(rows, 'movielens')
  return _draw_both(own, 'logloss', 'MovieLens 1M: log loss')


def _choose_means(rows: Iterable[Mapping], data: str) -> list[Mapping]:
  return [r for r in rows if r['kind'] == 'mean' and r['data'] == data]


def _draw_both(rows: Sequence[Mapping], metric: str, title: str) -> str:
  """By rows and by bytes, side by side."""
  if not rows:
    return chart_files.draw_file([])
  return chart_files.draw_file([
    _draw_sizes(rows, metric, title, 'compression'),
    _draw_sizes(rows, metric, 'The same by bytes, with the map', 'times'),
  ])  # fmt: skip


def _draw_sizes(
  rows: Sequence[Mapping], metric: str, title: str, key: str
) -> charts.Chart:
  name = {'compression': 'times fewer rows', 'times': 'times fewer bytes'}
  series = []
  for kind, (label, color, shape) in MAPS.items():
    own = sorted(
      (r for r in rows if r['map'] == kind), key=lambda r: r['compression']
    )
    if own:
      points = [(r[key], r[metric]) for r in own]
      series.append(charts.Series(label, points, color, shape))
  whole = [r for r in rows if r['map'] == 'identity']
  series += [
    charts.reference_level('a row for each', r[metric], 'ink') for r in whole
  ]
  levels = [y for s in series[: len(MAPS)] for _, y in s.points]
  levels = [y for y in levels if y == y] + [r[metric] for r in whole]
  floors = [r['floor'] for r in whole if metric == 'ne' and 'floor' in r]
  series += [charts.reference_level('least', y) for y in floors]
  return charts.Chart(
    title,
    chart_files.log_axis(
      [x for s in series for x, _ in s.points if 0 < x < 1e9], name[key]
    ),
    _make_height([*levels, *floors]),
    series,
  )


def draw_rows(rows: Sequence[Mapping]) -> str:
  """Returns the picture of rows/N."""
  means = [r for r in rows if r['kind'] == 'mean']
  by_case = {r['case']: r for r in means}
  losses = []
  for kind, times, label, color, shape in (
    ('identity', 1, 'a row for each', 'muted', 'curve'),
    ('embedding', 10, 'k-means, 10×', 'blue', 'curve'),
    ('embedding', AS_KINDS, 'k-means, eight rows', 'green', 'curve'),
    ('oracle', AS_KINDS, 'a row for each kind', 'orange', 'curve'),
  ):
    end = f', {times}x' if times > 1 else ''
    own = [(n, by_case.get(f'rows/{n}/{kind}{end}')) for n in ROWS]
    points = [(n, r['ne'] - r['floor']) for n, r in own if r]
    losses.append(charts.Series(label, points, color, shape))
  alike = [
    charts.scatter(
      label,
      _list_deciles(means, data, times, key),
      color,
    )
    for data, times, key, label, color in (
      ('rows/', AS_KINDS, 'rand', 'adjusted Rand index, eight rows', 'green'),
      ('rows/', 10, 'alike', 'pairs of one kind, 10×', 'blue'),
    )
  ]
  return chart_files.draw_file([
    charts.Chart(
      'NE above the least of the same data',
      chart_files.log_axis(ROWS, 'examples'),
      _make_height([y for s in losses for _, y in s.points], least=0.0),
      losses,
    ),
    charts.Chart(
      'What k-means finds of the kinds',
      chart_files.log_axis(
        [x for s in alike for x, _ in s.points] or [1.0], 'times seen (median)'
      ),
      linear_axis(0.0, 1.0),
      alike,
    ),
  ])  # fmt: skip


def draw_deciles(rows: Sequence[Mapping]) -> str:
  """Returns the picture of the rows of benchmarks/learned_hash_deciles.py."""
  drawn = []
  for table, name in (('item', 'film'), ('user', 'user')):
    series = []
    for times, color in ((10, 'blue'), (100, 'orange')):
      own = [
        r for r in rows
        if r['kind'] == 'mean' and 'logloss_diff' in r
        and (r['table'], r['map'], r['compression'])
        == (table, 'learned', times)
      ]  # fmt: skip
      # Beside each other, so that one interval does not hide another.
      shift = 0.1 if times > 10 else -0.1
      points = [(r['part'] + shift, r['logloss_diff']) for r in own]
      band = [
        (x, y - r.get('logloss_ci', 0.0), y + r.get('logloss_ci', 0.0))
        for (x, y), r in zip(points, own, strict=True)
      ]
      series.append(
        charts.Series(f'{times}×', points, color, band=band, whiskers=True)
      )
    ends = [y for s in series for _, *ends in s.band for y in ends]
    drawn.append(
      charts.Chart(
        f'Log loss, learned less frequency, by {name}',
        linear_axis(0.5, 10.5, f'tenth, the most frequent {name}s first'),
        _make_height([*ends, 0.0]),
        [*series, charts.reference_level('', 0.0)],
      )
    )
  return chart_files.draw_file(drawn)


def draw_ages(rows: Sequence[Mapping]) -> str:
  """Returns the picture of the rows of benchmarks/learned_hash_drift.py."""
  of_age = [r for r in rows if r['kind'] == 'age']
  points = [(i, r['ne_diff']) for i, r in enumerate(of_age)]
  band = [
    (i, r['ne_diff'] - r.get('ne_ci', 0.0), r['ne_diff'] + r.get('ne_ci', 0.0))
    for i, r in enumerate(of_age)
  ]
  old = charts.Series('', points, 'blue', band=band, whiskers=True)
  means = {r['case']: r for r in rows if r['kind'] == 'mean'}
  names = [f'every {n}' for n in EVERY]
  whole = [(n, means[f'every {n}']) for n in EVERY if names[0] in means]
  levels = [
    charts.Series(
      'maps made anew',
      [(n, r['ne']) for n, r in whole],
      'blue',
      band=[
        (n, r['ne'] - r.get('ne_std', 0.0), r['ne'] + r.get('ne_std', 0.0))
        for n, r in whole
      ],
    ),
    *(
      charts.reference_level(label, means[name]['ne'], color)
      for name, label, color in (
        ('never', 'a map that knows nothing', 'orange'),
        ('identity', 'a row for each', 'ink'),
      )
      if name in means
    ),
  ]
  ends = [y for _, *ends in levels[0].band for y in ends]
  ends += [means[x]['ne'] for x in ('never', 'identity') if x in means]
  return chart_files.draw_file([
    charts.Chart(
      'NE lost by a map that is so old',
      linear_axis(-0.5, len(points) - 0.5, 'windows', whole=True),
      _make_height([y for _, *ends in band for y in ends] + [0.0]),
      [old, charts.reference_level('', 0.0)],
    ),
    charts.Chart(
      'NE of the stream',
      linear_axis(0.5, EVERY[-1] + 0.5, 'a new map every so many windows'),
      _make_height(ends),
      levels,
    ),
  ])  # fmt: skip


def _list_deciles(
  means: Iterable[Mapping], data: str, times: int, key: str
) -> list[tuple[float, float]]:
  """(times seen, index) of each tenth of the values of `embedding`."""
  return [
    (r[f'seen_{i}'], r[f'{key}_{i}'])
    for r in means
    if r['data'].startswith(data)
    and (r['map'], r['compression']) == ('embedding', times)
    for i in range(1, DECILES + 1)
    if f'{key}_{i}' in r
  ]


def _make_height(values: Sequence[float], least: float | None = None):
  """Around all values."""
  low, high = min(values), max(values)
  room = 0.06 * (high - low) or 0.01
  return linear_axis(low - room if least is None else least, high + room)
