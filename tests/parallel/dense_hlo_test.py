"""What a mode promises, read from the compiled step: wire and memory."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

from benchmarks import hlo
from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.parallel.buckets import assign_buckets
from genrec_jax.parallel.dense import DenseOptions
from tests.parallel import toy_mlp

pytestmark = pytest.mark.usefixtures('optax_promotes')

WIDTH, LAYERS = 32, 3
ADAM = optax.adam(0.01)
KERNEL = 4 * WIDTH * WIDTH
WHOLE = LAYERS * 4 * WIDTH + 4  # biases and the scale, [1] in a bucket
FSDP = DenseOptions('fsdp', toy_mlp.RULES, 'bfloat16')


def compiled(dense, micro=1, tx=optax.sgd(0.1), **size):
  size = size or dict(width=WIDTH, layers=LAYERS)
  mesh = mesh_lib.make_mesh(2, 2)
  return toy_mlp.compiled(
    dense, tx, mesh, micro=micro, options=hlo.BARRIERS_KEPT, **size
  )


def wire(program, op):
  """The collectives of a kind, without scalars (XLA lets them travel along)."""
  found = []
  for c in hlo.find_collectives(program):
    arrays = tuple((dtype, dims) for dtype, dims in c.shapes if dims)
    if c.op == op and arrays:
      found.append(dataclasses.replace(c, shapes=arrays))
  return found


def count(found):
  return sum(c.count for c in found)


def test_buckets_start_with_the_last_leaf():
  assert assign_buckets([3, 4, 2, 9, 1], 6) == [[4, 3], [2, 1], [0]]
  assert assign_buckets([3, 4, 2], 1) == [[2], [1], [0]]
  assert assign_buckets([3, 4, 2], 100) == [[2, 1, 0]]
  assert assign_buckets([], 100) == []


@pytest.mark.parametrize('limit, micro', [(25 << 20, 1), (KERNEL, 4), (1, 4)])
def test_ddp_sums_once_a_bucket(limit, micro):
  program = compiled(DenseOptions(bucket_bytes=limit), micro)
  leaves = jax.tree.leaves(toy_mlp.init(WIDTH, LAYERS))
  expected = len(assign_buckets([4 * x.size for x in leaves], limit))
  sums = wire(program, 'all-reduce')
  assert count(sums) == expected
  in_all = sum(c.count * c.bytes_result for c in sums)
  assert in_all == LAYERS * KERNEL + WHOLE
  assert {c.computation for c in sums} == {hlo.ENTRY}, 'reduced in the loop'
  assert {c.groups for c in sums} == {(tuple(range(8)),)}
  assert {c.op for c in hlo.find_collectives(program)} == {'all-reduce'}


@pytest.mark.parametrize(
  'way',
  [
    DenseOptions('grad_op', toy_mlp.RULES),
    dataclasses.replace(FSDP, keep_gathered=True),
  ],
)
def test_shards_are_gathered_and_scattered_once_a_step(way):
  """However many microbatches there are."""
  program = compiled(way, micro=4)
  scattered = wire(program, 'reduce-scatter')
  gathered = wire(program, 'all-gather')
  assert count(scattered) == count(gathered) == LAYERS
  every = scattered + gathered
  assert {c.computation for c in every} == {hlo.ENTRY}
  assert {c.group_size for c in every} == {8}
  assert {(c.dtype, c.bytes_result) for c in scattered} == {
    ('f32', KERNEL // 8)
  }
  # The masters of grad_op travel whole, those of fsdp as bfloat16 bits.
  bits = {'grad_op': ('f32', KERNEL), 'fsdp': ('u16', KERNEL // 2)}[way.mode]
  assert {(c.dtype, c.bytes_result) for c in gathered} == {bits}
  # Biases and the scale, in one bucket.
  assert [c.bytes_result for c in wire(program, 'all-reduce')] == [WHOLE]


@pytest.mark.parametrize('micro', [1, 4])
def test_fsdp_gathers_again_in_the_backward_pass(micro):
  program = compiled(FSDP, micro)
  gathered = wire(program, 'all-gather')
  scattered = wire(program, 'reduce-scatter')
  # The input of the first layer has no gradient: its kernel is read once.
  assert count(gathered) == 2 * LAYERS - 1
  assert count(scattered) == LAYERS
  assert {c.dtype for c in gathered} == {'u16'}
  sent = sum(hlo.sent_bytes(c) for c in gathered)
  assert sent == (2 * LAYERS - 1) * KERNEL / 2 * 7 / 8
  assert sum(hlo.sent_bytes(c) for c in scattered) == LAYERS * KERNEL * 7 / 8
  # A loop gathers in its body, so that the model is not kept through it.
  where = {c.computation == hlo.ENTRY for c in gathered + scattered}
  assert where == {micro == 1}


def test_hybrid_stays_inside_a_host_but_for_a_sum_of_shards():
  program = compiled(DenseOptions('hybrid', toy_mlp.RULES, keep_gathered=True))
  hosts = tuple((2 * i, 2 * i + 1) for i in range(4))
  for op in ('all-gather', 'reduce-scatter'):
    assert {c.groups for c in wire(program, op)} == {hosts}
  across = {c.groups: c for c in wire(program, 'all-reduce')}
  shards = across[((0, 2, 4, 6), (1, 3, 5, 7))]
  assert shards.bytes_result == LAYERS * KERNEL // 2
  assert across[(tuple(range(8)),)].bytes_result == WHOLE


def test_memory():
  """Arguments are 1/W, and gathering again leaves room for the model."""
  width, layers = 256, 6
  kernel = 4 * width * width
  kept = dataclasses.replace(FSDP, keep_gathered=True)
  memory = {
    name: compiled(way, tx=ADAM, width=width, layers=layers).memory_analysis()
    for name, way in (('kept', kept), ('again', FSDP))
  }
  # Parameters and two moments; biases and a batch are small beside them.
  part = 3 * layers * kernel / 8
  small = 3 * layers * 4 * width + toy_mlp.EXAMPLES * 4 * (width + 2)
  for each in memory.values():
    assert 0 <= each.argument_size_in_bytes - part < 1.1 * small
  held = layers * kernel // 2  # the model in bfloat16
  saved = memory['kept'].temp_size_in_bytes - memory['again'].temp_size_in_bytes
  assert saved > held / 2
  assert memory['again'].temp_size_in_bytes < 2 * held


def test_the_options_of_accelerators_change_no_number():
  mesh = mesh_lib.make_mesh(2, 2)
  batch = toy_mlp.cut(toy_mlp.batch(0), mesh)
  losses = []
  for options in (None, hlo.BARRIERS_KEPT):
    params, state, step = toy_mlp.trainer(FSDP, optax.sgd(0.1), mesh)
    run = step.lower(params, state, batch).compile(options)
    params, _, loss, _ = run(params, state, batch)
    losses.append((float(loss), np.asarray(params['layer_1']['kernel'])))
  assert losses[0][0] == losses[1][0]
  np.testing.assert_array_equal(losses[0][1], losses[1][1])
