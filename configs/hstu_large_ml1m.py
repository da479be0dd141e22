"""HSTU-large on MovieLens-1M: 8 layers, 2 heads of 25.

  genrec train hstu_large_ml1m \\
    --config.data.path=DIR/ml-1m --workdir=DIR/hstu_large_ml1m

Protocol and variants as in hstu_ml1m.py. Four times the cost of a step there:
about three hours on two CPU cores, so meant for a GPU. Published: HR@10 .3294,
NDCG@10 .1893. Ours: see docs/results.md.
"""

from genrec_jax import config as config_lib


def get_config(arg=None):
  variants = config_lib.parse_variants(arg, ('smoke', 'validated'))
  config = config_lib.retrieval()
  config.data.name = 'ml1m'
  config.data.path = 'data/ml-1m'
  config.data.token_capacities = 0  # the shapes of the published runs
  config.split.holdout = 2 if 'validated' in variants else 1
  config.model = config_lib.hstu(blocks=8, heads=2, dqk=25, dv=25)
  config.eval.miss_rank = 2501
  config.train.epochs = 101
  config.train.eval_every = 4 * 48
  config.train.checkpoint_every = 96
  return config_lib.smoke(config) if 'smoke' in variants else config
