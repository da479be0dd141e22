"""Lowers programs for a TPU that is not there."""

import jax
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from pallas_kernels import dispatch


def lower_for_tpu(function, *arguments) -> str:
  """The StableHLO of a call, with its kernels, for a v5e."""
  device = AbstractDevice('TPU v5e', 1, 'tpu')
  mesh = AbstractMesh(
    (1,), ('x',), axis_types=(AxisType.Auto,), abstract_device=device
  )
  with (
    dispatch.compiling_for('tpu', 'TPU v5e'),
    jax.sharding.use_abstract_mesh(mesh),
  ):
    traced = jax.jit(function).trace(*arguments)
    return traced.lower(lowering_platforms=('tpu',)).as_text()
