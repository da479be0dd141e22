"""Runs a function in several processes that make one JAX job over loopback.

    values = processes.run(function, directory, processes=2, devices=2)

The function is one of a module (it is found by its name) and is called with
the same arguments in every process, after `jax.distributed.initialize`.
"""

import dataclasses
import multiprocessing
import os
import pathlib
import pickle
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable

from genrec_jax import interruption

# Starts processes in milliseconds: they are forks of one with these imports,
# which are those of a training.
PRELOAD = [
  'pytest',
  'grain',
  'genrec_jax.checkpoint.manager',
  'genrec_jax.main',
  'genrec_jax.task_kinds',
  'genrec_jax.train.experiment',
  'genrec_jax.train.loop',
]


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What became of a process.

  Attributes:
    value: what the function returned; None if it did not come to that.
    exitcode: 0, 1 for an error, -n for an end by signal n.
    output: what it wrote to stdout and stderr, a traceback included.
  """

  value: object
  exitcode: int
  output: str


def run(
  function: Callable,
  *args,
  processes: int = 2,
  devices: int = 2,
  timeout: float = 60.0,
) -> list:
  """What `function(*args)` returned in each process; all must succeed.

  Args:
    function: of a module; returns what pickle can hold.
    *args: what pickle can hold.
    processes: how many; a single one is not a distributed job.
    devices: fake devices of each.
    timeout: seconds after which all are killed.
  """
  found = outcomes(
    function, *args, processes=processes, devices=devices, timeout=timeout
  )
  if any(one.exitcode for one in found):
    raise AssertionError(
      '\n'.join(
        f'--- process {i} ended with {one.exitcode}\n{one.output[-4000:]}'
        for i, one in enumerate(found)
      )
    )
  return [one.value for one in found]


def outcomes(
  function: Callable,
  *args,
  processes: int = 2,
  devices: int = 2,
  timeout: float = 60.0,
  grace: float = 0.0,
  as_command: bool = False,
) -> list[Outcome]:
  """The same without a complaint; once one fails, the others are killed.

  Args:
    function: as in `run`.
    *args: as in `run`.
    processes: as in `run`.
    devices: as in `run`.
    timeout: as in `run`.
    grace: seconds that the others have to end by themselves when one fails.
    as_command: whether they join and end as those of a command line.
  """
  context = multiprocessing.get_context('forkserver')
  context.set_forkserver_preload(PRELOAD)
  port = _free_port()
  with tempfile.TemporaryDirectory() as directory:
    directory = pathlib.Path(directory)
    started = [
      context.Process(
        target=_child,
        args=(
          function,
          args,
          i,
          processes,
          devices,
          port,
          directory,
          as_command,
        ),
        daemon=True,
      )
      for i in range(processes)
    ]
    for process in started:
      process.start()
    deadline = time.monotonic() + timeout
    while any(p.exitcode is None for p in started):
      if any(p.exitcode for p in started):
        deadline = min(deadline, time.monotonic() + grace)
        grace = timeout  # counted from the first failure only
      if time.monotonic() >= deadline:
        for process in started:
          process.kill()
      time.sleep(0.01)
    return [_outcome(p, i, directory) for i, p in enumerate(started)]


def _outcome(process, index: int, directory: pathlib.Path) -> Outcome:
  process.join()
  value, saved = None, directory / f'{index}.value'
  if saved.exists():
    value = pickle.loads(saved.read_bytes())
  log = directory / f'{index}.log'
  output = log.read_text(errors='replace') if log.exists() else ''
  return Outcome(value, process.exitcode, output)


def _free_port() -> int:
  with socket.socket() as s:
    s.bind(('localhost', 0))
    return s.getsockname()[1]


def _child(
  function, args, index, count, devices, port, directory, as_command
) -> None:
  with open(directory / f'{index}.log', 'wb', buffering=0) as log:
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
  import jax  # by the time of a fork it is there already

  from genrec_jax.parallel import peers
  from genrec_jax.parallel.processes import join_processes

  os.environ.setdefault('NPROC', '32')
  jax.config.update('jax_platforms', 'cpu')
  jax.config.update('jax_num_cpu_devices', devices)
  try:
    if as_command:
      interruption.install(heed_ignored=True)
      interruption.PROCESS.is_voice = not index
      join_processes(f'localhost:{port}', count, index)
    elif count > 1:
      jax.config.update('jax_cpu_collectives_implementation', 'gloo')
      jax.distributed.initialize(f'localhost:{port}', count, index)
    value = pickle.dumps(function(*args))
    temporary = directory / f'{index}.tmp'
    temporary.write_bytes(value)
    temporary.rename(directory / f'{index}.value')
    if as_command:
      peers.part()
    elif count > 1:
      jax.distributed.shutdown()  # waits for all
  except Exception:
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)  # the runtime's own farewell would wait for the others
