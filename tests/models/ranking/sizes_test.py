"""Published parameter counts and operations, to the last one."""

import jax
import pytest
from flax import nnx

from benchmarks import flops
from genrec_jax import config
from genrec_jax.config import rankers
from genrec_jax.features import FeatureSpec
from genrec_jax.models import RANKERS


def tables(prefix: str, rows) -> tuple[FeatureSpec, ...]:
  return tuple(FeatureSpec(f'{prefix}{i}', rows=n) for i, n in enumerate(rows))


# Rows with padding and unseen values; older logs had one fewer in each table.
FRAPPE_ROWS = dict(
  user=956,
  item=4084,
  daytime=9,
  weekday=9,
  isweekend=4,
  homework=5,
  cost=4,
  weather=11,
  country=82,
  city=235,
)
FRAPPE = tuple(FeatureSpec(n, rows=r) for n, r in FRAPPE_ROWS.items())
OLD_FRAPPE = tuple(FeatureSpec(n, rows=r - 1) for n, r in FRAPPE_ROWS.items())
MOVIELENS = tables('f', (16_977, 23_606, 49_659))
TERABYTE = tables(
  'c',
  # fmt: off
  (
    40000000,
    39060,
    17295,
    7424,
    20265,
    3,
    7122,
    1543,
    63,
    40000000,
    3067956,
    405282,
    10,
    2209,
    11938,
    155,
    4,
    976,
    14,
    40000000,
    40000000,
    40000000,
    590152,
    12973,
    108,
    36,
  ),
  # fmt: on
) + tuple(FeatureSpec(f'i{i}', kind='numeric') for i in range(13))


def made(section):
  fields = section.to_dict()
  model = RANKERS[fields.pop('name')]
  return model, model.Config(**fields)


COUNTS = {
  # Wukong, table 3.
  'dlrm_frappe_128': (
    config.dlrm(dim=128, interaction='cat'),
    FRAPPE,
    1_527_073,
  ),
  'dcn_frappe_128': (
    config.dcn(dim=128, structure='cross', cross=4),
    FRAPPE,
    7_251_073,
  ),
  'dlrm_movielens': (config.dlrm(interaction='cat'), MOVIELENS, 1_238_421),
  'dcn_movielens': (config.dcn(cross=5), MOVIELENS, 1_243_101),
  'finalmlp_movielens': (
    config.finalmlp(hidden2=(800,), selection_hidden=(800,), heads=10),
    MOVIELENS,
    1_040_902,
  ),
  # Of published runs of FuxiCTR.
  'dlrm_frappe': (config.dlrm(interaction='cat'), OLD_FRAPPE, 417_891),
  'dcn_frappe': (config.dcn(cross=4), OLD_FRAPPE, 458_391),
  'finalmlp_frappe': (
    config.finalmlp(context1=('user',), context2=('item',)),
    FRAPPE,
    253_392,
  ),
  # Both 384 above the published count: three rows of 128, of both alike.
  'dlrm_terabyte': (
    config.dlrm(dim=128, bottom=(512, 256), top=(512, 512), batch_norm=False),
    TERABYTE,
    26_136_307_201 + 384,
  ),
  'dcn_terabyte': (
    config.dcn(
      dim=128,
      structure='stacked',
      cross=2,
      bottom=(512, 256),
      hidden=(2048,) * 4,
      batch_norm=False,
    ),
    TERABYTE,
    26_179_364_097 + 384,
  ),
}


@pytest.mark.parametrize('name', COUNTS)
def test_parameter_counts(name):
  section, features, count = COUNTS[name]
  assert flops.count_parameters(*made(section), features) == count


def test_a_shared_table_counts_once_and_its_first_order_weights_do_not():
  shared = (*FRAPPE, FeatureSpec('last', 'sequence', 4084, table='item'))
  model, made_config = made(config.lr())
  assert flops.count_parameters(model, made_config, shared) == 5399 + 4084 + 1
  model, made_config = made(config.lr(first_order='table'))
  assert flops.count_parameters(model, made_config, shared) == 5399 + 1


@pytest.mark.parametrize(
  'name, mflop', [('dlrm_frappe_128', 4.994), ('dcn_movielens', 2.022)]
)
def test_operations_of_public_models(name, mflop):
  section, features, _ = COUNTS[name]
  found = flops.count_macs(*made(section), features)
  assert round(found.mflop, 3) == mflop
  assert not found.products


def test_the_dot_products_of_dlrm_are_counted_apart():
  section, features, _ = COUNTS['dlrm_terabyte']
  found = flops.count_macs(*made(section), features)
  assert found.products == 27 * 27 * 128
  # Published 4.62: the first layer needs no gradient of its input.
  assert round(6 * found.total / 1e6 - 2 * 13 * 512 / 1e6, 2) == 4.62


def test_operations_of_the_scaling_study():
  features = tables('f', [1] * 720)
  section = rankers.scaled_wukong('wukong_l8_n96', attentive=False, top=())
  found = flops.count_macs(*made(section), features)
  assert round(found.mflop / 1e3, 2) == 22.22  # published 22.23
  # 2 n k d for X (X^t Y), n n_L d for W_L X, and one residual.
  mixed = (720 * 96 + 720 * 192 + 7 * 192 * 96) * 160
  assert found.products == 2 * (720 + 7 * 192) * 96 * 160 + mixed


@pytest.mark.parametrize('name', rankers.SCALING)
def test_presets_of_the_scaling_study_are_models(name):
  model, made_config = made(rankers.scaled_wukong(name))
  features = tables('f', [1] * 720)
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
  model, made_config = made(section)

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
