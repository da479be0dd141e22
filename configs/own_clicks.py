"""Your own log of clicks, one row for each time something was shown.

  genrec train own_clicks:dlrm --workdir=DIR \\
    --config.data.path=clicks.csv --config.data.labels=click

Variants: the models lr, fm, dnn, deepfm, dlrm, dcn, finalmlp, wukong, and tbsm
for logs with histories; without one it is DeepFM. The label is 0 or 1. All
other columns are features, of kinds that their first rows suggest; name them
all with --config.data.features.price=numeric and so on to have others.
--config.data.group=user_id adds an AUC within each user. CSV or Parquet, as the
name of the file ends.

A tenth of the rows, drawn at random, tests and another validates. With a column
of times, hold the latest out instead: --config.data.time=shown_at
--config.data.split.by=time. The epoch with the least validation log loss
counts, and training stops when three were not better. If the model learns the
rows by heart, try --config.loss.table_l2=0.05. More: docs/ranking_data.md.
"""

from genrec_jax import config as config_lib

MODELS = (
  'lr', 'fm', 'dnn', 'deepfm', 'dlrm', 'dcn', 'finalmlp', 'tbsm', 'wukong',
)  # fmt: skip


def get_config(arg=None):
  variants = config_lib.parse_variants(arg, one_of=MODELS)
  models = variants - {'smoke'} or {'deepfm'}
  config = config_lib.ranking()
  config.data.init_std = 0.01
  config_lib.set_model(config, *models)
  config.data.name = 'csv'
  config.data.path = 'clicks.csv'
  config.data.split.by = 'random'
  config.data.numeric = 'standardize'  # columns of any scale
  config.optimizer.plateau_factor = 0.1
  config.train.epochs = 20
  config.train.patience = 3
  config.train.monitor = 'logloss'
  if models == {'tbsm'}:
    # It stands still for some epochs before it learns, at low rates for many.
    config.optimizer.plateau_factor = 1.0
    config.optimizer.learning_rate = 3e-3
    config.optimizer.rows.name = 'adam'
    config.optimizer.rows.learning_rate = 0.03
    config.train.update(batch_size=256, patience=6)
  return config_lib.ranking_smoke(config) if 'smoke' in variants else config
