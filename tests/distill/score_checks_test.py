"""Scores that are none are refused where rows are read."""

import doctest

import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax.distill import score_checks
from genrec_jax.distill.heads import DistillSettings


def check(**columns):
  section = config_lib.ranking().distill.to_dict() | {'method': 'head'}
  section['weight'] = 'weight' if 'weight' in columns else ''
  section['scores'] = ('score',)
  made = score_checks.make_check(DistillSettings(**section), ['click'])
  columns = {n: np.array(x, np.float32) for n, x in columns.items()}
  made(columns, 'part.csv')


def test_doctest():
  assert doctest.testmod(score_checks).failed == 0


def test_probabilities_pass_and_what_does_not_count_is_not_looked_at():
  check(score=[0, 0.5, 1])
  check(score=[7, np.nan, 0.2], weight=[0, 0, 3])


@pytest.mark.parametrize(
  'columns, message',
  [
    (dict(score=[0.1, 1.3]), "part.csv: a score in 'score' is 1.3"),
    (dict(score=[-2]), "'score' is -2, and scores are probabilities"),
    (dict(score=[np.nan], weight=[1]), "'score' is nan"),
    (dict(score=[0.1], weight=[-1]), "a weight in 'weight' is -1"),
    (dict(score=[0.1], weight=[np.nan]), "a weight in 'weight' is nan"),
  ],
)
def test_others_are_refused(columns, message):
  with pytest.raises(ValueError, match=message):
    check(**columns)
