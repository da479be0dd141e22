"""The table of unseen and missing values on a report's page."""

from collections.abc import Mapping

from genrec_jax.data.ranking.value_shares import (
  KINDS,
  FeatureCounts,
  format_share,
  from_json,
)


def tabulate_values(values: Mapping) -> dict:
  """What the page says of the values of a report, the worst feature first.

  >>> values = {'valid': {'user': {'values': 8, 'missing': 0, 'unseen': 2}}}
  >>> table = tabulate_values(values)
  >>> table['columns'], table['rows'][0]
  ([('valid', 'unseen')], ('user', [('25.0%', False, '2 of 8')]))

  Args:
    values: split -> feature -> counts, as in report.json.

  Returns:
    'columns': (split, kind) of each that has something to tell; 'rows':
    (feature, [(text, whether it is far more than expected, counts in words)])
    of each such feature; 'others': how many features have nothing to tell.
  """
  counts = from_json(values)

  def share(split: str, kind: str, feature: str) -> float:
    return counts[split].get(feature, FeatureCounts()).share(kind)

  features = list(dict.fromkeys(f for part in counts.values() for f in part))
  columns = [
    (split, kind)
    for kind in KINDS
    for split in counts
    if any(share(split, kind, feature) for feature in features)
  ]
  worst = {f: max((share(*c, f) for c in columns), default=0) for f in features}
  told = sorted(filter(worst.get, features), key=lambda f: -worst[f])

  def make_cell(split, kind, feature):
    own = counts[split].get(feature, FeatureCounts())
    if kind == 'unseen' and own.unseen is None:
      return '–', False, 'this feature has no unseen values'
    is_far_more = kind in values[split].get(feature, {}).get('far_more', ())
    count, total = own.count(kind)
    said = f'{count:,} of {total:,}'
    return format_share(own.share(kind)), is_far_more, said

  return {
    'columns': columns,
    'rows': [(f, [make_cell(*c, f) for c in columns]) for f in told],
    'others': len(features) - len(told),
  }
