"""Every key of a ranking experiment; its models are in rankers.py.

The comment above a key, or at the end of its line, is its description in
docs/config_reference.md; the fields of the loss are declared in losses.py.
"""

from ml_collections import ConfigDict

from genrec_jax.config import losses, sections
from genrec_jax.config.rankers import shrink_ranker, wukong


def ranking() -> ConfigDict:
  """Every key of a ranking experiment, with its default."""
  return ConfigDict(
    {
      # The kind of task; `config_lib.ranking()` sets it.
      'task': 'ranking',
      # Seed of initial values, of the order of the data and of dropout.
      'seed': 0,
      # 'module:NAME' of parts from outside the library; see docs/extending.md.
      'extensions': '',
      'data': {
        # The format of the data: 'clicks' (generated), 'csv', 'parquet',
        # 'libsvm', 'criteo', 'frappe' or 'prepared'; see docs/ranking_data.md.
        'name': 'clicks',
        'path': '',  # The file or directory of the raw data.
        # The directory of prepared blocks; '' is `WORKDIR/data`.
        'cache': '',
        # Files of the splits, below `data.path`, or patterns such as 'day_*'. A
        # split without a file is cut from the training rows.
        'files': {
          'train': '',  # The file of the training split.
          'valid': '',  # The file of the validation split.
          'test': '',  # The file of the test split.
        },
        # Whether names of files and directories such as train.csv or
        # shop_valid.csv say which split they are, where `data.files` does not.
        'names_give_splits': True,
        'split': {
          # 'order': the last rows test and those before them validate; 'time':
          # the latest of `data.time` do; 'random': each row by a draw of its
          # own, so that splits have about their fractions; 'group': all rows
          # with a value of `data.split.column` by one draw.
          'by': 'order',
          # The column of 'group', such as that of the user; '' is `data.group`.
          'column': '',
          # The share of the training rows that validates, where there is no
          # file.
          'valid_fraction': 0.1,
          # The share of the training rows that tests, where there is no file.
          'test_fraction': 0.1,
          'seed': 0,  # Seed of the draws of 'random' and 'group'.
        },
        # Columns of the labels, which are 0 or 1 unless `data.label_kinds` says
        # otherwise.
        'labels': ('label',),
        # The column whose values group the examples, for gAUC; '' has no
        # groups, but for the queries (qid) of libsvm files.
        'group': '',
        # The column of the times; '' stores none.
        'time': '',
        # The column of the weights of the examples, zero or more, in the loss
        # and in every metric; '' gives all of them weight 1.
        'weight': '',
        # The share of the training rows of label 0 that is kept; the
        # probabilities of the model are corrected for it.
        'negatives_kept': 1.0,
        # The column of whole numbers that name the examples, 'row' to number
        # the rows, or '' to store none.
        'example_id': '',
        # Label -> 'probability' where it may be any number from 0 to 1, or
        # 'float' for tasks that read any finite number, such as a watch time.
        'label_kinds': {},
        # Label -> the column of its weights, which are zero or more; the other
        # labels have weight 1.
        'label_weights': {},
        # Further columns, such as a teacher's score: name -> kind, or ->
        # options; see docs/data.md#extra-columns.
        'extras': {},
        # Feature -> kind, or -> options; see docs/ranking_data.md#features. {}
        # takes the features of the data set.
        'features': {},
        'min_count': 1,  # Rarer values share the row of unseen ones.
        # What an unseen value becomes: one shared 'row', a row by its 'hash',
        # or an 'error'.
        'oov': 'row',
        'hash_rows': 0,  # Rows of unseen values with 'hash'.
        # The transform of numeric features: 'as_is', 'log', 'ln2' or
        # 'standardize'; see docs/ranking_data.md#features.
        'numeric': 'as_is',
        # How the pairs of libsvm files are read: 'by_index', or 'by_place' as
        # before there was this key, without most of their values; see
        # docs/ranking_data.md#libsvm-and-libfm.
        'pairs': 'by_index',
        # The largest size of a z-score, where the transform is 'standardize': a
        # value further from the mean counts as that many deviations; 0 bounds
        # none.
        'clip': 0.0,
        # The share of the known values of categorical, multi_hot and sequence
        # features with min_count=1 that a training batch reads as unseen, so
        # that the rows of unseen values are learned; 0 leaves these rows as
        # they were drawn. See docs/ranking_data.md#unseen-values.
        'train_unseen': 0.01,
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
        'block_rows': 16_384,  # Rows of a block on disk.
        # Rows that are shuffled together and lie in memory.
        'shuffle_rows': 4_000_000,
        # With 1, the lists of each feature are padded to one capacity in all
        # training batches, so that one program is compiled; 0 has eight
        # capacities for each doubling. See docs/training.md#compilation.
        'token_capacities': 1,
        # Deviation of the normal that fresh rows are drawn from, before it is
        # cut at two of them, which leaves 0.88 of it.
        'init_std': 1e-4,
        # The generated log of 'clicks'; see
        # docs/ranking_data.md#the-generated-log.
        'clicks': {
          'rows': 120_000,  # Rows of the log.
          'fields': 12,  # Categorical features.
          'values': 200,  # Values of each of them.
          'numbers': 3,  # Numeric features.
          'orders': (1, 2, 3, 4),  # Orders of the planted interactions.
          'terms': 12,  # Interactions of each order.
          # Deviation of the part of the logit that no feature explains.
          'noise': 0.5,
          'traits': 3,  # Hidden signs of a value.
          # Deviation of the part of the logit that features explain.
          'signal': 2.0,
          'zipf': 1.0,  # Exponent of the frequencies of values.
          'seed': 0,  # Seed of the whole log.
          # Groups of fields that interact with each other, drawn by the seed; 0
          # lets every field interact with any other.
          'blocks': 0,
          # The probability that an interaction is one of fields of one block,
          # where there are blocks; the others are of any features.
          'within': 0.9,
        },
      },
      # (regex of tables, {key: value}) pairs: settings by table; the first
      # match counts. See docs/training.md#settings-by-table.
      'tables': (),
      'model': wukong(),
      'loss': vars(losses.RankingLossConfig()),
      'optimizer': sections.optimizer(name='adam', b2=0.999),
      'checkpoint': sections.checkpoint(),
      'numerics': sections.numerics(),
      'parallel': sections.parallel(),
      'compile_cache': sections.compile_cache(),
      'train': sections.train(batch_size=1024, epochs=10, monitor='auc'),
      'eval': {
        # The splits that are evaluated where the data have them; () trains
        # without evaluations and without a report.
        'splits': ('valid', 'test'),
        'batch_size': 4096,  # Examples at a time.
        # Whether each training batch is scored before the model learns from it:
        # 'none', 'window' (metrics between two log lines) or 'lifetime' (also
        # since the start).
        'progressive': 'none',
      },
      'predict': {
        # The file of examples, which need no labels; '' is the test split.
        'input': '',
        # Its format, as in `data.name`; '' goes by the suffix '.parquet', and
        # is otherwise that of the data.
        'format': '',
        # Columns of the input that go beside the scores; 'auto' stands for the
        # columns of `data.group`, `data.time` and `data.example_id` and those
        # that are called as ids are, and () keeps none.
        'keep': ('auto',),
        # A '.csv', '.parquet' or '.jsonl' file; '' is
        # `WORKDIR/predictions.csv`.
        'output': '',
        # Whether texts of a CSV file that a spreadsheet would run (=, +, -, @)
        # get an apostrophe in front.
        'escape_formulas': False,
        'checkpoint': 'best',  # The 'best' checkpoint, or the 'latest'.
      },
      'report': {
        'bins': 20,  # Bins of the calibration curve.
        # Examples whose features are permuted in turn; 0 leaves that out.
        'importance_rows': 20_000,
        'importance_repeats': 3,  # How often each feature is permuted.
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
  if config.data.split.by in ('time', 'group'):
    config.data.split.by, config.data.split.column = 'order', ''
  config.data.weight, config.data.negatives_kept = '', 1.0
  config.data.label_kinds = ConfigDict()
  config.data.label_weights = ConfigDict()
  config.data.extras = ConfigDict()
  config.data.clicks.update(rows=3_000, fields=6, values=20, numbers=2, terms=4)
  shrink_ranker(config.model)
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
