"""Heads side by side in the lanes of the TPU kernels."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels
from pallas_kernels import dispatch
from pallas_kernels.hstu_attention import api, shapes, tpu, tpu_heads
from tests.kernels import attention_cases as cases
from tests.kernels.tpu_lowering import lower_for_tpu
from tests.tolerances import assert_close

DROPOUT = dict(dropout=0.3, dropout_seed=jnp.uint32(11))
SIZES = [20, 0, 33, 1]
# (heads, dqk, dv, heads that fit), and how they are packed.
PACKS = {
  # One register and a half, in one step.
  (3, 64, 64, 8): tpu_heads.HeadPlan(3, 1, 64, 64),
  # Filled up, since 100 + 50 lanes would cross a register.
  (3, 50, 40, 8): tpu_heads.HeadPlan(3, 1, 64, 40),
  # Groups of a register each, and a place without a head.
  (5, 64, 64, 2): tpu_heads.HeadPlan(2, 3, 64, 64),
  # Of two registers of values and one of keys, and no place is empty.
  (8, 25, 60, 4): tpu_heads.HeadPlan(4, 2, 32, 64),
  # Values of two registers a head, beside keys that are filled up to them.
  (3, 5, 130, 1): tpu_heads.HeadPlan(1, 3, 128, 256),
  # More heads than are compiled at once.
  (9, 16, 3, 100): tpu_heads.HeadPlan(8, 2, 16, 16),
  (1, 7, 130, 8): tpu_heads.HeadPlan(1, 1, 7, 256),
}


def run_packed(monkeypatch, arguments, fit):
  """Output and gradients of the interpreted kernels, so many heads at once."""
  choose = tpu_heads.choose
  monkeypatch.setattr(
    tpu.tpu_heads, 'choose', lambda h, dqk, dv, _: choose(h, dqk, dv, fit)
  )
  attend = functools.partial(tpu.attention, interpret=True)
  given = dispatch.Backend(attend, automatic=False)
  monkeypatch.setitem(api.BACKENDS, 'given', given)
  cases._program.cache_clear()
  return cases.results(arguments, 'given')


def inputs(heads, dqk, dv, capacity=64, **options):
  shape = dataclasses.replace(cases.SHAPE, heads=heads, dqk=dqk, dv=dv)
  shape = dataclasses.replace(shape, **options)
  return shapes.inputs(shape, sizes=SIZES, capacity=capacity) | DROPOUT


def check(actual, arguments):
  """They are those of the reference."""
  expected = cases.results(arguments, 'reference')
  softmax = arguments['mode'] == 'softmax'
  summands = cases.summands_of_softmax(arguments) if softmax else {}
  for name in expected:
    assert_close(
      actual[name], expected[name], name=name, summands=summands.get(name)
    )


@pytest.mark.parametrize(
  'packs, mode',
  [(packs, 'silu') for packs in PACKS]
  # Sums of softmax are by head, too, however heads are packed.
  + [((3, 64, 64, 8), 'softmax'), ((8, 25, 60, 4), 'softmax')]
  + [
    pytest.param(packs, 'softmax', marks=pytest.mark.slow)
    for packs in PACKS
    if packs not in ((3, 64, 64, 8), (8, 25, 60, 4))
  ],
  ids=str,
)
def test_heads_that_share_registers(packs, mode, monkeypatch):
  *widths, fit = packs
  assert tpu_heads.choose(*packs) == PACKS[packs]
  arguments = inputs(*widths) | dict(mode=mode)
  arguments |= dict(targets=jnp.array([9, 0, 1, 0], jnp.int32))
  check(run_packed(monkeypatch, arguments, fit), arguments)


@pytest.mark.parametrize('mode', cases.MODES)
@pytest.mark.parametrize('queries', [0, 12], ids=['', 'tail'])
def test_an_end_within_a_block(queries, mode, monkeypatch):
  """The last blocks reach beyond arrays whose padding is NaN itself."""
  arguments = inputs(5, 64, 20, capacity=61, queries=queries)
  arguments |= dict(mode=mode)
  dirty = dict(arguments)
  tokens = {'k': 54, 'v': 54, 'q': 25 if queries else 54}
  for name, end in tokens.items():
    dirty[name] = arguments[name].at[end:].set(jnp.nan)
  check(run_packed(monkeypatch, dirty, fit=2), arguments)


def test_a_head_is_the_same_number_beside_any_other(monkeypatch):
  """Zeros are added to a sum: no bit of it changes."""
  arguments = inputs(4, 32, 32)
  for name in DROPOUT:  # which hashes the number of the head
    del arguments[name]
  swapped = arguments | {name: arguments[name][:, ::-1] for name in 'qkv'}
  together = run_packed(monkeypatch, arguments, fit=4)['out']
  turned = run_packed(monkeypatch, swapped, fit=4)['out']
  np.testing.assert_array_equal(turned[:, ::-1], together)


@pytest.mark.parametrize('mode', cases.MODES)
@pytest.mark.parametrize('heads, width', [(1, 50), (2, 25), (4, 64), (2, 128)])
def test_no_array_of_all_heads_is_made_but_for_the_kernels(heads, width, mode):
  """Arrays of a model reach the kernels, and leave them, as they are."""
  arguments = inputs(heads, width, width, capacity=192) | dict(mode=mode)
  static = {n: x for n, x in arguments.items() if not hasattr(x, 'shape')}
  arrays = {n: x for n, x in arguments.items() if n not in static}

  def attend(q, k, v):
    given = {'q': q, 'k': k, 'v': v}
    given = {n: x.reshape(192, heads, width) for n, x in given.items()}
    out = pallas_kernels.hstu_attention(**(arrays | given), **static)
    return out.reshape(192, -1)

  def both(q, k, v, grad):
    out, pullback = jax.vjp(attend, q, k, v)
    return out, pullback(grad)

  shape = jax.ShapeDtypeStruct((192, heads * width), 'float32')
  text = lower_for_tpu(both, *[shape] * 4)
  # Whatever is of all tokens, or those filled up to a block, and all heads.
  of_heads = re.compile(
    rf'tensor<((192|256)x({heads * width}|{heads}x{width})|'
    rf'{heads}x(192|256)x{width})xf32>\)?$'
  )
  made = [
    re.search(r'= (?:stablehlo\.)?(\w+)', line).group(1)
    for line in text.splitlines()
    if of_heads.search(line) and ' = ' in line
  ]
  # But for the kernels, the output is replaced where lengths are wrong, and the
  # gradient scaled, which softmax multiplies with the output besides.
  copies = {'transpose', 'pad', 'concatenate', 'gather', 'slice'}
  assert not copies & {*made}
  assert made.count('multiply') == (2 if mode == 'softmax' else 1)
  assert {'custom_call', 'reshape'} <= {*made}
