"""Directories whose files come and go by commits: all of a commit, or nothing.

    DIRECTORY/
      manifest.json              the files, their checksums, and facts
      feed/part-000012.parquet   a file that the manifest lists
      .part-000013.parquet.staged   of a commit that has not been made

A commit writes its files under hidden names, then the manifest that lists them,
and then gives them their own names. Whatever kills a process, the next one that
opens the directory to write either finds the commit in the manifest and ends
it, or does not find it and removes what it has left. A file therefore never has
its name before the manifest knows it, and never changes: who follows the
directory by the names of its files reads each of them once.

The manifest holds its own checksum and is replaced as a whole. Its facts say
what the files of the directory are, and how far a service is that writes them.
"""

import dataclasses
import os
import pathlib
import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from genrec_jax import sealed
from genrec_jax.checkpoint import save_lock, storage

NAME = 'manifest.json'
_FORMAT = 1
_MOST_BYTES = 1 << 28  # of a manifest
_STAGED = '.staged'
_NAME = re.compile(r'(?:[A-Za-z0-9_][\w.-]*/)*[A-Za-z0-9_][\w.-]*')


@dataclasses.dataclass(frozen=True)
class Part:
  """A file that is to be committed.

  Attributes:
    content: what it holds.
    notes: what the manifest shall say of it; JSON.
  """

  content: bytes
  notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class PartDirectory:
  """A directory of files with a manifest.

  A service that has written what belongs to a unit of its input commits it
  together with the number of the unit, so that a restart goes on behind it.

  >>> import tempfile
  >>> folder = tempfile.mkdtemp()
  >>> out = PartDirectory(folder, 'annotated windows', {'units': 0})
  >>> out.commit({'feed/part-000000': Part(b'rows')}, facts={'units': 1})
  >>> again = PartDirectory(folder, 'annotated windows', {'units': 0})
  >>> again.facts['units'], again.read('feed/part-000000')
  (1, b'rows')

  Attributes:
    path: where it is.
    kind: what it holds, in words.
  """

  def __init__(
    self,
    path: str | os.PathLike,
    kind: str,
    facts: Mapping[str, Any] | None = None,
  ):
    """Opens a directory; nothing but `commit` and `recover` change one.

    Args:
      path: of the directory.
      kind: what it holds, in words; a directory of another kind is refused.
      facts: with which it is made where there is none; None refuses that.

    Raises:
      FileNotFoundError: there is none, and no facts to make it with.
      DamagedError: its manifest is not as it was written.
      ValueError: it is of another kind, or has Parquet files and no manifest.
    """
    self.path, self.kind = pathlib.Path(path), kind
    self._lock = save_lock.SaveLock(self.path)
    self._is_recovered = False
    if not (self.path / NAME).exists():
      if facts is None:
        raise FileNotFoundError(
          f'{self.path}: there are no {kind} here, for it has no {NAME}'
        )
      self._create(facts)
    self._load(sealed.read_regular(self.path / NAME, _MOST_BYTES))

  @property
  def facts(self) -> dict[str, Any]:
    """What the last commit said."""
    return dict(self._body['facts'])

  @property
  def notes(self) -> dict[str, dict[str, Any]]:
    """Name of each file -> what the manifest says of it."""
    return {x: dict(y['notes']) for x, y in self._body['parts'].items()}

  @property
  def checksums(self) -> dict[str, int]:
    """Name of each file -> CRC-32 of its content."""
    return {x: y['crc32'] for x, y in self._body['parts'].items()}

  def count_bytes(self) -> int:
    """The size of all files that the manifest lists."""
    return sum(part['size'] for part in self._body['parts'].values())

  def read(self, name: str) -> bytes:
    """The content of a file.

    Raises:
      FileNotFoundError: it is gone.
      DamagedError: it is not as it was written.
    """
    part, path = self._body['parts'][name], self.path / name
    try:
      content = sealed.read_regular(path, part['size'])
    except FileNotFoundError:
      self._end_commit()  # another process may have left it there, or be at it
      try:
        content = sealed.read_regular(path, part['size'])
      except FileNotFoundError:
        raise FileNotFoundError(
          f'{path} is missing; {self._remedy()}'
        ) from None
    except OSError as e:
      raise self._damaged(path, e.strerror or e) from None
    if len(content) != part['size']:
      raise self._damaged(
        path, f'{len(content):,} bytes instead of {part["size"]:,}'
      )
    if zlib.crc32(content) != part['crc32']:
      raise self._damaged(path, 'its checksum is not that of the manifest')
    return content

  def refresh(self) -> bool:
    """Reads what others have committed; says whether there was something."""
    raw = sealed.read_regular(self.path / NAME, _MOST_BYTES)
    if raw == self._raw:
      return False
    self._load(raw)
    return True

  def recover(self) -> None:
    """Ends the commit, or removes its traces, of a process that was killed.

    Raises:
      CheckpointError: another process writes to the directory.
    """
    self._lock.claim_directory()
    self._end_commit()
    self._remove(self._body['removed'])
    for path in self._list_staged():
      _unlink(path)
    self._is_recovered = True

  def commit(
    self,
    parts: Mapping[str, Part],
    facts: Mapping[str, Any] | None = None,
    remove: Iterable[str] = (),
  ) -> None:
    """Adds files, changes the facts and removes files: all of it, or nothing.

    Args:
      parts: name -> file; a name may say folders, as in 'feed/part-000012'.
      facts: those from now on; None leaves them as they are.
      remove: names of files that are no longer needed.

    Raises:
      CheckpointError: another process writes to the directory.
      ValueError: a file of the name is there already, or another writer of
        this process has made a commit.
    """
    if not self._is_recovered:
      self.recover()
    self._check_names(parts)
    removed = list(remove)
    listed = {
      name: part
      for name, part in self._body['parts'].items()
      if name not in removed
    }
    for name, part in parts.items():
      hidden = _hide(self.path / name)
      hidden.parent.mkdir(parents=True, exist_ok=True)
      storage.write_file(hidden, part.content)
      listed[name] = dict(
        size=len(part.content),
        crc32=zlib.crc32(part.content),
        notes=dict(part.notes),
      )
    body = dict(
      format=_FORMAT,
      kind=self.kind,
      facts=dict(self._body['facts'] if facts is None else facts),
      parts=listed,
      removed=removed,
    )
    if sealed.read_regular(self.path / NAME, _MOST_BYTES) != self._raw:
      raise ValueError(
        f'{self.path}: another writer has changed it since it was opened; open '
        'it again'
      )
    raw = sealed.encode_body(body)
    storage.write_file(self.path / NAME, raw)  # from here on it is made
    self._load(raw)
    self._end_commit()
    self._remove(removed)

  def _create(self, facts: Mapping[str, Any]) -> None:
    stray = next(self.path.rglob('*.parquet'), None)
    if stray is not None:
      raise ValueError(
        f'{self.path} has {stray.name} but no {NAME}, so that nobody knows '
        f'what it belongs to; {self._remedy()}'
      )
    self.path.mkdir(parents=True, exist_ok=True)
    self._lock.claim_directory()
    body = dict(
      format=_FORMAT, kind=self.kind, facts=dict(facts), parts={}, removed=[]
    )
    storage.write_file(self.path / NAME, sealed.encode_body(body))

  def _load(self, raw: bytes) -> None:
    try:
      body = sealed.decode_body(raw)
    except ValueError as e:
      raise self._damaged(self.path / NAME, e) from None
    if body.get('kind') != self.kind:
      raise ValueError(
        f'{self.path} holds {body.get("kind")}, not {self.kind}; give another '
        'directory'
      )
    if body['format'] != _FORMAT:
      raise ValueError(
        f'{self.path} is of format {body["format"]}, this version reads format '
        f'{_FORMAT}'
      )
    self._raw, self._body = raw, body

  def _end_commit(self) -> None:
    """Gives committed files their names; any process may, at any time."""
    folders = set()
    for name, part in self._body['parts'].items():
      path = self.path / name
      if not _hide(path).exists():
        continue
      if path.exists():
        self._refuse_foreign(path, part)
      else:
        try:
          os.replace(_hide(path), path)
        except FileNotFoundError:  # another process was faster
          pass
        folders.add(path.parent)
    for folder in sorted(folders):
      storage.sync_path(folder)

  def _refuse_foreign(self, path: pathlib.Path, part: Mapping) -> None:
    """Where a file of a commit shall be, there may be none but itself."""
    try:
      content = sealed.read_regular(path, part['size'])
      is_own = zlib.crc32(content) == part['crc32']
    except FileNotFoundError:
      return  # another process is at it
    except (OSError, ValueError):
      is_own = False
    if not is_own:
      raise ValueError(
        f'{path} is not what was written for it: a file of the same name was '
        'there before; remove it, and start again'
      )

  def check_sizes(self) -> None:
    """Refuses a directory in which a listed file is gone or has another size.

    Raises:
      FileNotFoundError: one is gone.
      DamagedError: one has another size.
    """
    for name, part in self._body['parts'].items():
      path = self.path / name
      try:
        size = path.stat().st_size
      except FileNotFoundError:
        raise FileNotFoundError(
          f'{path} is missing; {self._remedy()}'
        ) from None
      if size != part['size']:
        raise self._damaged(path, f'{size:,} bytes instead of {part["size"]:,}')

  def _list_staged(self) -> list[pathlib.Path]:
    """Hidden files of commits, but those of directories within this one."""
    found = []
    for folder, folders, files in os.walk(self.path):
      here = pathlib.Path(folder)
      # What has a manifest of its own ends its commits itself.
      folders[:] = [x for x in folders if not (here / x / NAME).exists()]
      found += [here / x for x in files if x.startswith('.') and _STAGED in x]
    return found

  def _remove(self, names: Iterable[str]) -> None:
    for name in names:
      _unlink(self.path / name)

  def _check_names(self, names: Iterable[str]) -> None:
    for name in names:
      if not _NAME.fullmatch(name) or name == NAME:
        raise ValueError(
          f'{name!r} is no name of a file below {self.path}: give letters, '
          'digits, _, - and ., and / behind folders'
        )
      if name in self._body['parts']:
        raise ValueError(
          f'{self.path / name} is there already, and files do not change'
        )

  def _damaged(self, path: pathlib.Path, reason) -> sealed.DamagedError:
    return sealed.DamagedError(
      f'{path} is damaged ({reason}); {self._remedy()}'
    )

  def _remedy(self) -> str:
    return (
      f'put back a whole copy of {self.path}, or remove it and let the '
      f'{self.kind} be written again'
    )


def _hide(path: pathlib.Path) -> pathlib.Path:
  return path.with_name(f'.{path.name}{_STAGED}')


def _unlink(path: pathlib.Path) -> None:
  try:
    os.unlink(path)
  except FileNotFoundError:
    pass
