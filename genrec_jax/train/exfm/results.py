"""The numbers of a system that has come to its end, from its files.

Every example is scored before it is learned from, so that the log loss of a
window is that of examples which a run has not seen. The NE of a window divides
it by the entropy of the window's own mean label, and compares methods within
the window. The NE of the last half of the windows has one base rate for each
student, which is that of its examples there and equal for all its methods.
"""

import dataclasses
import json
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from genrec_jax.data.parquet import pq
from genrec_jax.data.ranking import drift
from genrec_jax.distill import part_manifest
from genrec_jax.distill.label_join import LabelJoin
from genrec_jax.distill.teacher_store import TeacherStore
from genrec_jax.processes import notes
from genrec_jax.report.metric_writers import read_jsonl
from genrec_jax.serve.annotator import KIND
from genrec_jax.serve.snapshots import number_window
from genrec_jax.train.exfm.commands import (
  Layout,
  list_processes,
  name_run,
)
from genrec_jax.train.exfm.settings import (
  NONE,
  TEACHER,
  Settings,
  Student,
  to_json,
)
from genrec_jax.train.exfm.status import PROGRESSIVE

PART = 'train/part'  # of a line: how many parts the run has taken
_LEAST_P = 1e-7  # scores keep away from 0 and 1 by this


@dataclasses.dataclass(frozen=True, eq=False)
class PartLabels:
  """What there is of a stream in a window.

  Attributes:
    window: its number.
    example_id: `[N]` int64.
    label: `[N]` float64.
  """

  window: int
  example_id: np.ndarray
  label: np.ndarray

  def __len__(self) -> int:
    return len(self.label)


def measure_system(layout: Layout) -> dict:
  """All numbers of the page, as JSON.

  Args:
    layout: of a system whose processes are all done.
  """
  settings, annotated = layout.settings, layout.annotated
  manifest = part_manifest.PartDirectory(annotated, KIND)
  store = None
  if (annotated / 'scores' / part_manifest.NAME).exists():
    store = TeacherStore.open_existing(annotated / 'scores')
  every = list(read_parts(annotated / TEACHER, settings.label))
  windows = [part.window for part in every]
  if not windows:
    raise ValueError(
      f'{annotated / TEACHER} has no window: the streams have no impressions'
    )
  half = choose_measured(windows, settings)
  truth = _Truth(settings)
  students = [
    _measure_student(layout, student, store, half, truth)
    for student in settings.students
  ]
  return {
    'settings': to_json(settings),
    'windows': windows,
    'measured_windows': half,
    'students': students,
    'teacher': _measure_teacher(layout, every, store, half),
    'service': _measure_service(manifest),
    'costs': list(_list_costs(layout, manifest)),
  }


def choose_measured(windows: Sequence[int], settings: Settings) -> list[int]:
  """The windows of the numbers that tell of all: the last half.

  Of the very last ones, labels would have come after the end of the stream;
  they are left out unless nothing else is there.

  >>> import types
  >>> waits = types.SimpleNamespace(attribution_s=90, window_s=60)
  >>> choose_measured(range(8), waits), choose_measured(range(2), waits)
  ([4, 5], [1])

  Args:
    windows: all of them.
    settings: of the system.
  """
  half = list(windows[len(windows) // 2 :])
  late = math.ceil(settings.attribution_s / settings.window_s)
  return half[: max(len(half) - late, 1)]


def read_parts(folder: pathlib.Path, label: str) -> Iterator[PartLabels]:
  """The parts of a stream, window by window.

  Args:
    folder: where they are.
    label: its column.
  """
  for path in sorted(folder.glob('window-*.parquet')):
    table = pq.read_table(path, columns=['example_id', label])
    yield PartLabels(
      number_window(path.name),
      table['example_id'].to_numpy(),
      table[label].to_numpy().astype(np.float64),
    )


def place_rows(
  rows: Sequence[Mapping], parts: Sequence[PartLabels]
) -> dict[int, Mapping]:
  """Window -> the line of metrics.jsonl that ends it.

  The line says how many parts the run had taken by then: windows of which
  nothing is learned from have no line.

  Args:
    rows: lines of metrics.jsonl.
    parts: those that the run has read, in order.
  """
  return {
    parts[int(row[PART]) - 1].window: row
    for row in rows
    if PROGRESSIVE in row and row.get(PART)
  }


def find_entropy(p: float) -> float:
  """Of a draw, in nats; NaN where it is sure.

  >>> round(find_entropy(0.5), 4)
  0.6931
  """
  if not 0 < p < 1:
    return math.nan
  return -p * math.log(p) - (1 - p) * math.log1p(-p)


def measure_logloss(p: np.ndarray, y: np.ndarray) -> float:
  """The mean log loss of probabilities `[N]` for labels `[N]`."""
  p = np.clip(p, _LEAST_P, 1 - _LEAST_P)
  return float(-(y * np.log(p) + (1 - y) * np.log1p(-p)).mean())


def pin_ne(losses: Mapping[int, float], parts: Sequence[PartLabels]) -> float:
  """The NE of several windows with one base rate.

  Args:
    losses: window -> mean log loss of its examples.
    parts: labels of these windows.
  """
  parts = [part for part in parts if len(part)]
  rows = sum(len(part) for part in parts)
  if not rows or any(part.window not in losses for part in parts):
    return math.nan
  total = sum(losses[part.window] * len(part) for part in parts)
  rate = sum(part.label.sum() for part in parts) / rows
  return total / rows / find_entropy(rate)


def _measure_student(
  layout: Layout,
  student: Student,
  store: TeacherStore | None,
  half: Sequence[int],
  truth: '_Truth',
) -> dict:
  settings = layout.settings
  parts = list(read_parts(layout.annotated / student.name, settings.label))
  last = [part for part in parts if part.window in half]
  scored = {part.window: _score_part(part, store) for part in parts}
  labels = np.concatenate([part.label for part in last] or [np.zeros(0)])
  runs = {}
  for method in settings.methods:
    workdir = layout.student(student, method)
    runs[method] = _measure_run(workdir, parts, half)
  if NONE in runs:
    for run in runs.values():
      _compare(run, runs[NONE], half)
  losses = {w: x['logloss'] for w, x in scored.items() if x['logloss']}
  least = truth.measure_losses(parts)
  return {
    'name': student.name,
    'model': student.model,
    'segments': list(student.segments),
    'examples': sum(map(len, parts)),
    'parts': len(parts),
    'measured_examples': len(labels),
    'rate': float(labels.mean()) if len(labels) else None,
    'floor': truth.find_floor(student, half),
    'true_ne': _finite(pin_ne(least, last)),
    'shared': _count_shared(layout, student),
    'teacher_ne': _finite(pin_ne(losses, last)),
    'windows': [
      {
        'window': part.window,
        'examples': len(part),
        'rate': float(part.label.mean()) if len(part) else None,
        'true_ne': _divide(least.get(part.window), part),
        **scored[part.window],
      }
      for part in parts
    ],
    'methods': runs,
  }


def _score_part(part: PartLabels, store: TeacherStore | None) -> dict:
  """What the teacher says of a part; None for all of it where it is silent."""
  nothing = dict(logloss=None, ne=None, calibration=None, snapshot_step=None,
                 snapshot_window=None)  # fmt: skip
  if store is None or not len(part):
    return nothing
  found = store.lookup(part.example_id)
  if not found.found.all():
    return nothing
  p, y = found.values[:, 0].astype(np.float64), part.label
  loss = measure_logloss(p, y)
  return dict(
    logloss=loss,
    ne=_divide(loss, part),
    calibration=_finite(float(p.sum()) / float(y.sum()) if y.sum() else None),
    snapshot_step=int(found.snapshot_step[0]),
    snapshot_window=int(found.snapshot_window[0]),
  )


def _measure_run(
  workdir: pathlib.Path, parts: Sequence[PartLabels], half: Sequence[int]
) -> dict:
  """A run of a student: its windows, and the last half of them."""
  config = json.loads((workdir / 'config.json').read_text())
  rows = place_rows(read_jsonl(workdir / 'metrics.jsonl'), parts)
  scale = config.get('distill', {}).get('label_scale', 1.0)
  rates = {p.window: float(p.label.mean()) for p in parts if len(p)}
  windows = [
    {'window': window, 'step': row['step'],
     **_read_window(row, rates[window], scale)}
    for window, row in rows.items()
  ]  # fmt: skip
  last = [part for part in parts if part.window in half]
  losses = {window: row[PROGRESSIVE] for window, row in rows.items()}
  weights = {part.window: part.label.sum() for part in last}

  def average(name):
    """Of what is predicted, over the clicks of all windows that have it."""
    known = [x for x in windows if x['window'] in weights]
    known = [x for x in known if x[name] is not None]
    clicks = sum(weights[x['window']] for x in known)
    if not clicks:
      return None
    total = sum(x[name] * weights[x['window']] for x in known)
    return float(total / clicks)

  return {
    'ne': _finite(pin_ne(losses, last)),
    'calibration': average('calibration'),
    'head_calibration': average('head_calibration'),
    'adapter_calibration': average('adapter_calibration'),
    'windows': windows,
  }


def _read_window(row: Mapping, rate: float, scale: float) -> dict:
  """A line of metrics.jsonl as the page reads it.

  What heads predict is measured in the steps of the window, by means of its
  examples; the distillation head learns the scores times `scale`.
  """

  def compare(name, factor=1.0):
    value = row.get(f'train/teacher/{name}')
    if not row.get('train/teacher/annotated') or value is None or not rate:
      return None
    return _finite(value / factor / rate)

  return {
    'ne': _finite(row.get('train/ne')),
    'logloss': _finite(row[PROGRESSIVE]),
    'auc': _finite(row.get('train/auc')),
    'calibration': _finite(row.get('train/calibration')),
    'head_calibration': compare('learned', scale),
    'adapter_calibration': compare('adapted'),
    'loss_serving': _finite(row.get('train/loss/serving')),
    'loss_teacher': _finite(row.get('train/loss/teacher')),
  }


def _compare(run: dict, none: Mapping, half: Sequence[int]) -> None:
  """Adds what a method gains over none, in per cent of the log loss."""
  before = {x['window']: x['logloss'] for x in none['windows']}
  for x in run['windows']:
    base = before.get(x['window'])
    known = base and x['logloss'] is not None
    x['gain'] = 100 * (1 - x['logloss'] / base) if known else None
  gains = [x['gain'] for x in run['windows'] if x['window'] in half]
  gains = [gain for gain in gains if gain is not None]
  is_known = run['ne'] is not None and none['ne']
  run['gain'] = 100 * (1 - run['ne'] / none['ne']) if is_known else None
  run['gain_spread'] = float(np.std(gains, ddof=1)) if len(gains) > 1 else None


def _count_shared(layout: Layout, student: Student) -> int:
  """Examples of a student that another stream has, too."""
  count, label = 0, layout.settings.label
  folders = [
    layout.annotated / other.name
    for other in layout.settings.students
    if other != student
  ]
  for part in read_parts(layout.annotated / student.name, label):
    file = f'window-{part.window:010d}.parquet'
    paths = [folder / file for folder in folders if (folder / file).exists()]
    ids = [
      pq.read_table(path, columns=['example_id'])['example_id'].to_numpy()
      for path in paths
    ]
    if ids:
      count += int(np.isin(part.example_id, np.concatenate(ids)).sum())
  return count


def _measure_teacher(
  layout: Layout,
  parts: Sequence[PartLabels],
  store: TeacherStore | None,
  half: Sequence[int],
) -> dict:
  """The teacher as it learns, and as it annotates: all examples, each once."""
  workdir = layout.teacher
  config = json.loads((workdir / 'config.json').read_text())
  rows = place_rows(read_jsonl(workdir / 'metrics.jsonl'), parts)
  last = [part for part in parts if part.window in half]
  fresh = {window: row[PROGRESSIVE] for window, row in rows.items()}
  scored = {part.window: _score_part(part, store) for part in parts}
  stale = {w: x['logloss'] for w, x in scored.items() if x['logloss']}
  return {
    'model': config['model']['name'],
    'examples': sum(map(len, parts)),
    'ne': _finite(pin_ne(fresh, last)),
    'annotating_ne': _finite(pin_ne(stale, last)),
    'windows': [
      {
        'window': part.window,
        'examples': len(part),
        'step': rows.get(part.window, {}).get('step'),
        'ne': _finite(rows.get(part.window, {}).get('train/ne')),
        'annotating_ne': scored[part.window]['ne'],
        'snapshot_step': scored[part.window]['snapshot_step'],
        'snapshot_window': scored[part.window]['snapshot_window'],
      }
      for part in parts
    ],
  }


def _measure_service(manifest: part_manifest.PartDirectory) -> dict:
  facts = manifest.facts
  found = {key: facts[key] for key in ('examples', 'rows', 'scored')}
  found['calls_saved'] = facts['rows'] - facts['examples']
  found['labels_lost'] = facts['labels_lost']
  if facts['join']:
    join = LabelJoin.from_bytes(manifest.read(facts['join']), facts['join'])
    found['join'] = dataclasses.asdict(join.counts)
  return found


class _Truth:
  """The true probabilities of a generated stream; nothing of other events."""

  def __init__(self, settings: Settings):
    self._log = settings.stream
    self._stream = self._log and drift.DriftStream(self._log)

  def find_floor(
    self, student: Student, windows: Sequence[int]
  ) -> float | None:
    """The NE of the true probabilities, labels being drawn anew for ever."""
    if self._log is None or not windows:
      return None
    selected = [
      select_segments(self._stream.window(k), student.segments) for k in windows
    ]
    if not any(len(window.label) for window in selected):
      return None
    return drift.find_floor(selected)

  def measure_losses(self, parts: Sequence[PartLabels]) -> dict[int, float]:
    """Window -> log loss of the true probabilities on the labels of a part."""
    if self._log is None:
      return {}
    found = {}
    for part in parts:
      if len(part):
        window = self._stream.window(part.window)
        rows = part.example_id - window.example_id[0]
        found[part.window] = measure_logloss(
          window.probability[rows], part.label
        )
    return found


def select_segments(
  window: drift.DriftWindow, segments: Sequence[int]
) -> drift.DriftWindow:
  """The rows of some segments.

  Args:
    window: of the generated stream.
    segments: which.
  """
  keep = np.isin(window.segment, segments)
  columns = {
    field.name: getattr(window, field.name)[keep]
    for field in dataclasses.fields(window)
  }
  return drift.DriftWindow(**columns)


def _list_costs(
  layout: Layout, manifest: part_manifest.PartDirectory
) -> Iterator[dict]:
  """What each process has cost, by its note."""
  facts, examples = manifest.facts, {}
  examples['service'] = examples[TEACHER] = facts['examples']
  for student, method in layout.settings.runs():
    examples[name_run(student, method)] = sum(
      said['rows']
      for name, said in manifest.notes.items()
      if name.startswith(f'{student.name}/')
    )
  for name in list_processes(layout):
    note = notes.read_note(layout.note(name))
    count = examples.get(name, facts['rows'])  # of the writer, every row
    yield {
      'process': name,
      'examples': count,
      'core_s': note.core_s,
      'wall_s': note.wall_s,
      'tries': note.tries,
      'peak_bytes': note.peak_bytes,
      'us_per_example': 1e6 * note.core_s / count if count else None,
    }


def _divide(loss: float | None, part: PartLabels) -> float | None:
  """The NE of a window, by its own base rate."""
  if loss is None or not len(part):
    return None
  return _finite(loss / find_entropy(float(part.label.mean())))


def _finite(value) -> float | None:
  """A number as JSON has it."""
  if value is None or not math.isfinite(value):
    return None
  return float(value)
