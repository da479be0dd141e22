"""A generative ranker on the generated stream of MLPerf's DLRM-v3.

  genrec train gr_streaming --workdir=DIR

The stream comes step by step: a step is learned from, and the next one is
evaluated, whole, before anything of it is learned. Variants: `interleaved` (a
token for each action), `no_actions`, `stochastic` (long histories are cut), and
the ranking models over pooled histories, `dlrm` and `wukong`, which are told of
the same features.
"""

from genrec_jax import config as config_lib

MODELS = {'dlrm': config_lib.dlrm, 'wukong': config_lib.wukong}


def get_config(arg=None):
  variants = config_lib.parse_variants(
    arg,
    ('smoke', 'interleaved', 'no_actions', 'stochastic'),
    one_of=('stu', *MODELS),
  )
  config = config_lib.request_ranking()
  config.data.name, config.data.order = 'streaming', 'stream'
  config.data.streaming.users = 400
  config.data.max_history = 1024
  config.optimizer.rows.name = 'row_adagrad'
  for name in variants & MODELS.keys():
    config.model = config_lib.pool_history(MODELS[name]())
  for layout in variants & {'interleaved', 'no_actions'}:
    config.model.layout = layout
  if 'stochastic' in variants:
    config.data.stochastic_length.alpha = 1.8
  return config_lib.request_smoke(config) if 'smoke' in variants else config
