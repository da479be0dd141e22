"""Compiles cpu.cc with this machine's C++ compiler, once for a processor.

The library is kept in `$XDG_CACHE_HOME/pallas_kernels` (~/.cache by default)
under a name made of the source, the compiler's options, jaxlib's version and
the processor, so that whatever changes makes a new one.
"""

import hashlib
import importlib.metadata
import logging
import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile
import zlib

import jax

from pallas_kernels import cache_directory

SOURCE = pathlib.Path(__file__).with_name('cpu.cc')
HEADERS = 'cpu_*.h'
COMPILERS = ('c++', 'g++', 'clang++')
FLAGS = ('-O3', '-std=c++17', '-shared', '-fPIC', '-fno-math-errno')
LIMIT_S = 300
CHECKSUM = '.crc32'

log = logging.getLogger('pallas_kernels')


def describe_sources() -> str:
  """A checksum of the C++ code and how it is compiled."""
  files = [SOURCE, *sorted(SOURCE.parent.glob(HEADERS))]
  key = [file.read_bytes() for file in files], FLAGS
  return hashlib.sha256(repr(key).encode()).hexdigest()[:20]


def make_library(processor: str = 'native', *flags: str) -> pathlib.Path:
  """The library of the cache, compiled if it is not there.

  Args:
    processor: what `-march` shall be.
    *flags: more options of the compiler.

  Returns:
    Its path.

  Raises:
    ValueError, OSError, subprocess.SubprocessError: it cannot be compiled.
  """
  compiler = _find()
  # Everything that the machine code depends on: another jaxlib has other
  # headers, another processor other instructions.
  key = (
    describe_sources(),
    importlib.metadata.version('jaxlib'),
    compiler,
    processor,
    flags,
    cache_directory.describe_processor(),
  )
  name = hashlib.sha256(repr(key).encode()).hexdigest()[:20]
  path = _cache() / f'jagged_embedding-{name}.so'
  if not _is_whole(path):
    log.info('Compiling %s, once for this machine.', SOURCE.name)
    _compile(compiler, path, f'-march={processor}', *flags)
  return path


def _is_whole(path: pathlib.Path) -> bool:
  """Whether the library is there, of this user, and as it was compiled."""
  try:
    return cache_directory.is_own_file(path) and fits_checksum(path)
  except (OSError, ValueError):
    return False


def write_checksum(path: pathlib.Path) -> pathlib.Path:
  """Writes the checksum of a library beside it; returns its path."""
  checksum = path.with_suffix(CHECKSUM)
  checksum.write_text(str(zlib.crc32(path.read_bytes())))
  return checksum


def fits_checksum(path: pathlib.Path) -> bool:
  """Whether a library is as it was when its checksum was written.

  A damaged one takes the process down where it is loaded, without a word.
  """
  checksum = path.with_suffix(CHECKSUM).read_text()
  return checksum == str(zlib.crc32(path.read_bytes()))


def _compile(compiler: str, path: pathlib.Path, *flags: str) -> None:
  """Writes the library; others see all of it or nothing."""
  # In the same folder, since a rename across file systems is a copy.
  with tempfile.TemporaryDirectory(dir=path.parent) as folder:
    new = pathlib.Path(folder) / path.name
    done = subprocess.run(
      [
        *shlex.split(compiler), *FLAGS, *flags, f'-I{jax.ffi.include_dir()}',
        str(SOURCE), '-o', str(new),
      ],
      capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    if done.returncode:
      # The first line with an error; a compiler prints much around it.
      errors = [line for line in done.stderr.splitlines() if 'error' in line]
      first = (errors or done.stderr.splitlines() or ['no message'])[0]
      raise ValueError(f'{compiler} fails: {first}')
    new.chmod(0o700)  # whatever the umask: it is run
    checksum = write_checksum(new)
    for file in (new, checksum):  # a power cut must not leave half of them
      with open(file, 'rb') as written:
        os.fsync(written.fileno())
    os.replace(new, path)
    os.replace(checksum, path.with_suffix(CHECKSUM))


def _find() -> str:
  """The command of a C++ compiler; raises a ValueError if there is none."""
  # The user's choice comes first, and may be followed by options.
  for name in (os.environ.get('CXX'), *COMPILERS):
    words = shlex.split(name or '')
    if words and shutil.which(words[0]):
      return name
  raise ValueError(f'there is none of {", ".join(COMPILERS)}, and no $CXX.')


def _cache() -> pathlib.Path:
  """A directory of this user alone; a temporary one if there is no other."""
  folder = cache_directory.cache_home() / 'pallas_kernels'
  try:
    return cache_directory.make_private(folder)
  except cache_directory.UntrustedDirectoryError as e:
    log.warning('%s; the C++ code is compiled for this process alone.', e)
  except OSError:
    pass
  return pathlib.Path(tempfile.mkdtemp(prefix='pallas_kernels-'))
