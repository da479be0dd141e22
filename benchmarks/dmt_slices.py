"""What the steps of `benchmarks.dmt` send on a slice of a TPU, by its compiler.

Part `tpu` of `benchmarks.dmt`: 16 chips of a v5e as 4 hosts of 4, that need not
be there. XLA makes an all-reduce of a reduce-scatter on a TPU, which sends
twice the bytes; codecs within hosts send an all-to-all, and the sums are added
where they arrive.
"""

import jax

from benchmarks import hlo, multi_hot_steps, table_steps
from benchmarks.dmt_steps import (
  ALONE,
  FLAT,
  WAYS,
  Setting,
  build,
)
from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.parallel import slices
from pallas_kernels import dispatch

SLICE, MESH = 'v5e:4x4', (4, 4)
COLUMNS = (
  'case', 'count', 'near_bytes', 'far_bytes',
)  # fmt: skip


def list_settings(smoke: bool, sizes: dict) -> list[Setting]:
  """The steps that are compiled."""
  ways = (FLAT, ALONE, WAYS[-1]) if smoke else WAYS
  sizes = sizes | {"towers": MESH[0]} if smoke else {}
  return [Setting(*MESH, way, **sizes) for way in ways]


def send(setting: Setting) -> list[dict]:
  """A row for each collective of the tables, and one for their sums."""
  chips = slices.find_chips(SLICE)
  mesh = mesh_lib.arrange(chips, 1, *MESH)
  _, _, runtime = build(setting, mesh)
  split = mesh_lib.batch_sharding(mesh)
  like = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=split),
    jax.eval_shape(lambda: multi_hot_steps.batch(setting)),
  )
  with (
    dispatch.compiling_for('tpu', chips[0].device_kind),
    jax.sharding.use_abstract_mesh(mesh.abstract_mesh),
  ):
    traced = runtime.step().trace(runtime.abstract_state(), like)
    program = traced.lower(lowering_platforms=('tpu',)).compile()
  found: dict[tuple[str, str], dict] = {}
  for x in hlo.find_collectives(program):
    over = '+'.join(table_steps.name_axes(x.groups, mesh))
    key = x.op, over
    row = found.setdefault(key, {'count': 0, 'near': 0.0, 'far': 0.0})
    group, sent = x.groups[0], hlo.sent_bytes(x)
    near = sum(d // setting.on_host == group[0] // setting.on_host
               for d in group[1:])  # fmt: skip
    share = near / max(1, len(group) - 1)
    row['count'] += x.count
    row['near'] += share * sent
    row['far'] += (1 - share) * sent
  name = f'tpu {setting.mesh}/{setting.way.name}'
  return [
    {
      'case': f'{name}/{op}/{over}',
      'kind': 'tpu',
      'mesh': setting.mesh,
      'way': setting.way.name,
      'op': op,
      'over': over,
      'count': row['count'],
      'near_bytes': round(row['near']),
      'far_bytes': round(row['far']),
    }
    for (op, over), row in sorted(found.items())
  ]
