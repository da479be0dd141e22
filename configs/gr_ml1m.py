"""A generative ranker on MovieLens: whether a user will like ten more films.

  genrec train gr_ml1m --workdir=DIR --config.data.path=ml-1m

The last ten ratings of a user test, the ten before validate, and those before
train, ten at a time, each with all ratings before as its history. Other
editions of MovieLens are read in the same way. Variants: `interleaved` and
`no_actions`, and the ranking models over pooled histories, `dlrm` and
`wukong`.
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
  config.data.name, config.data.path = 'movielens', 'ml-1m'
  config.data.max_history, config.data.max_candidates = 256, 10
  config.train.epochs = 10
  config.train.patience = 3
  config_lib.quicken_optimizer(config.optimizer)
  for name in variants & {'stu', *POOLED}:
    config_lib.set_model(config, name)
  if config.model.name == 'stu':
    config_lib.quicken_stu(config.model)
  for layout in variants & {*LAYOUTS}:
    config.model.layout = layout
  return config_lib.request_smoke(config) if 'smoke' in variants else config
