"""How much a trained model relies on each feature, by permuting its values."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from genrec_jax.data.ranking import rows as rows_lib
from genrec_jax.features import FeatureSpec


def sample_rows(split, count: int, seed: int) -> rows_lib.Rows:
  """At most `count` examples, drawn without replacement, in order."""
  chosen = np.arange(len(split))
  if count < len(split):
    chosen = np.random.default_rng(seed).choice(
      len(split), count, replace=False
    )
    chosen.sort()
  pieces = []
  for number in range(split.blocks):
    a, b = np.searchsorted(chosen, split.starts[number : number + 2])
    if a < b:
      at = chosen[a:b] - split.starts[number]
      pieces.append(split.block(number).take(at))
  return rows_lib.concatenate_rows(pieces)


def permute_feature(
  rows: rows_lib.Rows,
  features: Sequence[FeatureSpec],
  number: int,
  order: np.ndarray,
) -> rows_lib.Rows:
  """The examples with the values of one feature in another order.

  A column of a history takes the other columns with it: lists of other
  examples have other lengths, and an event would be made of several.

  Args:
    rows: N examples.
    features: of the data set, in order.
    number: of the feature among them.
    order: `[N]`, whose value each example gets.
  """
  feature = features[number]
  if feature.is_list:
    moved = [feature]
    if feature.history:
      moved = [f for f in features if f.history == feature.history]
    bags = {f.name: rows.bags[f.name].take(order) for f in moved}
    return dataclasses.replace(rows, bags={**rows.bags, **bags})
  name = 'numbers' if feature.kind == 'numeric' else 'ids'
  column = sum(f.kind == feature.kind for f in features[:number])
  values = getattr(rows, name).copy()
  values[:, column] = values[order, column]
  return dataclasses.replace(rows, **{name: values})


def permutation_importance(
  measure: Callable[[rows_lib.Rows], dict[str, float]],
  rows: rows_lib.Rows,
  features: Sequence[FeatureSpec],
  *,
  repeats: int = 3,
  seed: int = 0,
) -> list[dict]:
  """What is lost when the values of a feature go to other examples.

  A feature whose information others carry too loses little: the model may have
  used it all the same. A history counts as one feature of its name and of the
  kind 'history', since its columns can only move together.

  Args:
    measure: examples -> metrics ('auc' and 'logloss' among them).
    rows: the examples.
    features: of the data set, in order.
    repeats: orders tried of each feature.
    seed: of the orders; those of a feature do not depend on the others.

  Returns:
    The most important first, {'feature', 'kind', 'auc_drop', 'auc_drop_std',
    'logloss_rise', 'logloss_rise_std'}: means over the repeats and their
    standard deviation, 0 for one repeat.
  """
  if repeats < 1:
    raise ValueError(
      f'report.importance_repeats is {repeats}, must be positive'
    )
  base, losses, seen = measure(rows), [], set()
  for number, feature in enumerate(features):
    name = feature.history or feature.name
    if name in seen:
      continue
    seen.add(name)
    drops, rises = [], []
    for repeat in range(repeats):
      rng = np.random.default_rng([seed, number, repeat])
      order = rng.permutation(len(rows))
      now = measure(permute_feature(rows, features, number, order))
      drops.append(base['auc'] - now['auc'])
      rises.append(now['logloss'] - base['logloss'])
    losses.append(
      {
        'feature': name,
        'kind': 'history' if feature.history else feature.kind,
        'auc_drop': float(np.mean(drops)),
        'auc_drop_std': _standard_deviation(drops),
        'logloss_rise': float(np.mean(rises)),
        'logloss_rise_std': _standard_deviation(rises),
      }
    )
  # Without an AUC, where the sample has one label alone, by the log loss.
  key = 'logloss_rise' if math.isnan(base['auc']) else 'auc_drop'
  return sorted(losses, key=lambda row: -row[key])


def _standard_deviation(values) -> float:
  return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
