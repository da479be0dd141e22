"""How splits without files of their own are cut from the training rows."""

import dataclasses
import datetime
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np

from genrec_jax.data.ranking import annotations as annotations_lib
from genrec_jax.data.ranking import raw
from genrec_jax.data.ranking.mixing import mix_bits

BY = ('order', 'time', 'random', 'group')
MOST_KEYS = 1 << 20  # distinct times that are counted side by side
_DROPPED = -1  # the split of a negative example that is not kept


@dataclasses.dataclass(frozen=True)
class SplitRule:
  """Which rows validate and test.

  Attributes:
    by: 'order': the last rows; 'time': the latest ones; 'random': each row by a
      draw of its own; 'group': all rows of a value by one draw.
    valid: fraction of the rows, 0 for no such split.
    test: likewise.
    seed: of the draws.
    column: of the times, or of the values of 'group'.
  """

  by: str = 'order'
  valid: float = 0.0
  test: float = 0.0
  seed: int = 0
  column: str = ''

  def __post_init__(self):
    if self.by not in BY:
      names = ', '.join(map(repr, BY[:-1]))
      raise ValueError(
        f'data.split.by must be {names} or {BY[-1]!r}, not {self.by!r}'
      )
    # NaN is in no range.
    if not (min(self.valid, self.test) >= 0 and self.valid + self.test < 1):
      raise ValueError(
        f'data.split: valid_fraction {self.valid} and test_fraction '
        f'{self.test} must not be negative and leave something to train on'
      )

    if not isinstance(self.seed, int) or self.seed < 0:
      raise ValueError(
        f'data.split.seed must be a whole number, at least 0, not {self.seed!r}'
      )

  def to_json(self) -> dict:
    """Its fields; without a column as they were before there was one."""
    fields = dataclasses.asdict(self)
    return fields if self.column else {k: fields[k] for k in list(fields)[:-1]}

  def cuts(self, total: int) -> tuple[int, int]:
    """First row of the validation and of the test split, by order."""
    test = round(total * self.test)
    return total - test - round(total * self.valid), total - test

  def cut_draws(self, draw: np.ndarray) -> np.ndarray:
    """`[N]` place in `SPLITS` by draws `[N]` in [0, 1)."""
    # Training rows are those below the first bound, whatever the others are.
    bounds = np.array([1 - self.valid - self.test, 1 - self.test])
    return np.searchsorted(bounds, draw, 'right')


def build_rule(
  cfg: Mapping,
  names: Collection[str] | None = None,
  missing: Collection[str] = ('valid', 'test'),
) -> SplitRule | None:
  """The rule that `config.data` asks for; None where there is nothing to cut.

  >>> build_rule({'split': {'by': 'random', 'test_fraction': 0.2}})
  SplitRule(by='random', valid=0.0, test=0.2, seed=0, column='')

  Args:
    cfg: `config.data`.
    names: columns of the data; None does not compare them.
    missing: the splits that have no files of their own.
  """
  options = cfg.get('split', None) or {}
  by, column = options.get('by', 'order'), options.get('column', '')
  keys = {'time': 'data.time', 'group': 'data.split.column'}
  if column and by != 'group':
    raise ValueError(
      f"data.split.column={column!r} is for data.split.by='group', and by is "
      f'{by!r}; remove one of them'
    )
  if by == 'time':
    column = cfg.get('time', '')
  elif by == 'group' and not column:
    column, keys['group'] = cfg.get('group', ''), 'data.group'
  rule = SplitRule(
    by,
    options.get('valid_fraction', 0.0) if 'valid' in missing else 0.0,
    options.get('test_fraction', 0.0) if 'test' in missing else 0.0,
    options.get('seed', 0),
    column,
  )
  if not rule.valid and not rule.test:
    return None
  if by in keys and not column:
    raise ValueError(
      f'data.split.by={by!r} reads a column that is not named; set '
      + ('data.time' if by == 'time' else 'data.split.column or data.group')
    )
  if column and names is not None and column not in names:
    raise ValueError(
      f'no column {column!r} ({keys[by]}), which data.split.by={by!r} reads; '
      f'the columns are {", ".join(names)}'
    )
  return rule


class TrainingCut:
  """Says of each row of the training source which split it is of.

  Attributes:
    columns: those that it reads.
    negatives: rows of label 0 that `assign` met in the training split.
    kept: how many of them it kept.
  """

  def __init__(
    self,
    rule: SplitRule | None,
    labels: Collection[str] = (),
    annotations: annotations_lib.Annotations = annotations_lib.Annotations(),
  ):
    """Takes the options.

    Args:
      rule: cuts splits; None cuts none.
      labels: columns of the labels.
      annotations: whose `negatives_kept` says what is left of the negatives.
    """
    self._rule, self._labels = rule, list(labels)
    self._share = annotations.negatives_kept
    self._bounds = None  # numbers of rows, or keys of times
    self.columns = [rule.column] if rule and rule.column else []
    self.columns += self._labels if self._share < 1 else []
    self.negatives = self.kept = 0

  def __bool__(self) -> bool:
    return self._rule is not None or self._share < 1

  def measure(
    self,
    chunks: Callable[[list[str]], Iterable[raw.RawChunk]],
    name: str,
    log: Callable[[str], None],
  ) -> None:
    """Finds where to cut: by order from the number of rows, by time from all.

    Args:
      chunks: columns -> the rows of the training source.
      name: of the source, for messages.
      log: called with the moments of a cut by time.
    """
    rule = self._rule
    if rule and rule.by == 'order':
      total = sum(len(chunk) for chunk in chunks(self._labels[:1]))
      self._bounds = np.array(rule.cuts(total))
    elif rule and rule.by == 'time':
      self._bounds = self._cut_times(chunks, name, log)

  def assign(self, chunk: raw.RawChunk, first: int) -> np.ndarray:
    """`[N]` place in `SPLITS` of the rows from number `first` on, or -1."""
    rule, row = self._rule, np.arange(first, first + len(chunk))
    if rule is None:
      places = np.zeros(len(chunk), np.int64)
    elif rule.by == 'order':
      places = np.searchsorted(self._bounds, row, 'right')
    elif rule.by == 'time':
      moments = annotations_lib.read_moments(chunk, rule.column)
      places = np.searchsorted(self._bounds, moments, 'right')
    elif rule.by == 'group':
      places = rule.cut_draws(_draw_by_value(rule.seed, chunk, rule.column))
    else:
      places = rule.cut_draws(draw_uniform(rule.seed, first, len(chunk)))
    if self._share < 1:
      labels = annotations_lib.read_labels(chunk, self._labels)[:, 0]
      negative = (places == 0) & (labels == 0)
      # A stream of its own: which rows are kept tells nothing of the splits.
      left = draw_uniform((0, 1), first, len(chunk)) >= self._share
      self.negatives += int(negative.sum())
      self.kept += int((negative & ~left).sum())
      places = np.where(negative & left, _DROPPED, places)
    return places

  def _cut_times(self, chunks, name: str, log) -> np.ndarray:
    """Keys of the first moments of the validation and of the test split."""
    rule = self._rule

    def count_keys(low, high):
      counts = _KeyCounts(low, high)
      for chunk in chunks([rule.column]):
        counts.add(annotations_lib.read_moments(chunk, rule.column))
      return counts.close()

    whole = count_keys(0, _LAST)
    total, bounds, texts = int(whole.counts.sum()), [_LAST, _LAST], []
    end = total
    # Rows of one time stay together, in the later of two splits.
    for place, share in ((1, rule.test), (0, rule.valid)):
      rows = min(round(total * share), end)
      if rows:
        bounds[place], end = _find_rank(whole, end - rows, count_keys)
        moment = _show_moment(bounds[place])
        texts = [f'{("valid", "test")[place]} from {moment} on', *texts]
      elif place == 0:
        bounds[0] = bounds[1]
    if not end and total:
      raise ValueError(
        f"{name}: data.split.by='time' leaves no row to train on: the first "
        f'time of column {rule.column!r}, {_show_moment(min(bounds))}, is that '
        'of a held-out split, because too many rows have one time; lower the '
        "fractions of data.split, or set data.split.by='order'"
      )
    log(f'split by the times of {rule.column!r}: {", ".join(texts)}')
    return np.array(bounds, np.uint64)


_LAST = 2**64 - 1


class _KeyCounts:
  """How often each key occurs, in buckets of 2^shift keys, which grow."""

  def __init__(self, low: int, high: int):
    self.shift, self._low, self._high = 0, np.uint64(low), np.uint64(high)
    self.values, self.counts = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    self._waiting, self._size = [], 0

  def add(self, keys: np.ndarray) -> None:
    keys = keys[(keys >= self._low) & (keys <= self._high)]
    self._waiting.append(keys)
    self._size += len(keys)
    if self._size > MOST_KEYS:
      self.close()

  def close(self) -> '_KeyCounts':
    """Takes in what waits."""
    keys = np.concatenate([np.zeros(0, np.uint64), *self._waiting])
    values = np.concatenate([self.values, keys >> np.uint64(self.shift)])
    counts = np.concatenate([self.counts, np.ones(len(keys), np.int64)])
    self._waiting, self._size = [], 0
    while True:
      self.values, place = np.unique(values, return_inverse=True)
      self.counts = np.zeros(len(self.values), np.int64)
      np.add.at(self.counts, place, counts)
      if len(self.values) <= MOST_KEYS:
        return self
      self.shift += 1
      values, counts = self.values >> np.uint64(1), self.counts


def _find_rank(
  counts: _KeyCounts, rank: int, count_keys: Callable[[int, int], _KeyCounts]
) -> tuple[int, int]:
  """The key at place `rank` of all keys in order, and how many are below it.

  A bucket of several keys is looked into by reading the rows once more.
  """
  below = 0
  while True:
    ends = below + np.cumsum(counts.counts)
    at = int(np.searchsorted(ends, rank, 'right'))
    below = int(ends[at] - counts.counts[at])
    low = int(counts.values[at]) << counts.shift
    if not counts.shift:
      return low, below
    counts = count_keys(low, low + (1 << counts.shift) - 1)


def _show_moment(key: int) -> str:
  """A time as its file has it; seconds since 1970 with their date."""
  value = annotations_lib.time_of_moment(key)
  text = str(value)
  if isinstance(value, float):
    text = f'{value:.6f}'.rstrip('0').rstrip('.')
  if 10**8 <= value < 10**11:
    moment = datetime.datetime.fromtimestamp(int(value), datetime.UTC)
    text += f' ({moment:%Y-%m-%d %H:%M:%S} UTC)'
  return text


def draw_uniform(seed, first: int, count: int) -> np.ndarray:
  """`[count]` draws in [0, 1), each a function of the seed and its number."""
  x = np.arange(first, first + count, dtype=np.uint64)
  x = x * np.uint64(0x9E3779B97F4A7C15)
  x += np.random.default_rng(seed).integers(1 << 63, dtype=np.uint64)
  return (mix_bits(x) >> np.uint64(11)) / 2.0**53


def _draw_by_value(seed: int, chunk: raw.RawChunk, name: str) -> np.ndarray:
  """`[N]` draws in [0, 1), each a function of the seed and a row's value."""
  texts = annotations_lib.read_group_texts(chunk, name, 'data.split.column')
  key, draws = str(seed).encode(), {}
  for text in set(texts):
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=key).digest()
    draws[text] = (int.from_bytes(digest, 'little') >> 11) / 2.0**53
  return np.array([draws[text] for text in texts])
