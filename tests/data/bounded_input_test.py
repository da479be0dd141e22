"""What strange files ask for: memory and time in proportion to their bytes."""

import gzip
import hashlib
import tracemalloc

import numpy as np
import pytest

from genrec_jax.data import (
  codes,
  convert,
  fields,
  histories,
  quoting,
  readers,
  text,
  text_arrays,
)
from genrec_jax.data import vocab as vocab_lib
from genrec_jax.data.ranking import csv_files, formats, libsvm, raw
from genrec_jax.library import columns as columns_lib
from genrec_jax.library import events
from genrec_jax.serve import prediction_files

COLUMNS = dict(user='u', item='i')


def traced_peak(run):
  """What `run` returns, and the most bytes it held beside what there was."""
  tracemalloc.start()
  try:
    return run(), tracemalloc.get_traced_memory()[1]
  finally:
    tracemalloc.stop()


def refusal(run) -> str:
  """The sentence of a refusal, which must not be long."""
  with pytest.raises(ValueError) as e:
    run()
  assert len(str(e.value)) < 800
  return str(e.value)


def read_csv(path, **options):
  return list(readers.read_csv([path], COLUMNS, **options))


def write_ids(path, ids):
  path.write_text('u,i\n' + ''.join(f'{x},7\n' for x in ids))
  return path


def test_an_id_beyond_the_bound_is_refused_by_its_line(tmp_path):
  path = write_ids(tmp_path / 'a.csv', ['b'] * 20_000 + ['x' * 100_000])
  message, peak = traced_peak(
    lambda: refusal(lambda: read_csv(path, ids='str'))
  )
  assert f"{path}, line 20002: '{'x' * 200}'... (100,000 char" in message
  assert 'at most 4,096 characters' in message
  assert peak < 20e6  # of fixed width: 8 GB


def test_one_long_id_costs_its_own_length(tmp_path):
  long = 'x' * text_arrays.LONGEST_ID
  ids = [f'user{i % 5000}' for i in range(20_000)] + [long]
  path = write_ids(tmp_path / 'a.csv', ids)

  def run():
    return convert.convert_log(
      readers.read_csv([path], COLUMNS, ids='str', chunk_rows=6000),
      tmp_path / 'h',
      log=lambda line: None,
    )

  made, peak = traced_peak(run)
  assert peak < 40e6  # of fixed width: 330 MB a chunk
  expected = sorted(set(ids))
  assert made.users.ids.tolist() == expected
  assert (tmp_path / 'h/user_ids.npy').stat().st_size < 200_000
  again = histories.Histories.open(tmp_path / 'h')
  assert again.users == made.users and again.users.ids.dtype.kind == 'T'
  assert again.users.encode(np.array([long, 'user7', 'none'])).tolist() == [
    expected.index(long) + 1,
    expected.index('user7') + 1,
    0,
  ]
  # Its name is what it was when ids had a fixed width, for older workdirs.
  wide = np.array(expected)
  digest = hashlib.sha256(wide.dtype.str.encode() + wide.tobytes())
  assert again.users.fingerprint() == digest.hexdigest()[:16]


def test_ordinary_vocabularies_keep_their_width_and_files(tmp_path):
  vocab = vocab_lib.Vocab(np.array(['b', 'aa'], np.dtypes.StringDType()))
  assert vocab.ids.dtype == '<U2'
  vocab.save(tmp_path / 'v.npy')
  assert np.load(tmp_path / 'v.npy').tolist() == ['b', 'aa']


def test_a_long_id_is_not_another_cut_off():
  vocab = vocab_lib.Vocab(np.array(['ab', 'c']))
  found = vocab.encode(np.array(['abc', 'ab', 'c', '']))
  assert found.tolist() == [0, 1, 2, 0]
  any_length = np.array(['abc', 'c'], np.dtypes.StringDType())
  assert vocab.encode(any_length).tolist() == [0, 2]


def test_a_vocabulary_has_no_id_beyond_the_bound():
  ids = np.array(['a', 'x' * 5000])
  assert 'at most 4,096' in refusal(lambda: vocab_lib.Vocab(ids))


def test_packed_texts_that_are_damaged_are_refused():
  packed = text_arrays.pack_array(np.array(['a', 'bcd', 'ü']))
  content = packed.tobytes()
  for changed in (content[:-1], content[:7], content + b'x', b'\xff' * 40):
    with pytest.raises(ValueError):
      vocab_lib.Vocab(np.frombuffer(changed, 'S1'))


@pytest.mark.parametrize('chunk', [1, 3, 100])
def test_codes_of_any_length_are_those_of_fixed_width(chunk):
  rng = np.random.default_rng(0)
  ids = [f'{x}' * (1 + 99 * (x == 7)) for x in rng.integers(0, 50, 200)]
  fixed, mixed, out = codes.Codes(), codes.Codes(), ([], [])
  for i in range(0, 200, chunk):
    some = ids[i : i + chunk]
    out[0].append(fixed.encode(np.array(some, 'U200')))
    dtype = np.dtypes.StringDType() if i % 2 else None
    out[1].append(mixed.encode(np.array(some, dtype)))
  np.testing.assert_array_equal(*map(np.concatenate, out))
  assert mixed.by_code().tolist() == fixed.by_code().tolist()


@pytest.mark.parametrize('read', ['events', 'ranking', 'libsvm'])
def test_a_header_of_very_many_columns_is_refused(tmp_path, read):
  path = tmp_path / 'a.csv'
  names = [f'c{i}' for i in range(200_000)]
  path.write_text(','.join(names) + '\n')
  if read == 'libsvm':
    path.write_text('1 ' + ' '.join(f'{i}:1' for i in range(200_000)) + '\n')
  run = {
    'events': lambda: read_csv(path),
    'ranking': lambda: csv_files.read_names(path, {'delimiter': ','}),
    'libsvm': lambda: libsvm.read_names(path, {}),
  }[read]
  message = refusal(run)
  assert f'{path}: the first row has 200,000 columns, at most 65,536' in message


def test_many_columns_are_read_in_linear_time(tmp_path):
  path = tmp_path / 'a.csv'
  names = [f'c{i}' for i in range(50_000)]
  path.write_text(','.join(names) + '\n')
  reading = {'delimiter': ',', 'format': 'csv'}
  assert csv_files.read_names(path, reading) == names
  message = refusal(lambda: next(formats.read_files([path], ['x'], reading)))
  assert "no column 'x'; the columns are c0, c1" in message
  assert '... (50,000)' in message
  path.write_text(','.join([*names, 'c7']) + '\n')
  assert "'c7' stands twice" in refusal(
    lambda: csv_files.read_names(path, reading)
  )


@pytest.mark.parametrize('name', ['a.csv', 'a.csv.gz'])
@pytest.mark.parametrize('quote', ['', '"'])
def test_a_line_without_end_is_refused_early(
  tmp_path, monkeypatch, name, quote
):
  monkeypatch.setattr(text, 'LONGEST_LINE', 1 << 20)
  path, content = tmp_path / name, b'u,i\n1,2\n' + quote.encode()
  content += b'x,\n' * 3 if quote else b''
  content += (b'x\n' if quote else b'x') * (1 << 24)
  path.write_bytes(gzip.compress(content) if 'gz' in name else content)
  del content
  message, peak = traced_peak(lambda: refusal(lambda: read_csv(path)))
  assert f'{path}, line 3: ' in message
  assert peak < 30e6


def test_blocks_are_bounded_by_their_characters(tmp_path, monkeypatch):
  monkeypatch.setattr(text, '_BLOCK', 1000)
  path = write_ids(tmp_path / 'a.csv', ['y' * 90] * 100)
  for more in ('', '"q",7\n'):
    path.write_text(path.read_text() + more)
    chunks = read_csv(path)
    assert sum(map(len, chunks)) == 100 + bool(more)
    assert max(map(len, chunks)) < 14


@pytest.mark.parametrize('end', ['\n', '\r\n', '\r'])
def test_pieces_do_not_show(tmp_path, monkeypatch, end):
  path = tmp_path / 'a.csv'
  lines = ['u,i', *(f'{i},{"ü" * (i % 5)}7' for i in range(50)), '1,x']
  path.write_bytes(end.join(lines).encode())
  for piece in (1, 2, 3, 7, 1 << 16):
    monkeypatch.setattr(text, '_PIECE', piece)
    chunks = read_csv(path, ids='str', chunk_rows=8)
    items = [x for chunk in chunks for x in chunk.item.tolist()]
    assert items == [line.split(',')[1] for line in lines[1:]]
    assert chunks[-1].where(len(chunks[-1]) - 1) == f'{path}, line 52'
  path.write_bytes(end.join(lines).encode() + b'\xc3')
  for piece in (1, 5, 1 << 16):
    monkeypatch.setattr(text, '_PIECE', piece)
    assert 'line 52: not utf-8' in refusal(lambda: read_csv(path, ids='str'))


def test_a_lack_of_memory_names_the_file(tmp_path, monkeypatch):
  def lack(words, kind):
    raise MemoryError('Unable to allocate 74.5 GiB')

  monkeypatch.setattr(fields, 'parse_ids', lack)
  path = write_ids(tmp_path / 'a.csv', [1])
  message = refusal(lambda: read_csv(path, ids='int'))
  assert message.startswith(f'{path}: reading it needs more memory')


def test_quoted_values_are_short():
  deep = []
  for _ in range(10**5):
    deep = [deep]
  for value in (deep, 'x' * 10**6, ['y' * 999] * 999, 10**5000, {1: deep}):
    assert len(quoting.quote(value)) < 240
    for records in ([{'a': [value]}], [{'a': {1: value}}, {'a': []}]):
      try:
        raw.from_records(records, ['a'])
      except ValueError as e:
        assert len(str(e)) < 400
  assert quoting.quote(['1', '2']) == "['1', '2']"


def test_columns_in_memory_cost_what_they_hold():
  texts = ['a'] * 20_000 + ['x' * 4096]
  column, peak = traced_peak(
    lambda: columns_lib.parse_column('u', columns_lib.to_objects(texts))
  )
  assert peak < 20e6 and column.kind == 'text'
  assert events.read_ids('u', column).tolist() == texts
  long = columns_lib.parse_column('u', np.array(['a', 'x' * 4097]))
  message = refusal(lambda: events.read_ids('u', long))
  assert "column 'u', row 1: 'xxx" in message and '4,096' in message
  half = columns_lib.to_objects([*texts, '\ud800'])
  message = refusal(lambda: columns_lib.parse_column('u', half))
  assert "row 20001: '\\ud800' holds half a character" in message


@pytest.mark.parametrize('suffix', ['csv', 'jsonl', 'parquet'])
def test_predictions_for_ids_of_any_length(tmp_path, suffix):
  ids = np.array(['a', 'x' * 4096], np.dtypes.StringDType())
  rank, score = np.array([1, 1]), np.ones(2, np.float32)
  for users, name in ((ids, 'any'), (ids.astype('U4096'), 'fixed')):
    with prediction_files.create_file(tmp_path / f'{name}.{suffix}') as f:
      f.write(prediction_files.Rows(users, rank, users, score))
  written = [tmp_path / f'{name}.{suffix}' for name in ('any', 'fixed')]
  assert written[0].read_bytes() == written[1].read_bytes()


def test_one_long_text_in_every_row_of_a_parquet_file(tmp_path):
  pa = pytest.importorskip('pyarrow')
  pq = pytest.importorskip('pyarrow.parquet')
  path = tmp_path / 'a.parquet'
  column = (
    pa.array(['x' * 10**6])
    .dictionary_encode()
    .take(pa.array(np.zeros(50_000, np.int32)))
  )
  pq.write_table(pa.table({'u': column, 'i': np.arange(50_000)}), path)
  assert path.stat().st_size < 2e6  # 50 GB where it is decoded at once
  message = refusal(lambda: list(readers.read_parquet([path], COLUMNS)))
  assert f"{path}, row 1, column 'u': 'xxx" in message
  assert pa.default_memory_pool().max_memory() < 2e9
