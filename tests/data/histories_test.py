import json

import numpy as np
import pytest

from genrec_jax import sealed
from genrec_jax.data import convert, histories, readers, vocab
from genrec_jax.data import extras as extras_lib
from tests.unsealing import unseal


def grouped_slowly(user, item, time):
  """Lists of (item, time) per user, sorted stably."""
  out = {}
  for u, i, t in zip(user, item, time, strict=True):
    out.setdefault(u, []).append((i, t))
  return {u: sorted(out[u], key=lambda e: e[1]) for u in sorted(out)}


def as_lists(h):
  items = h.vocab.decode(h.items).tolist()
  times = [0] * len(items) if h.times is None else h.times.tolist()
  rows = zip(h.offsets[:-1].tolist(), h.offsets[1:].tolist(), strict=True)
  return {
    user: list(zip(items[a:b], times[a:b], strict=True))
    for user, (a, b) in zip(h.users.ids.tolist(), rows, strict=True)
  }


@pytest.mark.parametrize('text', [False, True])
def test_from_arrays_equals_a_loop(text):
  rng = np.random.default_rng(0)
  user, item = rng.integers(0, 20, 500), rng.integers(0, 50, 500)
  if text:
    user, item = user.astype(str), item.astype(str)
  time = rng.integers(0, 30, 500)  # many ties
  h = histories.from_arrays(user, item, time, rating=np.arange(500))
  expected = grouped_slowly(user.tolist(), item.tolist(), time.tolist())
  assert as_lists(h) == expected
  assert len(h) == len(expected) and h.has_times
  assert h.ratings.dtype == np.float32 and h.items.dtype == np.int32
  order = np.lexsort((time, user))
  np.testing.assert_array_equal(h.ratings, order)


def test_without_times_the_input_order_stays():
  h = histories.from_arrays(list('babab'), [5, 4, 3, 2, 1])
  assert as_lists(h) == {'a': [(4, 0), (2, 0)], 'b': [(5, 0), (3, 0), (1, 0)]}
  assert not h.has_times and h.ratings is None


def test_a_given_vocabulary_is_applied_to_new_data():
  items = vocab.Vocab(np.array([30, 10, 20]))
  log = ([1, 1, 2, 3], [10, 99, 30, 99])
  with pytest.raises(ValueError, match='item 99 is not in the vocabulary'):
    histories.from_arrays(*log, item_vocab=items)
  h = histories.from_arrays(*log, item_vocab=items, unknown='skip')
  assert h.items.tolist() == [2, 1] and h.users.ids.tolist() == [1, 2]
  with pytest.raises(ValueError, match="unknown must be 'error' or 'skip'"):
    histories.from_arrays(*log, item_vocab=items, unknown='drop')


def test_an_empty_log_gives_no_users():
  h = histories.from_arrays(np.zeros(0, int), np.zeros(0, int), [])
  assert len(h) == 0 and h.offsets.tolist() == [0]


def test_open_refuses_what_is_not_whole(tmp_path):
  with pytest.raises(FileNotFoundError, match='not a directory of converted'):
    histories.Histories.open(tmp_path)
  events = readers.Events(np.array([1, 1]), np.array([2, 3]))
  convert.convert_log([events], tmp_path / 'h', log=lambda _: None)
  histories.Histories.open(tmp_path / 'h')
  unseal(tmp_path / 'h')  # as in earlier versions
  meta_path = tmp_path / 'h' / 'meta.json'
  meta = json.loads(meta_path.read_text())
  meta_path.write_text(json.dumps({**meta, 'format': 0}))
  with pytest.raises(ValueError, match='format 0'):
    histories.Histories.open(tmp_path / 'h')


def convert_two(out, fingerprint='same'):
  """Two users' histories with an extra column, converted or opened."""
  events = readers.Events(
    np.array([1, 1, 2]),
    np.array([7, 8, 7]),
    np.array([10, 11, 12]),
    extras={'place': np.array(['a', 'b', 'a'])},
  )
  return convert.convert_log(
    [events],
    out,
    extras=(extras_lib.ExtraColumn('place', 'category'),),
    fingerprint=fingerprint,
    log=lambda _: None,
  )


FILES = [
  'extra-0-ids.npy', 'extra-0.npy', 'item_ids.npy', 'items.npy', 'meta.json',
  'offsets.npy', 'times.npy', 'user_ids.npy',
]  # fmt: skip


@pytest.mark.parametrize('name', FILES)
def test_every_damaged_file_is_named_with_the_remedy(tmp_path, name):
  out = tmp_path / 'h'
  convert_two(out)
  assert sorted(p.name for p in out.iterdir()) == sorted([*FILES, sealed.NAME])
  path = out / name
  whole = path.read_bytes()
  told = f'{path} is damaged .*; remove {out}: it is made again from the source'
  for at in (0, 40, len(whole) - 1):
    flipped = bytearray(whole)
    flipped[at] ^= 4
    for content in (flipped, b'', whole[:-3], whole * 2):
      path.write_bytes(content)
      with pytest.raises(sealed.DamagedError, match=told):
        convert_two(out)
  path.unlink()
  with pytest.raises(FileNotFoundError, match=f'{name}: no such file; remove'):
    convert_two(out)
  with pytest.raises(FileNotFoundError, match='and convert the files again'):
    histories.Histories.open(out)


def test_a_lost_seal_is_damage(tmp_path):
  out = tmp_path / 'h'
  convert_two(out)
  (out / sealed.NAME).unlink()
  told = 'SEAL.json is missing, although meta.json says .*; remove '
  with pytest.raises(sealed.DamagedError, match=f'{told}{out}: it is made'):
    convert_two(out)
  with pytest.raises(sealed.DamagedError, match=told):
    histories.Histories.open(out)


BAD = {
  'one item beyond the vocabulary': ('items.npy', [1, 2, 3]),
  'far beyond': ('items.npy', [1, 10**6, 1]),
  'padding': ('items.npy', [1, 0, 1]),
  'below': ('items.npy', [1, -5, 1]),
  'a category beyond': ('extra-0.npy', [1, 2, 3]),
  'of another type': ('items.npy', [1.0, 2.0, 1.0]),
  'not from 0': ('offsets.npy', np.array([1, 2, 3])),
  'not to the end': ('offsets.npy', np.array([0, 2, 2])),
  'descending': ('offsets.npy', np.array([0, 4, 3])),
  'one user less': ('offsets.npy', np.array([0, 3])),
  'a user twice': ('user_ids.npy', np.array([1, 1])),
  'a user more': ('user_ids.npy', np.array([1, 2, 3])),
  'ids in a square': ('user_ids.npy', np.array([[1], [2]])),
  'an event less': ('times.npy', np.array([10, 11])),
}


@pytest.mark.parametrize('case', BAD)
def test_without_checksums_the_columns_must_make_sense(tmp_path, case):
  name, values = BAD[case]
  made = convert_two(tmp_path / 'h')
  unseal(tmp_path / 'h')
  assert as_lists(convert_two(tmp_path / 'h')) == as_lists(made)
  if isinstance(values, list):
    values = np.array(values, 'f4' if type(values[0]) is float else 'i4')
  np.save(tmp_path / 'h' / name, values)
  with pytest.raises(sealed.DamagedError, match=f'{tmp_path}/h/.*.npy is dam'):
    histories.Histories.open(tmp_path / 'h')


@pytest.mark.parametrize(
  'change',
  [
    {'events': '3'},
    {'columns': None},
    {'columns': ['times']},
    {'columns': ['items', 'prices']},
    {'columns': [['items']]},
    {'extras': 7},
    {'extras': [{'name': 'place'}]},
    {'extras': [{'name': 'p', 'kind': [], 'file': 'extra-0'}]},
    {'extras': [{'name': 'p', 'kind': 'int', 'file': '../extra-0'}]},
    {'events': 10**30},
  ],
)
def test_without_checksums_meta_must_make_sense(tmp_path, change):
  convert_two(tmp_path / 'h')
  unseal(tmp_path / 'h')
  path = tmp_path / 'h' / 'meta.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | change))
  with pytest.raises(sealed.DamagedError, match='is damaged'):
    histories.Histories.open(tmp_path / 'h')
