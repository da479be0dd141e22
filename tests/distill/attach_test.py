"""Scores beside examples, and what is done about those without."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from genrec_jax.distill import attach
from genrec_jax.distill.attach import attach_scores
from genrec_jax.distill.teacher_store import Scores, TeacherStore

EXAMPLES = pa.table({'example_id': [3, 1, 2], 'c': ['x', 'y', 'z']})


def open_store(path, labels=('click',)) -> TeacherStore:
  return TeacherStore.open(
    path, teacher='big', labels=list(labels), fingerprint='f'
  )


def scores_of(ids, count=1) -> Scores:
  ids = np.array(ids)
  values = ids[:, None] / 10 + np.arange(count) / 100
  return Scores(ids, ids * 60, values, 7, 0)


@pytest.fixture
def store(tmp_path):
  found = open_store(tmp_path / 'store')
  found.append('window-0', scores_of([1, 3]))
  return found


def test_scores_stand_beside_their_examples(store):
  store.append('window-1', scores_of([2, 9]))
  table, lacking = attach_scores(EXAMPLES, store)
  assert not lacking
  np.testing.assert_allclose(table['teacher'].to_numpy(), [0.3, 0.1, 0.2])
  assert table['teacher_weight'].to_pylist() == [1, 1, 1]
  assert table['c'].to_pylist() == ['x', 'y', 'z']


def test_an_example_without_a_score_is_an_error_unless_it_may_be(store):
  with pytest.raises(ValueError, match='1 of 3 examples .* as example 2'):
    attach_scores(EXAMPLES, store)
  table, lacking = attach_scores(EXAMPLES, store, 'unannotated')
  assert lacking == 1
  assert table['teacher_weight'].to_pylist() == [1, 1, 0]
  assert table['teacher'].to_pylist()[2] == 0


def test_who_waits_gets_what_another_process_appends(store, tmp_path):
  reader = TeacherStore.open_existing(tmp_path / 'store')
  looks = []

  def wait():
    looks.append(1)
    if len(looks) == 3:
      store.append('window-1', scores_of([2]))

  table, lacking = attach_scores(EXAMPLES, reader, 'wait', wait=wait)
  assert len(looks) == 3 and not lacking
  assert table['teacher_weight'].to_pylist() == [1, 1, 1]


def test_several_labels_have_columns_of_their_own(tmp_path):
  store = open_store(tmp_path / 'two', ('a', 'b'))
  store.append('window-0', scores_of([1, 2, 3], 2))
  table, _ = attach_scores(EXAMPLES, store, column='big')
  assert table.column_names[2:] == ['big_a', 'big_b', 'big_weight']
  np.testing.assert_allclose(
    table['big_b'].to_numpy(), [0.31, 0.11, 0.21], rtol=1e-6
  )


def test_what_cannot_be_is_refused(store):
  with pytest.raises(ValueError, match='missing is'):
    attach_scores(EXAMPLES, store, 'zero')
  with pytest.raises(ValueError, match='no column example_id'):
    attach_scores(EXAMPLES.select(['c']), store)
  with pytest.raises(ValueError, match="a column 'c' already"):
    attach_scores(EXAMPLES, store, 'unannotated', column='c')


def test_the_command(store, tmp_path, capsys):
  path, out = tmp_path / 'in.parquet', tmp_path / 'out.parquet'
  pq.write_table(EXAMPLES, path)
  words = [str(path), str(out), '--scores', str(tmp_path / 'store')]
  assert attach.main([*words, '--missing', 'unannotated']) == 0
  assert '3 examples, 1 of them without a score' in capsys.readouterr().out
  assert pq.read_table(out)['teacher_weight'].to_pylist() == [1, 1, 0]
