"""The shared vocabulary: what a table, a ragged array and a batch are.

No logic lives here. Every layer of the library may import this file.
"""

import dataclasses

import jax

PAD = 0  # item index 0 is padding in every vocabulary; items are 1..V


@dataclasses.dataclass(frozen=True)
class TableSpec:
  """One embedding table.

  Attributes:
    name: key of the table in `TrainState.tables`.
    rows: number of rows, the padding row 0 included.
    dim: width of a row.
    init_std: standard deviation of the truncated normal initialiser.
    update: 'dense' (optax, for small tables) or the name of a row optimizer in
      `embedding.row_optimizers` (touched rows only).
    dtype: of the rows: 'float32', 'bfloat16' or 'float16'.
    options: (name, value) pairs of its row optimizer's own options, sorted.
    rate: of its row optimizer; None for the general one.
    codec: what its rows and their gradients look like between devices; None
      for the general codecs.
    scheme: where its rows lie; '' for the general scheme.
    id_map: from the ids of a batch to rows, see `embedding.id_maps`.
    ids: how many ids there are, where they are not the rows.
    l2: strength l of a pull (l/2)|E|^2 on all rows of a 'dense' table in every
      step, in the gradient and not in the reported loss.
  """

  name: str
  rows: int
  dim: int
  init_std: float = 0.02
  update: str = 'dense'
  dtype: str = 'float32'
  options: tuple[tuple[str, object], ...] = ()
  rate: float | None = None
  codec: tuple[str, str] | None = None
  scheme: str = ''
  id_map: str = 'identity'
  ids: int = 0
  l2: float = 0.0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Jagged:
  """Rows of uneven length, packed one behind the other.

  Attributes:
    values: `[capacity, ...]`; the values of one row are contiguous, rows are in
      order, padding sits at the end.
    lengths: `[B]` int32, their sum is at most `capacity`.
  """

  values: jax.Array
  lengths: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
  """B event sequences as packed tokens; T is the (static) token capacity.

  The training and the evaluation batch have the same form: token i of a
  sequence is an event the model may read, `next_item[i]` the event that
  followed it. Training scores every position, evaluation the last one.

  A batch in W shards holds W such batches of B / W sequences and T / W tokens,
  one behind the other in every array. Token i of a shard is token `first + i`
  of the batch, so that what is drawn for a token does not depend on W.

  Attributes:
    users: `[B]` int32, row of the user in the data set, -1 for padding.
    lengths: `[B]` int32, tokens of each sequence; 0 for padding.
    item: `[T]` int32 item index of each token, PAD behind the last sequence.
    time: `[T]` int32 seconds since the first token of the same sequence.
    next_item: `[T]` int32 the item to predict after the token, PAD for none.
    next_time: `[T]` int32 when that item was met, on the clock of `time`.
    seen: item indices the evaluator must not recommend to each user, or None
      for "the tokens of the sequence itself".
    first: `[W]` int32, real tokens of the batch before those of each shard;
      None for a batch in one piece, whose first token is number 0.
    whole: the batch that this one is a part of, where a step takes a batch in
      parts one after the other; None otherwise.
  """

  users: jax.Array
  lengths: jax.Array
  item: jax.Array
  time: jax.Array
  next_item: jax.Array
  next_time: jax.Array
  seen: Jagged | None = None
  first: jax.Array | None = None
  whole: 'Batch | None' = None


POOLINGS = ('none', 'sum', 'mean')


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Read:
  """What one feature of a batch reads of a table.

  A task announces its reads before the step fetches any row, and its loss is
  given a view of each under the same name (`embedding.lookup`).

  >>> import jax.numpy as jnp
  >>> Read(jnp.arange(3), 'items').pooling
  'none'

  Attributes:
    ids: rows of the table: of any shape when they are wanted one by one, or
      `[K]`, bag behind bag with padding at the end, when there are `lengths`.
      None for a read of the whole table.
    table: name of the table.
    lengths: `[B]` int32 ids of each bag; an empty bag gives zeros.
    weights: `[K]` factor of each id's row in its bag, or None.
    pooling: 'none' (the rows one by one), 'sum' or 'mean' of each bag's rows.
  """

  ids: jax.Array | None
  table: str = dataclasses.field(metadata=dict(static=True))
  lengths: jax.Array | None = None
  weights: jax.Array | None = None
  pooling: str = dataclasses.field(default='none', metadata=dict(static=True))


@dataclasses.dataclass(frozen=True)
class ExpectedRead:
  """How much a feature reads, as a planner must know before any batch.

  Attributes:
    table: name of the table.
    ids: how many an example has, at most or in the mean.
    pooling: as in `Read`.
  """

  table: str
  ids: float
  pooling: str = 'none'


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
  """One input of a ranking model.

  Row 0 of a table is padding and what is missing, the last row is every value
  that the vocabulary does not know.

  Attributes:
    name: of the column.
    kind: 'categorical' (one value), 'multi_hot' (a set of values, pooled),
      'sequence' (values in order of time, the latest last, pooled) or
      'numeric'.
    rows: of its table, those two included; 0 for numeric.
    table: whose rows it reads; features that share a vocabulary share a table.
      '' is the table of its own name.
    pooling: 'sum' or 'mean' of the rows of a multi_hot or sequence feature.
    max_len: most values of such a feature; a sequence keeps the latest.
  """

  name: str
  kind: str = 'categorical'
  rows: int = 0
  table: str = ''
  pooling: str = 'sum'
  max_len: int = 0

  @property
  def source(self) -> str:
    """Name of the table that it reads."""
    return self.table or self.name

  @property
  def pooled(self) -> bool:
    return self.kind in ('multi_hot', 'sequence')


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Impressions:
  """B examples to rank: what was shown to whom, and what came of it.

  A batch in W shards holds W such batches, one behind the other in every
  array, as `Batch` does; padding examples stand at the end of the last ones.

  Attributes:
    labels: `[B, L]` float32, 0 or 1, of each task.
    weights: `[B]` float32, 0 for padding.
    ids: `[B, C]` int32 rows of the categorical features, in the order of the
      specs, each in its own table.
    numbers: `[B, N]` float32 values of the numeric features, in that order.
    bags: name of a multi_hot or sequence feature -> rows of its table, packed.
    group: `[B]` int32 number of the group (a user, say), -1 for padding.
    first: `[W]` int32, examples of the batch before those of each shard; None
      for a batch in one piece.
    whole: the batch that this one is a part of, as in `Batch`.
  """

  labels: jax.Array
  weights: jax.Array
  ids: jax.Array
  numbers: jax.Array
  bags: dict[str, Jagged]
  group: jax.Array
  first: jax.Array | None = None
  whole: 'Impressions | None' = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Inputs:
  """What a ranking model sees of B examples.

  Attributes:
    vectors: `[B, dim]` float32 of each feature with a table, in the order of
      the specs; a feature may be wider or narrower than others.
    numbers: `[B, N]` float32.
    linear: `[B]` sum of the first-order weights of all values; zeros where the
      model has no use for them.
    weights: `[B]` float32, 0 for padding: batch norms must not see it.
    first: `[1]` number of the first example, for dropout; or None.
  """

  vectors: tuple[jax.Array, ...]
  numbers: jax.Array
  linear: jax.Array
  weights: jax.Array
  first: jax.Array | None = None
