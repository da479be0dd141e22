"""A small part of benchmarks/robustness_inputs, and every file found by it."""

import gzip
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import robustness_inputs as fuzz

CASES = 12 * len(fuzz.LAYOUTS)


def test_every_file_is_read_as_the_oracle_reads_it_or_refused(tmp_path):
  answers = list(fuzz.judge_range(1, range(CASES), tmp_path))
  assert [a for a in answers if a[2] not in ('equal', 'sentence')] == []
  assert {a[2] for a in answers} == {'equal', 'sentence'}


def test_a_case_is_a_function_of_its_seed_and_number():
  assert fuzz.make_case(3, 7) == fuzz.make_case(3, 7)
  assert fuzz.make_case(3, 7) != fuzz.make_case(4, 7)
  assert {fuzz.make_case(0, i).layout for i in range(25)} == set(fuzz.LAYOUTS)


def test_rows_count_the_cases_by_outcome():
  rows = fuzz.run(len(fuzz.LAYOUTS) + 1, 0)
  assert [row['case'] for row in rows] == list(fuzz.LAYOUTS)
  assert [row['cases'] for row in rows] == [2] + [1] * (len(rows) - 1)
  for row in rows:
    assert row['cases'] == sum(row[outcome] for outcome in fuzz.OUTCOMES)


def test_the_judge_sees_wrong_silent_and_unnamed(tmp_path):
  def judge(actual, expected):
    def read(path, rows):
      if isinstance(actual, Exception):
        raise actual
      return actual

    def expect(content):
      if expected is None:
        raise fuzz.Refusal('no')
      return expected

    layout = fuzz.Layout('x', None, read, expect)
    return fuzz.judge_layout(layout, b'', False, tmp_path)[0]

  assert judge([(1, 2.0)], [(1, 2.0)]) == 'equal'
  assert judge([(1, 2)], [(1, 2.0)]) == 'wrong'
  assert judge([(1, 2.0)], None) == 'silent'
  assert judge(IndexError('x'), None) == 'traceback'
  assert judge(ValueError('no name'), None) == 'traceback'
  assert judge(ValueError(f'{tmp_path}/x: bad'), None) == 'sentence'


HEAD = b'u,i,t,r,tag,seen,count,note\n'
ROW = b'1,2,3,4,a,5,6,x\n'

STORED = [
  # Blank first lines, blanks alone, and tabs alone, which are a row.
  ('libsvm', b'   \n1 3:1\n'),
  ('libsvm', b'\n \n'),
  ('libsvm', b' \n'),
  ('criteo', b'\t' * 38 + b'\n' + b'x\n'),
  ('criteo', b'\t' * 38 + b'\n' + b'\t' * 38 + b'\r\n\n'),
  ('sasrec.txt', b'1 2\x0b\n3  4\n'),
  ('sasrec.txt', b'1\x0b2\n'),
  # Catalogues of one field, and with an item twice.
  ('movies.dat', b'7\n8\n'),
  ('u.item', b'7\n'),
  ('movies.csv', b'movieId\n7\n'),
  ('movies.dat', b'7::a::b\n7::c::d\n'),
  # Numbers of Python alone.
  ('u.data', b'1\t2\t3\t1_000\n'),
  ('u.data', b'1\t2\t1_0\t4\n'),
  ('csv, whole ids', HEAD + '1,2,１２,4,a,5,6,x\n'.encode()),
  ('csv, whole ids', HEAD + '1,2,3,٣,a,5,6,x\n'.encode()),
  ('csv, whole ids', HEAD + b'1,2,273245533\x0b,4,a,5,6,x\n'),
  ('csv, whole ids', HEAD + b'1,2,3,4,a,1_0,6,x\n'),
  ('csv, whole ids', HEAD + b'1,2,3,4,a,5,1_0,x\n'),
  ('ranking csv', 'label,user,price\n1,a,１２\n'.encode()),
  ('ranking csv', b'label,user,price\n1,a,1\x0b\n'),
  # A whole number beside a fraction is not rounded.
  ('u.data', b'1\t2\t3\t9007199254740993\n1\t2\t3\t1.5\n'),
  # Lone CR in a block of one row, BOM, NUL, wrong UTF-8.
  ('u.data', b'1\t2\t3\t4\r'),
  ('csv, text ids', HEAD.replace(b'\n', b'\r') + ROW.replace(b'\n', b'\r')),
  ('csv, text ids', b'\xef\xbb\xbf' + HEAD + ROW),
  ('csv, text ids', HEAD + ROW + b'\0' + ROW),
  ('csv, text ids', HEAD + ROW + b'\xff'),
  ('csv, text ids', HEAD + b'"1,2,3,4,a,5,6,x\n' + ROW),
  ('csv, text ids', HEAD + b'x' * 4097 + ROW),
  ('csv, text ids', HEAD + ROW.replace(b'x', b'x' * 140_000)),
  ('csv, text ids', HEAD + ROW.replace(b'x', b'"x"' * 2)),
  ('csv.gz', gzip.compress(HEAD + ROW * 100)[:-9]),
  ('csv.gz', b'no gzip'),
  ('records', b"[{'user': deep, 'price': 1, 'tags': []}]"),
  ('records', b"[{'user': 1, 'price': huge, 'tags': []}]"),
  ('records', b"[{'user': 1, 'price': 1}]"),
  # Features of users: none that is there, and one that is too long.
  ('requests of users.dat', b'3::F::1::2::\n7::M::1::2::\n8::F::1::2::\n'),
  (
    'requests of users.dat',
    b'3::F::1::2::\n7::M::1::2::\n8::F::1::2::' + b'7' * 4097 + b'\n',
  ),
  *((name, b'') for name in fuzz.LAYOUTS),
  *((name, b'\n') for name in fuzz.LAYOUTS),
]


@pytest.mark.parametrize('number', range(len(STORED)))
def test_stored_cases(tmp_path, number):
  case = fuzz.Case(*STORED[number])
  outcome, said = fuzz.judge(case, tmp_path)
  assert outcome in ('equal', 'sentence'), said


@pytest.mark.parametrize(
  'seed, number', [(4, 3795), (4, 4318), (3, 357), (12, 3238)]
)
def test_what_pyarrow_sees_in_some_batches_alone(tmp_path, seed, number):
  """Columns that end early or shift, or change their type in a row group."""
  layout = ('ranking parquet', 'parquet')[number % 2]
  case = fuzz.make_case(seed, number, layout)
  outcome, said = fuzz.judge(case, tmp_path)
  assert outcome in ('equal', 'sentence'), said


def test_a_damaged_dictionary_is_told(tmp_path):
  """Indices beyond the dictionary, of both readers."""
  sink = io.BytesIO()
  column = pa.array(['a', 'b'] * 50)
  pq.write_table(
    pa.table(
      {
        'u': column,
        'i': column,
        't': [1] * 100,
        'r': [1] * 100,
        'label': [0] * 100,
        'user': column,
        'price': [1.0] * 100,
        'tags': [['a']] * 100,
      }
    ),
    sink,
    compression='none',
  )
  content, outcomes = sink.getvalue(), set()
  for at in range(4, 64):
    changed = bytearray(content)
    changed[at] ^= 1 << at % 8
    case = fuzz.Case(('parquet', 'ranking parquet')[at % 2], bytes(changed))
    outcome, said = fuzz.judge(case, tmp_path)
    assert outcome in ('equal', 'sentence'), (at, said)
    outcomes.add(outcome)
  assert outcomes == {'equal', 'sentence'}
