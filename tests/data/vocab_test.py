import numpy as np
import pytest

from genrec_jax.data import vocab


@pytest.mark.parametrize(
  'ids', [[30, 10, -5, 20], ['b', 'é', 'a a', 'long id, with a comma']]
)
def test_encode_and_decode_are_inverse(ids):
  v = vocab.Vocab(np.array(ids))
  assert len(v) == 4 and v.rows == 5
  np.testing.assert_array_equal(v.encode(np.array(ids)), [1, 2, 3, 4])
  assert v.decode(np.array([[2, 1], [4, 3]])).tolist() == [
    [ids[1], ids[0]],
    [ids[3], ids[2]],
  ]


def test_encode_equals_a_dict():
  rng = np.random.default_rng(0)
  ids = rng.permutation(1000)[:300]
  index = {int(x): i for i, x in enumerate(ids, 1)}
  asked = rng.integers(-10, 1100, 5000)
  got = vocab.Vocab(ids).encode(asked)
  assert got.dtype == np.int32
  assert got.tolist() == [index.get(x, 0) for x in asked.tolist()]


def test_ids_written_as_text_meet_integer_vocabularies_and_back():
  v = vocab.Vocab(np.array([7, 12]))
  asked = np.array(['12', '007', '7', 'x', '1' + '0' * 30, ''])
  assert v.encode(asked).tolist() == [2, 0, 1, 0, 0, 0]
  assert v.encode(np.array(['0', 'x'])).tolist() == [0, 0]
  # An unreadable id stands in as 0 inside; it must not become item 0.
  assert vocab.Vocab(np.array([0, 7])).encode(asked).tolist() == [
    0,
    0,
    2,
    0,
    0,
    0,
  ]
  words = vocab.Vocab(np.array(['a', '12']))
  assert words.encode(np.array([12, 13])).tolist() == [2, 0]


@pytest.mark.parametrize('ids', [[5, 3], ['x', 'yy'], []])
def test_save_and_load(tmp_path, ids):
  v = vocab.Vocab(np.array(ids))
  v.save(tmp_path / 'v.npy')
  loaded = vocab.Vocab.load(tmp_path / 'v.npy')
  assert loaded == v and loaded.fingerprint() == v.fingerprint()


def test_equality_and_fingerprint_see_order_kind_and_content():
  base = vocab.Vocab(np.array([1, 2]))
  for other in ([2, 1], [1, 3], [1], ['1', '2']):
    other = vocab.Vocab(np.array(other))
    assert other != base and other.fingerprint() != base.fingerprint()
  wide = np.array(['a', 'b', 'long'])[:2]
  narrow = vocab.Vocab(np.array(['a', 'b']))
  assert vocab.Vocab(wide) == narrow
  assert vocab.Vocab(wide).fingerprint() == narrow.fingerprint()


def test_empty_vocabulary_knows_nothing():
  v = vocab.Vocab(np.array([], np.int64))
  assert v.rows == 1 and v.encode(np.array([1, 2])).tolist() == [0, 0]


def test_errors(tmp_path):
  with pytest.raises(ValueError, match='3 appears twice'):
    vocab.Vocab(np.array([3, 1, 3]))
  with pytest.raises(ValueError, match='integers or strings'):
    vocab.Vocab(np.array([1.5]))
  v = vocab.Vocab(np.array([3, 1]))
  for bad in (0, 3, -1):
    with pytest.raises(ValueError, match=rf'index {bad} is outside'):
      v.decode(np.array([1, bad]))
  with pytest.raises(FileNotFoundError, match='no such vocabulary'):
    vocab.Vocab.load(tmp_path / 'absent.npy')
  (tmp_path / 'bad.npy').write_text('nonsense')
  with pytest.raises(ValueError, match='not a saved vocabulary'):
    vocab.Vocab.load(tmp_path / 'bad.npy')


def test_parse_ints_takes_only_the_canonical_form():
  text = np.array(['7', '-3', '007', '+7', ' 7', '7.0', '', '9' * 19, '9' * 18])
  values, good = vocab.parse_ints(text)
  assert good.tolist() == [1, 1, 0, 0, 0, 1, 0, 0, 1]
  assert values[good].tolist() == [7, -3, 7, int('9' * 18)]
  odd = ['7.', '.0', '007.0', '7.01', '-0.0', f'{"9" * 19}.0', '٧.0']
  assert not vocab.parse_ints(odd)[1].any()
