"""The models for ranking on Frappe_x1, in the published protocol.

  genrec train frappe:deepfm \\
    --config.data.path=DIR/frappe --workdir=DIR/frappe_deepfm

Needs: train, validation and test CSV of BARS' Frappe_x1, see `data.files`. The
variants are lr, fm, dnn, deepfm, dlrm, dcn, finalmlp; without one it is DeepFM.
The protocol is FuxiCTR's: Adam, dense L2 on the tables, gradients clipped to a
norm of 10, rates times 0.1 after each epoch that is not better on validation,
the end after two of them, test AUC of the best. Minutes on two CPU cores.
Settings of deepfm, dlrm and finalmlp are those of BARS, the others ours.
Published figures and ours: docs/ranking_results.md. Wukong:
configs/wukong_frappe.py.
"""

from genrec_jax import config as config_lib

FIELDS = (
  'user', 'item', 'daytime', 'weekday', 'isweekend', 'homework', 'cost',
  'weather', 'country', 'city',
)  # fmt: skip
# Model -> (its section, loss.table_l2).
MODELS = {
  'lr': (config_lib.lr(), 1e-5),
  'fm': (config_lib.fm(dim=10), 1e-5),
  'dnn': (config_lib.dnn(dim=10, dropout=0.2), 0.05),
  'deepfm': (config_lib.deepfm(dim=10, dropout=0.2), 0.05),
  'dlrm': (config_lib.dlrm(dim=10, interaction='cat', dropout=0.4), 0.1),
  'dcn': (config_lib.dcn(dim=10, cross=4, dropout=0.4), 0.05),
  'finalmlp': (
    config_lib.finalmlp(dim=10, context1=('user',), context2=('item',)),
    0.05,
  ),
}


def get_config(arg=None):
  variants = config_lib.parse_variants(
    arg, one_of=MODELS, elsewhere={'wukong': 'configs/wukong_frappe.py'}
  )
  models = variants - {'smoke'} or {'deepfm'}
  config = config_lib.ranking()
  config.model, config.loss.table_l2 = MODELS[models.pop()]
  return finish(config, 'smoke' in variants)


def finish(config, smoke: bool):
  """Data and protocol, the same for all models."""
  config.data.name = 'frappe'
  config.data.path = 'data/frappe'
  config.data.train_unseen = 0.0  # as in the published runs
  config.data.files.train = 'train_rebuilt_negatives_resampled.csv'
  config.data.files.valid = 'Frappe_x1_valid.csv'
  config.data.files.test = 'Frappe_x1_test.csv'
  config.optimizer.learning_rate = 1e-3
  config.optimizer.clip_norm = 10.0
  config.optimizer.plateau_factor = 0.1
  config.train.batch_size = 4096
  config.train.epochs = 100
  config.train.patience = 2
  return config_lib.ranking_smoke(config) if smoke else config
