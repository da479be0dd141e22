"""Guesses which feature a column is by looking at its first values.

A guess is made where nobody says what the features are. It takes the first
`ROWS` rows of the training data, and everything it decides is said in the log.
"""

import collections
import dataclasses
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from genrec_jax.data import decimals, fields
from genrec_jax.data.quoting import escape, list_names, quote
from genrec_jax.data.ranking import forms, history_checks, raw, schema
from genrec_jax.data.ranking.encoder import Encoder

LOG = logging.getLogger('genrec_jax')

ROWS = 1 << 15
_LEAST_NUMBERED = 16  # fewer numbers in a row may be in order by chance
_LEAST_TOLD = 100  # of fewer examples a column may tell the label by chance
_FEW_VALUES = 16  # of a column that is compared with the labels
_WIDE = 100  # values of a vocabulary that may be too many
_MARK = schema.Column('').separator  # between the values of a list in a text
_JOINED = 0.1  # share of the cells that have it, from which they are lists

_DATE = re.compile(
  r'[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}.*)?', re.ASCII
)

# Words in the names of columns that are other labels where they hold 0 and 1.
_LABEL_WORDS = frozenset(
  'bought buy cart click clicked clicks comment commented complete completed '
  'conversion convert converted finish finished follow followed forward '
  'install installed like liked likes order ordered purchase purchased share '
  'shared'.split()
)
# The same, whatever they hold.
_LABEL_NAMES = frozenset(('label', 'labels', 'rating', 'stars', 'target'))


@dataclasses.dataclass(frozen=True)
class Guess:
  """What a column seems to be.

  Attributes:
    options: of its feature; None where it is better left out.
    reason: why, in a few words.
    warning: what a user should know before training; '' for nothing.
  """

  options: dict | None
  reason: str
  warning: str = ''


def guess_features(
  chunks: Iterable[raw.RawChunk],
  by_type: Mapping[str, dict | None],
  labels: Sequence[str],
) -> dict[str, Guess]:
  """Looks at the first `ROWS` rows.

  >>> rows = [{'shop': f's{n % 7}', 'price': n / 4, 'y': 0} for n in range(40)]
  >>> chunk = raw.from_records(rows, ['shop', 'price', 'y'])
  >>> by_type = dict.fromkeys(['shop', 'price'], {'kind': 'categorical'})
  >>> for name, guess in guess_features([chunk], by_type, ['y']).items():
  ...   print(name, guess.options['kind'], '-', guess.reason)
  shop categorical - text, 7 values
  price numeric - numbers with fractions, such as 0.25

  Args:
    chunks: rows with the columns of `by_type` that have options, and labels.
    by_type: column -> the options that its type suggests, None for no feature;
      texts are 'categorical'.
    labels: columns of labels that the chunks have.

  Returns:
    Column -> the guess, in the order of `by_type`.
  """
  looks = {name: _Look(x['kind']) for name, x in by_type.items() if x}
  done = 0
  for chunk in chunks:
    read = {name: _list_cells(chunk.columns[name]) for name in labels}
    told = [[_read_flag(cell) for cell in cells] for cells in read.values()]
    for name, look in looks.items():
      look.add(chunk.columns[name], told)
    done += len(chunk)
    if done >= ROWS:
      break
  return {
    name: looks[name].guess(name, labels)
    if name in looks
    else Guess(None, 'its type is that of no feature')
    for name in by_type
  }


# How labels are written.
_FLAGS = {'0': 0, '1': 1, '0.0': 0, '1.0': 1, 0: 0, 1: 1}


def _read_flag(cell: str | float) -> int | None:
  """The label that a cell says, 0 or 1; None for anything else."""
  if isinstance(cell, str):
    cell = forms.read_label_word(cell)
  return _FLAGS.get(cell)


def find_flags(chunk: raw.RawChunk) -> list[str]:
  """The columns that can be labels: of both 0 and 1, or words for them.

  Those whose names are of labels, where there are any.
  """
  flags = []
  for name, column in chunk.columns.items():
    if not isinstance(column, raw.ListColumn):
      if {_read_flag(cell) for cell in _list_cells(column)} == {0, 1}:
        flags.append(name)
  known = _LABEL_WORDS | _LABEL_NAMES
  return [name for name in flags if _split_name(name) & known] or flags


def _split_name(name: str) -> set[str]:
  """The words of a name such as user_id or isClicked, in small letters."""
  words = re.sub('([A-Z])', r' \1', name).lower()
  return set(re.findall('[a-z]+', words))


def _list_cells(column: raw.Column) -> Sequence:
  """Texts or numbers; '' is a missing one."""
  if not isinstance(column, raw.NumberColumn):
    return column
  cells = column.values.tolist()
  if column.present is None:
    return cells
  return [
    cell if is_present else ''
    for cell, is_present in zip(cells, column.present.tolist(), strict=True)
  ]


class _Look:
  """What the first cells of a column are."""

  def __init__(self, kind: str):
    self._kind = kind  # as its type suggests
    self._counts = collections.Counter()  # memory: ROWS values at most
    self._rows = 0
    self._numbering = None  # (first number, step) while cells number the rows
    self._told = None  # label -> value -> [examples of label 0, of label 1]
    self._numbers = None  # the first of a typed list of them

  def add(self, column: raw.Column, labels: Sequence[list]) -> None:
    if isinstance(column, raw.ListColumn):
      if isinstance(column.values, raw.NumberColumn) and not self._numbers:
        first = np.flatnonzero(column.lengths)[:1].sum()
        start = column.lengths[:first].sum()
        stop = start + column.lengths[first : first + 1].sum()
        self._numbers = column.values.values[start:stop].tolist()
      return
    cells = _list_cells(column)
    self._check_numbering(cells)
    self._rows += len(cells)
    self._counts.update(cells)
    if self._told is None:
      self._told = [collections.Counter() for _ in labels]
    # Nothing is compared where there are many values, so that this is cheap.
    if len(self._counts) <= _FEW_VALUES + 1:
      for told, label in zip(self._told, labels, strict=True):
        told.update(zip(cells, label, strict=True))

  def _check_numbering(self, cells: Sequence) -> None:
    if not self._rows and len(cells) >= 2:
      first, second = _parse_number(cells[0]), _parse_number(cells[1])
      if abs(second - first) == 1 and abs(first) < 2**53:
        self._numbering = int(first), int(second - first)
    if self._numbering:
      first, step = self._numbering
      at = first + step * self._rows
      wanted = range(at, at + step * len(cells), step)
      if [*map(_parse_number, cells)] != [*wanted]:
        self._numbering = None

  def guess(self, name: str, labels: Sequence[str]) -> Guess:
    """The feature that these cells make."""
    if self._kind == 'numeric_sequence':
      return _leave_out_numbers(name, self._numbers)
    if self._kind == 'multi_hot':
      return _keep_list(name, 'lists', bool(self._numbers))
    if self._numbering and self._rows >= _LEAST_NUMBERED:
      first, step = self._numbering
      return Guess(
        None,
        f'numbers the rows: {first}, {first + step}, {first + 2 * step} ...',
      )
    values = [value for value in self._counts if value != '']
    if values and all(
      isinstance(value, str) and _DATE.fullmatch(value) for value in values
    ):
      return Guess(None, f'dates, such as {values[0]}')
    if values and all(map(fields.is_other_date, values)):
      return Guess(
        None,
        f'dates, such as {values[0]}',
        f'is left out, for it has dates such as {quote(values[0])}: convert '
        'them to the form 2023-12-24 for data.time and splits by time, or to '
        'numbers or weekdays for a feature',
      )
    if joined := self._judge_joined(name, values):
      return joined
    kind, reason, warning = self._judge_values()
    return Guess(
      {'kind': kind}, reason, warning or self._find_label(name, labels)
    )

  def _judge_joined(self, name: str, values: Sequence) -> Guess | None:
    """The guess of texts that are lists, None for others."""
    joined = [v for v in values if isinstance(v, str) and _MARK in v]
    count = sum(self._counts[v] for v in joined)
    if not joined or count < _JOINED * sum(self._counts[v] for v in values):
      return None
    parts = {part for v in values for part in str(v).split(_MARK) if part}
    numbers = [_parse_number(part) for part in parts]
    are_numbers = bool(numbers) and all(map(math.isfinite, numbers))
    if are_numbers and any(number % 1 for number in numbers):
      return _leave_out_numbers(name, joined[0].split(_MARK))
    return _keep_list(
      name,
      f'lists joined by {_MARK}, such as {quote(joined[0])}',
      are_numbers,
    )

  def _judge_values(self) -> tuple[str, str, str]:
    """Kind, reason and warning."""
    values = [value for value in self._counts if value != '']
    if not values:
      return self._kind, f'empty in the first {self._rows:,} rows', ''
    numbers = {value: _parse_number(value) for value in values}
    texts = [value for value, x in numbers.items() if not math.isfinite(x)]
    commas = [value for value in texts if decimals.has_comma(value)]
    if commas and 10 * (len(texts) - len(commas)) <= len(values):
      # 1,099 may be a little more than one, or than a thousand.
      in_thousands = all(re.search(',[0-9]{3}$', value) for value in commas)
      return (
        self._kind,
        f'text such as {quote(commas[0])}',
        f'has numbers with a decimal comma, such as {quote(commas[0])}, each a '
        'category of its own; set --config.data.decimal=, to have a numeric '
        'feature'
        + (
          f', which reads {commas[0]} as {commas[0].replace(",", ".")}; if the '
          'commas group thousands, write the numbers without them'
          if in_thousands
          else ''
        ),
      )
    fraction = next(
      (value for value, x in numbers.items() if x % 1 and math.isfinite(x)),
      None,
    )
    count = f'{len(values):,} value{"s" * (len(values) > 1)}'
    if self._kind == 'numeric':
      if fraction is None and '' in self._counts:
        # What pandas makes of whole numbers beside missing ones.
        return 'categorical', f'whole numbers and missing ones, {count}', ''
      if fraction is None:
        return (
          'numeric',
          'floats that are whole numbers; categorical if ids',
          '',
        )
      return 'numeric', f'numbers with fractions, such as {fraction}', ''
    if fraction is None:
      what = 'text' if texts else 'whole numbers'
      return self._kind, f'{what}, {count}', ''
    if not texts:
      return 'numeric', f'numbers with fractions, such as {fraction}', ''
    beside = f'{quote(texts[0])} beside numbers with fractions'
    if 10 * len(texts) > len(values):
      return self._kind, f'text, {count}', ''
    return (
      self._kind,
      f'text such as {beside}',
      f'has text such as {beside}, so that each number is a category of its '
      'own; leave such cells empty to have a numeric feature',
    )

  def _find_label(self, name: str, labels: Sequence[str]) -> str:
    """A warning where the column looks like another label, or ''."""
    flags = {_read_flag(value) for value in self._counts if value != ''}
    is_flag = flags == {0, 1}
    if len(self._counts) <= _FEW_VALUES + 1:
      for label, told in zip(labels, self._told or (), strict=False):
        if words := _describe_leak(label, told, is_flag):
          return f'{words}: leave it out if it is known only afterwards'
    words = _split_name(name)
    if words & _LABEL_NAMES or is_flag and words & _LABEL_WORDS:
      return (
        'looks like another label by its name: leave it out if it is known '
        'only afterwards, or add it to data.labels'
      )
    return ''


def _hint_history(name: str) -> str:
  """How a list of numbers is named as a column of a history."""
  key = f'--config.data.features.{name}'
  return (
    'if they are numbers of events, such as their ages, name all features in '
    f'data.features, this one with {key}.kind=numeric_sequence '
    f'{key}.history=events and the lists beside it with the same history'
  )


def _leave_out_numbers(name: str, some: Sequence | None) -> Guess:
  """The guess of lists that are numbers and no categories."""
  such = ''
  if some:
    such = f', such as {quote(_MARK.join(map(str, some)))}'
  return Guess(
    None,
    f'lists of numbers{such}',
    f'is left out, for it has lists of numbers{such}, which are no categories: '
    + _hint_history(name)
    + '; if they are weights of the values of another list, that one names '
    'them as its weights',
  )


def _keep_list(name: str, reason: str, are_numbers: bool) -> Guess:
  """The guess of lists of categories, which may be times by their name."""
  warning = ''
  if are_numbers and history_checks.find_clock(name):
    warning = (
      'has lists of whole numbers, and by its name they are times or ages, of '
      f'which each would be a category of its own: {_hint_history(name)}'
    )
  return Guess({'kind': 'multi_hot'}, reason, warning)


def _parse_number(value: object) -> float:
  """A number that a numeric feature can be; NaN for anything else."""
  if isinstance(value, str) and not fields.is_plain(value):
    return math.nan
  try:
    number = float(value)
  except ValueError:
    return math.nan
  return number if abs(number) <= fields.LARGEST_FLOAT32 else math.nan


def _describe_leak(name: str, told: collections.Counter, is_flag: bool) -> str:
  """How a column tells a label, or '' if it does not.

  Args:
    name: of the label.
    told: (value, label 0 or 1 or None) -> examples.
    is_flag: whether the values are 0 and 1.
  """
  table = collections.defaultdict(lambda: [0, 0])
  for (value, label), count in told.items():
    if label is not None and value != '':
      table[value][label] += count
  totals = np.sum([*table.values()], axis=0) if table else np.zeros(2)
  examples, rarer = int(totals.sum()), int(totals.min())
  if examples < _LEAST_TOLD or not rarer or len(table) < 2:
    return ''
  wrong = sum(min(counts) for counts in table.values())
  if rarer >= 20 and wrong <= 0.02 * rarer:
    return f'tells {1 - wrong / examples:.1%} of the values of label {name!r}'
  # A purchase says that there was a click, no purchase says little. That all
  # of n examples have the rarer label by chance is as likely as share^n.
  label = int(totals.argmin())
  for value, counts in table.items() if is_flag else ():
    by_chance = counts[label] * math.log(rarer / examples)
    if not counts[1 - label] and by_chance < -25:
      return f'is {value} only where label {name!r} is {label}'
  return ''


def choose_features(
  guesses: Mapping[str, Guess], where: object, log: Callable[[str], None]
) -> dict[str, dict]:
  """Feature -> options, by the guesses, which the log shows in a block.

  Args:
    guesses: column -> what it seems to be.
    where: the file, for messages.
    log: called with messages.

  Raises:
    ValueError: no column is left.
  """
  options = {n: g.options for n, g in guesses.items() if g.options is not None}
  if not options:
    raise ValueError(
      f'{where}: these columns number the rows, or their types are of no '
      f'feature: {list_names(list(guesses))}; convert them to text, numbers, '
      'or lists of text or of whole numbers, or name them in data.features'
    )
  log(
    f'data.features is not set; the first rows of {where} give\n'
    + describe_guesses(guesses)
    + '\n  name all features in data.features to have others'
  )
  warn_of(guesses, where)
  return options


def describe_guesses(guesses: Mapping[str, Guess]) -> str:
  """A line a column: its name, its kind, and why.

  >>> print(describe_guesses({'shop': Guess({'kind': 'numeric'}, 'floats')}))
    shop  numeric      floats
  """
  width = min(40, max(map(len, guesses)))
  return '\n'.join(
    f'  {escape(name):{width}}  '
    f'{(guess.options or {"kind": "left out"})["kind"]:11}  '
    f'{escape(guess.reason)}'
    for name, guess in guesses.items()
  )


def warn_of(guesses: Mapping[str, Guess], where: object) -> None:
  """Warns of columns that hide something, a line each."""
  unread = [
    n or "''" for n, g in guesses.items() if g.options is None and not g.warning
  ]
  if unread:
    LOG.warning('%s: left out: %s', where, list_names(unread))
  for name, guess in guesses.items():
    if guess.warning:
      LOG.warning('%s: column %r %s', where, escape(name), guess.warning)


def warn_of_vocabularies(encoder: Encoder, rows: int, guessed: bool) -> None:
  """Warns of features of which nearly each training row has a value of its own.

  Args:
    encoder: of the data.
    rows: of training.
    guessed: whether the features are what this module made of the columns.
  """
  for column in encoder.schema.single:
    vocabulary = encoder.vocabularies[column.table_name]
    values = len(vocabulary.values)
    if column.kind == 'numeric' or values < _WIDE:
      continue
    fraction = _find_fraction(vocabulary.values) if guessed else None
    if fraction is not None:
      LOG.warning(
        'feature %r is categorical, by the first rows, and has numbers with '
        'fractions behind them, such as %s, each a category of its own; set '
        'its kind to numeric in data.features',
        column.name,
        fraction,
      )
    elif 2 * values > rows:
      LOG.warning(
        'feature %r has %s values in %s training rows, so that most rows of '
        'its table are learned from one example and most new examples have an '
        'unseen value; raise min_count, set vocabulary=hashed and hash_rows, '
        'make it numeric if it is a quantity, or leave it out (data.features)',
        column.name,
        f'{values:,}',
        f'{rows:,}',
      )


def _find_fraction(values: Sequence[str]) -> str | None:
  """The first fraction of values that all are numbers; None for others."""
  fraction = None
  for value in values:
    number = _parse_number(value)
    if not math.isfinite(number):
      return None  # at the first text, for there may be millions
    if fraction is None and number % 1 > 0:
      fraction = value
  return fraction
