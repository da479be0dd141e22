"""What a command says of errors, expected ones and others."""

import errno
import io
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from genrec_jax import last_resort
from genrec_jax.last_resort import explain_error


def explain(error, directory=None):
  return explain_error(error, 'training', directory)


def test_an_expected_error_is_told_in_its_words():
  assert explain(ValueError('no such key')) == (1, 'error: no such key')
  full = OSError(errno.ENOSPC, 'No space left on device', 'metrics.jsonl')
  status, words = explain(full)
  assert status == 1 and 'metrics.jsonl' in words
  assert 'the same command then continues' in words
  assert 'continues' not in explain(FileNotFoundError('f.csv'))[1]


def test_a_value_error_of_a_library_below_is_a_bug(tmp_path):
  """Ours are sentences for users; nobody can do anything about theirs."""
  with pytest.raises(ValueError) as error:
    np.load(io.BytesIO(b'no array'))
  status, words = explain(error.value, tmp_path)
  assert status == 70 and 'looks like a bug in genrec_jax: ValueError' in words
  assert 'no array' in (tmp_path / 'error.log').read_text()


def test_what_is_out_of_memory_is_no_bug():
  assert explain(MemoryError()) == (
    1,
    'error: not enough memory while training',
  )
  status, words = explain(MemoryError('Unable to allocate 74.5 GiB'))
  assert status == 1 and words.endswith('training: Unable to allocate 74.5 GiB')
  for text in (
    'RESOURCE_EXHAUSTED: Out of memory\n',
    'INTERNAL: Error dispatching: Out of memory allocating 9 bytes.',
  ):
    status, words = explain(jax.errors.JaxRuntimeError(text + 'x' * 999))
    assert status == 1 and 'the device has not enough memory' in words
    assert len(words) < 400 and '\n' not in words


@pytest.mark.parametrize(
  'error', [KeyError('k'), RecursionError('deep'), IndexError('x' * 999)]
)
def test_another_error_is_a_bug_with_a_log(tmp_path, error):
  try:
    raise error
  except Exception as raised:
    status, words = explain(raised, tmp_path)
  path = tmp_path / 'error.log'
  kind = type(error).__name__
  assert status == 70 and words.endswith(f'the traceback is in {path}')
  assert words.startswith(f'this looks like a bug in genrec_jax: {kind}: ')
  assert len(words) < 300 + len(str(path))
  explain(error, tmp_path)  # which is added
  log = path.read_text()
  assert log.count('genrec_jax 0.') == 2 and 'last_resort_test.py' in log


def test_the_log_follows_no_link(tmp_path):
  (tmp_path / 'precious').write_text('mine')
  (tmp_path / 'error.log').symlink_to(tmp_path / 'precious')
  status, words = explain(KeyError('k'), tmp_path)
  assert status == 70 and str(tmp_path / 'error.log') not in words
  assert (tmp_path / 'precious').read_text() == 'mine'
  assert last_resort.LOG_NAME in str(tmp_path / 'error.log')


@pytest.mark.parametrize(
  'raises, status, says',
  [
    ('sys.exit(3)', 3, ''),
    ("sys.exit('error: no')", 1, 'error: no'),
    ("raise ValueError('no')", 1, 'error: no'),
    ('1 / 0', 70, 'this looks like a bug in genrec_jax: ZeroDivisionError'),
    ('pass', 0, ''),
  ],
)
def test_a_command_ends_with_a_status_and_no_traceback(raises, status, says):
  program = (
    'import sys\nfrom genrec_jax import last_resort\ndef main():\n'
    f'  {raises}\nlast_resort.run_command(main, "trying")'
  )
  done = subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True
  )
  assert done.returncode == status and done.stderr.startswith(says)
  assert 'Traceback' not in done.stderr and done.stderr.count('\n') <= 1


@pytest.mark.parametrize('words', ['few', 'many ' * 9999])
@pytest.mark.parametrize('prints', ['print', 'last_resort.print_result'])
def test_an_unwritten_result_costs_the_status_alone(tmp_path, words, prints):
  program = (
    'import sys\nfrom genrec_jax import last_resort\ndef main():\n'
    f'  {prints}({words!r})\n  open("done", "w")\n'
    'last_resort.run_command(main, "trying")'
  )
  with open('/dev/full', 'w') as full:
    done = subprocess.run(
      [sys.executable, '-c', program], stdout=full, stderr=-1, text=True,
      cwd=tmp_path,
      env={**os.environ, 'PYTHONPATH': os.getcwd(), 'PYTHONUNBUFFERED': ''},
    )  # fmt: skip
  assert done.returncode == 1 and 'No space left on device' in done.stderr
  assert done.stderr.count('\n') == 1
  if 'result' in prints:
    assert (tmp_path / 'done').exists()
    assert done.stderr.startswith('error: standard output could not be written')


def test_only_late_words_to_a_closed_event_loop_are_hushed():
  """Of other threads, as C++ code tells of them."""
  program = """
import asyncio, ctypes, sys, threading
from genrec_jax import last_resort
last_resort.hush_late_errors()
loop = asyncio.new_event_loop()
loop.close()

def imitate():
  raise RuntimeError('Event loop is closed')

def late():
  loop.call_soon_threadsafe(print)

for raises in (late, imitate, lambda: 1 / 0):
  thread = threading.Thread(target=ctypes.CFUNCTYPE(None)(raises))
  thread.start()
  thread.join()
print(file=sys.stderr)
ctypes.CFUNCTYPE(None)(late)()
"""
  done = subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True
  )
  threads, _, main_thread = done.stderr.partition('\n\n')
  assert threads.count('Traceback') == 2 and 'in imitate' in threads
  assert 'ZeroDivisionError' in threads and 'asyncio' not in threads
  assert main_thread.endswith('RuntimeError: Event loop is closed\n')
