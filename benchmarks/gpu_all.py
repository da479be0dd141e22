"""Everything that is open on an accelerator, in one command.

  python -m benchmarks.gpu_all --out DIR
  python -m benchmarks.gpu_all --out DIR --steps tests tune --minutes 9

Looks whether the kernels are right on the device, measures them, what others
take and whole trainings (`benchmarks.gpu`), then runs the kernel tests; the
benchmarks of steps and updates run where they are named. Each step is a process
of its own, with all it began, and ends with its share of the time. Rows of
`benchmarks.gpu` lie in DIR/*.jsonl (`benchmarks.gpu.rows` makes results of
them), other results in DIR/results/<machine>/ (copy them to
benchmarks/results), the output of each step in DIR/<step>.log. A step that
fails or runs out of time does not stop the others; the exit status says whether
any did. A machine without internet needs the wheels of
`benchmarks/gpu/wheels.txt`: what is missing of them is named first, with the
steps that need it.
"""

import argparse
import importlib.util
import os
import pathlib
import subprocess
import sys
import time

from benchmarks.gpu.process_group import end_group

# Not from `benchmarks.runs`, which needs what a bare machine lacks.
ROOT = pathlib.Path(__file__).resolve().parents[1]
WHEELS = ROOT / 'benchmarks/gpu/wheels.txt'
# Step -> (command behind `python -m`, minutes it may take).
STEPS = {
  'smoke': ('benchmarks.gpu.smoke --out {out} --minutes 3', 4),
  'kernels': ('benchmarks.gpu.kernels --out {out} --minutes 5', 6),
  'tune': ('benchmarks.gpu.tune --out {out} --minutes 3', 4),
  'peers': ('benchmarks.gpu.peers --out {out} --minutes 2', 3),
  'embedding': ('benchmarks.gpu.embedding --out {out} --minutes 3', 4),
  'training': ('benchmarks.gpu.training --out {out} --minutes 4', 5),
  # In parallel: compiling the kernels of each case is what takes time.
  'tests': ('pytest -q -n 8 --maxfail=20 tests/kernels', 4),
  'row_update': ('benchmarks.row_update --results {results}', 4),
  'left_to_xla': ('benchmarks.left_to_xla --results {results}', 2),
  'train_step': ('benchmarks.train_step --results {results}', 4),
}
# Not unless they are named: the others take half an hour.
BY_NAME = ('row_update', 'left_to_xla', 'train_step')
USUAL = tuple(step for step in STEPS if step not in BY_NAME)
LEAST_S = 10.0  # a step that has less is not begun


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks.gpu_all',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('--out', required=True, help='where everything is put')
  parser.add_argument('--steps', nargs='+', choices=STEPS, default=USUAL)
  parser.add_argument(
    '--minutes', type=float, default=30.0, help='for all steps together (30)'
  )
  args = parser.parse_args(argv)
  out = pathlib.Path(args.out)
  out.mkdir(parents=True, exist_ok=True)
  print(versions(), flush=True)
  for name, steps in find_missing().items():
    print(f'{name} is missing, for {steps}: see {WHEELS}', flush=True)
  deadline = time.monotonic() + 60 * args.minutes
  outcome = {}
  for step in args.steps:
    outcome[step] = run(step, out, deadline)
    print(f'{step}: {outcome[step]}', flush=True)
  return int(any(result != 'done' for result in outcome.values()))


def run(step: str, out: pathlib.Path, deadline: float) -> str:
  """Runs one step; says how it ended."""
  command, minutes = STEPS[step]
  seconds = min(60.0 * minutes, deadline - time.monotonic())
  if seconds < LEAST_S:
    return 'no time left'
  words = command.format(out=out, results=out / 'results').split()
  log = out / f'{step}.log'
  begin = time.monotonic()
  with log.open('w') as file:
    child = subprocess.Popen(
      [sys.executable, '-m', *words],
      cwd=ROOT,
      stdout=file,
      stderr=subprocess.STDOUT,
      env=environment(),
      start_new_session=True,
    )
    try:
      status = child.wait(seconds)
    except subprocess.TimeoutExpired:
      return f'stopped after {seconds:.0f} s, see {log}'
    finally:
      # One process left would hold the GPU. Workers of `benchmarks.gpu.kit` are
      # in sessions of their own and end with the process that began them.
      end_group(child)
  took = time.monotonic() - begin
  print('\n'.join(log.read_text().splitlines()[-25:]))
  if status:
    return f'failed with status {status} after {took:.0f} s, see {log}'
  return 'done'


def find_missing() -> dict[str, str]:
  """Modules that are not here -> the steps that need them."""
  found = {}
  for line in WHEELS.read_text().splitlines():
    wheel, _, comment = line.partition('#')
    if not wheel.strip():
      continue
    module, _, steps = comment.partition(':')
    if not _is_here(module.strip()):
      found[wheel.strip()] = steps.strip()
  return found


def _is_here(module: str) -> bool:
  try:
    return importlib.util.find_spec(module) is not None
  except ModuleNotFoundError:  # its package
    return False


def environment() -> dict[str, str]:
  """Of a step: tests run on the device, JAX takes memory as it needs it."""
  return {
    'JAX_PLATFORMS': 'cuda,cpu',
    'JAX_NUM_CPU_DEVICES': '1',
    'XLA_PYTHON_CLIENT_PREALLOCATE': 'false',
    **os.environ,
  }


def versions() -> str:
  """One line on what the figures will depend on."""
  code = (
    'import jax, importlib.metadata as m\n'
    'names = "jaxlib jax-triton triton torch".split()\n'
    'found = {d.metadata["Name"]: d.version for d in m.distributions()}\n'
    'print("jax", jax.__version__, *(f"{n} {found.get(n)}" for n in names))\n'
    'print(jax.devices())'
  )
  done = subprocess.run(
    [sys.executable, '-c', code],
    capture_output=True,
    text=True,
    env=environment(),
  )
  return done.stdout.strip() or done.stderr.strip()[-500:]


if __name__ == '__main__':
  sys.exit(main())
