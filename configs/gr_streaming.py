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
  # A test has up to 2,048 candidates a request, training 32.
  config.data.max_history, config.data.max_candidates = 1024, 256
  config_lib.quicken_optimizer(config.optimizer)
  rows = config.optimizer.rows
  rows.learning_rate = 0.4  # an item is met some fifty times in all
  # A dense layer that keeps its rate follows the share of likes of the last
  # step, which is not that of the next one; rows of new items must go on.
  config.optimizer.schedule, rows.schedule = 'linear', 'constant'
  config.train.batch_size, config.eval.batch_size = 8, 16
  config.train.checkpoint_every = 500  # a stream has one epoch
  for name in variants & {'stu', *POOLED}:
    config_lib.set_model(config, name)
  if config.model.name == 'stu':
    config_lib.quicken_stu(config.model)
    # Each step is learned from once, and evaluated before: nothing that dropout
    # could prevent is learned by heart.
    config.model.update(input_dropout=0.0, dropout=0.0)
    rows.learning_rate = 0.1  # moves rows by histories, too
  for layout in variants & {*LAYOUTS}:
    config.model.layout = layout
  if 'stochastic' in variants:
    config.data.stochastic_length.alpha = 1.8
  return config_lib.request_smoke(config) if 'smoke' in variants else config
