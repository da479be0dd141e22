import collections

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genrec_jax.data.ranking import raw, transform, vocabulary
from genrec_jax.data.ranking import schema as schema_lib


def fitted(values, **options):
  counts = vocabulary.ValueCounts()
  counts.add(values)
  return vocabulary.fit_vocabulary(schema_lib.Column('c', **options), counts)


def is_whole_float(text: str) -> bool:
  """Such as 7.0, which is the value 7; what follows is about other texts."""
  try:
    return float(text).is_integer() and not text.strip().isdecimal()
  except ValueError:
    return False


TEXTS = st.text(max_size=3).filter(lambda text: not is_whole_float(text))


@given(st.lists(TEXTS, max_size=40), st.integers(1, 3))
def test_rows_go_by_frequency_then_by_value(values, min_count):
  made = fitted(values, min_count=min_count)
  counts = collections.Counter(v for v in values if v)
  known = [v for v in counts if counts[v] >= min_count]
  known.sort(key=lambda v: (-counts[v], v))
  assert list(made.values) == known
  assert made.rows == len(known) + 2
  lookup = {v: i for i, v in enumerate(['', *known])}
  rows = made.encode([*values, 'never met'])
  want = [lookup.get(v, made.rows - 1) for v in [*values, 'never met']]
  np.testing.assert_array_equal(rows, want)
  decoded = made.decode(rows)
  for value, row, text in zip(values, want, decoded, strict=False):
    assert text == (value if row < made.rows - 1 else '?')


@given(st.lists(st.one_of(st.none(), st.integers(-9, 99)), max_size=40))
def test_numbers_are_the_same_values_as_their_texts(values):
  texts = ['' if v is None else str(v) for v in values]
  present = np.array([v is not None for v in values], bool)
  typed = raw.NumberColumn(
    np.array([v or 0 for v in values], np.int64), present
  )
  a, b = fitted(texts), fitted(typed)
  assert a.values == b.values
  np.testing.assert_array_equal(a.counts, b.counts)
  np.testing.assert_array_equal(a.encode(texts), b.encode(typed))


def test_unseen_values_are_hashed_over_the_last_rows():
  made = fitted(['a', 'a', 'b'], oov='hash', hash_rows=16)
  assert made.rows == 1 + 2 + 16
  words = [f'word{i}' for i in range(1600)]
  rows = made.encode(words)
  assert rows.min() >= 3 and rows.max() < made.rows
  counts = np.bincount(rows - 3, minlength=16)
  assert counts.min() > 60 and counts.max() < 150
  np.testing.assert_array_equal(rows, made.encode(words))
  # Another table spreads them in another way.
  other = vocabulary.Vocabulary('d', ('a', 'b'), made.counts, 'hash', 16)
  assert (other.encode(words) != rows).mean() > 0.8


def test_hashing_needs_no_vocabulary():
  made = fitted(['a', 'b'], vocabulary='hashed', hash_rows=8)
  assert made.values == () and made.rows == 9
  rows = made.encode(['a', '', 'zed'])
  assert rows[1] == 0 and rows[0] > 0 and rows[2] > 0


def test_saved_vocabularies_come_back(tmp_path):
  made = fitted(['a\nb', 'é', '', 'a\nb', ' '])
  made.save(tmp_path / 'v.npz')
  raw_bytes = (tmp_path / 'v.npz').read_bytes()
  again = vocabulary.Vocabulary.from_bytes(raw_bytes, 'c', 'row', 0)
  assert again.values == made.values
  assert again.fingerprint() == made.fingerprint()
  assert fitted(['x']).fingerprint() != made.fingerprint()
  # The ends of the texts are part of it.
  assert fitted(['ab', 'c']).fingerprint() != fitted(['a', 'bc']).fingerprint()
  for damaged in (b'', b'PK', raw_bytes[:-30], raw_bytes[:200]):
    with pytest.raises(ValueError, match='it holds no vocabulary'):
      vocabulary.Vocabulary.from_bytes(damaged, 'c', 'row', 0)


def test_what_save_does_not_write_is_refused(tmp_path):
  text, counts = np.frombuffer(b'abc', np.uint8), np.ones(2, np.int64)
  for save, ends, why in (
    (np.savez_compressed, [1, 3], 'compressed'),
    (np.savez, [3, 1], 'overlap'),
    (np.savez, [1, 2], 'overlap'),
    (np.savez, [-1, 3], 'overlap'),
  ):
    path = tmp_path / 'v.npz'
    save(path, text=text, ends=np.array(ends), counts=counts)
    with pytest.raises(ValueError, match=f'no vocabulary: .*{why}'):
      vocabulary.Vocabulary.from_bytes(path.read_bytes(), 'c', 'row', 0)


def test_buckets_are_those_of_the_published_preparation():
  x = np.array([-3, 0, 1, 2, 3, 4, 10, 1000, 2.5])
  found = transform.bucket_counts(raw.NumberColumn(x)).values
  want = [-3, 0, 1, 2, 1, 1, 5, 47, 0]
  np.testing.assert_array_equal(found, want)


@given(
  st.lists(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9),
    min_size=1,
    max_size=6,
  )
)
def test_moments_of_chunks_are_those_of_all(chunks):
  moments = transform.Moments()
  for chunk in chunks:
    moments.add(raw.NumberColumn(np.array(chunk)))
  every = np.concatenate(chunks)
  np.testing.assert_allclose(moments.mean, every.mean(), atol=1e-6)
  deviation = every.std()
  if deviation > 1e-3:
    np.testing.assert_allclose(moments.deviation, deviation, rtol=1e-4)
