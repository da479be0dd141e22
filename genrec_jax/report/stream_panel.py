"""The report of a model that ranks the candidates of requests.

What any ranking model has, and of a stream the metrics step by step: those of
the requests that come next, before anything of their step is learned, and those
of the test. The share of a label differs from step to step and with it the NE
that can be reached, so that NE is given of each step and of all together.
"""

import math
import pathlib
from collections.abc import Mapping, Sequence

from genrec_jax.config.request_sets import StreamOptions
from genrec_jax.data.requests import stream_ceilings
from genrec_jax.formatting import is_finite
from genrec_jax.report import charts, panels
from genrec_jax.report.charts import Chart, Series
from genrec_jax.report.curves import chart_steps
from genrec_jax.report.metric_writers import read_jsonl
from genrec_jax.report.pages import load_template
from genrec_jax.tasks.ranking_metrics import WeightedMeans

_NEXT, _TEST, _WINDOW = 'next/', 'test', 'train/'
_COLORS = {'next': 'blue', 'test': 'orange', 'windows': 'purple'}
_NAMES = {
  'next': 'before it is learned',
  'test': 'test',
  'windows': 'each batch before its step',
}
_METRICS = ('ne', 'auc')


def measure_requests(config, workdir, experiment) -> dict:
  """`panels.measure_details`, and 'stream' where the run was one.

  Returns:
    With 'stream': {'labels': names of the binary ones; 'next', 'test',
    'windows': [{'step': of the stream, metric: value}, ...]; 'totals': part ->
    label -> of `total_steps`; 'ceilings': what is told -> the same list of what
    the best predictor reaches, of the generated stream}.
  """
  page = panels.measure_details(config, workdir, experiment)
  if config.data.order != 'stream':
    return page
  path = pathlib.Path(workdir) / 'metrics.jsonl'
  rows = read_jsonl(path) if path.exists() else []
  labels = list(experiment.task.binary_labels)
  series = _place_rows(rows, experiment.data.step_ends)
  steps = page.pop('steps', [])
  series['test'] = steps if page.get('part') == 'test' else []
  stream = {
    'labels': labels,
    **series,
    'totals': {
      part: {
        label: total_steps(series[part], _suffix(label, labels))
        for label in labels
      }
      for part in ('next', 'test')
      if series[part]
    },
    'ceilings': _measure_ceilings(config, series),
  }
  return {**page, 'stream': stream}


def _measure_ceilings(config, series: Mapping) -> dict[str, list[dict]]:
  """Of the steps that the run measured; {} where no process is known."""
  if config.data.name != 'streaming':
    return {}
  options = StreamOptions(**config.data.streaming.to_dict())
  shown = {row['step'] for part in ('next', 'test') for row in series[part]}
  return {
    told: [row for row in rows if row['step'] in shown]
    for told, rows in stream_ceilings.measure_steps(options).items()
  }


def _place_rows(
  rows: Sequence[Mapping], ends: Mapping[int, int]
) -> dict[str, list[dict]]:
  """Lines of metrics.jsonl by the step of the stream that they are about.

  Args:
    rows: the lines; of two for one step, the later counts.
    ends: step of the stream -> batches that end with it.
  """
  starts = dict(zip(ends, [0, *ends.values()], strict=False))
  step_of = {start: step for step, start in starts.items()}
  found = {'next': {}, 'windows': {}}
  for row in rows:
    batch = row['step']
    values = _strip_prefix(row, _NEXT)
    if values and batch in step_of:
      found['next'][step_of[batch]] = values
    # Progressive metrics, of a window that may end within a step.
    values = _strip_prefix(row, _WINDOW)
    if any(name.partition('/')[0] == 'auc' for name in values):
      step = next((s for s, end in ends.items() if batch <= end), None)
      if step is not None:
        share = (batch - starts[step]) / (ends[step] - starts[step])
        found['windows'][step - 0.5 + share] = values
  return {
    part: [{'step': step, **by[step]} for step in sorted(by)]
    for part, by in found.items()
  }


def _strip_prefix(row: Mapping, prefix: str) -> dict:
  return {
    name.removeprefix(prefix): value
    for name, value in row.items()
    if name.startswith(prefix)
  }


def _suffix(label: str, labels: Sequence[str]) -> str:
  return f'/{label}' if len(labels) > 1 else ''


def total_steps(steps: Sequence[Mapping], suffix: str = '') -> dict:
  """One label over all steps, from what is known of each.

  >>> steps = [{'logloss': 0.5, 'rate': 0.5, 'candidates': 30, 'auc': 0.6},
  ...          {'logloss': 0.7, 'rate': 0.9, 'candidates': 10, 'auc': 0.8}]
  >>> {name: round(value, 4) for name, value in total_steps(steps).items()}
  {'steps': 2, 'candidates': 40.0, 'rate': 0.6, 'ne': 0.8172, 'auc_mean': 0.65}

  Args:
    steps: 'candidates', and with the suffix 'logloss', 'rate' and 'auc' each.
    suffix: of the names.

  Returns:
    The NE is exact: that of all candidates, against the share of the label
    among all of them. 'auc_mean' is the mean of the steps' AUC, weighted by
    candidates; no AUC can be put together.
  """
  total, area, compared = WeightedMeans(), 0.0, 0.0
  for step in steps:
    count = step['candidates']
    if not count:
      continue
    rate, loss = step[f'rate{suffix}'], step[f'logloss{suffix}']
    total = total.merge(WeightedMeans(count, count * rate, count * loss))
    if is_finite(auc := step[f'auc{suffix}']):
      area, compared = area + count * auc, compared + count
  return {
    'steps': len(steps),
    'candidates': total.weight,
    'rate': total.positive / total.weight if total.weight else math.nan,
    'ne': total.result()['ne'],
    'auc_mean': area / compared if compared else math.nan,
  }


def draw_requests(page: Mapping) -> str:
  """The section of a stream; '' of what came in no order."""
  stream = page.get('stream')
  if not stream:
    return ''
  labels = stream['labels']
  return load_template('stream.html.j2').render(
    by_label=[
      {
        'label': label if len(labels) > 1 else '',
        'charts': _chart_label(stream, label),
        'totals': [
          {'part': _NAMES[part], **totals[label]}
          for part, totals in stream['totals'].items()
        ],
      }
      for label in labels
    ],
    # A page that an earlier version measured has none.
    ceilings=list(stream.get('ceilings', ())),
  )


def _chart_label(stream: Mapping, label: str) -> list[Chart]:
  suffix = _suffix(label, stream['labels'])
  drawn = []
  for name, title in (('ne', 'Normalised entropy'), ('auc', 'AUC')):
    key = name + suffix
    series = [
      Series(_NAMES[part], points, _COLORS[part])
      for part in ('windows', 'next', 'test')
      if (points := _list_points(stream[part], key))
    ]
    if name == 'ne':
      series += _accumulate(stream['next'], suffix)
      references = [charts.reference_level('the share of the step alone', 1.0)]
    else:
      references = []
    references += [
      Series(told, points, color, 'reference')
      for (told, rows), color in zip(
        stream.get('ceilings', {}).items(), ('muted', 'ink'), strict=False
      )
      if (points := _list_points(rows, key))
    ]
    drawn.append(_chart(f'{title} by step of the stream', series, references))
  rate = [
    Series(_NAMES[part], points, _COLORS[part])
    for part in ('next', 'test')
    if (points := _list_points(stream[part], f'rate{suffix}'))
  ]
  drawn.append(_chart('Base rate: the share of the label', rate, []))
  return drawn


def _accumulate(steps: Sequence[Mapping], suffix: str) -> list[Series]:
  """The NE of all steps up to each."""
  points = [
    (step['step'], total_steps(steps[: i + 1], suffix)['ne'])
    for i, step in enumerate(steps)
  ]
  name = 'all steps so far'
  return [Series(name, points, 'green', 'dashes')] if len(points) > 1 else []


def _list_points(steps: Sequence[Mapping], name: str) -> list:
  return [
    (step['step'], value)
    for step in steps
    if isinstance(value := step.get(name), int | float)
  ]


def _chart(title: str, series, references) -> Chart:
  return chart_steps(title, series, references, axis='step of the stream')
