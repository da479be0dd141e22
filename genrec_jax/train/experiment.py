"""Builds what a config describes: data, task, optimizer, devices."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from genrec_jax.contracts import (
  EvalRuntime,
  Evaluator,
  Extensions,
  RunData,
  Runtime,
  Task,
  TaskKinds,
  kind_of,
)
from genrec_jax.parallel import job, rules
from genrec_jax.runtime import optimizer
from genrec_jax.runtime.build import build_runtime
from genrec_jax.runtime.state import find_dense_towers, find_towers
from genrec_jax.train import task_checks

SPLITS = ('train', 'valid', 'next', 'test')


@dataclasses.dataclass(frozen=True)
class Experiment:
  """The pieces of a run.

  Attributes:
    data: what is trained and evaluated on.
    task: tables, model and loss.
    tx: optimizer of everything dense.
    runtime: how all of it lies on devices.
    extensions: what is used from outside the library.
  """

  data: RunData
  task: Task
  tx: Any
  runtime: Runtime | EvalRuntime
  extensions: Extensions = Extensions()

  def train_batches(self, config, stop=lambda: False, log=print):
    """A `grain.IterDataset` of training batches; its state can be saved.

    Args:
      config: the experiment's config.
      stop: asked while a growing source has nothing new; True ends it.
      log: called with a message about each new file of it.
    """
    return self.data.train_batches(config, self.runtime, stop, log)

  def list_evaluation_steps(self) -> frozenset[int] | None:
    """The steps at which is evaluated; None leaves it to `eval_every`.

    Data may say it, with a method of this name.
    """
    make = getattr(self.data, 'list_evaluation_steps', lambda: None)
    return make()

  def evaluators(self, config) -> dict[str, Evaluator]:
    """Split -> evaluator, for those of `config.eval.splits` that exist."""
    for split in config.eval.splits:
      if split not in SPLITS:
        raise ValueError(
          f'eval.splits holds {split!r}, must be among {", ".join(SPLITS)}'
        )
    return {
      split: self.data.evaluator(self.task, split, config.eval, self.runtime)
      for split in config.eval.splits
      if split in self.data.splits
    }

  def parameters(self) -> dict[str, int]:
    """How many weights are trained: of the 'model', and in 'tables'."""
    tables = self.task.tables().values()
    towers = find_towers(self.task, self.extensions) or find_dense_towers(
      self.task
    )
    parts = [self.task, *([] if towers is None else [towers])]
    return {
      'model': sum(
        rules.count_weights(jax.eval_shape(part.init, jax.random.key(0)))
        for part in parts
      ),
      'tables': sum(spec.rows * spec.dim for spec in tables),
    }

  def baselines(self, evaluators) -> dict:
    """Name -> split -> metrics of the baseline."""
    name, measure = self.data.baseline()
    return {name: {p: measure(e) for p, e in evaluators.items()}}

  def fingerprint(self) -> str:
    """Names the data, so that a run does not go on with other data."""
    return self.data.fingerprint()


def build_experiment(
  config,
  workdir,
  kinds: TaskKinds,
  log: Callable[[str], None] = print,
  extensions: Extensions | None = None,
  *,
  trains: bool = True,
) -> Experiment:
  """Loads the data and builds the task of `config`.

  Args:
    config: of the experiment.
    workdir: of the run.
    kinds: the kinds of tasks there are, `task_kinds.TASK_KINDS` say.
    log: called with progress messages.
    extensions: what is used from outside the library.
    trains: whether there are steps, or evaluations alone.
  """
  extensions = extensions or Extensions()
  data = load_data(config, workdir, kinds, log, extensions)
  task = _build_task(config, data, extensions)
  config, tx = build_optimizer(config, data)
  runtime = build_runtime(config, task, tx, extensions, trains=trains)
  experiment = Experiment(data, task, tx, runtime, extensions)
  with job.fail_together('comparing the data of the processes'):
    own = experiment.fingerprint()
    if (lead := job.broadcast_from_leader(own)) != own:
      raise ValueError(
        f'the data read here are not those of process 0 ({own}, there {lead}); '
        'give all processes the same files in data.path'
      )
  return experiment


def build_optimizer(config, data: RunData):
  """The config with schedules of the run's length, and its optimizer."""
  if optimizer.needs_total(config.optimizer):
    config = optimizer.resolve_decay(config, total_steps(config, data))
  return config, optimizer.build_optimizer(config.optimizer)


def total_steps(config, data) -> int | float:
  """The steps of a whole run; early stopping may end it before.

  Infinite where the data grow and `train.steps` sets no end.
  """
  train = config.train
  return train.steps or train.epochs * data.steps_per_epoch(train.batch_size)


def load_data(
  config,
  workdir,
  kinds: TaskKinds,
  log: Callable[[str], None] = print,
  extensions: Extensions | None = None,
) -> RunData:
  """The data alone."""
  data = kind_of(config, kinds).data
  if getattr(data, 'takes_extensions', False):
    return data.load(config, workdir, log, extensions)
  return data.load(config, workdir, log)


def load_task(
  config,
  workdir,
  kinds: TaskKinds,
  log: Callable[[str], None] = print,
  extensions: Extensions | None = None,
) -> Task:
  """The task alone, which needs no devices; see `build_experiment`."""
  return load_data_and_task(config, workdir, kinds, log, extensions)[1]


def load_data_and_task(
  config,
  workdir,
  kinds: TaskKinds,
  log: Callable[[str], None] = print,
  extensions: Extensions | None = None,
) -> tuple[RunData, Task]:
  """Both, which need no devices; see `build_experiment`."""
  data = load_data(config, workdir, kinds, log, extensions)
  return data, _build_task(config, data, extensions or Extensions())


def _build_task(config, data: RunData, extensions: Extensions) -> Task:
  task = data.task(config, extensions)
  task_checks.check_task(config, task, extensions)
  return task
