"""Compiled programs are kept, bounded, and from nobody else."""

import os
import subprocess
import sys
import zlib

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from genrec_jax import config as config_lib
from genrec_jax.runtime import compile_cache
from pallas_kernels import cache_directory

MACHINE = '0.1.2-0123456789ab'
TWICE = """
import jax, sys
from genrec_jax.runtime import compile_cache
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name))
folder = compile_cache.use_compile_cache({})
jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
print(jax.jit(lambda x: (x * 2 + 1).sum())(jax.numpy.arange(8.0)), end=' ')
print(hits.count('/jax/compilation_cache/cache_hits'), folder)
"""


@pytest.fixture
def unset(monkeypatch, tmp_path):
  """A process that was given no cache directory, with a home of its own."""
  given = jax.config.jax_compilation_cache_dir
  least = jax.config.jax_persistent_cache_min_compile_time_secs
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'home'))
  monkeypatch.setattr('warnings.showwarning', None)
  monkeypatch.setattr(compile_cache, '_OWN', {})
  jax.config.update('jax_compilation_cache_dir', None)
  yield
  jax.config.update('jax_compilation_cache_dir', given)
  compilation_cache.reset_cache()
  jax.config.update('jax_persistent_cache_min_compile_time_secs', least)


def program(folder, name, *, size=0, used=None):
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / f'{name}{compile_cache.SUFFIX}'
  path.write_bytes(zlib.compress(os.urandom(size)))
  path.chmod(0o600)
  if used is not None:
    os.utime(path, (used, used))
  return path


def run_twice(home, env=()):
  variables = {**os.environ, 'XDG_CACHE_HOME': str(home), **dict(env)}
  variables.pop('JAX_COMPILATION_CACHE_DIR')
  return [
    subprocess.run(
      [sys.executable, '-c', TWICE],
      env=variables,
      capture_output=True,
      text=True,
      check=True,
    ).stdout.split()
    for _ in range(2)
  ]


def test_a_second_process_compiles_nothing(tmp_path):
  (value, hits, folder), (again, hits_again, _) = run_twice(tmp_path)
  assert value == again == '64.0'
  assert int(hits) == 0 < int(hits_again)
  assert folder.startswith(str(tmp_path / 'genrec_jax' / 'programs'))


def test_is_on_by_default_and_in_the_directory_of_the_user(unset, tmp_path):
  folder = compile_cache.use_compile_cache(config_lib.retrieval())
  assert folder.parent == tmp_path / 'home' / 'genrec_jax' / 'programs'
  assert jax.config.jax_compilation_cache_dir == str(folder)
  assert folder.stat().st_mode & 0o777 == 0o700


def test_another_place_or_none(unset, tmp_path):
  config = config_lib.ranking()
  config.compile_cache.directory = ''
  assert compile_cache.use_compile_cache(config) is None
  assert jax.config.jax_compilation_cache_dir is None
  config.compile_cache.directory = str(tmp_path / 'mine')
  mine = compile_cache.use_compile_cache(config)
  assert mine.parent == tmp_path / 'mine'
  # What a process has chosen itself it may choose otherwise.
  config.compile_cache.directory = str(tmp_path / 'other')
  other = compile_cache.use_compile_cache(config)
  assert other.parent == tmp_path / 'other'
  assert jax.config.jax_compilation_cache_dir == str(other)
  config.compile_cache.directory = ''
  assert compile_cache.use_compile_cache(config) is None
  assert jax.config.jax_compilation_cache_dir is None
  config.compile_cache.max_gb = -1.0
  with pytest.raises(ValueError, match='max_gb is -1.0, must be at least 0'):
    compile_cache.use_compile_cache(config)


def test_what_jax_was_given_goes_first():
  given = jax.config.jax_compilation_cache_dir
  assert given
  assert compile_cache.use_compile_cache({}) is None
  assert jax.config.jax_compilation_cache_dir == given


@pytest.mark.parametrize('fault', ['owner', 'link', 'file'])
def test_what_is_not_of_this_user_is_not_used(
  fault, unset, tmp_path, monkeypatch, said
):
  home = tmp_path / 'home' / 'genrec_jax'
  if fault == 'owner':
    home.mkdir(parents=True)
    user = os.geteuid()
    monkeypatch.setattr('os.geteuid', lambda: user + 1)
  elif fault == 'link':
    (tmp_path / 'elsewhere').mkdir()
    home.parent.mkdir()
    home.symlink_to(tmp_path / 'elsewhere')
  else:
    home.parent.mkdir()
    home.write_text('')
  assert compile_cache.use_compile_cache({}) is None
  assert jax.config.jax_compilation_cache_dir is None
  assert 'compiled programs are not kept' in said()
  assert 'compile_cache.directory' in said()


def test_others_lose_the_right_to_write(tmp_path):
  (tmp_path / 'cache').mkdir()
  (tmp_path / 'cache').chmod(0o777)
  cache_directory.make_private(tmp_path / 'cache')
  assert (tmp_path / 'cache').stat().st_mode & 0o777 == 0o755


def test_the_least_recently_used_programs_go(tmp_path):
  here, old = tmp_path / MACHINE, tmp_path / '0.0.9-0123456789ab'
  kept = [program(here, f'p{i}', size=1000, used=1e9 + i) for i in range(3)]
  gone = [program(old, f'p{i}', size=1000, used=1e8 + i) for i in range(3)]
  # What is not of this cache stays, in a directory that the user has named.
  (tmp_path / 'thesis').mkdir()
  other = program(tmp_path / 'thesis', 'chapter', size=9000, used=1)
  most = sum(path.stat().st_size for path in kept)
  assert compile_cache.trim_programs(tmp_path, most) == 3
  assert all(path.exists() for path in [*kept, other])
  assert not any(path.exists() for path in gone)


def test_damaged_programs_are_removed(tmp_path):
  whole = program(tmp_path, 'whole', size=100)
  half = program(tmp_path, 'half', size=100)
  half.write_bytes(half.read_bytes()[:50])
  empty = program(tmp_path, 'empty')
  empty.write_bytes(b'')
  other = program(tmp_path, 'of_another_compressor')
  other.write_bytes(b'zstd has no checksums')
  assert compile_cache.remove_damaged(tmp_path) == 2
  assert whole.exists() and not half.exists() and not empty.exists()
  assert compile_cache.remove_damaged(tmp_path) == 0
  # From the first look on, each has a checksum.
  other.write_bytes(b'zstd has no chEcksums')
  assert compile_cache.remove_damaged(tmp_path) == 1
  assert not other.exists() and whole.exists()
  for content in (b'', b'[]', b'{"x": ', b'{' * 9999):
    (tmp_path / 'checksums.json').write_bytes(content)
    assert compile_cache.remove_damaged(tmp_path) == 0


def test_an_index_that_is_no_file_is_not_waited_for(tmp_path):
  whole = program(tmp_path, 'whole', size=100)
  index = tmp_path / 'checksums.json'
  os.mkfifo(index)
  assert compile_cache.remove_damaged(tmp_path) == 0 and index.is_file()
  index.unlink()
  index.symlink_to('/dev/zero')
  assert compile_cache.remove_damaged(tmp_path) == 0
  assert whole.exists() and not index.is_symlink()


def test_a_program_that_unpacks_without_end_is_removed(tmp_path, monkeypatch):
  monkeypatch.setattr(compile_cache, '_MOST_UNPACKED', 1 << 20)
  bomb = program(tmp_path, 'bomb')
  bomb.write_bytes(zlib.compress(bytes(1 << 25)))
  assert compile_cache.remove_damaged(tmp_path) == 1 and not bomb.exists()


def test_programs_of_others_are_removed(tmp_path):
  open_to_all = program(tmp_path, 'planted', size=10)
  open_to_all.chmod(0o666)
  link = tmp_path / f'link{compile_cache.SUFFIX}'
  link.symlink_to(program(tmp_path / 'away', 'x', size=10))
  assert compile_cache.remove_damaged(tmp_path) == 2


def test_an_unreadable_program_is_told_to_the_next_process(unset):
  import warnings

  folder = compile_cache.use_compile_cache({})
  program(folder, 'a', size=9)
  compile_cache.remove_damaged(folder)
  assert (folder / 'checksums.json').exists()
  warnings.showwarning(
    "Error reading persistent compilation cache entry for 'f': error"
  )
  assert not (folder / 'checksums.json').exists()
