"""Which ids share a row, against what is known of the data."""

import itertools

import numpy as np
import pytest

from genrec_jax.embedding.learned_hash import HashOptions, learn_rows
from genrec_jax.embedding.learned_map import (
  LearnedIdMap,
  MapFile,
  count_words,
  pack_rows,
)


def plant(kinds: int, count: int, noise: float, seed: int = 0):
  """(counts, vectors, kind of each id)."""
  rng = np.random.default_rng(seed)
  kind = rng.integers(kinds, size=count)
  centres = rng.normal(size=(kinds, 4)) * 3
  counts = np.sort(rng.zipf(1.5, count) + 1)[::-1]
  vectors = centres[kind] + noise * rng.normal(size=(count, 4))
  return counts, vectors.astype(np.float32), kind


def test_kinds_are_found():
  counts, vectors, kind = plant(8, 3_000, 0.1)
  rows = learn_rows(counts, vectors, HashOptions(rows=10, shrink=0.0))
  found = rows[1:-1]
  pairs = {*zip(kind.tolist(), found.tolist(), strict=True)}
  assert len(pairs) == 8, 'each kind has one row, and each row one kind'


def test_frequent_ids_are_alone_and_unseen_ones_apart():
  counts, vectors, _ = plant(8, 500, 0.1)
  rng = np.random.default_rng(3)
  order = rng.permutation(500)  # ids need not be in the order of frequency
  options = HashOptions(rows=100, private=40, reserved=3)
  rows = learn_rows(counts[order], vectors[order], options, unseen=7)
  assert len(rows) == 508 and rows[0] == 0
  alone, sizes = np.unique(rows, return_counts=True)
  frequent = np.argsort(-counts[order], kind='stable')[:40]
  assert sorted(rows[1 + frequent].tolist()) == list(range(1, 41))
  assert np.all(sizes[np.isin(alone, rows[1 + frequent])] == 1)
  assert rows[-7:].tolist() == [97, 98, 99, 97, 98, 99, 97]
  assert not {97, 98, 99} & {*rows[:-7].tolist()}


def test_equal_counts_are_told_apart_by_chance():
  counts = np.ones(1_000, int)
  options = HashOptions(rows=300, private=100, method='frequency')
  rows = learn_rows(counts, None, options)
  private = np.flatnonzero((rows > 0) & (rows <= 100))
  assert 350 < private.mean() < 650 and len(private) == 100
  again = learn_rows(counts, None, options)
  np.testing.assert_array_equal(rows, again)


@pytest.mark.parametrize(
  'options', [{'private': -1}, {'reserved': 0}, {'shrink': -1.0}]
)
def test_options_that_are_none(options):
  with pytest.raises(ValueError, match='must be at least'):
    HashOptions(rows=20, **options)


def test_rare_ids_go_with_the_mean():
  """An id seen once is noise: with κ it stands near the middle of all."""
  counts = np.array([1000, 1000, 1000, 1])
  vectors = np.array([[-1.0], [0.1], [1.0], [1.0]], np.float32)
  by = {
    shrink: learn_rows(counts, vectors, HashOptions(rows=5, shrink=shrink))[
      1:-1
    ]
    for shrink in (0.0, 100.0)
  }
  assert by[0.0][3] == by[0.0][2]
  assert by[100.0][3] == by[100.0][1] != by[100.0][2]


def test_counts_weigh():
  """Two near ids that many read are worth a row more than far rare ones."""
  vectors = np.array([[0.0], [1.0], [10.0], [14.0]], np.float32)
  for counts, apart in (([1e4, 1e4, 1, 1], True), ([1, 1, 1e4, 1e4], False)):
    options = HashOptions(rows=5, shrink=0.0)
    rows = learn_rows(np.array(counts), vectors, options)
    assert (rows[1] != rows[2]) == apart


def test_a_hash_of_the_tail_knows_no_vectors():
  counts = np.arange(1000, 0, -1)
  options = HashOptions(rows=60, private=10, method='frequency', seed=4)
  rows = learn_rows(counts, None, options)
  assert rows[1:11].tolist() == list(range(1, 11))
  assert {*rows[11:-1].tolist()} == {*range(11, 59)}


@pytest.mark.parametrize(
  ('make', 'told'),
  [
    (lambda: HashOptions(rows=2), '2 rows are too few.* 3 are the least'),
    (lambda: HashOptions(rows=9, private=7), '7 for ids of their own'),
    (lambda: HashOptions(rows=9, method='x'), "method is 'x'"),
    (
      lambda: HashOptions(rows=9, private=1, method='embedding'),
      'gives no id a row of its own',
    ),
    (
      lambda: learn_rows(np.ones(4), np.ones((5, 2)), HashOptions(rows=9)),
      '5 vectors are given for 4 ids',
    ),
    (
      lambda: learn_rows(np.ones(3), None, HashOptions(rows=9, private=4)),
      '4 ids shall have rows of their own, and there are 3',
    ),
    (
      lambda: learn_rows(np.ones(3), None, HashOptions(rows=9)),
      "method='both' needs vectors",
    ),
    (lambda: MapFile('t', np.array([0, 3, 9]), 9), 'rows 1 to 8'),
    (lambda: MapFile('t', np.array([1, 3]), 9), 'moves padding'),
  ],
)
def test_what_cannot_be(make, told):
  with pytest.raises(ValueError, match=told):
    make()


# ---- Files ------------------------------------------------------------------


def test_a_file_comes_back(tmp_path):
  rng = np.random.default_rng(0)
  rows = np.append(0, rng.integers(1, 1000, 4321)).astype(np.int32)
  saved = MapFile('user', rows, 1000, 'abc', {'seed': 3})
  saved.save(tmp_path / 'maps' / 'user.npz')
  found = MapFile.load(tmp_path / 'maps' / 'user.npz')
  np.testing.assert_array_equal(found.rows, rows)
  assert (found.table, found.count, found.vocabulary) == ('user', 1000, 'abc')
  assert found.about == {'seed': 3}
  assert found.fingerprint() == saved.fingerprint()
  # Ten bits a row.
  assert found.nbytes == 4 * count_words(4322, 1000) == 4 * (136 * 10 + 1)


def test_other_maps_have_other_fingerprints():
  rows = np.array([0, 1, 2, 1])
  marks = {
    MapFile('t', rows, 3).fingerprint(),
    MapFile('t', rows, 4).fingerprint(),
    MapFile('t', rows, 3, 'v').fingerprint(),
    MapFile('t', np.array([0, 2, 1, 1]), 3).fingerprint(),
  }
  assert len(marks) == 4


def test_a_damaged_file_is_refused(tmp_path):
  path = tmp_path / 'm.npz'
  MapFile('t', np.array([0] + [1, 2] * 50), 3).save(path)
  raw = path.read_bytes()
  refused = 0
  for at in range(0, len(raw), 7):
    path.write_bytes(raw[:at] + bytes([raw[at] ^ 0xFF]) + raw[at + 1 :])
    try:
      found = MapFile.load(path)
    except ValueError as error:
      assert 'm.npz' in str(error)
      refused += 1
    else:  # a byte that says nothing, such as a date
      assert found.rows.tolist() == [0] + [1, 2] * 50
  assert refused > len(raw) / 7 / 2
  with pytest.raises(ValueError, match='cannot be read'):
    MapFile.load(tmp_path / 'nobody.npz')


def test_a_map_of_another_table_is_refused(tmp_path):
  path = tmp_path / 'm.npz'
  MapFile('t', np.array([0] + [1, 2] * 50), 3).save(path)
  with pytest.raises(ValueError, match='101 ids and 3 rows'):
    LearnedIdMap('t', 102, 3, str(path)).load()
  state = LearnedIdMap('t', 101, 3, str(path)).load()
  rows = np.array([0] + [1, 2] * 50)
  np.testing.assert_array_equal(state['words'], pack_rows(rows, 3))


def test_all_widths_of_a_row():
  rng = np.random.default_rng(1)
  for bits, count in itertools.product(range(1, 31, 3), (1, 31, 32, 33, 100)):
    rows = np.append(0, rng.integers(1, 2**bits, count))
    found = MapFile('t', rows, 2**bits)
    assert found.nbytes == len(pack_rows(rows, 2**bits)) * 4
