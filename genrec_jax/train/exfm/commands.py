"""The processes of a system: their places, their names, their command lines.

WORKDIR/
  exfm.json               the settings
  base/teacher.parquet    earlier examples, of which vocabularies are made
  base/students.parquet   the same with the columns of the scores
  events/STREAM/          impressions and labels, by the writer
  annotated/teacher/      labelled parts, by the service
  annotated/STREAM/       those of a student, with the teacher's scores
  annotated/scores/       the scores by example id
  teacher/                workdir of the teacher's run
  students/NAME-METHOD/   that of each run of a student
  logs/                   what each process has printed, and its note
  exfm.html, exfm_results.json
"""

import dataclasses
import functools
import json
import pathlib
import sys
from collections.abc import Iterator, Mapping

import numpy as np

from genrec_jax.config import files as config_files
from genrec_jax.config import loading
from genrec_jax.config.errors import ConfigError
from genrec_jax.data.parquet import pa, pq
from genrec_jax.processes import children
from genrec_jax.train.exfm.settings import (
  ALL,
  STUDENTS,
  TEACHER,
  Settings,
  Student,
  split_set,
)

WRITER, SERVICE = 'writer', 'service'
SCORE, WEIGHT = 'teacher', 'teacher_weight'  # columns of students' parts
_KEPT = 8  # checkpoints of the teacher, and so many windows of leeway
# What a user may set differently, and what the parts of the system agree on.
_USUAL = {
  'data.stream.poll_s': '0.5',
  # A line of metrics for each window, and none between them.
  'train.log_every': '1000000000',
}


@dataclasses.dataclass(frozen=True)
class Layout:
  """Where things are in the directory of a system.

  Attributes:
    root: the directory.
    settings: of the system.
  """

  root: pathlib.Path
  settings: Settings

  @property
  def events(self) -> pathlib.Path:
    if self.settings.events:
      return pathlib.Path(self.settings.events)
    return self.root / 'events'

  @property
  def annotated(self) -> pathlib.Path:
    return self.root / 'annotated'

  @property
  def teacher(self) -> pathlib.Path:
    return self.root / TEACHER

  def base(self, scope: str) -> pathlib.Path:
    """The base data of the teacher, or of the students."""
    return self.root / 'base' / f'{scope}.parquet'

  def student(self, student: Student, method: str) -> pathlib.Path:
    """The workdir of a run."""
    return self.root / STUDENTS / name_run(student, method)

  def log(self, name: str) -> pathlib.Path:
    """What a process prints to."""
    return self.root / 'logs' / f'{name}.log'

  def note(self, name: str) -> pathlib.Path:
    """What is known of a process, see `processes.notes`."""
    return self.root / 'logs' / f'{name}.json'


def name_run(student: Student, method: str) -> str:
  """The name of a student's run.

  >>> name_run(Student('feed', 'dlrm'), 'adapter')
  'feed-adapter'
  """
  return f'{student.name}-{method}'


def list_processes(layout: Layout) -> dict[str, list[str]]:
  """Name -> command line of every process, in the order of starting.

  Args:
    layout: of the system.
  """
  settings = layout.settings
  found = {}
  if settings.stream is not None:
    found[WRITER] = _write_command(layout)
  found[SERVICE] = _service_command(layout)
  found[TEACHER] = children.command_of(
    _list_words(settings.teacher_config, layout.teacher, list_teacher(layout))
  )
  for student, method in settings.runs():
    words = _list_words(
      name_config(settings, student),
      layout.student(student, method),
      list_student(layout, student, method),
    )
    found[name_run(student, method)] = children.command_of(words)
  return found


def name_config(settings: Settings, student: Student) -> str:
  """The config of a student, with its variant.

  >>> import types
  >>> one = types.SimpleNamespace(student_config='own.py:smoke')
  >>> name_config(one, Student('feed', 'dlrm'))
  'own.py:smoke,dlrm'
  """
  config = settings.student_config
  return f'{config}{"," if ":" in config else ":"}{student.model}'


def list_teacher(layout: Layout) -> dict[str, str]:
  """Key -> value of what the run of the teacher is given."""
  settings = layout.settings
  fixed = _list_shared(layout, TEACHER, layout.annotated / TEACHER) | {
    'checkpoint.at_part_ends': 'true',
  }
  usual = _USUAL | {
    # The service asks for one that is `lag` windows old.
    'train.keep_checkpoints': str(_KEPT + settings.lag),
  }
  return _add_sets(settings, (ALL, TEACHER), fixed, usual)


def list_student(
  layout: Layout, student: Student, method: str
) -> dict[str, str]:
  """Key -> value of what a run of a student is given.

  Args:
    layout: of the system.
    student: the student.
    method: of `distill.method`.
  """
  parts = layout.annotated / student.name
  fixed = _list_shared(layout, STUDENTS, parts) | {
    f'data.extras.{SCORE}.kind': 'float',
    f'data.extras.{SCORE}.column': SCORE,
    f'data.extras.{WEIGHT}.kind': 'float',
    f'data.extras.{WEIGHT}.column': WEIGHT,
    'distill.method': method,
    'distill.scores': f"('{SCORE}',)",
    'distill.weight': WEIGHT,
  }
  # Each window is a place from which a run that is killed goes on.
  usual = _USUAL | {'checkpoint.at_part_ends': 'true'}
  return _add_sets(layout.settings, (ALL, STUDENTS, student.name), fixed, usual)


def load_configs(layout: Layout) -> dict[str, dict]:
  """Name of a run -> its config as JSON, loaded as the run will load it.

  Args:
    layout: of the system.

  Raises:
    ConfigError: one cannot be; it is named.
  """
  names = [TEACHER]
  names += [name_run(*run) for run in layout.settings.runs()]
  return {name: load_config(layout, name) for name in names}


def load_config(layout: Layout, name: str) -> dict | None:
  """The config of one process, likewise; None of one that has no config.

  Args:
    layout: of the system.
    name: of the process.
  """
  settings = layout.settings
  if name == TEACHER:
    return _load(name, settings.teacher_config, list_teacher(layout))
  for student, method in settings.runs():
    if name == name_run(student, method):
      keys = list_student(layout, student, method)
      return _load(name, name_config(settings, student), keys)
  return None


def _load(name: str, config: str, keys: Mapping[str, str]) -> dict:
  try:
    loaded = config_files.load(config, [f'{k}={v}' for k, v in keys.items()])
  except ConfigError as error:
    raise ConfigError(f'{name} ({config}): {error}') from error
  return json.loads(loading.to_json(loaded))


def _list_words(
  config: str, workdir: pathlib.Path, keys: Mapping[str, str]
) -> list[str]:
  """The arguments of `python -m genrec_jax.main` that train."""
  own = [f'--config.{key}={value}' for key, value in keys.items()]
  return [f'--config={config}', f'--workdir={workdir}', *own]


def _list_shared(layout: Layout, scope: str, parts: pathlib.Path) -> dict:
  settings = layout.settings
  fixed = {
    'data.name': 'parquet',
    'data.path': str(layout.base(scope)),
    'data.labels': settings.label,
    'data.time': 'time',
    'data.example_id': 'example_id',
    'data.split.valid_fraction': '0',
    'data.split.test_fraction': '0',
    'data.stream.directory': str(parts),
    'data.stream.pattern': '*.parquet',
    'train.steps': '0',
    'eval.splits': '()',
    'eval.progressive': 'window',
    'eval.progressive_windows': 'part',
  }
  if settings.stream is not None:
    fixed |= {'seed': str(settings.stream.seed)}
    for name in settings.stream.features:
      fixed |= {f'data.features.{name}.kind': 'categorical'}
  return fixed


def _add_sets(
  settings: Settings, scopes: tuple[str, ...], fixed: dict, usual: dict
) -> dict[str, str]:
  """The keys of a run with those of `--set`; a narrower scope wins."""
  own, rate = {}, find_rate(settings)
  if 0 < rate < 1:  # models that begin elsewhere spend a thousand steps on it
    usual = usual | {'loss.prior': f'({rate:.6g},)'}
  for wanted in scopes:
    for word in settings.sets:
      scope, key, value = split_set(word)
      if scope != wanted:
        continue
      if key in fixed and key != 'seed':
        raise ConfigError(
          f'--set {word}: {key} is what holds teacher, service and students '
          f'together, and is {fixed[key]!r}; leave it out'
        )
      own[key] = value
  return usual | fixed | own


def find_rate(settings: Settings) -> float:
  """The share of labels that are 1: of the stream, or in the base data."""
  if settings.stream is not None:
    return settings.stream.rate
  return _read_rate(settings.base, settings.label)


@functools.cache
def _read_rate(base: str, label: str) -> float:
  """The mean label of a file; 0 where nobody knows, which is told later."""
  try:
    column = pq.ParquetFile(base).read(columns=[label])[label]
    return float(np.mean(column.cast(pa.float64()).to_numpy()))
  except (OSError, KeyError, pa.ArrowException, ValueError):
    return 0.0


def _write_command(layout: Layout) -> list[str]:
  settings = layout.settings
  streams = [
    f'{student.name}={",".join(map(str, student.segments))}'
    for student in settings.students
  ]
  options = dataclasses.asdict(settings.stream)
  return [
    *_python('genrec_jax.data.ranking.drift_files'),
    f'--out={layout.events}',
    *(f'--{key}={value}' for key, value in options.items()),
    '--streams',
    *streams,
  ]


def _service_command(layout: Layout) -> list[str]:
  settings = layout.settings
  return [
    *_python('genrec_jax.serve.annotate'),
    str(layout.events),
    str(layout.annotated),
    f'--teacher={layout.teacher}',
    f'--window_s={settings.window_s}',
    f'--attribution_s={settings.attribution_s}',
    f'--lag={settings.lag}',
    f'--column={SCORE}',
    '--poll=0.5',
    '--labels',
    settings.label,
    '--streams',
    *(student.name for student in settings.students),
  ]


def _python(module: str) -> Iterator[str]:
  yield from (sys.executable, '-m', module)
