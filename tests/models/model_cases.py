"""Every model and variant, tiny: the rows of the table of properties."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import pallas_kernels
from genrec_jax import config
from genrec_jax.features import EVENTS, Jagged
from genrec_jax.models import MODELS, stu_stack
from genrec_jax.models.request_sequences import Sequences
from tests import sequences

# Two blocks for the published models, one for their variants: compiling is
# what these tests wait for.
SIZES = dict(dim=8, blocks=1, max_len=12)
HSTU = dict(SIZES, dqk=8, dv=8)
SASREC = dict(SIZES, ffn_dim=6)

CASES = {
  'hstu': config.hstu(**HSTU | {'blocks': 2}),
  'hstu_heads': config.hstu(**SIZES, heads=2, dqk=3, dv=5),
  'hstu_linear_u_a_ua': config.hstu(**HSTU, silu_on='none', concat='u_a_ua'),
  'hstu_no_time': config.hstu(**HSTU, time_bias=False),
  'hstu_no_positions': config.hstu(
    **HSTU, position_bias=False, position_embedding=False
  ),
  'hstu_affine': config.hstu(**HSTU, ln_affine=True, uvqk_bias=True),
  'hstu_scaled': config.hstu(**HSTU, alpha=0.5, normaliser=7.0),
  'hstu_softmax': config.hstu(**HSTU, attention='softmax'),
  # The ranking layer of the published code.
  'hstu_stu': config.hstu(
    **HSTU,
    silu_on='u',
    concat='u_x_ux',
    uvqk_bias=True,
    out_bias=False,
    ln_affine=True,
    alpha=8**-0.5,
    position_bias=False,
    time_bias=False,
  ),
  'sasrec': config.sasrec(**SASREC | {'blocks': 2}),
  'sasrec_heads': config.sasrec(**SASREC, heads=4),
  # As gSASRec has it.
  'sasrec_g': config.sasrec(
    **SASREC,
    norm_affine=True,
    final_norm=True,
    scale_rows=False,
    positions_from='newest',
    position_std=1.0,
    project=False,
    activation='none',
    init='fan_in_uniform',
  ),
}

# The layers of `stu`, each with other options; what makes tokens of requests
# and scores of tokens has `stu_test`.
STU = dict(dim=8, blocks=1, heads=2, dqk=4, dv=4, max_history=12, dropout=0.5)
STU_CASES = {
  'stu': dict(STU, blocks=2),
  'stu_biases': dict(STU, position_bias=True, time_bias=True),
  'stu_semi_local': dict(STU, window=3, prefix=2),
  'stu_window': dict(STU, window=3, full_tail=2, group_norm=True, gate='silu'),
  'stu_truncated': dict(STU, blocks=2, truncated_layers=1, truncated_to=5),
}
ALL = [*CASES, *STU_CASES]

ITEMS = 30
LENGTHS = (5, 0, 12, 1)
TOKENS = sum(LENGTHS)
CAPACITY = 24


class Model(NamedTuple):
  """A model as functions of its parameters.

  Attributes:
    params: every one away from its (often zero) initial value.
    plain: (params, rows, events, key) -> representations.
    encode: the same under jit.
    grads: (params, rows, events) -> gradients of both, of a loss on all tokens.
  """

  params: Any
  plain: Callable
  encode: Callable
  grads: Callable


class StuLayers(nnx.Module):
  """The layers of `stu` over histories alone, called as other models are."""

  Config = stu_stack.Config

  def __init__(self, config: Config, rngs: nnx.Rngs):
    self.config = config
    self.stack = stu_stack.Stack(config, 0, rngs)

  def __call__(self, rows: jax.Array, events: Jagged, key=None) -> jax.Array:
    sequences = Sequences(
      lengths=events.lengths,
      candidates=jnp.zeros_like(events.lengths),
      age=-events['time'],
      number=jnp.arange(rows.shape[0], dtype=jnp.uint32),
      candidate_capacity=0,
    )
    return self.stack(rows.astype(self.config.dtype), sequences, key)


def fields(name: str, **changed) -> dict:
  """The fields of a case's `Config`."""
  if name in STU_CASES:
    return {**STU_CASES[name], **changed}
  values = {**CASES[name].to_dict(), **changed}
  del values['name']
  return values


@functools.cache
def build(name: str, dtype: str = 'float32', implementation=None) -> Model:
  """The model of a case; parameters do not depend on dtype or backend."""
  model = StuLayers if name in STU_CASES else MODELS[CASES[name].name]
  made = model(
    model.Config(**fields(name, dtype=dtype, implementation=implementation)),
    nnx.Rngs(0),
  )
  graphdef, state = nnx.split(made, nnx.Param)
  rng = np.random.default_rng(1)
  params = jax.tree.map(
    lambda p: p + jnp.asarray(0.2 * rng.normal(size=p.shape), p.dtype), state
  )

  def plain(params, rows, events, key=None):
    return nnx.merge(graphdef, params)(rows, events, key)

  def loss(params, rows, events):
    out = plain(params, rows, events)
    weights = jnp.sin(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape)
    real = pallas_kernels.segment_ids(events.lengths, out.shape[0])
    real = real < events.lengths.shape[0]
    return jnp.sum(jnp.where(real[:, None], out * weights, 0))

  # Quick to compile rather than to run.
  jit = functools.partial(
    jax.jit, compiler_options={'xla_backend_optimization_level': 0}
  )
  return Model(params, plain, jit(plain), jit(jax.grad(loss, argnums=(0, 1))))


def inputs(lengths=LENGTHS, capacity: int = CAPACITY, seed: int = 0):
  """(item rows `[T, D]`, the events)."""
  return packed(sequences.draw(lengths, ITEMS, seed), capacity)


def packed(events, capacity: int = CAPACITY):
  """As `inputs`, of given sequences."""
  events = sequences.pack(events, capacity).jagged[EVENTS]
  table = np.random.default_rng(2).normal(size=(ITEMS + 1, SIZES['dim']))
  return jnp.asarray(table, jnp.float32)[events['item']], events
