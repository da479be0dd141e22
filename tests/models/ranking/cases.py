"""Every ranking model and its variants, tiny, and batches for them."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from genrec_jax import config
from genrec_jax.features import FeatureSpec, Inputs
from genrec_jax.models import RANKERS
from tests.models.ranking import statements

MIXED = (
  FeatureSpec('user', rows=9),
  FeatureSpec('age', kind='numeric'),
  FeatureSpec('item', rows=11),
  FeatureSpec('tags', kind='multi_hot', rows=5),
  FeatureSpec('price', kind='numeric'),
)
TABLES = tuple(f for f in MIXED if f.kind != 'numeric')

DEEP = dict(dim=4, hidden=(6, 5))
DLRM = dict(dim=4, interaction='dot', bottom=(5,), top=(6,))
WUKONG = dict(
  dim=4,
  layers=2,
  fmb=2,
  lcb=3,
  rank=3,
  compress=2,
  attention_hidden=(5,),
  fmb_hidden=(6,),
  bottom=(5,),
  top=(6,),
  norm_eps=1e-3,
)
FINAL = dict(dim=4, hidden1=(6,), hidden2=(4,), selection_hidden=(5,), heads=2)
# name -> (model's section, features)
CASES = {
  'lr': (config.lr(), MIXED),
  'lr_tables': (config.lr(), TABLES),
  'fm': (config.fm(dim=4), MIXED),
  'dnn': (config.dnn(**DEEP), MIXED),
  'dnn_plain': (config.dnn(**DEEP, batch_norm=False), TABLES),
  'deepfm': (config.deepfm(**DEEP), MIXED),
  'dlrm': (config.dlrm(**DLRM), MIXED),
  'dlrm_itself': (config.dlrm(**DLRM, itself=True, init='dlrm'), TABLES),
  'dlrm_cat': (config.dlrm(**DLRM | {'interaction': 'cat'}), MIXED),
  'dcn': (config.dcn(**DEEP), MIXED),
  'dcn_cross': (config.dcn(**DEEP, structure='cross', rank=2), TABLES),
  'dcn_stacked': (
    config.dcn(**DEEP, structure='stacked', rank=2, experts=3, bottom=(5,)),
    MIXED,
  ),
  'dcn_both': (
    config.dcn(
      **DEEP,
      structure='stacked_parallel',
      stacked_hidden=(7,),
      rank=2,
      experts=2,
      share_gate=False,
    ),
    TABLES,
  ),
  'finalmlp': (
    config.finalmlp(**FINAL, context1=('user', 'price'), context2=('user',)),
    MIXED,
  ),
  'finalmlp_own': (config.finalmlp(**FINAL), TABLES),
  'finalmlp_dual': (config.finalmlp(**FINAL, selection=False), TABLES),
  'wukong': (config.wukong(**WUKONG), MIXED),
  'wukong_full': (config.wukong(**WUKONG, fm='full'), TABLES),
  'wukong_triangular': (
    config.wukong(
      **WUKONG | dict(fmb=(3, 2), lcb=(3, 1)),
      fm='triangular',
      residual_bias=True,
    ),
    TABLES,
  ),
  'wukong_static': (
    config.wukong(
      **WUKONG,
      attentive=False,
      last_relu=True,
      top_batch_norm=True,
      important={'user': 2},
      small={'item': 3, 'tags': 2},
      group_vectors=2,
      group_hidden=(5,),
      number_vectors=2,
    ),
    MIXED,
  ),
  'wukong_batch_norm': (
    config.wukong(**WUKONG, fmb_batch_norm=True, last_relu=True),
    TABLES,
  ),
  'wukong_no_fmb': (config.wukong(**WUKONG, zero=('fmb',)), TABLES),
  'wukong_no_linear': (
    config.wukong(**WUKONG, zero=('lcb', 'residual')),
    TABLES,
  ),
}
OUTPUTS = 2
REAL, PADDED = 6, 8  # examples of a batch, and with padding


class Model(NamedTuple):
  """A model as functions of its parameters.

  Attributes:
    config: its `Config`.
    params: nested dict, every one away from its initial value.
    logits: (params, x, key) -> logits, without jit.
    both: (params, x) -> (logits in evaluation, in training), under jit.
    grads: (params, x) -> gradients of parameters and vectors, of a loss
      on real examples in training; under jit.
    statement: (params, x, training) -> logits, in NumPy.
  """

  config: Any
  params: Any
  logits: Callable
  both: Callable
  grads: Callable
  statement: Callable


def fields(name: str, **changed) -> dict:
  """The fields of a case's `Config`."""
  values = {**CASES[name][0].to_dict(), **changed}
  del values['name']
  return values


def quick_jit(function):
  """Quick to compile rather than to run."""
  options = {'xla_backend_optimization_level': 0}
  return jax.jit(function, compiler_options=options)


KEY = jax.random.key(3)  # of cases whose dropout is zero, to be in training


@functools.cache
def build(name: str, **changed) -> Model:
  """The model of a case, dropout off unless `changed`."""
  section, features = CASES[name]
  model = RANKERS[section.name]
  off = {f: 0.0 for f in section if f.startswith('dropout')}
  made = model.Config(**fields(name, **off | changed))
  graphdef, shapes = nnx.split(
    nnx.eval_shape(lambda: model(made, features, OUTPUTS, nnx.Rngs(0))),
    nnx.Param,
  )
  rng = np.random.default_rng(1)

  def draw(path, shape):
    ones = path[-1].key in ('scale', 'running_variance')
    values = ones + (0.2 if ones else 0.5) * rng.normal(size=shape.shape)
    return jnp.asarray(values, shape.dtype)

  params = jax.tree_util.tree_map_with_path(draw, nnx.to_pure_dict(shapes))

  def logits(params, x, key=None):
    state = jax.tree.map(lambda p: p, shapes)
    nnx.replace_by_pure_dict(state, params)
    return nnx.merge(graphdef, state)(x, key)

  def loss(params, vectors, x):
    x = dataclasses.replace(x, vectors=vectors)
    out = logits(params, x, KEY)
    factors = jnp.sin(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape)
    return jnp.sum(out * factors * x.weights[:, None]), out

  def statement(params, x, training=False):
    if section.name in ('finalmlp', 'wukong'):
      names = [[f.name for f in features if f.kind != 'numeric']]
      if section.name == 'finalmlp':
        names.append([f.name for f in features if f.kind == 'numeric'])
    else:
      names = []
    stated = getattr(statements, section.name)
    wide = jax.tree.map(lambda p: np.asarray(p, np.float64), (params, x))
    return stated(made, *wide, training, *names)

  # One program for everything: compiling is what these tests wait for.
  @quick_jit
  def run(params, x):
    gradient = jax.grad(loss, argnums=(0, 1), has_aux=True)
    grads, trained = gradient(params, x.vectors, x)
    return (logits(params, x), trained), grads

  return Model(
    made,
    params,
    logits,
    lambda params, x: run(params, x)[0],
    lambda params, x: run(params, x)[1],
    statement,
  )


def inputs(name: str, real=REAL, size=PADDED, seed=0, scale=1.0) -> Inputs:
  """Random examples, the last `size - real` of them padding."""
  section, features = CASES[name]
  model = RANKERS[section.name]
  widths = model.widths(model.Config(**fields(name)), features)
  rng = np.random.default_rng(seed)

  def draw(*shape):
    return jnp.asarray(scale * rng.normal(size=shape), jnp.float32)

  return Inputs(
    vectors=tuple(draw(size, width) for width in widths.values()),
    numbers=draw(size, sum(f.kind == 'numeric' for f in features)),
    linear=draw(size),
    weights=jnp.asarray(np.arange(size) < real, jnp.float32),
  )


def part(x: Inputs, rows: slice) -> Inputs:
  """Some of the examples."""
  return jax.tree.map(lambda a: a[rows], dataclasses.replace(x, first=None))
