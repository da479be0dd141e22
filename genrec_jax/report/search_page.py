"""Writes search.html: what a search has chosen, and how it came to that.

The markup is in templates/search.html.j2; this module prepares its variables.
"""

from collections.abc import Iterator, Mapping, Sequence

from genrec_jax.formatting import format_compact, format_number
from genrec_jax.report import charts
from genrec_jax.report.axes import Axis, linear_axis
from genrec_jax.report.chart_files import log_axis, pick_color
from genrec_jax.report.charts import Chart, Readout, Series
from genrec_jax.report.comparison import name_metric
from genrec_jax.report.curves import chart_steps
from genrec_jax.report.pages import load_template

_COSTS = {
  'flops': 'operations of an example',
  'parameters': 'parameters',
  'bytes': 'bytes',
  'latency_us': 'microseconds of matrices',
}
_METRICS = ('auc', 'logloss', 'ne')


def render_search(found: Mapping) -> str:
  """Returns the page.

  Args:
    found: what search.json holds.
  """
  candidates = found['candidates']
  splits = [s for s in ('valid', 'test') if s in candidates[0]['metrics']]
  metrics = [m for m in _METRICS if m in candidates[0]['metrics'][splits[0]]]
  best = next(c for c in candidates if c['name'] == found['best'])
  return load_template('search.html.j2').render(
    found=found,
    best=best,
    metrics=[
      (split, metric, f'{name_metric(metric)}, {split}')
      for split in splits
      for metric in metrics
    ],
    costs=list(best['costs']),
    choices=list(_list_choices(found)),
    curves=list(_chart_curves(found, best)),
    tried=[
      _chart_proposals(found['proposals'], candidates, best, cost)
      for cost in best['costs']
      if cost != 'parameters'
    ],
    fronts=[
      _chart_front(found, cost, splits[0], metrics[0])
      for cost in best['costs']
      if cost != 'parameters'
    ],
    trained_s=sum(c['core_s'] for c in candidates),
  )


def _chart_proposals(
  proposals: Sequence[Mapping],
  candidates: Sequence[Mapping],
  best: Mapping,
  cost: str,
) -> Chart:
  """Log loss of the supernet against the cost of what was drawn."""
  trained = {c['title'] for c in candidates}
  points = [
    (
      float(p['costs'][cost]),
      p['supernet_logloss'],
      p['title'],
      2 if p['title'] == best['title'] else int(p['title'] in trained),
    )
    for p in proposals
  ]
  return _chart_points(
    f'Log loss in the supernet, against {_COSTS[cost]}',
    cost,
    points,
    ('tried in the supernet alone', 'trained from scratch', 'the best'),
  )


def _list_choices(found: Mapping) -> Iterator[Mapping]:
  """Of each choice its options, with probabilities."""
  for name, weights in found['choices'].items():
    options = found['space']['choices'][name]
    most = max(weights)
    yield {
      'name': _say_choice(name),
      'options': [
        {'option': option, 'weight': weight, 'chosen': weight == most}
        for option, weight in zip(options, weights, strict=True)
      ],
    }


def _say_choice(name: str) -> str:
  """What a choice is about, in words.

  >>> _say_choice('top.2.64'), _say_choice('top.out'), _say_choice('dim.user')
  ('top, layer 2 of 64 reads', 'top, the last layer reads', 'width of user')
  """
  part, _, rest = name.partition('.')
  if part == 'dim':
    return f'width of {rest}'
  if part == 'rows':
    return f'rows of {rest}'
  if part == 'wukong':
    return f'{rest} of Wukong'
  if part not in ('top', 'bottom'):
    return f'{part} of {rest}'
  layer, _, size = rest.partition('.')
  if layer == 'out':
    return f'{part}, the last layer reads'
  return f'{part}, layer {layer} of {size} reads'


def _chart_curves(found: Mapping, best: Mapping) -> Iterator[Chart]:
  curve = found['curve']

  def read(name: str) -> list[tuple[float, float]]:
    return [(row['step'], row[name]) for row in curve if name in row]

  names = list(found['choices'])
  each = [
    Series('each choice' if i == 0 else '', read(f'entropy/{name}'), 'muted')
    for i, name in enumerate(names)
  ]
  total = [
    (row['step'], sum(row[f'entropy/{name}'] for name in names) / len(names))
    for row in curve
    if all(f'entropy/{name}' in row for name in names)
  ]
  yield chart_steps(
    'Entropy of the choices, in nats',
    [*each, Series('their mean', total, 'blue')],
    from_zero=True,
  )
  yield chart_steps(
    'Temperature of the draws',
    [Series('temperature', read('search/temperature'), 'blue')],
    from_zero=True,
  )
  for cost in best['costs']:
    words = _COSTS[cost]
    budget = found['search'].get(f'max_{cost}', 0.0)
    references = [charts.reference_level('of the best', best['costs'][cost])]
    if budget:
      references.append(charts.reference_level('budget', budget, 'ink'))
    yield chart_steps(
      f'{words.capitalize()}',
      [
        Series('expected', read(f'expected/{cost}'), 'blue'),
        Series('drawn', read(f'search/{cost}'), 'orange', 'dashes'),
      ],
      references,
      from_zero=True,
    )
  yield chart_steps(
    'Cross entropy of training',
    [Series('with drawn weights', read('loss/labels'), 'blue')],
  )


def _chart_front(found: Mapping, cost: str, split: str, metric: str) -> Chart:
  """Quality of the models against their cost."""
  points = [
    (
      float(c['costs'][cost]),
      c['metrics'][split][metric],
      c['title'],
      2 if c['name'] == found['best'] else 1,
    )
    for c in found['candidates']
  ]
  if given := found.get('given'):
    value = given['metrics'][split][metric]
    at = float(given['costs'][cost])
    points.append((at, value, 'the model of the config', 0))
  title = f'{name_metric(metric)}, {split}, against {_COSTS[cost]}'
  kinds = ('the model of the config', '', 'the best')
  return _chart_points(title, cost, points, kinds)


def _chart_points(
  title: str,
  cost: str,
  points: Sequence[tuple[float, float, str, int]],
  kinds: Sequence[str],
) -> Chart:
  """A chart with a point for each model.

  Args:
    title: of the chart.
    cost: on the axis below.
    points: (cost, value, title, number of the kind) of each.
    kinds: names of the kinds; '' is not explained.
  """
  x_values, values = ([p[axis] for p in points] for axis in (0, 1))
  x = _make_linear_axis(x_values, _COSTS[cost])
  if max(x_values) > 5 * min(x_values):
    x = log_axis(x_values, _COSTS[cost])
  y = _make_linear_axis(values)
  colors = ('muted', pick_color(0), pick_color(1))
  series, readouts, named = [], [], set()
  # The best is drawn last, above all others.
  for x_at, y_at, name, kind in sorted(points, key=lambda p: p[3]):
    legend = '' if kind in named else kinds[kind]
    named.add(kind)
    series.append(Series(legend, [(x_at, y_at)], colors[kind]))
  for x_at, y_at, name, kind in sorted(points):
    text = f'{name}: {format_number(y_at)}, {format_compact(x_at)}'
    readouts.append(Readout(x_at, text, [(x_at, y_at, colors[kind])]))
  return Chart(title, x, y, series, readouts)


def _make_linear_axis(values: Sequence[float], name: str = '') -> Axis:
  """An axis with some room on both sides."""
  margin = (max(values) - min(values)) / 10 or abs(values[0]) / 100 or 1.0
  return linear_axis(min(values) - margin, max(values) + margin, name)
