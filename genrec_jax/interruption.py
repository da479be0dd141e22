"""How a process ends: by a signal, by an error, or because it is done.

A command calls `install()` first and ends by `leave()`. Signals are read in a
thread, so that they are noticed while the main thread compiles or waits for a
device, and every way out is `os._exit`: the interpreter takes itself down while
threads of XLA still run, which has ended in segmentation faults.

| exit status | meaning                                                |
|-------------|--------------------------------------------------------|
| 0           | done                                                   |
| 1           | an error, told in a sentence                           |
| 2           | the command line cannot be understood                  |
| 70          | a bug of this library; its traceback is in error.log   |
| 75          | stopped by SIGTERM; the same command continues         |
| 130         | stopped by Ctrl-C; the same command continues          |

Without `install`, in a notebook say, only `SafePoints` that are asked to listen
handle signals, and only while their block lasts.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

DONE, FAILED, MISUSED, BUG = 0, 1, 2, 70
STATUSES = {signal.SIGINT: 130, signal.SIGTERM: 75}
NAMES = {signal.SIGINT: 'Ctrl-C', signal.SIGTERM: 'SIGTERM'}
_FLUSH_S = 0.5
_Batch = TypeVar('_Batch')


class Stopped(KeyboardInterrupt):
  """A signal ended what was under way; the message says what is kept."""

  def __init__(self, number: int):
    super().__init__(f'stopped by {NAMES[number]}')
    self.number = number


class Peers(Protocol):
  """The other processes of a job, as a stop concerns them."""

  def request_stop(self, number: int) -> None:
    """All processes shall stop at the same safe point."""

  def reach(self) -> bool:
    """Whether this safe point is the one at which all processes stop."""

  def fail(self, words: str) -> None:
    """Says why this process ends, which ends the others."""

  def close(self, limit_s: float | None = None) -> bool:
    """Ends the connections when all processes have come here."""

  def end(self, number: int, *, wait: bool = True) -> None:
    """All processes shall end at once; waits a moment for them to do so."""


class _Process:
  """What this process knows of its end.

  Attributes:
    statuses: signal -> exit status, in a command; empty elsewhere.
    safe_points: those of the block that is under way.
    kept: says what is kept if the process ends now.
    peers: the other processes, if there are any.
    is_voice: whether this process speaks for its job.
  """

  def __init__(self):
    self.statuses: dict[int, int] = {}
    self.safe_points: SafePoints | None = None
    self.kept: Callable[[], str] = lambda: 'the same command starts again'
    self.peers: Peers | None = None
    self.is_voice = True
    self.signal: int | None = None  # the first to itself, not to a peer
    self.wakeup: socket.socket | None = None
    self.lock = threading.RLock()


PROCESS = _Process()


class SafePoints(contextlib.AbstractContextManager):
  """A block that ends at a safe point of its own when a signal arrives.

    with SafePoints() as points:
      for batch in batches:
        if points.reach():
          break  # and save
        points.hold()
        ...

  Before `hold` there is nothing to lose, and a command ends at once.

  Attributes:
    number: the signal that has arrived, None before.
    may_raise: whether `each` raises `Stopped`.
  """

  def __init__(self, *, listen: bool = False, limit_s: float | None = None):
    """Makes the points of a block.

    Args:
      listen: whether signals are handled where no command does, as in a
        notebook: the first Ctrl-C stops at a safe point, the second raises
        KeyboardInterrupt.
      limit_s: seconds after which a command ends although no safe point came.
    """
    self._listen, self._limit_s = listen, limit_s
    self._holds, self._before = False, {}
    self.number: int | None = None
    self.may_raise = False

  def hold(self) -> None:
    """Says that from here on a stop has to wait for a safe point."""
    if not self._holds:
      with PROCESS.lock:
        self._holds, PROCESS.safe_points = True, self

  def reach(self) -> bool:
    """Whether to stop here; all processes of a job get the same answer."""
    if PROCESS.peers and self._holds:
      return PROCESS.peers.reach()
    return self.number is not None

  def request(self, number: int) -> None:
    """Stops at the next safe point."""
    self.number = self.number or number
    if self._limit_s is not None:
      timer = threading.Timer(self._limit_s, end_by_signal, [number])
      timer.daemon = True
      timer.start()

  @contextlib.contextmanager
  def allow_raising(self) -> Iterator[None]:
    """In this block, `each` raises `Stopped` between two batches."""
    self.may_raise = True
    try:
      yield
    finally:
      self.may_raise = False

  def __enter__(self) -> 'SafePoints':
    if self._listen and not PROCESS.statuses:
      with contextlib.suppress(ValueError):  # not in the main thread
        for number in STATUSES:
          self._before[number] = signal.signal(number, self._receive)
    if not PROCESS.statuses:
      self.hold()
    return self

  def __exit__(self, *exc_info) -> None:
    with PROCESS.lock:
      PROCESS.safe_points = None
    for number, handler in self._before.items():
      signal.signal(number, handler)

  def _receive(self, number: int, frame) -> None:
    """The handler where there is no command."""
    if self.number is not None and number == signal.SIGINT:
      raise KeyboardInterrupt
    if PROCESS.peers:
      PROCESS.peers.request_stop(number)
    else:
      self.request(number)


class Unwinding(SafePoints):
  """A block that a signal leaves by `Stopped` between two of `each` batch.

  What the block has begun to write is removed on the way; a command that is
  not through within some seconds ends without that.
  """

  def __init__(self):
    super().__init__(limit_s=3.0)

  def __enter__(self) -> 'Unwinding':
    self.hold()
    self.may_raise = True
    return self


def each(batches: Iterable[_Batch]) -> Iterator[_Batch]:
  """Yields the batches; raises `Stopped` between them if that is allowed."""
  for batch in batches:
    points = PROCESS.safe_points
    if points and points.may_raise and points.reach():
      raise Stopped(points.number)
    yield batch


def install(
  statuses: dict[int, int] = STATUSES, *, heed_ignored: bool = False
) -> None:
  """Makes this process a command: its signals are read in a thread.

  A Ctrl-C that the parent has switched off (nohup, a background job of a
  script) stays off.

  Args:
    statuses: signal -> exit status.
    heed_ignored: whether Ctrl-C is heeded nevertheless.
  """
  if PROCESS.statuses:  # as the command began
    return
  _open_standard_streams()
  reader, writer = socket.socketpair()
  writer.setblocking(False)
  PROCESS.statuses = statuses
  for number in statuses:
    if heed_ignored or signal.getsignal(number) != signal.SIG_IGN:
      # The thread does it all, but without a handler no byte is written.
      signal.signal(number, lambda *_: None)
  PROCESS.wakeup = writer
  signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
  threading.Thread(target=_read_signals, args=(reader,), daemon=True).start()


def _open_standard_streams() -> None:
  """Gives a process that was started without them somewhere to write to.

  Else the next file that it opens would get what is meant for people.
  """
  for number, name in enumerate(('stdin', 'stdout', 'stderr')):
    try:
      os.fstat(number)
    except OSError:
      os.open(os.devnull, os.O_RDWR)  # gets the least free number, this one
    if getattr(sys, name) is None:
      stream = open(number, 'w' if number else 'r', closefd=False)
      setattr(sys, name, stream)
      setattr(sys, f'__{name}__', stream)


def _read_signals(reader: socket.socket) -> None:
  while True:
    for number in reader.recv(64):
      if number in PROCESS.statuses:
        with contextlib.suppress(Exception):  # the next one is heeded, too
          _act_upon(signal.Signals(number))


def _act_upon(number: int) -> None:
  """What a command does when a signal arrives."""
  if PROCESS.signal:
    if number == signal.SIGINT:
      if peers := PROCESS.peers:
        run_for(lambda: peers.end(number, wait=False), _FLUSH_S)
      words = 'Ctrl-C again: ended at once' if PROCESS.is_voice else ''
      leave(PROCESS.statuses[number], words)
    return  # a second SIGTERM asks for what is being done
  PROCESS.signal = number
  with PROCESS.lock:
    points = PROCESS.safe_points
  if not points:
    end_by_signal(number)
  if PROCESS.peers:
    PROCESS.peers.request_stop(number)
  else:
    points.request(number)
  if number == signal.SIGINT and PROCESS.is_voice:
    say('Ctrl-C: finishing what is under way; once more ends at once')


def end_by_signal(number: int, words: str = '', *, tell: bool = True) -> None:
  """Ends this process as a signal asks for.

  Args:
    number: of the signal.
    words: the last line; '' says what is kept.
    tell: whether the other processes of the job are to end, too.
  """
  number = signal.Signals(number)
  words = words or f'stopped by {NAMES[number]}; {_describe_kept()}'
  if PROCESS.peers and tell:
    PROCESS.peers.end(number)
  status = PROCESS.statuses.get(number, STATUSES[number])
  leave(status, words if PROCESS.is_voice else '')


def keep(describe: Callable[[], str]) -> None:
  """Sets what a process that is ended from here on says to be kept.

  Args:
    describe: returns the words; called at the end, in any thread.
  """
  PROCESS.kept = describe


def _describe_kept() -> str:
  words = ['']

  def describe():
    words[0] = PROCESS.kept()

  run_for(describe, _FLUSH_S)  # a file system that hangs must not keep us
  return words[0] or 'the same command starts again'


def explain_end(reason: str) -> str:
  """A sentence about an end that nobody asked for, and what is kept."""
  return f'{reason}; {_describe_kept()}'


def say(words: str) -> None:
  """Writes a line to standard error, whatever holds the locks of Python's."""
  # The line of progress on a terminal stays as it is.
  start = '\n' if os.isatty(2) else ''
  with contextlib.suppress(OSError):
    os.write(2, f'{start}{words}\n'.encode(errors='replace'))


def leave(status: int, words: str = '') -> None:
  """Ends the process at once, without taking the interpreter down.

  Args:
    status: the exit status.
    words: the last line on standard error.
  """
  run_for(lambda: sys.stdout.flush(), _FLUSH_S)
  run_for(lambda: sys.stderr.flush(), _FLUSH_S)
  if words:
    say(words)
  os._exit(status)


def run_for(action: Callable[[], object], seconds: float) -> bool:
  """Runs an action that may hang; goes on without it after some seconds.

  Returns:
    Whether the action has ended, if only by an error.
  """

  def run():
    with contextlib.suppress(Exception):
      action()

  thread = threading.Thread(target=run, daemon=True)
  try:
    thread.start()
  except RuntimeError:  # the interpreter is about to end
    run()
    return True
  thread.join(seconds)
  return not thread.is_alive()
