"""Experiments of the ML-1M shape: on the real data where it is, else generated.

The real data is looked for in $GENREC_DATA/ml-1m (or $GENREC_DATA itself) and
in ../shared/data/ml-1m beside the checkout. The generated log has 6,040 users
whose numbers of events are distributed as in ML-1M, 3,883 items and times; it
costs a benchmark the same, and its metrics mean nothing.
"""

import os
import pathlib

import numpy as np
from ml_collections import ConfigDict

from genrec_jax import config as config_lib
from genrec_jax.data import convert, readers, vocab
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import experiment as experiment_lib

ROOT = pathlib.Path(__file__).parent.parent
USERS, ITEMS = 6_040, 3_883
# Share of the users of ML-1M with at most so many events.
LENGTHS = {
  0: 20, 0.05: 23, 0.1: 27, 0.15: 32, 0.2: 38, 0.25: 44, 0.3: 51, 0.35: 60,
  0.4: 70, 0.45: 81, 0.5: 96, 0.55: 109, 0.6: 126, 0.65: 148, 0.7: 173,
  0.75: 208, 0.8: 253, 0.85: 309, 0.9: 400, 0.95: 556, 0.97: 693, 0.98: 784,
  0.99: 907, 0.995: 1_045, 0.999: 1_343, 1: 2_314,
}  # fmt: skip
REAL = 'MovieLens-1M'
GENERATED = 'generated, lengths as in MovieLens-1M'


def find() -> pathlib.Path | None:
  """The directory of the official files, or None."""
  data = os.environ.get('GENREC_DATA')
  roots = [pathlib.Path(data)] if data else [ROOT.parent / 'shared' / 'data']
  for root in roots:
    for place in (root / 'ml-1m', root):
      if (place / 'ratings.dat').exists() and (place / 'movies.dat').exists():
        return place
  return None


def experiment(
  name: str, workdir: pathlib.Path, *, smoke: bool = False
) -> tuple[ConfigDict, experiment_lib.Experiment, str]:
  """Builds the experiment of `configs/<name>_ml1m.py`.

  Args:
    name: 'hstu', 'sasrec' or 'hstu_large'.
    workdir: where converted data goes.
    smoke: tiny model, tiny generated data.

  Returns:
    The config, the experiment, and what the data is, in words.
  """
  config = config_lib.load(str(ROOT / 'configs' / f'{name}_ml1m.py'))
  path = None if smoke else find()
  with config.unlocked():
    if smoke:
      _shrink(config)
    if path:
      config.data.path = str(path)
      config.data.cache = str(workdir)
    else:
      directory = workdir / 'generated'
      if not directory.exists():
        generate(directory, *((48, 60, 0.1) if smoke else (USERS, ITEMS, 1.0)))
      config.data.name, config.data.path = 'histories', str(directory)
  built = experiment_lib.build_experiment(
    config, workdir, TASK_KINDS, log=lambda line: None
  )
  return config, built, REAL if path else GENERATED


def generate(directory, users: int, items: int, scale: float = 1.0) -> None:
  """Converts a generated log, lengths `scale` times those of ML-1M."""
  rng = np.random.default_rng(0)
  share = rng.permutation((np.arange(users) + 0.5) / users)
  lengths = np.interp(share, list(LENGTHS), list(LENGTHS.values())) * scale
  lengths = np.maximum(3, lengths).astype(np.int64)
  total = int(lengths.sum())
  rank = np.exp(rng.random(total) * np.log(items + 1)).astype(np.int64)
  log = readers.Events(
    user=np.repeat(np.arange(1, users + 1), lengths),
    item=np.clip(rank, 1, items),
    time=rng.integers(956_000_000, 1_046_000_000, total),
  )
  write_log(log, directory, items)


def write_log(log: readers.Events, directory, items: int) -> None:
  """Converts a generated log of the items 1 .. items."""
  convert.convert_log(
    [log],
    directory,
    item_vocab=vocab.Vocab(np.arange(1, items + 1)),
    log=lambda line: None,
  )


def _shrink(config: ConfigDict) -> None:
  """A tiny model with every part of the large one."""
  config.model.dim = 8
  config.model.heads = 1
  config.model.blocks = 1
  config.model.max_len = 16
  for key in ('dqk', 'dv', 'ffn_dim'):
    if key in config.model:
      config.model[key] = 8
  config.loss.negatives = 4
  config.train.batch_size = 8  # always of the least capacity
  config.eval.ks = (1, 10)
  config.eval.batch_size = 16
  config.eval.batch_tokens = 128
