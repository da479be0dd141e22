"""Its data, evaluator and predictions; `EXTENSIONS` is what a run is given."""

import pathlib

import jax
import numpy as np

from genrec_jax import config as config_lib
from genrec_jax.contracts import Extensions, TaskKind, weights_of
from genrec_jax.data.ranking import batches
from genrec_jax.embedding.local_tables import SingleDeviceEvalRuntime
from genrec_jax.parallel import collectives
from genrec_jax.serve.weights import load_weights
from genrec_jax.train.ranking_data import RankingData
from tests.third_task.task import Minutes


class Evaluator:
  directions = {'mse': 'lower'}

  def __init__(self, task, split, config, runtime):
    self._part, self._size, self._runtime = split, config.batch_size, runtime

    def minutes(weights, batch):
      reads = task.reads_for('predict', batch)
      params, rows = runtime.read_rows(task, weights, reads)
      found = task.predict(params, rows, batch), batch.labels['minutes']
      return collectives.gather((*found, batch.weights))

    self._minutes = runtime.jit(minutes, ('split',), 'alike')

  def names(self):
    return ['r2', 'mse']

  def run(self, state):
    said, minutes = self.predict(state)
    error = np.mean((said - minutes) ** 2)
    yield from {'r2': 1 - error / np.var(minutes), 'mse': error}.items()

  def predict(self, state):
    shards, columns = self._runtime.eval_shards, ([], [])
    for batch in batches.eval_batches(
      self._part,
      batch_size=self._size + -self._size % shards,
      shards=shards,
      own=self._runtime.local_eval_shards,
    ):
      batch = self._runtime.put_on_devices(batch)
      *found, weights = jax.device_get(self._minutes(weights_of(state), batch))
      for column, values in zip(columns, found, strict=True):
        column.append(np.float64(values)[weights > 0])
    return tuple(map(np.concatenate, columns))


class MinutesData(RankingData):
  def task(self, config, extensions=None):
    del extensions
    return Minutes(self.dataset.features, config_lib.table_settings(config))

  def evaluator(self, task, split, config, runtime):
    return Evaluator(task, self.splits[split], config, runtime)

  def baseline(self):
    return 'nothing', lambda evaluator: {'r2': 0.0}


def predict(config, workdir, extensions):
  data = MinutesData.load(config, workdir)
  task = data.task(config)
  weights = load_weights(workdir, task, config.predict.checkpoint, extensions)
  evaluator = data.evaluator(
    task, 'test', config.eval, SingleDeviceEvalRuntime()
  )
  path = pathlib.Path(workdir) / 'predictions.csv'
  np.savetxt(path, evaluator.predict(weights)[0])
  return {'output': str(path)}


KIND = TaskKind(MinutesData, predict, config_lib.ranking)
EXTENSIONS = Extensions(task_kinds={'minutes': KIND})
