"""HSTU on the HSTU paper's synthetic stream, scaled down: under three minutes.

genrec train quickstart --workdir=/tmp/quick
"""

from genrec_jax import config as config_lib


def get_config(arg=None):
  variants = config_lib.parse_variants(arg)
  config = config_lib.retrieval()
  config.data.name = 'synthetic'
  config.data.synthetic.update(
    records=16_000, length=128, items=1_000, categories=100, per_record=5
  )
  config.split.name = 'stream'
  config.split.valid_fraction = 0.05
  config.split.test_fraction = 0.1
  config.model = config_lib.hstu(dim=48, dqk=48, dv=48, max_len=128)
  config.model.time_bias = False  # the stream has no clock
  config.eval.filter_seen = 'none'  # a record draws the same item again
  config.train.epochs = 1
  config.train.log_every = 10
  config.train.eval_every = 40
  config.train.checkpoint_every = 40
  return config_lib.smoke(config) if 'smoke' in variants else config
