"""A generative ranker on Yambda by the rules of MLPerf's DLRM-v4: listen+.

  genrec train gr_yambda --workdir=DIR --config.data.path=yambda/flat/50m

The events of a day are learned from, and the next day is evaluated before it
is; the last day tests. The target of the benchmark is an AUC of .75. Variants:
`interleaved` and `no_actions`, and the ranking models over pooled histories,
`dlrm` and `wukong`. `mlperf` has the rules of MLPerf Training's dlrm_v4_hstu,
as far as they are public: one pass in the order of time without a validation
day, Adam and row-wise Adagrad, arithmetic in bfloat16, and rates for its global
batch.
"""

from genrec_jax import config as config_lib

LAYOUTS, POOLED = ('interleaved', 'no_actions'), ('dlrm', 'wukong')
# Requests of a global batch, and the rate of dense parameters and of tables
# that goes with them. Rates are in proportion to the batch, within a factor of
# .5 to 1.5: another `train.batch_size` wants others.
MLPERF_BATCH, MLPERF_RATE = 8_192, 1e-6


def get_config(arg=None):
  variants = config_lib.parse_variants(
    arg,
    ('smoke', 'mlperf', *LAYOUTS),
    one_of=('stu', *POOLED),
    apart=(*LAYOUTS, *POOLED, 'mlperf'),
  )
  config = config_lib.request_ranking()
  config.data.name, config.data.path = 'yambda', 'yambda/flat/50m'
  config.data.order = 'stream'
  config.data.max_history, config.data.max_candidates = 1024, 32
  if 'mlperf' not in variants:
    config_lib.quicken_optimizer(config.optimizer)
  for name in variants & {'stu', *POOLED}:
    config_lib.set_model(config, name)
  for layout in variants & {*LAYOUTS}:
    config.model.layout = layout
  if config.model.name == 'stu':
    config.model.postprocessor = 'timestamp'
    if 'mlperf' not in variants:
      config_lib.quicken_stu(config.model)
  if 'mlperf' in variants:
    _follow_mlperf(config)
  return config_lib.request_smoke(config) if 'smoke' in variants else config


def _follow_mlperf(config):
  # The order of time, in one pass, and the last day held out. Of a request
  # there is one candidate, and its history is all that lies before it.
  config.data.order, config.train.shuffle = 'shuffled', False
  config.data.yambda.valid_s = 0
  config.eval.splits = ('test',)
  config.train.batch_size = MLPERF_BATCH
  config.model.dtype = 'bfloat16'
  config.optimizer.update(
    name='adam', learning_rate=MLPERF_RATE, b1=0.95, b2=0.999, eps=1e-8,
    clip_norm=1.0,
  )  # fmt: skip
  config.optimizer.rows.update(
    name='row_adagrad', learning_rate=MLPERF_RATE, eps=1e-8
  )
