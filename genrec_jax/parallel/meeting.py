"""How the processes of a job find each other: all connect to process 0.

Where the address of process 0 is known, they meet there before JAX starts,
which then uses the same port. So whoever does not come is named, and whoever
ends before JAX has all of them is noticed. (JAX would wait, and then abort.)
"""

import contextlib
import errno
import json
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator

LOG = logging.getLogger('genrec_jax')
JOIN_S = 300.0
TOKEN = 'genrec_jax'
_LOCAL = ('localhost', '127.0.0.1')
_LONGEST = 100_000  # characters of a message
_STRANGERS = 64  # connections that have not said who they are
_GREETING_S = 10.0
_RETRY_S = 0.1
_QUIET_S = 10.0  # before the first word about whom we wait for
_SHOWN = 8  # numbers of processes in a message


class MeetingError(ValueError):
  """The processes of a job do not find each other."""


class Link:
  """A connection to another process.

  Attributes:
    process: number of it.
    host: name of its host.
    heard: when it last said something.
  """

  def __init__(self, connection: socket.socket, process: int, host: str):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(None)
    self.process, self.host, self.heard = process, host, time.monotonic()
    self._lines = connection.makefile('r', encoding='utf-8')
    self._connection, self._lock = connection, threading.Lock()

  def send(self, **message) -> None:
    """Sends a message; whether it arrives, the silence that follows tells."""
    with contextlib.suppress(OSError), self._lock:
      self._connection.sendall(json.dumps(message).encode() + b'\n')

  def receive(self) -> dict:
    """The next message.

    Raises:
      EOFError: the connection is closed.
      ValueError: what arrives is no message of a peer.
    """
    try:
      line = self._lines.readline(_LONGEST)
    except OSError:
      line = ''
    if not line.endswith('\n'):
      raise EOFError
    self.heard = time.monotonic()
    try:
      message = json.loads(line)
    except RecursionError as e:
      raise ValueError('no message of a peer') from e
    if not isinstance(message, dict):
      raise ValueError('no message of a peer')
    return message

  @contextlib.contextmanager
  def limit(self, seconds: float) -> Iterator[None]:
    """A block that hangs up if it lasts longer, however much is said."""
    timer = threading.Timer(seconds, self.hang_up)
    timer.daemon = True
    timer.start()
    try:
      yield
    finally:
      timer.cancel()

  def hang_up(self) -> None:
    """Ends the connection; who receives on either side gets to its end."""
    with contextlib.suppress(OSError):
      self._connection.shutdown(socket.SHUT_RDWR)

  def close(self) -> None:
    """Hangs up and frees the connection; called by who receives."""
    self.hang_up()
    with contextlib.suppress(OSError):
      self._lines.close()
    self._connection.close()


def listen(host: str, port: int = 0, limit_s: float = 0.0) -> socket.socket:
  """A server of process 0; not for other hosts if `host` is this one.

  Args:
    host: of process 0.
    port: of the server; 0 is any that is free.
    limit_s: seconds to wait for a port that is in use, by a job that is about
      to end.
  """
  patience = _Patience(limit_s)
  while True:
    try:
      return _listen(host, port)
    except OSError as error:
      if error.errno != errno.EADDRINUSE or patience.is_over():
        raise
      patience.mention(f'port {port} is in use, waiting for it')
      time.sleep(_RETRY_S)


def _listen(host: str, port: int) -> socket.socket:
  if host in _LOCAL:
    return socket.create_server(('127.0.0.1', port))
  if socket.has_dualstack_ipv6():
    return socket.create_server(
      ('', port), family=socket.AF_INET6, dualstack_ipv6=True
    )
  return socket.create_server(('', port))


def gather(
  server: socket.socket,
  token: str,
  judge: Callable[[Link, dict], str],
  add: Callable[[Link], None],
  missing: Callable[[], list[int]],
  limit_s: float,
) -> None:
  """In process 0: takes the connections of the others until all have come.

  A connection counts when its other end has read the welcome: one that was
  given up while it waited here is no process that died.

  Args:
    server: where they connect; closed at the end.
    token: what they must know.
    judge: gets a connection and its greeting; returns why it is refused, or ''.
    add: takes a connection.
    missing: returns the numbers of those that have not come yet.
    limit_s: seconds to wait.

  Raises:
    MeetingError: not all have come.
  """
  greetings = threading.BoundedSemaphore(_STRANGERS)

  def greet(connection: socket.socket) -> None:
    link = Link(connection, -1, '')
    try:
      with link.limit(_GREETING_S):
        hello = link.receive()
        if not secrets.compare_digest(hello['token'], token):
          raise ValueError('a stranger')
        link.process, link.host = int(hello['process']), str(hello['host'])
        if why := judge(link, hello):
          LOG.warning('a process of host %s is refused: %s', link.host, why)
          link.send(refused=why)
          raise ValueError('of another job')
        link.send(welcome=True)
        link.receive()
      add(link)
    except Exception:  # strangers may say anything
      link.close()
    finally:
      greetings.release()

  patience = _Patience(limit_s)
  server.settimeout(_RETRY_S)
  with server:
    while numbers := missing():
      if patience.is_over():
        raise MeetingError(
          f'{_name(numbers)} did not come within {limit_s:g} s '
          '(parallel.join_s)'
        )
      patience.mention(f'waiting for {_name(numbers)}')
      if not greetings.acquire(timeout=_RETRY_S):
        continue
      try:
        connection = server.accept()[0]
      except OSError as error:
        greetings.release()
        if not isinstance(error, TimeoutError):  # no descriptor is left, say
          time.sleep(_RETRY_S)
      else:
        threading.Thread(target=greet, args=(connection,), daemon=True).start()


def connect(host: str, port: int, hello: dict, limit_s: float) -> Link:
  """In another process: its connection to process 0, which has taken it.

  Args:
    host: of process 0.
    port: where it listens.
    hello: the greeting, as `Peers` expects it.
    limit_s: seconds to try, as process 0 may start later.

  Raises:
    MeetingError: it does not answer, or refuses this process.
  """
  patience, error = _Patience(limit_s), None
  while not patience.is_over():
    patience.mention(f'waiting for process 0 at {host}:{port}')
    try:
      link = Link(socket.create_connection((host, port), _GREETING_S), 0, host)
    except OSError as e:  # also a name that is not known yet
      error = e.strerror or e
      time.sleep(_RETRY_S)
      continue
    link.send(**hello)
    try:
      with link.limit(_GREETING_S):
        answer = link.receive()
    except (EOFError, ValueError):  # a job that is about to end has this port
      error, answer = 'what listens there is no process of this job', {}
    if answer.get('welcome'):
      link.send(here=True)
      return link
    link.close()
    if why := answer.get('refused'):
      raise MeetingError(f'process 0 at {host}:{port} refuses this one: {why}')
    time.sleep(_RETRY_S)
  raise MeetingError(
    f'process 0 at {host}:{port} did not answer within {limit_s:g} s '
    f'(parallel.join_s): {error}'
  )


class _Patience:
  """Time that is left to wait, and words about it now and then."""

  def __init__(self, limit_s: float):
    now = time.monotonic()
    self._until, self._next = now + limit_s, now + _QUIET_S

  def is_over(self) -> bool:
    return time.monotonic() > self._until

  def mention(self, words: str) -> None:
    if time.monotonic() > self._next:
      left_s = self._until - time.monotonic()
      LOG.info('%s, %.0f s more', words, left_s)
      self._next += 3 * _QUIET_S


def _name(processes: list[int]) -> str:
  """'process 3', 'processes 3, 5', 'processes 1, 2, ... (37 of them)'."""
  if len(processes) == 1:
    return f'process {processes[0]}'
  words = ', '.join(map(str, processes[:_SHOWN]))
  if len(processes) > _SHOWN:
    words += f', ... ({len(processes)} of them)'
  return f'processes {words}'
