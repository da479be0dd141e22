"""`genrec_jax.fit`: from data at hand to a trained run, in one call."""

import contextlib
import io
import logging
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, overload

from ml_collections import ConfigDict

from genrec_jax import config as config_lib
from genrec_jax import extensions as extensions_lib
from genrec_jax.config.model_choice import MODELS_OF, describe_models
from genrec_jax.data import remote_files
from genrec_jax.data.ranking import formats, saved_encoder, split_files
from genrec_jax.data.ranking.annotations import build_annotations
from genrec_jax.library import columns as columns_lib
from genrec_jax.library import events as events_lib
from genrec_jax.library import examples as examples_lib
from genrec_jax.library.examples import Features
from genrec_jax.library.files import format_of
from genrec_jax.library.runs import RankingRun, RetrievalRun
from genrec_jax.library.settings import (
  ARGUMENTS,
  apply_settings,
  flatten_settings,
  translate_flags,
)
from genrec_jax.progress import IS_HIDDEN
from genrec_jax.runtime.compile_cache import use_compile_cache
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import loop, settings_checks

LOG = logging.getLogger('genrec_jax')

Retriever = Literal['hstu', 'sasrec']
Ranker = Literal[
  'dcn', 'deepfm', 'dlrm', 'dnn', 'finalmlp', 'fm', 'lr', 'tbsm', 'wukong'
]
_TASKS = ('retrieval', 'ranking')
RETRIEVERS, RANKERS = (tuple(MODELS_OF[task]) for task in _TASKS)


@overload
def fit(
  events: Any,
  model: Retriever = 'sasrec',
  *,
  user: str = 'user',
  item: str = 'item',
  time: str | None = 'time',
  settings: Mapping[str, Any] | None = None,
  steps: int | None = None,
  epochs: int | None = None,
  seed: int | None = None,
  workdir: str | os.PathLike | None = None,
  progress: bool = True,
) -> RetrievalRun: ...


@overload
def fit(
  events: Any,
  model: Ranker,
  *,
  label: str | Sequence[str] = 'label',
  features: Features = None,
  group: str = '',
  settings: Mapping[str, Any] | None = None,
  steps: int | None = None,
  epochs: int | None = None,
  seed: int | None = None,
  workdir: str | os.PathLike | None = None,
  progress: bool = True,
) -> RankingRun: ...


def fit(
  events,
  model='sasrec',
  *,
  user='user',
  item='item',
  time='time',
  label='label',
  features=None,
  group='',
  settings=None,
  steps=None,
  epochs=None,
  seed=None,
  workdir=None,
  progress=True,
):
  """Trains a model on data at hand, evaluates it and writes a report.

  To recommend what comes next ('hstu', 'sasrec'), a row is an event: who, what
  and when.

      run = genrec_jax.fit('events.csv', 'sasrec', user='customer')
      run.recommend([['bed', 'lamp', 'desk']], k=3)

  The last event of each user tests and the one before it validates, so that a
  user needs four events to be trained on. Items that a user has had before are
  neither recommended nor counted as hits, unless `settings` says
  `{'eval.filter_seen': 'none'}`.

  To rank ('wukong', 'dlrm', 'dcn', 'deepfm', 'finalmlp', 'dnn', 'fm', 'lr', and
  'tbsm' where there are histories), a row is an example with a label of 0 or 1.
  All other columns are features: text and whole numbers are categories, floats
  are numbers, lists are sets.

  >>> import genrec_jax
  >>> clicks = {
  ...   'shop': ['a', 'b'] * 20,
  ...   'price': [1.0, 2.0] * 20,
  ...   'click': [0, 1] * 20,
  ... }
  >>> run = genrec_jax.fit(
  ...   clicks, 'lr', label='click', steps=2, progress=False
  ... )
  >>> run.score({'shop': ['b', 'new'], 'price': [2.0, 1.5]}).shape
  (2,)

  Args:
    events: arrays by name, a list of rows by name, a NumPy structured array, a
      DataFrame of pandas, polars or pyarrow, or the path of a CSV or Parquet
      file, or of a directory of such files.
    model: name of the model.
    user: to recommend: column of the users, text or whole numbers.
    item: column of the items, likewise.
    time: column of the times: dates, or numbers of seconds since 1970. None
      where there are none and the events of each user stand in their order.
    label: to rank: column of the label, or several.
    features: to rank: names of the columns that are features; or column ->
      'categorical', 'numeric', 'multi_hot', 'sequence' or options (see
      docs/ranking_data.md) for those that shall be otherwise than their values
      suggest, None for those to leave out.
    group: to rank: column of the groups within which a grouped AUC is measured,
      such as the users.
    settings: dotted key of the config -> value, such as
      `{'model.dim': 64, 'train.batch_size': 256}`; docs/training.md lists them.
    steps: how many steps to train, in place of `epochs`.
    epochs: how often to see the data, at most: to recommend, training stops
      when five evaluations were not better ('train.patience').
    seed: of everything random; 0 by default.
    workdir: directory of the run, in which the same call continues after an
      interruption. None makes a temporary one, which goes when the run object
      does or the process ends; `run.save(path)` keeps what is needed.
    progress: whether to show a line of progress and a table of the metrics;
      warnings are shown in any case.

  Returns:
    A `RetrievalRun` or a `RankingRun`.

  Raises:
    TypeError: `events` is nothing that has columns.
    ValueError: the data or a setting cannot be used; the message says why.
    FileNotFoundError: there is no such file.
    FloatingPointError: the loss is not finite any more.
    InterruptedError: SIGTERM stopped the training.
    KeyboardInterrupt: you did; the step under way was finished and saved first.
      (A second interrupt is raised at once.)
  """
  ranks = _is_ranker(model)
  if not isinstance(features, str | Mapping | None):
    features = _to_names('features', features)
  labels = [label] if isinstance(label, str) else _to_names('label', label)
  for role, name in dict(user=user, item=item, time=time, group=group).items():
    if role != 'time' or time is not None:
      _to_names(role, [name])
  _refuse_strangers(
    model,
    ranks,
    dict(user=user, item=item, time=time),
    dict(label=label, features=features, group=group),
  )
  config = _ranking_config(model) if ranks else _retrieval_config(model)
  if ranks:
    config.data.update(labels=tuple(labels), group=group)
  with _say_settings():
    _set_training(config, flatten_settings(settings), steps, epochs, seed)
    settings_checks.check_settings(config)
  temporary = workdir is None
  if workdir == '':  # which pathlib reads as the current directory
    raise ValueError("workdir is '', must be the path of a directory, or None")
  if temporary:
    workdir = tempfile.mkdtemp(prefix='genrec_jax-')
  workdir = pathlib.Path(workdir)
  if workdir.exists() and not workdir.is_dir():
    raise ValueError(f'workdir={str(workdir)!r} is a file, not a directory')
  try:
    with _hide_output(not progress), _say_settings():
      if ranks:
        _name_examples(config, events, features, workdir)
      else:
        _name_events(config, events, user, item, time, workdir)
      _train_in(config.lock(), workdir, temporary)
  except BaseException:
    if temporary:
      shutil.rmtree(workdir, ignore_errors=True)
    raise
  return (RankingRun if ranks else RetrievalRun)(workdir, temporary=temporary)


def _to_names(argument: str, names) -> list[str]:
  """Names of columns, or an error."""
  if not isinstance(names, Iterable):
    names = [names]  # which is then refused
  names = list(names)
  for name in names:
    if not isinstance(name, str):
      raise ValueError(
        f'{argument} is {name!r}, must be the name of a column, which is text '
        "(a column that is called 0 is '0')"
      )
  return names


def _train_in(
  config: ConfigDict, workdir: pathlib.Path, temporary: bool
) -> None:
  extensions = extensions_lib.load_extensions(config.extensions)
  kinds = extensions_lib.add_to_kinds(TASK_KINDS, extensions)
  use_compile_cache(config)
  report = loop.train_and_evaluate(config, workdir, kinds, extensions)
  if report is None:
    remedy = f'the same call with workdir={str(workdir)!r} continues it'
    if temporary:
      remedy = 'only a run with a workdir of its own can be continued'
    raise InterruptedError(f'the training was stopped by SIGTERM; {remedy}')


def _is_ranker(model) -> bool:
  if not isinstance(model, str) or model not in (*RETRIEVERS, *RANKERS):
    raise ValueError(
      f'model is {model!r}; {describe_models(model, tasks=_TASKS)}'
    )
  return model in RANKERS


def _refuse_strangers(model, ranks: bool, of_events, of_examples) -> None:
  """Refuses arguments that a model of this kind would not follow."""
  usual = dict(
    user='user',
    item='item',
    time='time',
    label='label',
    features=None,
    group='',
  )
  verb, others = ('ranks', RETRIEVERS) if ranks else ('recommends', RANKERS)
  for name, value in (of_events if ranks else of_examples).items():
    if value != usual[name]:
      raise ValueError(
        f'{name}={value!r} is for models such as {others[0]!r}, and {model!r} '
        f'{verb}; leave it out, or choose one of {", ".join(others)}'
      )


def _retrieval_config(model: str) -> ConfigDict:
  """The defaults for a log of one's own, as in configs/own_csv.py."""
  config = config_lib.retrieval()
  config_lib.set_model(config, model)
  config.data.name = 'histories'  # unless it turns out to be a file
  config.split.windows = 'all'
  config.train.epochs = 100
  config.train.patience = 5
  config.eval.filter_seen = 'history'
  return config


def _ranking_config(model: str) -> ConfigDict:
  config = config_lib.ranking()
  config_lib.set_model(config, model)
  config.data.name = 'prepared'  # unless it turns out to be a file
  config.data.numeric = 'standardize'  # columns of a DataFrame have any scale
  return config


def _set_training(config, settings, steps, epochs, seed) -> None:
  for key, argument in ARGUMENTS.items():
    if key in settings:
      raise ValueError(f'settings[{key!r}] is set by {argument} of fit')
  apply_settings(config, settings)
  if steps is not None and epochs is not None:
    raise ValueError('steps and epochs are both given; leave one of them out')
  training = {}
  for key, value, least in (
    ('train.steps', steps, 1),
    ('train.epochs', epochs, 1),
    ('seed', seed, 0),
  ):
    if value is None:
      continue
    if not columns_lib.is_whole_number(value) or value < least:
      raise ValueError(
        f'{key.split(".")[-1]} is {value!r}, must be a whole number, {least} '
        'or more'
      )
    training[key] = int(value)
  for key in training:
    if key in settings:
      name = key.split('.')[-1]
      raise ValueError(f'{name}= and settings[{key!r}] are both given')
  if epochs is not None:
    config.train.steps = 0
  apply_settings(config, training)


def _name_events(config, events, user, item, time, workdir) -> None:
  """Makes `config.data` name the events, written where they are not files."""
  config.data.columns.update(user=user, item=item, time=time or '')
  if time is None and config.model.get('time_bias'):
    raise ValueError(
      f'model={config.model.name!r} reads times, and time is None; give the '
      "column of the times, or settings={'model.time_bias': False}"
    )
  if isinstance(events, str | os.PathLike):
    _name_files(config, events)
    return
  columns = columns_lib.read_columns(events)
  config.data.path = str(
    events_lib.write_events(columns, config.data, workdir / 'data', LOG.info)
  )
  config.data.name = 'histories'


def _name_examples(config, examples, features, workdir) -> None:
  """The same of examples."""
  if isinstance(examples, str | os.PathLike):
    _name_files(config, examples)
    if features is not None:
      config.data.features = ConfigDict(
        _features_of_files(config.data, features)
      )
    return
  columns = columns_lib.read_columns(examples, 'examples')
  if features is None and (kept := saved_encoder.read_features(workdir)):
    features = {**dict.fromkeys(columns), **kept}
  config.data.path = str(
    examples_lib.write_examples(
      columns, config.data, features, workdir / 'data', LOG.info
    )
  )
  config.data.name = 'prepared'


def _name_files(config, path) -> None:
  path = remote_files.locate(path)
  if not path.exists():
    raise FileNotFoundError(f'{path}: no such file')
  config.data.name, config.data.path = format_of(path), str(path.resolve())
  if (
    path.name.lower().endswith(('.tsv', '.tsv.gz'))
    and not config.data.delimiter
  ):
    config.data.delimiter = '\t'


def _features_of_files(cfg, features: Features) -> dict:
  """`config.data.features` for a file, as the user has changed them."""
  file_format = formats.find_format(cfg.name)
  path = remote_files.locate(cfg.path)
  if path.is_dir():
    suffixes = file_format.SUFFIXES
    files = split_files.find_files(cfg, path, {}, suffixes, log=LOG.debug)
    path = files['train'][0]
  reading = formats.settle_reading(cfg, path, LOG.debug)
  by_type = file_format.default_features(path, reading)
  beside = build_annotations(cfg, cfg.labels).columns.values()
  return examples_lib.choose_guesses(
    formats.guess_features(path, reading, cfg.labels, beside),
    by_type,
    features,
    [*cfg.labels, *beside],
    path,
    LOG.info,
  )


@contextlib.contextmanager
def _say_settings():
  """Messages from within name settings where the command line has flags."""

  def translate(record: logging.LogRecord) -> bool:
    record.msg, record.args = translate_flags(record.getMessage()), ()
    return True

  LOG.addFilter(translate)
  try:
    yield
  except BaseException as error:
    if error.args and isinstance(error.args[0], str):
      error.args = (translate_flags(error.args[0]), *error.args[1:])
    raise
  finally:
    LOG.removeFilter(translate)


@contextlib.contextmanager
def _hide_output(quiet: bool):
  """Keeps progress and tables from being shown, but no warning."""
  token = IS_HIDDEN.set(quiet)
  try:
    with contextlib.redirect_stdout(io.StringIO() if quiet else sys.stdout):
      yield
  finally:
    IS_HIDDEN.reset(token)
