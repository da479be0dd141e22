"""What surrounds the Triton kernels and needs neither triton nor a GPU."""

import dataclasses
import importlib.metadata
import importlib.util
import sys
import types

import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels
from pallas_kernels import dispatch, triton_call
from pallas_kernels.hstu_attention import (
  api,
  blocks,
  gpu,
  gpu_plan,
  reference,
  shapes,
)
from pallas_kernels.hstu_attention.spec import Context, Spec, Tensors


def test_without_a_gpu_it_is_refused_with_the_way_to_get_it():
  arguments = shapes.inputs(shapes.SHAPES['tiny'])
  message = r"needs cuda or rocm.*pip install 'genrec_jax\[gpu\]'"
  with pytest.raises(NotImplementedError, match=message):
    pallas_kernels.hstu_attention(**arguments, implementation='triton')


@pytest.mark.parametrize('missing', ['triton', 'jax_triton'])
def test_on_a_gpu_the_missing_package_is_named(monkeypatch, missing):
  monkeypatch.setattr(dispatch, 'platform', lambda: 'cuda')
  monkeypatch.setattr(
    importlib.util,
    'find_spec',
    lambda name: None if name == missing else object(),
  )
  reason = triton_call.why_not()
  assert f'package {missing}:' in reason
  assert "pip install 'genrec_jax[gpu]'" in reason


def test_on_a_gpu_without_the_package_one_warning_says_so(monkeypatch, caplog):
  monkeypatch.setattr(dispatch, 'platform', lambda: 'cuda')
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  dispatch._warn_once.cache_clear()
  for _ in range(2):
    assert dispatch.choose('x', api.BACKENDS) is api.BACKENDS['xla'].run
  (record,) = caplog.records
  assert record.levelname == 'WARNING'
  assert "x runs without 'triton'" in record.message
  assert "pip install 'genrec_jax[gpu]'" in record.message


def test_where_it_is_not_expected_nothing_is_said(caplog):
  dispatch._warn_once.cache_clear()
  dispatch.choose('x', api.BACKENDS)
  assert not caplog.records


@pytest.fixture
def versions(monkeypatch):
  """A machine with a GPU, triton 3.6 and a jax-triton, as told to the test."""
  told = {'triton': '3.6.0', 'jax-triton': '0.3.1'}
  needs = ['jax>=0.8.2', 'triton>=3.6', 'pytest; extra == "tests"']
  monkeypatch.setattr(dispatch, 'platform', lambda: 'cuda')
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: object())
  monkeypatch.setattr(importlib.metadata, 'version', told.__getitem__)
  monkeypatch.setattr(importlib.metadata, 'requires', lambda name: needs)
  monkeypatch.setitem(sys.modules, 'jax_triton', types.ModuleType('jax_triton'))
  caches = triton_call._too_old, triton_call._not_importable
  for cached in caches:
    cached.cache_clear()
  yield told
  for cached in caches:
    cached.cache_clear()


def test_on_a_gpu_it_comes_first(versions):
  assert dispatch.choose('x', api.BACKENDS) is gpu.attention


def test_a_triton_too_old_for_jax_triton_is_named(versions):
  versions['triton'] = '3.5.1'
  reason = triton_call.why_not()
  assert reason.startswith('jax-triton 0.3.1 needs triton >= 3.6, not 3.5.1')


def test_a_jax_triton_that_is_too_old_is_named(versions):
  versions['jax-triton'] = '0.2.0'
  reason = triton_call.why_not()
  assert reason.startswith('it needs jax-triton >= 0.3.1, not 0.2.0')


def test_a_jax_triton_that_cannot_be_imported_is_named(versions, monkeypatch):
  monkeypatch.setitem(sys.modules, 'jax_triton', None)
  reason = triton_call.why_not()
  assert 'jax_triton cannot be imported (ModuleNotFoundError' in reason
  # And the attention runs, by XLA.
  assert dispatch.choose('x', api.BACKENDS) is api.BACKENDS['xla'].run


@pytest.mark.parametrize(
  'capability, expected',
  [('7.5', 'it needs a GPU of compute capability 8.0 or more, not 7.5'),
   ('7.0', 'it needs a GPU of compute capability 8.0 or more, not 7.0'),
   ('8.0', None), ('12.0', None), (None, None)],
)  # fmt: skip
def test_a_chip_too_old_is_named(versions, monkeypatch, capability, expected):
  monkeypatch.setattr(dispatch, 'compute_capability', lambda: capability)
  assert triton_call.why_not() == expected


def test_the_default_device_is_asked(monkeypatch):
  def device(kind, capability):
    client = types.SimpleNamespace(platform_version='cuda 12')
    return types.SimpleNamespace(
      platform='gpu',
      device_kind=kind,
      compute_capability=capability,
      client=client,
    )

  first, second = device('NVIDIA A100', '8.0'), device('NVIDIA L4', '8.9')
  config = types.SimpleNamespace(jax_default_device=None)
  fake = types.SimpleNamespace(
    devices=lambda *_: [first, second], config=config
  )
  monkeypatch.setattr(dispatch, 'jax', fake)

  def asked():
    return (
      dispatch.platform(),
      dispatch.device_kind(),
      dispatch.compute_capability(),
    )

  assert asked() == ('cuda', 'NVIDIA A100', '8.0')
  config.jax_default_device = second
  assert asked() == ('cuda', 'NVIDIA L4', '8.9')
  config.jax_default_device = 'gpu'
  assert asked() == ('cuda', 'NVIDIA A100', '8.0')


@pytest.mark.parametrize('others', [(), ('one more, in JAX 0.12',)])
def test_unread_kernels_are_dropped_whatever_jax_passes(others):
  equation = types.SimpleNamespace(invars=['a', 'b'], effects=set())
  primitive = object()
  partial_eval = types.SimpleNamespace(dce_rules={primitive: None})
  library = types.SimpleNamespace(
    pe=partial_eval, triton_kernel_call_p=primitive
  )
  triton_call._make_removable(library)
  rule = partial_eval.dce_rules[primitive]
  assert rule([True, False], *others, equation) == ([True, True], equation)
  assert rule([False, False], *others, equation) == ([False, False], None)
  equation.effects.add('writes')
  assert rule([False, False], *others, equation)[1] is equation


@pytest.mark.parametrize('aliases', [(), ((0, 1), (2, 0))])
def test_inputs_and_outputs_that_share_memory(monkeypatch, aliases):
  def call(*inputs, kernel, out_shape, **options):
    assert options.get('input_output_aliases', {}) == dict(aliases)
    assert options['grid'] == (3, 1, 1) and options['s'] == 'constants'
    return [kernel, *inputs, *out_shape]

  inside = types.SimpleNamespace(triton_kernel_call_p=None)
  library = types.SimpleNamespace(triton_call=call, triton_lib=inside)
  monkeypatch.setitem(sys.modules, 'jax_triton', library)
  launch = triton_call.Launch('name', 3, 'constants', ('out',), 1, 1, aliases)
  found = triton_call.run('kernel', launch, 1, 2)
  assert found == ['kernel', 1, 2, 'out']


@pytest.mark.parametrize(
  'dtype, width, filled',
  [('bfloat16', 50, 56), ('bfloat16', 25, 32), ('float32', 50, 52),
   ('bfloat16', 64, 64), ('float32', 1, 4)],
)  # fmt: skip
def test_heads_are_filled_up_to_whole_loads(monkeypatch, dtype, width, filled):
  seen = {}

  def attend(spec, tensors, context):
    seen.update(tensors._asdict())
    return tensors.v

  monkeypatch.setattr(gpu, '_attention', attend)
  q = jnp.ones((4, 2, width), dtype)
  v = jnp.full((4, 2, 8), 2, dtype)
  out = gpu.attention(None, Tensors(q, q, v, None, None), None)
  assert seen['q'].shape == seen['k'].shape == (4, 2, filled)
  assert seen['q'].sum() == q.sum() and (out == v).all()
  assert gpu_plan.pad_width(width, q.dtype.itemsize) == filled


@pytest.mark.parametrize('buckets', [1, 5, 129])
def test_cells_of_time_hold_the_bucket_of_every_difference(buckets):
  limit, lower = gpu.cell_boundaries(buckets)
  edges = limit[np.isfinite(limit)].astype(np.int64)
  powers = 2 ** np.arange(31)
  near = [edges + d for d in range(-200, 201)]
  near += [k * powers // 4 + d for k in range(4, 8) for d in (-1, 0, 1)]
  drawn = np.exp(np.random.default_rng(0).uniform(0, np.log(2**31), 10**6))
  seconds = np.concatenate([np.arange(10**6), *near, drawn.astype(np.int64)])
  seconds = np.clip(seconds, 0, 2**31 - 1).astype(np.int32)
  signs = np.where(np.arange(seconds.size) % 2, -1, 1).astype(np.int32)
  # As the kernels find a cell, in `triton_bias_tiles.load_cell`.
  difference = (signs * seconds).astype(np.float32)
  cell = (difference.view(np.int32) >> 21) & 0x3FF
  found = lower[cell] + (np.abs(difference) >= limit[cell])
  expected = reference.time_bucket(jnp.asarray(seconds), buckets)
  np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize('buckets', [1, 129])
def test_cells_of_time_hold_both_entries(buckets):
  table = jnp.arange(buckets, dtype=jnp.float32) * 0.5
  cells = np.asarray(gpu.time_cells(table, jnp.array(True)))
  steps = cells[gpu_plan.CELLS :]
  cells = cells[: gpu_plan.CELLS]
  bucket = cells[:, 3].copy().view(np.int32)
  assert bucket[0] == 0 and bucket[-1] == min(buckets - 1, 71)
  np.testing.assert_array_equal(cells[:, 1], 0.5 * bucket)
  upper = np.minimum(bucket + 1, buckets - 1)
  np.testing.assert_array_equal(cells[:, 2], 0.5 * upper)
  assert len(steps) == buckets + gpu_plan.STEPS
  np.testing.assert_array_equal(steps[:buckets, 1], table)
  np.testing.assert_array_equal(steps[:, 2], 1.0)


@pytest.mark.parametrize('buckets', [1, 5, 129])
def test_each_bucket_starts_where_the_reference_says(buckets):
  starts = gpu.bucket_starts(buckets)
  assert starts[0] == 0
  reached = starts[starts < 2**31 - 1]
  at = reference.time_bucket(jnp.asarray(reached), buckets)
  assert np.all(np.asarray(at) >= np.arange(len(reached)))
  before = jnp.asarray(reached[1:] - 1)
  below = np.asarray(reference.time_bucket(before, buckets))
  assert np.all(below < np.arange(1, len(reached)))


def test_the_margin_of_approximate_logarithms():
  # As `_buckets_of` computes them, of the differences next to each boundary;
  # between them nothing changes. `lg2.approx` may be off by 2**-22.
  starts = gpu.bucket_starts(129)[1:]
  starts = starts[starts < 2**31 - 1]
  width, margin = np.float32(1 / reference.BUCKET_WIDTH), np.float32(1e-4)
  factor = np.float32(np.log(2)) * width
  off = 2.0**-21 * np.maximum(np.log2(starts), 1)
  logs = np.log2(starts.astype(np.float32).astype(np.float64))
  bucket = np.arange(1, len(starts) + 1)
  high = (logs - off).astype(np.float32) * factor + margin / 2
  assert np.all(high.astype(int) >= bucket)
  logs = np.log2(np.maximum(starts - 1, 1).astype(np.float32).astype(float))
  low = np.maximum((logs + off).astype(np.float32) * factor - margin / 2, 0)
  assert np.all(low.astype(int) <= bucket - 1)


@pytest.mark.parametrize('pairs_of', [gpu.position_pairs, gpu.time_pairs])
def test_neighbours_with_room_on_both_sides(pairs_of):
  pairs = np.asarray(pairs_of(jnp.array([1, 2, 3])))
  room = gpu_plan.ROOM
  assert pairs.shape == (3 + 2 * room - 1, 2)
  assert pairs[: room - 1].tolist() == [[1, 1]] * (room - 1)
  middle = pairs[room - 1 : room + 3].tolist()
  assert middle == [[1, 1], [1, 2], [2, 3], [3, 3]]
  assert pairs[room + 3 :].tolist() == [[3, 3]] * (room - 1)


def test_tiles_do_not_reach_beyond_the_room():
  # A tile, and one read ahead of it, from the last token on.
  for (backend, _), entry in blocks.TABLE.items():
    for kernels in entry.values() if backend == 'triton' else ():
      for sizes in kernels.values():
        assert 2 * max(sizes['block_q'], sizes['block_k']) <= gpu_plan.ROOM


@pytest.mark.parametrize(
  ('times', 'lengths', 'expected'),
  [
    ([1, 2, 2, 0, 5], [3, 2], True),
    ([1, 2, 1, 0, 5], [3, 2], False),
    ([1, 2, 3, 4, 0], [3, 0, 1], True),  # padding is not looked at
    ([1, 2, 3, 4, 0], [3, 2], False),
    ([4, 1, 2, 3, 4], [0, 0], True),
  ],
)
def test_order_of_times_within_sequences(times, lengths, expected):
  times, lengths = jnp.array(times), jnp.array(lengths)
  context = Context(lengths, None, None, times, times, None, None)
  assert bool(gpu.is_ordered(context)) is expected


@pytest.mark.parametrize('both_ways', [False, True])
@pytest.mark.parametrize('positions', [15, 23, 37])
def test_diagonals_are_summed_where_they_belong(both_ways, positions):
  block, rows = 4, 3  # 12 places; tables of n = 8 (cut), 12 and 19
  ahead = rows - 1 if both_ways else 0
  shape = (rows + ahead, 2, block, block)
  n = (positions + 1) // 2
  tiles = np.random.default_rng(0).normal(size=shape)
  expected = np.zeros(positions)
  for d, share, r, c in np.ndindex(*shape):
    distance = c - r - (d - ahead) * block
    if abs(distance) < n:
      expected[distance + n - 1] += tiles[d, share, r, c]
  tiles = jnp.asarray(tiles, jnp.float32)
  actual = gpu.sum_of_diagonals(tiles, positions, both_ways)
  np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.parametrize('name', shapes.SHAPES)
@pytest.mark.parametrize('kernel', gpu_plan.KERNELS)
def test_every_model_has_a_plan(kernel, name):
  shape = shapes.SHAPES[name]
  spec = gpu_plan.Spec(
    max_len=shape.max_len,
    max_queries=shape.queries or shape.max_len,
    mode='silu',
    alpha=1.0,
    normaliser=None,
    contextual=shape.contextual,
    window=shape.window,
    full_tail=shape.full_tail,
    dropout=0.0,
  )
  call = gpu_plan.CallShapes(
    batch=shape.batch,
    queries=1024,
    keys=2048,
    heads=shape.heads,
    dqk=shape.dqk,
    dv=shape.dv,
    dtype='bfloat16',
    positions=2 * shape.positions - 1 if shape.position_bias else 0,
    buckets=shapes.TIME_BUCKETS if shape.time_bias else 0,
    tail=bool(shape.queries),
    targets=bool(shape.targets),
  )
  launch = gpu_plan.launch(kernel, spec, call, 'cpu', cuda=True)
  s = launch.constants
  assert launch.grid > 0
  assert hash(s) == hash(s._replace())
  for width, least in ((s.width_qk, s.dqk), (s.width_v, s.dv)):
    assert width >= max(16, least) and width & (width - 1) == 0
  if kernel == 'backward_bias':
    assert s.block_q == s.block_k and s.ahead == bool(s.contextual) * (
      -(-shape.max_len // s.block_q) - 1
    )


@pytest.mark.parametrize(
  'width, expected',
  [(1, 64), (64, 64), (65, 128), (300, 512), (999, 1024), (4096, 1024)],
)
def test_block_sizes_follow_the_wider_of_the_heads(width, expected):
  entry = blocks.TABLE['triton', 'default']
  assert blocks.lookup('triton', 'NVIDIA X', 8, width) == entry[expected]


@pytest.mark.parametrize(
  ('cuda', 'capability', 'expected'),
  [
    (True, '9.0', 'hopper'),
    (True, '8.0', 'default'),
    (True, '10.0', 'default'),
    (True, None, 'default'),
    (True, '8.6', 'small'),
    (True, '8.9', 'small'),
    (True, '12.0', 'small'),
    (False, 'gfx942', 'rocm'),
    (False, None, 'rocm'),
  ],
)
def test_block_sizes_follow_the_chip(monkeypatch, cuda, capability, expected):
  spec = Spec(512, 512, 'silu', 1.0, 1.0, 0, None, 0, 0.0)
  call = gpu_plan.CallShapes(
    4, 2048, 2048, 2, 256, 256, 'bfloat16', 1023, 0, False, False
  )
  sizes = blocks.TABLE['triton', expected][256]['backward_queries']

  def used(kind):
    return gpu_plan.launch(
      'backward_queries', spec, call, kind, cuda, capability
    )

  plan = used('NVIDIA X')
  assert plan.constants.block_q == sizes['block_q']
  assert plan.constants.block_k == sizes['block_k']
  assert plan.warps == sizes['warps']
  if expected == 'hopper':
    # Four times as wide, and without its own products: sizes of others.
    float32 = gpu_plan.launch(
      'backward_queries',
      spec,
      call._replace(dtype='float32', dqk=64, dv=64),
      'NVIDIA X',
      cuda,
      capability,
    )
    usual = blocks.TABLE['triton', 'default'][256]['backward_queries']
    assert float32.constants.block_q == usual['block_q']
  # What was measured on a device comes first, for its widths alone.
  monkeypatch.setattr(blocks, 'TABLE', dict(blocks.TABLE))
  tuned = {'backward_queries': sizes | {'warps': 2}}
  blocks.use('triton', 'NVIDIA X', 256, tuned)
  assert used('NVIDIA X').warps == 2
  blocks.use('triton', 'NVIDIA Y', 64, tuned)
  assert used('NVIDIA Y') == plan


def test_more_than_int32_counts_is_refused():
  call = gpu_plan.CallShapes(
    1, 2**20, 2**20, 8, 256, 256, 'bfloat16', 0, 0, False, False
  )
  spec = Spec(2**20, 2**20, 'silu', 1.0, 1.0, 0, None, 0, 0.0)
  with pytest.raises(ValueError, match='more than the kernels for GPUs count'):
    gpu_plan.launch('forward', spec, call, 'default', True)
  gpu_plan.launch(
    'forward', dataclasses.replace(spec, max_len=2**19), call, 'default', True
  )
