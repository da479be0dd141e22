"""Writes report.html: one file to show to a colleague, without any request.

The markup is in templates/*.html.j2, which escape everything from outside:
titles, ids, notes, configuration. This module prepares their variables.
"""

import functools
import numbers
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import jinja2
from markupsafe import Markup

from genrec_jax import formatting
from genrec_jax.config.loading import flatten
from genrec_jax.formatting import is_finite
from genrec_jax.report import charts, score_charts
from genrec_jax.report.comparison import (
  Comparison,
  metric_family,
  name_metric,
)
from genrec_jax.report.curves import chart_curves, describe_single
from genrec_jax.report.protocol import (
  describe_protocol,
  describe_size,
  name_data,
)
from genrec_jax.report.shortfall import describe_shortfall
from genrec_jax.report.value_table import tabulate_values

_MOST_HEADLINES = 3
_MODELS = {
  'hstu': 'HSTU',
  'stu': 'STU',
  'sasrec': 'SASRec',
  'lr': 'LR',
  'fm': 'FM',
  'dnn': 'DNN',
  'deepfm': 'DeepFM',
  'dlrm': 'DLRM',
  'dcn': 'DCN-V2',
  'finalmlp': 'FinalMLP',
  'tbsm': 'TBSM',
  'wukong': 'Wukong',
}


def render_page(
  report: Mapping,
  comparison: Comparison,
  curves: Sequence[Mapping],
  sections: Sequence[str] = (),
) -> str:
  """Returns the page; the arguments are those of `summary.write_report`."""
  first, more = chart_curves(report, comparison, curves)
  config, run = report.get('config') or {}, report.get('run') or {}
  return load_template('page.html.j2').render(
    report=report,
    title=_make_title(config, run.get('workdir', '')),
    protocol=describe_protocol(config),
    size=describe_size(report),
    changed=list(_list_changed(config, run)),
    shortfall=describe_shortfall(report, comparison),
    headlines=list(_pick_headlines(report, comparison)),
    comparison=comparison,
    rows=list(_list_rows(comparison)),
    scores=list(_chart_labels(report.get('ranking') or {})),
    importance=list(_rank_features(report.get('ranking') or {})),
    values=tabulate_values(report.get('values') or {}),
    curves=first,
    more_curves=more,
    single=describe_single(curves),
    titled=any(_list_titles(report.get('users') or ())),
    sections=[Markup(section) for section in sections],
    config=list(_group_config(config)),
  )


@functools.cache
def _make_environment() -> jinja2.Environment:
  folder = pathlib.Path(__file__).with_name('templates')
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(folder, encoding='utf-8'),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    # What a report lacks is left out of the page.
    undefined=jinja2.ChainableUndefined,
  )
  environment.filters |= {
    'date': _format_date,
    'minute': _where_known(_format_minute),
    'bytes': _where_known(formatting.format_bytes),
    'metric': _format_metric,
    'metric_name': name_metric,
    'number': formatting.format_number,
    'compact': _where_known(formatting.format_compact),
    'duration': _where_known(formatting.format_duration),
    'plot': charts.draw_plot,
  }
  environment.tests['finite'] = is_finite
  environment.globals['frame'] = charts.Frame()
  return environment


def _where_known(form: Callable[[float], str]) -> Callable[[object], str]:
  return lambda value: form(value) if is_finite(value) else ''


def load_template(name: str) -> jinja2.Template:
  """Returns a template of report/templates, with the filters of the pages."""
  return _make_environment().get_template(name)


def _make_title(config: Mapping, workdir: str) -> str:
  model = config.get('model')
  model = model.get('name') if isinstance(model, Mapping) else None
  names = [_MODELS.get(model, model), name_data(config, workdir)]
  return ' on '.join(str(n) for n in names if n) or 'Run report'


def _list_changed(config: Mapping, run: Mapping) -> Iterator[Mapping]:
  """The keys that differ from the library's defaults, typed ones first."""
  typed, settings = run.get('set_keys') or (), flatten(dict(config))
  changed = run.get('changed') or {}
  for key in sorted({*changed, *typed} & set(settings), key=lambda k: (
    k not in typed, list(settings).index(k)
  )):  # fmt: skip
    yield {
      'key': key,
      'value': _format_setting(settings[key]),
      'default': _format_setting(changed.get(key, settings[key])),
      'typed': key in typed,
    }


def _pick_headlines(
  report: Mapping, comparison: Comparison
) -> Iterator[Mapping]:
  """The metrics above the table, each beside the baselines."""
  baselines = list(report.get('baselines', {}))
  intervals = (report.get('intervals') or {}).get(comparison.split) or {}
  for metric in comparison.headlines[:_MOST_HEADLINES]:
    columns = {'this model': comparison.split} | {n: n for n in baselines}
    values = {n: comparison.value(metric, c) for n, c in columns.items()}
    values = {n: v for n, v in values.items() if is_finite(v)}
    top = max(values.values(), default=0) or 1
    yield {
      'metric': metric,
      'value': comparison.value(metric, comparison.split),
      'verdict': comparison.verdict(metric),
      'interval': intervals.get(metric),
      # A bar alone compares nothing.
      'bars': [
        (name, value, 100 * max(value, 0) / top)
        for name, value in values.items()
        if len(values) > 1
      ],
    }


def _list_rows(comparison: Comparison) -> Iterator[Mapping]:
  """The rows of the table, and where a family of metrics begins."""
  before = None
  for metric, values in comparison.rows:
    # A family is hr@1, hr@5, ...; or all that is measured of one label.
    group = metric.partition('/')[2] or metric_family(metric) * ('@' in metric)
    yield {
      'metric': metric,
      'begins': group != before,
      'cells': dict(zip(comparison.columns, values, strict=True)),
    }
    before = group


def _list_titles(users: Sequence[Mapping]) -> Iterator[str | None]:
  """The title of each item that is shown, None where there is none."""
  for user in users:
    for items in (user.get('history'), user.get('recommendations')):
      yield from (item.get('title') for item in items or ())


def _chart_labels(ranking: Mapping) -> Iterator[tuple[charts.Chart, str]]:
  """Charts of predicted probabilities, with a sentence each."""
  labels = ranking.get('labels') or {}
  unit = ranking.get('unit') or 'examples'
  for label, details in labels.items():
    of = f' of {label}' if len(labels) > 1 else ''
    if curve := details.get('calibration'):
      mean = sum(b['weight'] for b in curve) / len(curve)
      said = (
        f'{len(curve)} bins of about {mean:,.0f} {unit}, with 95% intervals;'
        ' ticks at the bottom part them.'
      )
      error = details.get('calibration_error')
      if is_finite(error):
        said += f' Mean distance from the diagonal: {error:.4f}.'
      yield score_charts.chart_calibration(f'Calibration{of}', curve), said
    histogram = details.get('histogram') or {}
    if histogram.get('edges'):
      yield (
        score_charts.chart_scores(f'Scores by label{of}', histogram),
        f'Share of the positive and of the negative {unit}; the axis is'
        ' spaced as the logits are.',
      )


def _rank_features(ranking: Mapping) -> Iterator[tuple[str, Sequence]]:
  """What each feature is worth: a title and bars, the longest first."""
  features = (ranking.get('importance') or {}).get('features') or []
  for title, key in (
    ('Drop in AUC', 'auc_drop'),
    ('Rise in log loss', 'logloss_rise'),
  ):
    rows = [(f[key], f.get(f'{key}_std'), f) for f in features if key in f]
    rows = [
      (v, d if is_finite(d) else 0, f) for v, d, f in rows if is_finite(v)
    ]
    rows.sort(key=lambda row: -row[0])
    # A bar and its deviation fit; what hurts less than nothing has no bar.
    top = max((value + deviation for value, deviation, _ in rows), default=0)
    scale = 100 / top if top > 0 else 100
    bars = [
      {
        'feature': feature['feature'],
        'kind': feature.get('kind', '').replace('_', '-'),
        'value': f'{value:.4f}'.replace('-', '−'),
        'deviation': deviation,
        'width': scale * max(value, 0),
        'low': scale * max(value - deviation, 0),
        'high': scale * max(value + deviation, 0),
      }
      for value, deviation, feature in rows
    ]
    if bars:
      yield title, bars


def _group_config(config: Mapping) -> Iterator[tuple[str, list]]:
  """Sections of the configuration, each with its (key, value)."""
  plain = {k: v for k, v in config.items() if not isinstance(v, Mapping)}
  if plain:
    yield '', list(_flatten_settings('', plain))
  for name, values in config.items():
    if isinstance(values, Mapping):
      yield name, list(_flatten_settings(f'{name}.', values))


def _flatten_settings(
  prefix: str, values: Mapping
) -> Iterator[tuple[str, str]]:
  for key, value in values.items():
    if isinstance(value, Mapping):
      yield from _flatten_settings(f'{prefix}{key}.', value)
    else:
      yield f'{prefix}{key}', _format_setting(value)


def _format_setting(value: object) -> str:
  if isinstance(value, str):
    return value or "''"
  # JSON has no tuples, and the page is rebuilt from it.
  return repr(_make_lists(value))


def _make_lists(value: object) -> object:
  if isinstance(value, list | tuple):
    return [_make_lists(x) for x in value]
  return value


def _format_metric(value: object) -> str:
  if is_finite(value) and not isinstance(value, numbers.Integral):
    return f'{value:.4f}'
  return formatting.format_number(value)


def _format_minute(seconds: float) -> str:
  """The date and time without seconds."""
  return formatting.format_moment(60 * (seconds // 60)).replace(':00 ', ' ')


def _format_date(seconds: object) -> str:
  """The date alone; see `formatting.format_moment`."""
  if not isinstance(seconds, numbers.Real):
    return ''
  return formatting.format_moment(seconds).partition(' ')[0]
