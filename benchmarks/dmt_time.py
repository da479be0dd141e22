"""The steps of `benchmarks.dmt` in seconds: ways that take turns."""

import itertools
import json
import multiprocessing
import os
import pathlib
import socket
import statistics
import tempfile

# JAX must not begin before it is told of devices: what needs it is imported
# where it is used.
JOBS = {'devices': (1, 8), 'gloo': (2, 2)}  # processes, devices of each
# Of two processes, each would start collectives in an order of its own.
KEEP_ORDER = '--xla_cpu_enable_concurrency_optimized_scheduler=false'
HOSTS, WARMUP, BATCHES = 2, 2, 3
LONGEST_S = 1800
# Losses of flat and SPTT differ by the order in which gradients are added.
LOSS_RTOL = 1e-4
COLUMNS = (
  'case', 'wall_ms', 'core_ms', 'wall_x', 'core_x', 'min_core_x', 'turns',
  'load_1min',
)  # fmt: skip


def time_job(job: str, turns: int, smoke: bool) -> list[dict]:
  """Rows of the ways, from processes that are started for them."""
  context = multiprocessing.get_context('spawn')
  with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    address = f'127.0.0.1:{s.getsockname()[1]}'
  answers = context.Queue()
  with tempfile.TemporaryDirectory() as folder:
    ask = job, address, turns, smoke, folder, answers
    processes = [
      context.Process(target=_run_process, args=(number, *ask))
      for number in range(JOBS[job][0])
    ]
    for process in processes:
      process.start()
    try:
      found = answers.get(timeout=LONGEST_S)
    finally:
      for process in processes:
        process.join(10)
        process.terminate()
  if isinstance(found, str):
    raise RuntimeError(found)
  return found


def _run_process(number, job, address, turns, smoke, folder, answers) -> None:
  """One process of a job; the first one answers."""
  count, devices = JOBS[job]
  # Fewer threads than devices wait for each other for ever.
  os.environ['NPROC'] = '32'
  os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {KEEP_ORDER}'
  try:
    import jax

    jax.config.update('jax_num_cpu_devices', devices)
    if count > 1:
      jax.distributed.initialize(address, count, number)
    walls, cores, losses = _measure(count * devices, turns, smoke)
    cores = _add_processes(pathlib.Path(folder), number, count, cores)
  except BaseException as e:  # whoever waits must hear of it
    answers.put(f'process {number}: {e}')
    raise
  if number == 0:
    answers.put([_summarise(job, name, walls, cores, losses) for name in walls])


def _measure(devices: int, turns: int, smoke: bool):
  """(seconds, core-seconds, losses) of the turns of each way."""
  from benchmarks import dmt_steps, timing

  sizes = dmt_steps.SMOKE_SIZES if smoke else dmt_steps.TIMED_SIZES
  steps, states, batches = {}, {}, {}
  for way in dmt_steps.TIMED:
    setting = dmt_steps.Setting(HOSTS, devices // HOSTS, way, **sizes)
    _, _, runtime = dmt_steps.build(setting)
    steps[way.name] = dmt_steps.compile_step(runtime, setting)
    states[way.name] = runtime.fresh_state()
    batches[way.name] = [
      dmt_steps.draw_batch(runtime, setting, seed) for seed in range(BATCHES)
    ]
  walls, cores, losses = ({name: [] for name in steps} for _ in range(3))
  # Every order in turn: a program finds in the processor's caches what the one
  # before has left there.
  orders = itertools.cycle(itertools.permutations(steps))
  for turn in range(WARMUP + turns):
    for name in next(orders):
      batch = batches[name][turn % BATCHES]
      (states[name], loss), timer = timing.measure(
        steps[name], states[name], batch
      )
      losses[name].append(float(loss))
      if turn >= WARMUP:
        walls[name].append(timer.wall_s)
        cores[name].append(timer.core_s)
  flat, alone = (losses[way.name] for way in dmt_steps.TIMED[:2])
  for one, other in zip(flat, alone, strict=True):
    if abs(one - other) > LOSS_RTOL * abs(one):
      raise ValueError(f'losses of flat {flat} and of SPTT {alone}')
  return walls, cores, losses


def _add_processes(folder: pathlib.Path, number: int, count: int, cores):
  """Core-seconds of all processes; each leaves its own in a file."""
  if count == 1:
    return cores
  from jax.experimental import multihost_utils

  (folder / f'{number}.json').write_text(json.dumps(cores))
  multihost_utils.sync_global_devices('measured')
  found = [json.loads((folder / f'{i}.json').read_text()) for i in range(count)]
  return {
    name: [sum(turn) for turn in zip(*(f[name] for f in found), strict=True)]
    for name in cores
  }


def _summarise(job: str, name: str, walls, cores, losses) -> dict:
  """The row of a way, beside the flat one, which is the first."""
  flat = next(iter(walls))
  return {
    'case': f'steps/{job}/{name}',
    'kind': 'step',
    'job': job,
    'way': name,
    'wall_ms': 1e3 * statistics.median(walls[name]),
    'core_ms': 1e3 * statistics.median(cores[name]),
    'min_core_ms': 1e3 * min(cores[name]),
    'wall_x': _compare(walls[name], walls[flat]),
    'core_x': _compare(cores[name], cores[flat]),
    'min_core_x': min(cores[name]) / min(cores[flat]),
    'turns': len(walls[name]),
    'last_loss': losses[name][-1],
    'load_1min': os.getloadavg()[0],
  }


def _compare(values, others) -> float:
  """Median over the turns of one way over another."""
  pairs = zip(values, others, strict=True)
  return statistics.median(a / b for a, b in pairs)
