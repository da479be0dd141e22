"""Writes sweep.html: one file to send to a colleague, without any request.

The markup is in report/templates/sweep.html.j2, which escapes all names. This
module prepares its variables.
"""

import datetime
import math
import shlex
from collections.abc import Iterator, Mapping

from genrec_jax import formatting, provenance
from genrec_jax.formatting import is_finite
from genrec_jax.processes import notes
from genrec_jax.report import sweep_pictures as pictures
from genrec_jax.report.comparison import name_metric
from genrec_jax.report.pages import load_template
from genrec_jax.sweep.results import (
  Collection,
  Result,
  group_seeds,
  mean_and_deviation,
)
from genrec_jax.sweep.variants import shorten_keys

_BEST, _MOST_METRICS, _MOST_PAGES = 3, 8, 6
_SUM = 'monitored value'  # of several metrics
_PILLS = {notes.DONE: 'good', notes.FAILED: 'bad'}


def render_sweep(found: Collection) -> str:
  """Returns the page."""
  sweep, ranked = found.sweep, found.rank()
  short = shorten_keys(found.keys)
  places = pictures.place_runs([r.variant.number for r in ranked])
  dots = {
    r.variant.number: pictures.Dot(
      r.variant.number, places.get(r.variant.number, 0.0), _title(r, found)
    )
    for r in found.results
  }
  metrics = found.metrics()[:_MOST_METRICS]
  return load_template('sweep.html.j2').render(
    title=_name(found),
    root=str(sweep.root),
    counts=found.count_states(),
    total=len(found.results),
    core_s=_total(found, 'core_s'),
    wall_s=_total(found, 'wall_s'),
    now=datetime.datetime.now(datetime.UTC).strftime('%Y-%m-%d %H:%M UTC'),
    commands=sweep.commands,
    metric=_label(found.metric),
    keys=[(key, short[key]) for key in found.keys],
    metrics=[(name, _label(name)) for name in metrics],
    best=[_describe_best(r, found) for r in ranked[:_BEST]],
    rows=[_make_row(r, found, metrics, places) for r in found.results],
    seeds=list(_list_means(found, metrics[:4], short)),
    parallel=_draw_parallel(found, ranked, dots, short),
    scatters=list(_draw_scatters(found, ranked, dots, short)),
    curves=_draw_curves(found, ranked, dots),
    failures=[r for r in found.results if r.state == notes.FAILED],
  )


def _name(found: Collection) -> str:
  config = found.sweep.config.rpartition('/')[2]
  return f'Sweep of {config}'


def _label(metric: str) -> str:
  split, _, name = metric.partition('/')
  return f'{name_metric(name)}, {split}' if name else ''


def _total(found: Collection, name: str) -> float | None:
  values = [r.cost(name) for r in found.results]
  values = [v for v in values if v is not None]
  return sum(values) if values else None


def _title(result: Result, found: Collection) -> str:
  value = found.value(result)
  text = '' if value is None else f': {formatting.format_number(value)}'
  return f'{result.variant.name}{text}'


def _describe_best(result: Result, found: Collection) -> Mapping:
  # In a workdir of its own: that of the run is trained already. Paths of the
  # config may be relative to where the sweep was started.
  sweep, variant = found.sweep, result.variant
  again = sweep.root.with_name(f'{sweep.root.name}-again') / variant.name
  command = sweep.describe_command(variant, workdir=str(again))
  command = f'cd {shlex.quote(sweep.directory)} && {command}'
  return {
    'result': result,
    'value': found.value(result),
    'command': provenance.mask_secrets(command),
  }


def _make_row(
  result: Result,
  found: Collection,
  metrics: list[str],
  places: Mapping[int, float],
) -> Mapping:
  number = result.variant.number
  return {
    'number': number,
    'place': places.get(number),
    'state': result.state,
    'pill': _PILLS.get(result.state, ''),
    'why': result.note.why,
    'keys': [result.keys.get(key) for key in found.keys],
    'metrics': [result.best.get(name) for name in metrics],
    'last': result.last.get(metrics[0]) if metrics else None,
    'best_step': result.best_step,
    'step': result.curve.last_step or None,
    'core_s': result.cost('core_s'),
    'page': f'{result.variant.name}/report.html'
    if result.state == notes.DONE
    else '',
  }


def _list_means(
  found: Collection, metrics: list[str], short: Mapping[str, str]
) -> Iterator[Mapping]:
  """Mean and deviation of each setting over its seeds, of runs that are done.

  A run that was stopped early would count as one that ended there.
  """
  for keys, runs in group_seeds(found):
    done = [r for r in runs if r.state == notes.DONE]
    if not done:
      continue
    cells = []
    for name in metrics:
      values = [r.best[name] for r in done if is_finite(r.best.get(name))]
      both = mean_and_deviation(values)
      if both is None:
        cells.append(('', ''))
        continue
      mean, deviation = both
      spread = '' if math.isnan(deviation) else f'± {deviation:.2g}'
      if len(values) < len(done):  # where a metric is not a number
        spread += f' of {len(values)}'
      cells.append((formatting.format_number(mean), spread.strip()))
    left_out = len(runs) - len(done)
    yield {
      'keys': ' '.join(f'{short[k]}={v}' for k, v in keys.items()) or 'all',
      'runs': f'{len(done)} of {len(runs)}' if left_out else len(done),
      'cells': cells,
    }


def _draw_parallel(found, ranked, dots, short):
  if not ranked:
    return ''
  scales = [
    pictures.make_scale(short[key], [r.keys.get(key) for r in found.results])
    for key in found.keys
  ]
  values = [found.value(r) for r in ranked]
  scales.append(pictures.make_scale(_label(found.metric) or _SUM, values))
  rows = [
    (
      dots[r.variant.number],
      [*(r.keys.get(key) for key in found.keys), found.value(r)],
    )
    for r in reversed(ranked)
  ]
  return pictures.draw_parallel(scales, rows)


def _draw_scatters(found, ranked, dots, short):
  if not ranked:
    return
  for key in found.keys[:_MOST_PAGES]:
    scale = pictures.make_scale(
      short[key], [r.keys.get(key) for r in found.results]
    )
    points = [
      (dots[r.variant.number], r.keys[key], found.value(r))
      for r in reversed(ranked)
      if key in r.keys
    ]
    if points:
      metric = _label(found.metric) or _SUM
      yield short[key], pictures.draw_scatter(scale, metric, points)


def _draw_curves(found, ranked, dots):
  order = {r.variant.number: at for at, r in enumerate(ranked)}
  results = sorted(
    (r for r in found.results if r.curve.steps),
    key=lambda r: -order.get(r.variant.number, len(order)),
  )
  if not any(len(r.curve.steps) > 1 for r in results):
    return ''
  curves = [
    (
      dots[r.variant.number],
      list(zip(r.curve.steps, r.curve.values, strict=True)),
    )
    for r in results
  ]
  return pictures.draw_curves(_label(found.metric) or 'value', curves)
