"""What a workdir remembers of its items."""

import dataclasses
import json
import types
import zlib

import numpy as np
import pytest

from genrec_jax import sealed
from genrec_jax.data import datasets, histories, items, vocab
from genrec_jax.data.items import ItemCatalogue
from tests.unsealing import unseal


def data(ids=('b', 'a', 'c'), titles=None, name='one'):
  """As much of a run's data as `Items.of` looks at."""
  h = histories.from_arrays(['u', 'u', 'v'], list(ids), [3, 4, 5])
  corpus = np.array([1, 3], np.int32)
  return types.SimpleNamespace(
    dataset=datasets.RetrievalDataset('own', h, corpus, titles),
    item_counts=np.array([0, 2, 1, 0]),
    fingerprint=lambda: name,
  )


def same(a: ItemCatalogue, b: ItemCatalogue):
  for field in dataclasses.fields(ItemCatalogue):
    x, y = getattr(a, field.name), getattr(b, field.name)
    assert np.array_equal(x, y) if isinstance(x, np.ndarray) else x == y


@pytest.mark.parametrize(
  'made',
  [
    data(),
    data(ids=(30, 2**40, 7)),
    data(titles={1: 'Ein Käse, "alt"', 3: ''}),
  ],
)
def test_round_trip(tmp_path, made):
  items.keep_items(tmp_path, made)
  found = ItemCatalogue.load(tmp_path)
  same(found, ItemCatalogue.from_data(made))
  assert found.has_times and found.data == 'one'


def test_titles():
  found = ItemCatalogue.from_data(
    data(ids=(30, 40, 7), titles={1: 'first', 3: 'last'})
  )
  assert [found.title(i) for i in (7, 30, 40, 99)] == [
    'first', None, 'last', None,
  ]  # fmt: skip
  assert ItemCatalogue.from_data(data()).title('a') is None


def test_kept_once_and_again_for_other_data(tmp_path):
  items.keep_items(tmp_path, data())
  before = (tmp_path / 'items' / 'meta.json').stat()
  items.keep_items(tmp_path, data())
  after = (tmp_path / 'items' / 'meta.json').stat()
  assert (before.st_ino, before.st_mtime_ns) == (
    after.st_ino,
    after.st_mtime_ns,
  )
  other = data(ids=('x', 'y', 'z'), name='other')
  items.keep_items(tmp_path, other)
  same(ItemCatalogue.load(tmp_path), ItemCatalogue.from_data(other))
  assert [p.name for p in tmp_path.iterdir()] == ['items']


def test_a_killed_write_leaves_nothing_that_is_read(tmp_path):
  (tmp_path / '.items.1').mkdir()  # of a process that was killed
  with pytest.raises(FileNotFoundError, match='--mode=train'):
    ItemCatalogue.load(tmp_path)
  items.keep_items(tmp_path, data())
  same(ItemCatalogue.load(tmp_path), ItemCatalogue.from_data(data()))


@pytest.mark.parametrize(
  'name, change',
  [
    ('counts.npy', lambda counts: counts[1:]),
    ('counts.npy', lambda counts: counts - counts.max() - 1),
    ('counts.npy', lambda counts: counts.astype(float)),
    ('corpus.npy', lambda corpus: corpus[::-1]),
    ('corpus.npy', lambda corpus: corpus - 1),
    ('corpus.npy', lambda corpus: corpus + 2**20),
    ('corpus.npy', lambda corpus: corpus[None]),
  ],
)
def test_items_without_checksums_are_opened_and_must_make_sense(
  tmp_path, name, change
):
  items.keep_items(tmp_path, data())
  folder = tmp_path / 'items'
  unseal(folder)  # as in earlier versions
  same(ItemCatalogue.load(tmp_path), ItemCatalogue.from_data(data()))
  np.save(folder / name, change(np.load(folder / name)))
  with pytest.raises(ValueError, match=f'{name} is damaged .it holds no'):
    ItemCatalogue.load(tmp_path)


def test_checksums_of_an_earlier_version_are_compared(tmp_path):
  items.keep_items(tmp_path, data())
  folder = tmp_path / 'items'
  unseal(folder)
  meta = json.loads((folder / 'meta.json').read_text())
  names = ('titles.json', 'counts.npy', 'corpus.npy')
  meta['checksums'] = {n: zlib.crc32((folder / n).read_bytes()) for n in names}
  (folder / 'meta.json').write_text(json.dumps(meta))
  same(ItemCatalogue.load(tmp_path), ItemCatalogue.from_data(data()))
  np.save(folder / 'counts.npy', np.array([0, 2, 1, 1]))
  with pytest.raises(ValueError, match='counts.npy is damaged .it is not the'):
    ItemCatalogue.load(tmp_path)
  items.keep_items(tmp_path, data())
  vocab.Vocab(np.array(['b', 'c', 'a'])).save(folder / 'ids.npy')
  unseal(folder)
  with pytest.raises(ValueError, match='ids.npy is damaged .it is not'):
    ItemCatalogue.load(tmp_path)


FILES = ['SEAL.json', 'corpus.npy', 'counts.npy', 'ids.npy', 'meta.json',
         'titles.json']  # fmt: skip


@pytest.mark.parametrize('name', FILES)
def test_damage_is_refused_and_a_training_mends_it(tmp_path, name, caplog):
  items.keep_items(tmp_path, data())
  folder = tmp_path / 'items'
  assert sorted(path.name for path in folder.iterdir()) == FILES
  whole = (folder / name).read_bytes()
  flipped = bytearray(whole)
  flipped[-2] ^= 1
  for content in (flipped, whole[:-9], whole * 2, b''):
    (folder / name).write_bytes(content)
    with pytest.raises(
      sealed.DamagedError, match=f'{name} is damaged .*--mode=train with the'
    ):
      ItemCatalogue.load(tmp_path)
    caplog.clear()
    items.keep_items(tmp_path, data())
    assert f'{name} is damaged' in caplog.text
    assert 'writing the items again' in caplog.text
    same(ItemCatalogue.load(tmp_path), ItemCatalogue.from_data(data()))
  (folder / name).unlink()
  with pytest.raises(
    (FileNotFoundError, sealed.DamagedError),
    match=f'{name}(: no such file| is missing, .*); --mode=train with',
  ):
    ItemCatalogue.load(tmp_path)
  items.keep_items(tmp_path, data())
  same(ItemCatalogue.load(tmp_path), ItemCatalogue.from_data(data()))


def test_a_format_of_the_future_is_refused(tmp_path):
  items.keep_items(tmp_path, data())
  path = tmp_path / 'items' / 'meta.json'
  meta = json.loads(path.read_text())
  path.write_text(json.dumps({**meta, 'format': 99}))
  unseal(tmp_path / 'items')
  with pytest.raises(ValueError, match='format 99'):
    ItemCatalogue.load(tmp_path)
