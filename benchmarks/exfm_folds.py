"""Teachers of three folds of Frappe, for benchmarks/exfm_public.py.

    RUNS/frappe/files/train_without_0.csv   two thirds of the training rows
                      fold_0.csv            the third that is left
                      scored.csv            all of them, with scores
                      valid.csv, test.csv   as they are, without scores
    RUNS/frappe/teachers/fold0              the run of a teacher
    RUNS/frappe/data                        what runs read

Each row is drawn into a fold. A row is scored by the teacher that was trained
on the two other folds; validation rows choose the epoch of every run, and test
rows do nothing but test. Rows of Frappe have no times: a draw is all there is.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Sequence

import numpy as np

from benchmarks import runs
from benchmarks.dmt_quality import train_to_the_end
from genrec_jax import config as config_lib
from genrec_jax.config.rankers import shrink_ranker
from genrec_jax.data.scratch import staged_directory
from genrec_jax.serve.scorer import Scorer
from genrec_jax.tasks import ranking_metrics

FOLDS = 3
PIECES = 20  # of the users whose test rows are measured together
TEACHER = 'configs/wukong_frappe.py'
STUDENT = 'configs/frappe.py:dlrm'
MODEL = dict(dim=4, interaction='cat', top=(32,))
SCORES = ('teacher', 'teacher_weight')
_SPLITS = ('valid', 'test')


@dataclasses.dataclass(frozen=True)
class Table:
  """Rows of a CSV file, as they stand there.

  Attributes:
    header: the first line.
    lines: `[N]` the others.
  """

  header: str
  lines: Sequence[str]

  @classmethod
  def read(cls, path: pathlib.Path) -> 'Table':
    header, *lines = path.read_text().splitlines()
    return cls(header, lines)

  def write(self, path: pathlib.Path) -> None:
    path.write_text('\n'.join([self.header, *self.lines]) + '\n')

  def take(self, at: np.ndarray) -> 'Table':
    """The rows at some places."""
    return Table(self.header, [self.lines[i] for i in at])

  def add_columns(
    self, names: Sequence[str], values: Sequence[Sequence[float]]
  ) -> 'Table':
    """With further columns.

    >>> Table('a', ['1']).add_columns(['b', 'c'], [[0.5], [1]])
    Table(header='a,b,c', lines=['1,0.5,1'])
    """
    lines = [
      ','.join([line, *(f'{x:.7g}' for x in own)])
      for line, *own in zip(self.lines, *values, strict=True)
    ]
    return Table(','.join([self.header, *names]), lines)

  def read_columns(self) -> dict[str, np.ndarray]:
    """Column -> `[N]` texts."""
    cells = np.array([line.split(',') for line in self.lines])
    return dict(zip(self.header.split(','), cells.T, strict=True))


@dataclasses.dataclass(frozen=True)
class Folds:
  """Frappe in three folds, and all that was made of it so far.

  Attributes:
    folder: of all of it.
    data: directory of the CSV files.
    train_file: the one with the training rows.
    smoke: whether models and runs are tiny.
  """

  folder: pathlib.Path
  data: pathlib.Path
  train_file: str
  smoke: bool = False

  @functools.cached_property
  def files(self) -> pathlib.Path:
    """The directory of folds and splits, made unless it is there."""
    done = self.folder / 'files'
    if not done.exists():
      train = Table.read(self.data / self.train_file)
      fold = draw_folds(len(train.lines))
      with staged_directory(done) as making:
        for k in range(FOLDS):
          train.take(np.flatnonzero(fold != k)).write(making / without(k))
          train.take(np.flatnonzero(fold == k)).write(making / f'fold_{k}.csv')
        for split in _SPLITS:
          rows = Table.read(self.data / f'Frappe_x1_{split}.csv')
          none = np.zeros(len(rows.lines))
          rows.add_columns(SCORES, [none, none]).write(making / f'{split}.csv')
    return done

  def train_teacher(self, fold: int) -> pathlib.Path:
    """The workdir of the teacher that does not see a fold."""
    workdir = self.folder / 'teachers' / f'fold{fold}'
    if not runs.ended(workdir):
      config = config_lib.load(str(runs.ROOT / TEACHER))
      self._set_data(config, without(fold))
      config.seed = fold
      train_to_the_end(config, workdir)
    return workdir

  def score_fold(self, fold: int) -> np.ndarray:
    """`[N]` what its teacher says of the rows of a fold."""
    rows = Table.read(self.files / f'fold_{fold}.csv')
    return score(self.train_teacher(fold), rows)

  @functools.cached_property
  def scored(self) -> pathlib.Path:
    """The file of training rows with scores, made unless it is there."""
    done = self.files / 'scored.csv'
    if not done.exists():
      # In the order of the training file, whose folds are drawn again.
      train = Table.read(self.data / self.train_file)
      fold = draw_folds(len(train.lines))
      scores = np.zeros(len(fold))
      for k in range(FOLDS):
        scores[fold == k] = self.score_fold(k)
      making = done.with_suffix('.partial')
      train.add_columns(SCORES, [scores, np.ones(len(fold))]).write(making)
      making.rename(done)
    return done

  def measure_teachers(self) -> dict[str, float]:
    """Metrics of the scores of the training rows."""
    columns = Table.read(self.scored).read_columns()
    return measure(columns['label'], columns['teacher'].astype(np.float64))

  def train_student(
    self, name: str, seed: int, table_l2: float, **distill
  ) -> pathlib.Path:
    """The workdir of a student.

    Args:
      name: of its directory.
      seed: of its weights and batches.
      table_l2: factor of the squares of its rows.
      **distill: keys of the section `distill`.
    """
    workdir = self.folder / 'students' / name
    if not runs.ended(workdir):
      config = config_lib.load(str(runs.ROOT / STUDENT))
      with config.model.ignore_type():
        config.model.update(MODEL | {'dropout': 0.0})
      self._set_data(config, self.scored.name)
      config.data.extras = dict.fromkeys(SCORES, 'float')
      config.seed, config.loss.table_l2 = seed, table_l2
      config.distill.update(distill)
      train_to_the_end(config, workdir)
    return workdir

  def measure_pieces(
    self, workdir: pathlib.Path
  ) -> tuple[list[float], list[int]]:
    """Log loss of a run on the test rows of pieces of the users, and rows."""
    rows = Table.read(self.files / 'test.csv')
    columns = rows.read_columns()
    losses = find_losses(columns['label'], score(workdir, rows))
    piece = draw_pieces(columns['user'])
    each = [losses[piece == k] for k in np.unique(piece)]
    return [float(x.mean()) for x in each], [len(x) for x in each]

  def _set_data(self, config, train: str) -> None:
    data = config.data
    data.path, data.cache = str(self.files), str(self.folder / 'data')
    data.files.update(train=train, valid='valid.csv', test='test.csv')
    config.report.importance_rows = 0
    if self.smoke:
      shrink_ranker(config.model)
      config.train.update(batch_size=256, epochs=2)


def without(fold: int) -> str:
  """The file of the rows that a teacher is trained on."""
  return f'train_without_{fold}.csv'


def draw_folds(rows: int) -> np.ndarray:
  """`[N]` the fold of each training row, the same in every run."""
  return np.random.default_rng(0).integers(0, FOLDS, rows)


def draw_pieces(users: np.ndarray) -> np.ndarray:
  """`[N]` the piece of each row; all rows of a user are in one.

  >>> piece = draw_pieces(np.array(['7', '5', '7']))
  >>> bool(piece[0] == piece[2])
  True
  """
  names, number = np.unique(users, return_inverse=True)
  order = np.random.default_rng(0).permutation(len(names))
  return order[number] % PIECES


def score(workdir: pathlib.Path, rows: Table) -> np.ndarray:
  """`[N]` what the best weights of a run say of some rows."""
  scorer = Scorer.load(workdir)
  columns = rows.read_columns()
  values = {name: columns[name] for name in scorer.encoder.schema.sources}
  return scorer.score(values)[:, 0]


def find_losses(labels: np.ndarray, p: np.ndarray) -> np.ndarray:
  """`[N]` log losses of probabilities `p`."""
  y = labels.astype(np.float64)
  p = np.clip(p.astype(np.float64), 1e-7, 1 - 1e-7)
  return -(y * np.log(p) + (1 - y) * np.log1p(-p))


def measure(labels: np.ndarray, p: np.ndarray) -> dict[str, float]:
  """AUC and log loss of probabilities `p`."""
  y = labels.astype(np.float64)
  logits = np.log(p) - np.log1p(-p)
  auc = ranking_metrics.measure_labels(logits[:, None], y[:, None])['auc']
  return {'auc': auc, 'logloss': float(find_losses(labels, p).mean())}


def invent_frappe(path: pathlib.Path, train_file: str) -> None:
  """Writes small made-up files in the layout of Frappe_x1."""
  rng = np.random.default_rng(0)
  header = (
    'label,user,item,daytime,weekday,isweekend,homework,cost,weather,country,'
    'city'
  )
  path.mkdir(parents=True, exist_ok=True)
  files = (train_file, 'Frappe_x1_valid.csv', 'Frappe_x1_test.csv')
  for name, rows in zip(files, (1800, 600, 600), strict=True):
    ids = rng.integers(0, 12, (rows, 10))
    logit = (ids[:, 0] + ids[:, 1]) % 5 - 2 + rng.normal(0, 1, rows)
    label = (logit > 0).astype(int)
    lines = [','.join(map(str, x)) for x in np.column_stack([label, ids])]
    Table(header, lines).write(path / name)
