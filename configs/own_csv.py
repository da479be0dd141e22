"""Your own log of (user, item, time): copy this file, or override its keys.

  genrec train own_csv:sasrec --workdir=DIR \\
    --config.data.path=events.csv --config.data.columns.user=user_id \\
    --config.data.columns.item=item_id --config.data.columns.time=timestamp

Variants: hstu (default), sasrec, and gsasrec (SASRec with the gBCE loss and
256 negatives, as in configs/gsasrec_ml1m.py). CSV or Parquet, as the name of
the file ends. Splits by time: the last 10 % of the events test, the 10 % before
them validate, so that nothing is learned from the future. Stops when validation
NDCG@10 has not improved for five evaluations. Data formats and options:
docs/data.md; recommendations afterwards: docs/serving.md.
"""

from genrec_jax import config as config_lib


def get_config(arg=None):
  models = ('hstu', 'sasrec', 'gsasrec')
  variants = config_lib.parse_variants(arg, one_of=models)
  config = config_lib.retrieval()
  config.data.name = 'csv'
  config.data.path = 'events.csv'
  config.split.name = 'global_time'
  config.split.windows = 'all'
  config.model = config_lib.hstu(dim=64, dqk=32, dv=32, heads=2)
  if variants & {'sasrec', 'gsasrec'}:
    config.model = config_lib.sasrec(dim=64, ffn_dim=64, heads=2)
  if 'gsasrec' in variants:
    config.loss.update(name='gbce', negatives=256, temperature=1.0)
    config.loss.update(l2_normalize=False, mask_collisions=False)
  config.train.epochs = 100
  config.train.patience = 5
  config.eval.filter_seen = 'history'
  return config_lib.smoke(config) if 'smoke' in variants else config
