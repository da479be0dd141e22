"""Your own log of (user, item, time): copy this file, or override its keys.

  genrec train own_csv --workdir=DIR \\
    --config.data.path=events.csv --config.data.columns.user=user_id \\
    --config.data.columns.item=item_id --config.data.columns.time=timestamp

Parquet: --config.data.name=parquet. Splits by time: the last 10 % of the events
test, the 10 % before them validate, so that nothing is learned from the future.
Stops when validation NDCG@10 has not improved for five evaluations. Data
formats and options: docs/data.md; recommendations afterwards: docs/serving.md.
"""

from genrec_jax import config as config_lib


def get_config(arg=None):
  variants = config_lib.parse_variants(arg)
  config = config_lib.retrieval()
  config.data.name = 'csv'
  config.data.path = 'events.csv'
  config.split.name = 'global_time'
  config.split.windows = 'all'
  config.model = config_lib.hstu(dim=64, dqk=32, dv=32, heads=2)
  config.train.epochs = 100
  config.train.patience = 5
  config.eval.filter_seen = 'history'
  return config_lib.smoke(config) if 'smoke' in variants else config
