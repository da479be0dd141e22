"""Optimizers that read and write only the rows a step has touched.

    optimizer = ROW_OPTIMIZERS['adam']
    optimizer = dataclasses.replace(optimizer, decay='l2', weight_decay=1e-4)
    slots = optimizer.init(table)
    table, slots = optimizer.update(table, slots, ids, grads, learning_rate)

`ids` are distinct and sorted, with the number of rows in unused entries at the
end, and `grads` are their merged gradients. The updates are those of
`pallas_kernels.update_rows`, with the formulas in
`pallas_kernels.jagged_embedding.rules`. docs/kernels.md lists the optimizers
and the floats that each keeps for a row.

All are lazy: a row that a step does not touch gets no weight decay, no momentum
and no decay of its means. So all but SGD and AdaGrad without decay differ from
optax on the whole table. A touched row whose gradient is zero, such as that of
a negative that is the target, does get them.

The same call gives the same bits, whatever the number of threads.
`pallas_kernels.merge_rows` adds the gradients of a row in the order in which
its id occurs; results that must not depend on how a batch is divided among
devices need them merged in their global order. The update itself works row by
row, so the position of a row in the array does not matter, not even for
stochastic rounding, which hashes `row_numbers`.

An optimizer of your own is an object with the methods of `RowOptimizerLike`. It
is passed in a mapping wherever `extra` optimizers are accepted:

    >>> @dataclasses.dataclass(frozen=True)
    ... class SignSgd:
    ...   takes_pieces, needs_row_squares = True, False
    ...   scale: float = 1.0
    ...   def init(self, table):
    ...     return {}
    ...   def slot_shapes(self, rows, dim):
    ...     return {}
    ...   def slot_floats(self, dim):
    ...     return 0
    ...   def update(self, table, slots, ids, grads, learning_rate, **_):
    ...     step = learning_rate * self.scale * jnp.sign(grads)
    ...     return table.at[ids].add(-step, mode='drop'), slots
    >>> own = {'sign_sgd': SignSgd()}
    >>> find_optimizer('sign_sgd', extra=own, scale=0.5).scale
    0.5
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

import jax
import jax.numpy as jnp

import pallas_kernels
from genrec_jax.numerics import row_rounding
from pallas_kernels import integers
from pallas_kernels.hashing import mix
from pallas_kernels.jagged_embedding import rounding, rules, spec


class RowOptimizerLike(Protocol):
  """What tables ask of a row optimizer.

  `RowOptimizer` says what the methods take and return; one from outside may be
  written in plain `jax.numpy`. Options are the fields of a frozen dataclass. It
  may ignore what only matters for rounding (`step`, `seed`, `row_numbers`,
  `first_column`).

  Attributes:
    takes_pieces: whether the column pieces of a row, on several devices, may be
      updated independently; if not, plans that cut rows are refused.
    needs_row_squares: whether a step also depends on the mean square of the
      gradient of the whole row. For pieces of rows, `update` then gets it as
      `row_squares=`.
  """

  @property
  def takes_pieces(self) -> bool: ...

  @property
  def needs_row_squares(self) -> bool: ...

  def init(self, table: jax.Array) -> dict[str, jax.Array]: ...

  def update(
    self,
    table: jax.Array,
    slots: dict[str, jax.Array],
    ids: jax.Array,
    grads: jax.Array,
    learning_rate: float | jax.Array,
    *,
    step: jax.Array | int | None = None,
    seed: jax.Array | int = 0,
    row_numbers: jax.Array | None = None,
    first_column: jax.Array | int = 0,
    groups: jax.Array | None = None,
    settings: Sequence | None = None,
  ) -> tuple[jax.Array, dict[str, jax.Array]]: ...

  def slot_shapes(self, rows: int, dim: int) -> dict[str, tuple[int, ...]]: ...

  def slot_floats(self, dim: int) -> int: ...


@dataclasses.dataclass(frozen=True)
class RowOptimizer(spec.Rule):
  """An optimizer of rows and its options, most of them those of `Rule`.

  Attributes:
    stochastic_rounding: rows of bfloat16 and float16 tables, and those of
      `packed_as`, are rounded by chance, without bias, so that steps too small
      for their last bit count.
    packed_as: a format of `row_rounding.BITS`, such as 'tbe_int4': the rows of
      a float32 table are moved onto its levels after each update. '' keeps
      them.
  """

  stochastic_rounding: bool = False
  packed_as: str = ''

  def __post_init__(self):
    super().__post_init__()
    if self.packed_as and self.packed_as not in row_rounding.BITS:
      raise ValueError(
        f'packed_as is {self.packed_as!r}; rows are rounded to '
        f'{", ".join(row_rounding.BITS)} while training'
      )

  @property
  def takes_pieces(self) -> bool:
    """Whether column pieces of a row may be updated independently."""
    # The norm of a row is that of all its columns, and so are its levels.
    if self.max_norm is not None or self.packed_as:
      return False
    if self.needs_row_squares:  # those of the gradient alone are exchanged
      return not self.weight_decay
    return rules.OPTIMIZERS[self.optimizer].looks_at == 'element'

  @property
  def needs_row_squares(self) -> bool:
    """Whether a piece must know the mean square of the row's gradient."""
    return rules.OPTIMIZERS[self.optimizer].looks_at == 'row_squares'

  def init(self, table: jax.Array) -> dict[str, jax.Array]:
    """The slots before the first step: `[rows, ...]` arrays and scalars."""
    return spec.init_slots(table, self)

  def update(
    self,
    table: jax.Array,
    slots: dict[str, jax.Array],
    ids: jax.Array,
    grads: jax.Array,
    learning_rate: float | jax.Array,
    *,
    step: jax.Array | int | None = None,
    seed: jax.Array | int = 0,
    row_numbers: jax.Array | None = None,
    first_column: jax.Array | int = 0,
    groups: jax.Array | None = None,
    settings: Sequence['RowOptimizer'] | None = None,
    row_squares: jax.Array | None = None,
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Moves the rows `ids` by their gradients.

    Args:
      table: `[rows, D]` float32, bfloat16 or float16; donate it.
      slots: as from `init`; donate them.
      ids: `[N]` int32, sorted and distinct; unused entries at the end hold
        `rows`.
      grads: `[N, D]`.
      learning_rate: factor of the step, or `[G]`, that of each group.
      step: number of the training step; stochastic rounding needs it.
      seed: a number for the table and the run: with equal seeds, equal elements
        are rounded by the same random bits.
      row_numbers: `[N]` numbers that the rows of a shard have in the whole
        table. They and `first_column` only matter for stochastic rounding.
      first_column: number of the table's first column, or `[N]` of each row's.
      groups: `[N]` int32 in 0 .. G - 1, the group whose settings each row moves
        by, for instance its table if several share an array. None: all rows
        move by this optimizer.
      settings: the optimizer of each group, of the same kind as this one; None:
        groups differ in their learning rates alone.
      row_squares: `[N]` mean squares of the gradients of whole rows, if the
        table holds pieces of rows and `needs_row_squares` is true.

    Returns:
      The new table and slots.
    """
    for group, other in enumerate(settings or ()):
      if other.stochastic_rounding != self.stochastic_rounding:
        raise ValueError(
          f'stochastic_rounding is {other.stochastic_rounding} in group '
          f'{group} and {self.stochastic_rounding} in the optimizer that moves '
          'them all: rows of one array are rounded alike.'
        )
    packed_as = [one.packed_as for one in settings or (self,)]
    formats = set(packed_as) - {''}
    if formats and table.dtype != jnp.float32:
      raise ValueError(
        f'packed_as is {min(formats)!r} and the table {table.dtype}: only '
        'float32 holds the numbers of such rows'
      )
    chance, narrow = None, table.dtype != jnp.float32
    if self.stochastic_rounding and (narrow or formats):
      if step is None:
        raise ValueError(
          f'stochastic rounding to {table.dtype if narrow else min(formats)} '
          'needs step=, the number of the training step: the same chance at '
          'every step would be a bias.'
        )
      # Mixed twice: seeds and steps that differ by one must not meet.
      chance = mix(
        integers.to_seed('step', step) ^ mix(integers.to_seed('seed', seed))
      )
    # Row-wise AdaGrad on pieces of rows: its sum is updated here, with the mean
    # square of the whole row, and what remains of the step is SGD with a scaled
    # gradient.
    optimizer, new_slots = self if settings is None else list(settings), {}
    if row_squares is not None:
      total = slots['sum'].at[ids].get(mode='fill', fill_value=0)
      total += row_squares
      new_slots['sum'] = (
        slots['sum']
        .at[ids]
        .set(total, mode='drop', unique_indices=True, indices_are_sorted=True)
      )
      eps = self.eps
      if settings is not None:
        eps = jnp.float32([one.eps for one in settings])[groups]
      # The formula of row_adagrad in `rules`, the new sum included.
      grads = grads / (jnp.sqrt(total) + eps)[:, None]
      optimizer = self._as_sgd()  # which is what remains
      if settings is not None:
        optimizer = [one._as_sgd() for one in settings]
    table, slots = pallas_kernels.update_rows(
      table,
      {name: slot for name, slot in slots.items() if name not in new_slots},
      ids,
      grads,
      learning_rate=learning_rate,
      optimizer=optimizer,
      groups=groups,
      stochastic_rounding_seed=chance if narrow else None,
      row_numbers=row_numbers,
      first_column=first_column,
    )
    if formats:
      random = None
      if chance is not None:
        random = rounding.rounding_noise(
          spec.RoundingChance(chance, row_numbers), ids, table.shape[1]
        )
      table = _round_touched(table, ids, packed_as, groups, random)
    return table, slots | new_slots

  def _as_sgd(self) -> 'RowOptimizer':
    return dataclasses.replace(self, optimizer='sgd')

  def slot_shapes(self, rows: int, dim: int) -> dict[str, tuple[int, ...]]:
    """Name -> shape of each slot of a table `[rows, dim]`; () is a scalar."""
    return spec.slot_shapes(self, rows, dim)

  def slot_floats(self, dim: int) -> int:
    """Float32 numbers kept for each row of width `dim`."""
    width = {'element': dim, 'row': 1, 'scalar': 0}
    return sum(width[kind] for kind in spec.slot_kinds(self).values())


def _round_touched(table, ids, packed_as, groups, random):
  """The table with the rows `ids` on the levels of their groups' formats."""
  rows = table.at[ids].get(mode='fill', fill_value=0)
  rounded = rows
  for name in sorted(set(packed_as) - {''}):
    found = row_rounding.round_rows(rows, name, random)
    if len(packed_as) > 1:
      of_it = jnp.array([one == name for one in packed_as])
      found = jnp.where(of_it[groups][:, None], found, rounded)
    rounded = found
  return table.at[ids].set(
    rounded, mode='drop', unique_indices=True, indices_are_sorted=True
  )


# Kind of optimizer, by its name in a configuration.
_KINDS = {'sgd': 'sgd', 'row_sgd': 'sgd'} | {name: name for name in spec.SLOTS}
ROW_OPTIMIZERS = {name: RowOptimizer(kind) for name, kind in _KINDS.items()}


def find_optimizer(
  name: str, *, extra: Mapping[str, RowOptimizerLike] | None = None, **options
) -> RowOptimizerLike:
  """Looks up an optimizer by its name and sets its options.

  >>> find_optimizer('row_adam', beta2=0.99).beta2
  0.99

  Args:
    name: one of `ROW_OPTIMIZERS` or of `extra`.
    extra: optimizers from outside, by names that are not taken.
    **options: fields of the optimizer, those of `RowOptimizer` or its own.

  Returns:
    The optimizer of that name with these options.

  Raises:
    ValueError: no such name, a name of `extra` that exists already, or options
      that the optimizer does not have.
  """
  extra = extra or {}
  if clashes := sorted(ROW_OPTIMIZERS.keys() & extra.keys()):
    raise ValueError(
      f'there is a row optimizer {clashes[0]!r} already; give yours another '
      'name.'
    )
  if name not in ROW_OPTIMIZERS and name not in extra:
    yours = f', and of yours {", ".join(extra)}' if extra else ''
    raise ValueError(
      f'there is no row optimizer {name!r}; there are '
      f'{", ".join(ROW_OPTIMIZERS)}{yours}.'
    )
  if name in ROW_OPTIMIZERS:
    return _with_options(name, ROW_OPTIMIZERS[name], options)
  _check_methods(name, extra[name])
  # Methods before options: without methods an object is not an optimizer.
  optimizer = _with_options(name, extra[name], options)
  _check_shapes(name, optimizer)
  return optimizer


def _check_methods(name: str, optimizer: RowOptimizerLike) -> None:
  methods = [n for n in vars(RowOptimizerLike) if not n.startswith('_')]
  if missing := [n for n in methods if not hasattr(optimizer, n)]:
    raise ValueError(
      f'row optimizer {name!r} has no {", ".join(missing)}: see '
      'RowOptimizerLike for what tables ask of it.'
    )


def _with_options(name: str, optimizer: RowOptimizerLike, options: dict):
  known = []
  if dataclasses.is_dataclass(optimizer):
    known = [f.name for f in dataclasses.fields(optimizer) if f.init]
  if isinstance(optimizer, RowOptimizer):
    known.remove('optimizer')  # the name says it
  if unknown := set(options) - set(known):
    raise ValueError(
      f'row optimizer {name!r} has no option {sorted(unknown)}; there are '
      f'{", ".join(known) or "none"}.'
    )
  return dataclasses.replace(optimizer, **options) if options else optimizer


def _check_shapes(name: str, optimizer: RowOptimizerLike) -> None:
  """Refuses slots and updates that do not fit a table; computes nothing."""
  rows, columns = 5, 3
  # Different numbers of rows, columns and ids, so that a mix-up shows.
  table = jax.ShapeDtypeStruct((rows, columns), jnp.float32)
  try:
    slots = jax.eval_shape(optimizer.init, table)
    ids = jax.ShapeDtypeStruct((2,), jnp.int32)
    grads = jax.ShapeDtypeStruct((2, columns), jnp.float32)
    moved = jax.eval_shape(
      lambda *x: optimizer.update(*x, 0.1, step=0, row_numbers=x[2]),
      *(table, slots, ids, grads),
    )
  except Exception as e:
    raise ValueError(
      f'row optimizer {name!r} fails on a table of {rows} rows of {columns}: '
      f'{type(e).__name__}: {e}'
    ) from e
  shapes = {slot: tuple(leaf.shape) for slot, leaf in slots.items()}
  declared = {
    k: tuple(v) for k, v in optimizer.slot_shapes(rows, columns).items()
  }
  if shapes != declared:
    raise ValueError(
      f'row optimizer {name!r}: init makes slots {shapes} of {rows} rows of '
      f'{columns}, and slot_shapes says {declared}'
    )
  wrong = [s for s, shape in shapes.items() if shape and shape[0] != rows]
  if wrong:
    raise ValueError(
      f'row optimizer {name!r}: slot {wrong[0]!r} has the shape '
      f'{shapes[wrong[0]]} for a table of {rows} rows; a slot is a number, or '
      'has a row for each row of the table'
    )
  shapes_before = jax.tree.map(
    lambda x: (x.shape, x.dtype.name), (table, slots)
  )
  after = jax.tree.map(lambda x: (x.shape, x.dtype.name), tuple(moved))
  if shapes_before != after:
    raise ValueError(
      f'row optimizer {name!r}: update is given (table, slots) of '
      f'{shapes_before} and returns {after}; shapes and dtypes must stay'
    )
