"""`--mode=predict`: histories in, the best items for each user out.

Nothing here holds more than a batch of answers and the mapped histories, so a
file of any length is predicted for in constant memory.
"""

import contextlib
import logging
import os
import pathlib
from collections.abc import Callable, Iterator

import numpy as np

from genrec_jax import interruption
from genrec_jax.contracts import EvalRuntime, Extensions, Task
from genrec_jax.data import datasets, scratch
from genrec_jax.data.items import ItemCatalogue
from genrec_jax.features import PAD
from genrec_jax.parallel import job
from genrec_jax.serve import inputs, prediction_files, prediction_paths
from genrec_jax.serve.predictor import Predictor

LOG = logging.getLogger('genrec_jax')


def write_predictions(
  config,
  workdir: str | os.PathLike,
  extensions: Extensions | None = None,
  make_runtime: Callable[[Task], EvalRuntime] | None = None,
) -> dict:
  """Writes the top-k items of `config.predict.input` (see docs/serving.md).

  Args:
    config: the config of the run, its `predict` section filled in.
    workdir: of a trained run; nothing in it changes but `predictions.csv`.
    extensions: what is used from outside the library.
    make_runtime: of a task; where its weights shall lie. None is one device.

  Returns:
    {'output', 'users', 'rows', 'unknown_events', 'unknown_items',
    'users_without_known_items', 'users_without_unseen_items'}.
  """
  workdir, predict = pathlib.Path(workdir), config.predict
  source, output = prediction_paths.settle_paths(config, workdir)
  predictor = Predictor.load(
    workdir, config, predict.checkpoint, extensions, make_runtime
  )
  left_out = inputs.SkippedEvents()
  with contextlib.ExitStack() as stack:
    if predict.input:
      scratch = stack.enter_context(_scratch_directory(workdir / 'predict'))
      histories, left_out = inputs.read_input(config, predictor.items, scratch)
      left_out.log_skipped(source)
    else:
      histories = _training_users(config, workdir, predictor.items)
    if predict.request_time is None and config.model.get('time_bias'):
      LOG.info(
        "predict.request_time is not set: each user asks at the time of the "
        "user's last event. The metrics of a report are those of requests at "
        'the time of the next event, unless eval.request_time=last_event; '
        'set predict.request_time to the time of the request'
      )
    file, progress = stack.enter_context(
      prediction_paths.open_output(output, predict, len(histories), 'user')
    )
    done = written = satisfied = 0
    for answer in interruption.each(
      predictor.recommend_batches(
        histories, k=predict.top_k, request_time=predict.request_time
      )
    ):
      rows, empty = _format_rows(histories, predictor.items, *answer)
      file.write(rows)
      done += len(answer[0])
      written += len(rows.user)
      satisfied += empty
      progress.update(done)
  if satisfied:
    LOG.warning(
      '%s users have seen every item; they get none', f'{satisfied:,}'
    )
  LOG.info(
    '%s: %s recommendations for %s users',
    output,
    f'{written:,}',
    f'{done - satisfied:,}',
  )
  return {
    'output': str(output),
    'users': done - satisfied,
    'rows': written,
    'unknown_events': left_out.unknown,
    'unknown_items': list(left_out.unknown_items),
    'users_without_known_items': left_out.users,
    'users_without_unseen_items': satisfied,
  }


def _format_rows(histories, items: ItemCatalogue, users, top_items, scores):
  """One batch's answers with original ids, and how many users got none."""
  there = top_items != PAD
  counts = there.sum(axis=1)
  rank = np.broadcast_to(np.arange(1, top_items.shape[1] + 1), top_items.shape)[
    there
  ]
  titles = None
  if items.titles is not None:
    titles = [items.titles.get(i) or '' for i in top_items[there].tolist()]
  rows = prediction_files.Rows(
    user=np.repeat(histories.users.ids[users], counts),
    rank=rank.astype(np.int32),
    item=items.vocab.decode(top_items[there]),
    score=scores[there],
    title=titles,
  )
  return rows, int(np.sum(counts == 0))


def _training_users(config, workdir: pathlib.Path, items: ItemCatalogue):
  """The whole histories of the users the model was trained on."""
  cache = config.data.cache or workdir / 'data'
  with job.fail_together('reading the data', lead_first=True):
    dataset = datasets.load(config.data, cache, log=LOG.info)
  LOG.info('%s', dataset.summary())
  if dataset.histories.vocab != items.vocab:
    raise ValueError(
      f'the data of data.path ({config.data.path!r}) have other items than the '
      f'model of {workdir}; to predict for new data, give them as '
      '--config.predict.input'
    )
  return dataset.histories


@contextlib.contextmanager
def _scratch_directory(parent: pathlib.Path) -> Iterator[pathlib.Path]:
  """A directory to convert in; what killed predictions left is removed."""
  parent.mkdir(parents=True, exist_ok=True)
  try:
    with scratch.scratch_directory(parent) as directory:
      yield directory / 'histories'
  finally:
    with contextlib.suppress(OSError):  # another prediction is under way
      parent.rmdir()
