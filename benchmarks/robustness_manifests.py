"""Manifests, chunks and copies as somebody hostile would write them.

    rows = robustness_manifests.run(cases=400, seed=0)

Every case is a small directory of three steps of which the newest, or the copy
that follows it, is not what it should be although its checksums are right. It
is restored, followed, inspected and opened by the functions that a user calls,
in this process.
"""

import contextlib
import copy as copy_lib
import io
import json
import pathlib
import random
import resource
import shutil
import signal
import tempfile
import zlib
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks import robustness_chunks, robustness_special_files
from benchmarks.checkpoint_faults_run import SPECS, Run
from genrec_jax import sealed
from genrec_jax.checkpoint import follow, inspect, manifest
from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.checkpoint.serving_copy import ServingCopy

KINDS = ('restore', 'follow', 'inspect', 'copy')
GOOD = ('sentence', 'same', 'earlier_step')
NEWEST = 3
_LIMIT_S = 20
_MEMORY = 8 << 30  # beyond what the process has
_LONGEST = 3000  # of a sentence

Change = Callable[[pathlib.Path], None]  # of the directory of all

_VALUES = (
  None, True, -1, 0, 7, 1 << 63, 10**30, -0.5, 1e308, float('nan'),
  float('inf'), '', 'x', '../x', '\0', '\ud800', 'é' * 400, [], [[]], [1, 2, 3],
  {}, {'a': {'b': []}}, [[[[[[[[1]]]]]]]],
)  # fmt: skip
_NAMES = (
  '../precious', 'rows/item/../../../../precious', '/etc/hostname', '..', '.',
  '', 'rows/item/', 'rows//item/x', './rows/x', 'rows\\item\\x', 'rows/item/\0',
  'rows/item/\n', 'rows/\ud800', 'x' * 300, 'x/' * 3000 + 'x', 'MANIFEST.json',
  'rows/item/0-00000.npz/x', 'rows/item/x/../../../../precious', '../3/state/x',
  '~/x', 'rows/item/..', '//etc/hostname', 'rows/item/\x7f', 'C:\\x',
)  # fmt: skip


class Hang(BaseException):
  """A case that did not come to its end."""


def run(cases: int | None = None, seed: int = 0) -> list[dict]:
  """What becomes of hostile manifests.

  Args:
    cases: how many to draw; None for all there are.
    seed: which.

  Returns:
    A row for each case and each command that meets it: kind, case, and outcome
    ('sentence', 'same', 'earlier_step', 'wrong', 'silent', 'crash',
    'traceback' or 'hang').
  """
  drawn = list(collect_cases())
  random.Random(seed).shuffle(drawn)
  rows = []
  with tempfile.TemporaryDirectory() as root:
    world = _World(pathlib.Path(root))
    for name, group, change in drawn[:cases]:
      rows += world.try_case(name, group, change)
  return rows


def collect_cases() -> Iterator[tuple[str, str, Change]]:
  """(name, group, change) of every case."""
  yield from _change_values()
  for name in _NAMES:
    yield f'a file {name[:40]!r}', 'step', _list_file(name)
    yield f'rows are {name[:40]!r}', 'step', _rename_rows(name)
  for which in ('rows', 'state', 'manifest'):
    for what, put in robustness_special_files.PUT.items():
      yield f'{which} is {what}', 'step', _replace(which, put)
  for what, put in robustness_special_files.PUT.items():
    yield f'an extra file is {what}', 'step', _add_file(put)
  for what, make in robustness_chunks.CHUNKS.items():
    yield f'a chunk {what}', 'chunk', _change_chunk(make)
  for what, raw in _MANIFESTS.items():
    yield f'a manifest {what}', 'step', _write_manifest(raw)
  for path in _COPY_FILES:
    for what, put in robustness_special_files.PUT.items():
      yield f'{path} of the copy is {what}', 'copy', _replace_copy(path, put)
    for bit in (3, 300, 700):
      yield f'bit {bit} of {path} of the copy', 'copy', _flip_copy(path, bit)
  for key, value in _position_values():
    name = f'POSITION.json {key} is {str(value)[:20]!r}'
    yield name, 'copy', _change_position(key, value)


class _World:
  """A directory of steps that Orbax and the library have really written."""

  def __init__(self, root: pathlib.Path):
    self._root = root
    self._made = root / 'made'
    run = Run(self._made / 'run', keep=9, policy='consecutive')
    self._tables = {}
    for step in range(1, NEWEST + 1):
      run.train()
      run.save()
      self._tables[step] = {n: run.state.arrays[n].copy() for n in SPECS}
    run.checkpoints.close()
    with follow.Follower(
      self._made / 'run', self._made / 'copy', log=_ignore
    ) as follower:
      follower.update()

  def try_case(self, name: str, group: str, change: Change) -> list[dict]:
    place = self._root / 'tried'
    rows = []
    for kind in KINDS:
      if (group == 'copy') != (kind == 'copy'):
        continue
      shutil.rmtree(place, ignore_errors=True)
      place.mkdir()
      (place / 'precious').write_bytes(b'precious')
      shutil.copytree(self._made / 'run', place / 'run', symlinks=True)
      if kind == 'copy':
        shutil.copytree(self._made / 'copy', place / 'copy', symlinks=True)
      try:
        change(place)
      except (PermissionError, FileExistsError, LookupError):
        continue  # not every user can make every kind of file
      outcome = self._judge(getattr(self, f'_{kind}'), place, group)
      rows.append({'kind': kind, 'case': name, 'outcome': outcome})
    return rows

  def _judge(self, action, place: pathlib.Path, group: str) -> str:
    try:
      with _limits():
        outcome = action(place, group)
    except Hang:
      outcome = 'hang'
    except (manifest.CheckpointError, OSError) as e:
      outcome = 'sentence' if 0 < len(str(e)) < _LONGEST else 'traceback'
    except MemoryError:
      outcome = 'crash'
    except Exception:
      outcome = 'traceback'
    same = (place / 'precious').read_bytes() == b'precious'
    inside = {'precious', 'run', 'copy'}
    if not same or {path.name for path in place.iterdir()} - inside:
      outcome = 'wrong'  # something was written outside of the copy
    return outcome

  def _restore(self, place: pathlib.Path, group: str) -> str:
    run, lines = Run(place / 'run'), []
    with CheckpointManager(place / 'run', log=lines.append) as checkpoints:
      run.checkpoints = checkpoints
      if checkpoints.restore_newest(run.restore):
        return 'wrong'
    tables = {name: run.state.arrays[name] for name in SPECS}
    return self._compare(run.state.step, tables, lines)

  def _follow(self, place: pathlib.Path, group: str) -> str:
    status, text = _call(
      follow.main, [str(place / 'run'), str(place / 'copy'), '--once']
    )
    if status == 2 or not (place / 'copy' / 'POSITION.json').exists():
      return 'sentence' if 0 < len(text) < _LONGEST else 'silent'
    copy = ServingCopy(place / 'copy')
    tables = {name: np.asarray(copy.table(name)) for name in copy.tables}
    return self._compare(copy.step, tables, text.splitlines()[copy.step :])

  def _inspect(self, place: pathlib.Path, group: str) -> str:
    status, text = _call(inspect.main, [str(place / 'run'), '--contents'])
    if status == 0:  # chunks are read only by who needs them
      return 'same'
    return 'sentence' if 0 < len(text) < 3 * _LONGEST else 'traceback'

  def _copy(self, place: pathlib.Path, group: str) -> str:
    outcome = 'same'
    try:  # as a service opens it
      copy = ServingCopy(place / 'copy')
      tables = {
        name: copy.read(name, np.arange(about['rows']))[0]
        for name, about in copy.tables.items()
      }
      outcome = self._compare(copy.step, tables, [])
    except (manifest.CheckpointError, OSError):
      pass
    if outcome not in GOOD:
      return outcome
    followed = self._follow(place, group)  # which must heal it, or say why not
    return followed if followed != 'earlier_step' else 'silent'

  def _compare(self, step: int, tables: dict, lines: list[str]) -> str:
    whole = self._tables.get(step, {})
    same = tables.keys() == whole.keys() and all(
      tables[name].tobytes() == whole[name].tobytes() for name in whole
    )
    if not same:
      return 'wrong'
    if step == NEWEST:
      return 'same'
    return 'earlier_step' if lines else 'silent'


def _ignore(line: str) -> None:
  del line


def _call(main, argv: list[str]) -> tuple[int, str]:
  """The status of a command line, and what it prints."""
  text = io.StringIO()
  with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
    try:
      status = main(argv)
    except SystemExit as e:
      status = e.code
  return status, text.getvalue()


@contextlib.contextmanager
def _limits() -> Iterator[None]:
  """No case may take for ever, nor all of the memory."""

  def stop(*_):
    raise Hang

  before = signal.signal(signal.SIGALRM, stop)
  pages = int(pathlib.Path('/proc/self/statm').read_text().split()[0])
  soft, hard = resource.getrlimit(resource.RLIMIT_AS)
  most = pages * resource.getpagesize() + _MEMORY
  resource.setrlimit(resource.RLIMIT_AS, (most, hard))
  signal.setitimer(signal.ITIMER_REAL, _LIMIT_S)
  try:
    yield
  finally:
    signal.setitimer(signal.ITIMER_REAL, 0)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    signal.signal(signal.SIGALRM, before)


# --- What is written into a manifest


def _step_dir(place: pathlib.Path) -> pathlib.Path:
  return place / 'run' / str(NEWEST)


def _rewrite(place: pathlib.Path, body: dict) -> None:
  """A manifest with any values, whose checksum is right."""
  raw = sealed.encode_body(body)
  (_step_dir(place) / manifest.NAME).write_bytes(raw)


def _body(place: pathlib.Path) -> dict:
  body = json.loads((_step_dir(place) / manifest.NAME).read_bytes())
  del body['crc32']
  return body


# Of the entries of a manifest: those of one file, parent and table.
_PATHS = (
  ('format',), ('step',), ('time',), ('files',), ('files', 0), ('files', 0, 0),
  ('files', 0, 1), ('tree',), ('tree', 0), ('host',), ('data',), ('rows',),
  ('rows', 'kind'), ('rows', 'parents'), ('rows', 'parents', 0),
  ('rows', 'parents', 0, 0), ('rows', 'parents', 0, 1), ('rows', 'history'),
  ('rows', 'history', 0), ('rows', 'bits'), ('rows', 'method'),
  ('rows', 'slots'), ('rows', 'tables'), ('rows', 'tables', 0),
  ('rows', 'tables', 0, 'rows'), ('rows', 'tables', 0, 'dim'),
  ('rows', 'tables', 0, 'dtype'), ('rows', 'tables', 0, 'optimizer'),
  ('rows', 'tables', 0, 'slots'), ('rows', 'tables', 0, 'slots', 0),
  ('rows', 'tables', 0, 'scalars'),
)  # fmt: skip


def _change_values() -> Iterator[tuple[str, str, Change]]:
  for path in _PATHS:
    where = '.'.join(map(str, path))
    if path != ('host',):
      yield f'{where} is absent', 'step', _set_value(path, ...)
    for value in _VALUES:
      if path == ('host',) and (not value or isinstance(value, dict)):
        continue  # which a manifest may have, but none of this run
      yield f'{where} is {str(value)[:20]!r}', 'step', _set_value(path, value)


def _set_value(path: tuple, value: object) -> Change:
  def change(place: pathlib.Path) -> None:
    body = _body(place)
    inner = body
    for key in path[:-1]:
      inner = inner[_key_of(inner, key)]
    key = _key_of(inner, path[-1])
    if value is ...:
      del inner[key]
    else:
      inner[key] = copy_lib.deepcopy(value)
    _rewrite(place, body)

  return change


def _key_of(inner: dict | list, key: str | int):
  return sorted(inner)[key] if isinstance(inner, dict) and key == 0 else key


def _list_file(name: str) -> Change:
  def change(place: pathlib.Path) -> None:
    body = _body(place)
    body['files'][name] = [8, zlib.crc32(b'precious')]
    _rewrite(place, body)

  return change


def _rename_rows(name: str) -> Change:
  def change(place: pathlib.Path) -> None:
    body = _body(place)
    old = next(n for n in body['files'] if n.startswith('rows/item/'))
    body['files'][f'rows/item/../../../../{name}'] = body['files'][old]
    body['files'][name] = body['files'].pop(old)
    _rewrite(place, body)

  return change


_MANIFESTS = {
  'is empty': b'',
  'is null': b'null',
  'is a list': b'[]',
  'is deep': b'[' * 200_000,
  'is deep and closed': b'{"a":' * 5000 + b'1' + b'}' * 5000,
  'is not UTF-8': b'\xff\xfe{}',
  'has a number of many digits': b'{"step": ' + b'9' * 10_000 + b'}',
  'has a key twice': b'{"step": 1, "step": 2, "crc32": 0}',
  'is too long': b' ' * (manifest.MOST_BYTES + 1),
}


def _write_manifest(raw: bytes) -> Change:
  def change(place: pathlib.Path) -> None:
    (_step_dir(place) / manifest.NAME).write_bytes(raw)

  return change


# --- What lies where a file should be


def _find_file(place: pathlib.Path, which: str) -> pathlib.Path:
  step_dir = _step_dir(place)
  if which == 'manifest':
    return step_dir / manifest.NAME
  names = _body(place)['files']
  return step_dir / next(n for n in names if n.startswith(f'{which}/'))


def _replace(which: str, put: Callable[[pathlib.Path], None]) -> Change:
  def change(place: pathlib.Path) -> None:
    path = _find_file(place, which)
    path.unlink()
    put(path)

  return change


def _add_file(put: Callable[[pathlib.Path], None]) -> Change:
  def change(place: pathlib.Path) -> None:
    directory = _step_dir(place) / 'state' / 'array_metadatas'
    directory.mkdir(exist_ok=True)
    put(directory / 'process_0.bak')

  return change


# --- What a chunk claims


def _change_chunk(make: Callable[[bytes], bytes]) -> Change:
  def change(place: pathlib.Path) -> None:
    body = _body(place)
    name = next(n for n in body['files'] if n.startswith('rows/item/'))
    path = _step_dir(place) / name
    raw = make(path.read_bytes())
    path.write_bytes(raw)
    body['files'][name] = [len(raw), zlib.crc32(raw)]
    _rewrite(place, body)

  return change


# --- What lies in a copy

_COPY_FILES = (
  'LOCK', 'POSITION.json', 'generation.npy', 'TABLES/item.npy',
  'TABLES/user.npy', 'TABLES/item.crc32.npy', 'incoming', 'POSITION.json.tmp',
  'generation.tmp', 'incoming/4/MANIFEST.json',
)  # fmt: skip


def _find_in_copy(place: pathlib.Path, name: str) -> pathlib.Path:
  tables = next((place / 'copy').glob('*-*'))
  return place / 'copy' / name.replace('TABLES', tables.name)


def _replace_copy(name: str, put: Callable[[pathlib.Path], None]) -> Change:
  def change(place: pathlib.Path) -> None:
    path = _find_in_copy(place, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    put(path)

  return change


def _flip_copy(name: str, bit: int) -> Change:
  def change(place: pathlib.Path) -> None:
    path = _find_in_copy(place, name)
    if not path.is_file():
      raise FileExistsError  # nothing to flip
    raw = bytearray(path.read_bytes() or b'x')
    raw[bit // 8 % len(raw)] ^= 1 << bit % 8
    path.write_bytes(raw)

  return change


def _position_values() -> Iterator[tuple[str, object]]:
  for key in ('step', 'identity', 'base', 'directory', 'every', 'source'):
    for value in (None, -1, 'x', [], {}, '../..', True):
      yield key, value
  for key in ('rows', 'dim', 'dtype', 'file', 'checksums'):
    for value in (None, -1, 1 << 40, 'O', '../../precious', [], '/dev/zero'):
      yield f'tables.{key}', value


def _change_position(key: str, value: object) -> Change:
  def change(place: pathlib.Path) -> None:
    path = place / 'copy' / 'POSITION.json'
    body = json.loads(path.read_bytes())
    del body['crc32']
    inner = body
    if '.' in key:
      inner = body['tables']['item']
    inner[key.rpartition('.')[2]] = value
    text = json.dumps(body, indent=1).encode()
    body['crc32'] = zlib.crc32(text)
    path.write_bytes(json.dumps(body, indent=1).encode())

  return change
