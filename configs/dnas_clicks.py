"""DNAS on a generated click log: widths, depth and tables of a DLRM.

  genrec search dnas_clicks --workdir=DIR
  genrec train dnas_clicks --workdir=DIR2  (the hand-made model, no search)

The supernet is trained for six epochs, then four models that it proposes from
scratch; the best on validation is DIR/found/best.py, and DIR/search.html shows
how it was found. Variants: mlp, emb_dim and emb_rows search one space alone,
budget holds the model below 6,000 operations and 60,000 bytes; planted is a
small log of which all 192 models can be trained, two of its five features say
nothing, and a model has 300 operations at most; rows is a log of eight features
with 5,000 values, four of which say nothing, and bytes for half of all rows.
See docs/dnas.md.
"""

from genrec_jax import config as config_lib


def get_config(arg=None):
  spaces = ('mlp', 'emb_dim', 'emb_rows')
  variants = config_lib.parse_variants(
    arg, one_of=(*spaces, 'budget', 'planted', 'rows')
  )
  config = config_lib.ranking()
  config.model = config_lib.dlrm(dim=16, interaction='cat', batch_norm=False)
  config.model.update(bottom=(64,), top=(64, 64))
  config.data.init_std = 0.05
  config.data.clicks.update(rows=200_000, fields=12, values=200, terms=8)
  config.optimizer.learning_rate = 3e-3
  config.search.update(
    top=(16, 32, 64), top_layers=2, bottom=(16, 64), bottom_layers=1,
    dims=(2, 4, 8, 16), optimizer='adam', learning_rate=0.03, cost_weight=1.0,
  )  # fmt: skip
  own = [space for space in spaces if space in variants]
  config.search.spaces = tuple(own) or ('mlp', 'emb_dim')
  if 'budget' in variants:
    config.search.update(cost_loss='budget', max_flops=6e3, max_bytes=6e4)
  config.train.update(epochs=6, patience=2, monitor='logloss', batch_size=512)
  if 'planted' in variants:
    plant(config)
  if 'rows' in variants:
    take_many_values(config)
  if 'smoke' in variants:
    config = config_lib.ranking_smoke(config)
    config.search.update(
      top=(4, 8), top_layers=2, bottom=(4,), dims=(2, 4), samples=2,
      warmup_epochs=0, max_flops=0.0, max_bytes=0.0, cost_loss='linear',
    )  # fmt: skip
    config.model.dim = 4
  return config


def plant(config):
  """All models of the space can be trained in minutes (benchmarks/dnas.py)."""
  config.model.update(dim=4, top=(32, 32))
  config.data.clicks.update(
    rows=100_000, fields=5, silent=2, numbers=0, values=50, zipf=0.5,
    orders=(1, 2), terms=8, traits=2, signal=3.0,
  )  # fmt: skip
  config.optimizer.learning_rate = 0.01
  config.search.update(
    top=(8, 32), dims=(1, 4), cost_loss='budget', max_flops=300.0,
    budget_epochs=5.0,
  )  # fmt: skip
  config.train.update(epochs=10, patience=2)


def take_many_values(config):
  """Most of the model is rows, and half of them are of no use."""
  config.model.update(dim=8, top=(32,))
  config.data.clicks.update(
    rows=400_000, fields=8, silent=4, numbers=0, values=5_000, zipf=0.7,
    orders=(1, 2), terms=8, traits=2, signal=3.0,
  )  # fmt: skip
  config.search.update(
    spaces=('emb_rows',), row_shares=(1.0, 0.3, 0.1, 0.01),
    cost_loss='budget', max_bytes=7e5, budget_epochs=3.0,
  )  # fmt: skip
