"""libsvm and libfm files: `label [qid:N] index:value index:value ...` a line.

| column        | what it holds                                                |
|---------------|--------------------------------------------------------------|
| label         | -1 is read as 0, unless the label may be any number          |
| qid           | N of `qid:N`, the query that the row belongs to              |
| indices       | the indices of a row, as a list                              |
| values        | their values, as a list: the weights of the indices          |
| x3, x17, ...  | the value of index 3, 17, ...; 0 where a row lacks it        |
| f0, f1, ...   | the index of the first pair, of the second, ...              |
| v0, v1, ...   | the value of the first pair, of the second, ...              |

The last two are for files in which each pair is a field, as in those of NFM and
AFN. What `data.features` leaves open is settled in libsvm_layout.py.

`reading` remembers what was settled for the training file:

  pairs    'by_index'; files of before there was `data.pairs` have no such key,
           and no qid, values or x3
  decided  'fields', 'numbers' or 'sets', where nobody named the features
  places   the indices of the first row, where columns are taken by place
  rare     indices of features that the first rows do not have
  labels   'as_is' where -1 is a label of its own
"""

import functools
import itertools
import logging
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from genrec_jax.config.loading import hint_nearest
from genrec_jax.data import text
from genrec_jax.data.quoting import list_names, quote
from genrec_jax.data.ranking import raw

LOG = logging.getLogger('genrec_jax')
ONES = ('1', '1.0')
_NEVER = '\x01'  # a delimiter that no line has: blocks of whole lines
_REMEDY = 'write a number, such as 0, if it is missing'
_BAG = (
  'data.features.indices=multi_hot reads rows of any pairs as weighted sets'
)
_SIGNED = {'-1': '0', '+1': '1', '-1.0': '0', '+1.0': '1'}
BY_PLACE = re.compile('[fv][0-9]+')
BY_INDEX = re.compile('x(0|[1-9][0-9]*)')
_ZEROS = re.compile(' 0[0-9]+:')
SUFFIXES = ('.libsvm', '.libfm', '.svm', '.txt')
BARE = True


class PairRows(NamedTuple):
  """N rows, cut into their K pairs.

  Attributes:
    labels: N texts; none where the file has no labels.
    queries: N texts, '' where a row has none.
    indices: K texts.
    values: K texts.
    counts: `[N]` pairs of each row.
    where: names the origin of a row.
  """

  labels: list[str]
  queries: list[str]
  indices: list[str]
  values: list[str]
  counts: np.ndarray
  where: Callable[[int], str]

  def quote_pair(self, at: int) -> str:
    """Names the place of pair number `at` and shows it."""
    ends = np.cumsum(self.counts)
    row = int(np.searchsorted(ends, at, 'right'))
    number = at - int(ends[row] - self.counts[row]) + 1
    pair = quote(f'{self.indices[at]}:{self.values[at]}')
    return f'{self.where(row)}, pair {number}: {pair}'


def _read_lines(path: pathlib.Path, rows: int) -> Iterator[text.TextBlock]:
  """The lines without comments, which follow a number sign."""
  path = text.require_file(path)
  empty = True
  for block in text.read_blocks(path, _NEVER, rows=rows, width=1):
    lines = [line.partition('#')[0] for line in block.columns[0]]
    at = [i for i, line in enumerate(lines) if line.strip()]
    if at:
      empty = False
      numbers = [block.lines[i] for i in at]
      yield text.TextBlock([[lines[i] for i in at]], numbers)
  if empty:
    raise ValueError(f'{path}: the file holds no rows')


def _read_pairs(
  path: pathlib.Path, reading: Mapping[str, str], rows: int
) -> Iterator[PairRows]:
  is_labelled = None
  for block in _read_lines(path, rows):
    lines = block.columns[0]
    words = [line.split() for line in lines]
    if is_labelled is None:
      is_labelled = ':' not in words[0][0]
      text.check_width(path, len(words[0]) - is_labelled)

    def quote_line(i, block=block):
      return f'{path}, line {block.lines[i]}'

    labels = [row.pop(0) for row in words] if is_labelled else []
    queries = [''] * len(lines)
    if is_by_index(reading):
      for i, row in enumerate(words):
        if row and row[0].startswith('qid:'):
          queries[i] = row.pop(0).removeprefix('qid:')
        if any(word.startswith('qid:') for word in row):
          raise ValueError(
            f'{quote_line(i)}: qid is not the first of the pairs; write it '
            'behind the label'
          )
    sizes = [bool(q) + len(row) for q, row in zip(queries, words, strict=True)]
    _check_sizes(sizes, lines, quote_line)
    flat = list(itertools.chain.from_iterable(words))
    counts = np.fromiter(map(len, words), np.int64, len(words))
    parts = _split_pairs(flat, counts, quote_line)
    if is_by_index(reading) and _ZEROS.search(f' {" ".join(flat)}'):
      parts[::2] = list(map(_strip_zeros, parts[::2]))
    if reading.get('labels') != 'as_is':
      labels = [_SIGNED.get(label, label) for label in labels]
    yield PairRows(labels, queries, parts[::2], parts[1::2], counts, quote_line)


def _check_sizes(sizes: list[int], lines, where) -> None:
  """Refuses rows that are more than a label and pairs."""
  for i, line in enumerate(lines):
    if line.count(':') != sizes[i]:
      raise ValueError(
        f'{where(i)}: {quote(line.strip())} is not "label index:value '
        'index:value ..."; mend or remove the line'
      )


def _split_pairs(flat: list[str], counts: np.ndarray, where) -> list[str]:
  """Indices and values of the pairs by turns."""
  parts = ':'.join(flat).split(':') if flat else []
  regular = len(parts) == 2 * len(flat) and '' not in parts
  if not regular or [pair.count(':') for pair in flat].count(1) != len(flat):
    at = next(
      i for i, p in enumerate(flat) if p.count(':') != 1 or '' in p.split(':')
    )
    row = int(np.searchsorted(np.cumsum(counts), at, 'right'))
    raise ValueError(
      f'{where(row)}: {quote(flat[at])} is not index:value; '
      + (_REMEDY if flat[at].endswith(':') else 'mend or remove the line')
    )
  return parts


def _strip_zeros(index: str) -> str:
  """'03' is the index 3."""
  return str(int(index)) if index.isdecimal() and index[0] == '0' else index


def read_first(
  path: pathlib.Path, reading: Mapping[str, str], rows: int = raw.CHUNK_ROWS
) -> PairRows:
  """The first rows of a file."""
  return next(_read_pairs(path, reading, rows))


def is_by_index(reading: Mapping[str, str]) -> bool:
  """Whether pairs are read as `data.pairs='by_index'` says."""
  return reading.get('pairs') == 'by_index'


def read_names(path: pathlib.Path, reading: Mapping[str, str]) -> list[str]:
  """The columns of a file, by its first rows."""
  by_index = is_by_index(reading)
  rows = read_first(path, reading, raw.CHUNK_ROWS if by_index else 1)
  names = ['label'] if rows.labels else []
  if any(rows.queries):
    names.append('qid')
  names += [f'{kind}{i}' for kind in 'fv' for i in range(rows.counts[0])]
  names.append('indices')
  if by_index:
    numbers = {i for i in set(rows.indices) if BY_INDEX.fullmatch(f'x{i}')}
    numbers |= set(reading.get('rare', ()))
    names += ['values', *(f'x{i}' for i in sorted(numbers, key=int))]
  return names


def read_chunks(
  path: pathlib.Path, column_names: Sequence[str], reading: Mapping[str, str]
) -> Iterator[raw.RawChunk]:
  """Rows of a file, the columns `column_names` alone."""
  known = read_names(path, reading)
  pairs = sum(bool(re.fullmatch('v[0-9]+', name)) for name in known)
  there, places = set(known), reading.get('places', ())
  for name in column_names:
    is_there = name in there or (
      BY_INDEX.fullmatch(name) if is_by_index(reading) else False
    )
    # A row of another length than those of the training file is refused below.
    if not is_there and not (places and BY_PLACE.fullmatch(name)):
      raise ValueError(
        f'{path}: no column {name!r}; a libsvm file of {pairs} pairs has '
        f'label, qid, indices, values, f0, f1, ..., v0, v1, ..., and x3 for '
        'index 3' + hint_nearest(name, known)
      )
  cut = _ColumnCutter(column_names, reading)
  for rows in _read_pairs(path, reading, raw.CHUNK_ROWS):
    columns = cut(rows)
    yield raw.RawChunk(columns, len(rows.counts), rows.where, _REMEDY)


def default_features(
  path: pathlib.Path, reading: Mapping[str, str]
) -> dict[str, dict]:
  """Features as `data.pairs='by_place'` takes them from the first rows.

  A pair whose value is always 1 is a category, one whose index is always the
  same is a number; rows of different lengths are one set of indices.
  """
  rows = read_first(path, reading)
  size, out, others = int(rows.counts[0]), {}, 0
  if (rows.counts != size).any():
    out, others = {'indices': {'kind': 'multi_hot'}}, count_others(rows.values)
  else:
    for i in range(size):
      count = count_others(rows.values[i::size])
      if not count or len(set(rows.indices[i::size])) > 1:
        out[f'f{i}'] = {'kind': 'categorical'}
        others += count
      else:
        out[f'v{i}'] = {'kind': 'numeric'}
  if others:
    warn(
      f'{path}: {others:,} values other than 1 in the first '
      f"{len(rows.counts):,} rows are not read, for data.pairs is 'by_place' "
      'and these features are categories: '
      + list_names([name for name in out if name[0] != 'v'])
    )
  return out


class _ColumnCutter:
  """Turns the pairs of a file into columns, chunk by chunk."""

  def __init__(self, names: Sequence[str], reading: Mapping[str, str]):
    self._names, self._reading = names, reading
    self._by_index = is_by_index(reading)
    self._decided = reading.get('decided', '')
    self._by_place = [n for n in names if BY_PLACE.fullmatch(n)]
    self._numbers = [n for n in names if BY_INDEX.fullmatch(n)]
    self._places = list(reading.get('places', ()))
    self._of_training = bool(self._places)
    self._place_of = {index: i for i, index in enumerate(self._places)}
    self._warned = set()

  def __call__(self, rows: PairRows) -> dict[str, raw.Column]:
    plain = {
      'label': rows.labels,
      'qid': rows.queries,
      'indices': raw.ListColumn(rows.indices, rows.counts),
      'values': raw.ListColumn(rows.values, rows.counts),
    }
    columns = {n: plain[n] for n in self._names if n in plain}
    if self._by_place:
      columns |= self._cut_places(rows)
    if self._numbers:
      columns |= self._cut_numbers(rows)
    return columns

  def _cut_places(self, rows: PairRows) -> dict[str, list[str]]:
    if not self._places:
      self._places = rows.indices[: rows.counts[0]]
    size = len(self._places)
    if (rows.counts != size).any():
      at = int(np.argmax(rows.counts != size))
      first = 'the first line'
      first = 'the training file' if self._of_training else first
      raise ValueError(
        f'{rows.where(at)}: {rows.counts[at]} pairs, {first} has {size}; rows '
        f'of one length have fields, others only lists: {_BAG}'
      )
    columns = {}
    for i in range(size):
      index, value = rows.indices[i::size], rows.values[i::size]
      if f'f{i}' in self._by_place:
        columns[f'f{i}'] = index
      if f'v{i}' in self._by_place:
        columns[f'v{i}'] = value
      self._check_place(rows, i, index, value)
    return columns

  def _check_place(self, rows: PairRows, place: int, index, value) -> None:
    """Refuses, or warns of, what the column of a place does not say."""
    size, names = len(self._places), self._by_place
    known = self._places[place]
    is_field = f'f{place}' in names
    if (
      not is_field and f'v{place}' in names and index.count(known) < len(index)
    ):
      row = next(i for i, other in enumerate(index) if other != known)
      self._object(
        self._by_index,
        f'v{place}',
        f'{rows.quote_pair(row * size + place)} has another index than '
        f'{quote(known)}, which v{place} is the value of; name the feature '
        f'x{known} to read it by its index wherever it stands',
      )
    if is_field and f'v{place}' not in names and count_others(value):
      row = next(i for i, x in enumerate(value) if x not in ONES)
      self._object(
        self._decided == 'fields',
        f'f{place}',
        f'{rows.quote_pair(row * size + place)} has a value other than 1, '
        f'which the category f{place} leaves out; {_BAG}',
      )
    if self._decided == 'fields':
      for other in set(index):
        if self._place_of.setdefault(other, place) != place:
          row = index.index(other)
          raise ValueError(
            f'{rows.quote_pair(row * size + place)} stands at place '
            f'{place + 1}, and in other rows at place '
            f'{self._place_of[other] + 1}; {_BAG}'
          )

  def _cut_numbers(self, rows: PairRows) -> dict[str, list[str]]:
    """The values of some indices, 0 where a row does not have them."""
    place = {name[1:]: i for i, name in enumerate(self._numbers)}
    column = np.fromiter(
      (place.get(index, -1) for index in rows.indices), np.int64
    )
    at = np.flatnonzero(column >= 0)
    if self._decided == 'numbers' and len(at) < len(column):
      pair = rows.quote_pair(int(np.argmin(column)))
      self._object(
        False,
        'numbers',
        f'{pair} has an index that the first rows of the training file do not '
        'have; its values are left out, there and in other rows. Name its '
        f'feature, too, in data.features; or {_BAG}',
      )
    size = len(self._numbers)
    row = np.repeat(np.arange(len(rows.counts)), rows.counts)
    cell = row[at] * size + column[at]
    first = np.unique(cell, return_index=True)[1]
    if len(first) < len(cell):
      twice = np.setdiff1d(np.arange(len(cell)), first)[0]
      raise ValueError(
        f'{rows.quote_pair(int(at[twice]))} has an index that stands in the '
        'row before; mend the line'
      )
    table = np.full(len(rows.counts) * size, '0', object)
    table[cell] = np.array(rows.values, object)[at]
    table = table.reshape(-1, size)
    return {name: table[:, i].tolist() for i, name in enumerate(self._numbers)}

  def _object(self, is_error: bool, key: str, message: str) -> None:
    """Raises an error, or warns once for each key and file."""
    if is_error:
      raise ValueError(message)
    if key not in self._warned:
      self._warned.add(key)
      warn(message)


def count_others(values: Sequence[str]) -> int:
  """How many values are not 1, and so say something."""
  return len(values) - sum(values.count(one) for one in ONES)


@functools.lru_cache(1000)
def warn(line: str) -> None:
  """Warns once, however often a file is read."""
  LOG.warning('%s', line)
