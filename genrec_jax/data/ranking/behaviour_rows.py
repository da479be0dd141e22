"""Examples with what a user did before: lists side by side, and a candidate.

An example is a row of the columns `NAMES`. Its history is some consecutive
events of its user, the oldest first: `history_item`, `history_category`,
`history_time` in seconds, and `history_age`, the seconds from an event to the
impression.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from genrec_jax.data.ranges import expand_ranges
from genrec_jax.data.ranking import raw

NAMES = (
  'label',
  'user',
  'item',
  'category',
  'history_item',
  'history_category',
  'history_age',
  'history_time',
  'time',
)


@dataclasses.dataclass(frozen=True)
class PastEvents:
  """K events, those of each user side by side and in the order of time.

  Attributes:
    item: `[K]`.
    category: `[K]`.
    time: `[K]` int64 seconds.
    beside: name of a further list, without `history_` -> `[K]` values.
  """

  item: np.ndarray
  category: np.ndarray
  time: np.ndarray
  beside: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Impressions:
  """N candidates, each shown to a user at a time.

  Attributes:
    user: `[N]`.
    item: `[N]` of the candidate.
    category: `[N]` likewise.
    time: `[N]` int64 seconds.
    label: `[N]` int64, 0 or 1.
    begin: `[N]` the first event of the history.
    length: `[N]` events of the history.
    beside: name of a further column -> `[N]` numbers.
  """

  user: np.ndarray
  item: np.ndarray
  category: np.ndarray
  time: np.ndarray
  label: np.ndarray
  begin: np.ndarray
  length: np.ndarray
  beside: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

  def __len__(self) -> int:
    return len(self.label)

  def take(self, at: np.ndarray | slice) -> 'Impressions':
    """The impressions at some places."""
    fields = {
      field.name: getattr(self, field.name)[at]
      for field in dataclasses.fields(self)
      if field.name != 'beside'
    }
    beside = {name: values[at] for name, values in self.beside.items()}
    return Impressions(**fields, beside=beside)


def make_chunk(
  events: PastEvents,
  shown: Impressions,
  names: Sequence[str],
  where: Callable[[int], str],
) -> raw.RawChunk:
  """The rows as a reader yields them.

  Args:
    events: that the histories are of.
    shown: the impressions.
    names: the columns that are wanted; lists are made of these alone.
    where: names the origin of row i for messages.
  """
  lists = [name for name in names if name.startswith('history_')]
  at = expand_ranges(shown.begin, shown.length) if lists else None
  length = shown.length.astype(np.int64)
  columns = {}
  for name in names:
    if name == 'history_age':
      age = np.repeat(shown.time, length) - events.time[at]
      columns[name] = raw.ListColumn(raw.NumberColumn(age), length)
    elif name in lists:
      values = _find_values(events, name.removeprefix('history_'))[at]
      columns[name] = raw.ListColumn(_make_column(values), length)
    else:
      columns[name] = _make_column(_find_values(shown, name))
  return raw.RawChunk(columns, len(shown), where)


def choose_features(history: int) -> dict[str, dict]:
  """Options of the features, as `data.features` has them.

  Args:
    history: the most events of a list.
  """
  beside = {'max_len': history, 'history': 'events'}
  return {
    'user': {'kind': 'categorical'},
    'item': {'kind': 'categorical'},
    'category': {'kind': 'categorical'},
    'history_item': {'kind': 'sequence', 'table': 'item', **beside},
    'history_category': {'kind': 'sequence', 'table': 'category', **beside},
    'history_age': {
      'kind': 'numeric_sequence',
      'transform': 'log',
      **beside,
    },
  }


def _find_values(rows: PastEvents | Impressions, name: str) -> np.ndarray:
  beside = rows.beside.get(name)
  return getattr(rows, name) if beside is None else beside


def _make_column(values: np.ndarray) -> raw.Column:
  """Numbers as they are, texts as a list."""
  if values.dtype.kind in 'iuf':
    return raw.NumberColumn(values)
  return values.tolist()
