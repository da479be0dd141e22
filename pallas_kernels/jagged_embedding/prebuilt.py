"""Libraries of cpu.cc that are compiled beforehand, and come in a wheel.

`setup.py` builds them where GENREC_PREBUILT=1 is set, one for each entry of
`KINDS`. They lie beside the code and are trusted as it is.
"""

import pathlib
import platform
import re
import shutil

from pallas_kernels import cache_directory
from pallas_kernels.jagged_embedding import compiler

FOLDER = pathlib.Path(__file__).with_name('prebuilt')
_V3 = 'abm avx avx2 bmi1 bmi2 f16c fma movbe xsave'
# Machine -> what -march= calls its processors -> the flags in /proc/cpuinfo
# that they all have; the best come first.
KINDS = {
  'x86_64': {'x86-64-v3': frozenset(_V3.split()), 'x86-64': frozenset()},
  'aarch64': {'armv8-a': frozenset()},
}
# Without demands on the C++ library of the machine, or on compilers' names.
_PORTABLE = (
  '-static-libstdc++', '-ffunction-sections', '-Wl,--gc-sections',
  '-Wl,--exclude-libs,ALL', '-s', '-Wno-psabi',
)  # fmt: skip


def choose_kind() -> str | None:
  """The best of `KINDS` that this processor can run; None: there is none."""
  here = set(cache_directory.describe_processor().split())
  kinds = KINDS.get(platform.machine(), {})
  return next((kind for kind, needs in kinds.items() if needs <= here), None)


def find() -> pathlib.Path:
  """The library for this processor.

  Raises:
    FileNotFoundError: this installation has none, or one without checksum.
    ValueError: it is damaged.
  """
  kind = choose_kind()
  path = FOLDER / name_library(kind)
  if kind is None or not path.exists():
    raise FileNotFoundError(
      'this installation brings no library for '
      f'{kind or platform.machine()} that was made of its sources'
    )
  if not compiler.fits_checksum(path):
    raise ValueError(f'{path} is damaged: install the package again')
  return path


def build(folder: pathlib.Path) -> list[pathlib.Path]:
  """Compiles the library of every kind of this machine.

  Args:
    folder: where to put them; `FOLDER` of what is going to be installed.

  Returns:
    Their paths.
  """
  folder.mkdir(parents=True, exist_ok=True)
  libraries = []
  for kind in KINDS.get(platform.machine(), {}):
    path = folder / name_library(kind)
    shutil.copy(compiler.make_library(kind, *_PORTABLE), path)
    compiler.write_checksum(path)
    libraries.append(path)
  return libraries


def platform_tag(libraries: list[pathlib.Path]) -> str:
  """The wheel's platform: the oldest glibc that has what libraries ask for."""
  asked = re.findall(
    rb'GLIBC_(\d+)\.(\d+)', b''.join(path.read_bytes() for path in libraries)
  )
  glibc = max((tuple(map(int, version)) for version in asked), default=None)
  system = 'linux' if glibc is None else 'manylinux_{}_{}'.format(*glibc)
  return f'{system}_{platform.machine()}'


def name_library(kind: str | None) -> str:
  """The file's name, another one for other sources."""
  return f'jagged_embedding-{kind}-{compiler.describe_sources()}.so'
