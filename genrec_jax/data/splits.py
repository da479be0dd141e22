"""Divides histories into the splits for training, validation and testing.

An example is a target event and the events before it. Nothing is copied: an
example is three integers that point into the columns of the histories.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator

import numpy as np

from genrec_jax.data import histories as histories_lib
from genrec_jax.data.ranges import expand_ranges
from genrec_jax.formatting import format_moment

CHUNK = 1 << 22  # events looked at together


@dataclasses.dataclass(frozen=True)
class ExampleSpans:
  """N examples; their tokens are at begin .. end - 1, at most the last few.

  Attributes:
    row: `[N]` int32 user row.
    begin: `[N]` int64 position of the first event that may be a token.
    end: `[N]` int64 position of the target, the last event to predict; one
      beyond the events of the user when it has not happened yet.
  """

  row: np.ndarray
  begin: np.ndarray
  end: np.ndarray

  def __len__(self) -> int:
    return len(self.row)


def _select_examples(row, begin, end, keep) -> ExampleSpans:
  return ExampleSpans(
    row=row[keep].astype(np.int32), begin=begin[keep], end=end[keep]
  )


def _split_windows(examples: ExampleSpans, max_len: int) -> ExampleSpans:
  """Older tokens too: windows of `max_len` from the newest event backwards."""
  tokens = examples.end - examples.begin
  windows = -(-tokens // max_len)
  source = np.repeat(np.arange(len(examples)), windows)
  first = np.cumsum(windows) - windows
  back = np.arange(len(source)) - first[source]
  end = examples.end[source] - back * max_len
  return ExampleSpans(
    row=examples.row[source],
    begin=np.maximum(examples.begin[source], end - max_len),
    end=end,
  )


def keep_whole(
  histories: histories_lib.Histories,
  *,
  windows: str = 'latest',
  max_len: int | None = None,
) -> ExampleSpans:
  """Every history as one example (or its windows), nothing held out."""
  begin, end = histories.offsets[:-1], histories.offsets[1:] - 1
  examples = _select_examples(
    np.arange(len(histories)), begin, end, end > begin
  )
  return _apply_windows(examples, windows, max_len)


def to_predict(histories: histories_lib.Histories) -> ExampleSpans:
  """Every history up to its end; the target is the event that comes next.

  There `end` is one beyond the last event of the user, and the last token of
  a batch has no next item.
  """
  begin, end = histories.offsets[:-1], histories.offsets[1:]
  return _select_examples(np.arange(len(histories)), begin, end, end > begin)


def _apply_windows(
  examples: ExampleSpans, windows: str, max_len
) -> ExampleSpans:
  if windows == 'latest':
    return examples
  if windows != 'all':
    raise ValueError(f"windows must be 'latest' or 'all', not {windows!r}")
  if not max_len:
    raise ValueError("windows='all' needs max_len")
  return _split_windows(examples, max_len)


def _leave_last_out(histories, cfg, log) -> dict[str, ExampleSpans]:
  holdout = cfg.get('holdout', 2)
  if holdout not in (1, 2):
    raise ValueError(f'split.holdout must be 1 or 2, not {holdout}')
  rows = np.arange(len(histories))
  begin, last = histories.offsets[:-1], histories.offsets[1:] - 1
  targets = {'train': last - holdout, 'valid': last - 1, 'test': last}
  if holdout == 1:
    del targets['valid']
  return {
    split: _select_examples(rows, begin, end, end > begin)
    for split, end in targets.items()
  }


def _divide_users(histories) -> Iterator[tuple[int, int]]:
  """Ranges of user rows that hold about `CHUNK` events."""
  chunk_of_row = histories.offsets[:-1] // CHUNK
  cuts = np.flatnonzero(np.diff(chunk_of_row)) + 1
  bounds = [0, *cuts.tolist(), len(histories)]
  return zip(bounds[:-1], bounds[1:], strict=True)


def time_quantile(times: np.ndarray, fraction: float) -> int:
  """`sorted(times)[int(fraction * N)]`, without sorting or copying."""
  rank = min(int(fraction * len(times)), len(times) - 1)
  low, high = int(times.min()), int(times.max())
  while low < high:  # the answer is in low .. high
    width = -(-(high - low + 1) // 4096)
    counts = np.zeros(4096, np.int64)
    for i in range(0, len(times), CHUNK):
      some_times = times[i : i + CHUNK]
      some_times = some_times[(some_times >= low) & (some_times <= high)]
      counts += np.bincount((some_times - low) // width, minlength=4096)
    cumulative = np.cumsum(counts)
    bucket = int(np.searchsorted(cumulative, rank, side='right'))
    rank -= int(cumulative[bucket] - counts[bucket])
    low, high = low + bucket * width, min(high, low + (bucket + 1) * width - 1)
  return low


def _find_moment(histories, value: float, name: str) -> int:
  """A timestamp from a timestamp, or from a fraction of the events."""
  if 0 < value < 1:
    return time_quantile(histories.times, value)
  if value < 1 or not math.isfinite(value):
    raise ValueError(
      f'split.{name} must be a time in seconds or a fraction in (0, 1), '
      f'not {value}'
    )
  return int(value)


def _find_positions(histories, moment: int) -> np.ndarray:
  """`[U]` position of each user's first event at or after `moment`."""
  counts = np.zeros(len(histories), np.int64)
  for a, b in _divide_users(histories):
    offsets = histories.offsets[a : b + 1]
    early = histories.times[offsets[0] : offsets[-1]] < moment
    total = np.concatenate([[0], np.cumsum(early)])
    counts[a:b] = np.diff(total[offsets - offsets[0]])
  return histories.offsets[:-1] + counts


def _targets_between(histories, start, stop, target: str) -> ExampleSpans:
  """Targets among the events at positions start .. stop - 1 of each user."""
  rows, begin = np.arange(len(histories)), histories.offsets[:-1]
  start = np.maximum(start, begin + 1)  # a target needs an event before it
  if target == 'last':
    return _select_examples(rows, begin, stop - 1, stop > start)
  if target == 'first':
    return _select_examples(rows, begin, start, stop > start)
  if target != 'all':
    raise ValueError(
      f"split.target must be 'last', 'first' or 'all', not {target!r}"
    )
  counts = np.maximum(stop - start, 0)
  source = np.repeat(rows, counts)
  back = np.arange(len(source)) - (np.cumsum(counts) - counts)[source]
  keep = np.ones(len(source), bool)
  return _select_examples(source, begin[source], start[source] + back, keep)


def _global_time(histories, cfg, log) -> dict[str, ExampleSpans]:
  if not histories.has_times:
    raise ValueError("split 'global_time' needs a log with times")
  test_from = _find_moment(histories, cfg.get('test_from', 0.9), 'test_from')
  valid_from = cfg.get('valid_from', None)
  if valid_from is None:
    valid_from = test_from
  else:
    valid_from = _find_moment(histories, valid_from, 'valid_from')
  if valid_from > test_from:
    raise ValueError(
      f'split.valid_from ({valid_from}) is after test_from ({test_from})'
    )
  target = cfg.get('target', 'last')
  begin, stop = histories.offsets[:-1], histories.offsets[1:]
  test = _find_positions(histories, test_from)
  valid = _find_positions(histories, valid_from)
  log(
    f'split: validation from {format_moment(valid_from)}, test from '
    f'{format_moment(test_from)}'
  )
  rows = np.arange(len(histories))
  spans = {'train': _select_examples(rows, begin, valid - 1, valid - 1 > begin)}
  if valid_from < test_from:
    spans['valid'] = _targets_between(histories, valid, test, target)
  spans['test'] = _targets_between(histories, test, stop, target)
  return spans


def _split_stream(histories, cfg, log) -> dict[str, ExampleSpans]:
  """Whole records: the first ones train, the last ones test."""
  records = len(histories)
  test = round(cfg.get('test_fraction', 0.1) * records)
  valid = round(cfg.get('valid_fraction', 0.0) * records)
  cuts = {
    'train': (0, records - test - valid),
    'valid': (records - test - valid, records - test),
    'test': (records - test, records),
  }
  if not valid:
    del cuts['valid']
  begin, end = histories.offsets[:-1], histories.offsets[1:] - 1
  rows = np.arange(records)
  return {
    split: _select_examples(
      rows, begin, end, (end > begin) & (a <= rows) & (rows < b)
    )
    for split, (a, b) in cuts.items()
  }


SPLITS = {
  'leave_last_out': _leave_last_out,
  'global_time': _global_time,
  'stream': _split_stream,
}


def split_histories(
  histories: histories_lib.Histories,
  cfg,
  *,
  max_len: int | None = None,
  log: Callable[[str], None] = print,
) -> dict[str, ExampleSpans]:
  """Divides histories into the splits 'train', 'valid' and 'test'.

  Args:
    histories: the data.
    cfg: mapping with `name` (a key of `SPLITS`), the options of that split, and
      `windows`: 'latest' trains on the latest `max_len` tokens of each
      training sequence, 'all' on the older ones too, in windows of their own.
      leave_last_out: `holdout` 2 (default: the last event tests, the one before
        validates) or 1 (the last event tests, no 'valid').
      global_time: `test_from`, `valid_from` (None: no 'valid'), seconds since
        1970 or a fraction of the events in (0, 1); `target` 'last', 'first' or
        'all' events of a user in the period.
      stream: `test_fraction` 0.1, `valid_fraction` 0: the last records.
    max_len: tokens of a window.
    log: called with a message about users that are too short for a split.

  Returns:
    The splits, in the order of the users.
  """
  name = cfg.get('name', 'leave_last_out')
  if name not in SPLITS:
    raise ValueError(
      f'split.name must be one of {", ".join(SPLITS)}, not {name!r}'
    )
  spans = SPLITS[name](histories, cfg, log)
  for split, examples in spans.items():
    if not len(examples):
      raise ValueError(
        f'the {split} split is empty: no user has enough events for it'
        + _say_what_is_needed(histories, cfg, split)
      )
    if name == 'leave_last_out' and len(examples) < len(histories):
      log(
        f'split: {len(histories) - len(examples):,} of {len(histories):,} '
        f'users have too few events for the {split} split and are left out of '
        'it'
      )
  single = int(np.sum(np.diff(histories.offsets) < 2))
  if name != 'leave_last_out' and single:
    log(f'split: {single:,} users have a single event and are in no split')
  windows = cfg.get('windows', 'latest')
  spans['train'] = _apply_windows(spans['train'], windows, max_len)
  return spans


def _say_what_is_needed(histories, cfg, split: str) -> str:
  """How many events a user needs for a split; '' if that is not a number."""
  if cfg.get('name', 'leave_last_out') != 'leave_last_out':
    return ''
  # A target and an event before it, and what is held out behind them.
  least = 2 + {'train': cfg.get('holdout', 2), 'valid': 1, 'test': 0}[split]
  most = int(np.diff(histories.offsets).max(initial=0))
  return (
    f'. A user needs at least {least} events, and the longest history has '
    f'{most}'
  )


def find_tokens(
  examples: ExampleSpans, max_len: int, which: np.ndarray | slice = slice(None)
) -> tuple[np.ndarray, np.ndarray]:
  """What a model with `max_len` tokens reads and learns: the one statement.

  The tokens of an example are the events at begin .. end - 1, and it learns to
  predict those behind them, at begin + 1 .. end. Batches are made of it, and
  whatever counts what is trained (`count_targets`).

  >>> spans = ExampleSpans(*(np.array([x]) for x in (0, 4, 9)))
  >>> [x.tolist() for x in find_tokens(spans, max_len=3)]
  [[6], [9]]

  Args:
    examples: of a split.
    max_len: most tokens of an example; the latest count.
    which: some of the examples.

  Returns:
    (begin `[n]`, end `[n]`).
  """
  end = examples.end[which]
  return np.maximum(examples.begin[which], end - max_len), end


def count_targets(
  histories: histories_lib.Histories, examples: ExampleSpans, max_len: int
) -> np.ndarray:
  """`[rows]` int64: how often an epoch trains to predict each item.

  Neither first events nor those before a window (`split.windows='latest'`) are
  ever targets.

  Args:
    histories: the events.
    examples: the training split.
    max_len: most tokens of an example.
  """
  begin, end = find_tokens(examples, max_len)
  return _count_items(histories, begin + 1, end - begin)


def count_events(
  histories: histories_lib.Histories, examples: ExampleSpans
) -> np.ndarray:
  """`[rows]` int64: how often each item occurs in a training split.

  All that has happened, trained on or not: how popular items are, which does
  not depend on a model. An event counts once, also when windows share it.

  Args:
    histories: the events.
    examples: the training split.
  """
  # The first event of a later window is the last target of the one before.
  first = examples.begin == histories.offsets[examples.row]
  begin = examples.begin + np.where(first, 0, 1)
  return _count_items(histories, begin, examples.end + 1 - begin)


def count_repeats(
  histories: histories_lib.Histories,
  examples: ExampleSpans,
  max_len: int | None = None,
) -> tuple[int, int]:
  """How many targets at `examples.end` are items that the user has had before.

  Of very long logs it looks at a part, so that no run waits for it.

  Args:
    histories: the events.
    examples: of a split.
    max_len: only so many events before the target count; None is all of them.

  Returns:
    (such targets, targets that were looked at).
  """
  begin = histories.offsets[examples.row]
  if max_len:
    begin = np.maximum(examples.begin, examples.end - max_len)
  lengths = examples.end - begin
  every = max(1, -(-int(lengths.sum()) // (4 * CHUNK)))
  begin, end = begin[::every], examples.end[::every]
  lengths, repeated = lengths[::every], 0
  chunk_of_example = (np.cumsum(lengths) - lengths) // CHUNK
  for group in np.split(
    np.arange(len(end)), np.flatnonzero(np.diff(chunk_of_example)) + 1
  ):
    before = histories.items[expand_ranges(begin[group], lengths[group])]
    target = np.repeat(histories.items[end[group]], lengths[group])
    owner = np.repeat(np.arange(len(group)), lengths[group])
    repeated += len(np.unique(owner[before == target]))
  return repeated, len(end)


def _count_items(histories, begin, lengths) -> np.ndarray:
  """Occurrences of each item at begin, ..., `lengths` of them each."""
  rows = histories.vocab.rows
  counts = np.zeros(rows, np.int64)
  chunk_of_example = (np.cumsum(lengths) - lengths) // CHUNK
  for group in np.split(
    np.arange(len(begin)), np.flatnonzero(np.diff(chunk_of_example)) + 1
  ):
    at = expand_ranges(begin[group], lengths[group])
    counts += np.bincount(histories.items[at], minlength=rows)
  return counts
