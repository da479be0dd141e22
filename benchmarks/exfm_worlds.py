"""Streams, teachers and students of benchmarks/exfm.py, each made once.

    RUNS/STREAM/seed1/all/window-000000.parquet ...   all examples, labelled
                      base.parquet                    windows 0 and 1
                      teachers/NAME/                  the run of a teacher
                      scores/NAME_lag0/               what it says of examples
                      parts/NAME_lag0_segment0/       what a student reads
                      students/...                    the runs of students

Labels are there at once: what a join loses is measured elsewhere. Window w is
scored by the teacher as it was behind window w - 1 - lag, by the library's own
pieces: a run on a growing directory, a checkpoint behind each part, a store of
scores.
"""

import dataclasses
import functools
import json
import math
import pathlib
import shutil
import time

import jax
import numpy as np

from benchmarks.runs import ROOT
from genrec_jax import config as config_lib
from genrec_jax.data.growing import END
from genrec_jax.data.parquet import pa, pq
from genrec_jax.data.ranking import drift, drift_files
from genrec_jax.data.scratch import replaced_file
from genrec_jax.distill.attach import attach_scores
from genrec_jax.distill.teacher_store import Scores, TeacherStore
from genrec_jax.report.metric_writers import read_jsonl
from genrec_jax.serve.scorer import Scorer
from genrec_jax.serve.snapshots import Snapshots, number_window
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import loop

TEACHER = 'exfm_teacher_synthetic.py'
STUDENT = 'exfm_student_synthetic.py'
# Sizes of the teacher, beside that of its config.
SIZES = {
  'small': dict(dim=8, layers=1, fmb_hidden=(32,), top=(32,)),
  'medium': {},
  'large': dict(dim=32, layers=3, fmb=8, lcb=8, fmb_hidden=(128,), top=(128,)),
}
EVERYTHING = -1  # the segment of a teacher of all


@dataclasses.dataclass(frozen=True)
class Teacher:
  """A teacher.

  Attributes:
    size: of `SIZES`.
    segment: whose examples it is trained on; EVERYTHING for all.
  """

  size: str = 'medium'
  segment: int = EVERYTHING

  @property
  def name(self) -> str:
    """Of its directory.

    >>> Teacher('small', 1).name
    'small_of_1'
    """
    own = self.segment != EVERYTHING
    return self.size + (f'_of_{self.segment}' if own else '')


class World:
  """A stream, and all that was made of it so far."""

  def __init__(self, folder: pathlib.Path, log: drift.DriftLog):
    """Makes nothing yet.

    Args:
      folder: of this stream and seed.
      log: the stream.
    """
    self.folder, self.log = folder, log
    options = json.loads(json.dumps(dataclasses.asdict(log), default=str))
    path = folder / 'stream.json'
    if not path.exists():
      folder.mkdir(parents=True, exist_ok=True)
      path.write_text(json.dumps(options, indent=1) + '\n')
    if json.loads(path.read_text()) != options:
      raise ValueError(
        f'{folder} was made of another stream ({path.name}): use another --runs'
      )

  def list_parts(self, segment: int = EVERYTHING) -> pathlib.Path:
    """The directory of labelled parts of a segment, or of all."""
    if segment == EVERYTHING:
      return self._make_directory('all', self._write_windows)
    return self._make_directory(
      f'segment{segment}', lambda into: self._write_segment(into, segment)
    )

  def train_teacher(self, teacher: Teacher) -> pathlib.Path:
    """The workdir of a teacher that has seen the whole stream."""
    workdir = self.folder / 'teachers' / teacher.name
    config = config_lib.load(str(ROOT / 'configs' / TEACHER))
    for key, value in SIZES[teacher.size].items():
      with config.model.ignore_type():
        config.model[key] = value
    self._set_stream(config, self.list_parts(teacher.segment))
    config.seed = getattr(self.log, 'seed', 0)
    config.checkpoint.at_part_ends = True
    config.train.keep_checkpoints = self.log.windows + 1
    train(config, workdir)
    return workdir

  def score(self, teacher: Teacher, lag: int) -> TeacherStore:
    """The store of what a teacher says of the examples it is asked for."""
    done = self.folder / 'scores' / f'{teacher.name}_lag{lag}'
    if not done.exists():
      making = done.with_name(f'.{done.name}')
      shutil.rmtree(making, ignore_errors=True)
      self._score(teacher, lag, making)
      making.rename(done)
    return TeacherStore.open_existing(done)

  def annotate(self, segment: int, teacher: Teacher, lag: int) -> pathlib.Path:
    """The directory of what a student of a segment reads."""
    name = f'parts/{teacher.name}_lag{lag}_segment{segment}'
    return self._make_directory(
      name, lambda into: self._annotate(into, segment, teacher, lag)
    )

  def train_student(
    self,
    name: str,
    model: str,
    parts: pathlib.Path,
    seed: int,
    rates: tuple[float, float] | None = None,
    **distill,
  ) -> pathlib.Path:
    """The workdir of a student that has read all its parts.

    Args:
      name: of its directory.
      model: a variant of the student's config.
      parts: what it reads.
      seed: of its weights.
      rates: of dense parameters and of rows; None for those of the config.
      **distill: keys of the section `distill`.
    """
    workdir = self.folder / 'students' / name
    config = self.configure_student(model, parts, seed, rates, **distill)
    train(config, workdir)
    return workdir

  def configure_student(
    self,
    model: str,
    parts: pathlib.Path,
    seed: int,
    rates: tuple[float, float] | None = None,
    **distill,
  ):
    """The config of a student; arguments as `train_student`."""
    config = config_lib.load(str(ROOT / 'configs' / f'{STUDENT}:{model}'))
    self._set_stream(config, parts)
    config.seed = seed
    config.data.extras = {'teacher': 'float', 'teacher_weight': 'float'}
    config.distill.weight = 'teacher_weight'
    config.distill.update(distill)
    if rates is not None:
      config.optimizer.learning_rate, config.optimizer.rows.learning_rate = (
        rates
      )
    # Saved at the end alone: what is measured is the cost of a student.
    config.train.checkpoint_every = 10**9
    return config

  def _set_stream(self, config, parts: pathlib.Path) -> None:
    data = config.data
    data.name, data.path = 'parquet', str(self._base)
    data.features = {
      name: {'kind': 'categorical'} for name in self.log.features
    }
    data.stream.update(directory=str(parts), poll_s=0.1)
    data.split.update(valid_fraction=0.0, test_fraction=0.0)
    config.eval.splits = ()
    config.train.update(steps=0, log_every=10**9)
    config.eval.progressive_windows = 'part'

  @functools.cached_property
  def _base(self) -> pathlib.Path:
    """What the vocabularies are made of."""
    path = self.folder / 'base.parquet'
    if not path.exists():
      parts = sorted(self.list_parts().glob('*.parquet'))[:2]
      table = pa.concat_tables(map(pq.read_table, parts))
      for name in ('teacher', 'teacher_weight'):
        none = pa.array(np.zeros(len(table), np.float32))
        table = table.append_column(name, none)
      with replaced_file(path) as partial:
        pq.write_table(table, partial)
    return path

  def _make_directory(self, name: str, fill) -> pathlib.Path:
    done = self.folder / name
    if not done.exists():
      making = done.with_name(f'.{done.name}')
      shutil.rmtree(making, ignore_errors=True)
      making.mkdir(parents=True)
      fill(making)
      (making / END).touch()
      making.rename(done)
    return done

  def _write_windows(self, into: pathlib.Path) -> None:
    stream = drift.DriftStream(self.log)
    for k in range(self.log.windows):
      window = stream.window(k)
      columns = drift_files.list_impressions(window) | {
        'label': window.label,
        'probability': window.probability,
      }
      pq.write_table(pa.table(columns), into / f'window-{k:06d}.parquet')

  def _write_segment(self, into: pathlib.Path, segment: int) -> None:
    for path in sorted(self.list_parts().glob('*.parquet')):
      table = pq.read_table(path)
      own = table['segment'].to_numpy() == segment
      pq.write_table(table.filter(pa.array(own)), into / path.name)

  def _score(self, teacher: Teacher, lag: int, into: pathlib.Path) -> None:
    workdir = self.train_teacher(teacher)
    steps = Snapshots(workdir).list_windows()
    store = TeacherStore.open(
      into, teacher=teacher.name, labels=['label'], fingerprint=teacher.name
    )
    scorer = None
    for path in sorted(self.list_parts(teacher.segment).glob('*.parquet')):
      source = number_window(path.name) - 1 - lag
      if source < 0:
        continue
      if scorer is None:
        scorer = Scorer.load(workdir, checkpoint=steps[source])
      elif scorer.step != steps[source]:
        scorer.use_step(workdir, steps[source])
      table = pq.read_table(path)
      names = scorer.encoder.schema.sources
      values = scorer.score({name: table[name].to_numpy() for name in names})
      scores = Scores(
        table['example_id'].to_numpy(), table['time'].to_numpy(), values,
        steps[source], source,
      )  # fmt: skip
      store.append(path.stem, scores)

  def _annotate(self, into, segment: int, teacher: Teacher, lag: int) -> None:
    store = self.score(teacher, lag)
    for path in sorted(self.list_parts(segment).glob('*.parquet')):
      table, _ = attach_scores(pq.read_table(path), store, 'unannotated')
      pq.write_table(table, into / path.name)


def train(config, workdir: pathlib.Path) -> None:
  """Trains to the end of the parts, unless that was done."""
  ended = workdir / 'ended.txt'
  if ended.exists():
    saved = config_lib.read_config(workdir / 'config.json')
    if why := config_lib.describe_differences(saved, config, ('train',)):
      raise ValueError(
        f'{workdir} is a run of another config: {"; ".join(why)}'
      )
    return
  is_whole = not workdir.exists()  # otherwise some of it was done before
  begun = time.process_time()
  with jax.numpy_dtype_promotion('standard'):  # for optax
    loop.train_and_evaluate(config, workdir, TASK_KINDS)
  spent = time.process_time() - begun if is_whole else math.nan
  ended.write_text(f'{spent:.2f}\n')


def read_core_s(workdir: pathlib.Path) -> float:
  """Core-seconds of a run from its start to its end; NaN if it was resumed."""
  return float((workdir / 'ended.txt').read_text())


@dataclasses.dataclass(frozen=True)
class Labels:
  """Labels of a segment in the windows that are measured.

  Attributes:
    rows: `[W]` of each window.
    rate: mean label of all of them.
    entropy: of that rate; what log losses are divided by.
    floor: NE of the true probabilities; NaN where the parts have none.
  """

  rows: np.ndarray
  rate: float
  entropy: float
  floor: float


def read_labels(parts: pathlib.Path) -> Labels:
  """Labels of the last half of the windows of some parts."""
  paths = sorted(parts.glob('*.parquet'))
  tables = [pq.read_table(path) for path in paths[len(paths) // 2 :]]
  table = pa.concat_tables(tables)
  y = table['label'].to_numpy().astype(np.float64)
  rate = float(y.mean())
  entropy, floor = float(measure_entropy(rate)), math.nan
  if 'probability' in table.column_names:  # generated streams know it
    p = table['probability'].to_numpy()
    floor = float(-(y * np.log(p) + (1 - y) * np.log1p(-p)).mean() / entropy)
  rows = np.array([len(x) for x in tables])
  return Labels(rows, rate, entropy, floor)


def measure_entropy(p):
  """H(p) in nats."""
  return -(p * np.log(p) + (1 - p) * np.log1p(-p))


def read_windows(workdir: pathlib.Path) -> list[dict]:
  """The lines of metrics.jsonl that end a window, oldest first."""
  rows = read_jsonl(workdir / 'metrics.jsonl')
  return [row for row in rows if 'train/logloss' in row]


def measure_student(workdir: pathlib.Path, labels: Labels) -> dict:
  """What a run says of the last half of its windows, one base rate for all."""
  windows = read_windows(workdir)
  early, last = windows[: -len(labels.rows)], windows[-len(labels.rows) :]

  def average(key):
    values = [row.get(f'train/{key}', np.nan) for row in last]
    return float(np.average(values, weights=labels.rows))

  predicted = [
    row['train/calibration'] for row in last
  ]  # predicted clicks over clicks
  return {
    'ne': average('logloss') / labels.entropy,
    'auc': average('auc'),
    'calibration': float(np.mean(predicted)),
    'windows_ne': [row['train/logloss'] / labels.entropy for row in last],
    'early_ne': [row['train/logloss'] / labels.entropy for row in early],
    'head_score': average('teacher/learned'),
    'teacher_score': average('teacher/score'),
    'core_s': read_core_s(workdir),
  }


def measure_teacher(store: TeacherStore, parts: pathlib.Path) -> float:
  """NE of the scores of the last half of the windows of some parts."""
  paths = sorted(parts.glob('*.parquet'))
  table = pa.concat_tables(
    pq.read_table(path, columns=['example_id', 'label'])
    for path in paths[len(paths) // 2 :]
  )
  p = store.lookup(table['example_id'].to_numpy()).values[:, 0]
  p = np.clip(p.astype(np.float64), 1e-7, 1 - 1e-7)
  y = table['label'].to_numpy()
  loss = -(y * np.log(p) + (1 - y) * np.log1p(-p)).mean()
  return float(loss / measure_entropy(y.mean()))
