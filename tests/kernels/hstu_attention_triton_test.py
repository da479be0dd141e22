"""The Triton kernels, in Triton's interpreter, against the reference.

  pip install 'genrec_jax[triton]' && python -m pytest -m triton

Everything but the launch itself is what a GPU runs: preparation, plans, kernel
source, the finish of the tables' gradients. Blocks are small, so that a few
tokens make several of them, and of unequal sides. The interpreter of Triton 3.6
does not go with NumPy 2.5; that of 3.9 does.
"""

import dataclasses
import subprocess
import sys

import hypothesis
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import dispatch, triton_call
from pallas_kernels.hstu_attention import api, blocks, gpu, gpu_plan, shapes
from pallas_kernels.hstu_attention.spec import Context, Spec, Tensors
from tests.kernels import attention_cases as cases
from tests.kernels.hstu_attention_jagged_test import SIZES, TOKENS, batches
from tests.kernels.hstu_attention_test import DROPOUT, OPTIONS, check
from tests.tolerances import assert_close

pytestmark = [
  pytest.mark.triton,
  # Of the interpreter of Triton 3.6 itself.
  pytest.mark.filterwarnings('ignore:Conversion of an array with ndim'),
]


def table(rows, columns, bias, group):
  options = dict(warps=4, stages=2, group=group)
  sides = dict(block_q=rows, block_k=columns, **options)
  return {
    'forward': sides,
    'backward_queries': sides,
    'backward_keys': sides,
    'backward_bias': dict(block_q=bias, block_k=bias, **options),
  }


BLOCKS = {'flat': table(16, 32, 16, 2), 'tall': table(32, 16, 32, 1)}


@pytest.fixture(scope='module')
def interpreted():
  """The backend 'triton' as it would be on a GPU, but interpreted."""
  with pytest.MonkeyPatch.context() as patch:
    # Before triton is imported, since its own library is decorated too.
    patch.setenv('TRITON_INTERPRET', '1')
    pytest.importorskip('triton', reason="pip install 'genrec_jax[triton]'")
    from tests.kernels import triton_interpreter

    patch.setattr(triton_call, 'run', triton_interpreter.run)
    backend = dispatch.Backend(gpu.attention)
    patch.setitem(api.BACKENDS, 'triton', backend)
    yield patch


@pytest.fixture(autouse=True, params=['flat'])
def backend(request, interpreted):
  # Where there is none for this device, sizes are those of AMD's.
  key = ('triton', dispatch.device_kind())
  interpreted.setitem(blocks.TABLE, key, BLOCKS[request.param])
  cases._program.cache_clear()
  return 'triton'


both_blocks = pytest.mark.parametrize('backend', BLOCKS, indirect=True)


def inputs(sizes=SIZES, **options):
  return shapes.inputs(
    cases.SHAPE, sizes=sizes, capacity=cases.CAPACITY, **options
  )


@both_blocks
def test_the_blocks_of_the_tests_are_used(request, backend):
  tensors, context = _call(inputs())
  call = gpu_plan.call_of(tensors, context)
  spec = Spec(60, 60, 'silu', 1.0, 63.0, 0, None, 0, 0.0)
  kind = dispatch.device_kind()
  plan = gpu_plan.launch('forward', spec, call, kind, False).constants
  wanted = BLOCKS[request.node.callspec.params['backend']]['forward']
  assert (plan.block_q, plan.block_k) == (wanted['block_q'], wanted['block_k'])
  assert plan.group == wanted['group']


def _call(arguments):
  get = arguments.get
  names = ('q', 'k', 'v', 'position_bias', 'time_bias')
  nothing = (None,) * (len(Context._fields) - 1)
  return Tensors(*map(get, names)), Context(get('lengths'), *nothing)


@pytest.mark.parametrize('options', OPTIONS)
@pytest.mark.parametrize('mode', cases.MODES)
def test_each_option_alone_and_all_together(backend, mode, options):
  left_out, added = OPTIONS[options]
  check(backend, cases.without(inputs(), *left_out), mode=mode, **added)


@pytest.mark.parametrize('names', cases.COMBINED, ids='+'.join)
@both_blocks
def test_each_mask_alone_and_combined(backend, names):
  check(backend, cases.masked(*names))


@pytest.mark.parametrize('names', cases.COMBINED[5:], ids='+'.join)
def test_masks_with_softmax_and_dropout(backend, names):
  check(backend, cases.masked(*names), mode='softmax', **DROPOUT)


@pytest.mark.parametrize('options', [{}, DROPOUT], ids=['', 'dropout'])
@pytest.mark.parametrize('names', [(), ('queries', 'targets')])
def test_a_normaliser_for_each_query(backend, names, options):
  arguments = cases.masked(*names)
  queries = arguments['q'].shape[0]
  normaliser = jnp.linspace(3.0, 90.0, queries, dtype=jnp.float32)
  check(backend, arguments, normaliser=normaliser, **options)


@pytest.mark.parametrize('mode', cases.MODES)
def test_bfloat16_stays_close_to_float32(backend, mode):
  check(backend, inputs(dtype='bfloat16'), mode=mode)
  check(backend, cases.masked('targets', dtype='bfloat16'), mode=mode)


@pytest.mark.parametrize('names', [(), ('targets',)], ids=['', 'targets'])
def test_tables_of_softmax_carry_the_rounding_of_the_output_alone(
  backend, names
):
  # The kernels keep the output in its own dtype, as its caller does: another
  # copy in float32 would be half of q, k and v once more.
  arguments = cases.masked(*names, dtype='bfloat16')
  actual = cases.results(arguments, backend, mode='softmax')
  arguments = cases.in_float32(arguments)
  exact = cases.results(arguments, 'reference', mode='softmax')
  expected = cases.tables_by_rounded_output(arguments, actual['out'], exact)
  for name in expected:
    assert_close(actual[name], expected[name], 'float32', name)


@pytest.fixture
def halved(interpreted, monkeypatch):
  """Scores are halved, as on NVIDIA's GPUs, but not by their instruction."""
  from pallas_kernels.hstu_attention import triton_tiles

  tl = triton_tiles.tl
  monkeypatch.setattr(
    gpu_plan, 'is_halved', lambda spec, *_: spec.mode == 'silu'
  )

  def tanh(x):
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)

  monkeypatch.setattr(triton_tiles, 'tanh', tanh)
  cases._program.cache_clear()
  yield
  cases._program.cache_clear()


@pytest.mark.parametrize('options', [{}, DROPOUT], ids=['', 'dropout'])
@pytest.mark.parametrize('names', [(), tuple(cases.MASKS)], ids=['', 'masks'])
@both_blocks
def test_halved_scores_give_the_same(backend, halved, names, options):
  check(backend, cases.masked(*names), **options)
  arguments = cases.without(cases.masked(*names), 'time_bias')
  check(backend, arguments, alpha=1.0, **options)


@pytest.mark.parametrize('order', ['sorted', 'unsorted', 'before 1970'])
@both_blocks
def test_tiles_that_meet_few_buckets(backend, order):
  # Far from the diagonal the first and the last time of a tile say which.
  shape = dataclasses.replace(cases.SHAPE, batch=2, max_len=190)
  arguments = shapes.inputs(shape, sizes=[189, 100])
  time = jnp.arange(arguments['time'].size, dtype=jnp.int32) * 3600
  if order == 'unsorted':
    time = time.at[jnp.array([5, 150])].set(time[jnp.array([150, 5])])
  if order == 'before 1970':
    time -= 2**30
  check(backend, arguments | dict(time=time, query_time=time + 60))


@pytest.mark.parametrize('widths', [(25, 50), (48, 16), (1, 33)])
@pytest.mark.parametrize('mode', cases.MODES)
def test_widths_of_heads(backend, mode, widths):
  shape = dataclasses.replace(cases.SHAPE, dqk=widths[0], dv=widths[1])
  check(backend, shapes.inputs(shape, sizes=SIZES), mode=mode)


@pytest.mark.parametrize('window', [40, 64])
@pytest.mark.parametrize('names', [(), ('contextual',), ('targets',)])
@both_blocks
def test_windows_that_hold_whole_tiles(backend, names, window):
  # Long enough for tiles before, inside and behind the window, far tail.
  shape = dataclasses.replace(cases.SHAPE, batch=2, heads=1, max_len=190)
  arguments = shapes.inputs(shape, sizes=[189, 100]) | dict(window=window)
  if 'contextual' in names:
    arguments['contextual'] = 35
  if 'targets' in names:
    arguments['targets'] = jnp.array([40, 3], jnp.int32)
  check(backend, arguments)
  check(backend, arguments, full_tail=20)


@both_blocks
def test_blocks_of_targets_alone(backend):
  shape = dataclasses.replace(cases.SHAPE, batch=3, heads=1, max_len=190)
  arguments = shapes.inputs(shape, sizes=[180, 140, 70])
  targets = jnp.array([100, 139, 5], jnp.int32)
  check(backend, arguments, targets=targets)
  check(backend, arguments, targets=targets, contextual=1, mode='softmax')


@pytest.mark.parametrize('mode', cases.MODES)
def test_padding_tokens_are_never_read(backend, mode):
  arguments = inputs()
  clean = cases.results(arguments, backend, mode=mode)
  dirt = {
    n: arguments[n].at[TOKENS:].set(jnp.nan)  # worse than any number
    for n in ('q', 'k', 'v')
  }
  dirty = cases.results({**arguments, **dirt}, backend, mode=mode)
  for name in clean:
    np.testing.assert_array_equal(dirty[name], clean[name], name)
  for name in ('out', 'q', 'k', 'v'):
    assert not np.any(clean[name][TOKENS:]), name


def test_an_empty_batch_yields_zeros(backend):
  for name, value in cases.results(inputs([0] * 6), backend).items():
    assert not np.any(value), name


def test_wrong_lengths_are_nan_and_lead_nowhere(backend):
  longer = jnp.array([7, 90, 200, 0, 100, 40], jnp.int32)
  out = cases.results({**inputs(), 'lengths': longer}, backend)['out']
  assert np.all(np.isnan(out))


@hypothesis.settings(
  max_examples=10,
  deadline=None,
  derandomize=True,
  database=None,
  suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(sizes=batches)
def test_random_lengths(backend, sizes):
  arguments = inputs(sizes)
  actual = cases.results(arguments, backend, **DROPOUT)
  expected = cases.results(arguments, 'reference', **DROPOUT)
  for name in expected:
    assert_close(actual[name], expected[name], name=name)


def test_times_at_the_boundaries_of_buckets(backend):
  arguments = inputs([60, 60, 60])
  # Each query lies a bucket's least distance, or a second off, behind all keys.
  limits, _ = gpu.cell_boundaries(shapes.TIME_BUCKETS)
  edges = np.unique(np.ceil(limits[np.isfinite(limits)]))[:60]
  times = np.concatenate([edges - 1, edges, edges + 1, np.zeros(76)])
  arguments |= dict(
    time=jnp.zeros_like(arguments['time']),
    query_time=jnp.asarray(times, jnp.int32),
    time_bias=jnp.sin(jnp.arange(shapes.TIME_BUCKETS, dtype=jnp.float32)),
  )
  check(backend, arguments)


def test_the_same_bits_again(backend):
  arguments = cases.masked('targets', 'contextual')
  first = cases.results(arguments, backend)
  again = cases.results(arguments, backend)
  for name in first:
    np.testing.assert_array_equal(first[name], again[name], name)


def test_kernels_compile_for_gpus(interpreted):
  with pytest.MonkeyPatch.context() as patch:
    patch.delenv('TRITON_INTERPRET', raising=False)
    command = [sys.executable, '-m', 'benchmarks.aot_compile_gpu', '--smoke']
    done = subprocess.run(command, capture_output=True, text=True)
  assert done.returncode == 0, done.stdout + done.stderr
