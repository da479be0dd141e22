"""What the parts of a run promise each other.

A run is a task, its tables, data and evaluators on a runtime. Each is known to
the others by one of these protocols alone, so that a new system is a new
implementer and not an edit in the middle:

    files -> RunData -> batch -> Task.reads -> Tables.route (ids alone)
                          |                        |
                          |             [prepare, on the host: Store]
                          |                        |
                          |             fetch -> finish -> views of rows
                          v                                     |
                       Task.loss  <-----------------------------+
                          |
            gradients -> back through finish -> Tables.push

`tests/conformance` runs every implementer through what is promised here.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax

from genrec_jax.features import ExpectedRead, Read, TableSpec

# What predicts: parameters, tables and what belongs to them, `weights_of`.
Weights = Mapping[str, Any]
Log = Callable[[str], None]


def weights_of(state) -> Weights:
  """What an evaluation needs of a state, or of weights that were loaded."""
  return {
    'params': getattr(state, 'averaged', None) or state.params,
    'tables': state.tables,
    'id_states': state.id_states,
    'modules': state.modules,
  }


@runtime_checkable
class Task(Protocol):
  """What is trained: which rows it reads, and what it makes of them.

  It may have `init_aux` and `aux_losses`, see docs/extending.md.

  Attributes:
    measurements: name -> 'mean', 'sum' or 'max'; 'loss' is among them, a mean.
    progress_unit: what progress counts, say 'tokens'.
  """

  measurements: Mapping[str, str]
  progress_unit: str

  def tables(self) -> Mapping[str, TableSpec]:
    """Name -> spec of every table."""

  def init(self, key: jax.Array) -> Any:
    """Fresh parameters of the model, a nested dict."""

  def reads(self, batch: Any, key: jax.Array) -> Mapping[str, Read]:
    """Feature -> what a training step reads for a batch; the only statement.

    It depends on no weights, and is traced once for each microbatch.
    """

  def reads_for(self, purpose: str, batch: Any) -> Mapping[str, Read]:
    """What is read outside of training: 'predict' is for `predict`."""

  def expected_reads(self) -> Mapping[str, ExpectedRead]:
    """How much an example reads, for planners; features as in `reads`."""

  def loss(
    self, params: Any, rows: Mapping[str, Any], batch: Any, key: jax.Array
  ) -> Mapping[str, tuple[jax.Array, jax.Array]]:
    """Measurement -> (value, weight) of one microbatch of one shard.

    Args:
      params: the model's parameters.
      rows: feature that was announced -> its view (`embedding.lookup`).
      batch: the microbatch.
      key: the key that `reads` was given.
    """

  def predict(self, params: Any, rows: Mapping[str, Any], batch: Any):
    """What a trained model says of a batch.

    Args:
      params: the model's parameters.
      rows: feature of `reads_for('predict', batch)` -> its view.
      batch: an evaluation batch of one shard.
    """

  def count(self, batch: Any) -> tuple[jax.Array, jax.Array]:
    """(what progress counts, examples) of a batch, padding left out."""


@runtime_checkable
class IdMap(Protocol):
  """Ids of a batch -> rows of a table; see `embedding.id_maps`."""

  def init(self) -> Any:
    """Its state before the first batch, a pytree; {} for none.

    On a mesh the state is the same on every device: a map that counts ids asks
    the other devices for theirs.
    """

  def assign(self, state: Any, ids: jax.Array, real: jax.Array):
    """(rows, next state) of ids that will be trained.

    Args:
      state: behind the batch before.
      ids: of any shape.
      real: of that shape; False for the padding behind bags, whose row does
        not matter. All ids of a read without bags are real, also the id 0 with
        which tasks of the library fill up sequences.
    """

  def lookup(self, state: Any, ids: jax.Array) -> jax.Array:
    """Rows of ids that are only read; a negative number for no row."""


@runtime_checkable
class Store(Protocol):
  """Rows of a table -> memory; see `embedding.stores`.

  The device holds an array `[places, D]` of the table, and slots of its row
  optimizer beside it. With `on_host` false, every row has the place of its own
  number. With `on_host` true, `prepare` brings the rows of a batch to places of
  its choice before they are read.

  Attributes:
    on_host: whether `prepare` has work to do on the host at every step.
  """

  on_host: bool

  def init(self, spec: TableSpec, key: jax.Array) -> jax.Array:
    """The array that the device holds before the first step; traced."""

  def prepare(self, array: jax.Array, slots: Mapping[str, jax.Array], ids):
    """Brings rows to the device; called on the host, never traced.

    Args:
      array: `[places, D]`; whoever calls gives it away.
      slots: of the row optimizer, given away too.
      ids: `[N]` distinct rows, sorted; spare places hold the rows of the table.

    Returns:
      (array, slots, `[N]` int32 distinct places of the rows in the array; the
      number of places where `ids` has a spare place).
    """

  def read(self, array: jax.Array, places: jax.Array) -> jax.Array:
    """The rows at `[N]` distinct places; zeros at spare ones, `[N, D]`."""

  def pool(self, array: jax.Array, read: Read) -> jax.Array:
    """Sums or means of the bags of a read, `[B, D]`; not if `on_host`."""

  def update(self, array, slots, merged, optimizers, rates, groups, **more):
    """(array, slots) after `row_settings.move_rows`, with the same arguments.

    Args:
      array: `[places, D]`.
      slots: of the row optimizer.
      merged: distinct places, sorted, and the sums of their gradients.
      optimizers: of each table in the array.
      rates: the learning rate of each table.
      groups: `[N]` number of the table of each place; None for one table.
      **more: further arguments of `RowOptimizer.update`.
    """


@runtime_checkable
class Tables(Protocol):
  """Tables that are updated by rows, on one device or a mesh.

  Tables with stores that work on the host have one more method, `prepare`,
  which runs between `route` and `fetch` (`runtime.host_stage`).

  Attributes:
    specs: table -> spec.
  """

  specs: Mapping[str, TableSpec]

  def init(self, key: jax.Array) -> dict[str, jax.Array]:
    """Every array, fresh."""

  def init_slots(self, arrays) -> dict[str, dict[str, jax.Array]]:
    """What the row optimizers remember, before the first step."""

  def route(self, reads: Mapping[str, Read], blocks: int = 0):
    """Where to find what P microbatches read; from the ids alone.

    Args:
      reads: feature -> its read, `[P, ...]`.
      blocks: microbatches kept apart, in their order; 0 keeps none.

    Returns:
      Routes, a pytree with `index`: feature -> `[P, ...]` places of its ids
      among the rows that are fetched of its table.
    """

  def fetch(self, arrays, routes):
    """Reads rows and sums; the step differentiates with respect to them."""

  def finish(self, modules, fetched, routes, draws=None):
    """(table -> rows, feature -> sums) that the loss sees; differentiable.

    Args:
      modules: parameters of what stands between two exchanges, {} for none.
      fetched: from `fetch`.
      routes: from `route`.
      draws: what towers draw from (`embedding.towers.TowerDraws`), or None.
    """

  def push(
    self, arrays, slots, routes, grads, learning_rate, step, dirty_rows=None
  ):
    """Updates rows by gradients of what was fetched: a `lookup.PushResult`.

    Args:
      arrays: table -> what the device holds of it.
      slots: table -> slots of its row optimizer.
      routes: as for `fetch`.
      grads: gradients of what `fetch` returned, in the same form.
      learning_rate: one number, or table -> number.
      step: number of the step, for stochastic rounding.
      dirty_rows: array -> a byte for each of its rows, to be marked.
    """

  def overflow(self, routes) -> jax.Array:
    """How many exchanges had no room; NaN where that is an error."""


@runtime_checkable
class Dense(Protocol):
  """How parameters that optax updates are held; see `parallel.dense`."""

  def gather(self, params): ...

  def use(self, held): ...

  def remat(self, loss): ...

  def reduce(self, grads): ...

  def local_slice(self, params): ...

  def norm(self, grads) -> jax.Array: ...

  def clip(self, grads, norm): ...

  def apply(self, tx, grads, state, params, **extra): ...


@runtime_checkable
class EvalRuntime(Protocol):
  """Where weights lie while they are evaluated.

  One on a mesh has one more method, `restore_weights` of `runtime.mesh`.

  Attributes:
    eval_shards: parts that an evaluation batch is cut into.
    own_eval: those that this process makes; None for all.
  """

  eval_shards: int
  local_eval_shards: range | None

  def put_on_devices(self, batch: Any):
    """A batch, as a function of `jit` takes it."""

  def jit(self, function, inputs, output='split'):
    """Compiles `(weights, *inputs) -> output`, of one shard.

    Args:
      function: the function.
      inputs: for each further argument, 'split' if every shard has its part
        of it, 'alike' if all have the same.
      output: the same for the result.
    """

  def read_rows(self, task: Task, weights: Weights, reads: Mapping[str, Read]):
    """(parameters, views of the reads), inside such a function.

    Args:
      task: whose tables are read.
      weights: as the function gets them.
      reads: feature -> read, from `Task.reads_for`.
    """


@runtime_checkable
class Runtime(EvalRuntime, Protocol):
  """What runs the steps of a training, on one device or a mesh.

  Attributes:
    shards: parts that a training batch is cut into.
    local_shards: those that this process makes; None for all.
    plan: where rows lie; None where they lie together.
    measured: names of what a state sums up.
  """

  shards: int
  local_shards: range | None
  plan: Any
  measured: Sequence[str]

  def batches(self, iterator):
    """The iterator of NumPy batches, as the step takes them."""

  def count(self, batch):
    """`Task.count` of such a batch."""

  def abstract_state(self):
    """Shapes and shardings of the state; nothing is allocated."""

  def fresh_state(self):
    """The state before the first step."""

  def step(self):
    """`(state, batch) -> (state, loss)`; the state is given away."""

  def restore(self, checkpoints, step: int, data=None):
    """The state of a checkpoint, whatever runtime it was trained on.

    Args:
      checkpoints: a `checkpoint.manager.CheckpointManager`.
      step: which of its steps.
      data: iterator of batches, which is set to its place at that step.
    """


@runtime_checkable
class RunData(Protocol):
  """What is trained and evaluated on; `load` is a class method.

  It may have `describe_values`, `describe_splits`, `list_evaluation_steps`.

  Attributes:
    splits: of `train.experiment.SPLITS` -> examples; some may be missing.
  """

  @property
  def splits(self) -> Mapping[str, Any]: ...

  @classmethod
  def load(cls, config, workdir, log: Log = print) -> 'RunData':
    """Prepares, or finds prepared, what the config names.

    Args:
      config: the whole config of the run.
      workdir: where prepared data go if the config names no other place.
      log: called with messages; with `takes_extensions`, `extensions` follows.
    """

  def task(self, config, extensions: 'Extensions | None' = None) -> Task:
    """The task of the config over these data."""

  def summary(self) -> str:
    """One line about the data, for logs and reports."""

  def steps_per_epoch(self, batch_size: int) -> int | float:
    """Steps of a pass over the data; infinite where the pass has no end."""

  def train_batches(self, config, runtime: Runtime, stop, log: Log):
    """An iterable whose iterator has `get_state` and `set_state`.

    Args:
      config: the whole config of the run.
      runtime: how many shards a batch has, and which this process makes.
      stop: a function; an endless stream ends when it returns True.
      log: called with progress messages.
    """

  def evaluator(
    self, task: Task, split: str, config, runtime: EvalRuntime
  ) -> 'Evaluator':
    """What measures a split.

    Args:
      task: makes the predictions.
      split: one of `splits`.
      config: the `eval` section.
      runtime: where the weights lie.
    """

  def baseline(self) -> tuple[str, Callable[['Evaluator'], dict]]:
    """Name of a baseline without a model, and evaluator -> its metrics."""

  def save_for_predicting(self, workdir) -> None:
    """Leaves in the workdir what predicting needs of the data."""

  def read_fingerprint(self, workdir) -> str:
    """Fingerprint of the data that a workdir was trained on."""

  def fingerprint(self) -> str:
    """Names the data, so that a run does not go on with others."""


@runtime_checkable
class Evaluator(Protocol):
  """State -> named numbers.

  It may have `directions` (see `tasks.directions`), `scores_are_alike` (`run`
  met one score alone), `intervals` of metrics, `undefined`, metric -> why it is
  NaN, `notes`, `is_due` and `chooses`; docs/extending.md says what they mean.
  """

  def names(self) -> list[str]:
    """The metrics that `run` yields."""

  def run(self, state) -> Iterator[tuple[str, float]]:
    """Metric and value of `state`; anything with `params` and `tables`."""


# (config, workdir, Extensions or None) -> what was written, for scripts.
Predict = Callable[[Any, Any, Any], dict]


@dataclasses.dataclass(frozen=True)
class Panel:
  """A part of the report that only some tasks have.

  Attributes:
    name: key of what it shows in report.json.
    measure: (config, workdir, experiment) -> what it shows, as JSON can say it.
    draw: that -> a `<section>`, or ''; None where the page knows it by name.
  """

  name: str
  measure: Callable[[Any, Any, Any], Any]
  draw: Callable[[Any], str] | None = None


@dataclasses.dataclass(frozen=True)
class TaskKind:
  """All that a run must know of a kind of task.

  Attributes:
    data: the class of its data, which makes tasks and evaluators.
    predict: what `--mode=predict` does.
    defaults: every key of its configs, with defaults.
    panels: its parts of the report.
  """

  data: type[RunData]
  predict: Predict
  defaults: Callable[[], Any]
  panels: Sequence[Panel] = ()


TaskKinds = Mapping[str, TaskKind]


@dataclasses.dataclass(frozen=True)
class Extensions:
  """What a run uses from outside the library; all of it optional.

  Handed to `train_and_evaluate`, or named in `config.extensions`. A name that
  the library has already is an error where the two meet.

  Attributes:
    task_kinds: name of `config.task` -> kind.
    row_optimizers: name -> `row_optimizers.RowOptimizerLike`.
    schemes: name -> `embedding.scheme.Scheme`.
    formats: name -> `numerics.number_format.NumberFormat`.
    products: name -> product of activations, see `numerics.products`.
    id_maps: table -> `IdMap`, in place of what its settings say.
    stores: table that is updated by rows -> `Store`, in runs on one device.
    towers: an `embedding.towers.Towers` that pooled features go through.
    request_sets: `data.name` -> (`config.data`) -> `RequestDataset`.
    search_spaces: name in `search.spaces` -> `search.table_space.TableSpace`.
  """

  task_kinds: TaskKinds = dataclasses.field(default_factory=dict)
  row_optimizers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  schemes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  formats: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  products: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  id_maps: Mapping[str, IdMap] = dataclasses.field(default_factory=dict)
  stores: Mapping[str, Store] = dataclasses.field(default_factory=dict)
  towers: Any = None
  request_sets: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  search_spaces: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def kind_of(config, kinds: TaskKinds) -> TaskKind:
  """The kind of task that a config names."""
  if config.task not in kinds:
    raise ValueError(
      f'config.task is {config.task!r}, must be one of '
      f'{", ".join(sorted(kinds))}'
    )
  return kinds[config.task]
