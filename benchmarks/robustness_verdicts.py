"""What became of a command that got a signal, or that ended before it could.

Of every life its statuses and its words are looked at, and what it has left.
"""

import collections
import dataclasses
import pathlib
import re
import signal
from collections.abc import Sequence

from genrec_jax.checkpoint import manifest

OUTCOMES = (
  'saved and told', 'killed', 'went on', 'ended before', 'silent', 'crash',
  'traceback', 'last resort', 'hang',
)  # fmt: skip
BAD = ('silent', 'crash', 'traceback', 'last resort', 'hang')

# What is sent, with the seconds between two; KILL leaves no choice.
SIGNALS = {
  'TERM': (signal.SIGTERM,),
  'INT': (signal.SIGINT,),
  'INT INT': (signal.SIGINT, 0.3, signal.SIGINT),
  'INT INT at once': (signal.SIGINT, 0.0, signal.SIGINT),
  'TERM INT': (signal.SIGTERM, 0.2, signal.SIGINT),
  'STOP CONT': (signal.SIGSTOP, 1.0, signal.SIGCONT),
  'STOP KILL': (signal.SIGSTOP, 0.5, signal.SIGKILL),
  'KILL': (signal.SIGKILL,),
  'HUP': (signal.SIGHUP,),
}
# The statuses with which a command may end after it.
STATUSES = {
  'TERM': {75},
  'INT': {130},
  'INT INT': {130},
  'INT INT at once': {130},
  'TERM INT': {75, 130},
  'STOP CONT': {0},
  'STOP KILL': {-signal.SIGKILL},
  'KILL': {-signal.SIGKILL},
  'HUP': {-signal.SIGHUP},
}
TELLING = ('TERM', 'INT', 'INT INT', 'INT INT at once', 'TERM INT')
_ENDED = re.compile(
  r'^(stopped by (SIGTERM|Ctrl-C)( at step \d+ of \d+)?; \S.*'
  r'|Ctrl-C again: ended at once)$',
  re.MULTILINE,
)
_KEPT = re.compile(r'at step (\d+) of \d+; |from the checkpoint of step (\d+)')
# What a process says that got no signal, of one that ended or never came.
_MISSED = re.compile(
  r'^error: .*(is gone: |did not come within|did not answer within)',
  re.MULTILINE,
)


@dataclasses.dataclass
class Life:
  """One process, or several, and what became of it.

  Attributes:
    phase: at which the signal was aimed.
    name: of the signal, a key of `SIGNALS`.
    met: the phase in which it came; '' where none was sent.
    outcome: one of `OUTCOMES`.
    detail: what a bad outcome has said.
    seconds: from the signal to the end.
  """

  phase: str
  name: str
  met: str = ''
  outcome: str = 'ended before'
  detail: str = ''
  seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class End:
  """How the processes of a life have ended.

  Attributes:
    statuses: of each process.
    said: by each process.
    in_time: whether none had to be killed.
    is_complete: whether the work of the command is done.
    workdir: of the command.
  """

  statuses: Sequence[int]
  said: Sequence[str]
  in_time: bool
  is_complete: bool
  workdir: pathlib.Path


def judge_missed(life: Life, end: End) -> None:
  """Fills in the outcome of a life whose phase never came."""
  life.outcome = _find_fault(end)
  if not life.outcome:
    done = set(end.statuses) == {0} and end.is_complete
    life.outcome = 'ended before' if done else 'silent'
  _describe(life, end)


def judge(life: Life, end: End, whom: Sequence[int], follows: bool) -> None:
  """Fills in the outcome of a life that got its signal.

  Args:
    life: to be filled in.
    end: of it.
    whom: the processes to which the signal was sent.
    follows: whether it is a follower, whose usual end is SIGTERM.
  """
  expected = set(STATUSES[life.name])
  if follows:
    expected = {0 if status == 75 else status for status in expected}
  life.outcome = (
    _find_fault(end)
    or _judge_statuses(life.name, end, whom, expected)
    or _judge_words(life.name, end)
  )
  _describe(life, end)


def _find_fault(end: End) -> str:
  said = '\n'.join(end.said)
  if not end.in_time:
    return 'hang'
  if 'looks like a bug' in said:
    return 'last resort'
  if 'Traceback' in said or 'Fatal Python error' in said:
    return 'traceback'
  return ''


def _judge_statuses(name, end: End, whom, expected: set[int]) -> str:
  if set(end.statuses) == {0} and 0 not in expected:
    return 'ended before' if end.is_complete else 'silent'
  for number, status in enumerate(end.statuses):
    is_right = status in expected or (status == 0 and end.is_complete)
    if number not in whom:  # it may have lost one without a word of that one
      is_right &= name in TELLING or name == 'STOP CONT' or status == 0
      is_right |= status == 1 and bool(_MISSED.search(end.said[number]))
    if not is_right:
      return 'crash' if status < 0 else 'silent'
  return ''


def _judge_words(name, end: End) -> str:
  if name == 'STOP CONT':
    return 'went on' if end.is_complete else 'silent'
  if name not in TELLING:
    return 'killed'
  said = '\n'.join(end.said)
  steps = manifest.list_steps(end.workdir / 'checkpoints')
  kept = {
    step
    for step in steps
    if (end.workdir / 'checkpoints' / str(step) / manifest.NAME).exists()
  }
  lines = [line[0] for line in _ENDED.findall(said)]
  promised = {int(a or b) for line in lines for a, b in _KEPT.findall(line)}
  return 'saved and told' if lines and promised <= kept else 'silent'


def _describe(life: Life, end: End) -> None:
  if life.outcome in BAD:
    last = [' | '.join(said.strip().splitlines()[-3:]) for said in end.said]
    life.detail = f'{list(end.statuses)}: {" || ".join(last)}'[-500:]


def count_outcomes(rows: list[dict]) -> list[dict]:
  """A row for each kind and phase, of the chains of the result file.

  A signal counts for the phase in which it came, whatever it was aimed at.
  """
  table = {}
  for row in rows:
    for aimed, _, outcome, seconds, met in row['lives']:
      phase = met or aimed
      for key in ((row['kind'], phase), ('all', phase), ('all', 'all')):
        counts = table.setdefault(key, collections.Counter())
        counts[outcome] += 1
        counts['slowest_s'] = max(counts['slowest_s'], seconds)
  return [
    {
      'case': f'{kind}, {phase}',
      'kind': kind,
      'phase': phase,
      'signals': sum(counts[x] for x in OUTCOMES) - counts['ended before'],
      'bad': sum(counts[x] for x in BAD),
      **{x: counts[x] for x in (*OUTCOMES, 'slowest_s')},
    }
    for (kind, phase), counts in sorted(table.items())
  ]
