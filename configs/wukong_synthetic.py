"""Wukong on a generated click log with planted interactions: two minutes.

genrec train wukong_synthetic --workdir=wukong
"""

from genrec_jax import config as config_lib


def get_config(arg=None):
  variants = config_lib.parse_variants(arg)
  config = config_lib.ranking()
  config.model = config_lib.wukong(norm_eps=1e-8)
  config.data.init_std = 0.05
  config.data.train_unseen = 0.0  # the values of this log are all in training
  config.train.epochs = 3
  config.train.log_every = 20
  return config_lib.ranking_smoke(config) if 'smoke' in variants else config
