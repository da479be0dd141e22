"""libsvm and libfm files: `label index:value index:value ...` a line.

The columns of such a file are `label` (-1 is read as 0), `indices` (all of a
row, as a list) and, where the rows are equally long, `f0`, `f1`, ... (index of
the first pair, of the second, ...) and `v0`, `v1`, ... (their values). In the
files of NFM and AFN each pair is a field: the index is the category, or, for a
number, always the same.
"""

import functools
import itertools
import logging
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from genrec_jax.config.loading import hint_nearest
from genrec_jax.data import text
from genrec_jax.data.quoting import list_names, quote
from genrec_jax.data.ranking import raw

LOG = logging.getLogger('genrec_jax')
_NEVER = '\x01'  # a delimiter that no line has: blocks of whole lines
_REMEDY = 'write a number, such as 0, if it is missing'
_SIGNED = {'-1': '0', '+1': '1', '-1.0': '0', '+1.0': '1'}
SUFFIXES = ('.libsvm', '.libfm', '.svm', '.txt')
BARE = True


def _read_lines(path: pathlib.Path, rows: int) -> Iterator[text.TextBlock]:
  path = text.require_file(path)
  empty = True
  for block in text.read_blocks(path, _NEVER, rows=rows, width=1):
    empty = False
    yield block
  if empty:
    raise ValueError(f'{path}: the file holds no rows')


def read_names(path: pathlib.Path, reading: Mapping[str, str]) -> list[str]:
  """The columns of a file, by its first line."""
  del reading
  words = next(_read_lines(path, 1)).columns[0][0].split()
  label = ['label'] if ':' not in words[0] else []
  pairs = len(words) - len(label)
  text.check_width(path, pairs)
  fields = [f'{kind}{i}' for kind in 'fv' for i in range(pairs)]
  return [*label, *fields, 'indices']


def read_chunks(
  path: pathlib.Path, column_names: Sequence[str], reading: Mapping[str, str]
) -> Iterator[raw.RawChunk]:
  """Rows of a file, the columns `column_names` alone."""
  known = read_names(path, reading)
  there = set(known)
  for name in column_names:
    if name not in there:
      raise ValueError(
        f'{path}: no column {name!r}; a libsvm file of {_count_values(known)} '
        'pairs has label, indices, f0, f1, ... and v0, v1, ...'
        + hint_nearest(name, known)
      )
  labelled = known[0] == 'label'
  positional = any(name not in ('label', 'indices') for name in column_names)
  first = {}
  for block in _read_lines(path, raw.CHUNK_ROWS):
    lines = block.columns[0]

    def quote_line(i, block=block):
      return f'{path}, line {block.lines[i]}'

    pairs = np.fromiter((s.count(':') for s in lines), np.int64, len(lines))
    words = [line.split() for line in lines]
    sizes = np.fromiter(map(len, words), np.int64, len(lines))
    _check_sizes(sizes - labelled, pairs, lines, quote_line)
    if positional and (pairs != _count_values(known)).any():
      at = int(np.argmax(pairs != _count_values(known)))
      raise ValueError(
        f'{quote_line(at)}: {pairs[at]} pairs, the first line has '
        f'{_count_values(known)}; '
        'rows of one length have fields, others only the list indices'
      )
    columns = {}
    if labelled and 'label' in column_names:
      columns['label'] = [_SIGNED.get(w[0], w[0]) for w in words]
    flat = list(itertools.chain.from_iterable(w[labelled:] for w in words))
    columns |= _split_fields(flat, pairs, column_names, quote_line, first)
    yield raw.RawChunk(columns, len(lines), quote_line, _REMEDY)


def _count_values(known: Sequence[str]) -> int:
  return sum(name[0] == 'v' for name in known)


def _check_sizes(sizes, pairs, lines, where) -> None:
  good = sizes == pairs
  if not good.all():
    at = int(np.argmin(good))
    raise ValueError(
      f'{where(at)}: {quote(lines[at].strip())} is not "label index:value '
      'index:value ..."; mend or remove the line'
      + (', for comments (#) are not read' if '#' in lines[at] else '')
    )


def _split_fields(
  flat: list[str], pairs, column_names, where, first: dict[str, str]
) -> dict[str, raw.Column]:
  """The wanted columns of `flat`, the pairs of all rows.

  Args:
    flat: the pairs.
    pairs: how many are each row's.
    column_names: of the wanted columns.
    where: names the origin of a row.
    first: column of values -> its index in the first row, filled here.
  """
  parts = ':'.join(flat).split(':') if flat else []
  regular = len(parts) == 2 * len(flat) and '' not in parts
  if not regular or [pair.count(':') for pair in flat].count(1) != len(flat):
    at = next(
      i for i, p in enumerate(flat) if p.count(':') != 1 or '' in p.split(':')
    )
    row = int(np.searchsorted(np.cumsum(pairs), at, 'right'))
    raise ValueError(
      f'{where(row)}: {quote(flat[at])} is not index:value; '
      + (_REMEDY if flat[at].endswith(':') else 'mend or remove the line')
    )
  index, value = parts[::2], parts[1::2]
  columns = {}
  for name in column_names:
    if name == 'indices':
      columns[name] = raw.ListColumn(index, pairs)
    elif name != 'label':
      rows = slice(int(name[1:]), None, int(pairs[0]))
      columns[name] = (index if name[0] == 'f' else value)[rows]
      if name[0] == 'v' and f'f{name[1:]}' not in column_names:
        _warn_of_others(name, index[rows], where, first)
  return columns


def _warn_of_others(name, indices: list[str], where, first) -> None:
  """Warns of a numeric pair that is another number in some rows."""
  known = first.setdefault(name, indices[0])
  if indices.count(known) != len(indices):
    at = next(i for i, index in enumerate(indices) if index != known)
    _warn(
      f'{where(at)}: the index of {name} is {quote(indices[at])}, and '
      f'{quote(known)} in the first row; pairs are taken by their place, so '
      'that values of several indices become one feature'
    )


@functools.lru_cache(1000)
def _warn(line: str) -> None:
  """Warns once, however often a file is read."""
  LOG.warning('%s', line)


def default_features(
  path: pathlib.Path, reading: Mapping[str, str]
) -> dict[str, dict]:
  """Features as the first rows of a file suggest them.

  A pair whose value is always 1 is a category, one whose index is always the
  same is a number; rows of different lengths are one set of indices.
  """
  fields = _count_values(read_names(path, reading))
  lines = next(_read_lines(path, raw.CHUNK_ROWS)).columns[0]
  if any(line.count(':') != fields for line in lines):
    values = re.findall(r':(\S*)', '\n'.join(lines))
    _warn_of_values(path, len(lines), ['indices'], _count_others(values))
    return {'indices': {'kind': 'multi_hot'}}
  column_names = [f'{kind}{i}' for kind in 'fv' for i in range(fields)]
  chunk = next(read_chunks(path, column_names, reading))
  out, others = {}, {}
  for i in range(fields):
    count = _count_others(chunk.columns[f'v{i}'])
    if not count or len(set(chunk.columns[f'f{i}'])) > 1:
      out[f'f{i}'] = {'kind': 'categorical'}
      if count:
        others[f'f{i}'] = count
    else:
      out[f'v{i}'] = {'kind': 'numeric'}
  _warn_of_values(path, len(lines), list(others), sum(others.values()))
  return out


def _count_others(values: Sequence[str]) -> int:
  """How many values are not 1, and so say something."""
  return len(values) - values.count('1') - values.count('1.0')


def _warn_of_values(path, rows: int, names: list[str], count: int) -> None:
  """Warns of values that categories leave out."""
  if count:
    _warn(
      f'{path}: {count:,} values other than 1 in the first {rows:,} rows are '
      f'not read, because these features are categories: {list_names(names)}'
    )
