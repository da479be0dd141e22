"""Processes that meet before JAX starts, and those that do not come."""

import contextlib
import json
import socket
import subprocess
import sys
import threading

import pytest

from genrec_jax import interruption
from genrec_jax.parallel import meeting, peers
from genrec_jax.parallel.meeting import Link, MeetingError

HEARTBEAT_S = 20.0


@pytest.fixture(autouse=True)
def stay(monkeypatch):
  """Links that tests drop must not end the process of the tests."""
  ends = []
  monkeypatch.setattr(interruption, 'leave', lambda *words: ends.append(words))
  monkeypatch.setattr(peers, '_LEAVE_S', 0.0)
  return ends


@pytest.fixture
def server():
  with meeting.listen('localhost') as server:
    yield server


@pytest.fixture
def connect():
  """`meeting.connect`, whose connections end with the test."""
  links = []

  def call(port: int, greeting: dict, limit_s: float = 5.0) -> Link:
    links.append(meeting.connect('localhost', port, greeting, limit_s))
    return links[-1]

  yield call
  for link in links:
    link.close()


def port_of(server) -> int:
  return server.getsockname()[1]


def hello(process: int = 1, count: int = 2, **fields) -> dict:
  greeting = {'token': meeting.TOKEN, 'process': process, 'count': count}
  return greeting | {'host': 'here'} | fields


@contextlib.contextmanager
def gathering(server, count: int):
  """Process 0 in a thread, which takes connections until all have come."""
  lead = peers.Peers(0, count, HEARTBEAT_S)
  thread = threading.Thread(
    target=lead.gather, args=(server, meeting.TOKEN, 9.0), daemon=True
  )
  thread.start()
  yield
  thread.join(9)
  assert not thread.is_alive()
  lead.fail('the test is over')


def test_all_meet_at_one_address_and_part(server):
  everyone = [peers.Peers(process, 3, HEARTBEAT_S) for process in range(3)]
  others = [
    threading.Thread(
      target=one.follow, args=(('localhost', port_of(server)), 'word', 9.0)
    )
    for one in everyone[1:]
  ]
  for thread in others:
    thread.start()
  everyone[0].gather(server, 'word', 9.0)
  for thread in others:
    thread.join(9)
  parting = [
    threading.Thread(target=one.close, args=(9.0,)) for one in everyone[1:]
  ]
  for thread in parting:
    thread.start()
  assert everyone[0].close(9.0)
  for thread in parting:
    thread.join(9)
  assert not any(thread.is_alive() for thread in others + parting)


def test_who_does_not_come_is_named(server):
  lead = peers.Peers(0, 13, HEARTBEAT_S)
  words = (
    r'processes 1, 2, 3, 4, 5, 6, 7, 8, \.\.\. \(12 of them\) did not come'
  )
  with pytest.raises(MeetingError, match=words):
    lead.gather(server, meeting.TOKEN, 0.2)
  lead.fail('the test is over')


def test_a_process_0_that_does_not_come_is_named(connect):
  with meeting.listen('localhost') as server:
    port = port_of(server)
  with pytest.raises(MeetingError, match='process 0 at localhost:.* refused'):
    connect(port, hello(), 0.3)


@pytest.mark.parametrize(
  'greeting, words',
  [
    (hello(count=3), 'it is of 3 processes, this job of 2'),
    (hello(process=2), 'there is no process 2 of 2'),
    (hello(process=0), 'there is no process 0 of 2'),
  ],
)
def test_settings_that_do_not_fit_are_refused(server, connect, greeting, words):
  with gathering(server, 2):
    with pytest.raises(MeetingError, match=f'refuses this one: {words}'):
      connect(port_of(server), greeting)
    connect(port_of(server), hello())  # the right one still may


def test_a_number_that_is_there_already_is_refused(server, connect):
  with gathering(server, 3):
    connect(port_of(server), hello(1, 3))
    with pytest.raises(MeetingError, match=r'1 is there already \(host here\)'):
      connect(port_of(server), hello(1, 3))
    connect(port_of(server), hello(2, 3))


@pytest.mark.parametrize(
  'raw',
  [
    b'',
    b'GET / HTTP/1.1\r\n\r\n',
    b'[' * 50_000 + b'\n',
    b'\xff\xfe\n',
    b'[1]\n',
    b'{"token": "another", "process": 1, "count": 2, "host": ""}\n',
    b'{"token": 1}\n',
    b'{"token": "genrec_jax", "process": [], "count": 2, "host": ""}\n',
    b'{"token": "genrec_jax", "process": 1, "host": ""}\n',
  ],
)
def test_strangers_are_not_counted(server, connect, raw):
  with (
    gathering(server, 2),
    socket.create_connection(('localhost', port_of(server))) as stranger,
  ):
    stranger.sendall(raw)
    connect(port_of(server), hello())


def test_who_gave_up_and_came_again_is_not_dead(server, connect, stay):
  """While process 0 was frozen, or had strangers to greet."""
  for _ in range(3):
    with socket.create_connection(('localhost', port_of(server))) as link:
      link.sendall(json.dumps(hello()).encode() + b'\n')
  with gathering(server, 2):
    link = connect(port_of(server), hello())
    assert link.receive() == {'met': True}
    assert not stay


def test_slow_strangers_keep_nobody_out(server, connect, monkeypatch):
  monkeypatch.setattr(meeting, '_GREETING_S', 0.5)
  monkeypatch.setattr(meeting, '_STRANGERS', 1)
  over = threading.Event()

  def drip(stranger):
    with contextlib.suppress(OSError):
      while not over.wait(0.1):
        stranger.sendall(b'x')

  with socket.create_connection(('localhost', port_of(server))) as stranger:
    dripping = threading.Thread(target=drip, args=(stranger,))
    dripping.start()
    with gathering(server, 2):
      connect(port_of(server), hello())
    over.set()
    dripping.join()


def test_a_port_that_is_still_in_use_is_waited_for(server):
  threading.Timer(0.3, server.close).start()
  with meeting.listen('localhost', port_of(server), 9.0):
    pass
  with meeting.listen('localhost') as used:
    with pytest.raises(OSError, match='in use'):
      meeting.listen('localhost', port_of(used), 0.2)


@pytest.mark.parametrize('raw', [b'', b'\x00\x00\x12\x04', b'[]\n', b'null\n'])
def test_another_server_at_the_address_is_tried_again(server, connect, raw):
  """A job that is about to end may still have the port."""

  def serve():
    for number in range(3):
      with server.accept()[0] as connection:
        connection.sendall(raw if number < 2 else b'{"welcome": true}\n')
        connection.recv(1000)

  thread = threading.Thread(target=serve, daemon=True)
  thread.start()
  assert connect(port_of(server), hello()).process == 0
  thread.join(9)


def test_who_dies_before_all_have_come_ends_the_others(server, connect):
  """A process of each kind meets this one, which then hangs up."""
  with meeting.listen('localhost') as free:
    port = port_of(free)
  code = (
    'from genrec_jax.parallel import processes; import sys; '
    "processes.join_processes(f'localhost:{sys.argv[1]}', 3, int(sys.argv[2]))"
  )
  first, second = (
    subprocess.Popen(
      [sys.executable, '-c', code, str(port), str(process)],
      stderr=subprocess.PIPE,
      text=True,
    )
    for process, port in enumerate((port, port_of(server)))
  )
  connect(port, hello(2, 3), 60.0).close()
  with server.accept()[0] as connection:
    connection.sendall(b'{"welcome": true}\n')
  for process, words in ((first, '2 of 3 (host here)'), (second, '0 of 3')):
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert f'error: process {words}' in said and 'Traceback' not in said
    assert 'is gone: its connection is closed: it died or was killed' in said
