"""What is special to the Pallas TPU kernels: ranges, tiles, lowering.

That they compute the right numbers is told by the common suite, where they are
the backend 'interpret'.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

import pallas_kernels
from pallas_kernels import dispatch
from pallas_kernels.hstu_attention import (
  api,
  masks,
  shapes,
  tpu,
  tpu_grid,
  tpu_heads,
  tpu_layout,
  tpu_pairs,
)
from pallas_kernels.hstu_attention.spec import Context, Spec
from tests.kernels import attention_cases as cases
from tests.kernels.tpu_lowering import lower_for_tpu
from tests.tolerances import assert_close

DROPOUT = dict(dropout=0.3, dropout_seed=jnp.uint32(11))
PLAN = tpu_layout.KernelPlan(
  block_q=16,
  block_k=8,
  tile=8,
  heads=tpu_heads.HeadPlan(1, 1, 8, 8),
  buckets=0,
  targets=False,
  interpret=True,
)
SPEC = Spec(
  max_len=60,
  max_queries=60,
  mode='silu',
  alpha=1.0,
  normaliser=1.0,
  contextual=0,
  window=None,
  full_tail=0,
  dropout=0.0,
)
SIZES = jnp.array([0, 60, 3, 39, 41, 0, 23, 5], jnp.int32)
TARGETS = jnp.array([0, 17, 0, 0, 21, 0, 3, 2], jnp.int32)
QUERIES = jnp.array([0, 12, 1, 0, 12, 0, 12, 3], jnp.int32)
CAPACITY = 176
MASKS = [
  dict(),
  dict(contextual=3),
  dict(window=9),
  dict(window=9, contextual=3),
  dict(window=9, full_tail=4, contextual=3),
  dict(window=9, prefix=5),
  dict(window=9, full_tail=4, contextual=3, prefix=9),
]


def context(**options) -> Context:
  none = dict.fromkeys(Context._fields)
  return Context(**{**none, 'lengths': SIZES, **options})


@pytest.mark.parametrize('tail', [False, True], ids=['', 'tail'])
@pytest.mark.parametrize('options', MASKS, ids=str)
def test_each_block_that_is_seen_is_walked_once_from_both_sides(options, tail):
  spec = dataclasses.replace(SPEC, max_targets=21, **options)
  data = context(targets=TARGETS, query_lengths=QUERIES if tail else None)
  queries = 48 if tail else CAPACITY
  if tail:
    spec = dataclasses.replace(spec, max_queries=12)
  plan = dataclasses.replace(PLAN, block_q=8) if tail else PLAN
  where = tpu_layout.layout(spec, plan, data, queries, aligned=tail)
  call = jax.tree.map(
    np.asarray, tpu_layout.call(spec, plan, data, where, CAPACITY)
  )
  query, key = call.queries, call.keys
  seen = np.asarray(
    masks.is_visible(
      spec,
      query[tpu_layout.TOKEN, :, None] == key[tpu_layout.TOKEN],
      query[tpu_layout.ORDER, :, None],
      key[tpu_layout.ORDER],
      query[tpu_layout.LIMIT, :, None],
    )
  )
  seen &= query[tpu_layout.SEGMENT, :, None] == key[tpu_layout.SEGMENT]
  blocks = seen.reshape(-1, plan.block_q, CAPACITY // 8, 8).any((1, 3))
  of_query, of_key = list_walks(call.by_query), list_walks(call.by_key)
  # Each pair once, and the same pairs from both sides.
  assert len(set(of_query)) == len(of_query)
  assert set(of_query) == {(i, j) for j, i in of_key}
  assert len(of_key) == len(of_query)
  assert set(zip(*np.nonzero(blocks), strict=True)) <= set(of_query)


def list_walks(pairs: tpu_pairs.Pairs) -> list:
  """(own block, other block) of all steps that compute something.

  Checks on the way that each own block is walked in one go, in one part.
  """
  codes, bounds = map(np.asarray, pairs)
  own, other, is_seen = map(np.asarray, tpu_pairs.decode(codes))
  assert (np.diff(bounds) > 0).all()
  alive = slice(0, bounds[-1])
  assert sorted(own[alive]) == own[alive].tolist()
  # All blocks are there, also those that meet none.
  assert set(own[alive]) == set(range(own[alive].max() + 1))
  for cut in bounds[1:-1]:
    assert own[cut - 1] != own[cut]
  chosen = np.flatnonzero(is_seen[alive])
  return list(zip(own[chosen], other[chosen], strict=True))


def count_steps(pairs: tpu_pairs.Pairs) -> np.ndarray:
  """Steps of each own block."""
  own, _ = np.asarray(list_walks(pairs)).T
  return np.bincount(own)


def test_a_window_is_not_walked_like_the_whole_history():
  spec = dataclasses.replace(SPEC, max_len=1024, window=9, full_tail=4)
  data = Context(jnp.array([1024]), *[None] * 6)
  where = tpu_layout.layout(spec, PLAN, data, 1024, aligned=False)
  call = tpu_layout.call(spec, PLAN, data, where, 1024)
  # Two blocks of keys, three for the last queries; and for a key block the
  # queries nearby and the block of the full tail.
  steps = count_steps(call.by_query)
  assert np.max(steps[:-1]) <= 4 and steps[-1] == 1024 // 8
  assert np.max(count_steps(call.by_key)) <= 3


def test_a_prefix_costs_its_own_blocks():
  spec = dataclasses.replace(SPEC, max_len=1024, window=9, prefix=12)
  data = Context(jnp.array([500, 524]), *[None] * 6)
  where = tpu_layout.layout(spec, PLAN, data, 1024, aligned=False)
  call = tpu_layout.call(spec, PLAN, data, where, 1024)
  # Two or three blocks of a prefix, and those of the window.
  assert np.max(count_steps(call.by_query)) <= 8


@pytest.mark.parametrize('tail', [False, True], ids=['', 'tail'])
@pytest.mark.parametrize('targets', [0, 7])
@pytest.mark.parametrize('options', MASKS, ids=str)
def test_no_more_pairs_than_there_is_room_for(options, targets, tail):
  """And little room is in vain, however badly sequences and blocks lie."""
  spec = dataclasses.replace(
    SPEC, max_queries=60, max_targets=targets, **options
  )
  plan = dataclasses.replace(PLAN, block_q=8) if tail else PLAN
  most = 0.0
  for first in (*range(1, 60, 7), 60):
    lengths = jnp.array([first, 60, 14, 60])
    data = context(
      lengths=lengths,
      query_lengths=lengths if tail else None,
      targets=jnp.clip(lengths - spec.contextual, 0, targets),
    )
    where = tpu_layout.layout(spec, plan, data, 200, aligned=tail)
    call = tpu_layout.call(spec, plan, data, where, 200)
    steps = np.asarray(call.by_query.bounds)[-1]
    room = len(call.by_query.codes)
    assert steps <= room
    most = max(most, steps / room)
  if not tail:
    assert most > 0.3


def test_a_long_window_takes_no_more_room_than_it_reads():
  """A list for the whole histories would be 16 times as long."""
  spec = dataclasses.replace(SPEC, max_len=8192, max_queries=8192, window=128)
  plan = dataclasses.replace(PLAN, block_q=256, block_k=256, tile=128)
  tokens = 1 << 18
  data = context(lengths=jnp.full(32, 8192), targets=None)
  where = tpu_layout.layout(spec, plan, data, tokens, aligned=False)
  call = jax.eval_shape(
    lambda: tpu_layout.call(spec, plan, data, where, tokens)
  )
  blocks = tokens // 256
  assert call.by_query.codes.shape == (3 * blocks,)


@pytest.mark.parametrize('seed', range(4))
def test_both_parts_have_half_of_the_pairs(seed):
  rng = np.random.default_rng(seed)
  blocks = int(rng.integers(2, 9))
  counts = rng.integers(1, 20, blocks)
  own = jnp.asarray(np.repeat(np.arange(blocks), counts), jnp.int32)
  end = int(counts.sum())
  bounds = tpu_pairs._cut_in_two(own, blocks, jnp.int32(end))
  begins = np.cumsum(counts)[:-1]
  best = min(abs(begins - end // 2))
  zero, cut, last = np.asarray(bounds)
  assert (zero, last) == (0, end)
  assert cut in begins and abs(cut - end // 2) == best


@pytest.mark.parametrize('contextual', [0, 3])
@pytest.mark.parametrize('n', [60, 200])
def test_tiles_hold_the_bias_of_their_distance(n, contextual):
  spec = dataclasses.replace(SPEC, contextual=contextual)
  table = jnp.arange(2 * n - 1, dtype=jnp.float32) + 1
  tiles = tpu_layout.toeplitz(spec, PLAN, table)
  t, zero = PLAN.tile, tpu_layout.zero_tile(spec, PLAN)
  assert len(tiles) == zero + 1 + (zero if contextual else 0)
  d, a, c = np.indices(tiles.shape)
  relative = (d - zero) * t + c - a
  expected = np.asarray(table)[np.clip(relative + n - 1, 0, 2 * n - 2)]
  reached = abs(relative) < spec.max_len
  np.testing.assert_array_equal(np.where(reached, tiles, 0), expected * reached)


def run(arguments, attend=None):
  """Output and gradients, with a backend called `attend` if given."""
  if attend is None:
    return cases.results(arguments, 'reference')
  api_backends = dict(api.BACKENDS)
  try:
    api.BACKENDS['given'] = dispatch.Backend(attend, automatic=False)
    cases._program.cache_clear()
    return cases.results(arguments, 'given')
  finally:
    api.BACKENDS.clear()
    api.BACKENDS.update(api_backends)


def interpreted_with(monkeypatch, **sizes):
  """The interpreted kernel with other blocks than the table's."""
  monkeypatch.setattr(tpu.blocks, 'lookup', lambda *_: sizes)
  return functools.partial(tpu.attention, interpret=True)


def test_the_blocks_of_a_tpu_and_heads_in_groups(monkeypatch):
  # Four tiles of 128 a block, and two groups of heads.
  shape = dataclasses.replace(cases.SHAPE, max_len=300, heads=4)
  arguments = shapes.inputs(shape, sizes=[290, 0, 3, 0, 120, 80], capacity=512)
  arguments |= dict(contextual=2, targets=jnp.array([9, 0, 1, 0, 30, 0]))
  monkeypatch.setattr(tpu, 'HEADS_BYTES', 1 << 19)
  attend = interpreted_with(monkeypatch, block_q=256, block_k=256)
  actual, expected = run(arguments, attend), run(arguments)
  for name in expected:
    assert_close(actual[name], expected[name], name=name)


def test_under_the_interpreter_that_simulates_the_memory(monkeypatch):
  # It keeps blocks where a TPU would, and starts with NaN in all of them.
  arguments = shapes.inputs(cases.SHAPE, sizes=[20, 0, 33], capacity=64)
  arguments |= dict(mode='softmax', **DROPOUT)
  params = pltpu.InterpretParams(
    uninitialized_memory='nan', detect_races=True, dma_execution_mode='eager'
  )
  monkeypatch.setattr(
    tpu.blocks, 'lookup', lambda *_: {'block_q': 32, 'block_k': 32}
  )
  attend = functools.partial(tpu.attention, interpret=params)
  actual, expected = run(arguments, attend), run(arguments)
  for name in expected:
    assert_close(actual[name], expected[name], name=name)


@pytest.mark.parametrize(
  'queries', [0, pytest.param(12, marks=pytest.mark.slow)], ids=['', 'tail']
)
def test_nan_in_padding_tokens_stays_there(queries):
  shape = dataclasses.replace(cases.SHAPE, queries=queries)
  arguments = shapes.inputs(shape, sizes=[50, 0, 60], capacity=128)
  dirty = dict(arguments)
  for name, tokens in (('q', 24 if queries else 110), ('k', 110), ('v', 110)):
    dirty[name] = arguments[name].at[tokens:].set(jnp.nan)
  clean = cases.results(arguments, 'interpret')
  for name, value in cases.results(dirty, 'interpret').items():
    np.testing.assert_array_equal(value, clean[name], name)


def test_a_loop_over_calls():
  # JAX tells the length of a dynamic grid wrong under vmap.
  arguments = shapes.inputs(cases.SHAPE, sizes=[20, 0, 33], capacity=64)

  def attend(q, implementation):
    return pallas_kernels.hstu_attention(
      **{**arguments, 'q': q}, implementation=implementation
    )

  q = jnp.stack([arguments['q'], 2 * arguments['q']])
  loop = jax.vmap(functools.partial(attend, implementation='interpret'))
  actual = jax.jit(loop, compiler_options=cases.QUICK)(q)
  for one, out in zip(q, actual, strict=True):
    assert_close(out, attend(one, 'reference'))


def lower_attention(arguments):
  """The StableHLO with all kernels, forward and backward, for a v5e."""
  arrays = {n: x for n, x in arguments.items() if hasattr(x, 'shape')}
  static = {n: x for n, x in arguments.items() if n not in arrays}

  def both(arrays, grad):
    inputs = {n: arrays[n] for n in cases.DIFFERENTIABLE if n in arrays}

    def attend(inputs):
      return pallas_kernels.hstu_attention(**{**arrays, **inputs}, **static)

    out, pullback = jax.vjp(attend, inputs)
    return out, pullback(grad)

  v = arrays['v']
  grad = jax.ShapeDtypeStruct((len(arrays['q']), *v.shape[1:]), v.dtype)
  return lower_for_tpu(both, arrays, grad)


@pytest.mark.parametrize('dtype', api.DTYPES)
@pytest.mark.parametrize('mode', api.MODES)
@pytest.mark.parametrize('masks', [(), tuple(cases.MASKS)], ids=['', 'masks'])
def test_kernels_lower_for_a_tpu(masks, mode, dtype):
  arguments = cases.masked(*masks, dtype=dtype) | dict(mode=mode, **DROPOUT)
  lowered = lower_attention(arguments)
  assert lowered.count('tpu_custom_call') == 3
  for kernel in ('forward', 'backward_by_query', 'backward_by_key'):
    assert f'hstu_attention_{kernel}' in lowered


@pytest.mark.parametrize('name', ['ml1m_hstu', 'ranking', 'long_window'])
def test_kernels_lower_at_the_widths_of_models(name):
  shape = dataclasses.replace(shapes.SHAPES[name], batch=2)
  arguments = shapes.inputs(shape, dtype='bfloat16')
  assert lower_attention(arguments).count('tpu_custom_call') == 3


def test_float32_is_exact_unless_the_setting_says_otherwise():
  arguments = cases.masked(dtype='float32')

  def attend(q):
    return pallas_kernels.hstu_attention(
      **arguments | dict(q=q, implementation='interpret')
    )

  def trace():
    jax.clear_caches()
    return str(jax.make_jaxpr(attend)(arguments['q']))

  assert 'Precision.HIGHEST' in trace()
  with jax.default_matmul_precision('bfloat16'):
    assert 'Precision.HIGHEST' not in trace()


def test_kernels_lower_where_64_bits_are_switched_on():
  arguments = cases.masked(*cases.MASKS)
  with jax.enable_x64(True):
    assert lower_attention(arguments).count('tpu_custom_call') == 3


def test_a_position_bias_that_fits_no_memory_is_refused():
  shape = dataclasses.replace(cases.SHAPE, max_len=1 << 16)
  arguments = shapes.inputs(shape, sizes=[60], capacity=128)
  with pytest.raises(ValueError, match='position_bias takes 96 MB'):
    lower_attention(arguments)


def test_a_list_of_pairs_that_fits_no_memory_is_refused():
  shape = dataclasses.replace(cases.SHAPE, max_len=8192)
  arguments = shapes.inputs(shape, sizes=[60], capacity=1 << 21)
  with pytest.raises(ValueError, match='278,528 pairs of blocks, .* 1088 kB'):
    lower_attention(arguments)


def test_kernels_tell_nearly_what_full_sequences_cost():
  """Half of what the list has room for, since what meets is known too late."""
  lengths = jnp.full(4, 8192)
  spec = dataclasses.replace(SPEC, max_len=8192, max_queries=8192)
  plan = dataclasses.replace(
    PLAN, block_q=256, block_k=256, tile=128,
    heads=tpu_heads.HeadPlan(2, 1, 64, 32),
  )  # fmt: skip
  tokens = 4 * 8192
  where = tpu_layout.layout(
    spec, plan, context(lengths=lengths), tokens, aligned=False
  )
  call = tpu_layout.call(spec, plan, context(lengths=lengths), where, tokens)
  wide, narrow = (
    jax.ShapeDtypeStruct((tokens, 2 * d), 'bfloat16') for d in (64, 32)
  )
  operands = {'q': wide, 'k': wide, 'v': narrow}
  pairs = int(call.by_query.bounds[-1])
  # Products of 64 and 32 numbers, for each head and pair of tokens.
  flops = pairs * 256 * 256 * 2 * 2 * (64 + 32)
  # q and the output once, k and v once a pair, and 8 fields of each token.
  token = 2 * 2 * (64 + 32) + 4 * tpu_layout.FIELDS
  moved = (tokens + pairs * 256) * token
  side = tpu_grid.by_query(plan, operands, call)
  cost = tpu_grid.estimate_cost(
    plan, side, side.inputs, side.in_specs, [narrow], 64 + 32
  )
  assert 1.0 <= cost.flops / flops < 1.1
  assert 1.0 <= cost.bytes_accessed / moved < 1.1
  assert cost.transcendentals * 2 * (64 + 32) == cost.flops


def test_a_tpu_comes_first_where_there_is_one():
  with dispatch.compiling_for('tpu', 'TPU v5e'):
    assert dispatch.choose('a', api.BACKENDS) is api.attend_on_tpu
  with pytest.raises(NotImplementedError, match='needs tpu'):
    dispatch.choose('a', api.BACKENDS, 'pallas_tpu')
