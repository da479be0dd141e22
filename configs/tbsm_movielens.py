"""TBSM on MovieLens as clicks: a film is the user's next one, or any other.

  genrec train tbsm_movielens --workdir=DIR --config.data.path=ml-100k

Download an edition from https://grouplens.org/datasets/movielens/ and give its
directory: ML-100K, ML-latest-small or ML-1M. A row is the last 20 films that a
user has rated, with their rarest genres and ages, and a candidate: the next
film, or with probability 1/2 one that the user never rates. Users are in one
split each. ML-1M is read in its own order; its times are not those of watching.
Random films make popularity a strong feature, and the log tells how strong.

Variants: as of tbsm_synthetic. See docs/tbsm.md.
"""

from genrec_jax import config as config_lib


def get_config(arg=None):
  variants = config_lib.parse_variants(arg, one_of=config_lib.MECHANISMS)
  (mechanism,) = variants - {'smoke'} or {'def'}
  config = config_lib.ranking()
  config.model = config_lib.tbsm(
    mechanism=mechanism, interaction='cat', top=(32,), width=16, bottom=(16,)
  )
  config.data.name, config.data.path = 'movielens_clicks', 'ml-100k'
  config.data.group = 'user'
  config.model.leave_out = ('user',)
  config.data.init_std = 0.05
  # Models stand still for epochs, at lower rates for many (patience).
  config.optimizer.learning_rate = 3e-3
  config.optimizer.rows.name = 'adam'
  config.optimizer.rows.learning_rate = 0.03
  config.train.update(batch_size=512, epochs=30, patience=8, monitor='logloss')
  return config_lib.ranking_smoke(config) if 'smoke' in variants else config
