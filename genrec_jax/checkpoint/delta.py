"""Saves a run by rows: a base now and then, and deltas in between.

    saver = RowSaver(checkpoints, stacks, DeltaOptions('intermittent', bits=4))
    tables = RowTables(arrays, slots, dirty_rows)
    dirty_rows = saver.save(step, dense, tables, data=iterator)

A save waits for the previous one and copies the rows that it needs to the host;
the training waits for this copy. The rest happens in the background. What a
save holds follows from the checkpoints on the disk and the step's dirty rows,
so a killed run resumes in the same way.

A failed save loses nothing: the next one also holds its rows.
"""

import dataclasses
from collections.abc import Callable, Mapping

import jax

from genrec_jax.checkpoint import (
  chunks,
  policy,
  row_files,
  snapshot,
  under_way,
)
from genrec_jax.checkpoint import rows as rows_lib
from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.embedding import dirty_rows as dirty_lib
from genrec_jax.embedding.layout import Stack
from genrec_jax.numerics import row_quant
from genrec_jax.numerics.formats import FORMATS, Formats

AUTO = 0  # bits: by the restores to be expected
SAFE_BITS = 8  # when there were more


@dataclasses.dataclass(frozen=True)
class DeltaOptions:
  """What is saved, and how exactly.

  Attributes:
    policy: a name in `policy.POLICIES`.
    bits: of a weight: 2, 3, 4, 8, 32, or `AUTO`.
    method: one of `formats.list_methods()`, below 32 bits.
    slots: 'float32' or 'float16'.
    expected_restores: of the whole run, for `AUTO`.
    full_every: at the latest, every so many saves hold all rows; 0: no limit.
    chunk_rows: rows of a file, at most.
    most_bytes: of copied rows on a host at once, and a chunk more; 0: no limit.
    formats: the number formats there are, see
      `numerics.formats.extend_formats`.
  """

  policy: str = 'intermittent'
  bits: int = chunks.EXACT
  method: str = 'adaptive'
  slots: str = 'float32'
  expected_restores: float = 0.0
  full_every: int = 0
  chunk_rows: int = snapshot.CHUNK_ROWS
  most_bytes: int = 0
  formats: Formats = dataclasses.field(
    default_factory=lambda: FORMATS, hash=False, repr=False
  )

  def __post_init__(self):
    policy.wants_base(self.policy, None)
    self.encoding(0)
    if self.chunk_rows < 1 or self.full_every < 0 or self.expected_restores < 0:
      raise ValueError(
        'checkpoint chunk_rows must be at least 1, full_every and '
        f'expected_restores at least 0, not {self.chunk_rows}, '
        f'{self.full_every} and {self.expected_restores}'
      )

  def encoding(self, restores: int) -> chunks.RowEncoding:
    """How rows are written after so many restores of the run.

    More restores than were expected add up to more error than was planned for,
    so that from then on 8 bits are used where fewer were.
    """
    bits, method = self.bits, self.method
    if bits == AUTO:
      bits = row_quant.bits_for(self.expected_restores)
      if (method, bits) == ('kmeans', SAFE_BITS):
        method = 'adaptive'  # there are no codebooks of so many bits
    if bits < SAFE_BITS and 0 < self.expected_restores < restores:
      bits, method = SAFE_BITS, 'adaptive'
    return chunks.RowEncoding(bits, method, self.slots, self.formats)


@dataclasses.dataclass(frozen=True)
class RowTables:
  """The row-updated tables of a state.

  Attributes:
    arrays: name -> array.
    slots: name -> slots of its optimizer.
    dirty_rows: name -> which rows have changed, see `embedding.dirty_rows`.
  """

  arrays: Mapping[str, jax.Array]
  slots: Mapping[str, Mapping[str, jax.Array]]
  dirty_rows: dict[str, jax.Array]


def copy_all_rows(
  stacks: Mapping[str, Stack],
  arrays: Mapping[str, jax.Array],
  *,
  chunk_rows: int = snapshot.CHUNK_ROWS,
  most_bytes: int = 0,
) -> rows_lib.ProcessRows:
  """Every row as it is, without slots, for `CheckpointManager.save`.

  No later save builds on it.

  Args:
    stacks: array -> what lies in it.
    arrays: array -> its values.
    chunk_rows: rows of a file, at most.
    most_bytes: of copied rows on a host at once, and a chunk more; 0: no limit.
  """
  under_way.await_saves()  # a host has room for one copy beside those at work
  row_copy = snapshot.take_snapshot(
    stacks, arrays, {}, chunk_rows=chunk_rows, most_bytes=most_bytes
  )
  encoding = chunks.RowEncoding(chunks.EXACT)
  about = {'kind': row_files.BASE, 'parents': [], 'history': []}
  about |= encoding.describe() | {'tables': rows_lib.describe(stacks, {})}
  return rows_lib.ProcessRows(row_copy, encoding, about)


class RowSaver:
  """Saves into one directory."""

  def __init__(
    self,
    checkpoints: CheckpointManager,
    stacks: Mapping[str, Stack],
    options: DeltaOptions,
    *,
    published: bool = False,
    log: Callable[[str], object] = print,
  ):
    """Saves nothing yet.

    Args:
      checkpoints: the directory.
      stacks: array -> what lies in it.
      options: what to save.
      published: whether this is the directory that readers follow, which has
        bits of its own.
      log: receives a line about what is unusual.
    """
    self._checkpoints, self._stacks = checkpoints, stacks
    self._options, self._log = options, log
    self._last = None  # (step, identity) of the save the next one builds on
    self._begun = None  # (step, kind, rows taken) of the save under way
    self._lost = {}  # rows of saves that failed
    self._lost_base = False
    self._published = published

  def note_restore(self, step: int) -> None:
    """The run goes on from this step, whose rows were just loaded."""
    last = self._checkpoints.read_row_history(step)
    self._last = last and (step, last['identity'])

  def save(
    self,
    step: int,
    dense,
    tables: RowTables,
    *,
    data=None,
    host: dict | None = None,
    restores: int = 0,
  ) -> dict[str, jax.Array]:
    """Saves a step; returns the dirty rows, cleared, when all rows are copied.

    Args:
      step: its number.
      dense: what is saved as it is, see `CheckpointManager.save`.
      tables: the rest; the dirty rows are given away.
      data: iterator.
      host: what JSON can hold.
      restores: how often this run was restored so far.
    """
    self._await_last_save()
    about = self._describe_next_save(self._read_last_save())
    base = about['kind'] == row_files.BASE
    encoding = self._options.encoding(restores)
    if base:  # a host has room for one copy of its rows beside those at work
      under_way.await_saves()
    row_copy = snapshot.take_snapshot(
      self._stacks,
      tables.arrays,
      tables.slots,
      None if base else tables.dirty_rows,
      self._dirty_bit,
      also=self._lost,
      chunk_rows=self._options.chunk_rows,
      most_bytes=self._options.most_bytes,
    )
    about |= encoding.describe() | {
      'tables': rows_lib.describe(self._stacks, tables.slots)
    }
    part = rows_lib.ProcessRows(row_copy, encoding, about)
    # If this raises, nothing was begun and no row is cleared.
    self._checkpoints.save(step, dense, data=data, host=host, rows=part)
    self._begun = step, about['kind'], row_copy.rows
    return dirty_lib.clear_bits(tables.dirty_rows, self._bits_to_clear(base))

  @property
  def _dirty_bit(self) -> int:
    if self._published:
      return dirty_lib.SINCE_PUBLISHED
    if policy.deltas_start_at_base(self._options.policy):
      return dirty_lib.SINCE_BASE
    return dirty_lib.SINCE_SAVE

  def _bits_to_clear(self, base: bool) -> int:
    if self._published:
      return dirty_lib.SINCE_PUBLISHED
    return dirty_lib.SINCE_SAVE | (dirty_lib.SINCE_BASE if base else 0)

  def _await_last_save(self) -> None:
    """Waits for the save under way; if it failed, its rows are saved again."""
    if self._begun is None:
      return
    begun = self._begun
    try:
      self._checkpoints.wait()
    finally:
      step, kind, rows = begun
      if last := self._checkpoints.read_row_history(step):
        self._last = step, last['identity']
        self._lost, self._lost_base = {}, False
      else:
        self._lost = rows if kind != row_files.BASE else {}
        self._lost_base |= kind == row_files.BASE
      self._begun = None

  def _read_last_save(self) -> dict | None:
    """The entry of the last save, or None if its step has changed since."""
    if self._last is None:
      return None
    step, identity = self._last
    last = self._checkpoints.read_row_history(step)
    if last and last['identity'] == identity:
      return last
    self._log(
      f'step {step} is gone or is another one now: the next checkpoint holds '
      'all rows'
    )
    return None

  def _describe_next_save(self, before: dict | None) -> dict:
    """Kind, parents and history of the next save."""
    history = None
    if before is not None and not self._lost_base:
      entry = before['rows']
      history = entry['history']
      if entry['kind'] == row_files.DELTA:
        history = [*history, before['fraction']]
    options = self._options
    if policy.wants_base(options.policy, history, options.full_every):
      return {'kind': row_files.BASE, 'parents': [], 'history': []}
    parents = [*entry['parents'], list(self._last)]
    if policy.deltas_start_at_base(options.policy):
      parents = parents[:1]
    return {'kind': row_files.DELTA, 'parents': parents, 'history': history}
