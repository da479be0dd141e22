"""Pooled features: bags of ids, summed by the devices that hold the rows.

Everything here runs inside `jax.shard_map`, for the features of one stack whose
tables are all spread over the same devices: one, those of a host, or all. Two
sets of mesh axes say where a sum is computed. The position of a device along
the axes `to` decides which tables it serves, called a *column* below; its
position along the axes `over` decides which of their rows it holds:

| rows spread over | to           | over         | so a sum travels by        |
|------------------|--------------|--------------|----------------------------|
| one device       | host and dev |              | all_to_all                 |
| a host's devices | host         | dev          | all_to_all of parts, again |
| all devices      |              | host and dev | all_to_all of parts        |

Ids go the opposite way, by all_to_all along `to` and all_gather along `over`,
and so do the gradients of the sums. Ids whose rows are on another device, and
padding, read the stack's spare row of zeros. Under towers (tower_exchange.py)
no collective spans all devices: what would go along host and dev at once goes
along one after the other.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import pallas_kernels
from genrec_jax.embedding import lookup
from genrec_jax.embedding import plan as plan_lib
from genrec_jax.embedding.layout import Piece, Stack
from genrec_jax.features import Read
from genrec_jax.parallel import codecs

# Spread -> (to, over).
_AXES = {
  plan_lib.ONE: (('host', 'dev'), ()),
  plan_lib.HOST: (('host',), ('dev',)),
  plan_lib.ALL: ((), ('host', 'dev')),
}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class IncomingRequests:
  """What W devices have asked this device for, in their order.

  Attributes:
    rows: `[W, N]` rows of this device, `depth` for rows that are elsewhere.
    lengths: `[W, P, B + 1]` ids of each bag of each piece; the last bag is
      padding.
    weights: `[W, N]` float32, or None.
  """

  rows: jax.Array
  lengths: jax.Array
  weights: jax.Array | None


@dataclasses.dataclass(frozen=True)
class PooledFeatures:
  """The pooled features of a stack whose rows are spread alike.

  Attributes:
    stack: the array with the rows.
    spread: which devices hold them, see `plan.TablePlan.spread`.
    hosts: number of hosts of the replica group.
    devices: number of devices of a host.
    entries: (feature, piece) pairs, a piece being some columns of a table.
    in_steps: whether ids go from host to host first, and then to a device of
      the host.
  """

  stack: Stack
  spread: str
  hosts: int
  devices: int
  entries: tuple[tuple[str, Piece], ...]
  in_steps: bool = False

  @property
  def key(self) -> str:
    """A name that no other group of any stack has."""
    of = ', '.join(sorted({feature for feature, _ in self.entries}))
    return f'{self.stack.name} {self.spread}: {of}'

  def route(self, bags: dict[str, Read]) -> IncomingRequests:
    """Sends the ids of each feature to the devices that hold its rows."""
    size, columns = self._column_room(bags), self._device_columns
    weighted = any(bags[f].weights is not None for f, _ in self.entries)
    ids, lengths, weights = [], [], []
    for entries in columns:
      # All columns have one shape, that of the fullest: a collective moves
      # equal parts.
      left = size
      for feature, _ in entries:
        bag = bags[feature]
        count = bag.ids.shape[0]
        total = jnp.sum(bag.lengths, dtype=jnp.int32)
        real = jnp.arange(count) < total
        # Ids that are padding are not rows anywhere, whatever they hold.
        ids.append(jnp.where(real, bag.ids, -1))
        # One bag more for each entry holds its padding, so that the next entry
        # starts where it should.
        lengths.append(jnp.append(bag.lengths, count - total))
        if weighted:
          ones = jnp.ones(count, jnp.float32)
          weights.append(ones if bag.weights is None else bag.weights)
        left -= count
      # The rest of the room holds ids that are not rows.
      ids.append(jnp.full(left, -1, jnp.int32))
      weights.append(jnp.ones(left, jnp.float32))
      bag_count = bags[self.entries[0][0]].lengths.shape[0]
      missing = self._most_pieces - len(entries)
      if missing:
        lengths.append(jnp.zeros(missing * (bag_count + 1), jnp.int32))
      # What pads the ids belongs to the last padding bag.
      lengths[-1] = lengths[-1].at[-1].add(left)
    ids = self._send_to_holders(
      jnp.concatenate(ids).reshape(len(columns), size)
    )
    lengths = self._send_to_holders(
      jnp.concatenate(lengths).reshape(len(columns), self._most_pieces, -1)
    )
    if weighted:
      weights = jnp.concatenate(weights).reshape(len(columns), size)
      return IncomingRequests(
        self._find_rows(bags, ids), lengths, self._send_to_holders(weights)
      )
    return IncomingRequests(self._find_rows(bags, ids), lengths, None)

  def fetch(
    self, received: IncomingRequests, array: jax.Array, codec: codecs.Codec
  ) -> dict[tuple[str, int], jax.Array]:
    """Reads and sums rows, and sends each device the sums of its bags.

    Args:
      received: from `route`.
      array: `[depth, C]` this device's rows.
      codec: the number format in which sums travel.

    Returns:
      (feature, first column) -> `[B, C]` float32.
    """
    return self._name_sums(
      self._send_far(self._fetch_near(received, array, codec), codec)
    )

  def sum_rows(self, received: IncomingRequests, array: jax.Array) -> jax.Array:
    """`[W, P, B, C]` float32: what the rows of this device add to each sum.

    Args:
      received: from `route`.
      array: `[depth, C]` this device's rows.
    """
    spare = self.stack.depth - 1
    weights = received.weights
    sums = pallas_kernels.embedding_bag(
      array,
      jnp.minimum(received.rows, spare).reshape(-1),
      received.lengths.reshape(-1),
      weights=None if weights is None else weights.reshape(-1),
    )
    sums = sums.astype(jnp.float32)
    # Without the bag of padding of each entry.
    return sums.reshape(*received.lengths.shape, -1)[:, :, :-1]

  def _fetch_near(
    self, received: IncomingRequests, array: jax.Array, codec: codecs.Codec
  ) -> jax.Array:
    """Sums over the devices along `over`, not yet sent along `to`.

    Args:
      received: from `route`.
      array: `[depth, C]` this device's rows.
      codec: the number format in which sums travel.

    Returns:
      `[A, P, B, C]` float32: for the A devices along `to` that asked, the sums
      of the P entries of this device.
    """
    sums = self.sum_rows(received, array)
    _, over = _AXES[self.spread]
    # One device holds whole rows: its sums are complete.
    if not over:
      return sums
    columns = sums.shape[-1]
    # The devices that asked are ordered by `to`, then by `over`.
    sums = sums.reshape(len(self._device_columns), -1, *sums.shape[1:])
    # Each device along `over` has the sum of its own rows, which are added up
    # by who asked. A reduce-scatter would add them on their way: a narrow sum
    # would round once for each device, and on TPUs the compiler makes an
    # all-reduce of it, which sends twice as much.
    sums = lax.all_to_all(codec.encode(sums), over, 1, 1)
    return jnp.sum(codec.decode(sums, columns), axis=1)

  def _send_far(self, sums: jax.Array, codec: codecs.Codec) -> jax.Array:
    """Sends the sums of `_fetch_near` to the devices that asked for them.

    Args:
      sums: `[A, P, B, C]` from `_fetch_near`.
      codec: the number format in which they travel.

    Returns:
      `[columns, P, B, C]` float32, the sums of this device's bags.
    """
    to, _ = _AXES[self.spread]
    if not to:
      return sums
    columns = sums.shape[-1]
    return codec.decode(lax.all_to_all(codec.encode(sums), to, 0, 0), columns)

  def _name_sums(self, sums: jax.Array) -> dict[tuple[str, int], jax.Array]:
    """`[columns, P, B, C]` -> (feature, first column) -> `[B, C]`."""
    return {
      (feature, piece.first_column): sums[column, place]
      for (feature, piece), (column, place) in self._column_places.items()
    }

  def push(
    self,
    received: IncomingRequests,
    grads: dict[str, jax.Array],
    codec: codecs.Codec,
  ) -> lookup.BagGradients:
    """Gradients of the sums, sorted by the rows of this device.

    Args:
      received: from `route`.
      grads: feature -> `[B, D]` gradients of its sums.
      codec: the number format in which they travel.
    """
    some = next(iter(grads.values()))
    nothing = jnp.zeros((some.shape[0], self.stack.columns), jnp.float32)
    # Entries that a column lacks travel as zeros, as their sums did.
    table = [[nothing] * self._most_pieces for _ in self._device_columns]
    for (feature, piece), (column, place) in self._column_places.items():
      end = piece.first_column + piece.columns
      table[column][place] = grads[feature][:, piece.first_column : end]
    sent = jnp.stack([jnp.stack(row) for row in table])
    # By the way of the ids, so that gradients meet the requests they belong to.
    sent = codec.decode(
      self._send_to_holders(codec.encode(sent)), self.stack.columns
    )
    return self.find_rows(received, sent)

  def find_rows(
    self, received: IncomingRequests, sent: jax.Array
  ) -> lookup.BagGradients:
    """Gradients `[W, P, B, C]` of all requested sums, with their rows here."""
    # The padding bag of every piece.
    sent = jnp.pad(sent, ((0, 0), (0, 0), (0, 1), (0, 0)))
    weights = received.weights
    weights = None if weights is None else weights.reshape(-1)
    ids, lengths = received.rows.reshape(-1), received.lengths.reshape(-1)
    grads = sent.reshape(-1, self.stack.columns)
    if not self._shares_table:
      return lookup.BagGradients(ids, lengths, grads, weights)
    # Several features read one table: feature by feature, as one device would.
    bag = pallas_kernels.segment_ids(lengths, ids.shape[0])
    requester = bag // received.lengths.shape[2]  # by which device, which entry
    feature = self._order_of_entries()[requester % self._most_pieces]
    # Stable: the bags of a device stay in their order, microbatch after
    # microbatch.
    order = jnp.lexsort((requester // self._most_pieces, feature))
    return lookup.BagGradients(
      ids[order],
      None,
      grads.at[bag[order]].get(mode='clip'),
      None if weights is None else weights[order],
    )

  # --- Who has what: known before the program runs.

  @functools.cached_property
  def slots(self) -> dict[tuple[str, Piece], tuple[int, int]]:
    """Entry -> its host, and its place among the S * P sums of the host."""
    each = len(self._device_columns) // self.hosts  # S
    return {
      entry: (column // each, column % each * self._most_pieces + place)
      for entry, (column, place) in self._column_places.items()
    }

  def mark_entries(self, has: Callable[[str], bool]) -> np.ndarray:
    """`[columns, P]`: whether each entry is of a feature that has something."""
    marks = np.zeros((len(self._device_columns), self._most_pieces), bool)
    for (feature, _), at in self._column_places.items():
      marks[at] = has(feature)
    return marks

  def pick_own(self, values: np.ndarray) -> jax.Array:
    """Those of `[columns, ...]` that are of this device's column."""
    to, _ = _AXES[self.spread]
    return jnp.asarray(values)[lax.axis_index(to) if to else 0]

  @functools.cached_property
  def _device_columns(self) -> list[list[tuple[str, Piece]]]:
    """The entries that each position along `to` serves."""
    count = {plan_lib.ONE: self.hosts * self.devices, plan_lib.HOST: self.hosts}
    columns = [[] for _ in range(count.get(self.spread, 1))]
    for feature, piece in self.entries:
      place = {
        plan_lib.ONE: piece.owners[0],
        plan_lib.HOST: piece.owners[0] // self.devices,
        plan_lib.ALL: 0,
      }[self.spread]
      columns[place].append((feature, piece))
    return columns

  @functools.cached_property
  def _column_places(self) -> dict[tuple[str, Piece], tuple[int, int]]:
    return {
      entry: (column, place)
      for column, entries in enumerate(self._device_columns)
      for place, entry in enumerate(entries)
    }

  @property
  def _most_pieces(self) -> int:
    """P, the entries of the fullest column."""
    return max(len(c) for c in self._device_columns)

  @property
  def _shares_table(self) -> bool:
    """Whether several features read one table."""
    pieces = [piece for _, piece in self.entries]
    return len(set(pieces)) < len(pieces)

  def _order_of_entries(self) -> jax.Array:
    """`[P]` number of the feature of each of this device's entries."""
    names = sorted({feature for feature, _ in self.entries})
    numbers = np.zeros((len(self._device_columns), self._most_pieces), np.int32)
    for (feature, _), (column, place) in self._column_places.items():
      numbers[column, place] = names.index(feature)
    return self.pick_own(numbers)

  def _column_room(self, bags) -> int:
    """How many ids a column has room for."""
    return max(
      sum(bags[f].ids.shape[0] for f, _ in entries)
      for entries in self._device_columns
    )

  def _find_rows(self, bags, ids: jax.Array) -> jax.Array:
    """`[W, N]` ids -> rows of this device, `depth` for those elsewhere."""
    size = self._column_room(bags)
    of = np.full((len(self._device_columns), size), -1, np.int32)
    for column, entries in enumerate(self._device_columns):
      start = 0
      for feature, piece in entries:
        end = start + bags[feature].ids.shape[0]
        of[column, start:end] = self.stack.pieces.index(piece)
        start = end
    _, over = _AXES[self.spread]
    # The program is one for all devices; the tables of a device follow from its
    # position.
    number = self.pick_own(of)
    me = lax.axis_index(over) if over else jnp.int32(0)

    def take_numbers(values, dtype=jnp.int32):
      return jnp.asarray(values, dtype)[number][None]  # -1 reads the last one

    pieces = self.stack.pieces
    count = take_numbers([len(p.owners) for p in pieces])
    depth = take_numbers([p.depth for p in pieces])
    mod = take_numbers([p.split == 'mod' for p in pieces], bool)
    # The arithmetic of `layout.Piece.place`, with the numbers of another piece
    # for each id.
    place = jnp.where(mod, ids % count, ids // depth)
    row = jnp.where(mod, ids // count, ids % depth)
    row += take_numbers([p.offset for p in pieces])
    # Every device along `over` gets all ids and answers for its own.
    here = (
      (place == me)
      & (ids >= 0)
      & (ids < take_numbers([p.rows for p in pieces]))
    )
    return jnp.where(here, row, self.stack.depth)

  # --- The ways there and back.

  def _send_to_holders(self, x: jax.Array) -> jax.Array:
    """`[columns, ...]` of each device -> `[W, ...]` at the holders."""
    to, over = _AXES[self.spread]
    if self.in_steps and self.spread == plan_lib.ONE:
      x = x.reshape(self.hosts, self.devices, *x.shape[1:])
      x = lax.all_to_all(lax.all_to_all(x, 'host', 0, 0), 'dev', 1, 1)
      return x.reshape(-1, *x.shape[2:])
    # First between the tables, then between the rows of a table.
    if to:
      x = lax.all_to_all(x, to, 0, 0)
    if over:
      x = lax.all_gather(x, over, axis=1 if to else 0, tiled=not to)
    # Both axes of devices as one, W.
    return x.reshape(-1, *x.shape[2:]) if to and over else x
