"""What each of two processes runs in processes_test.py; prints JSON."""

import json

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

from genrec_jax.parallel import collectives, processes
from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.parallel.dense import DenseOptions
from tests.parallel import toy_mlp

MODES = {
  'ddp': DenseOptions('ddp', bucket_bytes=1000),
  'fsdp': DenseOptions('fsdp', toy_mlp.RULES),
}


def losses(dense, mesh, steps=3) -> list[float]:
  params, state, step = toy_mlp.trainer(dense, optax.adam(0.01), mesh)
  found = []
  for i in range(steps):
    batch = toy_mlp.cut(toy_mlp.batch(i), mesh)
    params, state, loss, norm = step(params, state, batch)
    found += [float(loss), float(norm)]
  return found


def main():
  words = processes.join_processes()
  mesh = mesh_lib.make_mesh(hosts=2)
  total = jax.shard_map(
    lambda: collectives.sum_over_shards(
      collectives.shard_index().astype(jnp.float32)
    ),
    mesh=mesh,
    in_specs=(),
    out_specs=P(),
    check_vma=False,
  )
  found = {
    'words': words,
    'hosts': [[d.process_index for d in host] for host in mesh.devices[0]],
    'sum': float(jax.jit(total)()),
  }
  for mode, dense in MODES.items():
    found[mode] = losses(dense, mesh)
  print(json.dumps(found))


if __name__ == '__main__':
  main()
