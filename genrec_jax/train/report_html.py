"""report.html: one file to show to a colleague, without any request.

Everything from outside (titles, ids, notes, configuration) is escaped.
"""

import datetime
import html
import math
import numbers
from collections.abc import Mapping, Sequence

from genrec_jax.runtime.progress import compact, duration
from genrec_jax.train import report_ranking
from genrec_jax.train.report_compare import (
  Comparison,
  family,
  is_better,
  lift_text,
)
from genrec_jax.train.report_style import CSS
from genrec_jax.train.report_svg import Series, chart, number

_HEADLINES = (
  'ndcg@10',
  'hr@10',
  'mrr',
  'auc',
  'gauc',
  'logloss',
  'calibration',
)
_MOST_HEADLINES = 3
_MODELS = {
  'hstu': 'HSTU',
  'sasrec': 'SASRec',
  'lr': 'LR',
  'fm': 'FM',
  'dnn': 'DNN',
  'deepfm': 'DeepFM',
  'dlrm': 'DLRM',
  'dcn': 'DCN-V2',
  'finalmlp': 'FinalMLP',
  'wukong': 'Wukong',
}
_METRICS = {
  'auc': 'AUC',
  'gauc': 'gAUC',
  'logloss': 'Log loss',
  'ne': 'Normalised entropy',
  'calibration': 'Calibration',
}
_FIRST_CHARTS = (
  'loss',
  'ndcg@10',
  'hr@10',
  'tokens_per_s',
  'auc',
  'logloss',
  'examples_per_s',
)
_PARTS = ('train', 'valid', 'test', 'perf')


def page(
  report: Mapping,
  comparison: Comparison,
  curves: Sequence[Mapping],
  sections: Sequence[str] = (),
) -> str:
  """Returns the page; the arguments are those of `report.write`."""
  title = _title(report.get('config', {}))
  parts = [
    _header(report, title),
    _headlines(report, comparison),
    _table(comparison),
    report_ranking.scores(report.get('ranking') or {}),
    _charts(report, comparison, curves),
    report_ranking.importance(report.get('ranking') or {}),
    _users(report.get('users') or ()),
    *sections,
    _configuration(report),
  ]
  return (
    '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width,initial-scale=1">'
    f'<title>{_e(title)}</title><style>{CSS}</style></head>'
    f'<body><main>{"".join(parts)}<footer>The same figures for scripts:'
    ' <code>report.json</code>; the curves: <code>metrics.jsonl</code>.'
    '</footer></main></body></html>\n'
  )


def _title(config: Mapping) -> str:
  model, data = (
    c.get('name') if isinstance(c, Mapping) else None
    for c in (config.get('model'), config.get('data'))
  )
  names = [_MODELS.get(model, model), data]
  return ' on '.join(str(n) for n in names if n) or 'Run report'


def _header(report: Mapping, title: str) -> str:
  out = f'<p class="eyebrow">genrec_jax run report</p><h1>{_e(title)}</h1>'
  if report.get('data'):
    out += f'<p class="lead muted">{_e(report["data"])}</p>'
  facts = []

  def add(name, key, form):
    if report.get(key) is not None:
      facts.append((name, form(report[key])))

  of = f' of {report["steps"]:,}' if report.get('steps') is not None else ''
  add('Best step', 'best_step', lambda v: f'{v:,}{of}')
  add('Wall time', 'wall_s', duration)
  add('Processor time', 'core_s', duration)
  add('Examples per second', 'examples_per_s', compact)
  add('Tokens per second', 'tokens_per_s', compact)
  add('Devices', 'devices', str)
  add(
    'Parameters',
    'parameters',
    lambda v: f'{v["model"]:,} + {v["tables"]:,} in tables',
  )
  add('Seed', 'seed', str)
  out += '<dl class="facts">' + ''.join(
    f'<div><dt>{name}</dt><dd>{_e(value)}</dd></div>' for name, value in facts
  )
  out += '</dl>'
  for note in report.get('notes') or ():
    out += f'<p class="note">{_e(note)}</p>'
  return f'<header>{out}</header>'


def _headlines(report: Mapping, comparison: Comparison) -> str:
  metrics = [name for name, _ in comparison.rows]
  chosen = [m for m in _HEADLINES if m in metrics] or metrics
  chosen = chosen[:_MOST_HEADLINES]
  baselines = list(report.get('baselines', {}))
  out = ''.join(_headline(m, comparison, baselines) for m in chosen)
  said = ''
  rate = comparison.value('hr@10', comparison.part)
  if _finite(rate):
    said = (
      '<p class="said">The item a user went on to is among the first 10'
      f' recommendations in <b>{rate:.1%}</b> of all cases'
    )
    others = [
      f'{_e(name)}: {comparison.value("hr@10", name):.1%}'
      for name in baselines
      if _finite(comparison.value('hr@10', name))
    ]
    said += f' ({", ".join(others)}).</p>' if others else '.</p>'
  said += _said_of_ranking(comparison)
  part = {'test': 'Test', 'valid': 'Validation'}.get(
    comparison.part, comparison.part
  )
  return f'<h2>{_e(part)} metrics</h2><div class="cards">{out}</div>{said}'


def _said_of_ranking(comparison: Comparison) -> str:
  """What AUC, log loss and calibration mean, in a sentence."""
  auc, calibration = (
    comparison.value(m, comparison.part) for m in ('auc', 'calibration')
  )
  if not _finite(auc):
    return ''
  said = (
    '<p class="said">Of a positive and a negative example the model scores the'
    f' positive higher in <b>{auc:.1%}</b> of all cases'
  )
  gain = comparison.value('logloss', comparison.lift)
  if _finite(gain):
    said += (
      f'; its log loss is {abs(gain):.1%} {"below" if gain < 0 else "above"}'
      ' that of the best baseline'
    )
  if _finite(calibration):
    said += (
      f'; its probabilities add up to {calibration:.3f} times what happened'
    )
  return f'{said}.</p>'


def _headline(
  metric: str, comparison: Comparison, baselines: Sequence[str]
) -> str:
  own = comparison.value(metric, comparison.part)
  lift = comparison.value(metric, comparison.lift)
  rows = [('this model', own, ' own')]
  rows += [(n, comparison.value(metric, n), '') for n in baselines]
  rows = [r for r in rows if _finite(r[1])]
  top = max((v for _, v, _ in rows), default=0) or 1
  if len(rows) < 2:
    rows = []  # nothing to compare
  bars = ''.join(
    f'<span>{_e(name)}</span><span class="bar{kind}"><i style="width:'
    f'{100 * max(v, 0) / top:.1f}%"></i></span><span>{_metric(v)}</span>'
    for name, v, kind in rows
  )
  against = baselines[0] if len(baselines) == 1 else 'the best baseline'
  pill = (
    f'<span class="pill {"good" if is_better(metric, lift) else "bad"}">'
    f'{_lift(metric, lift)} {"vs " * (comparison.lift == "gain")}'
    f'{_e(against)}</span>'
    if _finite(lift)
    else ''
  )
  return (
    f'<div class="card"><div class="head"><h3>{_e(_name(metric))}</h3>{pill}'
    f'</div><div class="big">{_metric(own)}</div>'
    f'<div class="bars">{bars}</div></div>'
  )


def _table(comparison: Comparison) -> str:
  heads = ''.join(f'<th scope="col">{_e(c)}</th>' for c in comparison.columns)
  body, before = '', None
  for metric, values in comparison.rows:
    # A family is hr@1, hr@5, ...; or all that is measured of one label.
    group = metric.partition('/')[2] or family(metric) * ('@' in metric)
    new = ' class="family"' if group != before else ''
    before = group
    body += f'<tr{new}><th scope="row">{_e(_name(metric))}</th>'
    for column, value in zip(comparison.columns, values, strict=True):
      if column == comparison.lift:
        good, text = '', '–'
        if _finite(value):
          good = ' good' if is_better(metric, value) else ''
          text = _lift(metric, value)
        body += f'<td><span class="pill{good}">{text}</span></td>'
      else:
        own = 'own' if column == comparison.part else 'off'
        body += f'<td class="{own}">{_metric(value)}</td>'
    body += '</tr>'
  return (
    '<div class="card" style="margin-top:1rem"><div class="scroll"><table>'
    '<thead><tr><th scope="col">metric</th>'
    f'{heads}</tr></thead><tbody>{body}</tbody></table></div></div>'
  )


def _charts(
  report: Mapping, comparison: Comparison, curves: Sequence[Mapping]
) -> str:
  found = {}  # 'ndcg@10' -> 'valid' -> points
  for row in curves:
    for name, value in row.items():
      if name != 'step' and isinstance(value, numbers.Real):
        part, _, what = name.partition('/')
        if not what:
          part, what = '', name
        points = found.setdefault(what, {}).setdefault(part, [])
        points.append((row['step'], float(value)))
  if not found:
    return ''
  drawn = {
    what: f'<div class="card">{_chart(what, parts, report, comparison)}</div>'
    for what, parts in found.items()
  }
  first = [w for w in _FIRST_CHARTS if w in drawn] or list(drawn)[:2]
  rest = [drawn[w] for w in drawn if w not in first]
  out = ''.join(drawn[w] for w in first)
  out = f'<section><h2>Curves</h2><div class="charts">{out}</div>'
  if rest:
    out += (
      f'<details><summary>{len(rest)} more curves</summary>'
      f'<div class="charts">{"".join(rest)}</div></details>'
    )
  return f'{out}</section>'


def _chart(
  what: str, parts: Mapping, report: Mapping, comparison: Comparison
) -> str:
  """One figure: the same measurement of all parts of the data."""
  timing = set(parts) == {'perf'}
  is_metric = what in (name for name, _ in comparison.rows)
  is_ranking = family(what) in _METRICS
  title = _name(what) if is_metric or is_ranking else _title_of(what)
  known = [p for p in _PARTS if p in parts]
  series = []
  for part in known + [p for p in parts if p not in known]:
    name = title.lower() if timing else part or what
    kind = part if part in _PARTS else 'other'
    series.append(Series(name, kind, parts[part]))
  # A baseline far below would flatten the curves of ranking models.
  shown = is_metric and not is_ranking
  for name in report.get('baselines', {}) if shown else ():
    value = comparison.value(what, name)
    if _finite(value):
      name = f'{name} ({comparison.part})'
      series.append(Series(name, 'ref', [(0, value)]))
  return chart(
    title,
    series,
    best=None if timing else report.get('best_step'),
    from_zero=timing or shown,
  )


def _name(metric: str) -> str:
  """A metric as a heading: 'HR@10', 'Log loss of click'."""
  known = _METRICS.get(family(metric))
  if known is None:
    return metric.upper()
  label = metric.partition('/')[2]
  return f'{known} of {label}' if label else known


def _lift(metric: str, value: float) -> str:
  return lift_text(metric, value).replace('x', '×').replace('-', '−')


def _title_of(what: str) -> str:
  return what.replace('_per_s', ' per second').replace('_', ' ').capitalize()


def _users(examples: Sequence[Mapping]) -> str:
  if not examples:
    return ''
  cards = ''.join(_user(example) for example in examples)
  return f'<section><h2>What some users get</h2>{cards}</section>'


def _user(example: Mapping) -> str:
  recommended = example.get('recommendations') or []
  target = example.get('target')
  rank = example.get('target_rank')
  badge = ''
  if target is not None and rank is not None:
    badge = f'<span class="pill good">next item ranked {rank:,}</span>'
  elif target is not None:
    badge = (
      f'<span class="pill">next item not among the {len(recommended)}</span>'
    )
  past = ''.join(
    f'<li><span class="r">{_when(event.get("time"))}</span>'
    f'<span>{_item(event)}</span></li>'
    for event in example.get('history') or ()
  )
  if target is not None:
    hit = ' hit' if any(r.get('hit') for r in recommended) else ''
    past += (
      f'<li class="next{hit}"><span class="r">then</span>'
      f'<span>{_item(target)}</span></li>'
    )
  scores = [r.get('score') for r in recommended]
  scores = [s for s in scores if _finite(s)]
  low, high = min(scores, default=0), max(scores, default=0)
  answers = ''
  for place, r in enumerate(recommended, 1):
    bar = ''
    if _finite(score := r.get('score')):
      share = (score - low) / (high - low) if high > low else 1.0
      bar = (
        f'<span class="score"><i style="width:{10 + 90 * share:.0f}%"></i>'
        f'</span>{score:.2f}'
      )
    mark = '\u00a0✓' if r.get('hit') else ''
    hit = ' class="hit"' if r.get('hit') else ''
    answers += (
      f'<li{hit}><span class="n">{place}</span><span>{_item(r)}{mark}</span>'
      f'<span class="r">{bar}</span></li>'
    )
  answers = answers or '<li class="muted">none</li>'
  return (
    f'<article class="card user"><div class="head"><b>User '
    f'{_e(example.get("user", ""))}</b>{badge}</div><div class="two"><div>'
    '<h3>History, latest last</h3>'
    f'<ul class="items past">{past or "<li>empty</li>"}</ul></div><div>'
    f'<h3>Recommended, with scores</h3><ol class="items">{answers}</ol></div>'
    '</div></article>'
  )


def _item(item: Mapping) -> str:
  name = item.get('item')
  if item.get('title'):
    return f'<span title="item {_e(name)}">{_e(item["title"])}</span>'
  return f'item {_e(name)}'


def _when(time: int | None) -> str:
  """The date of seconds since 1970; small numbers are a clock of their own."""
  if time is None:
    return ''
  try:
    if time > 1e8:
      moment = datetime.datetime.fromtimestamp(time, datetime.UTC)
      return moment.date().isoformat()
  except (OverflowError, ValueError, OSError):
    pass
  return f't={number(time)}'


def _configuration(report: Mapping) -> str:
  config = report.get('config') or {}
  plain = {k: v for k, v in config.items() if not isinstance(v, Mapping)}
  groups = [('', plain)] if plain else []
  groups += [(k, v) for k, v in config.items() if isinstance(v, Mapping)]
  out = ''
  if groups:
    shown = ''.join(_group(name, values) for name, values in groups)
    out += (
      '<details><summary>Configuration</summary><p class="muted small">Change'
      ' a value on the command line with <code>--config.KEY=VALUE</code>.</p>'
      f'<div class="config">{shown}</div></details>'
    )
  if versions := report.get('versions'):
    shown = _group('', versions)
    out += (
      '<details><summary>Versions</summary>'
      f'<div class="config">{shown}</div></details>'
    )
  return (
    f'<section><h2>How it was run</h2><div class="card">{out}</div></section>'
    if out
    else ''
  )


def _group(name: str, values: Mapping) -> str:
  prefix = f'{name}.' if name else ''
  lines = ''.join(
    f'<p><code>{_e(key)}</code><code class="muted">{_e(value)}</code></p>'
    for key, value in _flat(prefix, values)
  )
  heading = f'<h3>{_e(name)}</h3>' if name else ''
  return f'<div>{heading}{lines}</div>'


def _flat(prefix: str, values: Mapping) -> list[tuple[str, str]]:
  lines = []
  for key, value in values.items():
    if isinstance(value, Mapping):
      lines += _flat(f'{prefix}{key}.', value)
    else:
      text = value if isinstance(value, str) else repr(value)
      lines.append((f'{prefix}{key}', text if text else "''"))
  return lines


def _metric(value: object) -> str:
  if _finite(value) and not isinstance(value, numbers.Integral):
    return f'{value:.4f}'
  return _e(number(value))


def _finite(value: object) -> bool:
  return isinstance(value, numbers.Real) and math.isfinite(value)


def _e(value: object) -> str:
  return html.escape(str(value))
