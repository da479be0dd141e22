"""Published parameter counts and operations, as far as they are met."""

import json

import jax
import pytest
from flax import nnx

from benchmarks import flops, published_sizes, result
from benchmarks.published_sizes import FRAPPE, SETTINGS
from genrec_jax import config
from genrec_jax.config import rankers
from genrec_jax.features import FeatureSpec

TERABYTE = 'Criteo TB'
build = published_sizes.build


@pytest.fixture(scope='module')
def committed() -> dict:
  """Case -> its row in the tables of docs/ranking_results.md."""
  path = result.RESULTS / 'cpu2/published_sizes.json'
  return {row['case']: row for row in json.loads(path.read_text())['rows']}


@pytest.mark.parametrize('key', SETTINGS, ids=', '.join)
def test_parameter_counts(committed, key):
  row = published_sizes.count_published(*key)
  # Three rows of 128, of both models alike.
  assert row['more_parameters'] == 384 * (TERABYTE in key)
  assert (
    row.items()
    >= {
      k: v
      for k, v in committed[row['case']].items()
      if not isinstance(v, float)
    }.items()
  )


def test_a_shared_table_counts_once_and_its_first_order_weights_do_not():
  shared = (*FRAPPE, FeatureSpec('last', 'sequence', 4084, table='item'))
  model, made_config = build(config.lr())
  assert flops.count_parameters(model, made_config, shared) == 5399 + 4084 + 1
  model, made_config = build(config.lr(first_order='table'))
  assert flops.count_parameters(model, made_config, shared) == 5399 + 1


@pytest.mark.parametrize(
  'key, mflop',
  [
    (('table 3', 'DLRM', 'Frappe'), 4.994),
    (('table 3', 'DCN-V2', 'MovieLens'), 2.022),
  ],
)
def test_operations_of_public_models(key, mflop):
  section, features = SETTINGS[key]
  found = flops.count_macs(*build(section), features)
  assert round(found.mflop, 3) == mflop
  assert not found.products


def test_the_dot_products_of_dlrm_are_counted_apart():
  section, features = SETTINGS['table 3', 'DLRM', TERABYTE]
  found = flops.count_macs(*build(section), features)
  assert found.products == 27 * 27 * 128
  # Published 4.62: the first layer needs no gradient of its input.
  assert round(6 * found.total / 1e6 - 2 * 13 * 512 / 1e6, 2) == 4.62


def test_operations_of_the_scaling_study(committed):
  study = {k: published_sizes.STUDY[k] for k in ('wukong_l8_n96', 'dcn_4x2048')}
  rows = {row['case']: row for row in published_sizes.count_study(study)}
  for case, row in rows.items():
    told = committed[case]
    assert (row['parameters'], row['layers_met'], row['total_met']) == (
      told['parameters'],
      told['layers_met'],
      told['total_met'],
    )
  row = rows['table 5, wukong_l8_n96, static, no top MLP']
  assert round(row['gflop'], 2) == 22.22  # published 22.23
  # 2 n k d for X (X^t Y), n n_L d for W_L X, and one residual.
  mixed = (720 * 96 + 720 * 192 + 7 * 192 * 96) * 160
  products = 2 * (720 + 7 * 192) * 96 * 160 + mixed
  assert round((row['gflop_total'] - row['gflop']) * 1e9 / 6) == products


def test_every_preset_is_judged_by_what_is_published():
  """One row of the study has no figure."""
  assert {*rankers.SCALING} - {*published_sizes.STUDY} == {'dlrm_4x512'}


@pytest.mark.parametrize('name', rankers.SCALING)
def test_presets_of_the_scaling_study_are_models(name):
  model, made_config = build(rankers.scaled_wukong(name))
  features = published_sizes.SCALING
  shapes = nnx.eval_shape(lambda: model(made_config, features, 2, nnx.Rngs(0)))
  out = nnx.eval_shape(
    lambda m, x: m(x),
    shapes,
    flops.example_inputs(model, made_config, features, 3),
  )
  assert out.shape == (3, 2)


def test_unknown_presets_are_named():
  with pytest.raises(config.ConfigError, match="'wukong_l8'; did you mean"):
    rankers.scaled_wukong('wukong_l8')


def test_a_model_starts_as_fuxictr_starts_it():
  section = config.dcn(dim=20, hidden=(300,), cross=1)
  model, made_config = build(section)

  @jax.jit
  def init():
    state = nnx.state(model(made_config, FRAPPE, 1, nnx.Rngs(0)), nnx.Param)
    return nnx.to_pure_dict(state)

  params = init()
  for layer, fans in (('cross_0', 400), ('parallel', 500)):
    (linear,) = (v for k, v in params[layer].items() if k.startswith('linear'))
    kernel, bias = linear['kernel'], linear['bias']
    assert abs(kernel.std() / (2 / fans) ** 0.5 - 1) < 0.02
    # A true normal has five in a hundred beyond two deviations.
    assert 0.04 < (abs(kernel) > 2 * kernel.std()).mean() < 0.05
    assert not jax.numpy.any(bias)
