"""DNAS on Frappe_x1: widths, depth and tables of the DLRM of configs/frappe.py.

  genrec search dnas_frappe --config.data.path=DIR/frappe --workdir=DIR/dnas
  genrec train dnas_frappe --config.data.path=DIR/frappe --workdir=DIR/dlrm
    (the hand-made model, no search)

Needs the files of configs/frappe.py, whose protocol this is. There are no
numbers, so that the MLP is that over interactions alone. What is found takes no
more than the hand-made model, 720,800 operations and 1,671,964 bytes; the
variant quarter asks for a quarter of both. A search takes half an hour on a
core; see docs/dnas.md.
"""

from genrec_jax import config as config_lib

# Of the hand-made model, without the running statistics of its norms.
FLOPS, BYTES = 720_800, 1_671_964


def get_config(arg=None):
  variants = config_lib.parse_variants(arg, one_of=('quarter',))
  config = config_lib.ranking()
  config.model = config_lib.dlrm(dim=10, interaction='cat', dropout=0.4)
  config.loss.table_l2 = 0.1
  config.data.update(name='frappe', path='data/frappe', train_unseen=0.0)
  config.data.files.train = 'train_rebuilt_negatives_resampled.csv'
  config.data.files.valid = 'Frappe_x1_valid.csv'
  config.data.files.test = 'Frappe_x1_test.csv'
  config.optimizer.learning_rate = 1e-3
  config.optimizer.clip_norm = 10.0
  config.optimizer.plateau_factor = 0.1
  config.train.update(batch_size=4096, epochs=100, patience=2)
  share = 0.25 if 'quarter' in variants else 1.0
  config.search.update(
    top=(50, 100, 200, 400), top_layers=3, dims=(2, 5, 10, 20),
    cost_loss='budget', max_flops=share * FLOPS, max_bytes=share * BYTES,
    optimizer='adam', learning_rate=0.02, epochs=20, warmup_epochs=3,
    budget_epochs=8.0, batch_size=1024, proposals=64,
  )  # fmt: skip
  if 'smoke' in variants:
    config = config_lib.ranking_smoke(config)
    config.model.dropout = 0.0  # it hides what few steps learn
    config.search.update(
      top=(4, 8), top_layers=2, dims=(2, 4), samples=2, epochs=0,
      batch_size=0, warmup_epochs=0, max_flops=0.0, max_bytes=0.0,
      cost_loss='linear', proposals=0,
    )  # fmt: skip
  return config
