"""Every key of a retrieval experiment, and the sections of its models.

The comment above a key, or at the end of its line, is its description in
docs/config_reference.md; the fields of models and losses are declared in
models.py and losses.py. If a default is None, the comment begins with the type
of a value.
"""

from ml_collections import ConfigDict

from genrec_jax.config import losses, sections


def retrieval() -> ConfigDict:
  """Every key of a retrieval experiment, with its default."""
  return ConfigDict(
    {
      # The kind of task; `config_lib.retrieval()` sets it.
      'task': 'retrieval',
      # Seed of initial values, of the order of the data, of dropout and of
      # negatives.
      'seed': 0,
      # 'module:NAME' of parts from outside the library; see docs/extending.md.
      'extensions': '',
      'data': {
        # The format of the data: 'ml100k', 'ml1m', 'ml20m', 'ml_latest',
        # 'sasrec_text', 'csv', 'parquet', 'histories' or 'synthetic'; see
        # docs/data.md.
        'name': 'synthetic',
        'path': '',  # The file or directory of the raw data.
        # The directory of converted columns; '' is `WORKDIR/data`.
        'cache': '',
        'columns': {
          'user': 'user',  # The column of the user's id.
          'item': 'item',  # The column of the item's id.
          # The column of the time; '' is for files whose lines are in order.
          'time': 'time',
          # The column of the rating; '' is for files without one.
          'rating': '',
        },
        # Further columns to keep: name -> kind, or -> options; see
        # docs/data.md#extra-columns.
        'extras': {},
        # float: Events that are rated lower are dropped.
        'min_rating': None,
        'min_item_events': 0,  # Items with fewer events are dropped.
        'min_user_events': 0,  # Users with fewer events are dropped.
        # Of events with equal users, items and times, 'keep' keeps all, 'drop'
        # the first.
        'duplicates': 'keep',
        # Ids are 'int', 'str', or ('auto') what the first rows look like.
        'id_type': 'auto',
        'time_unit': 's',  # Unit of numeric times: 's', 'ms', 'us' or 'ns'.
        # The character between the cells of CSV files, 'tab' or '::'; '' is the
        # one of a tab, ';', '|', ',' and '::' that gives the columns that are
        # named.
        'delimiter': '',
        # The decimal mark of the numbers in CSV files, '.' or ','; with ',', a
        # comma between two digits is a point in every column.
        'decimal': '.',
        # Whether CSV files have a header: 'yes', 'no', or ('auto') unless all
        # columns are named by numbers, the first of which is 0.
        'header': 'auto',
        'item_vocab': '',  # A saved vocabulary to apply; '' makes one.
        # Items that a saved vocabulary lacks are an 'error', or 'skip' drops
        # them.
        'unknown_items': 'error',
        # A CSV file with the columns item and title, for reports.
        'titles': '',
        # The most token capacities that training batches are padded to, each of
        # which is a program to compile; smaller ones are used only where they
        # save more than that. 0 has eight for each doubling, as a growing
        # directory always does; see docs/training.md#compilation.
        'token_capacities': 3,
        # Trains on part files as they appear; the data above gives vocabulary
        # and evaluation. Needs `train.steps`, `train.eval_every` and
        # `train.checkpoint_every`; see docs/data.md#a-growing-directory.
        'stream': {
          'directory': '',  # The directory in which part files appear.
          'pattern': '*.csv',  # File names of the parts.
          'poll_s': 5.0,  # Seconds between two looks for a new part.
          # float: Training ends after so many seconds without a new part; None
          # waits for ever.
          'idle_s': None,
        },
        # Deviation of fresh rows, drawn from a normal that is cut at two of
        # them.
        'init_std': 0.02,
        # The generated stream of 'synthetic'.
        'synthetic': {
          'records': 20_000,  # Sequences of the stream.
          'length': 128,  # Events of each sequence.
          'items': 4_000,  # Items of the catalogue.
          'categories': 100,  # Categories to which the items belong.
          'per_record': 5,  # Most categories in a sequence.
          'seed': 0,  # Seed of the stream.
        },
      },
      'split': {
        # How events are split into train, valid and test: 'leave_last_out',
        # 'global_time' or 'stream'; see docs/data.md#splits.
        'name': 'leave_last_out',
        # With 'leave_last_out', 2 holds out a validation and a test item of
        # each user, and 1 a test item alone.
        'holdout': 2,
        # Training reads the 'latest' tokens of a user, or in windows 'all' of
        # them.
        'windows': 'latest',
        # With 'global_time', where validation begins: seconds since 1970, or a
        # share of the events.
        'valid_from': 0.8,
        'test_from': 0.9,  # Where testing begins, in the same way.
        # With 'global_time', the 'last', the 'first' or 'all' events of a
        # period are targets.
        'target': 'last',
        # With 'stream', the share of the records that validates.
        'valid_fraction': 0.05,
        # With 'stream', the share of the records that tests.
        'test_fraction': 0.1,
      },
      # (regex of tables, {key: value}) pairs: settings by table; the first
      # match counts. See docs/training.md#settings-by-table.
      'tables': (),
      'model': hstu(),
      'loss': vars(losses.RetrievalLossConfig()),
      'optimizer': sections.optimizer(),
      'checkpoint': sections.checkpoint(),
      'numerics': sections.numerics(),
      'parallel': sections.parallel(),
      'compile_cache': sections.compile_cache(),
      'train': sections.train(),
      'eval': {
        # The splits that are evaluated where the data have them; 'train' is
        # possible. () trains without evaluations and without a report.
        'splits': ('valid', 'test'),
        'ks': (1, 10, 50, 100, 200),  # Cut-offs of hit rate and NDCG.
        'batch_size': 256,  # Most sequences at a time.
        'batch_tokens': 16384,  # Most tokens at a time.
        'item_chunk': 16384,  # Candidates that are scored at a time.
        # Whether the vectors of all candidates are computed once and kept, as
        # large as the item table in float32. False reads them from the table
        # for each batch, which is slower and takes no memory.
        'keep_vectors': True,
        # What is never recommended: the tokens that the model reads ('window'),
        # all earlier items of the user ('history') or nothing ('none').
        'filter_seen': 'window',
        # A rank of this or more counts as exactly this; 2501 in the HSTU
        # protocol, and 0 counts every rank as it is.
        'miss_rank': 0,
        # When a model with `model.time_bias` is asked for the next item: at the
        # time of the 'target', as published, or at that of the 'last_event'
        # before it, as a server without a clock does; see
        # docs/serving.md#when-a-user-asks.
        'request_time': 'target',
      },
      'predict': {
        # The file or directory of events; '' predicts for the training users.
        'input': '',
        # Its format, as in `data.name`; '' goes by the suffix '.csv', '.tsv' or
        # '.parquet'.
        'format': '',
        'columns': {
          'user': '',  # The column of the user's id; '' is as in `data`.
          'item': '',  # The column of the item's id; '' is as in `data`.
          'time': '',  # The column of the time; '' is as in `data`.
          'rating': '',  # The column of the rating; '' is as in `data`.
        },
        'id_type': '',  # As `data.id_type`; '' is the same.
        'time_unit': '',  # As `data.time_unit`; '' is the same.
        'delimiter': '',  # As `data.delimiter`; '' is the same.
        'header': '',  # As `data.header`; '' is the same.
        # float: Seconds since 1970 at which every user asks; None is the time
        # of the user's last event.
        'request_time': None,
        # A '.csv', '.parquet' or '.jsonl' file; '' is
        # `WORKDIR/predictions.csv`.
        'output': '',
        # Whether texts of a CSV file that a spreadsheet would run (=, +, -, @)
        # get an apostrophe in front.
        'escape_formulas': False,
        'top_k': 10,  # Items for each user.
        'checkpoint': 'best',  # The 'best' checkpoint, or the 'latest'.
      },
      'report': {
        'users': 5,  # Users that the report shows.
        'history': 12,  # Items of the past of each of them.
        'recommendations': 10,  # Items that are recommended to each of them.
      },
    }
  )


def hstu(**fields) -> ConfigDict:
  """The published HSTU retrieval layer; see `models.HSTU`."""
  return sections.make_model_section('hstu', fields)


def sasrec(**fields) -> ConfigDict:
  """The HSTU paper's SASRec baseline; see `models.SASRec`."""
  return sections.make_model_section('sasrec', fields)


def smoke(config: ConfigDict) -> ConfigDict:
  """Shrinks an experiment to seconds on two CPU cores, on generated data."""
  config.data.name = 'synthetic'
  config.data.path = ''
  config.data.extras = ConfigDict()
  config.data.synthetic = ConfigDict(
    dict(records=300, length=20, items=200, categories=10, per_record=3, seed=0)
  )
  config.data.stream.directory = ''
  config.checkpoint.at_part_ends = False
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
