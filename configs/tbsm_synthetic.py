"""TBSM on a generated stream whose clicks depend on when users did what.

  genrec train tbsm_synthetic --workdir=DIR
  genrec train tbsm_synthetic:gru --workdir=DIR

A row is a user's last 20 events, each an item, its category and its age, a
candidate, and whether it was clicked. The logit has four parts: interest that
decays, interest that comes back each day, the order of events, and taste
(docs/ranking_data.md). The true probabilities are known, so the report of
benchmarks/tbsm.py says what no model can beat.

Variants: mechanisms of TBSM ind, def (the default), dot; baselines over the
same tower mean, concat, attention, gru, lstm, din; smoke. See docs/tbsm.md.
"""

from genrec_jax import config as config_lib


def get_config(arg=None):
  variants = config_lib.parse_variants(arg, one_of=config_lib.MECHANISMS)
  (mechanism,) = variants - {'smoke'} or {'def'}
  config = config_lib.ranking()
  config.model = config_lib.tbsm(
    mechanism=mechanism, interaction='cat', top=(32,), width=16, bottom=(16,)
  )
  config.data.name = 'interests'
  # Users of the test split are in no other: their rows are not trained.
  config.model.leave_out = ('user',)
  config.data.init_std = 0.05
  # Models stand still for epochs, at lower rates for many (patience).
  config.optimizer.learning_rate = 3e-3
  config.optimizer.rows.name = 'adam'
  config.optimizer.rows.learning_rate = 0.03
  config.train.update(batch_size=512, epochs=30, patience=6, monitor='logloss')
  return config_lib.ranking_smoke(config) if 'smoke' in variants else config
