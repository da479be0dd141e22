"""Your own log of what users were shown and did, for a generative ranker.

  genrec train own_requests --workdir=DIR --config.data.path=log.csv \\
    --config.data.log.user=user_id --config.data.log.item=video \\
    --config.data.log.time=shown_at --config.data.log.actions=click,like \\
    --config.data.log.labels=click

CSV or Parquet, as the name of the file ends. Every row is a candidate once and
an event of the user's history ever after. The latest tenth of the candidates
tests and the tenth before it validates. Variants: `interleaved` (a token for
each action), and the ranking models over pooled histories, `dlrm` and `wukong`.
All options are in docs/generative_ranking.md, "Your own log".
"""

from genrec_jax import config as config_lib

POOLED = ('dlrm', 'wukong')


def get_config(arg=None):
  variants = config_lib.parse_variants(
    arg,
    ('smoke', 'interleaved'),
    one_of=('stu', *POOLED),
    apart=('interleaved', *POOLED),
  )
  config = config_lib.request_ranking()
  config.data.name, config.data.path = 'csv', 'log.csv'
  config.data.max_history, config.data.max_candidates = 256, 32
  config.train.batch_size = 16
  config.train.epochs = 20
  config.train.patience = 3
  config_lib.quicken_optimizer(config.optimizer)
  for name in variants & {'stu', *POOLED}:
    config_lib.set_model(config, name)
  if 'interleaved' in variants:
    config.model.layout = 'interleaved'
  if config.model.name == 'stu':
    config_lib.quicken_stu(config.model)
  # What is known of a user counts from the first request on.
  reader = config.model if config.model.name == 'stu' else config.model.history
  reader.min_context_events = 0
  return config_lib.request_smoke(config) if 'smoke' in variants else config
