"""Keeps compiled programs between runs, in the cache directory of the user.

JAX writes and reads the programs. What this adds: a directory that nobody else
can write to, a bound on its size, and the removal of programs that a killed
process has half written.

    ~/.cache/genrec_jax/programs/    $XDG_CACHE_HOME, if it is set
      0.10.2-3f9c1a2b7d64/           of one jaxlib and one kind of processor
        jit_train_step-....-cache
"""

import hashlib
import logging
import os
import pathlib
import platform
import re
import time
import warnings
import zlib

import jax
import jaxlib

from pallas_kernels import cache_directory

LOG = logging.getLogger('genrec_jax')
AUTO = 'auto'
SUFFIX = '-cache'
_FOLDER = re.compile(r'\d[\w.+]*-[0-9a-f]{12}')  # of a jaxlib and a processor
_CHECKED = 'checked'  # its time is that of the last look at all programs
_GB = 1_000_000_000
# Another process may be writing a program right now.
_FRESH_S = 60.0
_UNREADABLE = 'Error reading persistent compilation cache entry'
_UNWRITABLE = 'Error writing persistent compilation cache entry'
_ZLIB = b'\x78'


def use_compile_cache(config) -> pathlib.Path | None:
  """Lets JAX keep what it compiles from now on, as `config` says.

  A directory that JAX was given before, by JAX_COMPILATION_CACHE_DIR say, is
  left as it is.

  Args:
    config: of an experiment; its section `compile_cache` may be absent.

  Returns:
    The directory, or None where nothing is kept.
  """
  settings = config.get('compile_cache', None) or {}
  wanted = settings.get('directory', AUTO)
  if not wanted or jax.config.jax_compilation_cache_dir:
    return None
  try:
    if wanted == AUTO:
      top = cache_directory.cache_home() / 'genrec_jax'
      cache_directory.make_private(top)
      top /= 'programs'
    else:
      top = pathlib.Path(wanted).absolute()
    cache_directory.make_private(top)
    folder = cache_directory.make_private(top / _describe_machine())
    trim_programs(top, int(settings.get('max_gb', 2.0) * _GB))
    remove_damaged(folder)
  except OSError as e:  # a run needs no cache
    LOG.warning(
      'compiled programs are not kept: %s; compile_cache.directory names '
      "another place, and '' keeps none",
      e,
    )
    return None
  jax.config.update('jax_compilation_cache_dir', str(folder))
  # Below it, reading a program takes longer than compiling it.
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.02)
  _watch_reads(folder)
  return folder


def trim_programs(top: pathlib.Path, most_bytes: int) -> int:
  """Removes the programs that were used least recently.

  Args:
    top: the directory of all kinds of machines. Only what looks like a
      program here is ever removed.
    most_bytes: what may stay.

  Returns:
    How many were removed.
  """
  programs, total, removed = [], 0, 0
  folders = [d for d in top.iterdir() if _FOLDER.fullmatch(d.name)]
  for path in (p for d in folders for p in d.glob(f'*{SUFFIX}')):
    try:
      about = path.lstat()
    except FileNotFoundError:  # another process removes some, too
      continue
    used = max(about.st_atime, about.st_mtime)
    programs.append((used, about.st_size, path))
  programs.sort(reverse=True)
  for _, size, path in programs:
    total += size
    if total > most_bytes:
      path.unlink(missing_ok=True)
      removed += 1
  return removed


def remove_damaged(folder: pathlib.Path) -> int:
  """Removes programs of other users, and those that were not written whole.

  JAX would compile them anew, but never replace them. Each program is read
  once after it was written.

  Returns:
    How many were removed.
  """
  stamp, now, removed = folder / _CHECKED, time.time(), 0
  try:
    last = stamp.stat().st_mtime - _FRESH_S
  except FileNotFoundError:
    last = 0.0
  for path in folder.glob(f'*{SUFFIX}'):
    try:
      is_old = path.lstat().st_mtime < last
      if not cache_directory.is_own_file(path) or not (
        is_old or _is_whole(path.read_bytes())
      ):
        path.unlink()
        removed += 1
    except FileNotFoundError:
      continue
  stamp.touch()
  os.utime(stamp, (now, now))
  return removed


def _is_whole(raw: bytes) -> bool:
  if not raw.startswith(_ZLIB):
    return bool(raw)  # of another compressor, which has checks of its own
  try:
    zlib.decompress(raw)
  except zlib.error:
    return False
  return True


def _watch_reads(folder: pathlib.Path) -> None:
  """Has all programs looked at by the next process if one is unreadable."""
  show = warnings.showwarning

  def show_or_note(message, *args, **kwargs):
    text = str(message)
    if text.startswith(_UNREADABLE):
      (folder / _CHECKED).unlink(missing_ok=True)
    elif text.startswith(_UNWRITABLE):
      LOG.warning('a compiled program could not be kept in %s', folder)
    else:
      show(message, *args, **kwargs)

  warnings.showwarning = show_or_note


def _describe_machine() -> str:
  """What a compiled program depends on and JAX does not ask for."""
  try:
    lines = pathlib.Path('/proc/cpuinfo').read_text().splitlines()
  except OSError:
    lines = []
  words = ('model name', 'flags', 'Features', 'CPU part')
  about = sorted({line for line in lines if line.startswith(words)})
  key = [platform.machine(), platform.processor(), *about]
  digest = hashlib.sha256('\n'.join(key).encode()).hexdigest()[:12]
  return f'{jaxlib.__version__}-{digest}'
