"""The real TPU compiler takes the embedding kernels: `pytest -m aot_tpu`.

Needs the libtpu wheel and no TPU, as aot_tpu_test.py does. Each call must also
change its table where it lies. Few ids: the compiler takes long for a sort.
"""

import jax
import pytest

from benchmarks import aot_compile
from benchmarks import aot_compile_tpu_embedding as embedding
from genrec_jax.parallel import slices
from pallas_kernels.jagged_embedding import api
from pallas_kernels.jagged_embedding.rules import OPTIMIZERS
from pallas_kernels.jagged_embedding.spec import Rule
from tests.kernels.jagged_embedding_groups_test import OPTIONS
from tests.kernels.tpu_embedding_test import DIM, DTYPES, RULES

pytestmark = [
  pytest.mark.aot_tpu,
  pytest.mark.skipif(
    slices.why_not() is not None, reason=str(slices.why_not())
  ),
  # JAX warns that the installed TPU library finds no TPU.
  pytest.mark.filterwarnings('ignore'),
]
# A table that XLA cannot move into the fast memory; rows are even, no more.
SIZES = 2_000_002, 200, 1000


def shape(size, dtype='float32'):
  return jax.ShapeDtypeStruct(size, dtype)


def check(chip, call):
  row = embedding.measure(chip, 'pallas_tpu', call)
  print(chip, row)
  assert row['compiled'] and 'error' not in row, row


@pytest.mark.parametrize('width', [128, 384])
@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('op', ['gather', 'embedding_bag', 'bag_row_gradient'])
@pytest.mark.parametrize('chip', aot_compile.CHIPS)
def test_lookups(chip, op, dtype, width):
  check(chip, embedding.lookup(op, dtype, width, SIZES))


@pytest.mark.parametrize('name', RULES)
@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('chip', aot_compile.CHIPS)
def test_updates(chip, dtype, name):
  check(chip, embedding.update(RULES[name], dtype, 128, SIZES))


@pytest.mark.parametrize('name', ['row_adagrad', 'row_adam'])
@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('chip', aot_compile.CHIPS)
def test_updates_of_whole_lines(chip, dtype, name):
  # Nothing is put back after the kernel, whose results are the program's.
  sizes = 1 << 21, *SIZES[1:]
  check(chip, embedding.update(Rule(name), dtype, 128, sizes))


@pytest.mark.parametrize('width', [256, 1024])
@pytest.mark.parametrize('chip', aot_compile.CHIPS)
def test_updates_of_wide_rows(chip, width):
  sizes = 400_000, *SIZES[1:]  # three such arrays fit a v5e
  for dtype in DTYPES:
    check(chip, embedding.update(RULES['lamb'], dtype, width, sizes))


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('chip', aot_compile.CHIPS)
def test_weights(chip, dtype):
  rows, bags, count = SIZES
  table, ids, lengths, grads, weights = (
    shape((rows, DIM), dtype), shape((count,), 'int32'),
    shape((bags,), 'int32'), shape((bags, DIM)), shape((count,)),
  )  # fmt: skip

  def run(program, table, ids, lengths, grads, weights):
    options = dict(weights=weights, mode='mean', implementation=program)
    return (
      api.embedding_bag(table, ids, lengths, **options),
      api.bag_row_gradient(grads, ids, lengths, rows, **options),
    )

  arguments = table, ids, lengths, grads, weights
  check(chip, embedding.Call(run, arguments, 1, False, 0))


@pytest.mark.parametrize('optimizer', OPTIMIZERS)
@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('chip', aot_compile.CHIPS)
def test_groups(chip, dtype, optimizer):
  """Every number by group, rows and columns numbered, counts of rows."""
  row_count = 'count' in OPTIMIZERS[optimizer].slots
  rules = [
    Rule(optimizer, **options, row_count=row_count) for options in OPTIONS
  ]
  rows, _, count = SIZES
  table = shape((rows, DIM), dtype)
  slots = jax.eval_shape(lambda table: api.init_slots(table, rules[0]), table)
  numbers = shape((count,), 'int32')

  def run(program, table, slots, ids, groups, numbers, grads, rates):
    return api.update_rows(
      table, slots, ids, grads, optimizer=rules, learning_rate=rates,
      groups=groups, row_numbers=numbers, first_column=numbers,
      stochastic_rounding_seed=3, implementation=program,
    )  # fmt: skip

  rates = shape((len(rules),))
  grads = shape((count, DIM))
  arguments = table, slots, numbers, numbers, numbers, grads, rates
  check(chip, embedding.Call(run, arguments, 2, True, 0))


@pytest.mark.parametrize('dtype', DTYPES)
def test_where_64_bits_are_switched_on(dtype):
  with jax.enable_x64(True):
    check('v5e', embedding.lookup('embedding_bag', dtype, DIM, SIZES))
    check('v5e', embedding.update(RULES['row_lamb'], dtype, DIM, SIZES))


@pytest.mark.parametrize('rows', [100, 1 << 20])
@pytest.mark.parametrize('dtype', DTYPES)
def test_slots_of_less_than_a_line_and_of_whole_ones(dtype, rows):
  call = embedding.update(RULES['row_adam'], dtype, DIM, (rows, *SIZES[1:]))
  # XLA may bring a small table into the fast memory.
  assert embedding.measure('v5e', 'pallas_tpu', call)['compiled']


def test_the_benchmark(capsys):
  embedding.main(['--smoke'])
  assert 'v5e/sgd/float32/128/pallas_tpu' in capsys.readouterr().out
