"""A store that `etils.epath` reaches by fsspec, as it reaches s3://.

In memory, and no more able than such stores are: directories are beginnings of
names, nothing is renamed, an object appears whole when its file is closed, and
listings are remembered unless one asks for the contrary.
"""

import contextlib
import importlib
import io
from unittest import mock

import fsspec
from etils.epath import backend


class Killed(BaseException):
  """The end of a process, in the middle of what it did."""


class ObjectStore(fsspec.AbstractFileSystem):
  """Use `mounted`."""

  protocol = ('s3', 's3a')
  cachable = False
  objects: dict[str, bytes] = {}
  log: list[tuple[str, str]] = []  # ('put' or 'delete', name)
  until: tuple[str, int] | None = None  # killed at the nth of these

  def _did(self, what: str, name: str) -> None:
    if self.until and what == self.until[0]:
      count = sum(w == what for w, _ in self.log)
      if count >= self.until[1]:
        raise Killed
    self.log.append((what, name))

  def ls(self, path, detail=True, **_):
    path = self._strip_protocol(path)
    if path not in self.dircache:
      self.dircache[path] = self._listed(path)
    try:
      found = self.dircache[path]
    except KeyError:  # told not to remember
      found = self._listed(path)
    return found if detail else [entry['name'] for entry in found]

  def _listed(self, path):
    found = {}
    for name, raw in self.objects.items():
      if name == path:
        found[name] = {'name': name, 'size': len(raw), 'type': 'file'}
      elif name.startswith(f'{path}/'):
        child, _, deeper = name[len(path) + 1 :].partition('/')
        child = f'{path}/{child}'
        found[child] = {
          'name': child,
          'size': 0 if deeper else len(raw),
          'type': 'directory' if deeper else 'file',
        }
    if not found:
      raise FileNotFoundError(path)
    return [found[name] for name in sorted(found)]

  def mkdir(self, path, create_parents=True, **_):
    pass

  def makedirs(self, path, exist_ok=False):
    pass

  def rm(self, path, recursive=False, maxdepth=None):
    path = self._strip_protocol(path)
    inside = [n for n in self.objects if n.startswith(f'{path}/')]
    if path not in self.objects and not inside:
      raise FileNotFoundError(path)
    if inside and not recursive:
      raise IsADirectoryError(path)
    for name in [*inside, path]:
      if name in self.objects:
        self._did('delete', name)
        del self.objects[name]
    self.invalidate_cache()

  def mv(self, *_, **__):
    raise NotImplementedError('a store renames nothing')

  rename = mv

  def invalidate_cache(self, path=None):
    self.dircache.clear()

  def _open(self, path, mode='rb', **_):
    path = self._strip_protocol(path)
    if mode == 'rb':
      if path not in self.objects:
        raise FileNotFoundError(path)
      return io.BytesIO(self.objects[path])
    return _Writing(self, path)


class _Writing(io.BytesIO):
  def __init__(self, store: ObjectStore, name: str):
    super().__init__()
    self._store, self._name = store, name

  def close(self):
    if not self.closed:
      self._store._did('put', self._name)
      self._store.objects[self._name] = self.getvalue()
      self._store.invalidate_cache()
    super().close()


@contextlib.contextmanager
def mounted():
  """`s3://` is an empty store while the context lasts; gives its class."""
  store = type('Store', (ObjectStore,), {'objects': {}, 'log': []})
  registry = importlib.import_module('fsspec.registry')
  cache = backend.fsspec_backend._get_filesystem
  with mock.patch.dict(registry._registry, {'s3': store}):
    cache.cache_clear()
    try:
      yield store
    finally:
      cache.cache_clear()
