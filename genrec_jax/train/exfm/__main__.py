"""ExFM (arXiv 2502.17494): one teacher, the service, and many students.

    python -m genrec_jax.train.exfm WORKDIR
    python -m genrec_jax.train.exfm WORKDIR --compare none head \\
        --students feed=dlrm:0,1 video=dcn:1,2 search=deepfm --windows 40

starts, as processes of their own, a writer of the generated stream that drifts,
a teacher, the service that joins labels with impressions and annotates them
with the teacher's scores, and a run of every student. Each student has a stream
of its own, of some segments, and none of the teacher in its steps. At the end
there is one page, WORKDIR/exfm.html, and its numbers in exfm_results.json.

SIGTERM or Ctrl-C stops all of them, and they save; the same command goes on.
A process that a signal has ended is started again, and nothing of what comes
out depends on that. Events of your own: --events DIR --base FILE.parquet.
"""

from genrec_jax import interruption

if __name__ == '__main__':  # other imports take the time of a Ctrl-C
  interruption.install()
  interruption.keep(lambda: 'the same command continues')

import argparse
import dataclasses
import pathlib
import re
from collections.abc import Sequence

from genrec_jax import last_resort
from genrec_jax.checkpoint import storage
from genrec_jax.checkpoint.workdir_files import make_workdir
from genrec_jax.config.errors import ConfigError
from genrec_jax.data.ranking.drift import DriftLog
from genrec_jax.serve.event_files import list_directories
from genrec_jax.train.exfm import base_data, commands, settings
from genrec_jax.train.exfm.system import RunOptions, System

# What the generated stream is like here, unless it is said.
STREAM = dict(windows=40, rows=50_000, segments=3, segment_zipf=0.0, fields=8)
STUDENTS = ('feed=dlrm', 'video=dcn', 'search=deepfm')
_ATTRIBUTED_WINDOWS = 2  # 98 % of labels with the usual delays


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit status."""
  args = make_parser().parse_args(argv)
  options = RunOptions(
    **{f.name: getattr(args, f.name) for f in dataclasses.fields(RunOptions)}
  )
  asked = read_settings(args)
  root = pathlib.Path(args.workdir).absolute()
  layout = commands.Layout(root, asked)
  configs = commands.load_configs(layout)
  make_workdir(root)
  with storage.open_lock(root / '.exfm.lock') as file:
    if not storage.lock_file(file):
      raise ConfigError(
        f'another driver is at work in {root}; wait until it has ended, or use '
        'another directory'
      )
    if asked.events:
      _check_events(pathlib.Path(asked.events), asked.students)
    record = settings.claim_directory(root, asked, configs)
    if asked.events and (others := _list_unread(asked)):
      last_resort.print_result(
        f'{asked.events} has {", ".join(others)}, too, which are of no student '
        'and read by nobody, the teacher included'
      )
    base_data.write_base(layout)
    try:
      is_done = System(record, layout, options, last_resort.print_result).run()
    except interruption.Stopped as stopped:
      interruption.end_by_signal(stopped.number)
    if not is_done:
      return interruption.FAILED
    from genrec_jax.train.exfm import page  # needs what only the end needs

    last_resort.print_result(page.write_page(layout))
  return interruption.DONE


def read_settings(args: argparse.Namespace) -> settings.Settings:
  """What a command line asks for.

  Args:
    args: of `make_parser`.
  """
  given = {
    field.name: getattr(args, field.name)
    for field in dataclasses.fields(DriftLog)
    if getattr(args, field.name) is not None
  }
  stream, window_s = None, args.window_s
  if args.events:
    if others := sorted({*given} - {'window_s'}):
      raise ConfigError(
        f'--{others[0]} is of the generated stream, and --events names one of '
        'your own: leave one of them out'
      )
    if window_s is None:
      raise ConfigError(
        '--window_s is missing: how many seconds a window of --events has'
      )
  else:
    usual = STREAM | {'segments': max(STREAM['segments'], len(args.students))}
    stream = DriftLog(**usual | given)
    window_s = stream.window_s
  methods = [args.method, *(m for m in args.compare if m != args.method)]
  attribution_s = args.attribution_s
  if attribution_s is None:
    attribution_s = _ATTRIBUTED_WINDOWS * window_s
  return settings.Settings(
    students=settings.read_students(
      args.students, stream.segments if stream else 0
    ),
    methods=tuple(methods),
    teacher_config=_name_config(args.teacher_config),
    student_config=_name_config(args.student_config),
    sets=tuple(args.set),
    label=args.label,
    window_s=window_s,
    attribution_s=attribution_s,
    lag=args.lag,
    stream=stream,
    events=_name_path(args.events),
    base=_name_path(args.base),
  )


def make_parser() -> argparse.ArgumentParser:
  """The flags of the command."""
  parser = argparse.ArgumentParser(
    prog='python -m genrec_jax.train.exfm',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  add = parser.add_argument
  add('workdir', help='directory of all that is made')
  add(
    '--students', nargs='+', default=list(STUDENTS),
    metavar='NAME=MODEL[:SEGMENT,...]',
    help='their streams, their models (variants of --student_config) and the '
    'segments of their streams, which may share some; segments that nobody '
    f'names are dealt out in turn ({" ".join(STUDENTS)})',
  )  # fmt: skip
  add(
    '--method', choices=settings.METHODS, default='adapter',
    help='how all students learn the scores (adapter)',
  )  # fmt: skip
  add(
    '--compare', nargs='*', choices=settings.METHODS, default=['none'],
    metavar='METHOD',
    help='further methods: every student has a twin with each (none)',
  )  # fmt: skip
  add(
    '--lag', type=int, default=0, metavar='N',
    help='windows that the teacher is older than it could be (0)',
  )  # fmt: skip
  add(
    '--attribution_s', type=int, metavar='S',
    help='seconds after its impression for which a label counts '
    f'({_ATTRIBUTED_WINDOWS} windows)',
  )  # fmt: skip
  add(
    '--teacher_config', default='exfm_teacher_synthetic', metavar='FILE',
    help='of the teacher (exfm_teacher_synthetic)',
  )  # fmt: skip
  add(
    '--student_config', default='exfm_student_synthetic', metavar='FILE',
    help='of the students (exfm_student_synthetic)',
  )  # fmt: skip
  add(
    '--set', action='append', default=[], metavar='SCOPE.KEY=VALUE',
    help='a key of the configs of the scope teacher, students, all or the name '
    'of a student; may be given several times',
  )  # fmt: skip
  add('--label', default='label', help='column of the label, 0 or 1 (label)')
  own = parser.add_argument_group('events of your own')
  own.add_argument(
    '--events', default='', metavar='DIR',
    help='directory with one of impressions and labels for each student; needs '
    '--base and --window_s',
  )  # fmt: skip
  own.add_argument(
    '--base', default='', metavar='FILE.parquet',
    help='earlier labelled examples, of which vocabularies are made',
  )  # fmt: skip
  usual = RunOptions()
  how = parser.add_argument_group('how it is run')
  for name, kind, text in (
    ('threads', int, 'of each process; 0 sets no bound'),
    ('jobs', int, 'students at a time; 0 for all'),
    ('retries', int, 'starts of a process that a signal has ended'),
    ('status_s', float, 'seconds between two lines of how far all are'),
    ('grace_s', float, 'how long processes may take to save at the end'),
    ('most_lost', float, 'share of labels that may be lost; more end the run'),
  ):
    default = getattr(usual, name)
    how.add_argument(
      f'--{name}', type=kind, default=default, help=f'{text} ({default:g})'
    )
  stream = parser.add_argument_group(
    'the generated stream', 'keys of data.drift; --seed is that of runs, too'
  )
  said = _describe_fields()
  for field in dataclasses.fields(DriftLog):
    usual = STREAM.get(field.name, field.default)
    stream.add_argument(
      f'--{field.name}', type=field.type, metavar=field.type.__name__.upper(),
      help=f'{said.get(field.name, "")} ({usual})'.replace('%', '%%'),
    )  # fmt: skip
  return parser


def _check_events(
  folder: pathlib.Path, students: Sequence[settings.Student]
) -> None:
  """Refuses a student whose stream is not among those that are there."""
  if not folder.is_dir():
    raise ConfigError(f'--events: {folder} is no directory')
  there = list_directories(folder)
  for student in students:
    if there and student.name not in there:
      raise ConfigError(
        f'--students: {folder} has no directory {student.name!r}, but '
        f'{", ".join(there)}'
      )


def _list_unread(asked: settings.Settings) -> list[str]:
  """Directories of events that no student reads."""
  own = {student.name for student in asked.students}
  there = list_directories(pathlib.Path(asked.events))
  return [name for name in there if name not in own]


def _describe_fields() -> dict[str, str]:
  """Field of `DriftLog` -> what its docstring says of it."""
  said = (DriftLog.__doc__ or '').partition('Attributes:')[2]
  entries = re.findall(r'^    (\w+): (.*(?:\n      .*)*)', said, re.MULTILINE)
  return {name: ' '.join(text.split()).rstrip('.') for name, text in entries}


def _name_config(config: str) -> str:
  """A config by a path that holds from everywhere, or by its name."""
  name, colon, arg = config.partition(':')
  return f'{_name_path(name) if _is_file(name) else name}{colon}{arg}'


def _is_file(name: str) -> bool:
  return bool(re.search(r'\.py$|/', name)) and pathlib.Path(name).is_file()


def _name_path(path: str) -> str:
  return str(pathlib.Path(path).absolute()) if path else ''


if __name__ == '__main__':
  last_resort.run_command(main, 'running teacher and students')
