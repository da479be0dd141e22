"""Commands end by signals wherever they are, with a status and a sentence."""

import os
import signal
import subprocess
import sys
import time

import pytest

from genrec_jax import interruption
from genrec_jax.interruption import SafePoints, Stopped, Unwinding, each

PROGRAM = """
import signal, sys, time
from genrec_jax import interruption, last_resort
def main():
  interruption.keep(lambda: 'all is kept')
  with interruption.{block} as points:
    {held}
    print('ready', flush=True)
    {work}
    print('unwound', flush=True)
signal.signal(signal.SIGINT, signal.{inherited})
last_resort.run_command(main)
"""
STUCK = 'time.sleep(30)'
STEPS = 'while not points.reach(): time.sleep(.01)'


def run(*signals, block='SafePoints()', held='', work=STUCK, ignored=False):
  """(status, stdout, stderr) of a command that gets signals at its work."""
  program = PROGRAM.format(
    block=block,
    held=held,
    work=work,
    inherited='SIG_IGN' if ignored else 'default_int_handler',
  )
  with subprocess.Popen(
    [sys.executable, '-c', program],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  ) as process:
    try:
      assert process.stdout.readline() == 'ready\n'
      for i, number in enumerate(signals):
        if i:  # two at once are one
          process.stderr.readline()
        process.send_signal(number)
      out, err = process.communicate(timeout=20)
    finally:
      process.kill()
  assert 'Traceback' not in err
  return process.returncode, out, err


@pytest.mark.parametrize(
  'number, name, status',
  [(signal.SIGINT, 'Ctrl-C', 130), (signal.SIGTERM, 'SIGTERM', 75)],
)
def test_with_nothing_to_lose_a_command_ends_where_it_is(number, name, status):
  words = f'stopped by {name}; all is kept\n'
  assert run(number) == (status, '', words)


def test_steps_are_waited_for():
  status, out, _ = run(signal.SIGTERM, held='points.hold()', work=STEPS)
  assert (status, out) == (0, 'unwound\n')  # the block says how it ends


def test_a_second_ctrl_c_waits_for_nothing():
  status, out, err = run(signal.SIGINT, signal.SIGINT, held='points.hold()')
  assert (status, out, err) == (130, '', 'Ctrl-C again: ended at once\n')


def test_a_block_that_does_not_unwind_is_left():
  status, out, err = run(
    signal.SIGTERM, block='SafePoints(limit_s=.1)', held='points.hold()'
  )
  assert (status, out) == (75, '') and 'all is kept' in err


def test_ctrl_c_that_is_switched_off_stays_off():
  work = 'time.sleep(.3)'
  assert run(signal.SIGINT, work=work, ignored=True) == (0, 'unwound\n', '')


def test_each_raises_between_two_batches():
  seen = []
  with (
    pytest.raises(Stopped, match='stopped by SIGTERM'),
    Unwinding() as points,
  ):
    for batch in each(range(9)):
      seen.append(batch)
      if batch == 3:
        points.number = signal.SIGTERM
  assert seen == [0, 1, 2, 3] and interruption.PROCESS.safe_points is None
  assert list(each(range(3))) == [0, 1, 2]
  with SafePoints() as points:  # where it is not allowed
    points.number = signal.SIGTERM
    assert list(each(range(3))) == [0, 1, 2] and points.reach()


@pytest.mark.parametrize('closed', ['>&-', '2>&-', '>&- 2>&- <&-'])
def test_a_process_without_standard_streams(closed, tmp_path):
  """What is meant for people goes nowhere, and not into the next file."""
  program = PROGRAM.format(
    block='SafePoints()', held='', work=STUCK, inherited='default_int_handler'
  ).replace("print('ready', flush=True)", "open('ready', 'w').write('ready')")
  with subprocess.Popen(
    ['sh', '-c', f'exec {sys.executable} -c "$0" {closed}', program],
    cwd=tmp_path,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    env={**os.environ, 'PYTHONPATH': os.getcwd()},
  ) as process:
    while not (tmp_path / 'ready').exists() and process.poll() is None:
      time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
  assert process.returncode == 75
  assert (tmp_path / 'ready').read_text() == 'ready'
