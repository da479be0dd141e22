"""The Triton kernels of embeddings, in Triton's interpreter, against XLA.

  pip install 'genrec_jax[triton]' && python -m pytest -m triton

Everything but the launch itself is what a GPU runs: preparation, plans, kernel
source. Pieces and blocks are small, so that a few ids make several levels.
"""

import importlib.util
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import aot_compile_embedding
from pallas_kernels import dispatch, triton_call
from pallas_kernels.jagged_embedding import api, gpu, gpu_plan, rules
from pallas_kernels.jagged_embedding.spec import Rule
from tests.kernels import (
  jagged_embedding_rounding_test,
  jagged_embedding_test,
  jagged_embedding_update_test,
)
from tests.kernels.embedding_cases import (
  assert_rounded_once,
  padded_inputs,
  slots,
)
from tests.tolerances import assert_close

pytestmark = [
  pytest.mark.triton,
  # The interpreter of Triton 3.6 makes numbers of arrays of one.
  pytest.mark.filterwarnings('ignore:Conversion of an array with ndim'),
]
ROWS, FREQUENT = 23, 5
LENGTHS = np.int32([3, 0, 21, 1, 0, 46, 8, 5, 16, 0])  # and then padding
PADDING = 6
WIDTHS = [(1, 'float32'), (5, 'float16'), (64, 'bfloat16'), (100, 'float32')]
RATE = 0.1
RULES = {
  'sgd': Rule('sgd'),
  'momentum': Rule('momentum', decay='decoupled', weight_decay=0.2),
  'lars': Rule('lars', decay='l2', weight_decay=0.2),
  'row_adagrad': Rule('row_adagrad', decay='l2', weight_decay=0.2),
  'adagrad': Rule('adagrad', max_norm=2.0),
  'row_adam': Rule('row_adam', beta1=0.8, row_count=True),
  'adam': Rule('adam', decay='decoupled', weight_decay=0.2),
  'adam by row': Rule('adam', beta1=0.0, row_count=True, max_norm=2.0),
  'row_lamb': Rule('row_lamb', decay='decoupled', weight_decay=0.2),
  'lamb': Rule('lamb', decay='l2', weight_decay=0.2),
}


@pytest.fixture(scope='module', autouse=True)
def interpreted():
  """The backend 'triton' as it would be on a GPU, but interpreted."""
  with pytest.MonkeyPatch.context() as patch:
    # Before triton is imported, since its own library is decorated too.
    patch.setenv('TRITON_INTERPRET', '1')
    pytest.importorskip('triton', reason="pip install 'genrec_jax[triton]'")
    from tests.kernels import triton_interpreter

    patch.setattr(triton_call, 'run', triton_interpreter.run)
    patch.setitem(api.BACKENDS, 'triton', dispatch.Backend(lambda: gpu))
    patch.setitem(gpu_plan.TUNED, 'pieces', {'bags': 16, 'runs': 3})
    patch.setitem(gpu_plan.TUNED, 'blocks', 64)
    yield patch


def inputs(width: int, dtype: str = 'float32') -> dict:
  """A row that most ids name, long and empty bags, padding that is no row."""
  rng = np.random.default_rng(0)
  return padded_inputs(
    rng, LENGTHS, ROWS, width, dtype, (FREQUENT, 0.8), PADDING
  )


def test_the_case_has_runs_of_every_level():
  count = LENGTHS.sum() + PADDING
  spans = gpu_plan.piece_spans('runs', count)
  assert spans == [3, 9, 27]
  ids = np.sort(np.asarray(inputs(1)['ids']))
  blocks = ids[: count // 27 * 27].reshape(-1, 27)
  assert np.any(blocks[:, 0] == blocks[:, -1])
  assert max(LENGTHS) > 2 * gpu_plan.piece_spans('bags', count)[0]


@pytest.mark.parametrize('weighted', [False, True])
@pytest.mark.parametrize('width, dtype', WIDTHS)
def test_bags(width, dtype, weighted):
  case = inputs(width, dtype)
  args = case['table'], case['ids'], case['lengths']
  options = dict(
    mode='mean' if weighted else 'sum',
    weights=case['weights'] if weighted else None,
  )
  out = api.embedding_bag(*args, implementation='triton', **options)
  plain = case['weights'] if weighted else np.ones(len(case['ids']))
  expected = jagged_embedding_test.plain_bags(*args, plain, options['mode'])
  assert out.dtype == dtype
  assert_rounded_once(out, expected)


@pytest.mark.parametrize('width', [5, 100])
@pytest.mark.parametrize('weighted', [False, True])
def test_merged_gradients(width, weighted):
  case = inputs(width)
  args = case['grads'], case['ids'], case['lengths'], ROWS
  options = dict(weights=case['weights'] if weighted else None)
  found, expected = (
    api.bag_row_gradient(*args, implementation=name, **options)
    for name in ('triton', 'xla')
  )
  np.testing.assert_array_equal(found.ids, expected.ids)
  assert_close(found.grads, expected.grads)


def test_one_id_alone():
  """All places are of one run, or of one bag."""
  count = 150
  ids, grads = jnp.full(count, 3, jnp.int32), jnp.ones((count, 2))
  merged = api.merge_rows(ids, grads, 4, implementation='triton')
  assert merged.ids.tolist() == [3, 4, 4, 4]
  assert merged.grads.tolist() == [[count] * 2] + [[0, 0]] * 3
  out = api.embedding_bag(
    jnp.ones((4, 2)), ids, jnp.int32([count]), implementation='triton'
  )
  assert out.tolist() == [[count] * 2]


def test_gradients_for_table_and_weights():
  case = inputs(5)

  def loss(table, weights, name):
    out = api.embedding_bag(
      table, case['ids'], case['lengths'], weights=weights, implementation=name
    )
    return jnp.sum(jnp.sin(out) * case['grads'])

  weights = jnp.nan_to_num(case['weights'])
  found, expected = (
    jax.grad(loss, argnums=(0, 1))(case['table'], weights, name)
    for name in ('triton', 'xla')
  )
  for a, b in zip(found, expected, strict=True):
    assert_close(a, b)


@pytest.mark.parametrize('width, dtype', WIDTHS)
def test_gather(width, dtype):
  table = inputs(width, dtype)['table']
  ids = jnp.int32([3, 22, 23, 0, -1, 7, 99])
  lengths = jnp.int32([2, 3])
  for spare in (False, True):
    found, expected = (
      jax.jit(
        lambda table, ids, lengths, name=name, spare=spare: api.gather(
          table, ids, lengths=lengths, spare=spare, implementation=name
        )
      )(table, ids, lengths)
      for name in ('triton', 'xla')
    )
    assert found.dtype == dtype
    np.testing.assert_array_equal(
      found.astype(jnp.float32), expected.astype(jnp.float32)
    )


def test_wrong_ids_read_nan_and_move_nothing():
  table = jnp.ones((4, 3))
  ids, lengths = jnp.int32([1, 4, 2, -1, 2]), jnp.int32([1, 2, 2])

  @jax.jit
  def run(table, ids, lengths):
    options = dict(implementation='triton')
    grads = jnp.ones((3, 3))
    return (
      api.embedding_bag(table, ids, lengths, **options),
      api.bag_weight_gradient(table, grads, ids, lengths, **options),
      api.embedding_bag_backward_and_update(
        table, {}, ids, lengths, grads, learning_rate=1.0, optimizer='sgd',
        **options,
      )[0],
    )  # fmt: skip

  out, dots, new = run(table, ids, lengths)
  np.testing.assert_array_equal(np.isnan(out[:, 0]), [False, True, True])
  nan = np.nan
  np.testing.assert_array_equal(dots, np.float32([3, nan, 3, nan, 3]))
  np.testing.assert_array_equal(new[:, 0], [1, 0, -1, 1])


def test_wrong_lengths_lead_nowhere():
  table, grads = jnp.ones((4, 3)), jnp.ones((3, 3))
  ids = jnp.int32([1, 1, 2])

  @jax.jit
  def run(lengths):
    return [
      (
        api.embedding_bag(table, ids, lengths, implementation=name),
        api.bag_row_gradient(grads, ids, lengths, 4, implementation=name),
      )
      for name in ('triton', 'xla')
    ]

  for lengths in ([2, 9, 1], [-5, 2, 1], [2, -1, 1]):
    found, expected = map(jax.tree.leaves, run(jnp.int32(lengths)))
    assert np.all(np.isnan(found[0]))
    for a, b in zip(found, expected, strict=True):
      np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('name', RULES)
def test_updates_as_xla(name):
  """In one pass, and of merged gradients; an unused entry at the end."""
  case = inputs(5)
  table, state = case['table'], slots(case['table'], RULES[name])
  weights = case['weights'] if name == 'sgd' else None
  merged = api.bag_row_gradient(
    case['grads'], case['ids'], case['lengths'], ROWS, implementation='xla'
  )
  made = {}
  for backend in ('triton', 'xla'):
    options = dict(
      optimizer=RULES[name], learning_rate=RATE, implementation=backend
    )
    made[backend] = (
      api.embedding_bag_backward_and_update(
        table, state, case['ids'], case['lengths'], case['grads'],
        weights=weights, **options,
      ),
      api.update_rows(
        table, state, jnp.append(merged.ids[::2], ROWS),
        jnp.append(merged.grads[::2], jnp.full((1, 5), jnp.nan), axis=0),
        **options,
      ),
    )  # fmt: skip
  found, expected = map(jax.tree.leaves, (made['triton'], made['xla']))
  for a, b in zip(found, expected, strict=True):
    assert a.shape == b.shape and a.dtype == b.dtype
    assert_close(a, b)


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
@pytest.mark.parametrize('seed', [None, 3])
def test_updates_of_16_bit_tables(dtype, seed):
  """One gradient an id, so that both backends round the same sums."""
  table = inputs(100, dtype)['table']
  rng = np.random.default_rng(1)
  grads = jnp.asarray(rng.normal(size=(9, 100)), jnp.float32)
  ids = jnp.int32([7, 3, 22, 1, 0, 9, 23, 30, 11])
  found, expected = (
    jax.jit(
      lambda ids, name=name: api.embedding_bag_backward_and_update(
        table, {}, ids, None, grads, learning_rate=0.125, optimizer='sgd',
        stochastic_rounding_seed=seed, implementation=name,
      )[0]
    )(ids)
    for name in ('triton', 'xla')
  )  # fmt: skip
  assert np.asarray(found).tobytes() == np.asarray(expected).tobytes()


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_rounding_by_chance_has_the_bits_of_all_backends(dtype):
  rounding = jagged_embedding_rounding_test
  rounding.test_by_chance_as_defined('triton', dtype)
  rounding.test_to_the_nearest_as_numpy('triton', dtype)
  rounding.test_rounding_does_not_depend_on_where_a_row_lies('triton', dtype)


def test_what_backends_have_in_common():
  lookups, updates = jagged_embedding_test, jagged_embedding_update_test
  lookups.test_merge_rows_leaves_out_what_is_no_row('triton')
  lookups.test_nothing_to_do('triton')
  lookups.test_one_long_bag_among_many_empty_ones('triton')
  updates.test_update_after_a_gather('triton')


def test_groups_are_moved_by_xla():
  rules = [Rule('sgd'), Rule('sgd', max_norm=0.5)]
  found, expected = (
    api.update_rows(
      jnp.ones((4, 2)), {}, jnp.int32([0, 2, 3]), jnp.ones((3, 2)),
      optimizer=rules, learning_rate=[0.25, 0.125],
      groups=jnp.int32([0, 0, 1]), implementation=name,
    )[0]
    for name in ('triton', 'xla')
  )  # fmt: skip
  np.testing.assert_array_equal(found, expected)


def test_rows_wider_than_a_tile(interpreted):
  """Columns go to several programs; those that move rows have them all."""
  tiles = {16: gpu_plan.Tile(2, 2, 1)}
  every = dict.fromkeys(gpu_plan.ROW_KERNELS, tiles)
  with interpreted.context() as patch:
    patch.setitem(gpu_plan.TUNED, 'tiles', every)
    test_bags(40, 'float32', False)
    test_merged_gradients(40, True)
    test_gather(40, 'float32')
    test_updates_of_16_bit_tables('bfloat16', 3)


def test_the_same_bits_again():
  case = inputs(5)
  results = []
  for _ in range(2):
    new, state = api.embedding_bag_backward_and_update(
      case['table'], api.init_slots(case['table'], 'adagrad'), case['ids'],
      case['lengths'], case['grads'], learning_rate=RATE, optimizer='adagrad',
      implementation='triton',
    )  # fmt: skip
    results.append([np.asarray(x).tobytes() for x in (new, *state.values())])
  assert results[0] == results[1]


def test_in_a_loop_each_step_moves_the_rows_of_the_last():
  case = inputs(5)

  def steps(name):
    def step(_, state):
      return api.embedding_bag_backward_and_update(
        *state, case['ids'], case['lengths'], case['grads'],
        learning_rate=RATE, optimizer='row_adagrad', implementation=name,
      )  # fmt: skip

    start = case['table'], api.init_slots(case['table'], 'row_adagrad')
    return jax.jit(lambda state: jax.lax.fori_loop(0, 3, step, state))(start)

  found, expected = map(jax.tree.leaves, (steps('triton'), steps('xla')))
  for a, b in zip(found, expected, strict=True):
    assert_close(a, b)


def compile_ahead(interpreted, *words: str) -> str:
  """What the compile benchmark says, which must be content."""
  with interpreted.context() as patch:
    patch.delenv('TRITON_INTERPRET', raising=False)
    command = [sys.executable, '-m', 'benchmarks.aot_compile_embedding']
    done = subprocess.run(
      [*command, '--smoke', *words], capture_output=True, text=True
    )
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stdout


def test_kernels_compile_for_gpus(interpreted):
  """Also the update by each optimizer: a Triton may refuse the source."""
  said = compile_ahead(interpreted)
  for name in (*rules.OPTIMIZERS, 'bfloat16', 'float16'):
    for kernel in ('update_runs', 'update_rows'):
      assert f'parsed, {name}: {kernel}' in said


@pytest.mark.skipif(
  not importlib.util.find_spec('jax_triton')
  or not any(importlib.util.find_spec(f'jax_cuda{n}_plugin') for n in (12, 13)),
  reason='needs jax-triton and the CUDA plugin of JAX, without a GPU',
)
def test_xla_moves_a_donated_table_where_it_lies(interpreted):
  assert 'bag_update in a loop' in compile_ahead(interpreted, '--xla')


def test_what_a_program_makes_anew():
  """Lines as XLA writes them; the table is `[9,4]`, a slot `[9]`."""
  text = """
  %arg.1 = (s32[], f32[9,4]{1,0}) parameter(0)
  %copy.2 = s32[] copy(%constant.1)
  %get-tuple-element.3 = f32[9,4]{1,0} get-tuple-element(%arg.1), index=1
  %copy.4 = f32[9,4]{1,0} copy(%get-tuple-element.3)
  %copy-start.5 = (f32[9]{0}, f32[9]{0}, u32[]) copy-start(%state.1)
  ROOT %fusion.6 = f32[9,4]{0,1} fusion(%copy.4), kind=kLoop, calls=%some
  %fusion.7 = f32[9,40]{1,0} fusion(%copy.4), kind=kLoop, calls=%some
  %call.8 = (f32[9,4]{1,0}, f32[9]{0}, f32[1]{0}) custom-call(%a, %b, %c), \
custom_call_target="x", output_to_operand_aliasing={{0}: (1, {}), {1}: (2, {})}
  """
  made = aot_compile_embedding.find_copies(text, [(9, 4), (9,)])
  assert made == ['copy.4', 'copy-start.5', 'fusion.6']
  assert aot_compile_embedding.count_aliases(text) == 2
