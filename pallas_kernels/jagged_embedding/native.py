"""Loads cpu.cc as a library: prebuilt, or compiled with this machine's C++.

A wheel may bring the library (prebuilt.py). Where it brings none that fits, the
library is compiled once, for exactly this processor (compiler.py).
`PALLAS_KERNELS_CPU=native` compiles it although a prebuilt one fits.
"""

import ctypes
import functools
import logging
import os
import pathlib
import subprocess

import jax

from pallas_kernels.jagged_embedding import compiler, prebuilt

TARGETS = (
  'Bag', 'PackedBag', 'GatherRows', 'WeightGradient', 'Merge', 'UpdateMerged',
  'BagUpdate', 'ScoreRows', 'ScoreGradients',
)  # fmt: skip
PREFIX = 'pallas_kernels.jagged_embedding.'
SWITCH = 'PALLAS_KERNELS_CPU'
# XLA raises a RuntimeError for a library whose FFI it does not speak.
_FAULTS = (
  OSError, subprocess.SubprocessError, ValueError, AttributeError, RuntimeError,
)  # fmt: skip

log = logging.getLogger('pallas_kernels')


def why_not() -> str | None:
  """Says why there is no library on this machine, None where there is one."""
  wanted = os.environ.get(SWITCH, '')
  if wanted not in ('', '0', 'native'):
    raise ValueError(f"{SWITCH}={wanted!r}: it can be '0', 'native' or empty.")
  if wanted == '0':
    return f'it is switched off by {SWITCH}=0.'
  return _load()


@functools.cache
def _load() -> str | None:
  """Makes the library's functions known to XLA, or says why it cannot."""
  ways = {'prebuilt': prebuilt.find, 'compiled here': compiler.make_library}
  if os.environ.get(SWITCH) == 'native':
    ways = dict(reversed(ways.items()))
  reasons = []
  # Once in a process, since the answer is cached; so is the reason if it fails.
  for way, find in ways.items():
    try:
      path = find()
      register(path, PREFIX)
    except _FAULTS as e:
      reasons.append(f'{way}: {e}')
      continue
    log.info(
      'jagged_embedding uses its C++ library, %s: %s%s',
      way, path.name, ''.join(f' ({reason})' for reason in reasons),
    )  # fmt: skip
    return None
  reason = f'its C++ code cannot be loaded: {"; ".join(reasons)}'
  log.warning(
    'jagged_embedding uses plain XLA, which is slower: %s A wheel with the '
    'prebuilt library or a C++ compiler (g++ or clang++) makes the fast path; '
    '%s=0 silences this.',
    reason, SWITCH,
  )  # fmt: skip
  return reason


def register(path: pathlib.Path, prefix: str) -> None:
  """Makes the functions of a library known to XLA.

  Args:
    path: the library.
    prefix: what comes before their names.

  Raises:
    OSError, AttributeError: this is no such library.
    RuntimeError: XLA refuses the version of the FFI it was compiled with.
  """
  library = ctypes.CDLL(str(path))
  for name in TARGETS:
    jax.ffi.register_ffi_target(
      prefix + name, jax.ffi.pycapsule(getattr(library, name)), platform='cpu'
    )
