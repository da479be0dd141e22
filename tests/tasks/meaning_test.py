"""Weights of a model of the same shapes are not taken for another one's."""

import json

import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax.checkpoint.manager import CheckpointError
from genrec_jax.config.errors import ConfigError
from genrec_jax.features import FeatureSpec
from genrec_jax.serve import weights
from genrec_jax.tasks import meaning
from genrec_jax.tasks.ranking import Ranking
from genrec_jax.tasks.request_ranking import RequestRanking
from genrec_jax.tasks.retrieval import Retrieval
from tests.tasks.request_losses_test import SPEC


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


def make_tbsm(**fields):
  own = dict(kind='sequence', history='past', max_len=4)
  features = [
    FeatureSpec('item', rows=9),
    FeatureSpec('seen', rows=9, table='item', **own),
    FeatureSpec('ages', **own | {'kind': 'numeric_sequence'}),
  ]
  sizes = dict(dim=4, top=(4,), width=3)
  return Ranking('tbsm', sizes | fields, {}, features=features, labels=['x'])


@pytest.mark.parametrize(
  'field, was, now',
  [
    ('mechanism', 'def', 'ind'),
    ('projection', True, False),
    ('projection_eps', 1e-6, 0.0),
    ('relu_end', False, True),
    ('interaction', 'dot', 'auto'),
    ('position', True, False),
    ('weights', 'mlp', 'mul'),
  ],
)
def test_fields_of_tbsm_that_change_what_weights_mean(field, was, now):
  saved = json.loads(json.dumps(meaning.describe_model(make_tbsm())))
  assert saved[field] == was
  other = make_tbsm(**{field: now})
  with pytest.raises(CheckpointError, match=f'model.{field} is {now!r} and'):
    weights._check_model({'host': {'model': saved}}, other)
  with pytest.raises(ConfigError, match=f'(?s)^the workdir w has.*{field} is'):
    meaning.check_resumed('w', saved, other)
  meaning.check_resumed('w', saved, make_tbsm())
  meaning.check_resumed('w', None, other)  # of an earlier version


def test_how_attention_is_computed_and_how_weights_begin_may_differ():
  def make(**fields):
    sizes = dict(dim=8, max_len=4) | fields
    return Retrieval('hstu', sizes, {}, corpus=np.arange(1, 9), rows=9)

  saved = meaning.describe_model(make(implementation='xla', remat=True))
  other = make(implementation='reference')
  assert meaning.list_differences(saved, other) == []
  assert meaning.list_differences(saved, make(alpha=2.0))
  named = {'name': 'hstu', **saved}  # as the section of a config says it
  assert meaning.list_differences(named, other) == []


def test_how_histories_of_requests_are_pooled_is_a_meaning():
  def make(pooling, name='lr'):
    model = config_lib.pool_history(getattr(config_lib, name)()).to_dict()
    model['history']['pooling'] = pooling
    limits = dict(spec=SPEC, max_history=4, max_candidates=3)
    return RequestRanking(model.pop('name'), model, {}, **limits)

  saved = meaning.describe_model(make('mean'))
  assert meaning.list_differences(saved, make('sum')) == [
    "model.history.pooling is 'sum' and was 'mean'"
  ]
  assert meaning.list_differences(saved, make('mean', 'fm'))[0] == (
    "model.name is 'fm' and was 'lr'"
  )
  saved['name'] = ''  # as it was said at first
  assert not meaning.list_differences(saved, make('mean'))


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
