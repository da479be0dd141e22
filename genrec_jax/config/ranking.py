"""Every key of a ranking experiment; its models are in rankers.py.

The comment above a key, or at the end of its line, is its description in
docs/config_reference.md; the fields of the loss are declared in losses.py.
"""

from ml_collections import ConfigDict

from genrec_jax.config import losses, search_section, sections
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
        # The format of the data: 'clicks', 'drift' or 'interests'
        # (generated), 'csv', 'parquet', 'libsvm', 'criteo', 'frappe',
        # 'movielens_clicks', 'movielens_ratings', 'taobao' or 'prepared'; see
        # docs/ranking_data.md.
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
        # Trains on part files as they appear; the data above gives the
        # vocabularies, the statistics and the evaluation. See
        # docs/ranking_data.md#a-growing-directory.
        'stream': {
          'directory': '',  # The directory in which part files appear.
          # File names of the parts; '.parquet' files are read as Parquet.
          'pattern': '*.csv',
          'poll_s': 5.0,  # Seconds between two looks for a new part.
          # float: Training ends after so many seconds without a new part; None
          # waits for ever, or for a file called END in the directory.
          'idle_s': None,
        },
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
          'silent': 0,  # Categorical features that say nothing, the last ones.
        },
        # The generated stream of 'drift'; see
        # docs/ranking_data.md#the-drifting-stream.
        'drift': {
          'windows': 24,  # Windows of the stream.
          'rows': 10_000,  # Rows of a window.
          'window_s': 3_600,  # Seconds of a window; the first begins at 0.
          'segments': 4,  # Surfaces that rows are shown on.
          'segment_zipf': 0.5,  # Exponent of the frequencies of segments.
          'fields': 8,  # Categorical features beside the segment.
          # Values of each field that are alive at a time.
          'values': 500,
          'zipf': 1.0,  # Exponent of the frequencies of values.
          'pairs': 8,  # Pairs of fields that interact, drawn by the seed.
          # Width of the vectors whose product is the effect of a pair.
          'width': 4,
          # Windows after which half of the correlation of effects is left.
          'half_life': 24.0,
          # Probability that a window begins with a jump, in which a share of
          # the values, drawn from 0 to 1, gets other effects at once.
          'jumps': 0.0,
          # The share of the values that are born anew in each window, with
          # another id and other effects.
          'reborn': 0.01,
          # How much the effects of fields have in common in all segments: 1 is
          # everything, 0 nothing. Pairs have the same effects in all segments.
          'common': 0.7,
          # Deviation of the logits of a segment in a window.
          'signal': 1.5,
          # The share of the variance of the signal that pairs have, where there
          # are pairs.
          'pair_share': 0.3,
          'rate': 0.02,  # The expected share of clicks.
          # Deviation of the mean logits of segments, which drift too.
          'rate_spread': 0.3,
          # Windows after which half of their correlation is left; 0 is
          # half_life.
          'rate_half_life': 0.0,
          # Mean windows between a row and the arrival of its label, for files
          # of events.
          'delay': 0.5,
          # The share of the clicks whose label never arrives, for files of
          # events.
          'lost': 0.0,
          'seed': 0,  # Seed of the whole stream.
        },
        # The generated stream of 'interests'; see
        # docs/ranking_data.md#the-stream-of-interests.
        'interests': {
          'users': 10_000,  # Users of the stream.
          'impressions': 10,  # Candidates that each of them is shown.
          'history': 20,  # The most events of a history.
          # Mean seconds between two events of an average user.
          'gap_s': 21_600,
          # Deviation of the logarithm of a user's mean gap.
          'activity': 0.5,
          # Seconds from the first possible impression to the last one.
          'span_s': 2_419_200,
          'items': 240,  # Items in all categories together.
          'categories': 12,  # Categories.
          # Exponent of the frequencies of categories, and of items within one.
          'zipf': 0.5,
          'favourites': 3,  # Categories that a user likes.
          'loyal': 0.6,  # The share of the events that are about them.
          # Deviation of the part of the logit that decays with the age of
          # events; 0 switches it off, as with the other parts.
          'decay': 1.0,
          'half_life_s': 43_200.0,  # Seconds after which half of it is left.
          # Deviation of the part of events whose age is near a multiple of the
          # period.
          'periodic': 1.0,
          'period_s': 86_400,  # Seconds of a period.
          # How near to a multiple an age must be, in periods.
          'period_width': 0.1,
          # Deviation of the part in which the order of events matters.
          'order': 1.0,
          'kinds': 4,  # Kinds of categories, for that part.
          # Deviation of the part of what a user always likes.
          'taste': 0.5,
          'rate': 0.3,  # The expected share of clicks.
          # What is held out: 'users', or the last stretch of 'time'.
          'split': 'users',
          # The share of the users, or of the time, that validates.
          'valid_share': 0.1,
          # The share of the users, or of the time, that tests.
          'test_share': 0.1,
          'seed': 0,  # Seed of the whole stream.
        },
        # The examples of 'movielens_clicks'; see
        # docs/ranking_data.md#movielens-as-clicks.
        'movielens_clicks': {
          'history': 20,  # The most ratings of a history.
          # The fewest ratings of a history, so that the first ratings of a user
          # give no example.
          'least': 1,
          # The most examples of a user, drawn from all; 0 takes all.
          'windows': 0,
          'valid_share': 0.1,  # The share of the users that validate.
          'test_share': 0.1,  # The share of the users that test.
          'seed': 0,  # Seed of the split, of labels and of random films.
        },
        # The examples of 'movielens_ratings'; see
        # docs/ranking_data.md#movielens-as-labelled-ratings.
        'movielens_ratings': {
          'least': 4.0,  # The lowest rating whose label is 1.
          # The share of each user's ratings that validates: the last ones but
          # for those that test.
          'valid_fraction': 0.1,
          # The share of each user's ratings that tests: the last ones.
          'test_fraction': 0.1,
          # Seed of the order of ratings of one second, in editions whose files
          # do not tell it.
          'seed': 0,
        },
        # The examples of 'taobao'; see docs/ranking_data.md#taobao.
        'taobao': {
          # 'corrected', in which users who validate do not train and random
          # items are none that their user ever touched, or 'published'.
          'split': 'corrected',
          'history': 20,  # The most events of a history: T.
          # The last events of a user that count, with the target.
          'most': 200,
          # Positive windows of a user with a long history, and as many negative
          # ones: P.
          'points': 10,
          # The share of the users that do not test: those whose last event is
          # earlier than that of the others.
          'train_quantile': 0.7,
          'valid_share': 0.1,  # The share of these users that validate.
          # Megabytes of the rows that are sorted or merged at a time.
          'memory_mb': 256,
          # Whether to 'refuse' rows with a time below zero, or to 'drop' them.
          'negative_times': 'refuse',
          'seed': 0,  # Seed of all draws.
        },
      },
      # (regex of tables, {key: value}) pairs: settings by table; the first
      # match counts. See docs/training.md#settings-by-table.
      'tables': (),
      'model': wukong(),
      'loss': vars(losses.RankingLossConfig()),
      'distill': {
        # How a teacher's scores are learned: 'none'; 'one_head', by the head
        # that serves, beside the labels; 'teacher_alone', by that head, without
        # the labels; 'head', by a head of its own; 'adapter', by that and by
        # another one, which learns the scores as an adapter corrects them. See
        # docs/exfm.md.
        'method': 'none',
        # The extra columns of the scores, which are probabilities (a run stops
        # at anything else), one for each label; () is 'teacher', and of several
        # labels 'teacher_LABEL'.
        'scores': (),
        # The extra column of how much the score of an example counts, 0 where
        # it has none; '' counts all of them alike.
        'weight': 'teacher_weight',
        # Factor of the scores that the head of its own learns, which are at
        # most 1 then: alpha.
        'label_scale': 1.0,
        # Factor of the loss of the scores: w.
        'loss_weight': 1.0,
        # Factor of what flows from the head of the scores into the model: beta.
        # Under Adam the model feels loss_weight times this alone.
        'gradient_scale': 1.0,
        # The same of the head of corrected scores, with adapter_weight.
        'adapter_gradient_scale': 1.0,
        # Factor of the loss of the head that learns corrected scores.
        'adapter_weight': 1.0,
        # What the adapter reads: the 'probability', its 'logit', or
        # ('residual') the logit, to which it adds what it makes of it.
        'adapter_input': 'probability',
        'adapter_hidden': (16,),  # Widths of the adapter's hidden layers.
      },
      # Which ids share a row, as `genrec learn_hash` learns it; no other
      # command reads these keys. See docs/learned_hash.md.
      'hash': {
        # Rows of each table, those of padding and of unseen values included; 0
        # divides the number of its ids by `hash.compression`.
        'rows': 0,
        'compression': 10.0,  # Ids of a table for each of its rows.
        # The tables, a regex; those that have as many rows anyway stay as they
        # are.
        'tables': '.*',
        # Width of the vectors by which ids are alike, of a small model that is
        # trained for that.
        'dim': 4,
        # The workdir of a run of the same data whose vectors, of any width, are
        # taken instead.
        'vectors': '',
        # Who has a row alone: 'both' the frequent ids, the others share by
        # their vectors; with 'frequency' the others share by a hash, and with
        # 'embedding' everybody shares.
        'method': 'both',
        # Shares of the rows that frequent ids have alone; of several, the
        # validation split chooses, with a training of the model for each.
        'private': (0.0, 0.5, 0.9),
        'reserved': 1,  # Rows of unseen values.
        # Whether the model is trained with a row for each id, too, to compare.
        'compare': False,
        # How often an id must have been seen for its vector to be half its own
        # and half the mean of all.
        'shrink': 10.0,
        'seed': 0,  # Seed of all draws.
        # Steps after which a map is learned again, of what was seen by then;
        # 0 learns one map before the training. For data that drift, in one
        # pass and in their order.
        'renew_every': 0,
        # Steps that counts look back by then; 0 counts all.
        'look_back': 0,
      },
      'search': search_section.search(),
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
        # Where such a window ends: with the 'log' line, or with each 'part' of
        # `data.stream`.
        'progressive_windows': 'log',
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
  if config.data.name == 'movielens_ratings':
    # Generated: users who are in all splits, and nothing of their past.
    config.data.name, config.data.path = 'interests', ''
    config.data.interests.split = 'time'
    config.data.features = ConfigDict(
      {name: {'kind': 'categorical'} for name in ('user', 'item', 'category')}
    )
  elif config.data.name in ('movielens_clicks', 'taobao'):
    # Generated, with the same columns.
    config.data.name, config.data.path = 'interests', ''
  elif config.model.name == 'tbsm' and config.data.name != 'interests':
    _use_clicks(config.data)  # which have no history
    config.data.name = 'interests'
    config.data.split.by, config.data.split.column = 'order', ''
  elif config.data.name not in ('drift', 'interests'):
    _use_clicks(config.data)
  config.data.drift.update(windows=6, rows=500, values=20)
  config.data.interests.update(
    users=300, history=8, items=60, categories=6, favourites=2, kinds=2
  )
  config.loss.prior = ()  # of other data
  shrink_ranker(config.model)
  config.train.batch_size = 128
  config.train.steps = 16
  config.train.patience = 0
  config.train.log_every = 4
  config.train.eval_every = 8
  config.train.checkpoint_every = 8
  config.train.nan_every = 4
  config.eval.batch_size = 512
  config.eval.progressive_windows = 'log'
  config.checkpoint.at_part_ends = False
  config.report.importance_rows = 200
  config.report.importance_repeats = 1
  return config


def _use_clicks(data: ConfigDict) -> None:
  """Makes a small generated log the data, whatever they are."""
  data.name = 'clicks'
  data.path = ''
  data.files.train = data.files.valid = data.files.test = ''
  data.stream.directory = ''
  data.labels = ('label',)
  data.features = ConfigDict()
  data.group = data.time = data.example_id = ''
  if data.split.by in ('time', 'group'):
    data.split.by, data.split.column = 'order', ''
  data.weight, data.negatives_kept = '', 1.0
  data.label_kinds = ConfigDict()
  data.label_weights = ConfigDict()
  data.extras = ConfigDict()
  data.clicks.update(rows=3_000, fields=6, values=20, numbers=2, terms=4)
