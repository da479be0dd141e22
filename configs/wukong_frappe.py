"""Wukong on Frappe_x1.

  genrec train wukong_frappe \\
    --config.data.path=DIR/frappe --workdir=DIR/wukong_frappe

Needs the files of configs/frappe.py, whose protocol this is. Published test
AUC: .9868, without a configuration; ours, and how these settings were found:
docs/ranking_results.md.
"""

from genrec_jax import config as config_lib


def get_config(arg=None):
  others = ('lr', 'fm', 'dnn', 'deepfm', 'dlrm', 'dcn', 'finalmlp')
  variants = config_lib.parse_variants(
    arg, elsewhere={name: f'configs/frappe.py:{name}' for name in others}
  )
  config = config_lib.ranking()
  config.model = config_lib.wukong(
    dim=64,
    layers=1,
    attentive=False,
    norm_eps=1e-8,  # products of vectors that start at 0.01 are 1e-4
    fmb_hidden=(400,),
    fmb_batch_norm=True,
    dropout=0.4,
    embedding_dropout=0.2,
    top=(400,),
    top_batch_norm=True,
    top_dropout=0.4,
  )
  config.data.init_std = 0.01
  config.loss.table_l2 = 0.2
  config.data.name = 'frappe'
  config.data.path = 'data/frappe'
  config.data.train_unseen = 0.0  # as in the published runs
  config.data.files.train = 'train_rebuilt_negatives_resampled.csv'
  config.data.files.valid = 'Frappe_x1_valid.csv'
  config.data.files.test = 'Frappe_x1_test.csv'
  config.optimizer.clip_norm = 10.0
  config.optimizer.plateau_factor = 0.1
  config.train.batch_size = 4096
  config.train.epochs = 30
  config.train.patience = 2
  return config_lib.ranking_smoke(config) if 'smoke' in variants else config
