"""A generative ranker on Yambda by the rules of MLPerf's DLRM-v4: listen+.

  genrec train gr_yambda --workdir=DIR --config.data.path=yambda/flat/50m

The events of a day are learned from, and the next day is evaluated before it
is; the last day tests. The target of the benchmark is an AUC of .75. Variants:
`interleaved` and `no_actions`, and the ranking models over pooled histories,
`dlrm` and `wukong`.
"""

from genrec_jax import config as config_lib

MODELS = {'dlrm': config_lib.dlrm, 'wukong': config_lib.wukong}


def get_config(arg=None):
  variants = config_lib.parse_variants(
    arg, ('smoke', 'interleaved', 'no_actions'), one_of=('stu', *MODELS)
  )
  config = config_lib.request_ranking()
  config.data.name, config.data.path = 'yambda', 'yambda/flat/50m'
  config.data.order = 'stream'
  config.data.max_history, config.data.max_candidates = 1024, 32
  config.model.postprocessor = 'timestamp'
  config.optimizer.rows.name = 'row_adagrad'
  for name in variants & MODELS.keys():
    config.model = config_lib.pool_history(MODELS[name]())
  for layout in variants & {'interleaved', 'no_actions'}:
    config.model.layout = layout
  return config_lib.request_smoke(config) if 'smoke' in variants else config
