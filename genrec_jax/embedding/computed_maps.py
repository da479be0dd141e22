"""Id maps whose rows are computed from the id alone; see `id_maps`."""

import dataclasses
import math
import zlib

import jax
import jax.numpy as jnp

from genrec_jax.features import PAD
from pallas_kernels.hashing import mix

NO_ROW = -1


class FixedIdMap:
  """A map that training does not change; without a state, unless it says so."""

  def init(self) -> dict:
    return {}

  def assign(self, state, ids: jax.Array, real: jax.Array):
    del real
    return self.lookup(state, ids), state


@dataclasses.dataclass(frozen=True)
class HashIdMap(FixedIdMap):
  """Many ids on few rows, by a hash that depends on the table's name.

  >>> import jax.numpy as jnp
  >>> id_map = HashIdMap('user', ids=1000, rows=8)
  >>> ids = id_map.lookup({}, jnp.array([0, 5, 1000]))
  >>> ids[0].item(), 1 <= ids[1].item() < 8, ids[2].item()
  (0, True, -1)
  >>> id_map = HashIdMap('user', ids=1000, rows=8, private=3)
  >>> rows = id_map.lookup({}, jnp.array([0, 1, 3, 4, 999])).tolist()
  >>> rows[:3], 4 <= rows[3] < 8, 4 <= rows[4] < 8
  ([0, 1, 3], True, True)

  Attributes:
    table: name of the table.
    ids: how many there are; others are not rows.
    rows: of the table, row 0 of padding included.
    private: how many of the first ids, that of padding not counted, have a row
      of their own; the others share the rest.
  """

  table: str
  ids: int
  rows: int
  private: int = 0

  def lookup(self, state, ids: jax.Array) -> jax.Array:
    del state
    first = self.private + 1
    shared = first + _hash_ids(self.table, ids, self.rows - first)
    return keep_ids(ids, jnp.where(ids < first, ids, shared), self.ids)


@dataclasses.dataclass(frozen=True)
class OrderedIdMap(FixedIdMap):
  """Many ids on few rows, in turns: the first ids are apart from one another.

  >>> import jax.numpy as jnp
  >>> id_map = OrderedIdMap(ids=1000, rows=4)
  >>> id_map.lookup({}, jnp.array([0, 1, 2, 3, 4, 5, 1000])).tolist()
  [0, 1, 2, 3, 1, 2, -1]

  Attributes:
    ids: how many there are; others are not rows.
    rows: of the table, row 0 of padding included.
  """

  ids: int
  rows: int

  def lookup(self, state, ids: jax.Array) -> jax.Array:
    del state
    return keep_ids(ids, 1 + (ids - 1) % (self.rows - 1), self.ids)


@dataclasses.dataclass(frozen=True)
class PermutedIdMap(FixedIdMap):
  """As many ids on each row, or one more, in an order drawn by the name.

  >>> import jax.numpy as jnp
  >>> id_map = PermutedIdMap('user', ids=13, rows=5)
  >>> rows = id_map.lookup({}, jnp.arange(13))
  >>> jnp.bincount(rows, length=5).tolist()
  [1, 3, 3, 3, 3]

  Attributes:
    table: name of the table.
    ids: how many there are; others are not rows.
    rows: of the table, row 0 of padding included.
  """

  table: str
  ids: int
  rows: int

  def lookup(self, state, ids: jax.Array) -> jax.Array:
    del state
    is_id = (ids > PAD) & (ids < self.ids)
    place = self._permute(jnp.where(is_id, ids - 1, 0).astype(jnp.uint32))
    rows = 1 + (place % jnp.uint32(self.rows - 1)).astype(jnp.int32)
    return keep_ids(ids, rows, self.ids)

  def _permute(self, x: jax.Array) -> jax.Array:
    """A permutation of the numbers below ids - 1."""
    # Four rounds of Feistel's cipher on pairs of digits permute the numbers
    # below side²; who leaves those that are wanted goes on until it is back.
    count = max(self.ids - 1, 1)
    side = jnp.uint32(math.isqrt(count - 1) + 1)
    seed = zlib.crc32(self.table.encode())

    def encipher(x):
      left, right = x // side, x % side
      for number in range(4):
        key = jnp.uint32(seed ^ (0x9E3779B9 * (number + 1) & 0xFFFFFFFF))
        left, right = right, (left + mix(right ^ key) % side) % side
      return left * side + right

    return jax.lax.while_loop(
      lambda y: jnp.any(y >= count),
      lambda y: jnp.where(y >= count, encipher(y), y),
      encipher(x),
    )


@dataclasses.dataclass(frozen=True)
class DoubleIdMap(FixedIdMap):
  """Two rows an id, by two hashes; a feature reads the sum of both.

  The second row of an id is that of the number id + `ids`. Private ids have one
  row, and nobody asks for their second one (`several_rows`).

  >>> import jax.numpy as jnp
  >>> id_map = DoubleIdMap('user', ids=1000, rows=8, private=2)
  >>> id_map.lookup({}, jnp.array([0, 1, 2, 1000, 2000])).tolist()
  [0, 1, 2, 0, -1]

  Attributes:
    table: name of the table.
    ids: how many there are.
    rows: of the table, row 0 of padding included.
    private: how many of the first ids have a row of their own.
  """

  table: str
  ids: int
  rows: int
  private: int = 0

  def lookup(self, state, ids: jax.Array) -> jax.Array:
    first, second = (
      HashIdMap(f'{self.table}{mark}', self.ids, self.rows, self.private)
      for mark in ('', '/second')
    )
    return jnp.where(
      ids < self.ids,
      first.lookup(state, ids),
      second.lookup(state, ids - self.ids),
    )


@dataclasses.dataclass(frozen=True)
class QuotientIdMap(FixedIdMap):
  """A row of the quotient and one of the remainder: all pairs are different.

  The second row of an id is that of the number id + `ids`.

  >>> import jax.numpy as jnp
  >>> id_map = QuotientIdMap('user', ids=13, rows=8)
  >>> id_map.divisor
  3
  >>> id_map.lookup({}, jnp.array([1, 2, 3, 4, 14, 16, 17])).tolist()
  [1, 2, 3, 1, 4, 4, 5]

  Attributes:
    table: name of the table.
    ids: how many there are.
    rows: of the table, row 0 of padding included: those of remainders, and
      behind them those of quotients.
  """

  table: str
  ids: int
  rows: int

  def __post_init__(self):
    self.divisor  # or says that there are too few rows

  @property
  def divisor(self) -> int:
    """The least one with which all quotients have a row."""
    count, room = self.ids - 1, self.rows - 1
    for divisor in range(1, room):
      if divisor + -(-count // divisor) <= room:
        return divisor
    root = max(1, math.isqrt(count))  # the least is near it
    least = 1 + min(d + -(-count // d) for d in (root, root + 1))
    raise ValueError(
      f"table {self.table!r} has {self.rows:,} rows: id_map='qr' needs "
      f'{least:,} at least for {self.ids:,} ids'
    )

  def lookup(self, state, ids: jax.Array) -> jax.Array:
    del state
    divisor = self.divisor
    own = jnp.where(ids < self.ids, ids, ids - self.ids)
    quotient, remainder = jnp.divmod(own - 1, divisor)
    rows = jnp.where(
      ids < self.ids, 1 + remainder, 1 + divisor + quotient
    ).astype(jnp.int32)
    return keep_ids(own, rows, self.ids)


def _hash_ids(table: str, ids: jax.Array, size: int) -> jax.Array:
  """A number below `size` for each id, other ones for other tables."""
  seed = jnp.uint32(zlib.crc32(table.encode()))
  bits = mix(mix(ids.astype(jnp.uint32)) ^ seed)
  return (bits % jnp.uint32(size)).astype(jnp.int32)


def keep_ids(ids: jax.Array, rows: jax.Array, count: int) -> jax.Array:
  """The rows of ids: that of padding is 0, and what is no id has none."""
  rows = jnp.where(ids == PAD, 0, rows)
  return jnp.where((ids >= 0) & (ids < count), rows, NO_ROW)
