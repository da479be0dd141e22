"""The quickest cases of benchmarks/meaning.py, and how they are judged."""

import math

import numpy as np
import pytest

from benchmarks import meaning
from benchmarks.meaning_cases import (
  Case,
  ReadOrTold,
  Refusal,
  Told,
  are_equal,
  format_value,
  refusal,
)

# A few of each part that reads tables, in all forms; they need pandas.
TABLES = (
  'whole numbers',
  'whole numbers, a cell to score missing',
  'bools',
  'empty values in a set',
  'text, cells missing',
)
WITHOUT_PEERS = ('by hand', 'NumPy')


@pytest.fixture(scope='module')
def cases():
  return {case.name: case for case in meaning.list_cases()}


def test_no_two_cases_have_one_name():
  names = [case.name for case in meaning.list_cases()]
  assert len(names) == len(set(names)) > 100


@pytest.mark.parametrize('name', TABLES)
def test_a_table_means_the_same_in_every_form(cases, name, tmp_path):
  pytest.importorskip('pandas')
  pytest.importorskip('polars')
  pytest.importorskip('pyarrow')
  [row] = meaning.run_cases([cases[name]], tmp_path, log=lambda line: None)
  assert row['equal'], row


@pytest.mark.parametrize(
  'part', ['ranking metrics', 'retrieval metrics', 'monitors']
)
def test_metrics_are_what_a_hand_computes(cases, part, tmp_path):
  quick = [
    case
    for case in cases.values()
    if case.part == part
    and case.engines == ('',)
    and case.against in WITHOUT_PEERS
    and not (isinstance(case.expected, Told) and not case.expected.must_refuse)
  ]
  rows = meaning.run_cases(quick, tmp_path, log=lambda line: None)
  assert rows
  assert [row for row in rows if not row['equal']] == []


@pytest.mark.parametrize(
  ('got', 'expected', 'equal'),
  [
    ([1, '?'], [1, '?'], True),
    ([1, '?'], [1, '-'], False),
    ('1', 1, False),
    (np.array([0.1]), [0.1 + 1e-12], True),
    (math.nan, math.nan, True),
    (math.nan, 0.5, False),
    (Refusal("column 'x': no"), refusal("'x'"), True),
    ("a warning of 'x'", refusal("'x'"), False),
    ("a warning of 'x'", Told(("'x'",)), True),
    (Refusal("column 'x': no"), ReadOrTold([1], ("'x'",)), True),
    (Refusal('no'), ReadOrTold([1], ("'x'",)), False),
    (Refusal('no'), 'no', False),
    ({'a': 1.0}, {'a': 1.0}, True),
    ({'a': 1.0, 'b': 2}, {'a': 1.0}, False),
  ],
)
def test_a_value_is_judged(got, expected, equal):
  assert are_equal(got, expected, 1e-6) == equal


def test_a_form_that_differs_is_named(tmp_path):
  def measure(engine, directory):
    if engine == 'records':
      raise ValueError(f'{directory}/new.csv: no')
    return [1, 2 if engine == 'csv' else '?']

  row = Case('x', 'y', 'pandas', [1, 2], measure).run(tmp_path)
  assert not row['equal']
  assert row['engines'] == '1 of 5'
  assert row['got'] == (
    'parquet, pandas, polars: 1 ?; records: refused: records/new.csv: no'
  )


def test_a_crash_is_a_value_that_differs(tmp_path):
  case = Case('x', 'y', 'pandas', 1, lambda engine, directory: {}['a'], ('',))
  row = case.run(tmp_path)
  assert (row['equal'], row['got']) == (False, "KeyError: 'a'")


def test_values_are_short_in_the_table():
  assert format_value([1, [2, '?'], 0.5]) == '1 [2 ?] 0.5'
  assert len(format_value(list(range(100)))) == 90
