"""Every key of an experiment that ranks the candidates of requests.

The comment above a key, or at the end of its line, is its description in
docs/config_reference.md; the options of the data sets are declared in
request_sets.py, the fields of the models in request_models.py.
"""

from ml_collections import ConfigDict

from genrec_jax.config import losses, rankers, request_models, sections
from genrec_jax.config import request_sets as sets


def request_ranking() -> ConfigDict:
  """Every key of an experiment with requests, with its default."""
  return ConfigDict(
    {
      # The kind of task; `config_lib.request_ranking()` sets it.
      'task': 'request_ranking',
      # Seed of initial values, of the order of the data and of dropout.
      'seed': 0,
      # 'module:NAME' of parts from outside the library; see docs/extending.md.
      'extensions': '',
      'data': {
        # The data set: 'streaming' (generated), 'movielens', 'kuairand',
        # 'yambda', or 'csv' or 'parquet' for a log of your own; see
        # docs/generative_ranking.md.
        'name': 'streaming',
        'path': '',  # The file or directory of the raw data.
        # The directory of converted requests; '' is `WORKDIR/data`.
        'cache': '',
        # 'shuffled' takes the requests in an order of their own in every epoch;
        # 'stream' takes them step by step and evaluates each step before it is
        # learned from.
        'order': 'shuffled',
        # Most events of a history; of a longer one the latest are read, or the
        # oldest with 'oldest_events' in `model.reference_compat`.
        'max_history': 1024,
        # Most candidates of an example: of more, training draws so many in
        # every epoch, and evaluation scores all, in several examples.
        'max_candidates': 32,
        # The most pairs of capacities, for events and for candidates, of a
        # batch, each of which is a program to compile; 0 has eight capacities
        # for each doubling. See docs/training.md#compilation.
        'token_capacities': 2,
        # Deviation of the normal that fresh rows are drawn from, before it is
        # cut at two of them, which leaves 0.88 of it.
        'init_std': 0.02,
        'stochastic_length': {
          # A history longer than N^(alpha/2) is cut to that many events, with
          # probability 1 - N^alpha/n^2, in training alone; N is
          # `data.max_history`. Above 1, at most 2; 0 cuts nothing.
          'alpha': 0.0,
          # The events that are kept: the latest ('greedy'), any ('random'), or
          # rather young ones ('feature_weighted').
          'selector': 'feature_weighted',
        },
        'streaming': vars(sets.StreamOptions()),
        'movielens': vars(sets.MovielensOptions()),
        'kuairand': vars(sets.KuairandOptions()),
        'yambda': vars(sets.YambdaOptions()),
        'log': vars(sets.LogOptions()),
      },
      # (regex of tables, {key: value}) pairs: settings by table; the first
      # match counts. See docs/training.md#settings-by-table.
      'tables': (),
      'model': stu(),
      'loss': vars(losses.RequestLossConfig()),
      'optimizer': sections.optimizer(name='adam', b2=0.999),
      'checkpoint': sections.checkpoint(),
      'numerics': sections.numerics(),
      'parallel': sections.parallel(),
      'compile_cache': sections.compile_cache(),
      'train': sections.train(batch_size=32, epochs=1, monitor='ne'),
      'eval': {
        # The splits that are evaluated where the data have them: 'valid' (of a
        # stream once, at its end) and 'test', and 'next', the step of a stream
        # that is learned from next; () trains without evaluations and without a
        # report.
        'splits': ('valid', 'next', 'test'),
        'batch_size': 64,  # Requests at a time.
        # Whether each training batch is scored before the model learns from it:
        # 'none', 'window' (metrics between two log lines) or 'lifetime' (also
        # since the start).
        'progressive': 'none',
      },
      'predict': {
        # The file of candidates, one a row; '' is the test split.
        'input': '',
        # Its format; '' goes by the suffix '.csv' or '.parquet'.
        'format': '',
        'columns': {
          # Its column of the user who asks; 'user' is also found by the name
          # that the data have for it.
          'user': 'user',
          # Its column of the candidate; 'item' is also found by the name that
          # the data have for it.
          'item': 'item',
          # Its column of the time of the request; '' asks behind the last event
          # of the user, whatever columns the file has.
          'time': '',
        },
        # Further columns of the input that go beside the scores; 'auto' stands
        # for those that are called as ids are, and () keeps none.
        'keep': ('auto',),
        # A '.csv', '.parquet' or '.jsonl' file; '' is
        # `WORKDIR/predictions.csv`.
        'output': '',
        # Whether texts of a CSV file that a spreadsheet would run (=, +, -, @)
        # get an apostrophe in front.
        'escape_formulas': False,
        'checkpoint': 'best',  # The 'best' checkpoint, or the 'latest'.
        # So many MB hold what the model stu has computed of histories, so that
        # candidates of a request, and later requests of a user, share it; 0
        # computes each history with each example. See
        # docs/generative_ranking.md#thousands-of-candidates.
        'cache_mb': 0.0,
      },
      'report': {
        'bins': 20,  # Bins of the calibration curve.
        'users': 3,  # Requests that the report shows.
        'history': 12,  # Events of the past of each of them.
        'candidates': 8,  # Candidates of each of them.
      },
    }
  )


def stu(**fields) -> ConfigDict:
  """The generative ranker; see `request_models.STU`."""
  section = {'name': 'stu', **vars(request_models.STU())}
  for key in ('max_history', 'max_candidates'):  # the data say it
    del section[key]
  return sections.make_section(section, fields)


def pool_history(model: ConfigDict, **fields) -> ConfigDict:
  """A ranking model over pooled histories, such as `pool_history(dlrm())`.

  Args:
    model: the section of the ranking model.
    **fields: of `request_models.PooledRequests`.
  """
  with model.unlocked():
    model.history = vars(request_models.PooledRequests(**fields))
  return model


def quicken_stu(model: ConfigDict) -> None:
  """Makes STU learn in fewer steps than with its published settings.

  Scales let the layers decide from the start, and not the token of a candidate
  alone; tied keys let them look at events of the same item and features; and
  the head sees an item by itself. benchmarks/gr_streaming.py has cases that
  measure what each of them is worth.

  Args:
    model: `config.model`, changed in place.
  """
  model.update(
    token_scale=1.0,
    action_std=5.0,
    alpha=1.0,
    tied_start=True,
    joint_content=True,
    head_inputs='all',
  )


def quicken_optimizer(optimizer: ConfigDict) -> None:
  """Settings under which rows of items that are met rarely learn of requests.

  A row moves at once by the gradient of a candidate, but not by that of a
  history, which is the thousandth part of it and, with the usual eps of 1e-8,
  no smaller once Adagrad has divided it. Shares of labels change over time, and
  the averages of weights do not follow the last of them.

  Args:
    optimizer: `config.optimizer`, changed in place.
  """
  optimizer.average = 0.999
  optimizer.rows.name, optimizer.rows.eps = 'row_adagrad', 1e-3


def request_smoke(config: ConfigDict) -> ConfigDict:
  """Shrinks an experiment to seconds on two CPU cores, on generated data.

  There are 16 batches, four in each step of the stream.
  """
  config.data.name, config.data.path = 'streaming', ''
  config.data.streaming.update(
    users=32, categories=8, steps=6, train_steps=4, activity=1.0, events=12.0,
    deviation=3.0, train_candidates=6, inference_candidates=12,
    inference_events=16,
  )  # fmt: skip
  config.data.max_history, config.data.max_candidates = 32, 6
  model = config.model
  if model.name == 'stu':
    model.update(
      dim=16, blocks=min(model.blocks, 2), heads=2, dqk=8, dv=8,
      token_hidden=16, head_hidden=16,
      postprocessor='layernorm',  # the generated stream has no times
      input_dropout=0.0, dropout=0.0,  # 16 steps learn nothing by heart
    )  # fmt: skip
  else:
    rankers.shrink_ranker(model)
  config.data.token_capacities = 1
  if config.optimizer.rows.name != 'dense':
    config.optimizer.rows.learning_rate = 0.2  # there are 16 steps
  config.train.batch_size = 8
  config.train.epochs = 1
  config.train.patience = 0
  config.train.log_every = 4
  config.train.checkpoint_every = 8
  config.train.nan_every = 4
  config.eval.batch_size = 16
  return config
