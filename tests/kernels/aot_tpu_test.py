"""The real TPU compiler takes the kernels: `pytest -m aot_tpu`.

Needs the libtpu wheel (`pip install --no-deps libtpu`, the version that
jax[tpu] names) and no TPU. Minutes long; prints what memory each needs.
"""

import dataclasses

import jax.numpy as jnp
import pytest

from benchmarks import aot_compile
from genrec_jax.parallel import slices
from pallas_kernels.hstu_attention import shapes
from tests.kernels import attention_cases as cases

pytestmark = [
  pytest.mark.aot_tpu,
  pytest.mark.skipif(
    slices.why_not() is not None, reason=str(slices.why_not())
  ),
  # JAX warns that the installed TPU library finds no TPU.
  pytest.mark.filterwarnings('ignore'),
]
DROPOUT = dict(dropout=0.3, dropout_seed=jnp.uint32(11))


def check(chip, arguments):
  both = aot_compile.program(arguments, 'forward+backward')
  row = aot_compile.compiled(chip, *both)
  print(chip, row)
  assert row['compiled'], row


@pytest.mark.parametrize('dtype', aot_compile.DTYPES)
@pytest.mark.parametrize('mode', ('silu', 'softmax'))
@pytest.mark.parametrize('masks', [(), tuple(cases.MASKS)], ids=['', 'masks'])
@pytest.mark.parametrize('chip', aot_compile.CHIPS)
def test_every_option(chip, masks, mode, dtype):
  check(chip, cases.masked(*masks, dtype=dtype) | dict(mode=mode, **DROPOUT))


@pytest.mark.parametrize('name', aot_compile.SHAPES)
@pytest.mark.parametrize('chip', aot_compile.CHIPS)
def test_shapes_of_models(chip, name):
  check(chip, shapes.inputs(aot_compile.SHAPES[name], dtype='bfloat16'))


@pytest.mark.parametrize(
  'heads, dqk, dv',
  [(5, 1, 3), (5, 25, 130), (5, 256, 256), (3, 64, 64), (12, 32, 16)],
)
@pytest.mark.parametrize('chip', aot_compile.CHIPS)
def test_widths_that_fill_no_register(chip, heads, dqk, dv):
  shape = dataclasses.replace(cases.SHAPE, heads=heads, dqk=dqk, dv=dv)
  check(chip, shapes.inputs(shape, sizes=[60, 1, 40]))
