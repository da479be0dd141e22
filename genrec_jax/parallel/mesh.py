"""The mesh: groups that hold a copy of the tables, their hosts, their devices.

The only place where meshes are made. A batch is split over all three axes; the
tables of a model over the last two.
"""

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

AXES = ('rep', 'host', 'dev')
GROUP = ('host', 'dev')  # the axes over which one copy of the tables spreads


class MeshError(ValueError):
  """A mesh that the devices at hand cannot make."""


def make(replicas: int = 1, hosts: int = 1, devices: int | None = None) -> Mesh:
  """A mesh of `replicas` groups of `hosts` hosts of `devices` devices.

  With `devices=None` all devices take part. With several processes every one
  gives equally many, so that none is left without work, and a host of the mesh
  is made of one process where the counts allow.
  """
  present = jax.devices()
  for name, count in (('replicas', replicas), ('hosts', hosts)):
    if count < 1:
      raise MeshError(f'mesh.{name} is {count}, must be at least 1')
  if devices is None:
    if len(present) % (replicas * hosts):
      raise MeshError(
        f'{len(present)} devices cannot be shared by {replicas} replicas x '
        f'{hosts} hosts: choose numbers whose product divides {len(present)}, '
        'or set mesh.devices'
      )
    devices = len(present) // (replicas * hosts)
  if devices < 1:
    raise MeshError(f'mesh.devices is {devices}, must be at least 1')
  size = replicas * hosts * devices
  if size > len(present):
    raise MeshError(
      f'{replicas} replicas x {hosts} hosts x {devices} devices are {size}, '
      f'but there are {len(present)} devices ({jax.default_backend()})'
    )
  chosen = np.array(_choose(present, size), dtype=object)
  return Mesh(
    chosen.reshape(replicas, hosts, devices),
    AXES,
    axis_types=(AxisType.Auto,) * len(AXES),
  )


def shards(mesh: Mesh, axes: Sequence[str] = AXES) -> int:
  """Into how many parts something is cut that is split over `axes`."""
  return int(np.prod([mesh.shape[a] for a in axes], dtype=np.int64))


def split(mesh: Mesh) -> NamedSharding:
  """Of batches: the first dimension over all devices."""
  return NamedSharding(mesh, PartitionSpec(AXES))


def replicated(mesh: Mesh) -> NamedSharding:
  """Of what every device holds whole."""
  return NamedSharding(mesh, PartitionSpec())


def _choose(present, wanted: int) -> list:
  """Equally many devices of every process, process by process."""
  processes = {}
  for device in present:
    processes.setdefault(device.process_index, []).append(device)
  each, rest = divmod(wanted, len(processes))
  if rest or any(len(own) < each for own in processes.values()):
    counts = [len(processes[p]) for p in sorted(processes)]
    raise MeshError(
      f'a mesh of {wanted} devices cannot take equally many of each of the '
      f'{len(processes)} processes, which have {counts}'
    )
  return [d for p in sorted(processes) for d in processes[p][:each]]
