"""Learned hash functions on a generated stream whose values are born and die.

  genrec learn_hash learned_hash_drift --workdir=DIR
  genrec train learned_hash_drift --workdir=DIR2  (a row for each)

One pass over 19 windows of 50,000 impressions; the last five of 24 validate and
test. Each field has 2,000 values at a time, of which a fiftieth is born anew in
each window. Every other window, learn_hash makes the maps of what had been seen
by then, and rows move to the new maps. --config.hash.renew_every says how
often, in steps of 1,000 rows; with 2000 the first maps, which know nothing,
stay. See docs/learned_hash.md.
"""

from genrec_jax import config as config_lib


def get_config(arg=None):
  variants = config_lib.parse_variants(arg)
  config = config_lib.ranking()
  config.model = config_lib.dlrm(dim=16)
  config.model.update(bottom=(32,), top=(64,))
  config_lib.set_drifting_stream(config)
  config.data.drift.update(
    windows=24, rows=50_000, segments=1, fields=6, values=2_000, reborn=0.02,
    half_life=24.0, pairs=4, rate=0.1,
  )  # fmt: skip
  config.data.hash_rows, config.data.init_std = 64, 0.05
  config.loss.prior = (config.data.drift.rate,)
  config.optimizer.learning_rate = 1e-3
  config.optimizer.rows.learning_rate = 3e-3
  config.hash.update(
    compression=10.0, tables='c.*', private=(0.5,), reserved=16, renew_every=100
  )
  # A window is 50 steps, and has a line of metrics.
  config.train.update(batch_size=1000, checkpoint_every=100)
  if 'smoke' in variants:
    config = config_lib.ranking_smoke(config)
    config.data.drift.update(windows=6, values=60)
    config.hash.update(renew_every=4, reserved=4)
  return config
