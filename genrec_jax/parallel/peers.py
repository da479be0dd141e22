"""Lets the processes of a job notice each other's end, and stop together.

Every process holds a TCP connection to process 0, over which both send signs of
life. A process that was killed is noticed by its closed connection, at once;
one that is frozen, by its silence for `parallel.heartbeat_s`. The others then
say which one it was and end. (JAX notices later, and aborts with stack traces.)

A stop that all processes make at the same step is agreed upon like this: one
asks process 0, which asks all. Each answers how many safe points it has passed,
and waits at its next one until process 0 has said which is the last: the one
behind the farthest that any of them has passed.
"""

import atexit
import contextlib
import itertools
import json
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator

import jax

from genrec_jax import interruption
from genrec_jax.interruption import PROCESS
from genrec_jax.parallel import jax_internals, meeting

HEARTBEAT_S = 30.0
_LEAVE_S = 2.0  # for others to end first, as they have been told to
_SHUTDOWN_S = 10.0  # JAX's, which takes less than one
_READ_S = 0.1  # for others to read what this process has said
_LONGEST_WORDS = 10_000  # characters; JSON makes more of them
_turns = itertools.count()


class Peers:
  """The connections of this process: in process 0 to all, else to process 0."""

  def __init__(self, process: int, count: int, heartbeat_s: float):
    """Begins without connections.

    Args:
      process: number of this process.
      count: number of processes of the job.
      heartbeat_s: seconds of silence after which a process is gone.
    """
    self._me, self._count = process, count
    self.heartbeat_s = heartbeat_s
    self._changed = threading.Condition(threading.RLock())
    self._links: dict[int, meeting.Link] = {}
    self._left: set[int] = set()  # who has said farewell
    self._has_met = self._is_over = False
    self._points, self._answers = 0, {}
    self._number = self._last_point = None  # of the stop under way
    self._start_thread(self._beat)

  def gather(self, server: socket.socket, token: str, limit_s: float) -> None:
    """In process 0: returns when all processes have connected.

    Args:
      server: where they do it.
      token: what they must know.
      limit_s: seconds to wait.

    Raises:
      MeetingError: not all have come.
    """
    meeting.gather(
      server, token, self._judge, self._add, self._list_missing, limit_s
    )
    self._broadcast(met=True)

  def follow(
    self, address: tuple[str, int], token: str, limit_s: float
  ) -> None:
    """In another process: returns when all processes have connected.

    Args:
      address: host and port of process 0.
      token: what it expects.
      limit_s: seconds to wait for it; it waits for the others.

    Raises:
      MeetingError: it does not answer, or refuses this process.
    """
    hello = {'process': self._me, 'count': self._count}
    hello |= {'token': token, 'host': socket.gethostname()}
    link = meeting.connect(*address, hello, limit_s)
    with self._changed:
      self._links[0] = link
      self._start_thread(self._listen, link)
      self._changed.wait_for(lambda: self._has_met)

  def _judge(self, link: meeting.Link, hello: dict) -> str:
    """In process 0: why a connection is none of this job, or ''."""
    with self._changed:
      if hello['count'] != self._count:
        return f'it is of {hello["count"]} processes, this job of {self._count}'
      if not 0 < link.process < self._count:
        return f'there is no process {link.process} of {self._count}'
      if other := self._links.get(link.process):
        return f'process {link.process} is there already (host {other.host})'
    return ''

  def _add(self, link: meeting.Link) -> None:
    """In process 0: takes a connection."""
    with self._changed:
      if link.process in self._links:  # two of one number came at once
        raise ValueError(f'process {link.process} is there already')
      self._links[link.process] = link
      self._start_thread(self._listen, link)

  def _list_missing(self) -> list[int]:
    with self._changed:
      return [p for p in range(1, self._count) if p not in self._links]

  # ---- What the process asks for --------------------------------------------

  def request_stop(self, number: int) -> None:
    """All processes shall stop at the same safe point."""
    if self._me:
      self._links[0].send(stop=number)
    else:
      self._ask_all(number)

  def reach(self) -> bool:
    """Whether this safe point is the one at which all processes stop."""
    with self._changed:
      while self._number is not None and self._last_point is None:
        self._changed.wait()
      self._points += 1
      return self._last_point is not None and self._points >= self._last_point

  def end(self, number: int, *, wait: bool = True) -> None:
    """All processes shall end at once; waits a moment for them to do so."""
    self._is_over = True  # what the others do now is what they were told
    self._broadcast(end=int(number))
    if wait:
      self._await_ends()

  def fail(self, words: str) -> None:
    """Says why this process ends, which ends the others."""
    self._is_over = True
    self._broadcast(failed=words[:_LONGEST_WORDS])
    self._await_ends()

  def close(self, limit_s: float | None = None) -> bool:
    """Ends the watch when all processes have come here.

    Args:
      limit_s: seconds to wait for them; None is for as long as they live.

    Returns:
      Whether they have come.
    """
    with self._changed:
      self._left.add(self._me)
      if self._me:
        self._links[0].send(farewell=True)
      is_over = self._changed.wait_for(
        lambda: len(self._left) == self._count or self._is_over, limit_s
      )
      if is_over:
        self._is_over = True
        self._broadcast(farewell=True)
    return is_over

  def _await_ends(self) -> None:
    deadline = time.monotonic() + _LEAVE_S
    with self._changed:
      while self._links and time.monotonic() < deadline:
        self._changed.wait(0.05)
      for link in self._links.values():
        link.hang_up()

  # ---- Threads --------------------------------------------------------------

  def _start_thread(self, target, *args) -> None:
    threading.Thread(target=target, args=args, daemon=True).start()

  def _beat(self) -> None:
    """Sends signs of life, and misses those of others."""
    pause = min(5.0, self.heartbeat_s / 6)
    before = time.monotonic()
    while not self._is_over:
      time.sleep(pause)
      now = time.monotonic()
      with self._changed:
        links = list(self._links.values())
      self._broadcast(beat=True)
      # A process that was frozen itself has much to read before it judges.
      if now - before > 2 * pause + 1:
        for link in links:
          link.heard = now
      before = now
      for link in links:
        if link.process not in self._left and (
          now - link.heard > self.heartbeat_s
        ):
          how = f'there was no sign of life for {self.heartbeat_s:g} s'
          self._miss(link, how)

  def _listen(self, link: meeting.Link) -> None:
    """Does what the messages of another process say."""
    while True:
      try:
        message = link.receive()
      except (EOFError, ValueError):
        break
      self._heed(link, message)
    link.close()
    with self._changed:
      self._links.pop(link.process, None)
      self._changed.notify_all()
      if link.process in self._left or self._is_over:
        return
    self._miss(link, 'its connection is closed: it died or was killed')

  def _heed(self, link: meeting.Link, message: dict) -> None:
    match message:
      case {'met': _}:
        with self._changed:
          self._has_met = True
          self._changed.notify_all()
      case {'farewell': _}:
        with self._changed:
          self._left.add(link.process)
          if self._me:  # process 0 says so when all are there
            self._is_over = True
          self._changed.notify_all()
      case {'stop': number}:
        self._ask_all(number)
      case {'ask': number}:
        self._answer(number)
      case {'answer': points}:
        self._collect(link.process, points)
      case {'until': point}:
        self._stop_at(point)
      case {'end': _} | {'failed': _} if self._is_over:
        pass  # it is this process that said so
      case {'end': number}:
        self._pass_on(message)
        interruption.end_by_signal(number, tell=False)
      case {'failed': words}:
        self._die(words, **message)

  # ---- A stop of all --------------------------------------------------------

  def _ask_all(self, number: int) -> None:
    with self._changed:
      if self._number is None:
        self._broadcast(ask=number)
        self._answer(number)

  def _answer(self, number: int) -> None:
    with PROCESS.lock:
      points = PROCESS.safe_points
    if not points:  # nothing to lose yet, or all is saved
      interruption.end_by_signal(number)
    points.request(number)
    with self._changed:
      self._number = number
      if self._me:
        self._links[0].send(answer=self._points)
      else:
        self._collect(0, self._points)

  def _collect(self, process: int, points: int) -> None:
    with self._changed:
      self._answers[process] = points
      if len(self._answers) == self._count:
        point = max(self._answers.values()) + 1
        self._broadcast(until=point)
        self._stop_at(point)

  def _stop_at(self, point: int) -> None:
    with self._changed:
      self._last_point = point
      self._changed.notify_all()

  # ---- The end of another process -------------------------------------------

  def _miss(self, link: meeting.Link, how: str) -> None:
    reason = (
      f'process {link.process} of {self._count} (host {link.host}) is gone: '
      f'{how}'
    )
    self._die(reason, failed=reason)

  def _die(self, reason: str, **message) -> None:
    """Ends this process, because another one has ended."""
    self._pass_on(message)
    # Whoever sends signals to all may see one end before the others do.
    if PROCESS.signal:
      interruption.end_by_signal(PROCESS.signal, tell=False)
    interruption.leave(
      interruption.FAILED, f'error: {interruption.explain_end(reason)}'
    )

  def _pass_on(self, message: dict) -> None:
    """In process 0: tells all why they end."""
    self._is_over = True
    if not self._me:
      self._broadcast(**message)
      time.sleep(_READ_S)

  def _broadcast(self, **message) -> None:
    with self._changed:
      links = list(self._links.values())
    for link in links:
      link.send(**message)


def meet(
  address: tuple[str, int],
  process: int,
  count: int,
  heartbeat_s: float,
  limit_s: float,
) -> None:
  """Begins to watch the other processes of the job, before JAX is started.

  Args:
    address: host and port of process 0, which JAX uses afterwards.
    process: number of this process.
    count: number of processes.
    heartbeat_s: seconds of silence after which a process is gone.
    limit_s: seconds to wait for the others.

  Raises:
    MeetingError: the processes do not find each other.
  """
  with _begin(Peers(process, count, heartbeat_s)) as peers:
    if process:
      peers.follow(address, meeting.TOKEN, limit_s)
    else:
      server = meeting.listen(*address, limit_s)
      peers.gather(server, meeting.TOKEN, limit_s)


def start(heartbeat_s: float = HEARTBEAT_S) -> bool:
  """Begins to watch the other processes of a job that JAX has brought together.

  Args:
    heartbeat_s: seconds of silence after which a process is gone.

  Returns:
    Whether the watch begins here.
  """
  if PROCESS.peers or jax.process_count() == 1:
    return False
  client = jax_internals.find_store()
  address = jax_internals.find_coordinator()
  host, limit_s = address.rpartition(':')[0].strip('[]'), heartbeat_s + 60
  # Anybody may connect; only who can read JAX's store knows the token.
  key = f'genrec_jax/peers/{next(_turns)}'
  me, count = jax.process_index(), jax.process_count()
  with _begin(Peers(me, count, heartbeat_s)) as peers:
    if me:
      where = client.blocking_key_value_get(key, int(1000 * limit_s))
      port, token = json.loads(where)
      peers.follow((host, port), token, limit_s)
    else:
      server, token = meeting.listen(host), secrets.token_hex(16)
      client.key_value_set(key, json.dumps([server.getsockname()[1], token]))
      peers.gather(server, token, limit_s)
  return True


@contextlib.contextmanager
def _begin(peers: Peers) -> Iterator[Peers]:
  """In this block the processes meet; signals concern all of them already."""
  PROCESS.peers = peers
  try:
    yield peers
  except BaseException as error:
    PROCESS.peers = None
    peers.fail(f'in another process: {error or type(error).__name__}')
    raise
  atexit.register(_part_at_exit)


def _part_at_exit() -> None:
  """The end of a program of one's own, which does not call `stop`."""
  if PROCESS.peers is None:
    return
  if (error := getattr(sys, 'last_value', None)) is None:
    part()
  else:
    fail(f'process {jax.process_index()}: {error or type(error).__name__}')
    interruption.leave(interruption.FAILED)  # JAX would abort


def stop() -> None:
  """Ends the watch; all processes must come here."""
  if PROCESS.peers:
    PROCESS.peers.close()
    PROCESS.peers = None


def part() -> None:
  """Ends the watch and JAX's part in the job; all processes must come here.

  The work of all is done then. One that dies now must not hold the others, as
  JAX would let it.
  """
  stop()
  interruption.run_for(jax.distributed.shutdown, _SHUTDOWN_S)
  if jax_internals.find_store() is not None:
    interruption.leave(interruption.DONE)  # JAX would try it again


def fail(words: str) -> None:
  """Says why this process ends, which ends the others."""
  if PROCESS.peers:
    PROCESS.peers.fail(words)


def await_news() -> None:
  """Waits for news of a dead process, which explain why a collective failed."""
  if PROCESS.peers:
    time.sleep(PROCESS.peers.heartbeat_s + 1)
