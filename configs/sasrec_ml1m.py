"""SASRec on MovieLens-1M, the baseline of the HSTU paper.

  genrec train sasrec_ml1m \\
    --config.data.path=DIR/ml-1m --workdir=DIR/sasrec_ml1m

Needs: ratings.dat and movies.dat of the official ml-1m.zip. The protocol is the
published one: train on all but each user's last item, test on the last, rank
all 3,883 movies of the catalogue, 101 epochs, no validation. `:validated` holds
a validation item out too and reports the epoch that is best on it.
Published: HR@10 .2853, NDCG@10 .1603. Ours: see docs/results.md.
"""

from genrec_jax import config as config_lib


def get_config(arg=None):
  variants = config_lib.parse_variants(arg, ('smoke', 'validated'))
  config = config_lib.retrieval()
  config.data.name = 'ml1m'
  config.data.path = 'data/ml-1m'
  config.data.token_capacities = 0  # the shapes of the published runs
  config.split.holdout = 2 if 'validated' in variants else 1
  config.model = config_lib.sasrec()
  config.eval.miss_rank = 2501
  config.train.epochs = 101
  config.train.eval_every = 4 * 48
  config.train.checkpoint_every = 96
  return config_lib.smoke(config) if 'smoke' in variants else config
