"""The config file of somebody who trained with an earlier version.

    --config=config.py:hstu      or sasrec, dlrm, wukong

The smallest model of each kind, made as a user makes it, by the functions of
`genrec_jax.config`. Whatever differs between two runs of one model is typed
behind the command; see kinds.py.
"""

from genrec_jax import config as config_lib


def get_config(arg=None):
  makers = {'hstu': _hstu, 'sasrec': _sasrec, 'dlrm': _dlrm, 'wukong': _wukong}
  config = makers[arg]()
  # Adam's first steps are the signs of gradients, also of those that are the
  # noise of rounding. With this, steps are smooth in gradients, and machines
  # that round otherwise come to nearly the same curve.
  config.optimizer.eps = config.optimizer.rows.eps = 1e-3
  config.train.steps = 9
  config.train.log_every = 3  # a checkpoint between two lines holds half a sum
  config.train.eval_every = 4
  config.train.checkpoint_every = 2
  config.train.keep_checkpoints = 1
  return config


def _hstu():
  config = _retrieval()
  config.model = config_lib.hstu(dim=8, blocks=1, dqk=8, dv=8, max_len=8)
  return config


def _sasrec():
  config = _retrieval()
  config.model = config_lib.sasrec(dim=8, blocks=1, ffn_dim=8, max_len=8)
  return config


def _retrieval():
  config = config_lib.retrieval()
  config.loss.negatives = 2
  config.train.batch_size = 4  # seven steps an epoch, the last is not full
  config.eval.ks = (1, 10)
  config.eval.batch_tokens = 256
  config.predict.top_k = 3
  config.report.users = 0
  return config


def _dlrm():
  config = _ranking()
  config.model = config_lib.dlrm(dim=4, bottom=(8,), top=(8,), batch_norm=True)
  return config


def _wukong():
  config = _ranking()
  config.model = config_lib.wukong(
    dim=4,
    layers=1,
    fmb=2,
    lcb=2,
    rank=2,
    compress=2,
    attention_hidden=(8,),
    fmb_hidden=(8,),
    fmb_batch_norm=True,
    bottom=(8,),
    top=(8,),
    top_batch_norm=True,
    dropout=0.2,
  )
  return config


def _ranking():
  config = config_lib.ranking()
  config.data.init_std = 0.05
  config.data.clicks.update(rows=120, fields=3, values=10, numbers=2, terms=2)
  config.train.batch_size = 16  # six steps an epoch
  config.eval.batch_size = 64
  config.report.importance_rows = 0
  return config
