"""Runs a sweep as arrays of jobs of Slurm, one task a variant.

`submit` writes `ROOT/sweep.sbatch` and hands it to sbatch. Each task becomes
one run (slurm_task.py), which saves when Slurm asks it to end (before the time
limit, or when it is preempted) and is put back into the queue to go on. What
was submitted stands in `ROOT/logs/slurm.json`, so that a second submission
leaves out what still waits in the queue.
"""

import argparse
import collections
import dataclasses
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from genrec_jax import sealed
from genrec_jax.config.errors import ConfigError
from genrec_jax.processes import notes
from genrec_jax.processes.whole_files import replace_file
from genrec_jax.sweep import local, run_states
from genrec_jax.sweep.record import Sweep
from genrec_jax.sweep.variants import Variant

SCRIPT = 'sweep.sbatch'
_JOBS = 'slurm.json'  # in logs/
_WARN_S = 300  # before the time limit: two steps and a save
_SHORTEST_S = 120  # Slurm looks at limits once a minute
_MOST_RESTARTS = 100
_LIMIT = 1001  # MaxArraySize, where a cluster does not say
_ANSWER_S = 60.0
_MOST_BYTES = 1 << 20
_ENDED = (
  'BOOT_FAIL',
  'CANCELLED',
  'COMPLETED',
  'DEADLINE',
  'FAILED',
  'NODE_FAIL',
  'OUT_OF_MEMORY',
  'PREEMPTED',
  'REVOKED',
  'TIMEOUT',
)
_NOBODY = 'no launcher watches the runs; use --backend=local for it'
# Flags that nobody would heed -> what to do instead.
_OTHERS = {
  'threads': 'use --sbatch=--cpus-per-task={}',
  'memory_gb': 'use --sbatch=--mem={:g}G',
  'gpus': 'use --sbatch=--gres=gpu:1, of which Slurm gives each run its own',
  'stop_bad': _NOBODY,
  'revive': _NOBODY,
  'grace_s': 'the cluster sets GraceTime and KillWait',
}

_TEXT = """#!/bin/bash
# Written by `genrec sweep --backend=slurm`; `sbatch {script}` submits it again.
#SBATCH --job-name={name}
#SBATCH --array={array}
#SBATCH --output={logs}/slurm-%A_%a.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=TERM@{warn}
{options}
cd {directory} || exit 1
# Since Slurm 22.05 srun does not take this from sbatch. XLA reads NPROC.
if [ -n "$SLURM_CPUS_PER_TASK" ]; then
  export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK NPROC=$SLURM_CPUS_PER_TASK
fi
number=$((SLURM_ARRAY_TASK_ID + {first}))
# SIGTERM is not trapped: it ends this script, but no step, when the job is
# cancelled or preempted, and a job that was cancelled must not put itself back.
for try in {{0..{retries}}}; do
  # The batch script is no step of Slurm: srun makes one, in which the processes
  # of a run over several hosts find each other. None is killed because another
  # was the first that has saved.
  srun --kill-on-bad-exit=0 {python} -m genrec_jax.sweep {root} --run=$number
  status=$?
  # 75: the run was asked to end, and has saved; it goes on when there is room.
  # 76: so it was, but it got nowhere. 143: so it was, before it could listen.
  [ "$status" = 143 ] && status=75
  case $status in 0 | 75 | 76) break ;; esac
done
if [ "$status" = 75 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {restarts} ]; then
  scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}" && exit 0
fi
exit $status
"""


@dataclasses.dataclass(frozen=True)
class Job:
  """An array that was submitted.

  Attributes:
    job: its number.
    first: what is added to the number of a task to get that of its variant.
  """

  job: str
  first: int


def check_flags(args: argparse.Namespace) -> None:
  """Refuses flags of `genrec sweep` that nobody would heed.

  Args:
    args: all flags.
  """
  default = {'grace_s': local.LocalOptions().grace_s}
  for name, instead in _OTHERS.items():
    value = getattr(args, name, None)
    if value and value != default.get(name):
      instead = instead.format(value)
      raise ConfigError(f'--backend=slurm has no --{name}: {instead}')
  for name, value in vars(args).items():
    if name.startswith('xm_') and value not in (None, [], 'local'):
      raise ConfigError(f'--backend=slurm has no --{name}; it is of XManager')
  if args.retries < 0:
    raise ConfigError('--retries must be at least 0')


def choose_variants(
  sweep: Sweep, wanted: Sequence[Variant]
) -> tuple[list[Variant], str]:
  """The variants that nobody has done, runs or has in the queue of Slurm.

  Args:
    sweep: in its directory.
    wanted: the variants that are asked for.

  Returns:
    The variants, and in words what is left out; '' for nothing.

  Raises:
    ConfigError: it is not known whether runs are in the queue.
  """
  states = {v: run_states.find_state(sweep, v) for v in wanted}
  known = read_jobs(sweep)
  running = {
    note.job.partition('.')[0]: v
    for v, (state, note) in states.items()
    if state == notes.RUNNING and note.job
  }
  ids = {job.job for job in known} | {name.split('_')[0] for name in running}
  queue = ask_queue(sorted(ids)) if ids else {}
  firsts = {job.job: job.first for job in known}
  queued = {}
  for name, state in queue.items():
    job, _, task = name.partition('_')
    if job in firsts and task.isdigit():
      queued[int(task) + firsts[job]] = f'{state.lower()} in Slurm'
  for name, variant in running.items():
    if name not in queue:  # its node was lost, say
      state, note = states[variant]
      why = f'the task {name} of Slurm has ended without a word'
      note = dataclasses.replace(note, state=notes.STOPPED, why=why)
      notes.write_note(sweep.note(variant), note)
      states[variant] = run_states.find_state(sweep, variant)
  left, others = [], collections.Counter()
  for variant in wanted:
    state = states[variant][0]
    if state not in (notes.DONE, notes.BAD, notes.RUNNING):
      state = queued.get(variant.number, '')
    if state:
      others[state] += 1
    else:
      left.append(variant)
  _write_jobs(
    sweep, [j for j in known if any(n.split('_')[0] == j.job for n in queue)]
  )
  words = '; '.join(f'{count} {state}' for state, count in others.items())
  return left, f'left out: {words}' if words else ''


def ask_queue(jobs: Sequence[str]) -> dict[str, str]:
  """Task -> state, of all tasks of some arrays that have not ended.

  Args:
    jobs: the numbers of the arrays.

  Raises:
    ConfigError: squeue is not here or does not answer.
  """
  # By default squeue leaves out those that are suspended or held, say.
  words = ['squeue', '--noheader', '--array', '--states=all']
  words += ['--format=%i|%T', f'--jobs={",".join(jobs)}']
  try:
    done = subprocess.run(
      words, capture_output=True, text=True, timeout=_ANSWER_S
    )
    problem = done.stderr.strip() if done.returncode else ''
  except (OSError, subprocess.TimeoutExpired) as error:
    problem = str(error)
  # Slurm forgets a job some minutes after its end.
  if problem and 'Invalid job id' not in problem:
    raise ConfigError(
      f'squeue does not say whether runs of this sweep are in the queue '
      f'({problem}), and they must not be there twice. Try again where it '
      f'answers; if you know that the jobs {", ".join(jobs)} have ended, '
      f'remove logs/{_JOBS} in the directory of the sweep'
    )
  found = {}
  for line in '' if problem else done.stdout.splitlines():
    name, _, state = line.strip().partition('|')
    if state not in _ENDED:
      found[name] = state
  return found


def write_scripts(
  sweep: Sweep,
  wanted: Sequence[Variant],
  *,
  jobs: int | None = None,
  retries: int = 0,
  options: Sequence[str] = (),
  most: int = _LIMIT,
) -> dict[int, pathlib.Path]:
  """Writes the script of each array; returns them by their first variants.

  The number of a task is that of its variant, less the first of its array.

  Args:
    sweep: in its directory.
    wanted: the variants that are tasks.
    jobs: how many run at a time, at most; None leaves it to Slurm.
    retries: how often a run that fails is tried again.
    options: of sbatch, '--partition=gpu' each.
    most: MaxArraySize of the cluster.
  """
  for option in options:
    if not option.startswith('-') or '\n' in option:
      raise ConfigError(
        f'--sbatch takes an option of sbatch, as in --sbatch=--time=2:00:00, '
        f'not {option!r}'
      )
    if re.match(r'--array\b|-a', option):
      raise ConfigError(f'--sbatch={option}: use --only to choose runs')
  if jobs is not None and jobs < 1:
    raise ConfigError(f'--jobs is {jobs}, must be at least 1')
  if '\n' in str(sweep.root):
    raise ConfigError(f'sbatch takes no {str(sweep.root)!r}')
  warn = choose_warning(options)
  (sweep.root / 'logs').mkdir(exist_ok=True)
  blocks = collections.defaultdict(list)
  # 1000 of 1001: the numbers of tasks are the last digits of those of variants.
  size = most - most % 1000 if most >= 1000 else most
  for variant in wanted:
    blocks[variant.number // size * size].append(variant.number)
  paths = {}
  for first, numbers in sorted(blocks.items()):
    name = f'sweep_{first}.sbatch' if first else SCRIPT
    path = sweep.root / name
    text = _TEXT.format(
      script=shlex.quote(str(path)),
      name=shlex.quote(sweep.root.name),
      array=format_array([number - first for number in numbers])
      + (f'%{jobs}' if jobs else ''),
      # In the name of a file Slurm has its own use for a per cent sign.
      logs=shlex.quote(str(sweep.root / 'logs').replace('%', '%%')),
      warn=warn,
      options=''.join(f'#SBATCH {option}\n' for option in options),
      directory=shlex.quote(sweep.directory),
      python=shlex.quote(sys.executable),
      root=shlex.quote(str(sweep.root)),
      first=first,
      retries=retries,
      restarts=_MOST_RESTARTS,
    )
    replace_file(path, text.rstrip('\n'))
    paths[first] = path
  return paths


def submit(
  sweep: Sweep,
  wanted: Sequence[Variant],
  *,
  jobs: int | None = None,
  retries: int = 0,
  options: Sequence[str] = (),
) -> str:
  """Writes the scripts and submits them; returns in words what was done.

  Args:
    sweep: in its directory.
    wanted: the variants that are tasks.
    jobs: how many run at a time, at most; None leaves it to Slurm.
    retries: how often a run that fails is tried again.
    options: of sbatch, '--partition=gpu' each.

  Raises:
    ConfigError: there is no sbatch here, or it refuses.
  """
  paths = write_scripts(
    sweep, wanted, jobs=jobs, retries=retries, options=options,
    most=find_array_limit(),
  )  # fmt: skip
  written = ' '.join(map(str, paths.values()))
  if not shutil.which('sbatch'):
    raise ConfigError(
      f'there is no sbatch here; {written} is written, submit it where there is'
    )
  known, said, before = read_jobs(sweep), [], []
  for first, path in paths.items():
    words = ['sbatch', *before, str(path)]
    done = subprocess.run(words, capture_output=True, text=True)
    number = re.search(r'Submitted batch job (\d+)', done.stdout)
    if done.returncode or not number:
      problem = done.stderr.strip() or done.stdout.strip()
      raise ConfigError(f'sbatch refuses {path}: {problem}')
    known.append(Job(number[1], first))
    _write_jobs(sweep, known)  # now: the next one may be refused
    if jobs:  # which bounds each array alone
      before = [f'--dependency=afterany:{number[1]}']
    said.append(done.stdout.strip())
  return f'{"; ".join(said)}: {len(wanted)} runs, by {written}'


def find_array_limit() -> int:
  """MaxArraySize of this cluster: one more than the greatest task."""
  found = None
  try:
    done = subprocess.run(
      ['scontrol', 'show', 'config'],
      capture_output=True, text=True, timeout=_ANSWER_S,
    )  # fmt: skip
    found = re.search(r'^MaxArraySize\s*=\s*(\d+)', done.stdout, re.MULTILINE)
  except (OSError, subprocess.TimeoutExpired):
    pass  # sbatch says what is wrong
  if found and not int(found[1]):
    raise ConfigError('this Slurm takes no arrays: its MaxArraySize is 0')
  return int(found[1]) if found else _LIMIT


def choose_warning(options: Sequence[str]) -> int:
  """How many seconds before the limit of the time a run is asked to end.

  >>> choose_warning(['--time=4:00:00']), choose_warning(['-t5'])
  (300, 60)

  Args:
    options: of sbatch.

  Raises:
    ConfigError: the limit is too short for anything.
  """
  limit = None
  for option in options:
    if found := re.fullmatch(r'(?:--time[= ]|-t[= ]?)\s*(.+)', option.strip()):
      limit = parse_limit(found[1])
  if limit is None:
    return _WARN_S
  if limit < _SHORTEST_S:
    raise ConfigError(
      f'a time limit of {limit} s ends runs before they have begun: Slurm asks '
      f'them to end up to a minute too early; give --sbatch=--time=2 or more'
    )
  return min(_WARN_S, limit // 5)


def parse_limit(text: str) -> int | None:
  """Seconds of a --time of Slurm; None of none, or of what sbatch will refuse.

  >>> [parse_limit(text) for text in ('5', '5:30', '1:00:00', '2-12', '0')]
  [300, 330, 3600, 216000, None]
  """
  found = re.fullmatch(r'(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?', text.strip())
  if not found:
    return None
  days, *parts = (int(part or 0) for part in found.groups())
  # 'hours[:minutes[:seconds]]' behind days and with two colons; else minutes.
  if found[1] is None and found[4] is None:
    parts = [0, *parts[:2]]
  hours, minutes, seconds = parts
  return ((days * 24 + hours) * 60 + minutes) * 60 + seconds or None


def format_array(numbers: Sequence[int]) -> str:
  """Numbers as the array of Slurm has them.

  >>> format_array([0, 1, 2, 5, 7, 8])
  '0-2,5,7-8'
  """
  parts: list[list[int]] = []
  for number in sorted(numbers):
    if parts and number == parts[-1][1] + 1:
      parts[-1][1] = number
    else:
      parts.append([number, number])
  return ','.join(str(a) if a == b else f'{a}-{b}' for a, b in parts)


def read_jobs(sweep: Sweep) -> list[Job]:
  """The arrays of a sweep that were in the queue when it was last asked."""
  path = sweep.root / 'logs' / _JOBS
  if not path.exists():
    return []
  try:
    entries = json.loads(sealed.read_regular(path, _MOST_BYTES))
    return [_read_job(entry) for entry in entries]
  except (OSError, *sealed.UNREADABLE) as error:
    raise ConfigError(
      f'{path} cannot be read ({error}), which tells the runs in the queue of '
      'Slurm; remove it when there are none'
    ) from error


def _read_job(entry: Mapping) -> Job:
  sealed.check_keys(entry, job=str, first=int)
  if not re.fullmatch(r'\d+', entry['job']):
    raise ValueError(f'{entry["job"]!r} is no number of a job')
  return Job(entry['job'], entry['first'])


def _write_jobs(sweep: Sweep, jobs: Sequence[Job]) -> None:
  path = sweep.root / 'logs' / _JOBS
  if jobs or path.exists():
    replace_file(path, json.dumps([dataclasses.asdict(job) for job in jobs]))
