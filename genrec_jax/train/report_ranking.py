"""The parts of report.html about a ranking model.

`report['ranking']` is what `evaluators.ranking.Evaluator.details` gives, with
the name of the part it was measured on:

  part               'test'
  examples           how many
  labels             label -> {'calibration': [{'low', 'high', 'prediction',
                     'rate', 'rate_low', 'rate_high', 'weight'}, ...],
                     'calibration_error', 'histogram': {'edges', 'positive',
                     'negative'}}
  importance         {'examples', 'repeats', 'features': [{'feature', 'kind',
                     'auc_drop', 'auc_drop_std', 'logloss_rise',
                     'logloss_rise_std'}, ...]}

What is absent is left out of the page.
"""

import html
import math
import numbers
from collections.abc import Mapping, Sequence

from genrec_jax.train import report_scores_svg

_MOST_FEATURES = 15  # shown at once
_PARTS = {'test': 'test', 'valid': 'validation', 'train': 'training'}


def scores(ranking: Mapping) -> str:
  """How far predictions can be trusted: a section, '' without labels."""
  labels = ranking.get('labels') or {}
  cards = ''.join(
    _of_label(label if len(labels) > 1 else '', details)
    for label, details in labels.items()
  )
  if not cards:
    return ''
  said = ''
  if ranking.get('examples') is not None:
    part = ranking.get('part', '')
    said = (
      f'<p class="muted small lead">Measured on the {ranking["examples"]:,}'
      f' {_e(_PARTS.get(part, part))} examples.</p>'
    )
  return (
    f'<section><h2>Predicted probabilities</h2>{said}'
    f'<div class="charts">{cards}</div></section>'
  )


def _of_label(label: str, details: Mapping) -> str:
  of = f' of {label}' if label else ''
  out = ''
  if curve := details.get('calibration'):
    error = details.get('calibration_error')
    figure = report_scores_svg.calibration(f'Calibration{of}', curve)
    said = (
      f'{len(curve)} bins of about'
      f' {sum(b["weight"] for b in curve) / len(curve):,.0f} examples, with'
      ' 95% intervals; ticks at the bottom part them.'
    )
    if _finite(error):
      said += f' Mean distance from the diagonal: {error:.4f}.'
    out += _card(figure, said)
  histogram = details.get('histogram') or {}
  if histogram.get('edges'):
    figure = report_scores_svg.histogram(f'Scores by label{of}', histogram)
    said = (
      'Share of the positive and of the negative examples; the axis is spaced'
      ' as the logits are.'
    )
    out += _card(figure, said)
  return out


def _card(figure: str, said: str) -> str:
  return (
    f'<div class="card">{figure}<p class="muted small">{_e(said)}</p></div>'
  )


def importance(ranking: Mapping) -> str:
  """What each feature is worth to the model: a section, '' if not measured."""
  found = ranking.get('importance') or {}
  features = found.get('features') or []
  cards = ''.join(
    _bars(title, features, key)
    for title, key in (
      ('Drop in AUC', 'auc_drop'),
      ('Rise in log loss', 'logloss_rise'),
    )
  )
  if not cards:
    return ''
  said = (
    'What is lost when the values of one feature are dealt out anew among the'
    ' examples'
  )
  if found.get('examples') is not None:
    repeats = found.get('repeats', 1)
    said += (
      f': {found["examples"]:,} of them, {repeats} time'
      f'{"" if repeats == 1 else "s"}'
    )
    said += ', with standard deviations' if repeats > 1 else ''
  said += '. A feature that others can stand in for loses little.'
  return (
    f'<section><h2>Feature importance</h2><p class="muted small lead">{said}'
    f'</p><div class="charts">{cards}</div></section>'
  )


def _bars(title: str, features: Sequence[Mapping], key: str) -> str:
  rows = [f for f in features if _finite(f.get(key))]
  rows.sort(key=lambda f: -f[key])
  if not rows:
    return ''
  spread = f'{key}_std'
  # A bar and its deviation fit; what hurts less than nothing has no bar.
  top = max(f[key] + (f.get(spread) or 0) for f in rows)
  top = top if top > 0 else 1.0
  lines = [_bar(f, key, spread, top) for f in rows]
  out = f'<div class="bars named">{"".join(lines[:_MOST_FEATURES])}</div>'
  if rest := lines[_MOST_FEATURES:]:
    out += (
      f'<details><summary>{len(rest)} more features</summary>'
      f'<div class="bars named">{"".join(rest)}</div></details>'
    )
  return f'<div class="card"><h3>{title}</h3>{out}</div>'


def _bar(feature: Mapping, key: str, spread: str, top: float) -> str:
  value, deviation = feature[key], feature.get(spread) or 0
  deviation = deviation if _finite(deviation) else 0
  low = max(value - deviation, 0) / top
  high = max(value + deviation, 0) / top
  whisker = ''
  if high > low and deviation:
    whisker = (
      f'<b style="left:{100 * low:.1f}%;width:{100 * (high - low):.1f}%"></b>'
    )
  kind = feature.get('kind', '').replace('_', '-')
  text = f'{value:.4f}'.replace('-', '−')
  about = f'{feature["feature"]} ({kind}): {text} ± {deviation:.4f}'
  return (
    f'<span class="name" title="{_e(about)}">{_e(feature["feature"])}</span>'
    f'<span class="bar own"><i style="width:{100 * max(value, 0) / top:.1f}%">'
    f'</i>{whisker}</span><span>{text}</span>'
  )


def _finite(value: object) -> bool:
  return isinstance(value, numbers.Real) and math.isfinite(value)


def _e(value: object) -> str:
  return html.escape(str(value))
