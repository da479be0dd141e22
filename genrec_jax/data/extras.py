"""Extra columns of a file, beside those that every model reads.

Examples are an action, a rating, a watch time or a teacher's score.
`config.data.extras` names them, they are stored beside the other columns, and
tasks may read them.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from genrec_jax.config.loading import hint_nearest
from genrec_jax.data import decimals, fields, text_arrays
from genrec_jax.data import vocab as vocab_lib
from genrec_jax.data.quoting import quote

KEY = 'data.extras'
# How values are stored. Accelerators count in 32 bits, so `int` is the usual
# whole number, and what does not fit asks for `int64` in words.
KINDS = {
  'float': np.float32,
  'int': np.int32,
  'int64': np.int64,
  'category': np.int32,
}
_WANTED = {
  'float': 'a finite number',
  'int': 'a whole number of 32 bits',
  'int64': 'a whole number of 64 bits',
  'category': f'a category of at most {text_arrays.LONGEST_ID:,} characters',
}


@dataclasses.dataclass(frozen=True)
class ExtraColumn:
  """One extra column.

  Attributes:
    name: of the column in the store.
    kind: one of `KINDS`; a 'category' is stored as its index in a vocabulary.
    column: of the raw file; '' is the one of that name.
    fill: what an empty cell is read as; '' refuses empty cells.
    vocabulary: file of a vocabulary to apply to a 'category', such as one
      that an earlier conversion saved; '' makes one of all values that occur.
  """

  name: str
  kind: str = 'float'
  column: str = ''
  fill: str = ''
  vocabulary: str = ''

  def __post_init__(self):
    if self.kind not in KINDS:
      raise ValueError(
        f'{KEY}.{self.name}.kind is {quote(self.kind)}, must be one of '
        f'{", ".join(KINDS)}' + hint_nearest(str(self.kind), KINDS)
      )
    if self.fill and not read_texts(self, [self.fill])[1].all():
      raise ValueError(
        f'{KEY}.{self.name}.fill is {quote(self.fill)}, not '
        f'{_WANTED[self.kind]}'
      )
    if self.vocabulary and self.kind != 'category':
      raise ValueError(
        f'{KEY}.{self.name}.vocabulary is for kind=category alone, not for '
        f'{self.kind}'
      )

  @property
  def source(self) -> str:
    """The column of the raw file."""
    return self.column or self.name

  @property
  def dtype(self) -> np.dtype:
    """Of the stored values."""
    return np.dtype(KINDS[self.kind])


_OPTIONS = tuple(
  f.name for f in dataclasses.fields(ExtraColumn) if f.name != 'name'
)


def build_extras(
  section: Mapping | None,
  *,
  kinds: Collection[str] = tuple(KINDS),
  reserved: Collection[str] = (),
) -> tuple[ExtraColumn, ...]:
  """The extra columns that `config.data.extras` asks for.

  Args:
    section: name -> kind, or -> the options of `ExtraColumn`.
    kinds: those that this store knows.
    reserved: names that something else has.

  Returns:
    The columns in the order of their names, because a config forgets the order
    of its keys.

  Raises:
    ValueError: for an unknown option or kind, or a name that is not free.

  >>> section = {'watched': 'float', 'stars': {'kind': 'int'}}
  >>> stars, watched = build_extras(section)
  >>> stars.name, stars.kind, watched.kind
  ('stars', 'int', 'float')
  """
  extras = []
  for name in sorted(section or {}):
    options = section[name]
    if not isinstance(options, str) and not hasattr(options, 'keys'):
      raise ValueError(
        f'{KEY}.{name} is {quote(options)}, must be a kind, or options such as '
        f'{KEY}.{name}.kind'
      )
    options = {'kind': options} if isinstance(options, str) else dict(options)
    for key in options:
      if key not in _OPTIONS:
        raise ValueError(
          f'{KEY}.{name}.{key} is not an option; the options are '
          f'{", ".join(_OPTIONS)}' + hint_nearest(key, _OPTIONS)
        )
    if name in reserved:
      raise ValueError(
        f'{KEY}.{name}: the name {name!r} has another meaning already; give '
        f'the extra another name and say {KEY}.<other name>.column={name}'
      )
    if 'fill' in options:  # the command line makes a number of 0
      options['fill'] = str(options['fill'])
    extra = ExtraColumn(name, **options)
    if extra.kind not in kinds:
      raise ValueError(
        f'{KEY}.{name}.kind is {quote(extra.kind)}; it must be one of '
        f'{", ".join(kinds)} here'
      )
    extras.append(extra)
  return tuple(extras)


def load_vocabularies(
  extras: Sequence[ExtraColumn],
) -> dict[str, vocab_lib.Vocab]:
  """Name -> vocabulary of the categories that have a file of one."""
  return {
    extra.name: vocab_lib.Vocab.load(extra.vocabulary)
    for extra in extras
    if extra.vocabulary
  }


def read_texts(
  extra: ExtraColumn, texts: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
  """Values of a column of N texts.

  Args:
    extra: the column.
    texts: its cells; '' is an empty one.

  Returns:
    `[N]` values, those of a category as text, and the `[N]` bool mask of those
    that are good.
  """
  if extra.fill:
    texts = [text or extra.fill for text in texts]
  if extra.kind == 'category':
    return fields.parse_ids(texts, 'str')
  if extra.kind == 'float':
    return fields.parse_ratings(texts)
  return _fit_type(extra, *fields.whole_numbers(texts))


def read_numbers(
  extra: ExtraColumn, values: np.ndarray, present: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
  """Values of a column of N numbers, as a file with types has them.

  Args:
    extra: the column.
    values: `[N]` integers or floats, anything where a value is missing.
    present: `[N]` bool, or None when nothing is missing.

  Returns:
    As `read_texts`.

  Raises:
    TypeError: for fractions where a category is wanted.
  """
  good = np.ones(len(values), bool) if present is None else present
  if values.dtype.kind == 'f':
    good = good & ~np.isnan(values)
  if extra.kind == 'category':
    if values.dtype.kind == 'f':
      raise TypeError('fractions are not categories')
    texts = np.where(good, values.astype(str), extra.fill)
    return texts, texts != ''
  empty = ~good
  if extra.kind == 'float':
    with np.errstate(over='ignore'):  # too large becomes inf, which is not good
      values = values.astype(np.float32)
    good = good & np.isfinite(values)
  else:
    if values.dtype.kind == 'f':
      values, are_whole = fields.read_whole_floats(values)
      good = good & are_whole
    else:
      good = good & (values <= np.iinfo(np.int64).max)  # uint64 goes further
    values, good = _fit_type(extra, values.astype(np.int64), good)
  if extra.fill and empty.any():
    fill, _ = read_texts(extra, [extra.fill])
    values, good = np.where(empty, fill, values), good | empty
  return values, good


def _fit_type(extra, values, good) -> tuple[np.ndarray, np.ndarray]:
  """Whole numbers in the type of the column; what does not fit is not good."""
  limits = np.iinfo(extra.dtype)
  good = good & (values >= limits.min) & (values <= limits.max)
  return np.where(good, values, 0).astype(extra.dtype), good


def fit_batch(name: str, values: np.ndarray) -> np.ndarray:
  """Values as a batch has them: float32, or int32 for whole numbers.

  >>> fit_batch('stars', np.array([4, 5])).dtype
  dtype('int32')
  """
  if values.dtype.kind == 'f' or values.dtype == np.int32:
    return values
  limits = np.iinfo(np.int32)
  good = (values >= limits.min) & (values <= limits.max)
  if not good.all():
    raise ValueError(
      f'{KEY}.{name}: {values[np.argmin(good)]} does not fit the 32 bits that '
      f'numbers of a batch have; declare {KEY}.{name}=float, or remove it'
    )
  return values.astype(np.int32)


def explain_value(extra: ExtraColumn, value: object) -> str:
  """What is wrong with a value that is not good, and the remedy."""
  key = f'{KEY}.{extra.name}'
  if value is None or value == '':
    return f'an empty cell; {key}.fill says what it stands for'
  if extra.kind != 'category' and (comma := decimals.hint_comma(value)):
    return f'{quote(value)} is not {_WANTED[extra.kind]}{comma}'
  hint = f'mend it or choose another {key}.kind'
  return f'{quote(value)} is not {_WANTED[extra.kind]}; {hint}'
