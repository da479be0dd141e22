"""`--mode=predict` of a run with requests: candidates in, scores out.

Nothing here holds more than a block of candidates and the mapped histories, so
that a file of any length is scored in constant memory.
"""

import logging
import os
import pathlib
from collections.abc import Callable, Iterator

import numpy as np

from genrec_jax import interruption
from genrec_jax.config import ConfigError, request_models
from genrec_jax.contracts import EvalRuntime, Extensions, Task
from genrec_jax.data.requests import prepared, request_files
from genrec_jax.data.requests.requests import RequestDataset, Requests
from genrec_jax.parallel import job
from genrec_jax.serve import (
  cached_scorer,
  prediction_files,
  prediction_paths,
)
from genrec_jax.serve.prediction_files import CandidateScores
from genrec_jax.serve.request_inputs import CandidateFile
from genrec_jax.serve.request_scorer import RequestScorer

LOG = logging.getLogger('genrec_jax')
Score = Callable[[RequestDataset, Requests], Iterator[np.ndarray]]
_OURS = ('request', 'user', 'step', 'time')  # columns of predictions
_COUNTED = (
  'unknown_items',
  'unknown_values',
  'unknown_features',
  'unknown_users',
  'without_history',
)


def write_request_scores(
  config,
  workdir: str | os.PathLike,
  extensions: Extensions | None = None,
  make_runtime: Callable[[Task], EvalRuntime] | None = None,
) -> dict:
  """Scores `config.predict.input`, or the test split where it is ''.

  Args:
    config: the config of the run, its `predict` section filled in.
    workdir: of a trained run; nothing in it changes but `predictions.csv`.
    extensions: what is used from outside the library.
    make_runtime: of a task; where its weights shall lie. None is one device.

  Returns:
    {'output', 'rows', 'requests'}, and how many candidates a file has of
    'unknown_items', with 'unknown_values' of other features or with
    'unknown_features' of known items, of 'unknown_users', and of others
    'without_history'.
  """
  workdir, predict = pathlib.Path(workdir), config.predict
  source, output = prediction_paths.settle_paths(config, workdir)
  scorer = RequestScorer.load(
    workdir, config, predict.checkpoint, extensions, make_runtime
  )
  score, describe = _choose_way(config, scorer, make_runtime)
  dataset = _load_data(config, workdir, extensions)
  file = None
  if source:
    limit = config.data.max_history
    file = CandidateFile(
      source,
      predict,
      dataset,
      scorer.values,
      limit,
      request_models.reads_oldest(config.model),
      prepared.find_time_unit(config.data),
      {'request', *prediction_files.name_scores(scorer.labels)},
    )
    _refuse_own_names(file, scorer)
    made, total = _score_file(scorer, file, score), None
  else:
    split = dataset.splits.get('test')
    if split is None:
      raise ValueError(
        'these data have no test split; give candidates as '
        '--config.predict.input'
      )
    _warn_of_unknown(scorer, split)
    made = _score_split(scorer, dataset, split, score)
    total = split.candidates
  done = 0
  with prediction_paths.open_output(output, predict, total, 'candidate') as (
    written,
    progress,
  ):
    for rows in interruption.each(made):
      written.write(rows)
      done += len(rows.request)
      progress.update(done)
  LOG.info('%s: scores of %s candidates', output, f'{done:,}')
  if told := describe():
    LOG.info('%s', told)
  counts = dict.fromkeys(_COUNTED, 0)
  if file is None:
    empty = int(np.sum(np.diff(split.offsets) == 0))
    if empty:
      LOG.warning(
        '%s requests of the test split have no candidates, and no rows',
        f'{empty:,}',
      )
    count = len(split)
  else:
    file.tally.tell(source)
    count = file.tally.requests
    counts = {name: getattr(file.tally, name) for name in counts}
  return {'output': str(output), 'rows': done, 'requests': count, **counts}


def _load_data(
  config, workdir: pathlib.Path, extensions: Extensions | None
) -> RequestDataset:
  with job.fail_together('reading the data', lead_first=True):
    dataset = prepared.load(
      config.data,
      config.data.cache or workdir / 'data',
      LOG.info,
      extensions.request_sets if extensions else None,
    )
  LOG.info(dataset.summary())
  trained = request_files.read_fingerprint(workdir / 'requests')
  if dataset.fingerprint() != trained:
    raise ValueError(
      f'{workdir} was trained on other data than config.data '
      f'({config.data.name!r}, {config.data.path!r}) gives now; put them back, '
      'for they have the histories'
    )
  return dataset


def _warn_of_unknown(scorer: RequestScorer, split) -> None:
  """Says which candidates of a split have no id in the predictions."""
  item = scorer.spec.items[0].name
  unknown = split.items[item] == scorer.values[item].unknown_row
  if unknown.any():
    LOG.warning(
      '%s of %s candidates of the test split are of items that training does '
      'not know: their column %r is empty in the predictions; rows given as '
      '--config.predict.input keep their ids',
      f'{int(unknown.sum()):,}',
      f'{split.candidates:,}',
      item,
    )


def _choose_way(
  config, scorer: RequestScorer, make_runtime
) -> tuple[Score, Callable[[], str]]:
  """How requests are scored, and what tells the worth of a cache."""
  size = config.predict.get('cache_mb', 0.0)
  if not size:
    room = (0, 0)

    def score_whole(dataset, requests):
      # It only grows: each room is a program to compile.
      nonlocal room
      more = scorer.find_room(dataset, requests)
      room = tuple(map(max, room, more))
      return scorer.score_requests(dataset, requests, room=room)

    return score_whole, str
  if make_runtime is not None:
    raise ConfigError(
      f'predict.cache_mb={size}: histories are kept on one device; leave out '
      'the mesh (parallel.hosts, parallel.devices), or the cache'
    )
  options = cached_scorer.CacheOptions(device_bytes=size * 1e6)
  try:
    cached = cached_scorer.CachedScorer(scorer, options)
  except ValueError as e:
    raise ConfigError(f'predict.cache_mb={size}: {e}') from None

  def describe() -> str:
    work, counts = cached.work, cached.cache.counts
    return (
      f'predict.cache_mb: of {work.requests:,} requests, {counts.hits:,} found '
      f'their history kept; {work.kept:,} histories were computed as a whole, '
      f'{work.extended_events:,} events were added'
    )

  return cached.score_requests, describe


def _score_split(
  scorer: RequestScorer, dataset: RequestDataset, split, score: Score
) -> Iterator[CandidateScores]:
  done, taken = 0, {*_OURS, *prediction_files.name_scores(scorer.labels)}
  names = {
    f.name: f'item_{f.name}' if f.name in taken else f.name
    for f in scorer.spec.candidate_features
  }
  taken |= {*names.values()}
  asked_with = {
    name: f'request_{name}' if name in taken else name for name in split.context
  }
  for scores in score(dataset, split):
    some = slice(done, done + len(scores))
    at = np.arange(some.start, some.stop)
    request = np.searchsorted(split.offsets, at, 'right') - 1
    users = dataset.user_ids[split.user[request]]
    named = {'user': users}
    for name in ('step', 'time'):
      if (column := getattr(split, name)) is not None:
        named[name] = column[request]
    for name, column in asked_with.items():
      rows = split.context[name][request]
      named[column] = scorer.values[name].decode(rows)
    for name, column in names.items():
      named[column] = scorer.values[name].decode(split.items[name][some])
    yield CandidateScores(request + 1, named, scorer.labels, scores)
    done += len(scores)


def _score_file(
  scorer: RequestScorer, file: CandidateFile, score: Score
) -> Iterator[CandidateScores]:
  for block in file.read():
    scores = np.concatenate(list(score(file.dataset, block.requests)))
    yield CandidateScores(block.number, block.named, scorer.labels, scores)


def _refuse_own_names(file: CandidateFile, scorer: RequestScorer) -> None:
  ours = {'request', *prediction_files.name_scores(scorer.labels)}
  for name in file.columns:
    if name in ours:
      raise ValueError(
        f'the predictions have a column {name!r} of their own; rename the one '
        'of predict.input'
      )
