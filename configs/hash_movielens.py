"""DLRM on MovieLens ratings with tables that ids share.

  genrec learn_hash hash_movielens --workdir=DIR --config.data.path=ml-1m
  genrec train hash_movielens --workdir=DIR2 --config.data.path=ml-1m

Download an edition from https://grouplens.org/datasets/movielens/ and give its
directory: ML-1M, ML-100K or ML-latest-small. A row is a rating, its label is 1
for four stars and more, and the last ratings of each user validate and test.
train has a row for each user and film; learn_hash finds out which of them share
one of a tenth of the rows, and trains DLRM with that.

Variants: hash, ordered and frequency are maps that nobody has to learn, with as
many rows for ML-1M as learn_hash gives there. See docs/learned_hash.md.
"""

from genrec_jax import config as config_lib

# A tenth of the ids of ML-1M in training, with those of padding and of unseen
# values.
ROWS = {'user': 605, 'item': 370}
SMOKE_ROWS = 20  # of tables of generated data


def get_config(arg=None):
  maps = ('hash', 'ordered', 'frequency')
  variants = config_lib.parse_variants(arg, one_of=maps)
  config = config_lib.ranking()
  config.model = config_lib.dlrm(dim=16)
  # As good as three layers of 400 here, and a twelfth of the time.
  config.model.update(bottom=(32,), top=(64,))
  config.data.name, config.data.path = 'movielens_ratings', 'ml-1m'
  config.data.time = 'time'
  config.data.init_std = 0.05
  config.optimizer.learning_rate = 1e-3
  config.optimizer.rows.name = 'adam'
  config.optimizer.rows.learning_rate = 1e-2
  config.hash.update(compression=10.0, tables='user|item')
  config.train.update(epochs=10, patience=2, monitor='logloss', batch_size=1024)
  sizes = ROWS
  if 'smoke' in variants:
    config = config_lib.ranking_smoke(config)
    sizes = dict.fromkeys(ROWS, SMOKE_ROWS)
  for name in set(maps) & variants:
    config.tables = (
      *((table, _choose_map(name, rows)) for table, rows in sizes.items()),
      ('.*', {}),
    )
  return config


def _choose_map(name: str, rows: int) -> dict:
  """Settings of a table; of 'frequency', half the rows are of one id alone."""
  private = {'private': rows // 2} if name == 'frequency' else {}
  return {'id_map': name, 'rows': rows} | private
