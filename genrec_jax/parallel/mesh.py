"""Makes the device mesh of a run and the shardings on it.

Its axes are the replica groups, each with a copy of the tables, the hosts of a
group, and the devices of a host. A batch is split over all three axes, the
tables of a model over the last two.
"""

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

AXES = ('rep', 'host', 'dev')
DEVICE_GROUP = ('host', 'dev')  # the devices that share one copy of the tables


class MeshError(ValueError):
  """A mesh that the devices at hand cannot make."""


def make_mesh(
  replicas: int = 1, hosts: int = 1, devices: int | None = None
) -> Mesh:
  """Makes a mesh with the axes `AXES`.

  If there are several processes, each contributes equally many devices, so that
  none is left without work. The devices of a process are neighbours, so a host
  of the mesh is one process if the counts allow.

  Args:
    replicas: number of replica groups.
    hosts: hosts of a replica group.
    devices: devices of a host; None to use all devices there are.

  Raises:
    MeshError: the devices cannot make such a mesh.
  """
  present = jax.devices()
  for name, count in (('replicas', replicas), ('hosts', hosts)):
    if count < 1:
      raise MeshError(f'parallel.{name} is {count}, must be at least 1')
  if devices is None:
    if len(present) % (replicas * hosts):
      raise MeshError(
        f'{len(present)} devices cannot be shared by {replicas} replicas x '
        f'{hosts} hosts: choose parallel.replicas and parallel.hosts whose '
        f'product divides {len(present)}, or set parallel.devices'
      )
    devices = len(present) // (replicas * hosts)
  if devices < 1:
    raise MeshError(f'parallel.devices is {devices}, must be at least 1')
  size = replicas * hosts * devices
  if size > len(present):
    raise MeshError(
      f'{replicas} replicas x {hosts} hosts x {devices} devices are {size}, '
      f'but there are {len(present)} devices ({jax.default_backend()}): lower '
      'parallel.replicas, parallel.hosts or parallel.devices, of which 0 takes '
      'all there are, or start more processes; --fake_devices tries a mesh on '
      'a CPU'
    )
  return arrange(_choose_devices(present, size), replicas, hosts, devices)


def arrange(chosen: Sequence, replicas: int, hosts: int, devices: int) -> Mesh:
  """A mesh of devices in their order, which need not be there.

  Args:
    chosen: as many devices as the mesh has, such as those of a topology that
      programs are compiled for.
    replicas: number of replica groups.
    hosts: hosts of a replica group.
    devices: devices of a host.
  """
  # Auto: the collectives inside `shard_map` are our own, and what is outside is
  # left to the compiler.
  return Mesh(
    np.array(chosen, dtype=object).reshape(replicas, hosts, devices),
    AXES,
    axis_types=(AxisType.Auto,) * len(AXES),
  )


def count_shards(mesh: Mesh, axes: Sequence[str] = AXES) -> int:
  """How many parts a split over `axes` makes."""
  return int(np.prod([mesh.shape[a] for a in axes], dtype=np.int64))


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """The sharding of a batch: its first dimension is split over all devices."""
  return NamedSharding(mesh, PartitionSpec(AXES))


def replicated(mesh: Mesh) -> NamedSharding:
  """The sharding of an array of which every device holds a full copy."""
  return NamedSharding(mesh, PartitionSpec())


def _choose_devices(present, count: int) -> list:
  """Takes equally many devices of each process, one process after another."""
  processes = {}
  for device in present:
    processes.setdefault(device.process_index, []).append(device)
  each, rest = divmod(count, len(processes))
  if rest or any(len(own) < each for own in processes.values()):
    counts = [len(processes[p]) for p in sorted(processes)]
    most = len(counts) * min(counts)
    raise MeshError(
      f'a mesh of {count} devices cannot take equally many of each of the '
      f'{len(processes)} processes, which have {counts}: choose '
      'parallel.replicas, parallel.hosts and parallel.devices whose product is '
      f'a multiple of {len(processes)} and at most {most}, or start another '
      'number of processes'
    )
  # Neighbours along the last axis are then of one process, whose links are the
  # fastest.
  return [d for p in sorted(processes) for d in processes[p][:each]]
