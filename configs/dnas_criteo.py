"""DNAS on Criteo Kaggle (arXiv 2110.14812): the spaces and rates of the paper.

  genrec search dnas_criteo:mlp --config.data.path=DIR --workdir=DIR/search
  genrec train dnas_criteo --config.data.path=DIR --workdir=DIR/dlrm
    (a DLRM of the paper's sizes, no search)

DIR holds train.txt of the Display Advertising Challenge. A variant is a space:
mlp (both MLPs, the default), emb_dim or emb_rows; the others stay as in the
paper. In mlp and emb_dim categories are hashed to 20,000 rows, as there. SGD
moves weights and choices, each by its own rate; the four models of a supernet
are trained with four rates each. Published: a log loss of .4442. No figure of
ours: the data are not at hand. See docs/dnas.md.
"""

from genrec_jax import config as config_lib

# Space -> (width of vectors, cost_weight).
SPACES = {'mlp': (32, 7e-4), 'emb_dim': (128, 3e-4), 'emb_rows': (32, 3e-4)}


def get_config(arg=None):
  variants = config_lib.parse_variants(arg, one_of=SPACES)
  space = next(iter(variants & set(SPACES)), 'mlp')
  dim, weight = SPACES[space]
  config = config_lib.ranking()
  config.model = config_lib.dlrm(dim=dim, interaction='dot', batch_norm=False)
  config.model.update(
    bottom=(1024, 1024, 1024), top=(1024, 1024, 1024), init='dlrm'
  )
  config.data.update(name='criteo', path='data/criteo', numeric='log')
  config.data.split.by = 'order'
  if space != 'emb_rows':
    hashed = {'vocabulary': 'hashed', 'hash_rows': 20_000}
    config.data.features.update({
      **{f'I{i}': {'kind': 'numeric'} for i in range(1, 14)},
      **{f'C{i}': {'kind': 'categorical', **hashed} for i in range(1, 27)},
    })  # fmt: skip
  config.optimizer.update(
    name='sgd', learning_rate=1.0, clip_norm=100.0,
    schedule='exponential', end_factor=0.9**6,  # 0.9 an epoch
  )  # fmt: skip
  config.train.update(batch_size=4096, epochs=6, monitor='logloss')
  config.search.update(
    spaces=(space,), top=(128, 256, 512, 1024), top_layers=5,
    bottom=(128, 256, 512, 1024), bottom_layers=5, dims=(8, 16, 32, 64, 128),
    row_shares=(1.0, 0.1, 0.01, 0.001), cost_weight=weight,
    cost='flops' if space == 'mlp' else 'parameters',
    epochs=5, batch_size=1024, optimizer='sgd', learning_rate=2e-3,
    samples=4, rates=(0.25, 0.5, 1.0, 2.0),
  )  # fmt: skip
  if 'smoke' in variants:
    config = config_lib.ranking_smoke(config)
    # SGD learns nothing in so few steps.
    config.optimizer.update(name='adam', learning_rate=0.01)
    config.search.update(
      top=(4, 8), top_layers=2, bottom=(4,), bottom_layers=1, dims=(2, 4),
      samples=1, rates=(), epochs=0, batch_size=0, warmup_epochs=0,
    )  # fmt: skip
  return config
