"""The teacher of ExFM on a generated stream that drifts: Wukong, in one pass.

  genrec train exfm_teacher_synthetic --workdir=DIR

trains on the first windows of the stream in their order and prints the NE of
each batch before it is learned from. In a system of teacher and students,
`python -m genrec_jax.train.exfm` gives it a growing directory of labelled parts
(data.stream.directory); it then leaves a checkpoint behind each of them, with
which the students' examples are scored. See docs/exfm.md.

Two million rows take about 50 core-seconds on a CPU. Variant: smoke.
"""

from genrec_jax import config as config_lib


def get_config(arg=None):
  variants = config_lib.parse_variants(arg)
  config = config_lib.ranking()
  config.model = config_lib.wukong(
    dim=16,
    layers=2,
    fmb=4,
    lcb=4,
    rank=8,
    compress=8,
    attention_hidden=(32,),
    fmb_hidden=(64,),
    top=(64,),
  )
  config_lib.set_drifting_stream(config)
  config.optimizer.learning_rate = 1e-3
  config.optimizer.rows.learning_rate = 1e-3
  return config_lib.ranking_smoke(config) if 'smoke' in variants else config
