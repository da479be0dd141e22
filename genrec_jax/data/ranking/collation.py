"""Encoded rows -> batches of `Examples`, which is all that a server needs."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from genrec_jax import features
from genrec_jax.data import extras as extras_lib
from genrec_jax.data.capacities import capacity_for, share_of
from genrec_jax.data.ranking import encoder as encoder_lib
from genrec_jax.data.ranking import id_words, raw
from genrec_jax.data.ranking import rows as rows_lib

NO_GROUP = -1


def _pad_values(values: np.ndarray, size: int, fill=0) -> np.ndarray:
  """`values` and behind them `fill`, `size` in all."""
  if len(values) == size:
    return np.ascontiguousarray(values)
  out = np.full((size, *values.shape[1:]), fill, values.dtype)
  out[: len(values)] = values
  return out


def list_lengths(
  rows: rows_lib.Rows, names: rows_lib.ColumnNames
) -> dict[str, np.ndarray]:
  """Name of each jagged feature of a batch -> how many values its lists have.

  Args:
    rows: N encoded rows.
    names: what their columns are called; those of a history are one feature.

  Returns:
    `[N]` each.
  """
  of_histories = {name for _, own in names.histories for name in own}
  lengths = {
    name: bags.lengths
    for name, bags in rows.bags.items()
    if name not in of_histories
  }
  for history, own in names.histories:
    lengths[history] = rows.bags[own[0]].lengths
  return lengths


@dataclasses.dataclass(frozen=True)
class _Shards:
  """Where the lists of some features go in a batch.

  Attributes:
    bounds: `[W + 1]`, which examples are of each shard.
    share: places for examples in a shard.
  """

  bounds: np.ndarray
  share: int

  def pack_lists(
    self,
    columns: Mapping[str, np.ndarray],
    lengths: np.ndarray,
    capacity: int,
    before: int | None = None,
  ) -> features.Jagged:
    """The lists of each shard, one behind the other.

    Args:
      columns: name -> `[K]` int32 or float32, side by side.
      lengths: of the lists, whose sum is K.
      capacity: values of a shard.
      before: values of the batch before these, where they shall be numbered.
    """
    total = np.concatenate([[0], np.cumsum(lengths)])[self.bounds]
    size = len(self.bounds) - 1

    def pack(dtype) -> features.Columns:
      own = {name: x for name, x in columns.items() if x.dtype == dtype}
      packed = np.zeros((size * capacity, len(own)), dtype)
      for place, column in enumerate(own.values()):
        for i, (a, b) in enumerate(zip(total[:-1], total[1:], strict=True)):
          packed[i * capacity : i * capacity + b - a, place] = column[a:b]
      return features.Columns(packed, tuple(own))

    floats = pack(np.float32)
    return features.Jagged(
      pack(np.int32),
      _pad_values(lengths, size * self.share),
      floats if floats.names else None,
      None if before is None else (before + total[:-1]).astype(np.int32),
    )


def _pack_bags(
  rows: rows_lib.Rows,
  names: rows_lib.ColumnNames,
  shards: _Shards,
  room: Mapping[str, int],
  before: Mapping[str, int],
) -> dict[str, features.Jagged]:
  """The jagged features of a batch, a history being one of them.

  Args:
    rows: the examples.
    names: what their columns are called.
    shards: where they go.
    room: name of a jagged feature -> values of a shard.
    before: name of a history -> events of the batch before these examples.
  """
  jagged, histories = {}, dict(names.histories)
  for name, lengths in list_lengths(rows, names).items():
    if name in histories:
      columns = {own: rows.bags[own].values for own in histories[name]}
    else:
      columns = {name: rows.bags[name].values}
      if rows.bags[name].weights is not None:
        columns[features.WEIGHT] = rows.bags[name].weights
    jagged[name] = shards.pack_lists(
      columns, lengths, room[name], before.get(name)
    )
  return jagged


def _stack_columns(
  columns: Mapping[str, np.ndarray], size: int, dtype
) -> features.Columns | None:
  """Columns of this type side by side, filled up to `size`; None for none."""
  columns = {n: c for n, c in columns.items() if c.dtype == dtype}
  if not columns:
    return None
  out = np.zeros((size, len(columns)), dtype)
  for i, values in enumerate(columns.values()):
    out[: len(values), i] = values
  return features.Columns(out, tuple(columns))


def _in_32_bits(time: np.ndarray) -> np.ndarray:
  """Times as a batch has them."""
  most = np.abs(time).max(initial=0)
  if most > np.iinfo(np.int32).max:
    raise ValueError(
      f'data.time: {most} does not fit the 32 bits that the times of a batch '
      'have; give seconds, or set data.time='
      "'' if no task reads them"
    )
  return time.astype(np.int32)


def find_longest_shard(lengths: np.ndarray, bounds: np.ndarray) -> int:
  """Values of the longest shard."""
  total = np.concatenate([[0], np.cumsum(lengths)])[bounds]
  return int(np.diff(total).max(initial=0))


def collate_rows(
  rows: rows_lib.Rows,
  names: rows_lib.ColumnNames,
  *,
  batch_size: int,
  shards: int = 1,
  own: range | None = None,
  capacities: Mapping[str, int] | None = None,
) -> features.Examples:
  """Makes one batch of at most `batch_size` rows.

  Args:
    rows: n <= batch_size rows, in order.
    names: what their columns are called.
    batch_size: B; examples beyond n have weight 0.
    shards: W, in how many parts of B / W examples the batch is cut.
    own: the shards to make; None for all.
    capacities: name of a jagged feature -> values of a shard. Where there is
      none, or a shard has more, it is `capacity_for` the longest of all shards.

  Returns:
    `Examples` of NumPy arrays: the shards `own`, one behind the other.
  """
  share = share_of(batch_size, shards)
  if len(rows) > batch_size:
    raise ValueError(f'{len(rows)} examples for a batch of {batch_size}')
  own = range(shards) if own is None else own
  bounds = np.minimum(np.arange(shards + 1) * share, len(rows))
  room, given = {}, capacities or {}
  lengths = list_lengths(rows, names)
  for name, own_lengths in lengths.items():
    ids = find_longest_shard(own_lengths, bounds)
    fits = ids <= given.get(name, -1)
    room[name] = given[name] if fits else capacity_for(ids)
  mine = bounds[own.start : own.stop + 1]
  own_rows = rows.slice_rows(int(mine[0]), int(mine[-1]))
  size = len(own) * share
  group = own_rows.group
  if group is None:
    group = np.full(len(own_rows), NO_GROUP, np.int32)
  extras = {n: extras_lib.fit_batch(n, c) for n, c in own_rows.extras.items()}
  labels = own_rows.labels.astype(np.float32)
  weights = own_rows.weight
  if weights is None:
    weights = np.ones(len(own_rows), np.float32)
  return features.Examples(
    weights=_pad_values(weights, size),
    dense=features.Columns(_pad_values(own_rows.numbers, size), names.numbers),
    ids=features.Columns(_pad_values(own_rows.ids, size), names.ids),
    jagged=_pack_bags(
      own_rows,
      names,
      _Shards(mine - mine[0], share),
      room,
      {h: int(lengths[h][: mine[0]].sum()) for h, _ in names.histories},
    ),
    labels=features.Columns(_pad_values(labels, size), names.labels),
    label_weights=None
    if own_rows.label_weights is None
    else features.Columns(
      _pad_values(own_rows.label_weights, size), names.labels
    ),
    time=None
    if own_rows.time is None
    else _pad_values(_in_32_bits(own_rows.time), size),
    example_id=None
    if own_rows.example_id is None
    else _pad_values(id_words.split_words(own_rows.example_id), size),
    group=_pad_values(group, size, NO_GROUP),
    extras=_stack_columns(extras, size, np.float32),
    int_extras=_stack_columns(extras, size, np.int32),
    first=mine[:-1].astype(np.int32),
  )


def raw_batches(
  encoder: encoder_lib.Encoder,
  chunks: Iterable[raw.RawChunk],
  *,
  batch_size: int,
  tally=None,
  **shards,
) -> Iterator[features.Examples]:
  """Batches of rows that are encoded as they come, for predictions.

  Args:
    encoder: of the training data.
    chunks: raw rows, with labels or without them.
    batch_size: B; the last batch is filled up with examples of weight 0.
    tally: a `value_tally.Tally`, or what else has its `add`: counts the values.
    **shards: `shards` and `own` of `collate_rows`.

  Yields:
    `Examples` of NumPy arrays; labels are 0 where there are none.
  """
  names = encoder.schema.names
  waiting, size = [], 0
  for chunk in chunks:
    absent = encoder.make_absent(chunk)
    encoded = encoder.encode(chunk, absent=absent)
    if tally is not None:
      tally.add(chunk, encoded, absent)
    waiting.append(_add_empty_labels(encoded, len(names.labels)))
    size += len(chunk)
    if size >= batch_size:
      rows, done = rows_lib.concatenate_rows(waiting), 0
      while size - done >= batch_size:
        piece = rows.slice_rows(done, done + batch_size)
        yield collate_rows(piece, names, batch_size=batch_size, **shards)
        done += batch_size
      waiting, size = [rows.slice_rows(done, size)], size - done
  if size:
    rows = rows_lib.concatenate_rows(waiting)
    yield collate_rows(rows, names, batch_size=batch_size, **shards)


def _add_empty_labels(rows: rows_lib.Rows, names: int) -> rows_lib.Rows:
  """Labels of 0 where the rows do not bring all of them."""
  if rows.labels.shape[1] == names:
    return rows
  labels = np.zeros((len(rows), names), rows.labels.dtype)
  return dataclasses.replace(rows, labels=labels, label_weights=None)
