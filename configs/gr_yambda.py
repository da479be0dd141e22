"""A generative ranker on Yambda by the rules of MLPerf's DLRM-v4: listen+.

  genrec train gr_yambda --workdir=DIR --config.data.path=yambda/flat/50m

The events of a day are learned from, and the next day is evaluated before it
is; the last day tests. The target of the benchmark is an AUC of .75. Variants:
`interleaved` and `no_actions`, and the ranking models over pooled histories,
`dlrm` and `wukong`.
"""

from genrec_jax import config as config_lib

LAYOUTS, POOLED = ('interleaved', 'no_actions'), ('dlrm', 'wukong')


def get_config(arg=None):
  variants = config_lib.parse_variants(
    arg,
    ('smoke', *LAYOUTS),
    one_of=('stu', *POOLED),
    apart=(*LAYOUTS, *POOLED),
  )
  config = config_lib.request_ranking()
  config.data.name, config.data.path = 'yambda', 'yambda/flat/50m'
  config.data.order = 'stream'
  config.data.max_history, config.data.max_candidates = 1024, 32
  config.optimizer.rows.name = 'row_adagrad'
  for name in variants & {'stu', *POOLED}:
    config_lib.set_model(config, name)
  for layout in variants & {*LAYOUTS}:
    config.model.layout = layout
  if config.model.name == 'stu':
    config.model.postprocessor = 'timestamp'
  return config_lib.request_smoke(config) if 'smoke' in variants else config
