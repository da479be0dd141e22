"""A small search, for tests of its parts."""

import numpy as np

from genrec_jax import config as config_lib
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import experiment as experiment_lib
from genrec_jax.train import search

STEPS = 14  # of an epoch: 11 and 3


def make_config(**changes):
  config = config_lib.ranking()
  config_lib.set_model(config, 'dlrm')
  config.model.update(dim=4, bottom=(4,), top=(4,), batch_norm=False)
  config.data.clicks.update(
    rows=1_500, fields=2, values=30, numbers=1, terms=2, orders=(1, 2)
  )
  config.data.init_std, config.data.train_unseen = 0.1, 0.0
  config.train.update(batch_size=90, epochs=2, log_every=1, monitor='logloss')
  config.search.update(
    spaces=('mlp', 'emb_dim', 'emb_rows'), top=(4, 8), top_layers=2,
    bottom=(4,), bottom_layers=1, dims=(2, 4), row_shares=(1.0, 0.3),
    tables='c0', optimizer='adam', learning_rate=0.1, warmup_epochs=0,
    samples=2,
  )  # fmt: skip
  for key, value in changes.items():
    config_lib.apply_override(config, f'{key}={value}')
  return config


def build(config, tmp_path):
  config = search.make_supernet_config(config)
  return config, experiment_lib.build_experiment(
    config, tmp_path, TASK_KINDS, lambda *_: None
  )


def list_moved(before, after):
  moved = []
  for name, old in before.items():
    if not np.array_equal(old, after[name]) and not name.startswith('sums/'):
      moved.append(name)
  return moved
