"""Weights of a model of the same shapes are not taken for another one's."""

import pytest

from genrec_jax.checkpoint.manager import CheckpointError
from genrec_jax.features import FeatureSpec
from genrec_jax.serve import weights
from genrec_jax.tasks import meaning
from genrec_jax.tasks.ranking import Ranking


def make_task(**fields):
  features = [FeatureSpec('user', rows=9), FeatureSpec('item', rows=9)]
  model = dict(dim=4, top=(4,)) | fields
  return Ranking('dlrm', model, {}, features=features, labels=['x'])


def test_fields_that_differ_are_named():
  saved = meaning.describe_model(make_task(itself=True))
  assert meaning.list_differences(saved, make_task(itself=True)) == []
  assert meaning.list_differences(saved, make_task(top=(5,))) == [
    'model.itself is False and was True',
    'model.top is [5] and was [4]',
  ]
  # What matters while training, and arithmetic, may differ.
  free = make_task(itself=True, dropout=0.5, dtype='bfloat16')
  assert meaning.list_differences(saved, free) == []


def test_what_is_not_in_both_is_not_compared():
  saved = meaning.describe_model(make_task())
  del saved['itself']
  assert meaning.list_differences(saved | {'new': 3}, make_task()) == []
  assert meaning.list_differences(None, make_task()) == []
  assert meaning.list_differences(saved, object()) == []


def test_a_checkpoint_of_another_model_is_refused():
  saved = meaning.describe_model(make_task(itself=True))
  weights._check_model({'host': {'model': saved}}, make_task(itself=True))
  weights._check_model({'host': None}, make_task())
  with pytest.raises(CheckpointError, match='model.itself is False and was'):
    weights._check_model({'host': {'model': saved}}, make_task())
