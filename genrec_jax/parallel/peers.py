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

import jax
from jax._src import distributed  # the store has no public name

from genrec_jax import interruption
from genrec_jax.interruption import PROCESS

HEARTBEAT_S = 30.0
_LEAVE_S = 2.0  # for others to end first, as they have been told to
_READ_S = 0.1  # for others to read what this process has said
_LOCAL = ('localhost', '127.0.0.1')
_LONGEST = 100_000  # characters of a message
_STRANGERS, _GREETING_S = (
  64,
  10.0,
)  # connections that have not said who they are
_turns = itertools.count()


class _Link:
  """A connection to another process."""

  def __init__(self, connection: socket.socket, process: int, host: str):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(None)
    self.process, self.host, self.heard = process, host, time.monotonic()
    self.lines = connection.makefile('r', encoding='utf-8')
    self._connection, self._lock = connection, threading.Lock()

  def send(self, **message) -> None:
    """Sends a message; whether it arrives, the silence that follows tells."""
    with contextlib.suppress(OSError), self._lock:
      self._connection.sendall(json.dumps(message).encode() + b'\n')

  def receive(self) -> dict:
    """The next message.

    Raises:
      EOFError: the connection is closed.
    """
    try:
      line = self.lines.readline(_LONGEST)
    except OSError:
      line = ''
    if not line.endswith('\n'):
      raise EOFError
    self.heard = time.monotonic()
    try:
      return json.loads(line)
    except RecursionError as e:
      raise ValueError('no message of a peer') from e


class Peers:
  """The connections of this process: in process 0 to all, else to process 0."""

  def __init__(self, heartbeat_s: float, host: str):
    """Connects this process; all processes of the job must do it.

    Args:
      heartbeat_s: seconds of silence after which a process is gone.
      host: of process 0.
    """
    self._me, self._count = jax.process_index(), jax.process_count()
    self.heartbeat_s = heartbeat_s
    self._changed = threading.Condition(threading.RLock())
    self._links: dict[int, _Link] = {}
    self._left: set[int] = set()  # who has said farewell
    self._is_over = False
    self._points, self._answers = 0, {}
    self._number = self._last_point = None  # of the stop under way
    key = f'genrec_jax/peers/{next(_turns)}'
    client = distributed.global_state.client
    if self._me:
      wait_ms = int(1000 * (heartbeat_s + 60))
      port, token = json.loads(client.blocking_key_value_get(key, wait_ms))
      connection = socket.create_connection((host, port), heartbeat_s)
      link = _Link(connection, 0, host)
      link.send(process=self._me, token=token, host=socket.gethostname())
      self._links[0] = link
      self._start_thread(self._listen, link)
    else:
      if host in _LOCAL:
        server = socket.create_server(('127.0.0.1', 0))
      elif socket.has_dualstack_ipv6():
        server = socket.create_server(
          ('', 0), family=socket.AF_INET6, dualstack_ipv6=True
        )
      else:
        server = socket.create_server(('', 0))
      token = secrets.token_hex(16)
      where = [server.getsockname()[1], token]
      client.key_value_set(key, json.dumps(where))
      self._start_thread(self._accept, server, token)
    self._start_thread(self._beat)

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

  def end(self, number: int) -> None:
    """All processes shall end at once; returns when they have, or soon."""
    self._finish(end=int(number))

  def fail(self, words: str) -> None:
    """Says why this process ends, which ends the others."""
    self._finish(failed=words[: _LONGEST // 10])  # JSON makes more of them

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

  def _finish(self, **message) -> None:
    self._is_over = True  # what the others do now is what they were told
    self._broadcast(**message)
    deadline = time.monotonic() + _LEAVE_S
    with self._changed:
      while self._links and time.monotonic() < deadline:
        self._changed.wait(0.05)

  # ---- Threads --------------------------------------------------------------

  def _start_thread(self, target, *args) -> None:
    threading.Thread(target=target, args=args, daemon=True).start()

  def _accept(self, server: socket.socket, token: str) -> None:
    """In process 0: takes the connections of the others."""
    greetings = threading.BoundedSemaphore(_STRANGERS)
    while True:  # a stranger may connect and say nothing
      greetings.acquire()
      try:
        connection = server.accept()[0]
      except OSError:  # no descriptor is left, say
        greetings.release()
        time.sleep(_READ_S)
        continue
      self._start_thread(self._greet, connection, token, greetings)

  def _greet(self, connection: socket.socket, token: str, greetings) -> None:
    try:
      link = _Link(connection, -1, '')
      connection.settimeout(_GREETING_S)
      hello = link.receive()
      if not secrets.compare_digest(hello['token'], token):
        raise ValueError('a stranger')
      link.process, link.host = int(hello['process']), str(hello['host'])
      connection.settimeout(None)
    except (OSError, EOFError, ValueError, KeyError, TypeError):
      connection.close()
      return
    finally:
      greetings.release()
    with self._changed:
      self._links[link.process] = link
    self._listen(link)

  def _beat(self) -> None:
    """Sends signs of life, and misses those of others."""
    pause = min(5.0, self.heartbeat_s / 6)
    started = before = time.monotonic()
    while not self._is_over:
      time.sleep(pause)
      now = time.monotonic()
      with self._changed:
        links = dict(self._links)
      self._broadcast(beat=True)
      # A process that was frozen itself has much to read before it judges.
      if now - before > 2 * pause + 1:
        started = now
        for link in links.values():
          link.heard = now
      before = now
      others = range(1, self._count) if not self._me else [0]
      for process in others:
        heard = links[process].heard if process in links else started
        if process not in self._left and now - heard > self.heartbeat_s:
          host = links[process].host if process in links else 'unknown'
          self._miss(
            process,
            host,
            f'there was no sign of life for {self.heartbeat_s:g} s',
          )

  def _listen(self, link: _Link) -> None:
    """Does what the messages of another process say."""
    while True:
      try:
        message = link.receive()
      except (EOFError, ValueError):
        break
      self._heed(link, message)
    with self._changed:
      self._links.pop(link.process, None)
      self._changed.notify_all()
      if link.process in self._left or self._is_over:
        return
    self._miss(
      link.process, link.host, 'its connection is closed: it died or was killed'
    )

  def _heed(self, link: _Link, message: dict) -> None:
    match message:
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

  def _miss(self, process: int, host: str, how: str) -> None:
    reason = f'process {process} of {self._count} (host {host}) is gone: {how}'
    self._die(reason, failed=reason)

  def _die(self, reason: str, **message) -> None:
    """Ends this process, because another one has ended."""
    self._pass_on(message)
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


def start(heartbeat_s: float = HEARTBEAT_S, host: str = '') -> bool:
  """Begins to watch the other processes of the job, unless that has begun.

  Args:
    heartbeat_s: seconds of silence after which a process is gone.
    host: of process 0; '' is that of JAX's coordinator.

  Returns:
    Whether the watch begins here.
  """
  if PROCESS.peers or jax.process_count() == 1:
    return False
  address = distributed.global_state.coordinator_address
  host = host or address.rpartition(':')[0].strip('[]')
  PROCESS.peers = Peers(heartbeat_s, host)
  atexit.register(_part_at_exit)
  return True


def _part_at_exit() -> None:
  """The end of a program of one's own, which does not call `stop`."""
  if (error := getattr(sys, 'last_value', None)) is None:
    stop()
  else:
    fail(f'process {jax.process_index()}: {error or type(error).__name__}')
    interruption.leave(interruption.FAILED)  # JAX would abort


def stop() -> None:
  """Ends the watch; all processes must come here."""
  if PROCESS.peers:
    PROCESS.peers.close()
    PROCESS.peers = None


def fail(words: str) -> None:
  """Says why this process ends, which ends the others."""
  if PROCESS.peers:
    PROCESS.peers.fail(words)


def await_news() -> None:
  """Waits for news of a dead process, which explain why a collective failed."""
  if PROCESS.peers:
    time.sleep(PROCESS.peers.heartbeat_s + 1)
