"""Keeps compiled programs between runs, in the cache directory of the user.

JAX writes and reads the programs. What this adds: a directory that nobody else
can write to, a bound on its size, and the removal of programs that a killed
process has half written.

    ~/.cache/genrec_jax/programs/    $XDG_CACHE_HOME, if it is set
      0.10.2-3f9c1a2b7d64/           of one jaxlib and one kind of processor
        jit_train_step-....-cache
"""

import contextlib
import hashlib
import json
import logging
import pathlib
import re
import warnings
import zlib

import jax
import jaxlib
from jax.experimental.compilation_cache import compilation_cache

from genrec_jax import sealed
from genrec_jax.data import scratch
from pallas_kernels import cache_directory

LOG = logging.getLogger('genrec_jax')
AUTO = 'auto'
SUFFIX = '-cache'
_FOLDER = re.compile(r'\d[\w.+]*-[0-9a-f]{12}')  # of a jaxlib and a processor
_CHECKSUMS = 'checksums.json'
_MOST_INDEX = 1 << 24  # bytes
_MOST_UNPACKED = 1 << 30  # bytes of a program
_PIECE = 1 << 20
_GB = 1_000_000_000
_UNREADABLE = 'Error reading persistent compilation cache entry'
_UNWRITABLE = 'Error writing persistent compilation cache entry'
_ZLIB = b'\x78'
_MISS = '/jax/compilation_cache/cache_misses'
_OWN = {}  # 'folder': the directory that this module has given to JAX


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
  wanted, most_gb = settings.get('directory', AUTO), settings.get('max_gb', 1.0)
  if not most_gb >= 0:
    raise ValueError(f'compile_cache.max_gb is {most_gb}, must be at least 0')
  given = jax.config.jax_compilation_cache_dir
  if given and given != _OWN.get('folder'):
    return None
  if not wanted:
    _set_folder(None)
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
    if given != str(folder):
      trim_programs(top, int(most_gb * _GB))
      remove_damaged(folder)
  except OSError as e:  # a run needs no cache
    LOG.warning(
      'compiled programs are not kept: %s; compile_cache.directory names '
      "another place, and '' keeps none",
      e,
    )
    _set_folder(None)
    return None
  _set_folder(folder)
  # Below it, reading a program takes longer than compiling it.
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.02)
  _watch()
  return folder


def _set_folder(folder: pathlib.Path | None) -> None:
  """Gives JAX another directory than the one it may use already."""
  if jax.config.jax_compilation_cache_dir != (folder and str(folder)):
    jax.config.update('jax_compilation_cache_dir', folder and str(folder))
    compilation_cache.reset_cache()
  _OWN['folder'] = folder and str(folder)


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


def remove_damaged(folder: pathlib.Path, *, only_new: bool = False) -> int:
  """Removes programs of other users, and those that are damaged.

  JAX would compile what it cannot read anew, but never replace it; and not
  every compressor would notice a flipped bit. So a program has a checksum from
  the first look on; at that, one that a killed process has half written does
  not decompress.

  Args:
    folder: the programs of one kind of machine.
    only_new: whether those that have a checksum are not read again.

  Returns:
    How many were removed.
  """
  index = folder / _CHECKSUMS
  try:
    known = json.loads(sealed.read_regular(index, _MOST_INDEX))
    known = known if isinstance(known, dict) else {}
  except (OSError, ValueError, RecursionError):
    known = {}
  checksums, removed = {}, 0
  for path in folder.glob(f'*{SUFFIX}'):
    if only_new and path.name in known:
      checksums[path.name] = known[path.name]
      continue
    try:
      raw = path.read_bytes() if cache_directory.is_own_file(path) else b''
      checksum = zlib.crc32(raw)
      whole = known[path.name] == checksum if path.name in known else None
      if whole or whole is None and _is_whole(raw):
        checksums[path.name] = checksum
      else:
        path.unlink()
        removed += 1
    except FileNotFoundError:  # another process removes some, too
      continue
  if checksums != known:
    with scratch.replaced_file(index) as partial:
      partial.write_text(json.dumps(checksums))
  return removed


def _is_whole(raw: bytes) -> bool:
  if not raw.startswith(_ZLIB):
    return bool(raw)  # of another compressor; JAX refuses half a program
  # Piece by piece: a few bytes may unpack to more than there is memory.
  decoder, size = zlib.decompressobj(), 0
  try:
    while raw and size <= _MOST_UNPACKED and not decoder.eof:
      size += len(decoder.decompress(raw, _PIECE))
      raw = decoder.unconsumed_tail
  except zlib.error:
    return False
  return decoder.eof


def _watch() -> None:
  """Gives programs checksums as they are written, and has bad ones removed."""
  if 'watched' in _OWN:
    return
  _OWN['watched'], show = True, warnings.showwarning

  def show_or_note(message, *args, **kwargs):
    folder = _OWN.get('folder')
    if folder and str(message).startswith(_UNREADABLE):
      # The next process looks at all programs.
      pathlib.Path(folder, _CHECKSUMS).unlink(missing_ok=True)
    elif folder and str(message).startswith(_UNWRITABLE):
      LOG.warning('a compiled program could not be kept in %s', folder)
    else:
      show(message, *args, **kwargs)

  def note_programs(event, **_):
    # All but the one that this miss will write: it has its turn at the next.
    if event == _MISS and _OWN.get('folder'):
      with contextlib.suppress(OSError):
        remove_damaged(pathlib.Path(_OWN['folder']), only_new=True)

  warnings.showwarning = show_or_note
  jax.monitoring.register_event_listener(note_programs)


def _describe_machine() -> str:
  """What a compiled program depends on and JAX does not ask for."""
  about = cache_directory.describe_processor()
  digest = hashlib.sha256(about.encode()).hexdigest()[:12]
  return f'{jaxlib.__version__}-{digest}'
