"""Processes that freeze, for a moment and for good."""

import os
import signal
import subprocess
import threading
import time

import jax
import pytest

from genrec_jax import interruption
from genrec_jax.parallel import jax_internals, peers
from tests import processes

HEARTBEAT_S = 5.0


def freeze(seconds: float, heartbeat_s: float) -> bool:
  """Process 1 stops by itself, and a shell wakes it."""
  begun = peers.start(heartbeat_s)
  if jax.process_index():
    me = os.getpid()
    subprocess.Popen(
      ['sh', '-c', f'kill -STOP {me}; sleep {seconds}; kill -CONT {me}']
    )
    time.sleep(seconds)
  peers.stop()
  return begun


def test_a_process_that_freezes_for_a_moment_is_waited_for():
  assert processes.run(freeze, 1.0, HEARTBEAT_S, devices=1) == [True, True]


def test_a_process_that_freezes_for_good_is_named():
  start = time.monotonic()
  first, second = processes.outcomes(freeze, 5.0, 1.5, devices=1, grace=30.0)
  assert (first.exitcode, second.exitcode) == (1, 1)
  words = 'is gone: there was no sign of life for 1.5 s; the same command'
  for one in (first, second):
    assert 'error: process 1 of 2 (host ' in one.output and words in one.output
  assert time.monotonic() - start < 30


def get_signals(signals) -> None:
  """Both hold; each gets its signals, and no safe point ever comes."""
  safe = interruption.SafePoints()
  with safe:
    safe.hold()
    jax_internals.find_store().wait_at_barrier('held', 20_000)
    for number in signals[jax.process_index()]:
      os.kill(os.getpid(), number)
      time.sleep(0.3)  # two at once are one
    time.sleep(20.0)


@pytest.mark.parametrize(
  'first, second, statuses',
  [
    ([], [signal.SIGINT] * 2, (130, 130)),  # who leaves at once tells the other
    ([signal.SIGINT] * 2, [], (130, 130)),
    # Both were told to end, and one is faster.
    ([signal.SIGTERM], [signal.SIGTERM, signal.SIGKILL], (75, -9)),
  ],
)
def test_signals_end_both_although_one_is_gone(first, second, statuses):
  start = time.monotonic()
  both = processes.outcomes(
    get_signals, (first, second), devices=1, grace=20.0, as_command=True
  )
  assert tuple(one.exitcode for one in both) == statuses
  assert 'is gone' not in both[0].output + both[1].output
  assert time.monotonic() - start < 20


def die_at_the_end(process: int) -> None:
  """One process is killed when it has done its part."""
  peers._SHUTDOWN_S = 0.5
  if jax.process_index() == process:
    close = peers.Peers.close

    def close_and_die(self):
      threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
      close(self)
      time.sleep(5)

    peers.Peers.close = close_and_die
  else:
    time.sleep(1.0)


@pytest.mark.parametrize('process', [0, 1])
def test_who_dies_with_its_work_done_holds_nobody(process):
  start = time.monotonic()
  both = processes.outcomes(
    die_at_the_end, process, devices=1, grace=20.0, as_command=True
  )
  assert both[process].exitcode == -9
  # Process 0 knows that the other was done; the other is told that it is gone.
  assert both[1 - process].exitcode == (0 if process else 1)
  assert time.monotonic() - start < 20


def test_alone():
  assert not peers.start()
  peers.stop()


@pytest.mark.parametrize('points', [(3, 5), (5, 3), (4, 4)])
def test_all_stop_at_one_point(points):
  assert (
    processes.run(count_points, points, processes=2, devices=1)
    == [max(points) + 1] * 2
  )


def count_points(points) -> int:
  """The point at which a process stops that had passed some when asked."""
  peers.start(HEARTBEAT_S)
  safe = interruption.SafePoints()
  with safe:
    for _ in range(points[jax.process_index()]):
      assert not safe.reach()
    passed = points[jax.process_index()]
    # Both have passed theirs before one asks.
    jax_internals.find_store().wait_at_barrier('passed', 20_000)
    if jax.process_index():
      interruption.PROCESS.peers.request_stop(15)
    while safe.number is None:
      time.sleep(0.01)
    passed += 1
    while not safe.reach():
      passed += 1
  peers.stop()
  return passed
