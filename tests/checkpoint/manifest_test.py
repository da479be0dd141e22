import json

import pytest

from genrec_jax.checkpoint import manifest


@pytest.fixture
def step_dir(tmp_path):
  path = tmp_path / '12'
  (path / 'state' / 'd').mkdir(parents=True)
  (path / 'state' / 'd' / 'chunk').write_bytes(bytes(range(256)) * 5000)
  (path / 'state' / 'empty').touch()
  return path


def test_a_manifest_names_every_file_and_keeps_what_it_is_given(step_dir):
  manifest.write(step_dir, 12, host={'x': 0.1}, tree={'w': 'float32[2]'})
  body = manifest.verify(step_dir)
  assert body['step'] == 12
  assert body['host'] == {'x': 0.1}
  assert body['tree'] == {'w': 'float32[2]'}
  assert {name: size for name, (size, _) in body['files'].items()} == {
    'state/d/chunk': 1_280_000,
    'state/empty': 0,
  }
  assert not list(step_dir.glob('*.tmp'))


def test_every_flipped_bit_of_the_manifest_itself_is_noticed(step_dir):
  manifest.write(step_dir, 12)
  path = step_dir / manifest.NAME
  raw = path.read_bytes()
  for bit in range(len(raw) * 8):
    flipped = bytearray(raw)
    flipped[bit // 8] ^= 1 << (bit % 8)
    path.write_bytes(flipped)
    with pytest.raises(manifest.DamagedError):
      manifest.read(step_dir)
  for raw in (b'', b'{}', b'[]', b'null', b'\xff', b'[' * 100_000):
    path.write_bytes(raw)
    with pytest.raises(manifest.DamagedError, match='not as it was written'):
      manifest.read(step_dir)


def test_a_manifest_edited_by_hand_is_not_believed(step_dir):
  manifest.write(step_dir, 12)
  path = step_dir / manifest.NAME
  body = json.loads(path.read_bytes())
  body['step'] = 13
  path.write_text(json.dumps(body, indent=1, sort_keys=True))
  with pytest.raises(manifest.DamagedError, match='not as it was written'):
    manifest.read(step_dir)


def test_a_renamed_step_is_damaged(step_dir):
  manifest.write(step_dir, 12)
  other = step_dir.rename(step_dir.parent / '13')
  with pytest.raises(manifest.DamagedError, match='belongs to step 12'):
    manifest.verify(other)


def test_another_format_is_said_to_be_that(step_dir, monkeypatch):
  with monkeypatch.context() as m:
    m.setattr(manifest, 'FORMAT', 99)
    manifest.write(step_dir, 12)
  with pytest.raises(
    manifest.DamagedError, match='format 99; this version reads'
  ):
    manifest.verify(step_dir)


def test_quick_compares_sizes_only(step_dir):
  manifest.write(step_dir, 12)
  chunk = step_dir / 'state' / 'd' / 'chunk'
  chunk.write_bytes(bytes(1_280_000))
  manifest.verify(step_dir, quick=True)
  with pytest.raises(manifest.DamagedError, match='contents of state/d/chunk'):
    manifest.verify(step_dir)
  chunk.write_bytes(b'')
  with pytest.raises(manifest.DamagedError, match='0 bytes instead of 1280000'):
    manifest.verify(step_dir, quick=True)


def test_without_manifest(step_dir):
  with pytest.raises(manifest.IncompleteError, match='no MANIFEST.json'):
    manifest.verify(step_dir)


def test_steps_are_directories_named_by_a_number(tmp_path):
  for name in ('0', '10', '9', '007', 'best', '3.removed', '-1'):
    (tmp_path / name).mkdir()
  (tmp_path / '11').touch()
  assert manifest.list_steps(tmp_path) == [0, 9, 10]
  assert manifest.list_steps(tmp_path / 'absent') == []
