"""Slices of TPUs that are not there, to compile for."""

import functools
import importlib.util
import os
import pathlib

from jax.experimental import topologies


def why_not() -> str | None:
  """Says why nothing can be compiled for a TPU here, None where it can."""
  if importlib.util.find_spec('libtpu') is None:
    return (
      'the compiler for TPUs is not installed: pip install --no-deps libtpu, '
      'in the version that jax[tpu] of this JAX names.'
    )
  return None


@functools.cache
def find_chips(name: str) -> tuple:
  """The devices of a slice, such as 'v5e:4x4', in their order.

  Args:
    name: the chip, and how many stand along each side.

  Raises:
    ValueError: there is no slice of this name.
  """
  # The library must not look for the machine of a TPU, there is none; the
  # path, since JAX looks for the wheel only where it may use the TPU.
  import libtpu

  library = pathlib.Path(libtpu.__file__).parent / 'libtpu.so'
  for variable, value in {
    'TPU_LIBRARY_PATH': str(library),
    'TPU_SKIP_MDS_QUERY': '1',
    'TPU_WORKER_HOSTNAMES': 'localhost',
    'TPU_ACCELERATOR_TYPE': 'v5litepod-4',
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',  # no TPU to quarrel about
  }.items():
    os.environ.setdefault(variable, value)
  try:
    return tuple(topologies.get_topology_desc(name, 'tpu').devices)
  except Exception as e:  # of the library, which has no class of its own
    first = str(e).splitlines()[0]
    raise ValueError(
      f'{name!r} is no slice of TPUs that can be compiled for, as '
      f"'v5e:4x4' and 'v5p:2x2x2' are ({first})"
    ) from None
