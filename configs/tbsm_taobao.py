"""TBSM on Taobao's user behaviour, with the settings of the published bench.

  genrec train tbsm_taobao --workdir=DIR --config.data.path=UserBehavior.csv

The file has 100 million rows, user, item, category, behaviour, time, in no
order; it is sorted at constant memory (data.taobao.memory_mb). By default users
of validation and test are in no other split, and negatives are never in the
user's history; --config.data.taobao.split=published divides as the published
preparation does, whose validation reads users that have been trained on.

Published, and nothing of ours: validation accuracy 88.8 % after about 42.8
thousand steps (README of the code), with split=published,
--config.model.relu_end=true and --config.model.projection_eps=0. On these data,
other papers report a test AUC from .8709 (an MLP) to .9179 (MIMN). The data are
not part of the library, and no figure here has been measured.

The table of users is there because the published model has one, and its
validation reads users that have trained. With the default split all users of
validation and test are new: each of them reads the one row of unseen users
(data.train_unseen), so that the table tells them apart no more, and
--config.model.leave_out="('user',)" does without it.

Variants: as of tbsm_synthetic. See docs/tbsm.md.
"""

from genrec_jax import config as config_lib


def get_config(arg=None):
  variants = config_lib.parse_variants(arg, one_of=config_lib.MECHANISMS)
  (mechanism,) = variants - {'smoke'} or {'def'}
  config = config_lib.ranking()
  # Sizes of bench/tbsm_bench.sh.
  config.model = config_lib.tbsm(mechanism=mechanism, dim=16, width=15)
  config.data.name, config.data.path = 'taobao', 'UserBehavior.csv'
  config.optimizer.name = 'adagrad'
  config.optimizer.learning_rate = 0.05
  config.optimizer.rows.name = 'adagrad'
  config.optimizer.rows.learning_rate = 0.05
  config.tables = (('.*', {'distribution': 'uniform_rows'}),)
  config.train.update(batch_size=256, epochs=1)
  return config_lib.ranking_smoke(config) if 'smoke' in variants else config
