"""Maps that are learned again and again, for data that drift.

    WORKDIR/
      small/           a run of the same model with narrow tables
      maps/00000500/   the maps of what had been seen before step 500
        NAME.npz
      model/           the run with these maps
      whole/           a run with a row for each id, with `hash.compare`
      hash.json        what was measured

Each phase trains `hash.renew_every` steps: the small model up to where the
phase begins, then the model, with a map of what came before it. So a map is
never of the examples that are trained with it; the first one, of nothing,
spreads ids over all rows. Between two phases rows move from one map to the next
(`map_renewal`). Whoever is interrupted goes on with the same command.
"""

import dataclasses
import json
import logging
import math
import pathlib
import time
from collections.abc import Mapping

from ml_collections import ConfigDict

from genrec_jax import config as config_lib
from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.contracts import Extensions, RunData, Task, TaskKinds
from genrec_jax.parallel import job
from genrec_jax.processes.whole_files import replace_file
from genrec_jax.runtime import optimizer
from genrec_jax.train import experiment, hash_tables, loop, series
from genrec_jax.train.hash_tables import TableIds

LOG = logging.getLogger('genrec_jax')


@dataclasses.dataclass(frozen=True)
class Phases:
  """A training with maps that are renewed.

  Attributes:
    config: of a run with a row for each id.
    asked: the section `hash`.
    workdir: where all of it lies.
    data: of the run.
    task: of the run.
    tables: of `hash_tables.choose_tables`.
    kinds: the kinds of tasks there are.
    extensions: what is used from outside the library.
  """

  config: ConfigDict
  asked: Mapping
  workdir: pathlib.Path
  data: RunData
  task: Task
  tables: Mapping[str, TableIds]
  kinds: TaskKinds
  extensions: Extensions | None = None

  def run(self) -> str:
    """Trains all phases that are left.

    Returns:
      What was measured, as text; '' where SIGTERM has ended it early.
    """
    total = experiment.total_steps(self.config, self.data)
    self._check(total)
    every, model = self.asked['renew_every'], self.workdir / 'model'
    for begin in range(0, total, every):
      end = min(begin + every, total)
      if self._has_ended(model, end):
        continue
      LOG.info('steps %d to %d of %d', begin, end, total)
      if self._needs_vectors and begin:
        small = self._set(**{
          'model.dim': self.asked['dim'], 'train.steps': begin
        })  # fmt: skip
        if not self._train(small, self.workdir / 'small', begin):
          return ''
      maps = self._learn_maps(begin)
      config = self._set(**{'train.steps': end})
      config = hash_tables.set_maps(config, self.task, self.tables, maps)
      if not self._train(config, model, end):
        return ''
    whole = None
    if self.asked['compare']:
      whole = series.train_once(
        self._set(), self.workdir / 'whole', self.kinds, self.extensions
      )
      if whole is None:
        return ''
    return self._summarize(model, whole)

  @property
  def _needs_vectors(self) -> bool:
    return self.asked['method'] != 'frequency'

  def _set(self, **fields):
    return series.change_config(self.config, **fields)

  def _check(self, total: int | float) -> None:
    config, why = self.config, ''
    if not math.isfinite(total):
      why = 'a growing directory has parts that nobody has counted'
    elif config.train.shuffle:
      why = 'set train.shuffle=False, so that a map is of what came before'
    elif total > self.data.steps_per_epoch(config.train.batch_size):
      why = (
        'set train.epochs=1: in a second pass, a map would be of examples that '
        'it is trained with'
      )
    elif optimizer.needs_total(config.optimizer):
      why = 'set optimizer.decay_steps, since the end of a run moves'
    elif config.train.patience:
      why = 'set train.patience=0, since all phases are trained'
    elif self.asked['vectors']:
      why = 'hash.vectors is of one moment; the small model goes on by itself'
    elif len(hash_tables.list_shares(self.asked)) > 1:
      why = 'hash.private must be one share, since nothing is chosen'
    if why:
      raise config_lib.ConfigError(
        f'hash.renew_every={self.asked["renew_every"]}: {why}'
      )

  def _train(self, config, folder: pathlib.Path, end: int) -> bool:
    """Whether a run has reached a step; trains it if need be."""
    if not self._has_ended(folder, end):
      loop.train_and_evaluate(config, folder, self.kinds, self.extensions)
    return self._has_ended(folder, end)

  def _has_ended(self, folder: pathlib.Path, end: int) -> bool:
    """Whether a run has reached a step, and has reported it if it ends there.

    A run that was stopped behind its last step writes its report when it is
    trained again, which trains nothing.
    """
    step = read_step(folder)
    if step != end or not self.config.eval.splits:  # which writes no report
      return step >= end
    report = series.read_report(folder)
    return report is not None and report['steps'] == end

  def _learn_maps(self, begin: int) -> dict[str, pathlib.Path]:
    """Table -> file of its map of the examples before a step."""
    folder = self.workdir / 'maps' / f'{begin:08d}'
    paths = {t: hash_tables.name_map(folder, t) for t in self.tables}
    are_there = all(path.exists() for path in paths.values())
    if job.broadcast_from_leader(str(are_there)) == 'True':
      return paths
    started = time.process_time()
    size, look_back = self.config.train.batch_size, self.asked['look_back']
    first = max(0, begin - look_back) if look_back else 0
    counts = hash_tables.count_ids(
      self.data.dataset, self.tables, first * size, begin * size
    )
    vectors = {}
    if begin and self._needs_vectors:
      of_run = self._set(**{'model.dim': self.asked['dim']})
      vectors = hash_tables.read_vectors(
        self.workdir / 'small',
        of_run,
        self.tables,
        self.kinds,
        self.extensions,
        'latest',
      )
    (share,) = hash_tables.list_shares(self.asked)
    with job.fail_together('learning the maps', lead_first=True):
      for name, path in paths.items():  # which the other processes find
        hash_tables.learn_map(
          path,
          self.tables[name],
          counts[name],
          vectors.get(name),
          self.asked,
          share,
        )
    LOG.info('maps: %.1f core-seconds', time.process_time() - started)
    return paths

  def _summarize(self, model: pathlib.Path, whole: Mapping | None) -> str:
    sizes = hash_tables.measure_sizes(self.tables)
    found = {'hash': dict(self.asked), 'tables': sizes, 'best': str(model)}
    runs = {}
    if whole is not None:
      found['whole'] = runs['a row for each'] = whole['metrics']
    if report := series.read_report(model):
      found['metrics'] = runs['renewed maps'] = report['metrics']
    if job.is_leader():
      replace_file(
        self.workdir / hash_tables.RESULT, json.dumps(found, indent=2)
      )
    return '\n'.join([
      *hash_tables.describe_sizes(sizes),
      '',
      *hash_tables.describe_metrics('rows', runs),
      '',
      str(model),
    ])  # fmt: skip


def read_step(folder: pathlib.Path) -> int:
  """The newest step of a run; 0 where there is none."""
  directory = folder / 'checkpoints'
  if job.broadcast_from_leader(str(directory.is_dir())) != 'True':
    return 0
  with CheckpointManager(directory, log=LOG.warning) as steps:
    return steps.latest() or 0
