"""Training that never ends: part files of events are learned as they appear.

  genrec train growing_directory \\
    --config.data.path=yesterday.csv --config.data.stream.directory=parts/ \\
    --workdir=DIR

`data.path` gives the vocabulary and the evaluation; `data.stream.directory` is
watched for `*.csv` parts with the same columns (write under another name, then
rename). Killed and started again it continues with the very next batch. Ends at
train.steps, on SIGTERM, or after data.stream.idle_s seconds without a new part.
"""

from genrec_jax import config as config_lib


def get_config(arg=None):
  variants = config_lib.parse_variants(arg)
  config = config_lib.retrieval()
  config.data.name = 'csv'
  config.data.path = 'events.csv'
  config.data.unknown_items = 'skip'
  config.data.stream.directory = 'parts'
  config.model = config_lib.hstu(dim=64, dqk=32, dv=32, heads=2)
  config.train.steps = 1_000_000
  config.train.eval_every = 1_000
  config.train.checkpoint_every = 200
  config.eval.filter_seen = 'history'
  return config_lib.smoke(config) if 'smoke' in variants else config
