"""A student of ExFM on a generated stream that drifts: a small model, one pass.

  genrec train exfm_student_synthetic:dlrm --workdir=DIR

Alone, it is taught by the true probabilities of the stream, as if a teacher
made no error: the most that is to be gained. In a system of teacher and
students, `python -m genrec_jax.train.exfm` gives it parts with the teacher's
scores (data.stream.directory). --config.distill.method=none has no teacher.
See docs/exfm.md.

Variants: the models dlrm (the default), dcn, deepfm; smoke.
"""

from genrec_jax import config as config_lib

MODELS = {
  'dlrm': dict(dim=8, top=(32,)),
  'dcn': dict(dim=8, cross=1, hidden=(32,)),
  'deepfm': dict(dim=8, hidden=(32,)),
}


def get_config(arg=None):
  variants = config_lib.parse_variants(arg, one_of=tuple(MODELS))
  (model,) = variants - {'smoke'} or {'dlrm'}
  config = config_lib.ranking()
  config.model = getattr(config_lib, model)(**MODELS[model])
  config_lib.set_drifting_stream(config)
  # The true probability stands for the score, and every example has one.
  config.data.extras = {'teacher': {'kind': 'float', 'column': 'probability'}}
  config.distill.update(
    method='adapter',
    weight='',
    gradient_scale=4.0,
    adapter_gradient_scale=4.0,
    adapter_input='residual',
  )
  config.optimizer.learning_rate = 1e-3
  config.optimizer.rows.learning_rate = 5e-4
  return config_lib.ranking_smoke(config) if 'smoke' in variants else config
