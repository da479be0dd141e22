"""Commits: all of it or nothing, wherever a process is killed."""

import os
import pathlib
import re

import pytest

from genrec_jax import sealed
from genrec_jax.distill import part_manifest
from genrec_jax.distill.part_manifest import Part, PartDirectory
from tests.distill import kills

KIND = 'annotated windows'


def read_all(directory) -> dict[str, bytes]:
  return {name: directory.read(name) for name in directory.notes}


def list_visible(path: pathlib.Path) -> set[str]:
  """What a follower sees that goes by the names of files."""
  return {
    str(x.relative_to(path))
    for x in path.rglob('*')
    if x.is_file() and not x.name.startswith('.')
  } - {part_manifest.NAME, f'{part_manifest.NAME}.tmp'}


def test_a_commit_is_read_back(tmp_path):
  out = PartDirectory(tmp_path / 'out', KIND, {'units': 0})
  out.commit({'feed/a': Part(b'1', {'rows': 3}), 'b': Part(b'')}, {'units': 1})
  out.commit({'c': Part(b'22')}, remove=['b'])
  again = PartDirectory(tmp_path / 'out', KIND)
  assert read_all(again) == {'feed/a': b'1', 'c': b'22'}
  assert again.notes == {'feed/a': {'rows': 3}, 'c': {}}
  assert again.facts == {'units': 1} and again.count_bytes() == 3
  assert list_visible(tmp_path / 'out') == {'feed/a', 'c'}


def test_a_kill_leaves_all_of_a_commit_or_nothing(tmp_path):
  """A file with its own name is committed, and is never taken back."""

  def commit(path) -> None:
    out = PartDirectory(path, KIND, {'units': 1})
    parts = {'feed/b': Part(b'new'), 'video/b': Part(b'newer')}
    out.commit(parts, {'units': 2}, remove=['state'])

  def prepare(path) -> None:
    first = {'feed/a': Part(b'old'), 'state': Part(b'state')}
    PartDirectory(path, KIND, {'units': 1}).commit(first)

  old = {'feed/a': b'old', 'state': b'state'}
  new = {'feed/a': b'old', 'feed/b': b'new', 'video/b': b'newer'}
  seen = set()
  for path in kills.walk(tmp_path, prepare, commit):
    visible = list_visible(path)
    reader = PartDirectory(path, KIND)
    units, content = reader.facts['units'], read_all(reader)
    seen.add(units)
    assert content == (new if units == 2 else old)
    assert visible <= {*content, 'state'}
    writer = PartDirectory(path, KIND)
    writer.recover()
    assert list_visible(path) == {*content}
    assert not list(path.rglob('.*staged*'))
    if units == 1:
      commit(path)
    assert read_all(PartDirectory(path, KIND)) == new
  assert seen == {1, 2}


def test_what_a_reader_may_not_see(tmp_path):
  out = PartDirectory(tmp_path, KIND, {})
  reader = PartDirectory(tmp_path, KIND)
  out.commit({'a': Part(b'1')})
  assert not reader.notes and reader.refresh() and not reader.refresh()
  assert read_all(reader) == {'a': b'1'}
  out.commit({'b': Part(b'2')})
  with pytest.raises(ValueError, match='another writer has changed it since'):
    reader.commit({'c': Part(b'3')})


@pytest.mark.parametrize(
  'name', ['', '.a', '../a', '/a', 'a//b', 'a/.b', 'a b']
)
def test_names_stay_below_the_directory(tmp_path, name):
  out = PartDirectory(tmp_path, KIND, {})
  with pytest.raises(ValueError, match='is no name of a file below'):
    out.commit({name: Part(b'')})


def test_refusals(tmp_path):
  with pytest.raises(FileNotFoundError, match='there are no annotated windows'):
    PartDirectory(tmp_path / 'none', KIND)
  out = PartDirectory(tmp_path / 'out', KIND, {})
  out.commit({'a': Part(b'1')})
  with pytest.raises(ValueError, match='a is there already, and files do not'):
    out.commit({'a': Part(b'1')})
  with pytest.raises(ValueError, match='holds annotated windows, not scores; '):
    PartDirectory(tmp_path / 'out', 'scores')
  (tmp_path / 'lost').mkdir()
  (tmp_path / 'lost' / 'a.parquet').write_bytes(b'')
  with pytest.raises(
    ValueError, match='has a.parquet but no manifest.json, so'
  ):
    PartDirectory(tmp_path / 'lost', KIND, {})
  (tmp_path / 'out' / 'a').unlink()
  with pytest.raises(FileNotFoundError, match='a is missing; put back a whole'):
    out.read('a')


def test_damage_is_named(tmp_path):
  out = PartDirectory(tmp_path, KIND, {})
  out.commit({'a': Part(b'some content')})
  manifest = (tmp_path / part_manifest.NAME).read_bytes()
  for content in (b'', b'some conten', b'some content.', b'Some content'):
    (tmp_path / 'a').write_bytes(content)
    told = f'{re.escape(str(tmp_path))}/a is damaged .*; put back a whole copy'
    with pytest.raises(sealed.DamagedError, match=told):
      out.read('a')
  for at in range(len(manifest)):
    damaged = bytearray(manifest)
    damaged[at] ^= 1
    (tmp_path / part_manifest.NAME).write_bytes(damaged)
    with pytest.raises(sealed.DamagedError, match='manifest.json is damaged'):
      PartDirectory(tmp_path, KIND)
  os.unlink(tmp_path / part_manifest.NAME)


def test_a_directory_within_another_ends_its_commits_itself(tmp_path):
  """What recovers the outer one must not remove what the inner one needs."""
  outer = PartDirectory(tmp_path / 'a', 'outer', {})
  PartDirectory(tmp_path / 'a' / 'b', 'inner', {}).commit({'one': Part(b'1')})
  inside = tmp_path / 'a' / 'b'
  (inside / 'one').rename(inside / '.one.staged')  # a commit that was cut off
  (tmp_path / 'a' / '.two.staged').write_bytes(b'2')
  outer.recover()
  assert not (tmp_path / 'a' / '.two.staged').exists()
  again = PartDirectory(inside, 'inner', {})
  again.recover()
  assert again.read('one') == b'1'
