import json

import numpy as np
import pytest

from genrec_jax.data import convert, histories, readers, vocab


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
  meta_path = tmp_path / 'h' / 'meta.json'
  meta = json.loads(meta_path.read_text())
  np.save(tmp_path / 'h' / 'items.npy', np.zeros(1, np.int32))
  with pytest.raises(ValueError, match='items.npy.*convert again'):
    histories.Histories.open(tmp_path / 'h')
  meta_path.write_text(json.dumps({**meta, 'format': 0}))
  with pytest.raises(ValueError, match='format 0'):
    histories.Histories.open(tmp_path / 'h')
  meta_path.write_text('{')
  with pytest.raises(ValueError, match='damaged'):
    histories.Histories.open(tmp_path / 'h')
