"""Initial values follow the published code, and wrong configs are refused."""

import jax
import numpy as np
import pytest
from flax import nnx

from genrec_jax import config
from genrec_jax.models import MODELS
from tests.models import model_cases as cases


def initial(section) -> dict:
  """{'layer_0/uvqk/kernel': array} of a config section's fresh model."""
  fields = section.to_dict()
  model = MODELS[fields.pop('name')]
  made = model(model.Config(**fields), nnx.Rngs(0))
  params = nnx.to_pure_dict(nnx.state(made, nnx.Param))
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): np.asarray(leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params)
  }


def assert_deviation(values, expected):
  """Mean 0 and the expected deviation, within six standard errors."""
  assert abs(values.mean()) < 6 * expected / values.size**0.5
  assert abs(values.std() / expected - 1) < 6 / (2 * values.size) ** 0.5


def assert_uniform(values, bound):
  assert_deviation(values, bound / 3**0.5)
  assert np.abs(values).max() <= bound


@pytest.fixture(scope='module')
def hstu():
  return initial(config.hstu(uvqk_bias=True, ln_affine=True))


@pytest.fixture(scope='module')
def sasrec():
  return initial(config.sasrec(dim=48, ffn_dim=80))


def test_hstu(hstu):
  n, dim = 211, 50
  assert_deviation(hstu['position'], (2 / (n + dim)) ** 0.5)
  for layer in ('layer_0', 'layer_1'):
    assert_deviation(hstu[f'{layer}/uvqk/kernel'], 0.02)
    assert_deviation(hstu[f'{layer}/position_bias'], 0.02)
    assert_deviation(hstu[f'{layer}/time_bias'], 0.02)
    assert_uniform(hstu[f'{layer}/output/kernel'], (6 / (dim + dim)) ** 0.5)
    assert_uniform(hstu[f'{layer}/output/bias'], dim**-0.5)
    assert not np.any(hstu[f'{layer}/uvqk/bias'])
    assert np.all(hstu[f'{layer}/norm_input/scale'] == 1)
    assert not np.any(hstu[f'{layer}/norm_input/shift'])


def test_sasrec(sasrec):
  dim, ffn = 48, 80
  # Cut at two deviations, which leaves 0.88 of the deviation.
  assert_deviation(sasrec['position'], 0.8796 * dim**-0.5)
  for layer in ('layer_0', 'layer_1'):
    for name in ('query', 'key', 'value'):
      fused = (2 / (dim + 3 * dim)) ** 0.5
      assert_deviation(sasrec[f'{layer}/{name}/kernel'], fused)
      assert not np.any(sasrec[f'{layer}/{name}/bias'])
    assert_deviation(sasrec[f'{layer}/project/kernel'], (1 / dim) ** 0.5)
    assert not np.any(sasrec[f'{layer}/project/bias'])
    for name, fan_in in (('hidden', dim), ('out', ffn)):
      deviation = (2 / (dim + ffn)) ** 0.5
      assert_deviation(sasrec[f'{layer}/{name}/kernel'], deviation)
      assert_uniform(sasrec[f'{layer}/{name}/bias'], fan_in**-0.5)


def test_sasrec_as_pytorch_starts_its_layers():
  params = initial(
    config.sasrec(dim=48, ffn_dim=80, init='fan_in_uniform', position_std=1.0)
  )
  assert_deviation(params['position'], 0.8796)
  for name, fan_in in (('query', 48), ('project', 48), ('out', 80)):
    for part in ('kernel', 'bias'):
      assert_uniform(params[f'layer_0/{name}/{part}'], fan_in**-0.5)


@pytest.mark.parametrize('params', ['hstu', 'sasrec'])
def test_no_two_parameters_are_drawn_alike(params, request):
  drawn = [
    tuple(leaf.ravel()[:3])
    for leaf in request.getfixturevalue(params).values()
    if leaf.std() > 0
  ]
  assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize(
  'case, change, message',
  [
    ('hstu', {'attention': 'relu'}, "model.attention is 'relu'.*'softmax'"),
    ('hstu', {'silu_on': 'v'}, "model.silu_on is 'v'.*'none'"),
    ('hstu', {'concat': 'both'}, "model.concat is 'both'.*'u_a_ua'"),
    ('hstu', {'dtype': 'float16'}, "model.dtype is 'float16'.*'bfloat16'"),
    ('sasrec', {'dtype': 'float16'}, "model.dtype is 'float16'"),
    ('sasrec', {'activation': 'gelu'}, "model.activation is 'gelu'.*'relu'"),
    ('sasrec', {'heads': 3}, 'model.dim=8 is not a multiple of model.heads=3'),
  ],
)
def test_unknown_variants_are_named_with_what_is_allowed(case, change, message):
  with pytest.raises(ValueError, match=message):
    MODELS[case].Config(**cases.fields(case, **change))


@pytest.mark.parametrize('case', ['hstu', 'sasrec'])
def test_unknown_fields_are_named(case):
  with pytest.raises(TypeError, match='warp'):
    MODELS[case].Config(**cases.fields(case), warp=1)
  section = getattr(config, case)
  with pytest.raises(config.ConfigError, match="block'.*'blocks'"):
    section(block=3)
