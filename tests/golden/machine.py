"""Settings and machines: what the last bits of a result depend on."""

import importlib.metadata
import pathlib
import platform
import zlib
from collections.abc import Mapping

# What tests/conftest.py sets. The old runs were made with it too: compiled
# otherwise, or on another number of devices, they would round otherwise.
SETTINGS = {
  'JAX_NUM_CPU_DEVICES': '8',
  'NPROC': '32',
  'JAX_PLATFORMS': 'cpu',
  'JAX_DISABLE_MOST_OPTIMIZATIONS': '1',
  'XLA_FLAGS': '--xla_cpu_use_fusion_emitters=false',
  'JAX_DEFAULT_MATMUL_PRECISION': 'highest',
}
_SEEN = ('JAX_PLATFORMS', 'JAX_DISABLE_MOST_OPTIMIZATIONS', 'XLA_FLAGS')
_CPU = ('vendor_id', 'cpu family', 'model', 'flags', 'Features', 'CPU part')


def describe_rounding(environment: Mapping[str, str]) -> dict[str, str]:
  """Equal descriptions mean equal bits of the same computation."""
  return {
    **{name: environment.get(name, '') for name in _SEEN},
    **{name: importlib.metadata.version(name) for name in ('jax', 'jaxlib')},
    'cpu': f'{platform.machine()}-{zlib.crc32(_cpu().encode()):08x}',
  }


def _cpu() -> str:
  """What compilers ask of a processor, or its name where nothing tells that."""
  try:
    lines = pathlib.Path('/proc/cpuinfo').read_text().splitlines()
  except OSError:
    return platform.processor()
  told = (line.partition(':') for line in lines)
  return '\n'.join(sorted({v for k, _, v in told if k.strip() in _CPU}))
