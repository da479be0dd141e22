"""Scores of a teacher: each once, to the bit, and of one teacher alone."""

import dataclasses
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec_jax import sealed
from genrec_jax.distill.score_parts import Scores
from genrec_jax.distill.teacher_store import TeacherStore
from tests.distill import kills

LABELS = ('click', 'like')
OWNER = dict(teacher='big', labels=LABELS, fingerprint='f00d')


def make_scores(first: int, rows: int, seed: int = 0) -> Scores:
  """Of examples that are numbered on, in no order of time."""
  rng = np.random.default_rng([seed, first])
  return Scores(
    rng.permutation(rows) + first,
    rng.integers(first - rows, first + rows, rows),
    rng.random((rows, 2), np.float32),
    rng.integers(0, 9, rows),
    3,
  )


def open_store(path) -> TeacherStore:
  return TeacherStore.open(path, **OWNER)


def make_oracle(parts) -> dict[int, tuple]:
  """Id -> (time, values, step, window)."""
  return {
    int(x.example_id[i]): (int(x.time[i]), x.values[i].tolist(),
                           int(x.snapshot_step[i]), 3)
    for x in parts
    for i in range(len(x))
  }  # fmt: skip


def check(store: TeacherStore, oracle: dict[int, tuple]) -> None:
  assert len(store) == len(oracle) == store.summary()['examples']
  strangers = [-5, 10**15]
  ids = np.random.default_rng(0).permutation([*oracle, *oracle, *strangers])
  values, found, step, window = store.lookup(ids.astype(np.int64))
  assert values.dtype == np.float32 and values.shape == (len(ids), 2)
  for i, id_ in enumerate(ids.tolist()):
    if id_ in oracle:
      _, *expected = oracle[id_]
      assert [values[i].tolist(), step[i], window[i]] == expected and found[i]
    else:
      assert np.isnan(values[i]).all() and not found[i]
      assert step[i] == window[i] == -1
  rows = []
  for part in store.iterate():
    fields = (getattr(part, x.name).tolist() for x in dataclasses.fields(part))
    rows += zip(*fields, strict=True)
  assert [(time, id_) for id_, time, *_ in rows] == sorted(
    (time, id_) for id_, (time, *_) in oracle.items()
  )
  for id_, *rest in rows:
    assert tuple(rest) == oracle[id_]


@settings(max_examples=40, deadline=None)
@given(
  sizes=st.lists(st.integers(0, 30), max_size=8),
  most=st.integers(1, 60),
  gap=st.integers(0, 40),
)
def test_scores_are_read_back(sizes, most, gap, tmp_path_factory):
  path, parts, first = tmp_path_factory.mktemp('store') / 'store', [], 0
  store = open_store(path)
  for number, rows in enumerate(sizes):
    parts.append(make_scores(first, rows))
    assert store.append(f'window-{number:06d}', parts[-1])
    first += rows + gap
  oracle = make_oracle(parts)
  check(store, oracle)
  check(TeacherStore.open_existing(path), oracle)
  before = store.summary()['parts']
  fewer = store.compact(most)
  assert store.summary()['parts'] == before - fewer
  assert len(list(path.glob('*.parquet'))) == before - fewer
  check(store, oracle)
  check(open_store(path), oracle)
  for number, part in enumerate(parts):
    assert not open_store(path).append(f'window-{number:06d}', part)


def test_what_the_store_says_of_itself(tmp_path):
  store = open_store(tmp_path)
  assert store.summary()['first_time'] is None and not store.keys
  store.append('b', Scores([4, 2], [9, 8], [[0, 1], [1, 0]], 7, 1))
  store.append('a', Scores([], [], np.zeros((0, 2)), 7, 1))
  again = TeacherStore.open_existing(tmp_path)
  assert (again.teacher, again.labels) == ('big', LABELS)
  assert again.fingerprint == 'f00d' and again.keys == store.keys == ('a', 'b')
  told = again.summary()
  assert told.pop('bytes') == sum(
    x.stat().st_size for x in tmp_path.glob('*.parquet')
  )
  assert told == dict(
    teacher='big', labels=[*LABELS], fingerprint='f00d', examples=2,
    appended=2, parts=2, first_time=8, last_time=9,
  )  # fmt: skip


def test_appended_again(tmp_path):
  store, scores = open_store(tmp_path), make_scores(0, 9)
  assert store.append('w', scores)
  # The same rows, in another order.
  rows = np.arange(9)[::-1]
  same = dataclasses.replace(scores, snapshot_window=np.full(9, 3)).take(rows)
  assert not store.append('w', same)
  for field, value in dict(time=0, values=0.5, snapshot_step=11).items():
    changed = getattr(scores, field).copy()
    changed[4] = value
    with pytest.raises(
      ValueError, match="has other scores of 'w': what was ap"
    ):
      store.append('w', dataclasses.replace(scores, **{field: changed}))
  with pytest.raises(
    ValueError, match="1 examples of 'v' already, 8 in part-w"
  ):
    store.append('v', make_scores(8, 3))
  store.append('x', make_scores(20, 3))
  store.compact()
  with pytest.raises(
    ValueError, match="'y' already, 22 in merged.*as 'w' or later"
  ):
    store.append('y', make_scores(22, 3))
  check(open_store(tmp_path), make_oracle([scores, make_scores(20, 3)]))


@pytest.mark.parametrize(
  'other, message',
  [
    (dict(teacher='small'), "teacher is 'big', and not 'small': a store is of"),
    (
      dict(fingerprint='b'),
      "fingerprint is 'f00d', and not 'b': a store is of",
    ),
    (dict(labels=['click']), r"labels is \['click', 'like'\], and not \['cli"),
    (dict(labels=[]), r'labels are \[\]: give the names of the labels'),
    (dict(labels='click'), "labels are 'click': give the names"),
    (dict(labels=['time']), "a label cannot be called 'time', as a column of"),
  ],
)
def test_a_store_is_of_one_teacher(tmp_path, other, message):
  open_store(tmp_path).append('w', make_scores(0, 3))
  with pytest.raises(ValueError, match=message):
    TeacherStore.open(tmp_path, **(OWNER | other))


@pytest.mark.parametrize(
  'change, message',
  [
    (dict(example_id=[1, 1]), "the scores of 'w' have example 1 twice"),
    (
      dict(example_id=[1.0, 2.0]),
      'example_id of the scores .* type float64: gi',
    ),
    (dict(example_id=[[1], [2]]), r'is of shape \[2, 1\] and should be \[N\]'),
    (dict(time=[1]), r'time of .* is of shape \[1\] and should be \[2\]'),
    (dict(values=[[1, 2]]), r'values of shape \[1, 2\], and 2 examples with 2'),
    (
      dict(values=[[1, 2], [np.nan, 1]]),
      r"'w' are not finite in 1 rows, as of the example 2: \[nan, 1.0\]",
    ),
  ],
)
def test_scores_that_are_none(tmp_path, change, message):
  whole = dict(
    example_id=[1, 2], time=[3, 4], values=np.zeros((2, 2)),
    snapshot_step=0, snapshot_window=0,
  )  # fmt: skip
  store = open_store(tmp_path)
  with pytest.raises(ValueError, match=message):
    store.append('w', Scores(**(whole | change)))
  with pytest.raises(
    ValueError, match="'../w' is no name for scores: give lett"
  ):
    store.append('../w', Scores(**whole))
  with pytest.raises(ValueError, match='are .N. whole numbers, not float64'):
    store.lookup(np.zeros(3))
  assert not len(store) and not list(tmp_path.glob('*.parquet'))


def test_damage_of_any_byte_is_found(tmp_path):
  store = open_store(tmp_path)
  store.append('w', make_scores(0, 6))
  path = tmp_path / 'part-w.parquet'
  whole = path.read_bytes()
  told = f'{re.escape(str(path))} is damaged'
  for at in range(len(whole)):
    path.write_bytes(
      whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :]
    )
    with pytest.raises(sealed.DamagedError, match=told):
      TeacherStore.open_existing(tmp_path)
  with pytest.raises(sealed.DamagedError, match=told):
    store.lookup(np.arange(3))  # it was opened before the damage
  for content in (b'', whole[:-1], whole * 2):
    path.write_bytes(content)
    with pytest.raises(sealed.DamagedError, match=told):
      TeacherStore.open_existing(tmp_path)
  path.unlink()
  with pytest.raises(FileNotFoundError, match='part-w.parquet is missing; put'):
    TeacherStore.open_existing(tmp_path)


PARTS = [make_scores(10 * i, 6) for i in range(5)]


def fill(path: pathlib.Path, count: int = 4) -> None:
  store = open_store(path)
  for number in range(count):
    store.append(f'window-{number}', PARTS[number])


def test_a_store_that_is_killed_while_it_merges(tmp_path):
  """Merges of two parts each: kills come between them, too."""
  sizes = set()
  for path in kills.walk(
    tmp_path, fill, lambda path: open_store(path).compact(12)
  ):
    check(TeacherStore.open_existing(path), make_oracle(PARTS[:4]))
    store = open_store(path)
    sizes.add(store.summary()['parts'])
    check(store, make_oracle(PARTS[:4]))
    assert len(list(path.glob('*.parquet'))) == store.summary()['parts']
    store.append('window-4', PARTS[4])
    store.compact(12)
    check(open_store(path), make_oracle(PARTS))
  assert sizes == {2, 3, 4}


def test_a_store_that_is_killed_while_it_grows(tmp_path):
  def work(path):
    fill(path, 3)

  sizes = set()
  for path in kills.walk(tmp_path, lambda path: None, work):
    if (path / 'manifest.json').exists():
      store = TeacherStore.open_existing(path)
      sizes.add(len(store.keys))
      check(store, make_oracle(PARTS[: len(store.keys)]))
    fill(path, 4)
    check(open_store(path), make_oracle(PARTS[:4]))
  assert sizes == {0, 1, 2, 3}


def test_a_reader_follows_a_writer_that_merges(tmp_path):
  fill(tmp_path)
  reader, writer = TeacherStore.open_existing(tmp_path), open_store(tmp_path)
  assert not reader.refresh()
  writer.append('window-4', PARTS[4])
  writer.compact()
  # The parts that the reader knows are gone.
  assert reader.lookup(PARTS[0].example_id).found.all()
  check(reader, make_oracle(PARTS))


WRITE = """
import sys
from genrec_jax.distill.teacher_store import TeacherStore
TeacherStore.open(
  sys.argv[1], teacher='big', labels=['click', 'like'], fingerprint='f00d'
)
print(*(x for x in ('jax', 'grain', 'flax') if x in sys.modules))
"""


def test_another_process_may_not_write(tmp_path):
  store = open_store(tmp_path)
  command = [sys.executable, '-c', WRITE, str(tmp_path)]
  environment = os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)}
  ran = subprocess.run(command, env=environment, capture_output=True, text=True)
  assert 'another process is saving in' in ran.stderr
  del store
  ran = subprocess.run(command, env=environment, capture_output=True, text=True)
  assert (ran.returncode, ran.stdout) == (0, '\n'), ran.stderr
