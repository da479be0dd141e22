"""What a system of teacher and students is made of: the file exfm.json."""

import dataclasses
import json
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence

from genrec_jax import sealed
from genrec_jax.config.errors import ConfigError
from genrec_jax.data.quoting import quote
from genrec_jax.data.ranking.drift import DriftLog
from genrec_jax.processes.whole_files import replace_file

RECORD, FORMAT = 'exfm.json', 1
# Those of `distill.method`, in the order in which pages have them.
NONE = 'none'
METHODS = (NONE, 'one_head', 'head', 'adapter', 'teacher_alone')
TEACHER, STUDENTS, ALL = 'teacher', 'students', 'all'  # scopes of --set
# Directories beside the streams in events/ and annotated/, and scopes.
_RESERVED = (TEACHER, STUDENTS, ALL, 'scores', 'join', 'END')
STREAM = 'stream.'  # before the keys of the generated stream
# Keys of the settings -> what a user gives.
_FLAGS = {'methods': '--method, --compare', 'sets': '--set'}
_NAME = re.compile(r'[A-Za-z0-9][A-Za-z0-9_]*')
_MOST_BYTES = 1 << 22


@dataclasses.dataclass(frozen=True)
class Student:
  """A small model with a stream of its own.

  Attributes:
    name: of its stream.
    model: a variant of the students' config, such as 'dlrm'.
    segments: those of the generated stream that its stream has; () where the
      events are somebody's own.
  """

  name: str
  model: str
  segments: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Settings:
  """All that decides what comes out.

  Attributes:
    students: each has a stream of its own.
    methods: of `distill.method`, that of all students first; each further one
      is that of a twin of every student.
    teacher_config: FILE or FILE:variant.
    student_config: likewise; the model of a student is one of its variants.
    sets: 'SCOPE.KEY=VALUE' each, SCOPE being 'teacher', 'students', 'all' or
      the name of a student.
    label: column of the label.
    window_s: seconds of a window.
    attribution_s: how long after its impression a label counts.
    lag: windows that the teacher is older than it could be.
    stream: the generated events; None where they are somebody's own.
    events: directory of these, '' for the generated ones.
    base: Parquet file from which vocabularies are made, '' likewise.
  """

  students: tuple[Student, ...]
  methods: tuple[str, ...]
  teacher_config: str
  student_config: str
  sets: tuple[str, ...]
  label: str
  window_s: int
  attribution_s: int
  lag: int
  stream: DriftLog | None
  events: str = ''
  base: str = ''

  def __post_init__(self):
    if not self.students:
      raise ConfigError('there are no students: name some in --students')
    names = [student.name for student in self.students]
    for name in names:
      if not _NAME.fullmatch(name):
        raise ConfigError(
          f'a student is called {quote(name)}, and its name is that of a '
          'directory: give letters, digits and _'
        )
      if name in _RESERVED:
        raise ConfigError(
          f'a student cannot be called {name!r}: so is a directory beside it'
        )
      if names.count(name) > 1:
        raise ConfigError(f'--students has {name!r} twice')
    for method in self.methods:
      if self.methods.count(method) > 1:
        raise ConfigError(f'the method {method!r} is given twice')
      if method not in METHODS:
        raise ConfigError(
          f'{quote(method)} is no method; they are {", ".join(METHODS)}'
        )
    if self.lag < 0:
      raise ConfigError(
        f'--lag is {self.lag}: it must be 0 or more, for a teacher scores what '
        'it has not been trained on'
      )
    if self.window_s < 1 or self.attribution_s < 0:
      raise ConfigError(
        f'--window_s is {self.window_s} and --attribution_s '
        f'{self.attribution_s}: they must be at least 1 and 0'
      )
    if bool(self.events) != bool(self.base):
      raise ConfigError(
        '--events, a directory of streams, and --base, a Parquet file of '
        'earlier examples, go together'
      )
    self._check_segments()
    for word in self.sets:
      scope, _, _ = split_set(word)
      if scope not in (TEACHER, STUDENTS, ALL, *names):
        raise ConfigError(
          f'--set {word}: {quote(scope)} is none of '
          f'{", ".join((TEACHER, STUDENTS, ALL, *names))}'
        )

  @property
  def method(self) -> str:
    """That of all students, beside which others are compared."""
    return self.methods[0]

  def runs(self) -> Iterator[tuple[Student, str]]:
    """(student, method) of every run of a student."""
    for method in self.methods:
      for student in self.students:
        yield student, method

  def _check_segments(self) -> None:
    if self.stream is None:
      return
    for student in self.students:
      for segment in student.segments:
        if not 0 <= segment < self.stream.segments:
          raise ConfigError(
            f'the student {student.name!r} has segment {segment}; segments are '
            f'0 to {self.stream.segments - 1} (--segments)'
          )
      if not student.segments:
        raise ConfigError(
          f'no segment is left for the student {student.name!r}: there are '
          f'{self.stream.segments} (--segments); or share one, as in '
          f'{student.name}={student.model}:0'
        )


def split_set(word: str) -> tuple[str, str, str]:
  """The parts of 'SCOPE.KEY=VALUE'.

  >>> split_set('teacher.model.dim=8')
  ('teacher', 'model.dim', '8')

  Raises:
    ConfigError: it has other parts.
  """
  path, equals, value = word.partition('=')
  scope, dot, key = path.partition('.')
  if not (scope and dot and key and equals):
    raise ConfigError(
      f'--set takes teacher.KEY=VALUE, students.KEY=VALUE, all.KEY=VALUE or '
      f'STUDENT.KEY=VALUE, not {quote(word)}'
    )
  return scope, key.removeprefix('config.'), value


def read_students(words: Sequence[str], segments: int) -> tuple[Student, ...]:
  """The students of `--students`; segments that nobody names are dealt out.

  >>> words = ['feed=dlrm:0,1', 'video=dcn', 'search=deepfm']
  >>> [student.segments for student in read_students(words, 5)]
  [(0, 1), (2, 4), (3,)]

  Args:
    words: NAME=MODEL or NAME=MODEL:SEGMENT,... each.
    segments: how many there are; 0 where nobody knows of any.
  """
  read = []
  for word in words:
    name, equals, rest = word.partition('=')
    model, colon, said = rest.partition(':')
    try:
      own = tuple(int(text) for text in said.split(',')) if colon else ()
    except ValueError:
      own = None
    if not (name and equals and model) or own is None:
      raise ConfigError(
        f'--students takes NAME=MODEL or NAME=MODEL:SEGMENT,..., such as '
        f'feed=dlrm:0,1, not {quote(word)}'
      )
    if len({*own}) < len(own):
      raise ConfigError(f'--students {word} has a segment twice')
    read.append(Student(name, model, own))
  named = {segment for student in read for segment in student.segments}
  free = [segment for segment in range(segments) if segment not in named]
  waiting = [at for at, student in enumerate(read) if not student.segments]
  for turn, at in enumerate(waiting):
    dealt = tuple(free[turn :: len(waiting)])
    read[at] = dataclasses.replace(read[at], segments=dealt)
  return tuple(read)


def to_json(settings: Settings) -> dict:
  """The settings as JSON has them."""
  return json.loads(json.dumps(dataclasses.asdict(settings)))


def from_json(body: Mapping) -> Settings:
  """The inverse of `to_json`."""
  body = dict(body)
  students = tuple(
    Student(x['name'], x['model'], tuple(x['segments']))
    for x in body.pop('students')
  )
  stream = body.pop('stream')
  return Settings(
    students=students,
    methods=tuple(body.pop('methods')),
    sets=tuple(body.pop('sets')),
    stream=DriftLog(**stream) if stream else None,
    **body,
  )


@dataclasses.dataclass(frozen=True)
class Record:
  """What a directory was begun with.

  Attributes:
    settings: of the system.
    configs: name of a run -> its config, as JSON.
  """

  settings: Settings
  configs: Mapping[str, Mapping]


def read_record(root: pathlib.Path) -> Record | None:
  """What a directory was begun with; None for nothing.

  Args:
    root: the directory.

  Raises:
    ConfigError: the file is there and cannot be read.
  """
  path = root / RECORD
  if not path.exists():
    return None
  try:
    body = json.loads(sealed.read_regular(path, _MOST_BYTES))
    if body['format'] != FORMAT:
      raise ValueError(f'it is of format {body["format"]}, not {FORMAT}')
    return Record(from_json(body['settings']), dict(body['configs']))
  except sealed.UNREADABLE as error:
    raise ConfigError(
      f'{path} cannot be read: {error}; put it back, or use another directory'
    ) from None


def claim_directory(
  root: pathlib.Path, settings: Settings, configs: Mapping[str, Mapping]
) -> Record:
  """Writes what a directory is begun with, or refuses one that has others.

  Args:
    root: of the system.
    settings: as they were asked for now.
    configs: name of a run -> its config, as JSON has it.
  """
  there = read_record(root)
  if there is None:
    others = [path.name for path in root.iterdir() if path.name[0] != '.']
    if others:
      raise ConfigError(
        f'{root} has {", ".join(sorted(others)[:3])} and no {RECORD}: name '
        'another directory'
      )
    body = dict(format=FORMAT, settings=to_json(settings), configs=configs)
    replace_file(root / RECORD, json.dumps(body, indent=1))
    return Record(settings, configs)
  if found := find_difference(to_json(there.settings), to_json(settings)):
    key, old, new = found
    flag = _FLAGS.get(key, f'--{key.removeprefix(STREAM)}')
    raise ConfigError(
      f'{root} was begun with {flag}={_show(old)}, not {_show(new)}: what is '
      'there would not belong together. Give the same options, or another '
      'directory'
    )
  for name, config in configs.items():
    check_config(there, name, config)
  return there


def check_config(record: Record, name: str, config: Mapping) -> None:
  """Refuses a config that is another one than at the beginning.

  Args:
    record: of the directory.
    name: of the run.
    config: as its file gives it now, as JSON has it.
  """
  if found := find_difference(record.configs.get(name, {}), config):
    key, old, new = found
    raise ConfigError(
      f'the config of {name} has {key}={_show(new)} now, and the system was '
      f'begun with {_show(old)}: runs would differ by more than their methods. '
      'Put the file back, or begin in another directory'
    )


def find_difference(
  old: Mapping, new: Mapping
) -> tuple[str, object, object] | None:
  """The first key in which two nested dictionaries differ, and its values.

  >>> find_difference({'a': {'b': 1}}, {'a': {'b': 2}})
  ('a.b', 1, 2)

  Args:
    old: as JSON has it.
    new: likewise.
  """
  old, new = _flatten(old), _flatten(new)
  for key in sorted({*old, *new}):
    if old.get(key) != new.get(key):
      return key, old.get(key), new.get(key)
  return None


def _flatten(body: Mapping, prefix: str = '') -> dict[str, object]:
  flat = {}
  for key, value in body.items():
    if isinstance(value, Mapping):
      flat |= _flatten(value, f'{prefix}{key}.')
    else:
      flat[f'{prefix}{key}'] = value
  return flat


def _show(value: object) -> str:
  return 'nothing' if value is None else json.dumps(value)
