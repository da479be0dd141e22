"""The shared vocabulary: what a table, a feature and a batch are.

No logic lives here but to find a column by its name. Every layer of the library
may import this file.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from genrec_jax.event_history import History

PAD = 0  # item index 0 is padding in every vocabulary; items are 1..V
# An id in `Read.ids` of something that is not there, such as a token of
# padding. No row is touched for it, and what it reads is finite and means
# nothing. Other ids that are not rows are mistakes, and read NaN.
UNREAD = np.iinfo(np.int32).min


@dataclasses.dataclass(frozen=True)
class TableSpec:
  """One embedding table.

  Attributes:
    name: key of the table in `TrainState.tables`.
    rows: number of rows, the padding row 0 included.
    dim: width of a row.
    init_std: deviation of the normal of fresh rows, before it is cut at two.
    update: 'dense' (optax, for small tables) or the name of a row optimizer in
      `embedding.row_optimizers` (touched rows only).
    dtype: of the rows: 'float32', 'bfloat16' or 'float16'.
    options: (name, value) pairs of its row optimizer's own options, sorted.
    rate: of its row optimizer; None for the general one.
    codec: of its rows and gradients between devices; None for the general ones.
    scheme: where its rows lie; '' for the general scheme.
    id_map: from the ids of a batch to rows, see `embedding.id_maps`.
    ids: how many ids there are, where they are not the rows.
    private: how many of the first ids have rows of their own.
    map_file: of the rows of ids, where they are learned.
    combine: 'sum' or 'product' of the rows of an id that has two.
    l2: strength l of (l/2)|E|^2 of a 'dense' table, left out of the loss told.
    distribution: of fresh rows: 'truncated_normal', cut at two deviations,
      'normal', or 'uniform_rows' for U(-1/sqrt(rows), 1/sqrt(rows)).
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
  private: int = 0
  map_file: str = ''
  combine: str = 'sum'
  l2: float = 0.0
  distribution: str = 'truncated_normal'

  def __post_init__(self):
    # Whoever makes a file of the name shall not leave a directory by it.
    if '..' in self.name.replace('\\', '/').split('/'):
      raise ValueError(
        f'a table is named {self.name!r}; give it a name without .. for a part'
      )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Columns:
  """Columns of one type, side by side in one array: one transfer for all.

  >>> import numpy as np
  >>> ids = Columns(np.array([[3, 7], [4, 8]]), ('user', 'item'))
  >>> ids['item'].tolist(), 'price' in ids
  ([7, 8], False)

  Attributes:
    values: `[N, C]`, of NumPy or JAX.
    names: C names, no two alike.
  """

  values: jax.Array
  names: tuple[str, ...] = dataclasses.field(metadata=dict(static=True))

  def __getitem__(self, name: str) -> jax.Array:
    """The column, `[N]`; a view where the array is NumPy's."""
    if name not in self.names:
      raise KeyError(
        f'no column {name!r}; there are {", ".join(self.names) or "none"}'
      )
    return self.values[..., self.names.index(name)]

  def __contains__(self, name: str) -> bool:
    return name in self.names

  def select(self, names: Sequence[str]) -> jax.Array:
    """The columns `names`, in that order, `[N, len(names)]`."""
    if tuple(names) == self.names:
      return self.values
    for name in names:
      self[name]  # names what there is, where one is missing
    return self.values[..., [self.names.index(name) for name in names]]


def stack_columns(columns: Mapping[str, np.ndarray], dtype) -> Columns:
  """Columns of NumPy values that are at hand one by one.

  >>> stack_columns({'user': [3, 4], 'item': [7, 8]}, 'int32').values.tolist()
  [[3, 7], [4, 8]]
  """
  values = [np.asarray(column) for column in columns.values()]
  return Columns(np.stack(values, axis=-1).astype(dtype), tuple(columns))


# The order of fields is that of a compiled step's arguments. Another order lets
# XLA fuse otherwise, and the last digits of a curve change.
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Jagged:
  """A feature with any number of values an example, packed.

  The values of one example are contiguous, examples are in order, and padding
  sits at the end. A batch in W shards holds W such arrays, one behind the
  other. The values of a sequence have several columns (item, time, ...), those
  of a set have one.

  Attributes:
    columns: of int32, `[K, C]`.
    lengths: `[B]` int32 values of each example, 0 for padding; those of a shard
      sum up to at most its part of K.
    floats: columns of float32, `[K, F]`, or None without any.
    first: `[W]` int32, values of the batch before those of each shard, where
      someone needs the number of a value in the batch: what is drawn for it
      must not depend on W. None also for a batch in one piece, whose first
      value is number 0.
  """

  columns: Columns
  lengths: jax.Array
  floats: Columns | None = None
  first: jax.Array | None = None

  def __getitem__(self, name: str) -> jax.Array:
    """The column of that name, of either type, `[K]`."""
    return _find_column(name, self.columns, self.floats)

  def __contains__(self, name: str) -> bool:
    return any(name in c for c in (self.columns, self.floats) if c is not None)


EVENTS = 'events'  # the feature that retrieval reads
WEIGHT = 'weight'  # the column of floats of a feature with weighted values


# The order of fields matters, see `Jagged`.
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Examples:
  """A batch of B examples, of any task.

  None is what the data do not have. Which fields are None and what columns are
  called is the same for all batches of a run, since a step is compiled for it.

  Retrieval: an example is a sequence of events, `jagged[EVENTS]` with columns
  item, time, next_item, next_time, and with every extra column NAME of the
  data NAME and next_NAME. Token i is an event the model may read, next_item
  what followed it (PAD for nothing). Times are seconds since the first token of
  the same sequence. Training scores every position, evaluation the last one.

  Ranking: an example is what was shown to whom, and what came of it.

  A batch in W shards holds W batches of B / W examples, one behind the other in
  every array. Example i of a shard is example `first + i` of the batch, so that
  what is drawn for it does not depend on W.

  Attributes:
    row: `[B]` int32 row of the user in the data set, -1 for padding.
    labels: float32 `[B, L]`.
    weights: `[B]` float32, 0 for padding.
    ids: rows of the categorical features, int32 `[B, C]`, each in its table.
    dense: numeric features, float32 `[B, N]`.
    jagged: name of a multi_hot or sequence feature -> its values, rows of a
      table in one column of its name, with floats `WEIGHT` where they have
      weights. Or name of a history -> its events, a column for each feature
      of it: int32 rows of tables, and floats.
    group: `[B]` int32 number of the group (a user, say), -1 for padding.
    label_weights: float32 `[B, L]`; None where every label has weight 1.
    time: `[B]` int32, in the unit of the data.
    example_id: `[B, 2]` int32, the words of 64-bit ids; see
      `data.ranking.id_words`.
    seen: items that must not be recommended to each user, column item; None
      for "the tokens of the sequence itself".
    extras: values that a task may read, such as a teacher's score, float32
      `[B, E]`.
    int_extras: those that are whole numbers, int32.
    first: `[W]` int32, examples of the batch before those of each shard, where
      a task draws by example; None also for a batch in one piece.
    whole: the batch that this one is a part of, where a step takes a batch in
      microbatches; None otherwise.
  """

  row: jax.Array | None = None
  labels: Columns | None = None
  weights: jax.Array
  ids: Columns | None = None
  dense: Columns | None = None
  jagged: dict[str, Jagged] = dataclasses.field(default_factory=dict)
  group: jax.Array | None = None
  label_weights: Columns | None = None
  time: jax.Array | None = None
  example_id: jax.Array | None = None
  seen: Jagged | None = None
  extras: Columns | None = None
  int_extras: Columns | None = None
  first: jax.Array | None = None
  whole: 'Examples | None' = None

  def extra(self, name: str) -> jax.Array:
    """The extra column of that name, of either type, `[B]`."""
    return _find_column(name, self.extras, self.int_extras)


def _find_column(name: str, *stacks: Columns | None) -> jax.Array:
  stacks = [stack for stack in stacks if stack is not None]
  for stack in stacks:
    if name in stack:
      return stack[name]
  names = [name for stack in stacks for name in stack.names]
  raise KeyError(f'no column {name!r}; there are {", ".join(names) or "none"}')


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
    ids: rows of the table, or `UNREAD`: of any shape when they are wanted one
      by one, or `[K]`, bag behind bag with padding at the end, when there are
      `lengths`. None for a read of the whole table.
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
      'sequence' (values in order of time, the latest last, pooled unless it is
      a column of a history), 'numeric', or 'numeric_sequence' (numbers, a
      column of a history).
    rows: of its table, those two included; 0 for numbers.
    table: whose rows it reads; features that share a vocabulary share a table.
      '' is the table of its own name.
    pooling: 'sum' or 'mean' of the rows of a multi_hot or sequence feature.
    max_len: most values of such a feature; a sequence keeps the latest. 0 is
      any number.
    mean_len: values of such a feature in the mean, where it may have any
      number; 0 if unknown.
    weighted: whether each value of such a feature has a weight: its row is
      multiplied by it before rows are pooled. A mean is divided by the number
      of values, not by the sum of their weights, which may be zero.
    history: whose column it is, '' for none, see `History`.
  """

  name: str
  kind: str = 'categorical'
  rows: int = 0
  table: str = ''
  pooling: str = 'sum'
  max_len: int = 0
  mean_len: float = 0.0
  weighted: bool = False
  history: str = ''

  @property
  def source(self) -> str:
    """Name of the table that it reads."""
    return self.table or self.name

  @property
  def has_table(self) -> bool:
    return self.kind not in ('numeric', 'numeric_sequence')

  @property
  def is_list(self) -> bool:
    """Whether an example has any number of its values."""
    return self.kind in ('multi_hot', 'sequence', 'numeric_sequence')

  @property
  def pooled(self) -> bool:
    return self.kind in ('multi_hot', 'sequence') and not self.history


Features = Sequence[FeatureSpec]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Inputs:
  """What a ranking model sees of B examples.

  Attributes:
    vectors: `[B, dim]` float32 of each feature with a table that is no column
      of a history, in the order of the specs; widths may differ.
    numbers: `[B, N]` float32.
    linear: `[B]` sum of the first-order weights of all values; zeros where the
      model has no use for them.
    weights: `[B]` float32, 0 for padding: batch norms must not see it.
    first: `[1]` number of the first example, for dropout; or None.
    histories: name -> what the user did, event by event.
  """

  vectors: tuple[jax.Array, ...]
  numbers: jax.Array
  linear: jax.Array
  weights: jax.Array
  first: jax.Array | None = None
  histories: dict[str, History] = dataclasses.field(default_factory=dict)


# The features of a request, see `RequestSpec`.
HISTORY = 'history'
CANDIDATES = 'candidates'
ACTION = 'action'  # column of a history: the bits of what a user did
AGE = 'age'  # column of a history: seconds from an event to the request
WATCH_TIME = 'watch_time'  # column of floats of a history: seconds
WEEK_SECOND = 'week_second'  # column of `Examples.int_extras`
LABEL_KINDS = ('binary', 'regression')


@dataclasses.dataclass(frozen=True)
class LabelSpec:
  """One thing that is predicted of a candidate.

  Attributes:
    name: of the label, a column of floats of the candidates.
    kind: 'binary', 0 or 1 in the data and a logit of the model, or 'regression'
      for any number.
  """

  name: str
  kind: str = 'binary'

  def __post_init__(self):
    if self.kind not in LABEL_KINDS:
      raise ValueError(
        f'label {self.name!r} has kind {self.kind!r}, must be one of '
        f'{", ".join(LABEL_KINDS)}'
      )


def name_slots(feature: FeatureSpec) -> tuple[str, ...]:
  """Columns of a feature of the context, see `RequestSpec`."""
  if feature.kind == 'categorical':
    return (feature.name,)
  return tuple(f'{feature.name}.{i}' for i in range(feature.max_len))


@dataclasses.dataclass(frozen=True)
class RequestSpec:
  """What requests hold: candidates to score for a user with a history.

  A batch of requests is an `Examples` whose example is one request:

  - `jagged[HISTORY]`, the user's events before the request, the latest last:
    the columns of `items`, rows of tables; `ACTION`, the bits of what the user
    did; `AGE`, the seconds from the event to the request, 0 or more; and the
    float column `WATCH_TIME` where there is one.
  - `jagged[CANDIDATES]`, what is scored: the columns of `items` and of
    `candidates`; the float columns of `labels` and `WEIGHT`, one weight a
    candidate for all labels.
  - `ids`, the `context_columns`, one value a request.
  - `row`, the number of the request in its split, -1 for padding; `group`, the
    number of the user; `weights`, 1, and 0 for padding.
  - `int_extras`, the column `WEEK_SECOND`: the time of the request modulo a
    week, Monday 00:00 UTC being 0.

  Attributes:
    items: features of an event and of a candidate, all categorical; the first
      one is the item itself. Histories and candidates share tables.
    context: features of the user and of the request: 'categorical', or
      'multi_hot' with `max_len` slots, for as many values at most.
    actions: (name, bit) pairs; a bit is a power of two.
    labels: what is predicted.
    watch_time: whether histories have the column `WATCH_TIME`.
    timed: whether ages tell anything; they are 0 otherwise.
    candidates: features that candidates alone have, all categorical: what is
      known of a showing when it is asked for, and not kept of past ones, such
      as the page of KuaiRand's `candidate_tab`. In a history, `stu` has a
      learned vector in their place.
  """

  items: tuple[FeatureSpec, ...]
  context: tuple[FeatureSpec, ...] = ()
  actions: tuple[tuple[str, int], ...] = ()
  labels: tuple[LabelSpec, ...] = ()
  watch_time: bool = False
  timed: bool = True
  candidates: tuple[FeatureSpec, ...] = ()

  def __post_init__(self):
    if not self.items:
      raise ValueError('a request needs the feature of its items')
    for feature in (*self.candidate_features, *self.context):
      if feature in self.context and feature.kind == 'multi_hot':
        if feature.max_len < 1 or feature.weighted:
          raise ValueError(
            f'feature {feature.name!r} of the context has max_len='
            f'{feature.max_len} and weighted={feature.weighted}; give it one '
            'slot or more, and no weights'
          )
      elif feature.kind != 'categorical':
        more = ", or 'multi_hot' in the context"
        raise ValueError(
          f'feature {feature.name!r} of a request has kind {feature.kind!r}; '
          "only 'categorical' is possible" + more * (feature in self.context)
        )
    for name, bit in self.actions:
      if bit < 1 or bit & (bit - 1):
        raise ValueError(f'action {name!r} has bit {bit}, not a power of two')
    slots = [name for f in self.context for name in name_slots(f)]
    if twice := {n for n in slots if slots.count(n) > 1}:
      raise ValueError(
        f'the context of a request has the name {sorted(twice)[0]!r} twice'
      )
    names = [f.name for f in self.candidate_features]
    names += [x.name for x in self.labels]
    names += [ACTION, AGE, WATCH_TIME, WEIGHT]
    if twice := {n for n in names if names.count(n) > 1}:
      raise ValueError(
        f'the columns of a request have the name {sorted(twice)[0]!r} twice'
      )

  @property
  def context_columns(self) -> dict[str, FeatureSpec]:
    """Name of each column of the context -> its feature.

    That of a 'categorical' one has its name; one of several slots has a column
    for each, NAME.0, NAME.1, and so on, with row 0 in slots without a value.

    >>> item, tags = FeatureSpec('item'), FeatureSpec('tag', 'multi_hot')
    >>> tags = dataclasses.replace(tags, max_len=2)
    >>> spec = RequestSpec((item,), (FeatureSpec('age'), tags))
    >>> list(spec.context_columns)
    ['age', 'tag.0', 'tag.1']
    """
    return {name: f for f in self.context for name in name_slots(f)}

  @property
  def candidate_features(self) -> tuple[FeatureSpec, ...]:
    """All features of a candidate, those of any item first."""
    return (*self.items, *self.candidates)
