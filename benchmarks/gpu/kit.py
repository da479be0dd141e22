"""Runs the cases of a script and writes its rows.

`main` runs the cases, one after another, in a child process. A row is written
the moment it is known. A case that fails, crashes or hangs costs its own row:
the child is replaced and goes on with the next.
"""

import argparse
import ctypes
import fcntl
import functools
import json
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time

from benchmarks.gpu.process_group import end_group

FATAL = re.compile('CUDA_ERROR|illegal|misaligned|device-side|launch fail')


def main(module: str, doc: str, cases, work, minutes=8.0, limit=150, workers=1):
  """Runs the cases of a module of this folder; see the options.

  Args:
    module: its name, as `python -m` takes it.
    doc: what --help says.
    cases: (arguments) -> list of dicts, each with a name under 'case'.
    work: (case, arguments) -> dict, what to add to the row.
    minutes: default of --minutes.
    limit: default of --limit.
    workers: default of --workers.
  """
  parser = argparse.ArgumentParser(
    prog=f'python -m {module}',
    description=doc,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument(
    '--out', required=True, help='folder that the rows are appended to'
  )
  parser.add_argument(
    '--minutes', type=float, default=minutes, help=f'for all ({minutes:g})'
  )
  parser.add_argument(
    '--limit', type=float, default=limit, help=f'seconds a case ({limit})'
  )
  parser.add_argument(
    '--workers', type=int, default=workers, help=f'processes ({workers})'
  )
  parser.add_argument('--only', default='', help='cases that match this regex')
  parser.add_argument(
    '--done', help='leave out the cases with a good row in this file'
  )
  parser.add_argument(
    '--rehearse', action='store_true', help='tiny, and without a GPU'
  )
  parser.add_argument('--list', action='store_true', help='names of the cases')
  parser.add_argument('--worker', help=argparse.SUPPRESS)
  args = parser.parse_args()
  chosen = [c for c in cases(args) if re.search(args.only, c['case'])]
  if args.worker:
    return _work(chosen, work, args)
  if args.list:
    return print('\n'.join(c['case'] for c in chosen))
  path = pathlib.Path(args.out) / f'{module.split(".")[-1]}.jsonl'
  path.parent.mkdir(parents=True, exist_ok=True)
  deadline = time.monotonic() + 60 * args.minutes
  lock, failed = threading.Lock(), []

  def write(row):
    with lock, path.open('a') as file:
      file.write(json.dumps(row) + '\n')
      print(json.dumps(row), flush=True)
      if 'error' in row or row.get('ok') is False:
        failed.append(row['case'])

  done = _answered(args.done) if args.done else set()
  numbers = [n for n, c in enumerate(chosen) if c['case'] not in done]
  threads = [
    threading.Thread(
      target=_supervise,
      args=(module, chosen, list(numbers[n :: args.workers]), args, deadline),
      kwargs={'write': write},
    )
    for n in range(args.workers)
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  print(
    f'{path.name}: {len(numbers)} cases, failed or left: {failed or "none"}'
  )


def locked(function):
  """The function, by one process at a time: what is timed holds the GPU."""

  @functools.wraps(function)
  def run(*args, **kwargs):
    name = f'genrec_gpu_{os.getuid()}.lock'
    with (pathlib.Path(tempfile.gettempdir()) / name).open('w') as file:
      fcntl.flock(file, fcntl.LOCK_EX)
      return function(*args, **kwargs)

  return run


def _answered(path: str) -> set[str]:
  """Cases with a good row in a file of an earlier command."""
  rows = [json.loads(line) for line in pathlib.Path(path).open()]
  measures = ('matmul', 'loop', 'copy', 'machine')  # once a command
  return {r['case'] for r in rows if 'error' not in r} - set(measures)


def _supervise(module, chosen, numbers, args, deadline, write):
  """Has the cases of these numbers done by as many children as it takes."""
  while numbers and time.monotonic() < deadline:
    done, case, why = _child(module, numbers, args, deadline, chosen, write)
    if case is None and why and done == 0:
      write({'case': f'start of {module}', 'error': why})
      return
    if case is not None:
      write({**chosen[case], 'error': why})
      done += 1
    numbers = numbers[done:]
  for number in numbers:
    write({**chosen[number], 'error': 'no time left'})


def _child(module, numbers, args, deadline, chosen, write):
  """One child: cases done, the case it fell in (or None), and why it ended."""
  reading, writing = os.pipe()
  words = [a for a in sys.argv[1:] if a != '--worker']
  todo = ','.join(map(str, numbers))
  child = subprocess.Popen(
    [
      *(sys.executable, '-m', module, *words),
      *('--worker', f'{writing}:{todo}'),
    ],
    pass_fds=[writing],
    start_new_session=True,
    env=_environment(args.rehearse),
  )
  os.close(writing)
  done, case, text = 0, None, b''
  why = None
  while why is None:
    left = deadline - time.monotonic()
    wait = max(0.0, min(args.limit if case is not None else 180.0, left))
    if not select.select([reading], [], [], wait)[0]:
      why = f'no answer in {wait:.0f} s'
      break
    some = os.read(reading, 1 << 16)
    if not some:
      child.wait()
      why = f'the process ended with status {child.returncode}'
      break
    *lines, text = (text + some).split(b'\n')
    for line in lines:
      event = json.loads(line)
      if 'begin' in event:
        case = event['begin']
      else:
        write({**chosen[case], **event['row']})
        done, case = done + 1, None
  os.close(reading)
  end_group(child)
  return done, case, why if done < len(numbers) else None


def _environment(rehearse: bool) -> dict[str, str]:
  added = {'XLA_PYTHON_CLIENT_PREALLOCATE': 'false', 'PYTHONUNBUFFERED': '1'}
  if rehearse:
    added |= {'JAX_PLATFORMS': 'cpu'}
  return {**os.environ, **added}


def _work(chosen, work, args):
  """The child: does cases and tells the parent through the pipe."""
  pipe, numbers = args.worker.split(':')
  _end_with_parent()
  if args.rehearse:
    _replace_triton()
  with os.fdopen(int(pipe), 'w', buffering=1) as events:
    for number in map(int, numbers.split(',')):
      events.write(json.dumps({'begin': number}) + '\n')
      begin = time.monotonic()
      try:
        row = work(chosen[number], args)
      except Exception as error:  # any failure is a result
        row = {'error': _short(f'{type(error).__name__}: {error}')}
      row['case_s'] = time.monotonic() - begin
      events.write(json.dumps({'row': row}) + '\n')
      if FATAL.search(row.get('error', '')):
        os._exit(3)  # nothing can be trusted in this process any more


def _end_with_parent() -> None:
  """Has this process killed where the one that began it is, on Linux.

  It is in a session of its own, so that it can be killed with its compilers;
  a signal to that of its parent does not reach it, and it would hold the GPU.
  """
  if sys.platform == 'linux':
    death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(death_signal, signal.SIGKILL)


def _short(text: str) -> str:
  return text if len(text) <= 700 else f'{text[:300]} ... {text[-400:]}'


def _replace_triton():
  """XLA in place of the Triton kernels, where there is no GPU.

  A kernel that is launched by itself gives zeros: a rehearsal times nothing.
  """
  try:
    import jax.numpy as jnp

    from pallas_kernels import dispatch, triton_call
    from pallas_kernels.hstu_attention import api, gpu, xla
    from pallas_kernels.jagged_embedding import api as embedding
    from pallas_kernels.jagged_embedding import xla as embedding_xla
  except ImportError:
    return  # a module that needs no JAX, where there is none
  api.BACKENDS['triton'] = dispatch.Backend(xla.attention)
  embedding.BACKENDS['triton'] = dispatch.Backend(lambda: embedding_xla)
  gpu.kernel_of = lambda name: name
  triton_call.run = lambda kernel, launch, *inputs: [
    jnp.zeros(out.shape, out.dtype) for out in launch.outputs
  ]
