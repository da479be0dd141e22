"""A generative ranker on KuaiRand: eight things a user may do with a video.

  genrec train gr_kuairand --workdir=DIR --config.data.path=KuaiRand-1K

The files are the published ones of KuaiRand-Pure, -1K or -27K. The last days
test, and those before validate. Variants: `interleaved` and `no_actions`, and
the ranking models over pooled histories, `dlrm` and `wukong`.
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
  config.data.name, config.data.path = 'kuairand', 'KuaiRand-1K'
  config.data.max_history, config.data.max_candidates = 512, 10
  config.train.batch_size = 16
  config.train.epochs = 3
  config.train.patience = 1
  config_lib.quicken_optimizer(config.optimizer)
  for name in variants & {'stu', *POOLED}:
    config_lib.set_model(config, name)
  for layout in variants & {*LAYOUTS}:
    config.model.layout = layout
  if config.model.name == 'stu':
    config_lib.quicken_stu(config.model)
    config.model.postprocessor = 'timestamp'
  return config_lib.request_smoke(config) if 'smoke' in variants else config
