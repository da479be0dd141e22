"""Workdirs of runs with requests whose weights are those of the start."""

import pathlib

import numpy as np

from genrec_jax import config as config_lib
from genrec_jax.checkpoint import workdir
from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.runtime.state import flatten_state
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import experiment

USERS, RATINGS = 8, 30
# user -> [(time, film, stars), ...] in order; written in another one.
Log = dict[int, list[tuple[int, int, int]]]


def make_log() -> Log:
  """Ratings of few films; some are rated once, so that `min_count` counts."""
  rng = np.random.default_rng(3)
  log = {}
  for user in range(11, 11 + USERS):
    hours = np.sort(rng.choice(900, RATINGS, replace=False))
    times = 1_000_000_000 + hours * 3600
    films = rng.integers(1, 40, RATINGS)
    stars = rng.integers(1, 6, RATINGS)
    log[user] = list(
      zip(times.tolist(), films.tolist(), stars.tolist(), strict=True)
    )
  return log


def write_ratings(path: pathlib.Path, log: Log) -> None:
  lines = ['userId,movieId,rating,timestamp']
  for user, events in log.items():
    lines += [f'{user},{film},{stars},{time}' for time, film, stars in events]
  path.write_text('\n'.join(lines) + '\n')


def make_config(**data):
  """A tiny generative ranker; `data` are keys of `config.data`."""
  config = config_lib.request_smoke(config_lib.request_ranking())
  config.model.update(
    dim=8, blocks=1, dqk=4, dv=4, token_hidden=8, head_hidden=8
  )
  config.data.update(max_history=32, max_candidates=4, **data)
  config.eval.batch_size = 8
  return config


def start_run(config, directory: pathlib.Path):
  """(config, workdir) with a checkpoint of fresh weights."""
  workdir.claim_workdir(directory, config.lock())
  found = experiment.build_experiment(
    config, directory, TASK_KINDS, log=lambda *_: None
  )
  found.data.save_for_predicting(directory)
  with CheckpointManager(
    directory / 'checkpoints', log=lambda *_: None
  ) as saved:
    saved.save(1, flatten_state(found.runtime.fresh_state()))
  return config, directory
