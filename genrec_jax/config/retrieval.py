"""Every key of a retrieval experiment, and of its models."""

from ml_collections import ConfigDict

from genrec_jax.config import sections


def retrieval() -> ConfigDict:
  """Every key of a retrieval experiment, with its default."""
  return ConfigDict(
    {
      'task': 'retrieval',
      'seed': 0,
      # 'module:NAME' of parts from outside the library, see docs/extending.md
      'extensions': '',
      'data': {
        # A key of `genrec_jax.data.datasets.DATASETS`; see docs/data.md.
        'name': 'synthetic',
        'path': '',  # file or directory of the raw data
        'cache': '',  # where converted columns live; '' is <workdir>/data
        'columns': {
          'user': 'user',
          'item': 'item',
          'time': 'time',
          'rating': '',
        },
        # Columns to keep beside those: name -> kind, or -> options of
        # `data.extras.ExtraColumn`.
        'extras': {},
        'min_rating': None,  # keep events rated at least this
        'min_item_events': 0,
        'min_user_events': 0,
        'ids': 'auto',  # or 'int', 'str'
        'time_unit': 's',
        'delimiter': ',',
        'item_vocab': '',  # a saved vocabulary to apply
        'unknown_items': 'error',  # or 'skip'
        'titles': '',  # CSV with columns item,title, for reports
        # Train on part files as they appear; the data above gives vocabulary
        # and evaluation. Needs train.steps, eval_every, checkpoint_every.
        'stream': {
          'directory': '',
          'pattern': '*.csv',
          'poll_s': 5.0,
          'idle_s': None,  # end after so many seconds without a new part
        },
        # 'dense', or a name of embedding.row_optimizers: touched rows only
        'table_update': 'dense',
        'table_dtype': 'float32',  # 'bfloat16', 'float16' of such rows
        'init_std': 0.02,
        'synthetic': {
          'records': 20_000,
          'length': 128,
          'items': 4_000,
          'categories': 100,
          'per_record': 5,
          'seed': 0,
        },
      },
      'split': {
        'name': 'leave_last_out',  # or 'global_time', 'stream'
        'holdout': 2,  # 2: validation and test item; 1: test item only
        'windows': 'latest',  # or 'all': older tokens too
        'valid_from': 0.8,  # global_time: timestamp, or share of the events
        'test_from': 0.9,
        'target': 'last',  # global_time: 'last', 'first' or 'all'
        'valid_fraction': 0.05,  # stream
        'test_fraction': 0.1,  # stream
      },
      # (regex of tables, {key: value}) pairs: settings by table; the first
      # match counts. See docs/training.md.
      'tables': (),
      'model': hstu(),
      'loss': {
        'name': 'sampled_softmax',  # 'full_softmax', 'bce', 'gbce'
        'sampler': 'uniform',  # 'shared', 'in_batch', 'in_batch_unique'
        'negatives': 128,
        'temperature': 0.05,
        'l2_normalize': True,
        'logq': False,
        'mask_collisions': True,
        'gbce_t': 0.75,
        'chunk': None,  # positions at a time; None: what suits the machine
      },
      'optimizer': sections.optimizer(),
      'checkpoint': sections.checkpoint(),
      'numerics': sections.numerics(),
      'parallel': sections.parallel(),
      'train': sections.train(),
      'eval': {
        'parts': ('valid', 'test'),
        'ks': (1, 10, 50, 100, 200),
        'batch_size': 256,
        'batch_tokens': 16384,
        'item_chunk': 16384,
        'filter_seen': 'window',  # 'history' or 'none'
        'miss_rank': 0,  # HSTU protocol: 2501
      },
      'predict': {
        'input': '',  # file or directory of events; '': the training users
        'format': '',  # as data.name; '': by suffix, .csv, .tsv or .parquet
        # '' is what the data section says.
        'columns': {'user': '', 'item': '', 'time': '', 'rating': ''},
        'ids': '',
        'time_unit': '',
        'delimiter': '',
        'request_time': None,  # seconds since 1970; None: of the last event
        # .csv, .parquet or .jsonl; '' is <workdir>/predictions.csv
        'output': '',
        'top_k': 10,
        'checkpoint': 'best',  # or 'latest'
      },
      'report': {'users': 5, 'history': 12, 'recommendations': 10},
    }
  )


def hstu(**fields) -> ConfigDict:
  """The published HSTU retrieval layer; see `models.hstu.Config`."""
  return sections.make_section(
    dict(
      name='hstu',
      dim=50,
      blocks=2,
      heads=1,
      dqk=50,
      dv=50,
      max_len=200,
      extra_positions=11,
      dropout=0.2,
      embedding_dropout=0.2,
      attention='silu',
      silu_on='all',
      concat='none',
      uvqk_bias=False,
      out_bias=True,
      ln_affine=False,
      alpha=None,
      normaliser=None,
      position_bias=True,
      time_bias=True,
      position_embedding=True,
      dtype='float32',
      remat=False,
      implementation=None,
    ),
    fields,
  )


def sasrec(**fields) -> ConfigDict:
  """The HSTU paper's SASRec baseline; see `models.sasrec.Config`."""
  return sections.make_section(
    dict(
      name='sasrec',
      dim=50,
      blocks=2,
      heads=1,
      ffn_dim=50,
      max_len=200,
      extra_positions=11,
      dropout=0.2,
      embedding_dropout=0.2,
      norm_eps=1e-8,
      norm_affine=False,
      final_norm=False,
      scale_rows=True,
      positions_from='oldest',
      position_std=None,
      project=True,
      activation='relu',
      init='xavier_normal',
      dtype='float32',
      remat=False,
      implementation=None,
    ),
    fields,
  )


def smoke(config: ConfigDict) -> ConfigDict:
  """Shrinks an experiment to seconds on two CPU cores, on generated data."""
  config.data.name = 'synthetic'
  config.data.path = ''
  config.data.extras = ConfigDict()
  config.data.synthetic = ConfigDict(
    dict(records=300, length=20, items=200, categories=10, per_record=3, seed=0)
  )
  config.data.stream.directory = ''
  config.split.name = 'stream'
  config.split.windows = 'latest'
  config.model.dim = 16
  config.model.max_len = 20
  config.model.blocks = 1
  for key in ('dqk', 'dv', 'ffn_dim'):
    if key in config.model:
      config.model[key] = 16
  if 'time_bias' in config.model:
    config.model.time_bias = False
  config.loss.negatives = 16
  config.train.batch_size = 32
  config.train.steps = 16
  config.train.patience = 0
  config.train.log_every = 4
  config.train.eval_every = 8
  config.train.checkpoint_every = 8
  config.train.nan_every = 4
  config.eval.ks = (1, 10)
  config.eval.batch_tokens = 1024
  config.report.users = 2
  return config
