"""What teacher and students of ExFM have in common on the generated stream."""

from ml_collections import ConfigDict


def set_drifting_stream(config: ConfigDict) -> ConfigDict:
  """Trains a ranking model on the stream `drift`, in one pass and in its order.

  The last windows are left for evaluations.

  Args:
    config: of a ranking experiment, changed in place.
  """
  data = config.data
  data.name, data.time, data.example_id = 'drift', 'time', 'example_id'
  data.drift.update(
    windows=40, rows=50_000, segments=3, segment_zipf=0.0, fields=8
  )
  # Values are born all the time: those that the vocabularies lack share rows by
  # a hash.
  data.oov, data.hash_rows = 'hash', 4096
  data.train_unseen, data.init_std = 0.0, 0.01
  data.stream.pattern = '*.parquet'
  config.loss.prior = (data.drift.rate,)
  config.optimizer.rows.name = 'adam'
  config.train.update(batch_size=1024, epochs=1, shuffle=False, log_every=50)
  config.eval.progressive = 'window'
  config.report.importance_rows = 0
  return config
