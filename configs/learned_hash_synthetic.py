"""Learned hash functions on generated clicks whose values are of eight kinds.

  genrec learn_hash learned_hash_synthetic --workdir=DIR
  genrec train learned_hash_synthetic --workdir=DIR2  (a row for each)

Each field has 2,000 values, and values of one kind are alike in everything: ten
rows would lose nothing. learn_hash finds out which values share one of 202
rows, and trains DLRM with that: two minutes a training on two cores.

Variants: hash, ordered and frequency are maps that nobody has to learn, with as
many rows. See docs/learned_hash.md.
"""

from genrec_jax import config as config_lib

VALUES, ROWS = 2_000, 202


def get_config(arg=None):
  maps = ('hash', 'ordered', 'frequency')
  variants = config_lib.parse_variants(arg, one_of=maps)
  config = config_lib.ranking()
  config.model = config_lib.dlrm()
  config.model.update(bottom=(32,), top=(64,))
  config.data.clicks.update(
    rows=200_000, fields=6, values=VALUES, numbers=2, orders=(1, 2), terms=10
  )
  config.data.init_std = 0.05
  config.optimizer.rows.name = 'adam'
  config.hash.update(rows=ROWS, dim=4, private=(0.0, 0.5))
  config.train.update(epochs=3, patience=1, monitor='logloss', batch_size=512)
  for name in set(maps) & variants:
    settings = {'id_map': name, 'rows': ROWS}
    if name == 'frequency':
      settings['private'] = ROWS // 2
    config.tables = (('c.*', settings), ('.*', {}))
  if 'smoke' in variants:
    config = config_lib.ranking_smoke(config)
    config.data.clicks.values = 60
    config.hash.rows = 20
    if config.tables:
      settings = dict(config.tables[0][1], rows=20)
      settings.update({'private': 10} if 'private' in settings else {})
      config.tables = (('c.*', settings), ('.*', {}))
  return config
