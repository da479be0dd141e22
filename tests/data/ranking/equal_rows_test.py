"""Rows of a held-out split that stand in the training split too."""

import logging

import numpy as np
import pytest

from genrec_jax.data.ranking import datasets, equal_rows


def write(path, rows):
  lines = [
    'label,user,tags,price,other',
    *(','.join(map(str, r)) for r in rows),
  ]
  path.write_text('\n'.join(lines) + '\n')


def make_rows(count, values, seed=0):
  rng = np.random.default_rng(seed)
  return [
    (rng.integers(2), *rng.integers(0, values, 3), i) for i in range(count)
  ]


@pytest.fixture
def shares(tmp_path, caplog):
  """Prepares files and returns (lines of the log, warnings)."""

  def prepare(rows, split=None, **parts):
    write(tmp_path / 'train.csv', rows)
    for name, part in parts.items():
      write(tmp_path / f'{name}.csv', part)
    cfg = {
      'name': 'csv',
      'path': str(tmp_path),
      'features': {
        'user': 'categorical',
        'tags': {'kind': 'sequence'},
        'price': {'kind': 'numeric'},
      },
      'split': split or {},
    }
    lines = []
    caplog.clear()
    with caplog.at_level(logging.WARNING, 'genrec_jax'):
      datasets.load(cfg, tmp_path / 'cache', lines.append)
    return [x for x in lines if 'stand in' in x], caplog.messages

  return prepare


def test_a_split_that_was_trained_on_is_a_warning_with_an_example(shares):
  rows, own = make_rows(500, 10**6), make_rows(100, 10**6, seed=1)
  _, [warning] = shares(rows, test=[*own, *rows[300:400]])
  assert warning.startswith(
    '100 of 200 rows of the test split (50.00%) stand in the training split '
  )
  assert 'test.csv, line 102, is ' in warning
  assert 'train.csv, line 302, for one. If a file is in both' in warning


def test_the_number_is_that_of_a_plain_statement(shares):
  pool, rng = make_rows(1_000, 10**6), np.random.default_rng(2)
  rows = [pool[i] for i in rng.integers(0, 1_000, 800)]
  valid = [pool[i] for i in rng.integers(0, 1_000, 200)]
  _, [warning] = shares(rows, valid=valid)
  count = sum(row in rows for row in valid)
  assert 80 < count < 140 and warning.startswith(f'{count} of 200 rows of the')


def test_few_rows_above_chance_are_told_and_no_warning(shares):
  rows, own = make_rows(500, 10**6), make_rows(195, 10**6, seed=1)
  [line], warnings = shares(rows, test=[*own, *rows[:5]])
  assert '5 of 200 rows of the test split (2.50%)' in line and not warnings


def test_columns_of_few_values_repeat_by_chance(shares):
  rows = make_rows(800, 3)
  split = {'by': 'random', 'test_fraction': 0.3}
  assert shares(rows, split) == ([], [])


def test_rows_written_twice_straddle_a_cut(shares):
  rows = make_rows(400, 10**6) * 2
  split = {'by': 'random', 'test_fraction': 0.25, 'valid_fraction': 0.1}
  _, warnings = shares(rows, split)
  assert [x.split('the ')[1][:5] for x in warnings] == ['valid', 'test ']


def test_a_sample_estimates_the_share(shares, monkeypatch):
  monkeypatch.setattr(equal_rows, 'MOST_ROWS', 200)
  monkeypatch.setattr(equal_rows, 'MOST_SHOWN', 64)
  rows, own = make_rows(3_000, 10**6), make_rows(1_000, 10**6, seed=1)
  _, [warning] = shares(rows, test=[*own, *rows[:1_000]])
  assert warning.startswith('about ') and ' of 2,000 rows' in warning
  share = float(warning.partition('(')[2].partition('%')[0])
  assert share == pytest.approx(50, abs=12)
