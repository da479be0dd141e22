"""HSTU on MovieLens-1M."""

from genrec_jax import config as config_lib


def get_config(arg=None):
  variants = config_lib.variants(arg, ('smoke', 'validated'))
  config = config_lib.retrieval()
  config.data.name = 'ml1m'
  config.data.path = 'data/ml-1m'
  config.split.holdout = 2 if 'validated' in variants else 1
  config.model = config_lib.hstu()
  config.eval.miss_rank = 2501
  config.train.epochs = 101
  config.train.checkpoint_every = 96
  return config_lib.smoke(config) if 'smoke' in variants else config
