"""Trained runs: their metrics, what they recommend or score, their files."""

import abc
import functools
import html
import logging
import os
import pathlib
import shutil
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from genrec_jax import config as config_lib
from genrec_jax import extensions as extensions_lib
from genrec_jax import sealed
from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.data import fields, remote_files, scratch
from genrec_jax.data.items import ItemCatalogue
from genrec_jax.data.ranking import formats
from genrec_jax.data.ranking.saved_encoder import load_encoder
from genrec_jax.library import columns as columns_lib
from genrec_jax.library import examples as examples_lib
from genrec_jax.library import saved
from genrec_jax.library.events import read_ids, read_times, warn_of_unknown
from genrec_jax.library.files import format_of
from genrec_jax.runtime.build import plan_own_runtime
from genrec_jax.runtime.compile_cache import use_compile_cache
from genrec_jax.serve.predictor import Predictor
from genrec_jax.serve.scorer import Scorer
from genrec_jax.serve.weights import require_weights

LOG = logging.getLogger('genrec_jax')
# What predicting needs of the directory of a run, beside `saved.FILES`.
KEPT_FOLDERS = ('items', 'encoder', 'best')
_SHOWN = ('ndcg@10', 'hr@10', 'auc', 'logloss')  # metrics of a run in a line


class Run(abc.ABC):
  """What all runs have; the examples are of a `RetrievalRun`.

  Attributes:
    workdir: the directory of the run. Where `fit` was given none, it is a
      temporary one, which goes when the run object does or the process ends;
      `save` keeps what is needed of it.
    config: every setting of the run.
  """

  def __init__(self, workdir: str | os.PathLike, *, temporary: bool = False):
    """Opens the directory of a trained run; `fit` and `load` do that."""
    self.workdir = pathlib.Path(workdir)
    self.config = ConfigDict(
      config_lib.read_config(self.workdir / 'config.json')
    )
    if temporary:
      # Not TemporaryDirectory, which warns when it is left to the collector.
      weakref.finalize(self, shutil.rmtree, self.workdir, ignore_errors=True)

  def check_files(self) -> None:
    """Refuses a directory that lacks what predicting needs; `load` does that.

    The weights are read, and compared with their checksums, when they are
    first used.

    Raises:
      ValueError: a file is damaged, or there are no weights.
      FileNotFoundError: a file is missing.
    """
    require_weights(self.workdir)
    if self._has_report():
      _ = self._report

  def _has_report(self) -> bool:
    return os.path.lexists(self.workdir / 'report.json')

  @functools.cached_property
  def _report(self) -> dict:
    path = self.workdir / 'report.json'
    if not self._has_report():
      if not self.config.eval.splits:
        return {}  # nothing was to be evaluated
      raise FileNotFoundError(
        f'{path}: no such file, so that the metrics are not known; the '
        'training has not ended, or the file was removed'
      )
    files = sealed.open_file(
      path,
      'put back a whole copy, or remove the file: all but the metrics works '
      'without it',
    )
    return files.read_json(path.name, metrics=dict)

  @property
  def metrics(self) -> dict[str, dict[str, float]]:
    """'valid' and 'test' -> name of a metric -> its value.

    They are those of the weights that predict: the best by validation. A run
    that evaluates nothing ('eval.splits') has none.

    >>> sorted(run.metrics)
    ['test', 'valid']

    Raises:
      FileNotFoundError: the training has not ended.
    """
    return _to_numbers(self._report.get('metrics', {}))

  @property
  def baselines(self) -> dict[str, dict[str, dict[str, float]]]:
    """Name of the baseline, which needs no model -> the same metrics of it.

    >>> sorted(run.baselines['popularity'])
    ['test', 'valid']

    Raises:
      FileNotFoundError: the training has not ended.
    """
    return _to_numbers(self._report.get('baselines', {}))

  def report(self) -> pathlib.Path:
    """The page with curves, metrics and examples.

    >>> run.report().name
    'report.html'

    Returns:
      The path of an HTML file.

    Raises:
      FileNotFoundError: the training has not ended, or evaluated nothing.
    """
    path = self.workdir / 'report.html'
    if not path.exists():
      raise FileNotFoundError(
        f'{path}: no such file; the training has not ended, or nothing was '
        'evaluated (eval.splits), so that this run has no report'
      )
    return path

  def save(self, path: str | os.PathLike) -> pathlib.Path:
    """Keeps what `genrec_jax.load` needs in a directory of its own.

    Weights, vocabularies, settings and the report are copied; the training data
    and what a training would continue from are not.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...   run.save(folder + '/model').name
    'model'

    Args:
      path: the directory to make.

    Returns:
      The directory.

    Raises:
      FileExistsError: there is something already.
      ValueError: the path is inside the workdir of the run.
    """
    path = pathlib.Path(path)
    saved.check_place(path, self.workdir)
    with scratch.staged_directory(path) as partial:
      folders = list(KEPT_FOLDERS)
      with CheckpointManager(self.workdir / 'best', log=LOG.warning) as best:
        if best.latest() is None:
          folders.append('checkpoints')  # a run without validation
      for name in folders:
        if (self.workdir / name).is_dir():
          shutil.copytree(self.workdir / name, partial / name)
      saved.copy_files(self.workdir, partial)
    return path

  @property
  def _placement(self) -> dict:
    """Where the weights go: on the mesh of the training if it is there."""
    extensions = extensions_lib.load_extensions(self.config.get('extensions'))
    make_runtime = plan_own_runtime(self.config, extensions)
    return {'extensions': extensions, 'make_runtime': make_runtime}

  def __repr__(self) -> str:
    parts = [self.config.model.name]
    metrics = self.metrics if self._has_report() else {}
    for split, values in metrics.items():
      names = [m for m in _SHOWN if m in values] or list(values)[:2]
      texts = [f'{name} {values[name]:.4f}' for name in names]
      parts.append(f'{split}: {", ".join(texts)}')
    return f'{type(self).__name__}({"; ".join(parts)}; {self.workdir})'

  def _repr_html_(self) -> str:
    """A table of the metrics, for notebooks."""
    if not self._has_report():
      return html.escape(repr(self))
    columns = {
      **self.metrics,
      **{
        f'{split}, {name}': values
        for name, splits in self.baselines.items()
        for split, values in splits.items()
      },
    }
    names = list(dict.fromkeys(m for x in columns.values() for m in x))
    head = ''.join(f'<th>{html.escape(name)}</th>' for name in columns)
    lines = []
    for name in names:
      cells = ''.join(
        f'<td>{values[name]:.4f}</td>' if name in values else '<td></td>'
        for values in columns.values()
      )
      lines.append(f'<tr><th>{html.escape(name)}</th>{cells}</tr>')
    model = html.escape(self.config.model.name)
    return (
      f'<table><thead><tr><th>{model}</th>{head}</tr></thead>'
      f'<tbody>{"".join(lines)}</tbody></table>'
    )


def _to_numbers(tree):
  """Metrics as numbers; the report says NaN and infinity in words."""
  if isinstance(tree, dict):
    return {name: _to_numbers(x) for name, x in tree.items()}
  return float(tree)


class RetrievalRun(Run):
  """A trained model that says which item comes next; `genrec_jax.fit` makes it.

  >>> import genrec_jax
  >>> events = {
  ...   'user': [n // 5 for n in range(60)],
  ...   'item': [n * 7 % 11 for n in range(60)],
  ...   'time': list(range(60)),
  ... }
  >>> run = genrec_jax.fit(
  ...   events,
  ...   'sasrec',
  ...   steps=2,
  ...   settings={'eval.ks': (1, 10), 'model.blocks': 1, 'model.max_len': 8},
  ...   progress=False,
  ... )
  >>> sorted(run.metrics['test'])
  ['hr@1', 'hr@10', 'mrr', 'ndcg@1', 'ndcg@10']
  """

  _has_warned = False

  @functools.cached_property
  def _predictor(self) -> Predictor:
    return Predictor.load(self.workdir, self.config, **self._placement)

  def recommend(
    self,
    histories: Sequence[Sequence] | Mapping[Any, Sequence],
    k: int = 10,
    *,
    times: Sequence[Sequence] | Mapping[Any, Sequence] | None = None,
    request_time: int | None = None,
  ) -> list[list[tuple[Any, float]]] | dict[Any, list[tuple[Any, float]]]:
    """The best next items of some users.

    Scores rank the items of one user; they are not probabilities.

    >>> [[best, second]] = run.recommend([[3, 10]], k=2)
    >>> item, score = best
    >>> item in (3, 10), score > second[1]
    (False, True)
    >>> list(run.recommend({'ann': [3, 10], 'bob': [4]}))
    ['ann', 'bob']

    Args:
      histories: the items of each user from the oldest on, by their own ids; or
        user -> items. Items that the model does not know are skipped.
      k: how many items.
      times: of the same form, dates or numbers as those of the training;
        needed by a model with `model.time_bias`, such as 'hstu' by default.
      request_time: the moment for which is recommended, a date or seconds
        since 1970, for the same models; None for that of each user's last
        event.

    Returns:
      For each user (item, score), best first: k of them, fewer where the user
      has seen nearly everything, none for a user without a single known item.
      A list, or a dict where `histories` is a mapping.

    Raises:
      ValueError: the histories, `k` or the times cannot be used; the message
        says why.
    """
    if not columns_lib.is_whole_number(k) or k < 1:
      raise ValueError(f'k is {k!r}, must be a whole number, 1 or more')
    if isinstance(histories, Mapping):
      users = list(histories)
      if times is not None:
        if not isinstance(times, Mapping):
          raise ValueError('histories is a mapping, so times must be one too')
        if missing := [user for user in users if user not in times]:
          raise ValueError(f'times has none for user {missing[0]!r}')
        times = [times[user] for user in users]
      answers = self.recommend(
        [histories[user] for user in users],
        k,
        times=times,
        request_time=request_time,
      )
      return dict(zip(users, answers, strict=True))
    histories = [
      _read_history(f'history {i}', items)
      for i, items in enumerate(_to_list('histories', histories, 'histories'))
    ]
    if times is None and self.config.model.get('time_bias'):
      raise ValueError(
        'this model reads times (model.time_bias): give those of the events as '
        'times=, lists beside the histories'
      )
    if times is not None:
      unit = self.config.data.time_unit
      times = [
        _read_times(f'times {i}', own, unit)
        for i, own in enumerate(_to_list('times', times, 'lists of times'))
      ]
    if request_time is not None:
      asked = _read_times('request_time', [request_time], 's')
      request_time = asked.seconds.item()
    answers = (predictor := self._predictor).recommend(
      histories,
      min(int(k), max(1, len(predictor.items.corpus))),  # k costs memory
      times=times,
      request_time=request_time,
    )
    if not (self._has_warned or any(answers)):
      self._has_warned = warn_of_unknown(histories, predictor.items.vocab.ids)
    return answers

  def check_files(self) -> None:
    super().check_files()
    ItemCatalogue.load(self.workdir)


def _to_list(name: str, values: Any, wanted: str) -> list:
  try:
    if isinstance(values, str | bytes | set | frozenset):  # sets: no order
      raise TypeError
    return list(values)
  except TypeError:
    raise ValueError(
      f"{name} is {values!r}, must be a list of {wanted}: give a list for each "
      "user, as in [['lamp', 'desk'], ['lamp']]"
    ) from None


def _read_history(name: str, items) -> list:
  """The ids of a history, text or whole numbers."""
  items = _to_list(name, items, 'items')
  if not items:
    return items
  values = columns_lib.to_objects(items)
  column = columns_lib.parse_column(name, values)
  if (
    column.present is not None
    or column.lengths is not None
    or columns_lib.holds_bools(values)
  ):
    raise ValueError(f'{name} holds {items!r}, must be ids of items')
  return items if column.kind == 'text' else read_ids(name, column).tolist()


def _read_times(name: str, times, unit: str) -> fields.Times:
  """Those of a history."""
  times = _to_list(name, times, 'times')
  if not times:
    return fields.Times(np.zeros(0, np.int64))
  column = columns_lib.parse_column(name, columns_lib.to_objects(times))
  if column.lengths is not None:
    raise ValueError(f'{name} holds {times!r}, must be times')
  return read_times(name, column, unit)


class RankingRun(Run):
  """A trained model that says how likely a label is; `genrec_jax.fit` makes it.

  >>> import genrec_jax
  >>> examples = {'shop': ['a', 'b'] * 20, 'label': [0, 1] * 20}
  >>> run = genrec_jax.fit(examples, 'lr', steps=1, progress=False)
  >>> run.features, run.labels
  (('shop',), ('label',))
  """

  @functools.cached_property
  def _scorer(self) -> Scorer:
    return Scorer.load(self.workdir, self.config, **self._placement)

  @property
  def labels(self) -> tuple[str, ...]:
    """What `score` gives the probabilities of."""
    return tuple(self._scorer.labels)

  @property
  def features(self) -> tuple[str, ...]:
    """The columns that `score` reads."""
    return tuple(self._scorer.encoder.schema.sources)

  @property
  def values(self) -> dict[str, Mapping[str, Any]]:
    """Split, or 'scored' for what `score` was given -> feature -> counts.

    >>> _ = run.score({'shop': ['b', 'never seen', None]})
    >>> run.values['scored']['shop'].unseen > 0
    True
    """
    return {**self._scorer.encoder.value_counts, 'scored': self._scorer.values}

  def score(self, examples: Any) -> np.ndarray:
    """The probability of the label for each example.

    >>> run.score({'shop': ['b', 'a', 'never seen']}).shape
    (3,)

    Args:
      examples: arrays by name, a list of rows by name, a DataFrame or the path
        of a file with the columns that the model was trained on. Labels and
        other columns are not read.

    Returns:
      `[N]` float32; `[N, L]` of a model with several labels, in the order of
      `labels`.

    Raises:
      TypeError: `examples` has no columns.
      ValueError: a column is missing or cannot be read.
      FileNotFoundError: there is no such file.
    """
    if isinstance(examples, str | os.PathLike):
      scorer, path = self._scorer, remote_files.locate(examples)
      chunks = formats.read_examples(scorer.encoder, path, format_of(path))
    else:
      chunks = self._make_chunks(examples)
    none = np.zeros((0, len(self.labels)), np.float32)
    scores = np.concatenate([none, *self._scorer.score_chunks(chunks)])
    return scores[:, 0] if scores.shape[1] == 1 else scores

  def check_files(self) -> None:
    super().check_files()
    load_encoder(self.workdir)

  def _make_chunks(self, examples):
    schema = self._scorer.encoder.schema
    columns = columns_lib.read_columns(examples, 'examples', may_be_empty=True)
    typed = {
      name: columns_lib.find_column(
        columns, name, 'a feature of this model', 'examples', ''
      )
      for name in schema.sources
    }
    return examples_lib.Chunks(typed, schema)(schema.sources)


KINDS = {'retrieval': RetrievalRun, 'ranking': RankingRun}


def load(path: str | os.PathLike) -> RetrievalRun | RankingRun:
  """Opens a run that was saved, or any workdir of the command line.

  The training data need not exist any more.

  >>> import genrec_jax
  >>> import tempfile
  >>> examples = {'shop': ['a', 'b'] * 20, 'label': [0, 1] * 20}
  >>> run = genrec_jax.fit(examples, 'lr', steps=1, progress=False)
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   again = genrec_jax.load(run.save(folder + '/model'))
  ...   scores = again.score({'shop': ['b']})
  >>> scores.shape
  (1,)

  Args:
    path: what `save` was given, or the --workdir of a training.

  Returns:
    A `RetrievalRun` or a `RankingRun`, as `fit` has returned it.

  Raises:
    FileNotFoundError: there is no run, or a file of it is missing.
    ValueError: a file is damaged, there are no weights, or the run is of a kind
      of task from outside the library.
  """
  path = pathlib.Path(path)
  with saved.explain_errors(path):
    saved.check_saved(path)
    config = config_lib.read_config(path / 'config.json')
    task = config.get('task')
    saved.check_task(path, task, KINDS)
    use_compile_cache(config)
    run = KINDS[task](path)
    run.check_files()
  return run
