"""A task of your own: learn from pairs of a click and no click.

    python examples/own_task.py

The ranking task of the library looks at each example by itself. `Pairs` derives
from it and has another loss: every example that was clicked should have a
higher score than every example of its batch that was not. `EXTENSIONS` passes
the task to a training, which does the rest. It takes about 12 seconds on one
CPU core.

Prints the share of pairs in the right order as the training goes on, and the
test AUC, which is the same share on new examples.
"""

import dataclasses
import json
import pathlib
import tempfile

import jax.numpy as jnp
import numpy as np
import optax

from genrec_jax import config as config_lib
from genrec_jax.contracts import Extensions
from genrec_jax.extensions import add_to_kinds
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.tasks.ranking import Ranking
from genrec_jax.train.loop import train_and_evaluate

RANKING = TASK_KINDS['ranking']


class Pairs(Ranking):
  """Reads, model and predictions are inherited; the loss is not."""

  measurements = {'loss': 'mean', 'right_order': 'mean', 'clicks': 'sum'}

  def loss(self, params, rows, batch, key):
    logits = self.predict(params, rows, batch, key)[:, 0]
    clicked, real = batch.labels['click'] > 0, batch.weights > 0
    margin = logits[:, None] - logits[None, :]
    pair = (clicked & real)[:, None] & (~clicked & real)[None, :]
    count = jnp.sum(pair.astype(jnp.float32))
    each = jnp.where(pair, optax.sigmoid_binary_cross_entropy(margin, 1.0), 0.0)
    right = jnp.sum((pair & (margin > 0)).astype(jnp.float32))
    clicks = jnp.sum((clicked & real).astype(jnp.float32))
    return {  # (value, weight); what is reported is sum of values / of weights
      'loss': (jnp.sum(each), count),
      'right_order': (right, count),
      'clicks': (clicks, 1.0),
    }


class PairsData(RANKING.data):
  """The data of the ranking task, which make another task."""

  def task(self, config, extensions=None):
    model = config.model.to_dict()
    return Pairs(
      model.pop('name'),
      model,
      config.loss.to_dict(),
      features=self.dataset.features,
      labels=self.dataset.labels,
      init_std=config.data.init_std,
      settings=config_lib.table_settings(config),
    )


KIND = dataclasses.replace(RANKING, data=PairsData)
EXTENSIONS = Extensions(task_kinds={'pairs': KIND})


def make_config(log: pathlib.Path):
  config = config_lib.ranking()
  config.task, config.model = 'pairs', config_lib.fm(dim=8)
  config.data.update(name='csv', path=str(log.parent), labels=('click',))
  config.data.files.train, config.data.init_std = log.name, 0.05
  config.optimizer.learning_rate = 1e-2
  config.train.update(steps=300, batch_size=256, eval_every=150, log_every=100)
  config.report.importance_rows = 0
  return config.lock()


def write_log(path: pathlib.Path) -> None:
  """Users click on items of their own kind."""
  rng = np.random.default_rng(0)
  user, item = rng.integers(0, 200, (2, 10_000))
  likes = np.where(user % 4 == item % 4, 0.9, 0.1)
  rows = zip(user, item, 1 * (rng.random(10_000) < likes), strict=True)
  lines = (f'user-{u},item-{i},{click}' for u, i, click in rows)
  path.write_text('\n'.join(['user,item,click', *lines]))


def main() -> None:
  with tempfile.TemporaryDirectory() as folder:
    log, workdir = pathlib.Path(folder, 'log.csv'), pathlib.Path(folder, 'run')
    write_log(log)
    kinds = add_to_kinds(TASK_KINDS, EXTENSIONS)
    report = train_and_evaluate(make_config(log), workdir, kinds, EXTENSIONS)
    lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  for row in map(json.loads, lines):
    if 'train/right_order' in row:
      print(
        f'step {row["step"]}: {row["train/right_order"]:.3f} in right order'
      )
  auc = report['metrics']['test']['auc']
  print(f'test AUC {auc:.3f}; of chance 0.500')
  assert auc > 0.75


if __name__ == '__main__':
  main()
