"""Refuses scores that are no probabilities, and weights below 0."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from genrec_jax.distill.heads import DistillSettings


def make_check(
  settings: DistillSettings, labels: Sequence[str]
) -> Callable[[Mapping[str, np.ndarray], str], None]:
  """A check of the extra columns of some examples.

  >>> settings = DistillSettings(
  ...   'head', (), 'teacher_weight', 1.0, 1.0, 1.0, 1.0, 1.0, 'residual', ()
  ... )
  >>> check = make_check(settings, ['click'])
  >>> columns = {'teacher': np.array([2.5]), 'teacher_weight': np.ones(1)}
  >>> check(columns, 'a.csv')  # doctest: +ELLIPSIS
  Traceback (most recent call last):
    ...
  ValueError: a.csv: a score in 'teacher' is 2.5, and scores are ...

  Args:
    settings: of the distillation.
    labels: names of the labels.
  """
  scores, weight = settings.name_scores(labels), settings.weight

  def check(columns: Mapping[str, np.ndarray], where: str) -> None:
    known = slice(None)
    if weight:
      weights = columns[weight]
      if not (weights >= 0).all():  # NaN is not either
        bad = weights[np.argmin(weights >= 0)]
        raise ValueError(
          f'{where}: a weight in {weight!r} is {bad:g}; it says how much a '
          'score counts, 0 or more (0 where there is none)'
        )
      known = weights > 0
    for name in scores:
      values = columns[name][known]
      good = (values >= 0) & (values <= 1)
      if not good.all():
        raise ValueError(
          f'{where}: a score in {name!r} is {values[np.argmin(good)]:g}, and '
          'scores are probabilities, from 0 to 1: of logits take the sigmoid, '
          'of percents a hundredth'
        )

  return check
