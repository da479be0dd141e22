"""Whatever holds columns -> columns of one type each, by name.

Arrays by name, NumPy structured arrays, DataFrames of pandas, polars or
pyarrow: all that is asked of a DataFrame is the names of its columns, their
types and their values, so that none of these packages is imported here.
"""

import dataclasses
import datetime
import decimal
import itertools
import numbers
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from genrec_jax.config.loading import hint_nearest
from genrec_jax.data import text_arrays
from genrec_jax.data.quoting import list_names, quote

_HALF = re.compile('[\ud800-\udfff]')
_LISTS = (list, tuple, np.ndarray)
_MISSING = ('NoneType', 'NAType', 'NaTType')  # the latter two are of pandas
_WORDS = {'int': 'numbers', 'float': 'numbers', 'text': 'text', 'time': 'dates'}


@dataclasses.dataclass(frozen=True)
class Column:
  """N values of one kind, or N lists of them.

  Attributes:
    values: `[N]` int64, float64, str or datetime64; those of all lists, one
      behind the other, where there are `lengths`.
    present: bool mask of the values that are not missing; None for all.
    lengths: `[N]` int64 of the lists; None where there are none.
    float_type: the type that floats were given in.
  """

  values: np.ndarray
  present: np.ndarray | None = None
  lengths: np.ndarray | None = None
  float_type: np.dtype = np.dtype(np.float64)

  def __len__(self) -> int:
    return len(self.values if self.lengths is None else self.lengths)

  @property
  def kind(self) -> str:
    """'int', 'float', 'text' or 'time', of the values."""
    return {'i': 'int', 'f': 'float', 'U': 'text', 'T': 'text'}.get(
      self.values.dtype.kind, 'time'
    )


def read_columns(
  data: Any, what: str = 'events', *, may_be_empty: bool = False
) -> dict[str, np.ndarray]:
  """The columns of something that has some, as NumPy arrays of any type.

  >>> read_columns({'user': [1, 2], 'item': ['a', 'b']})['user'].tolist()
  [1, 2]
  >>> read_columns([{'user': 1}, {'user': 2, 'stars': 5}])['stars'].tolist()
  [None, 5]

  Args:
    data: a mapping of names to arrays or lists, a list of mappings of names to
      values, a structured array, or a DataFrame.
    what: the data are called in messages.
    may_be_empty: whether columns without rows are fine.

  Raises:
    TypeError: it is nothing of these.
    ValueError: there are no rows, two columns have one name, or columns differ
      in length.
  """
  if isinstance(data, list | tuple) and not data:
    raise ValueError(f'{what} is empty: it has no row')
  if _is_records(data):
    names = list(dict.fromkeys(name for record in data for name in record))
    data = {name: [record.get(name) for record in data] for name in names}
  if isinstance(data, Mapping):
    named = [(name, _to_array(x, name, what)) for name, x in data.items()]
  elif isinstance(data, np.ndarray) and data.dtype.names:
    named = [(name, data[name]) for name in data.dtype.names]
  elif hasattr(data, 'collect'):  # of polars, before it reads anything
    raise TypeError(
      f'{what} is a {type(data).__name__}, which holds no values yet; call its '
      'collect() first'
    )
  elif hasattr(data, 'columns') and hasattr(data, '__getitem__'):
    # `columns` of a pyarrow table are arrays; `column_names` has the names.
    names = getattr(data, 'column_names', None)
    names = list(data.columns if names is None else names)
    _refuse_twins(names, what)  # frame[name] would be a DataFrame
    named = [(name, _to_array(data[name], name, what)) for name in names]
  else:
    raise TypeError(
      f'{what} is a {type(data).__name__}, must be arrays by name, such as '
      "{'user': [...], 'item': [...]}, a list of rows by name, a structured "
      'array, a DataFrame, or the path of a CSV or Parquet file'
    )
  if not named:
    raise ValueError(f'{what} has no columns')
  _refuse_twins([name for name, _ in named], what)
  columns = {str(name): column for name, column in named}
  sizes = {name: len(column) for name, column in columns.items()}
  if len(set(sizes.values())) > 1:
    text = list_names([f'{name} has {size}' for name, size in sizes.items()])
    raise ValueError(f'the columns of {what} differ in length: {text}')
  if not next(iter(sizes.values())) and not may_be_empty:
    raise ValueError(
      f'{what} is empty: it has the columns '
      f'{list_names(list(columns))} and no row'
    )
  return columns


def _is_records(data: Any) -> bool:
  return isinstance(data, list | tuple) and all(
    isinstance(record, Mapping) for record in data
  )


def _refuse_twins(names: Sequence, what: str) -> None:
  """Refuses columns of one name, of which all but one would be lost."""
  first = {}  # name as text -> name
  for name in names:
    if str(name) in first:
      other = first[str(name)]
      both = repr(name) if name == other else f'{other!r} and {name!r}'
      raise ValueError(
        f'{what} has two columns that are called {both}; rename one of them, '
        'or leave it out'
      )
    first[str(name)] = name


def find_column(
  columns: Mapping[str, np.ndarray], name: str, role: str, what: str, hint: str
) -> Column:
  """The column of a name, parsed.

  Args:
    columns: from `read_columns`.
    name: of the column.
    role: the column has, for messages.
    what: the data are called.
    hint: how another name is given.

  Raises:
    ValueError: there is no such column, or it cannot be read.
  """
  if name not in columns:
    near = hint_nearest(name, columns) or '.'
    message = (
      f'{what} has no column {name!r} for {role}; the columns are '
      f'{list_names(list(columns))}{near} {hint}'
    )
    raise ValueError(message.rstrip())
  return parse_column(name, columns[name])


def parse_column(name: str, values: np.ndarray) -> Column:
  """A column of one type, with a mask of what is missing.

  >>> parse_column('price', np.array([1.5, np.nan])).present.tolist()
  [True, False]
  >>> column = parse_column('tags', to_objects([['red'], [], ['red', 'big']]))
  >>> column.values.tolist(), column.lengths.tolist()
  (['red', 'red', 'big'], [1, 0, 2])

  Args:
    name: of the column.
    values: `[N]` of any type; `[N, L]` are N lists of L values.

  Raises:
    ValueError: the values are of several types, or of one that is not a number,
      text, date or list; the message names a row, counted from 0.
  """
  if values.ndim == 2 and values.dtype.kind != 'O':
    inner = parse_column(name, values.reshape(-1))
    lengths = np.full(len(values), values.shape[1], np.int64)
    return dataclasses.replace(inner, lengths=lengths)
  if values.ndim != 1:
    raise ValueError(
      f'column {name!r} is of shape {values.shape}, must be [N], or [N, L] '
      'for lists'
    )
  kind = values.dtype.kind
  if kind in 'OT':
    return _parse_objects(name, values.tolist())
  if kind == 'u' and values.size and values.max() > np.iinfo(np.int64).max:
    raise ValueError(
      f'column {name!r} holds numbers beyond 2^63; convert it to text'
    )
  if kind in 'biu':
    return Column(values.astype(np.int64))
  if kind == 'f':
    column = _with_mask(values.astype(np.float64), ~np.isnan(values))
    return dataclasses.replace(column, float_type=values.dtype)
  if kind == 'M':
    return _with_mask(values, ~np.isnat(values))
  if kind == 'U':
    _refuse_half_characters(name, values)
    return Column(values)
  if kind == 'S':
    return Column(_decode(name, values))
  raise ValueError(
    f'column {name!r} is of type {values.dtype}, which is neither numbers nor '
    'text nor dates nor lists of those; convert it or leave it out'
  )


def _to_array(values: Any, name: Any, what: str) -> np.ndarray:
  if isinstance(values, np.ma.MaskedArray):
    return to_objects(values.tolist())  # None where it is masked
  if hasattr(values, 'to_numpy'):
    values = _read_series(values)
  elif hasattr(values, '__array__'):  # of NumPy, JAX and others
    values = np.asarray(values)
  elif hasattr(values, '__iter__') and not isinstance(
    values, str | bytes | Mapping
  ):
    return to_objects(values)
  if not getattr(values, 'ndim', 0):
    raise ValueError(
      f'column {str(name)!r} of {what} is {quote(values)}, must be a '
      'list or an array, with a value for each row'
    )
  return values


def _read_series(series: Any) -> np.ndarray:
  """A column of a DataFrame of any package."""
  kind = str(getattr(series, 'dtype', getattr(series, 'type', ''))).lower()
  if kind.startswith('dictionary') and hasattr(series, 'cast'):
    # A null of pyarrow would become the last category.
    series = series.cast(series.type.value_type)
    kind = str(series.type)
  array = np.asarray(series.to_numpy())
  # Whole numbers became floats, for there are nulls among them.
  whole = array.ndim == 1 and array.dtype.kind == 'f'
  whole = whole and ('int' in kind or kind == 'category')
  if whole or kind.startswith('struct'):  # of which polars would make lists
    return to_objects(getattr(series, 'to_pylist', series.__iter__)())
  return array


def to_objects(values: Iterable) -> np.ndarray:
  """`[N]` of type object.

  Not by asarray, which makes text of numbers and NaN that stand beside text.
  """
  values = list(values)
  return np.fromiter(values, object, len(values))


def holds_bools(values: np.ndarray) -> bool:
  """Whether a column has True or False among its values.

  >>> holds_bools(to_objects([1, None, True]))
  True
  """
  kinds = set(map(type, values)) if values.dtype.kind == 'O' else ()
  return values.dtype.kind == 'b' or bool({bool, np.bool_} & set(kinds))


def is_whole_number(value: Any) -> bool:
  """Whether an argument is a whole number, which True is not meant to be.

  >>> is_whole_number(np.int32(3)), is_whole_number(3.0), is_whole_number(True)
  (True, False, False)
  """
  return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _decode(name: str, values: np.ndarray) -> np.ndarray:
  try:
    return np.char.decode(values, 'utf-8')
  except UnicodeDecodeError as e:
    row = next(i for i, x in enumerate(values) if x == e.object)
    raise ValueError(
      f'column {name!r}, row {row}: {quote(e.object)} is not text in UTF-8; '
      'decode the column'
    ) from None


def _with_mask(values: np.ndarray, present: np.ndarray) -> Column:
  return Column(values, None if present.all() else present)


def _kind_of(kind: type) -> str:
  """What a value of a Python type is; '' for nothing that can be read."""
  if kind.__name__ in _MISSING:
    return 'missing'
  if issubclass(kind, _LISTS):
    return 'list'
  if issubclass(kind, str):
    return 'text'
  if issubclass(kind, numbers.Integral | np.bool_):
    return 'int'
  if issubclass(kind, numbers.Real | decimal.Decimal):
    return 'float'
  if issubclass(kind, datetime.date | np.datetime64):
    return 'time'
  return ''


def _parse_objects(name: str, values: list) -> Column:
  # As many types as rows are rare: this looks at each type once.
  kinds = {kind: _kind_of(kind) for kind in set(map(type, values))}
  for kind, word in kinds.items():
    if not word:
      row = next(i for i, x in enumerate(values) if type(x) is kind)
      raise ValueError(
        f'column {name!r}, row {row}: {quote(values[row])} is neither a number '
        'nor text nor a date nor a list of those; convert the column or leave '
        'it out'
      )
  words = set(kinds.values()) - {'missing'}
  if 'list' in words:
    return _parse_lists(name, values, kinds, words)
  present = np.ones(len(values), bool)
  if 'missing' in kinds.values() or len(words) > 1 and 'float' in words:
    # NaN alone differs from itself; it may stand for a missing text.
    present = np.fromiter(
      (kinds[type(x)] != 'missing' and x == x for x in values),
      bool,
      len(values),
    )
    words = {
      kinds[type(x)] for x, there in zip(values, present, strict=True) if there
    }
  if len({_WORDS[word] for word in words}) > 1:
    raise ValueError(_describe_mixture(name, values, kinds, present))
  word = 'float' if 'float' in words else next(iter(words), 'float')
  if word == 'float':
    word = _find_whole(values, present, kinds)
  if word == 'time':
    values = [
      _drop_zone(x) if there else np.datetime64('NaT')
      for x, there in zip(values, present, strict=True)
    ]
    array = np.array(values, 'datetime64[us]')
    exact = np.array(values, 'datetime64')
    # Nanoseconds end with the year 2262; later dates would become other ones.
    if exact.dtype == 'datetime64[ns]' and np.array_equal(
      exact.astype(array.dtype), array, equal_nan=True
    ):
      array = exact
    return _with_mask(array, present)
  if not present.all():
    fill = {'text': '', 'int': 0}.get(word, float('nan'))
    pairs = zip(values, present, strict=True)
    values = [x if there else fill for x, there in pairs]
  if word == 'float':
    floats = {kind for kind in kinds if issubclass(kind, np.floating)}
    others = [kind for kind, word in kinds.items() if word == 'float']
    array = np.array(values, np.float64)
    column = _with_mask(array, present & ~np.isnan(array))
    if len(floats) == len(others) == 1:
      return dataclasses.replace(column, float_type=np.dtype(floats.pop()))
    return column
  return _with_mask(_array_of(name, values, word), present)


def _find_whole(values: list, present: Sequence[bool], kinds) -> str:
  """'int' for decimals that are all whole, beyond 2^53 too; else 'float'."""
  if any(
    word == 'float' and not issubclass(kind, decimal.Decimal)
    for kind, word in kinds.items()
  ):
    return 'float'
  some = [x for x, there in zip(values, present, strict=True) if there]
  if some and all(abs(x) < 2**63 and x % 1 == 0 for x in some):
    return 'int'
  return 'float'


def _array_of(name: str, values: list, word: str) -> np.ndarray:
  if word == 'text':
    row = next((i for i, x in enumerate(values) if x[-1:] == '\0'), None)
    if row is not None:  # 'a\0' and 'a' would be one
      raise ValueError(
        f'column {name!r}, row {row}: {quote(values[row])} ends in a NUL '
        'character, which NumPy leaves off; remove it'
      )
    try:
      array = text_arrays.make_text_array(values)
    except UnicodeEncodeError:  # of half a character, in a column of any length
      array = np.array(values, object)
    _refuse_half_characters(name, array)
    return array
  try:
    return np.array(values, np.int64)
  except OverflowError:
    raise ValueError(
      f'column {name!r} holds numbers beyond 2^63; convert it to text'
    ) from None


def _refuse_half_characters(name: str, values: np.ndarray) -> None:
  """Refuses texts that no file can hold: halves of UTF-16 characters."""
  if values.dtype.kind == 'T':
    return
  if values.dtype.kind == 'O':
    row = next(i for i, x in enumerate(values) if _HALF.search(x))
  else:
    points = np.ascontiguousarray(values, values.dtype.newbyteorder('='))
    points = points.view(np.uint32)
    halves = (points >= 0xD800) & (points < 0xE000)
    row = int(np.argmax(halves)) * len(values) // max(1, len(points))
    row = row if halves.any() else None
  if row is not None:
    raise ValueError(
      f'column {name!r}, row {row}: {quote(str(values[row]))} holds half a '
      'character, which UTF-8 cannot write; correct it or leave the row out'
    )


def _parse_lists(name: str, values: list, kinds, words) -> Column:
  if len(words) > 1:
    present = [kinds[type(x)] != 'missing' for x in values]
    raise ValueError(_describe_mixture(name, values, kinds, present))
  lists = [() if kinds[type(x)] == 'missing' else x for x in values]
  lengths = np.fromiter(map(len, lists), np.int64, len(lists))
  if not lengths.any():
    return Column(np.zeros(0, 'U1'), lengths=lengths)
  if all(isinstance(x, np.ndarray) and x.ndim == 1 for x in lists):
    flat = np.concatenate([x for x in lists if len(x)])
  else:
    total = int(lengths.sum())
    flat = np.fromiter(itertools.chain.from_iterable(lists), object, total)
  inner = parse_column(name, flat)
  if inner.lengths is not None:
    raise ValueError(f'column {name!r} holds lists of lists')
  return dataclasses.replace(inner, lengths=lengths)


def _describe_mixture(
  name: str, values: list, kinds: Mapping[type, str], present: Sequence[bool]
) -> str:
  first = {}  # kind in words -> its first row
  for row, (value, there) in enumerate(zip(values, present, strict=True)):
    if there:
      word = kinds[type(value)]
      first.setdefault(_WORDS.get(word, 'lists'), row)
  text = ' and '.join(
    f'{word} (row {row}: {quote(values[row])})' for word, row in first.items()
  )
  return f'column {name!r} mixes {text}; convert it to one of them'


def _drop_zone(moment) -> Any:
  """A date in UTC without a zone; those without one are UTC."""
  if getattr(moment, 'tzinfo', None) is not None:
    moment = moment.astimezone(datetime.UTC).replace(tzinfo=None)
  # NumPy takes a Timestamp of pandas for a datetime, which has microseconds.
  return moment.to_datetime64() if getattr(moment, 'nanosecond', 0) else moment
