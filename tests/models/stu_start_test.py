"""What STU starts from, and what it refuses."""

import dataclasses

import numpy as np
import pytest
from flax import nnx

from benchmarks import gr_models, gr_requests
from genrec_jax.config.request_models import STU as Config
from genrec_jax.models.stu import STU
from tests.models.stu_test import ENRICHED, ROOM, SIZES, SPEC


def test_the_start_is_the_published_one():
  config = Config(dim=48, dqk=20, dv=24, time_buckets=200)
  state = nnx.state(STU(config, ENRICHED, nnx.Rngs(0)), nnx.Param)
  params = gr_models.name_leaves(nnx.to_pure_dict(state))

  def assert_uniform(name, bound):
    values = params[name]
    assert np.abs(values).max() <= bound
    assert abs(values.std() * 3**0.5 / bound - 1) < 6 / values.size**0.5, name

  def assert_normal(name, deviation):
    values = params[name]
    assert abs(values.std() / deviation - 1) < 5 / values.size**0.5, name

  layer = 'stack/layer_0'
  assert_uniform(f'{layer}/uvqk/kernel', (6 / (48 + 176)) ** 0.5)
  assert_uniform(f'{layer}/output/kernel', (6 / (144 + 48)) ** 0.5)
  assert not params[f'{layer}/uvqk/bias'].any()
  assert f'{layer}/output/bias' not in params
  assert_uniform('positions/position', (2 + 256 + 1) ** -0.5)
  assert params['positions/age'].shape == (201, 48)
  assert_uniform('positions/age', 200**-0.5)
  assert_normal('tokens/slot_0/kernel', (2 / (48 + 48)) ** 0.5)
  assert_normal('tokens/content/below/kernel', (2 / (48 + 128)) ** 0.5)
  assert_normal('tokens/attributes/below/kernel', (2 / (144 + 128)) ** 0.5)
  assert_normal('tokens/absent', 0.1)
  assert_normal('tokens/actions/vectors', 0.1)
  assert_uniform('tower/below/kernel', (6 / (192 + 128)) ** 0.5)
  assert_uniform('head/net/below/kernel', (6 / (48 + 128)) ** 0.5)


def test_listwise_candidates_have_one_token_and_places_of_their_own():
  config = Config(
    dim=16, layout='interleaved', listwise=True, max_history=9, max_candidates=5
  )
  model = STU(config, ENRICHED, nnx.Rngs(0))
  state = gr_models.name_leaves(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
  # Four slots of context, two tokens an event, the candidates, and one beyond.
  assert len(state['positions/position']) == 4 + 2 * 9 + 5 + 1
  requests = [gr_requests.draw(4, 3, 0, ENRICHED)]
  batch = gr_requests.pack(requests, ENRICHED, *ROOM)
  # The token of an action would be seen by the candidates behind it.
  assert model.tokens.find_layout(batch, train=True).of_candidate == 1


def test_keys_that_start_as_queries():
  config = Config(dim=48, heads=3, dqk=20, dv=24, tied_start=True)
  state = nnx.state(STU(config, ENRICHED, nnx.Rngs(0)), nnx.Param)
  matrix = gr_models.name_leaves(nnx.to_pure_dict(state))[
    'stack/layer_1/uvqk/kernel'
  ]
  gates, values, queries, keys = np.split(matrix, [72, 144, 204], axis=1)
  np.testing.assert_array_equal(keys, queries)
  every = np.concatenate([gates, values, queries], axis=1)
  assert np.unique(every, axis=1).shape == every.shape


@pytest.mark.parametrize(
  'change, spec, message',
  [
    ({'layout': 'woven'}, {}, "model.layout is 'woven'.*'interleaved'"),
    ({'gate': 'tanh'}, {}, "model.gate is 'tanh'"),
    ({'reference_compat': ('N',)}, {}, "names 'N'.*'batch_normaliser'"),
    ({'truncated_layers': 3}, {}, 'there are model.blocks=2 layers'),
    ({'truncated_layers': 1}, {}, 'model.truncated_to=0 tokens'),
    ({'watch_times': ((3, 6),)}, {}, '3 seconds the bit 6'),
    ({'watch_times': ((3, 4),)}, {'watch_time': False}, 'have no watch times'),
    ({}, {'actions': ()}, "take 'no_actions'"),
    ({'postprocessor': 'timestamp'}, {'timed': False}, "take 'layernorm'"),
    ({'context_mlps': True}, {'context': ()}, 'have no context'),
  ],
)
def test_what_does_not_fit_together_is_named(change, spec, message):
  with pytest.raises(ValueError, match=message):
    spec = dataclasses.replace(SPEC, **spec)
    STU(Config(**(SIZES | change)), spec, nnx.Rngs(0))
