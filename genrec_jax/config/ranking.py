"""Every key of a ranking experiment; its models are in rankers.py."""

from ml_collections import ConfigDict

from genrec_jax.config import sections
from genrec_jax.config.rankers import wukong


def ranking() -> ConfigDict:
  """Every key of a ranking experiment, with its default."""
  return ConfigDict(
    {
      'task': 'ranking',
      'seed': 0,
      # 'module:NAME' of parts from outside the library, see docs/extending.md
      'extensions': '',
      'data': {
        # A key of `genrec_jax.data.ranking.datasets.DATASETS`; its keys
        # are told in docs/ranking_data.md.
        'name': 'clicks',
        'path': '',  # file or directory of the raw data
        'cache': '',  # where prepared blocks live; '' is <workdir>/data
        # Files of the parts, below `path` ('day_*' too); `split` cuts those
        # that have none from the training part.
        'files': {'train': '', 'valid': '', 'test': ''},
        'split': {
          'by': 'order',  # the last rows; or 'random'
          'valid_fraction': 0.1,
          'test_fraction': 0.1,
          'seed': 0,
        },
        'labels': ('label',),
        'group': '',  # column whose values group the examples, for gAUC
        # What blocks store beside features, see `data.ranking.annotations`.
        'time': '',  # column of the time
        'example_id': '',  # column of ids, or 'row': numbers of the rows
        'label_kinds': {},  # label -> 'float' where it is not 0 or 1
        'label_weights': {},  # label -> column of its weights
        # Name -> kind, or -> options of `data.extras.ExtraColumn`.
        'extras': {},
        # Feature -> options, see `data.ranking.schema.Column`; {} takes the
        # data set's own.
        'features': {},
        'min_count': 1,  # rarer values share the row of unseen ones
        'oov': 'row',  # 'hash', 'error'; what an unseen value becomes
        'hash_rows': 0,  # rows of unseen values for 'hash'
        'numeric': 'as_is',  # 'log', 'ln2', 'standardize'
        'delimiter': ',',
        'block_rows': 16_384,  # rows of a block on disk
        'shuffle_rows': 4_000_000,  # rows that are shuffled together
        # 'dense', or a name of embedding.row_optimizers: touched rows only
        'table_update': 'dense',
        'table_dtype': 'float32',  # 'bfloat16', 'float16' of such rows
        'init_std': 1e-4,
        'clicks': {  # the generated log
          'rows': 120_000,
          'fields': 12,
          'values': 200,
          'numbers': 3,
          'orders': (1, 2, 3, 4),  # of the planted interactions
          'terms': 12,  # of each order
          'noise': 0.5,  # deviation of what no feature explains
          'traits': 3,  # hidden signs of a value
          'signal': 2.0,  # deviation of the logit that features explain
          'zipf': 1.0,  # exponent of the frequencies
          'seed': 0,
        },
      },
      # (regex of tables, {key: value}) pairs: settings by table; the first
      # match counts. See docs/training.md.
      'tables': (),
      'model': wukong(),
      'loss': {
        'task_weights': (),  # of each label; () is 1 for all
        # (l/2)|E|^2 of whole tables in each step, not divided by the batch.
        'table_l2': 0.0,
      },
      'optimizer': sections.optimizer(name='adam', b2=0.999),
      'checkpoint': sections.checkpoint(),
      'numerics': sections.numerics(),
      'parallel': sections.parallel(),
      'train': sections.train(batch_size=1024, epochs=10, monitor='auc'),
      'eval': {
        'parts': ('valid', 'test'),
        'batch_size': 4096,
        # Score each training batch before learning from it: 'none', 'window'
        # (metrics between two log lines) or 'lifetime' (also since the start).
        'progressive': 'none',
      },
      'predict': {
        'input': '',  # file of examples; '': the test part
        'format': '',  # as data.name; '' is data.name
        # .csv, .parquet or .jsonl; '' is <workdir>/predictions.csv
        'output': '',
        'checkpoint': 'best',  # or 'latest'
      },
      'report': {
        'bins': 20,  # of the calibration curve
        'importance_rows': 20_000,  # examples for permuting; 0: none
        'importance_repeats': 3,
      },
    }
  )


def ranking_smoke(config: ConfigDict) -> ConfigDict:
  """Shrinks an experiment to seconds on two CPU cores, on generated data."""
  config.data.name = 'clicks'
  config.data.path = ''
  config.data.files.train = config.data.files.valid = ''
  config.data.files.test = ''
  config.data.labels = ('label',)
  config.data.features = ConfigDict()
  config.data.group = config.data.time = config.data.example_id = ''
  config.data.label_kinds = ConfigDict()
  config.data.label_weights = ConfigDict()
  config.data.extras = ConfigDict()
  config.data.clicks.update(rows=3_000, fields=6, values=20, numbers=2, terms=4)
  for key, value in config.model.items():
    if isinstance(value, tuple) and value and isinstance(value[0], int):
      with config.model.ignore_type():
        config.model[key] = (16,)
  if config.model.name == 'finalmlp':
    config.model.heads = 1  # must divide the widths
    config.model.context1 = config.model.context2 = ()  # of other data
  if config.model.name == 'wukong':
    config.model.important = ConfigDict()
    config.model.small = ConfigDict()
  config.train.batch_size = 128
  config.train.steps = 16
  config.train.patience = 0
  config.train.log_every = 4
  config.train.eval_every = 8
  config.train.checkpoint_every = 8
  config.train.nan_every = 4
  config.eval.batch_size = 512
  config.report.importance_rows = 200
  config.report.importance_repeats = 1
  return config
