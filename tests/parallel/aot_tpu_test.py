"""The real TPU compiler keeps the promises of each mode: `pytest -m aot_tpu`.

Needs the libtpu wheel and no TPU, see benchmarks/aot_compile.py. Nothing runs.
"""

import dataclasses

import jax
import optax
import pytest

from benchmarks import hlo
from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.parallel import slices
from genrec_jax.parallel.buckets import assign_buckets
from genrec_jax.parallel.dense import DenseOptions
from tests.parallel import toy_mlp

pytestmark = [
  pytest.mark.aot_tpu,
  pytest.mark.usefixtures('optax_promotes'),
  pytest.mark.skipif(
    slices.why_not() is not None, reason=str(slices.why_not())
  ),
  # JAX warns that the installed TPU library finds no TPU.
  pytest.mark.filterwarnings('ignore'),
]
WIDTH, LAYERS = 4096, 12  # more than fits into the fast memory of a chip
KERNEL = 4 * WIDTH * WIDTH
RULES = (('.*/kernel', 0), ('.*', None))
FSDP = DenseOptions('fsdp', RULES, 'bfloat16', 'bfloat16')


def compiled(dense, micro=1, layers=LAYERS):
  mesh = mesh_lib.arrange(slices.find_chips('v5e:4x2'), 2, 2, 2)
  program = toy_mlp.compiled(
    dense, optax.adam(0.01), mesh, micro=micro, width=WIDTH, layers=layers
  )
  found = {}
  for c in hlo.find_collectives(program):
    if c.bytes_result >= KERNEL / 16:
      found.setdefault(c.op, []).append(c)
  memory = program.memory_analysis()
  print(dense.mode, memory.argument_size_in_bytes, memory.temp_size_in_bytes)
  return found, memory


def total(found):
  return sum(c.count for c in found), sum(hlo.sent_bytes(c) for c in found)


def test_ddp_sums_once_a_bucket():
  layers = 4
  found, _ = compiled(DenseOptions(bucket_bytes=2 * KERNEL), 4, layers)
  assert list(found) == ['all-reduce']
  leaves = jax.tree.leaves(jax.eval_shape(lambda: toy_mlp.init(WIDTH, layers)))
  sizes = [4 * x.size for x in leaves]
  large = [b for b in assign_buckets(sizes, 2 * KERNEL) if len(b) > 1]
  assert total(found['all-reduce'])[0] == len(large) == layers / 2
  assert {c.computation for c in found['all-reduce']} == {hlo.ENTRY}


@pytest.mark.parametrize('micro', [1, 4])
def test_fsdp(micro):
  found, again = compiled(FSDP, micro)
  gathers = 2 * LAYERS - 1
  assert total(found['all-gather']) == (gathers, gathers * KERNEL / 2 * 7 / 8)
  scattered = total(found['reduce-scatter'])
  assert scattered == (LAYERS, LAYERS * KERNEL / 2 * 7 / 8)
  assert {c.dtype for c in found['reduce-scatter']} == {'bf16'}
  everything = found['all-gather'] + found['reduce-scatter']
  assert {c.computation == hlo.ENTRY for c in everything} == {micro == 1}
  found, kept = compiled(dataclasses.replace(FSDP, keep_gathered=True), micro)
  assert total(found['all-gather'])[0] == LAYERS
  assert total(found['reduce-scatter'])[0] == LAYERS
  # Part of the model is kept in the fast memory, which is not counted.
  saved = kept.temp_size_in_bytes - again.temp_size_in_bytes
  assert saved > LAYERS * KERNEL / 2 / 4
