"""Compiles the step of a config for devices that need not be there.

The planner adds up what tables, batches and parameters take. What a program
needs beside them is known to the compiler alone, which needs no device to tell
it: for TPUs it is the library of the libtpu wheel.
"""

import dataclasses
import itertools
import math
import time

import jax
import numpy as np

from genrec_jax.config import ConfigError
from genrec_jax.contracts import Extensions, RunData, Task
from genrec_jax.data import devices as devices_lib
from genrec_jax.formatting import format_bytes
from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.parallel import slices
from genrec_jax.planner import hardware
from genrec_jax.runtime import planning
from genrec_jax.runtime.mesh import MeshRuntime
from genrec_jax.train import experiment
from pallas_kernels import dispatch

HERE = 'here'
_BATCHES = 8  # of which the one with most bytes is compiled for


@dataclasses.dataclass(frozen=True)
class CompiledStep:
  """What a device needs for a training step, by the compiler; `str` is text.

  Attributes:
    slice: for which was compiled.
    kind: of its devices, as JAX calls it.
    devices: how many.
    batch: examples of a step.
    arguments: bytes of the state and of a batch.
    temporary: bytes that the program needs beside them.
    memory: bytes of a device, 0 where nobody says it.
    compile_s: how long it took.
  """

  slice: str
  kind: str
  devices: int
  batch: int
  arguments: int
  temporary: int
  memory: int
  compile_s: float

  def __str__(self) -> str:
    together = self.arguments + self.temporary
    lines = [
      f'compiled for {self.slice}: {self.devices} x {self.kind}, '
      f'{self.batch:,} examples a step, in {self.compile_s:,.0f} s',
      f'  state and batch  {format_bytes(self.arguments)} a device',
      f'  beside them      {format_bytes(self.temporary)}',
      f'  together         {format_bytes(together)}',
    ]
    if self.memory:
      lines[-1] += (
        f' of {format_bytes(self.memory)} ({together / self.memory:.1%})'
      )
      if together > self.memory:
        lines.append('  which does not fit')
    return '\n'.join(lines)


def compile_step(
  config,
  data: RunData,
  task: Task,
  name: str,
  extensions: Extensions | None = None,
) -> CompiledStep:
  """Compiles a training step, and asks what it needs.

  Args:
    config: of the experiment; `parallel` says the mesh.
    data: of the experiment, whose first batches say how long batches are.
    task: what is trained.
    name: of a slice of TPUs, as 'v5p:4x4x4', or `HERE` for what there is.
    extensions: what the run uses from outside the library.

  Raises:
    ConfigError: the config cannot be compiled for this slice.
  """
  if config.parallel.pipeline != 'none':
    raise ConfigError(
      f'parallel.pipeline={config.parallel.pipeline} makes two programs of a '
      'step; --compile_for takes one: set parallel.pipeline=none'
    )
  shape = planning.mesh_shape(config)
  devices = _find_devices(name, shape)
  config, tx = experiment.build_optimizer(config, data)
  mesh = mesh_lib.arrange(devices, **shape)
  kind = devices[0].device_kind
  # JAX calls the GPUs of all vendors alike; what is compiled for them differs.
  platform = dispatch.platform() if name == HERE else devices[0].platform
  capability = dispatch.compute_capability() if name == HERE else None
  with dispatch.compiling_for(platform, kind, capability):
    runtime = MeshRuntime(config, task, tx, extensions, mesh=mesh)
    batch = _describe_batch(config, data, runtime)
    began = time.monotonic()
    traced = runtime.step().trace(runtime.abstract_state(), batch)
    lowered = traced.lower(lowering_platforms=(platform,))
    try:
      memory = lowered.compile().memory_analysis()
    except jax.errors.JaxRuntimeError as e:
      raise ConfigError(
        f'the step cannot be compiled for {name}: {str(e).splitlines()[0]}'
      ) from e
  return CompiledStep(
    name,
    kind,
    len(devices),
    config.train.batch_size,
    memory.argument_size_in_bytes,
    memory.temp_size_in_bytes,
    _find_memory(config, shape, name),
    time.monotonic() - began,
  )


def _find_devices(name: str, shape: dict) -> list:
  """As many devices as the mesh has."""
  wanted = math.prod(shape.values())
  if name == HERE:
    found, take = jax.devices(), '--fake_devices, or other sizes'
  elif missing := slices.why_not():
    raise ConfigError(f'--compile_for={name}: {missing}')
  else:
    try:
      found, take = slices.find_chips(name), 'another slice, or other sizes'
    except ValueError as e:
      raise ConfigError(f'--compile_for: {e}') from None
  if len(found) < wanted or name != HERE and len(found) != wanted:
    raise ConfigError(
      f'--compile_for={name} has {len(found)} devices, and '
      f'{planning.describe_mesh(shape)} make {wanted}; take {take}'
    )
  return list(found)[:wanted]


def _describe_batch(config, data: RunData, runtime):
  """Shapes of the largest of some batches, split over the mesh."""
  source = data.train_batches(config, runtime, lambda: True, lambda *_: None)
  first = list(itertools.islice(iter(source), _BATCHES))
  largest = max(
    first, key=lambda batch: sum(x.nbytes for x in jax.tree.leaves(batch))
  )
  own = len(devices_lib.own_shards(runtime.mesh))
  shards = mesh_lib.count_shards(runtime.mesh)
  split = mesh_lib.batch_sharding(runtime.mesh)

  def describe(local: np.ndarray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(
      (len(local) // own * shards, *local.shape[1:]),
      jax.dtypes.canonicalize_dtype(local.dtype),
      sharding=split,
    )

  return jax.tree.map(describe, largest)


def _find_memory(config, shape: dict, name: str) -> int:
  """Bytes of a device, by the config or else by the name of the slice."""
  if config.parallel.topology or config.parallel.memory_gb:
    return planning.load_topology(config, shape).memory
  known = hardware.PRESETS.get(name.partition(':')[0])
  return known.memory if known else 0
