"""The experiment of configs/dmt_*_synthetic.py: clicks with planted blocks."""

from ml_collections import ConfigDict

from genrec_jax.config.files import parse_variants
from genrec_jax.config.ranking import ranking, ranking_smoke


def planted_blocks(model: ConfigDict, arg: str | None) -> ConfigDict:
  """Clicks of four blocks of fields, for a model that stands on four towers.

  Args:
    model: section of the model.
    arg: variants: 'flat' has no towers, 'smoke' takes seconds.
  """
  variants = parse_variants(arg, one_of=('flat',))
  config = ranking()
  config.model = model
  config.model.update(dim=16, towers='auto:4')
  config.data.clicks.update(
    rows=80_000, fields=16, blocks=4, values=30, numbers=0, orders=(2,),
    terms=64, traits=1,
  )  # fmt: skip
  config.data.init_std = 0.05
  config.data.train_unseen = 0.0  # the values of this log are all in training
  config.optimizer.rows.name = 'row_adagrad'
  config.optimizer.rows.learning_rate = 0.05
  config.train.update(batch_size=1024, epochs=8, log_every=50)
  if 'flat' in variants:
    config.model.towers = ''
  if 'smoke' in variants:
    config = ranking_smoke(config)
    config.data.clicks.update(fields=8, blocks=4, numbers=0, orders=(2,))
  return config
