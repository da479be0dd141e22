"""Files at URLs (s3://, gs://, memory:// ...), read and written by fsspec.

`locate` gives a `pathlib.Path` for what is on a disk, and for anything else a
`RemotePath`, which has the methods of a path that reading data needs. It is not
an `os.PathLike`: what would open it as a file of the disk fails.
"""

import contextlib
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

# Protocol -> the package that fsspec needs for it, and the extra that has it.
_PACKAGES = {
  's3': ('s3fs', 's3'),
  's3a': ('s3fs', 's3'),
  'gs': ('gcsfs', 'gcs'),
  'gcs': ('gcsfs', 'gcs'),
}
# What stores say of a file that is another one when its content is.
_STAMPS = (
  'ETag', 'md5Hash', 'crc32c', 'generation', 'LastModified', 'last_modified',
  'updated', 'mtime', 'created', 'modify', 'modificationTime',
  'Last-Modified', 'Content-MD5', 'Digest',
)  # fmt: skip
# The same, of stores that say none of those.
_RARE_STAMPS = (
  'etag', 'modified', 'sha', 'hex', 'sha256', 'checksum', 'blob_id', 'oid',
  'CRC', 'date_time',
)  # fmt: skip


class RemoteStat(NamedTuple):
  """As `os.stat_result` has it of a file on a disk.

  Attributes:
    st_size: bytes.
    st_mtime_ns: a text that is another one after a change; '' where the store
      tells nothing of the kind.
    st_dev: nothing.
    st_ino: the URL.
  """

  st_size: int
  st_mtime_ns: str
  st_dev: int
  st_ino: str


class RemotePath:
  """A file or a directory at a URL.

  >>> path = locate('memory://shop/events.csv.gz')
  >>> path.name, path.suffix, str(path.parent / 'items.csv'), path.exists()
  ('events.csv.gz', '.gz', 'memory://shop/items.csv', False)
  """

  def __init__(self, url: str, files, kind: str = ''):
    """`locate` is the usual way.

    Args:
      url: with its protocol.
      files: of fsspec, that reaches it.
      kind: 'file' or 'directory', where that is known.
    """
    self._url, self._files, self._kind = url.rstrip('/'), files, kind

  @property
  def _key(self) -> str:
    return self._files._strip_protocol(self._url)

  @property
  def name(self) -> str:
    return self._url.rpartition('/')[2]

  @property
  def suffix(self) -> str:
    return pathlib.PurePosixPath(self.name).suffix

  @property
  def parent(self) -> 'RemotePath':
    above = self._url.rpartition('/')[0]
    return self if above.endswith('/') else RemotePath(above, self._files)

  def __truediv__(self, name: str) -> 'RemotePath':
    return RemotePath(f'{self._url}/{name}', self._files)

  def __str__(self) -> str:
    return self._url

  def __repr__(self) -> str:
    return f'RemotePath({self._url!r})'

  def __eq__(self, other) -> bool:
    return isinstance(other, RemotePath) and str(self) == str(other)

  def __hash__(self) -> int:
    return hash(self._url)

  def __lt__(self, other: 'RemotePath') -> bool:
    return str(self) < str(other)

  def resolve(self) -> 'RemotePath':
    return self

  def is_relative_to(self, other: 'RemotePath') -> bool:
    return f'{self}/'.startswith(f'{other}/')

  def relative_to(self, other: 'RemotePath') -> pathlib.PurePosixPath:
    return pathlib.PurePosixPath(self._url[len(str(other)) + 1 :])

  def _find_kind(self) -> str:
    try:
      with self._explain_failure():
        return self._kind or self._files.info(self._key)['type']
    except FileNotFoundError:
      return ''

  def exists(self) -> bool:
    return bool(self._find_kind())

  def is_file(self) -> bool:
    return self._find_kind() == 'file'

  def is_dir(self) -> bool:
    return self._find_kind() == 'directory'

  def stat(self) -> RemoteStat:
    with self._explain_failure():
      info = self._files.info(self._key)
    stamps = _list_stamps(info, _STAMPS) or _list_stamps(info, _RARE_STAMPS)
    return RemoteStat(info['size'], ' '.join(stamps), 0, self._url)

  def iterdir(self) -> Iterator['RemotePath']:
    with self._explain_failure():
      entries = self._files.ls(self._key, detail=True)
    return iter(self._children(entries))

  def glob(self, pattern: str) -> Iterator['RemotePath']:
    with self._explain_failure():
      entries = self._files.glob(f'{self._key}/{pattern}', detail=True)
    return iter(self._children(entries.values()))

  def rglob(self, pattern: str) -> Iterator['RemotePath']:
    return self.glob(f'**/{pattern}')

  def _children(self, entries) -> list['RemotePath']:
    """Of what fsspec lists, which names the directory itself on some stores."""
    key = self._key.rstrip('/')
    below = [(e['name'].rstrip('/')[len(key) + 1 :], e) for e in entries]
    return [
      RemotePath(f'{self._url}/{name}', self._files, e['type'])
      for name, e in below
      if name
    ]

  def open(self, mode: str):
    with self._explain_failure():
      return self._files.open(self._key, mode)

  def upload(self, source: pathlib.Path) -> None:
    """Puts a file of the disk here, whole or not at all."""
    with self._explain_failure():
      self._files.put_file(str(source), self._key)

  @contextlib.contextmanager
  def _explain_failure(self) -> Iterator[None]:
    """Turns what a store says into an error that names the URL."""
    try:
      yield
    except FileNotFoundError:
      raise FileNotFoundError(f'{self}: no such file') from None
    except Exception as e:
      raise OSError(
        f'{self}: {type(e).__name__}: {str(e)[:300]}; are the address and the '
        'credentials right?'
      ) from e


def _list_stamps(info: Mapping, keys: tuple[str, ...]) -> list[str]:
  return [f'{key}={info[key]}' for key in keys if info.get(key)]


def locate(place: str | os.PathLike | RemotePath) -> pathlib.Path | RemotePath:
  """The path of a file or directory of the user's.

  >>> locate('/data/events.csv').name, locate('file:///data/events.csv').name
  ('events.csv', 'events.csv')

  Raises:
    ImportError: a package is missing; the message names it.
    ValueError: no file system has that protocol.
  """
  if isinstance(place, RemotePath):
    return place
  url = os.fspath(place)
  if isinstance(place, os.PathLike) or '://' not in url:
    return pathlib.Path(url)
  import fsspec
  from fsspec.implementations.local import LocalFileSystem

  protocol = url.partition('://')[0]
  try:
    # Other processes write there, too: no listing may be remembered.
    files, key = fsspec.core.url_to_fs(url, use_listings_cache=False)
  except ImportError as e:
    remedy = str(e)
    if protocol in _PACKAGES:
      package, extra = _PACKAGES[protocol]
      remedy = f'pip install {package}, which is in genrec_jax[{extra}]'
    raise ImportError(
      f'{url}: {protocol}:// needs a package that is not installed: {remedy}'
    ) from None
  except (ValueError, OSError) as e:  # no such protocol; nobody answers
    raise type(e)(f'{url}: {str(e)[:200]}') from None
  is_local = isinstance(files, LocalFileSystem)
  return pathlib.Path(key) if is_local else RemotePath(url, files)
