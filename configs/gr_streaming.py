"""A generative ranker on the generated stream of MLPerf's DLRM-v3.

  genrec train gr_streaming --workdir=DIR

The stream comes step by step: a step is learned from, and the next one is
evaluated, whole, before anything of it is learned. Variants: `interleaved` (a
token for each action), `no_actions`, `stochastic` (long histories are cut), and
the ranking models over pooled histories, `dlrm` and `wukong`, which are told of
the same features.
"""

from genrec_jax import config as config_lib

LAYOUTS, POOLED = ('interleaved', 'no_actions'), ('dlrm', 'wukong')


def get_config(arg=None):
  variants = config_lib.parse_variants(
    arg,
    ('smoke', 'stochastic', *LAYOUTS),
    one_of=('stu', *POOLED),
    apart=(*LAYOUTS, *POOLED),
  )
  config = config_lib.request_ranking()
  config.data.name, config.data.order = 'streaming', 'stream'
  config.data.streaming.users = 400
  config.data.max_history = 1024
  config.optimizer.rows.name = 'row_adagrad'
  for name in variants & {'stu', *POOLED}:
    config_lib.set_model(config, name)
  for layout in variants & {*LAYOUTS}:
    config.model.layout = layout
  if 'stochastic' in variants:
    config.data.stochastic_length.alpha = 1.8
  return config_lib.request_smoke(config) if 'smoke' in variants else config
