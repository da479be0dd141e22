"""The HSTU paper's synthetic stream (table 2) at 1/20 scale, one pass in order.

  genrec train synthetic_stream:hstu \\
    --workdir=DIR

Variants: `hstu` (default), `softmax` (HSTU with softmax attention), `sasrec`
(the Transformer). No relative bias in any of them, as in the paper's table.
50,000 records of 128 events (the paper: 1,000,000), its 20,000 items in 100
categories; the last 10 % of the records test. About five minutes on one CPU
core. All models and seeds: `python -m benchmarks.synthetic_stream`.
"""

from genrec_jax import config as config_lib


def get_config(arg=None):
  variants = config_lib.parse_variants(
    arg, ('smoke', 'hstu', 'softmax', 'sasrec')
  )
  config = config_lib.retrieval()
  config.data.name = 'synthetic'
  config.data.token_capacities = 0  # the shapes of the published runs
  config.data.synthetic.update(
    records=50_000, length=128, items=20_000, categories=100, per_record=5
  )
  config.split.name = 'stream'
  config.split.valid_fraction = 0.0
  config.split.test_fraction = 0.1
  if 'sasrec' in variants:
    config.model = config_lib.sasrec(dim=64, ffn_dim=64, heads=2, max_len=128)
  else:
    config.model = config_lib.hstu(
      dim=64, dqk=32, dv=32, heads=2, max_len=128, extra_positions=0
    )
    config.model.position_bias = False
    config.model.time_bias = False
    config.model.attention = 'softmax' if 'softmax' in variants else 'silu'
  config.model.dropout = 0.0
  config.model.embedding_dropout = 0.0
  config.eval.filter_seen = 'none'  # a record draws the same item again
  config.train.epochs = 1
  config.train.shuffle = False
  config.train.log_every = 25
  return config_lib.smoke(config) if 'smoke' in variants else config
