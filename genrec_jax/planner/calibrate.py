"""Measures the machine at hand for the planner.

    python -m genrec_jax.planner.calibrate --out machine.json

Rows are looked up and updated as in a training step, a large array is copied, a
list is sorted, and several devices exchange data in the three ways that plans
use. This takes seconds. The file is a topology, whose name can be used instead
of a preset.

A CPU that pretends to be several devices has one memory: what is measured is
divided among them.
"""

import argparse
import dataclasses
import functools
import os
import pathlib
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import pallas_kernels
from genrec_jax import last_resort
from genrec_jax.formatting import format_bytes
from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.planner import hardware
from genrec_jax.planner.hardware import Topology

WIDTH, BAG = 128, 16
SIZE = 64_000_000  # bytes of the table, of what is copied and of what is sent
REPEATS = 5


@dataclasses.dataclass(frozen=True)
class Bandwidths:
  """Bytes a second of one device; None where a device is alone.

  Attributes:
    lookup: rows of a pooled lookup, and the sums written.
    update: rows and slots of an update, read and written, with merging.
    copy: read and written.
    matmul: floating-point operations a second.
    sort: entries a second, of pairs of numbers that take a third along.
    exchange: what a device sends in an all_to_all, a psum_scatter and an
      all_gather.
  """

  lookup: float
  update: float
  copy: float
  matmul: float
  sort: float
  exchange: dict[str, float]


def measure_bandwidths(size: int = SIZE, repeats: int = REPEATS) -> Bandwidths:
  """Rates of the devices there are.

  Args:
    size: bytes of the arrays, all devices together on a CPU.
    repeats: calls of which the fastest counts.
  """
  devices = jax.device_count()
  shared = jax.default_backend() == 'cpu'
  rows = max(1024, size // (4 * WIDTH))
  bags = max(16, rows // 8 // BAG)
  ids = np.random.default_rng(0).integers(0, rows, bags * BAG, np.int32)
  ids, lengths = jnp.asarray(ids), jnp.full(bags, BAG, jnp.int32)
  table = jnp.ones((rows, WIDTH), jnp.float32)
  grads = jnp.ones((bags, WIDTH), jnp.float32)
  slots = pallas_kernels.init_slots(table, 'row_adagrad')
  best = functools.partial(_time_call, repeats=repeats)
  share = devices if shared else 1
  looked = (bags * BAG + bags) * WIDTH * 4
  lookup = best(jax.jit(pallas_kernels.embedding_bag), table, ids, lengths)
  distinct = len(np.unique(np.asarray(ids)))
  update = jax.jit(
    functools.partial(
      pallas_kernels.embedding_bag_backward_and_update, learning_rate=0.1
    ),
    donate_argnums=(0, 1),
  )
  state = [table, slots]

  def run_step():
    # Donated, so that the table changes in place as in training.
    state[:] = update(*state, ids, lengths, grads)
    return state[0]

  updated = best(run_step)
  copied = best(jax.jit(lambda x: x + 1.0), state[0])
  side = 1024
  square = jnp.ones((side, side), jnp.bfloat16 if not shared else jnp.float32)
  product = best(jax.jit(lambda x: x @ x), square)
  keys = ids % 8, ids, jnp.arange(len(ids), dtype=jnp.int32)
  in_order = best(jax.jit(lambda *x: jax.lax.sort(x, num_keys=2)), *keys)
  if shared:  # a sort has one thread
    in_order /= min(devices, len(os.sched_getaffinity(0)))
  return Bandwidths(
    sort=len(ids) / in_order / share,
    lookup=looked / lookup / share,
    update=2 * distinct * (WIDTH + 1) * 4 / updated / share,
    copy=2 * rows * WIDTH * 4 / copied / share,
    matmul=2 * side**3 / product / share,
    exchange=_measure_exchange(size // devices, best) if devices > 1 else {},
  )


def _measure_exchange(size: int, best) -> dict[str, float]:
  """What a device sends a second, in each way of exchange."""
  devices = jax.device_count()
  mesh = mesh_lib.make_mesh()
  axes = mesh_lib.AXES
  rows = max(1, size // (4 * WIDTH * devices)) * devices  # of a device
  x = jnp.ones((devices * rows, WIDTH), jnp.float32)
  x = jax.device_put(x, NamedSharding(mesh, P(axes)))
  sent = rows * WIDTH * 4 * (devices - 1) / devices
  ways = {
    'all_to_all': lambda x: jax.lax.all_to_all(x, axes, 0, 0, tiled=True),
    'psum_scatter': lambda x: jax.lax.psum_scatter(x, axes, tiled=True),
    # Of a part as large as what the others begin or end with.
    'all_gather': lambda x: jax.lax.all_gather(
      x[: rows // devices], axes, tiled=True
    ),
  }
  rates = {}
  for name, way in ways.items():
    sharded = jax.shard_map(
      way, mesh=mesh, in_specs=P(axes), out_specs=P(axes), check_vma=False
    )
    rates[name] = sent / best(jax.jit(sharded), x)
  return rates


def _time_call(call: Callable, *args, repeats: int) -> float:
  """The least time of a call; the first one compiles."""
  jax.block_until_ready(call(*args))
  least = float('inf')
  for _ in range(repeats):
    begun = time.perf_counter()
    jax.block_until_ready(call(*args))
    least = min(least, time.perf_counter() - begun)
  return least


def make_topology(measured: Bandwidths, name: str) -> Topology:
  """The machine at hand as the planner wants it.

  What cannot be measured here, such as the way to other hosts, is taken to be
  as fast as the exchange between devices.
  """
  devices = jax.local_device_count()
  hosts = jax.process_count()
  slowest = min(measured.exchange.values(), default=measured.copy)
  host_memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
  memory = _device_memory() or host_memory // devices
  return Topology(
    name=name,
    memory=memory,
    memory_bandwidth=measured.lookup,
    host_memory=host_memory,
    host_bandwidth=measured.copy * devices,
    intra=slowest,
    inter=slowest,
    link=measured.copy,
    flops=measured.matmul,
    utilisation=1.0,
    hosts=hosts,
    devices=devices,
    # The way back as measured, in lookups of as many bytes.
    backward=max(0.1, measured.lookup / measured.update),
    ordering=1 / measured.sort,
    half_penalty=1.0,
    quarter_penalty=1.0,
    least_width=1,
    platform=jax.default_backend(),
    source=f'measured on {hosts} x {devices} {jax.devices()[0].device_kind}',
  )


def _device_memory() -> int | None:
  """Bytes of a device, where it says so."""
  stats = jax.local_devices()[0].memory_stats()
  return stats.get('bytes_limit') if stats else None


def report_bandwidths(measured: Bandwidths, topology: Topology) -> str:
  """What was measured, for people."""
  lines = [
    f'{topology.source}, {format_bytes(topology.memory)} a device',
    f'lookup       {format_bytes(measured.lookup):>10}/s a device',
    f'row update   {format_bytes(measured.update):>10}/s',
    f'copy         {format_bytes(measured.copy):>10}/s',
    f'matmul       {measured.matmul / 1e9:>8,.1f} GFLOP/s',
    f'sort         {measured.sort / 1e6:>8,.1f} M entries/s',
  ]
  for name, rate in measured.exchange.items():
    lines.append(f'{name:12} {format_bytes(rate):>10}/s')
  return '\n'.join(lines)


def main(argv: list[str] | None = None) -> None:
  parser = argparse.ArgumentParser(
    prog='python -m genrec_jax.planner.calibrate',
    description=__doc__.partition('\n')[0],
  )
  parser.add_argument('--out', help='file for the topology', default='')
  parser.add_argument('--name', help="the topology's name", default='here')
  parser.add_argument(
    '--size', type=int, default=SIZE, help=f'bytes of the arrays ({SIZE:,})'
  )
  args = parser.parse_args(argv)
  measured = measure_bandwidths(args.size)
  machine = make_topology(measured, args.name)
  print(report_bandwidths(measured, machine))
  if args.out:
    pathlib.Path(args.out).write_text(machine.to_json() + '\n')
    hardware.find_topology(args.out)  # what was written can be read
    print(args.out)


if __name__ == '__main__':
  last_resort.run_command(main, 'measuring')
