"""Each fault is told with its file and row; nothing half-written is left."""

import json

import numpy as np
import pytest

from genrec_jax import sealed
from genrec_jax.data.ranking import batches, datasets, saved_encoder, store
from tests.unsealing import unseal

GOOD = 'label,user,price\n0,a,1\n1,b,2\n0,a,3\n1,b,4\n'


def load(tmp_path, text, **changes):
  path = tmp_path / 'x.csv'
  if text is not None:  # else what is there, already prepared
    path.write_bytes(text.encode() if isinstance(text, str) else text)
  cfg = {
    'name': 'csv',
    'path': str(path),
    'labels': ('label',),
    'features': {'user': {}, 'price': {'kind': 'numeric'}},
    **changes,
  }
  return datasets.load(cfg, tmp_path / 'cache', lambda line: None)


@pytest.mark.parametrize(
  'text, changes, wanted',
  [
    (GOOD + '2,a,3\n', {}, r"x.csv, line 6.*'label': '2'.*0 or 1"),
    (GOOD + 'click,a,3\n', {}, r"line 6.*'click' is not a label"),
    (GOOD + ',a,3\n', {}, r'line 6.*not a label'),
    (GOOD + '0,a\n', {}, r'line 6: 2 fields instead of 3'),
    (GOOD + '0,a,1,2\n', {}, r'line 6: 4 fields instead of 3'),
    (GOOD + '0,a,1e39\n', {}, r"line 6.*'price': '1e39'.*float32"),
    (GOOD + '0,a,inf\n', {}, r"line 6.*'inf' is not a finite"),
    (GOOD + '0,a,nano\n', {}, r"line 6.*'nano' is not a finite"),
    (GOOD + '0,a,1_0\n', {}, r"line 6.*'1_0' is not a finite"),
    (GOOD.encode() + b'0,\xff,1\n', {}, r'line 6: not utf-8 text.*as UTF-8$'),
    (GOOD.encode('utf-16'), {}, r'line 1: not utf-8 text.*as UTF-8$'),
    (GOOD.encode('utf-16-le'), {}, r'line 1: zero bytes.*as UTF-8$'),
    (GOOD.replace('price', 'prize'), {}, r"no column 'price'.*'prize'"),
    (GOOD.replace('price', 'user'), {}, r"'user' stands twice"),
    (GOOD.replace('price', '\x1b[2J'), {}, r"'price'.* user, \\x1b\[2J"),
    ('', {}, 'empty'),
    ('label,user,price\n', {}, 'holds no rows'),
    (
      GOOD,
      {'split': {'by': 'order', 'valid_fraction': 0.1}},
      'valid split is empty',
    ),
    (GOOD, {'split': {'by': 'ordr', 'valid_fraction': 0.3}}, 'split.by'),
    (GOOD, {'split': {'valid_fraction': 1.0}}, 'leave something'),
    (GOOD, {'labels': ('lable',)}, r"'lable' \(data.labels\).*'label'"),
    (GOOD, {'labels': ('label', 'label')}, 'two labels'),
    (GOOD, {'features': {'label': {}}}, 'a label and a feature'),
    (GOOD, {'features': {'user': {'knd': 'x'}}}, "'kind'"),
    (GOOD, {'features': {'user': {'kind': 'numerc'}}}, "'numeric'"),
    (
      GOOD,
      {'features': {'price': {'kind': 'numeric', 'fill': 'x'}}},
      "'x', not a number",
    ),
    (GOOD, {'oov': 'hsh'}, "'hash'"),
    (GOOD, {'oov': 'hash'}, 'hash_rows'),
    (GOOD, {'oov': 'error', 'min_count': 2}, 'min_count'),
    (GOOD, {'group': 'usr'}, r'data.group.*user'),
    (GOOD, {'name': 'cvs'}, "'csv'"),
    (GOOD, {'files': {'test': 'tst.csv'}}, 'data.files.test'),
    (GOOD, {'delimiter': ':-'}, 'one character'),
  ],
)
def test_bad_input_is_told_and_leaves_nothing(tmp_path, text, changes, wanted):
  with pytest.raises((ValueError, FileNotFoundError), match=wanted):
    load(tmp_path, text, **changes)
  assert not list((tmp_path / 'cache').glob('*'))


def test_an_unseen_category_is_an_error_where_asked_for(tmp_path):
  (tmp_path / 'test.csv').write_text('label,user,price\n0,a,1\n0,zed,1\n')
  with pytest.raises(ValueError, match=r"test.csv, line 3.*'user': 'zed'"):
    load(tmp_path, GOOD, oov='error', files={'test': 'test.csv'})
  with pytest.raises(FileNotFoundError, match='data.path'):
    load(tmp_path, GOOD, path=str(tmp_path / 'none'))


def test_features_that_share_a_table_agree(tmp_path):
  features = {
    'user': {'table': 't'},
    'price': {'table': 't', 'min_count': 3},
  }
  with pytest.raises(ValueError, match='but not min_count'):
    load(tmp_path, GOOD, features=features)


def test_a_second_load_reuses_and_other_options_do_not(tmp_path):
  first = load(tmp_path, GOOD)
  mark = first.store.directory / store.MANIFEST
  before = mark.stat().st_mtime_ns
  again = datasets.load(
    {
      'name': 'csv',
      'path': str(tmp_path / 'x.csv'),
      'features': {'user': {}, 'price': {'kind': 'numeric'}},
    },
    tmp_path / 'cache',
    lambda line: pytest.fail(line),
  )
  assert mark.stat().st_mtime_ns == before
  assert again.fingerprint() == first.fingerprint()
  other = load(tmp_path, GOOD, min_count=2)
  assert other.store.directory != first.store.directory
  opened = datasets.load(
    {'name': 'prepared', 'path': str(other.store.directory)}, tmp_path
  )
  assert opened.fingerprint() == other.fingerprint()


def test_damage_on_disk_is_found(tmp_path):
  made = load(tmp_path, GOOD, block_rows=2)
  directory = made.store.directory
  file = directory / 'train.array_record'
  good = file.read_bytes()
  manifest = (directory / store.MANIFEST).read_text()

  file.write_bytes(good[:-1])
  with pytest.raises(ValueError, match='bytes instead of'):
    _ = store.PreparedStore(directory).splits
  for at in range(0, len(good), max(1, len(good) // 40)):
    file.write_bytes(good[:at] + bytes([good[at] ^ 255]) + good[at + 1 :])
    try:
      split = store.PreparedStore(directory).splits['train']
      found = [
        batch.ids.values for batch in batches.eval_batches(split, batch_size=4)
      ]
    except ValueError as e:
      assert 'train.array_record' in str(e)
    else:  # a byte that nobody reads
      np.testing.assert_array_equal(found[0][:, 0], [1, 2, 1, 2])
  file.write_bytes(good)

  unseal(directory)  # as in earlier versions
  manifest = (directory / store.MANIFEST).read_text()
  told = json.loads(manifest)
  told['parts']['train']['crc32'][1] ^= 1
  (directory / store.MANIFEST).write_text(json.dumps(told))
  split = store.PreparedStore(directory).splits['train']
  with pytest.raises(ValueError, match='train.array_record, block 1 is dam'):
    split.block(1)
  (directory / store.MANIFEST).write_text(
    manifest.replace('"format": 1', '"format": 0')
  )
  with pytest.raises(ValueError, match='format 0.*prepare the data again'):
    store.PreparedStore(directory)


@pytest.mark.parametrize(
  'name', ['SEAL.json', 'dataset.json', 'encoder.json', 'vocabulary-0.npz']
)
def test_every_damaged_file_is_named_with_the_remedy(tmp_path, name):
  directory = load(tmp_path, GOOD).store.directory
  path = directory / name
  whole = path.read_bytes()
  remedy = f'remove {directory}: it is made again from the source files'
  flipped = bytearray(whole)
  flipped[len(whole) // 2] ^= 1
  for content in (flipped, b'', whole[:-2], whole * 2):
    path.write_bytes(content)
    with pytest.raises(sealed.DamagedError, match=f'{name} is dam.*; {remedy}'):
      load(tmp_path, None)
  path.unlink()
  told = f'{name}(: no such file| is missing, although .*); {remedy}'
  with pytest.raises((FileNotFoundError, sealed.DamagedError), match=told):
    load(tmp_path, None)


@pytest.mark.parametrize(
  'name, change',
  [
    ('dataset.json', {'parts': None}),
    ('dataset.json', {'parts': {'train': {'rows': 4}}}),
    ('dataset.json', {'block_rows': '2'}),
    ('encoder.json', {'columns': [{'kind': 'numeric'}]}),
    ('encoder.json', {'tables': {'a': {'file': 'vocabulary-0.npz'}}}),
    ('encoder.json', {'statistics': 1}),
    ('encoder.json', {'labels': 7}),
  ],
)
def test_without_checksums_the_files_must_make_sense(tmp_path, name, change):
  directory = load(tmp_path, GOOD).store.directory
  unseal(directory)
  load(tmp_path, None)
  told = json.loads((directory / name).read_text()) | change
  (directory / name).write_text(json.dumps(told))
  with pytest.raises(sealed.DamagedError, match=f'{name} is damaged'):
    load(tmp_path, None)


@pytest.mark.parametrize(
  'name', ['SEAL.json', 'data.txt', 'encoder.json', 'vocabulary-0.npz']
)
def test_a_training_mends_the_encoder_of_its_workdir(tmp_path, name, caplog):
  dataset = load(tmp_path, GOOD)
  saved_encoder.save_encoder(tmp_path, dataset)
  assert not caplog.records
  path = tmp_path / 'encoder' / name
  whole = path.read_bytes()
  flipped = bytearray(whole)
  flipped[len(whole) // 2] ^= 1
  for content in (flipped, b'', whole * 2):
    path.write_bytes(content)
    with pytest.raises(sealed.DamagedError, match=f'{name} is dam.*--mode=tra'):
      saved_encoder.load_encoder(tmp_path)
      saved_encoder.read_fingerprint(tmp_path)
    caplog.clear()
    saved_encoder.save_encoder(tmp_path, dataset)
    assert 'writing the encoder again' in caplog.text
    assert path.read_bytes() == whole
  path.unlink()
  with pytest.raises((FileNotFoundError, sealed.DamagedError), match=name):
    saved_encoder.load_encoder(tmp_path)
    saved_encoder.read_fingerprint(tmp_path)
  saved_encoder.save_encoder(tmp_path, dataset)
  assert path.read_bytes() == whole
  before = path.stat().st_ino
  saved_encoder.save_encoder(tmp_path, dataset)  # whole: left as it is
  assert path.stat().st_ino == before
