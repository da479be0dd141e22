"""Collectives as they stand in HLO text, in all the forms XLA prints."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from benchmarks import hlo
from genrec_jax.parallel import mesh as mesh_lib

HEADER = 'HloModule jit_f, is_scheduled=true, num_partitions=8\n'
ALL = (tuple(range(8)),)


def only(line, header=HEADER):
  (found,) = hlo.find_collectives(
    header + 'ENTRY %main (a: f32[8]) -> f32[8] {\n' + line
  )
  return found


@pytest.mark.parametrize(
  'line, op, dtype, shape, size, groups, sent',
  [
    (
      '%all-reduce.1 = f32[8,4]{1,0} all-reduce(%a), replica_groups={{0,1,2,3},'
      '{4,5,6,7}}, to_apply=%add, metadata={op_name="jit(f)/psum"}',
      'all-reduce',
      'f32',
      (8, 4),
      128,
      ((0, 1, 2, 3), (4, 5, 6, 7)),
      192.0,
    ),
    (
      'ROOT %r = (f32[3]{0}, /*index=1*/bf16[2,2]{1,0:T(8,128)(2,1)}) '
      'all-reduce(%a, %b), channel_id=1, replica_groups={}, to_apply=%add',
      'all-reduce',
      'bf16+f32',
      ((3,), (2, 2)),
      20,
      ALL,
      35.0,
    ),
    (
      '%g = (u16[1,4]{1,0}, u16[8,4]{1,0:S(5)}) all-gather-start(%a), '
      'replica_groups=[1,8]<=[8], dimensions={0}',
      'all-gather',
      'u16',
      (8, 4),
      64,
      ALL,
      56.0,
    ),
    (
      '%g = ((f32[1], s8[2]), (f32[2], s8[4])) all-gather-start(%a, %b), '
      'replica_groups=[4,2]<=[8], dimensions={0}',
      'all-gather',
      'f32+s8',
      ((2,), (4,)),
      12,
      ((0, 1), (2, 3), (4, 5), (6, 7)),
      6.0,
    ),
    (
      '%s = f32[2]{0} reduce-scatter(%a), replica_groups=[2,4]<=[4,2]T(1,0)',
      'reduce-scatter',
      'f32',
      (2,),
      8,
      ((0, 2, 4, 6), (1, 3, 5, 7)),
      24.0,
    ),
    (
      '%s = ((f32[16]{0}), f32[2]{0}) reduce-scatter-start(%a), '
      'replica_groups=[1,8]<=[8], dimensions={0}',
      'reduce-scatter',
      'f32',
      (2,),
      8,
      ALL,
      56.0,
    ),
    (
      '%t = (s8[4]{0}, s8[4]{0}) all-to-all(%a, %b), '
      'replica_groups={{0,4},{1,5},{2,6},{3,7}}',
      'all-to-all',
      's8',
      ((4,), (4,)),
      8,
      ((0, 4), (1, 5), (2, 6), (3, 7)),
      4.0,
    ),
    (
      '%t = f8e4m3fn[8,4]{1,0} all-to-all(%a), replica_groups=[1,8]<=[8], '
      'dimensions={0}',
      'all-to-all',
      'f8e4m3fn',
      (8, 4),
      32,
      ALL,
      28.0,
    ),
    (
      '%p = (f32[4]{0}, f32[4]{0}, u32[], u32[]) collective-permute-start(%a), '
      'source_target_pairs={{0,1},{1,0}}',
      'collective-permute',
      'f32',
      (4,),
      16,
      ((0, 1), (1, 0)),
      16.0,
    ),
    (
      '%q = bf16[64,8]{1,0} ragged-all-to-all(%a, %b, %c, %d, %e, %f), '
      'replica_groups={{0,1,2,3,4,5,6,7}}',
      'ragged-all-to-all',
      'bf16',
      (64, 8),
      1024,
      ALL,
      896.0,
    ),
    (
      '%t = s4[3]{0:E(4)} all-to-all(%a), replica_groups={{0}}, dimensions={0}',
      'all-to-all',
      's4',
      (3,),
      2,
      ((0,),),
      0.0,
    ),
  ],
)
def test_a_form(line, op, dtype, shape, size, groups, sent):
  found = only('  ' + line + '\n')
  assert (found.op, found.dtype, found.shape) == (op, dtype, shape)
  assert found.bytes_result == size and found.groups == groups
  assert found.group_size == len(groups[0]) and found.count == 1
  assert found.computation == hlo.ENTRY
  assert hlo.sent_bytes(found) == sent


def test_what_is_not_a_collective_or_its_second_half():
  text = (
    HEADER
    + '''
%body (a: f32[8]) -> f32[8] {
  %d = f32[8]{0} all-reduce-done(%all-reduce-start.1)
  %e = f32[8]{0} add(%all-reduce.4, %all-gather.2)
  %f = f32[8]{0} fusion(%all-to-all.4), calls=%all-reduce.clone
}
'''
  )
  assert hlo.find_collectives(text) == []


FUSED = """
%step.{} (p: u16[2]) -> u16[4] {{
  %g.{} = u16[4]{{0:T(256)S(1)}} all-gather(%p), replica_groups={{}}, \
frontend_attributes={{chain_id="{}"}}
}}
"""


def test_a_collective_that_runs_beside_fusions_is_counted_once():
  """On a TPU every fusion of the chain repeats it."""
  text = HEADER + ''.join(FUSED.format(i, i, i // 3) for i in range(6))
  for name, start in (('%body', 0), ('ENTRY %main', 3)):
    text += name + ' (a: u16[2]) -> u16[4] {\n'
    for i in range(start, start + 3):
      text += f'  %f.{i} = u16[4]{{0}} fusion(%a), calls=%step.{i}\n'
    text += '}\n'
  found = hlo.find_collectives(text)
  assert [(c.computation, c.count) for c in found] == [
    ('body', 1),
    ('ENTRY', 1),
  ]
  assert found[0].bytes_result == 8 and found[0].groups == ALL


def test_what_is_not_understood_is_an_error():
  with pytest.raises(ValueError, match='groups .*not understood: %a = f32'):
    only('  %a = f32[8]{0} all-reduce(%x), replica_groups=@mesh<a=8>{a}\n')
  with pytest.raises(ValueError, match="'q7' is not known"):
    hlo.sent_bytes(only('  %a = q7[8]{0} all-gather(%x), replica_groups={}\n'))


def test_a_real_program():
  mesh = mesh_lib.make_mesh(1, 2)

  def f(x):
    def body(_, x):
      return x + jax.lax.psum(x, 'dev')

    x = jax.lax.fori_loop(0, x.shape[0] + 3, body, x)
    y = jax.lax.all_to_all(x, mesh_lib.DEVICE_GROUP, 0, 0, tiled=True)
    z = jax.lax.all_gather(jax.lax.ppermute(y, 'host', [(0, 1)]), 'host')
    return jax.lax.psum_scatter(y, 'dev', tiled=True), z[None]

  spec = P(mesh_lib.AXES)
  sharded = jax.shard_map(
    f, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
  )
  program = jax.jit(sharded).lower(jnp.zeros((64, 4))).compile()
  found = {c.op: c for c in hlo.find_collectives(program)}
  assert sorted(found) == [
    'all-gather',
    'all-reduce',
    'all-to-all',
    'collective-permute',
    'reduce-scatter',
  ]
  hosts = ((0, 1, 2, 3), (4, 5, 6, 7))
  assert found['all-reduce'].computation != hlo.ENTRY
  assert found['all-reduce'].groups == hosts
  assert found['all-to-all'].groups == ALL
  assert hlo.sent_bytes(found['all-to-all']) == 7 / 8 * 8 * 4 * 4
  assert found['reduce-scatter'].groups == hosts
  assert hlo.sent_bytes(found['reduce-scatter']) == 3 * 2 * 4 * 4
  assert found['all-gather'].groups == ((0, 4), (1, 5), (2, 6), (3, 7))
  assert found['collective-permute'].groups == ((0, 4), (1, 5), (2, 6), (3, 7))
  assert all(c.dtype == 'f32' for c in found.values())
