"""What the C++ of jagged_embedding costs: prebuilt, compiled here, or absent.

  python -m benchmarks.native_op

'step' is lookup, backward and exact row-wise AdaGrad of one table, as in
benchmarks.jagged_embedding, by XLA alone, by the prebuilt library of every kind
of processor that this machine has, and by the library compiled for exactly this
one. The programs take turns, a step each, on tables of their own, and each turn
begins with another one. `xla_x` is how many times the median core-seconds of a
program XLA's are.

`ready_*` is what making the library ready costs a process: a compiler's time
for the compiled one at its first use, with an empty cache; for the prebuilt
ones looking for the file. Then all of them are loaded.
"""

import dataclasses
import functools
import os
import pathlib
import platform
import tempfile

import jax
import jax.numpy as jnp

from benchmarks import cli, jagged_embedding, timing
from benchmarks.result import CoreTimer
from pallas_kernels.jagged_embedding import (
  api,
  compiler,
  native,
  prebuilt,
  shapes,
)

CASES = (
  ('million_zipf', 'float32'), ('million_zipf', 'bfloat16'),
  ('ml1m_items', 'float32'),
)  # fmt: skip
COLUMNS = (
  'case', 'ready_wall_s', 'ready_core_s', 'core_ms', 'min_core_ms', 'wall_ms',
  'min_wall_ms', 'xla_x', 'load_1min',
)  # fmt: skip
XLA, HERE = 'XLA alone', 'compiled here'


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('native_op', __doc__)
  parser.add_argument('--steps', type=int, default=30, help='measured (30)')
  parser.add_argument('--warmup', type=int, default=4, help='not measured (4)')
  args = parser.parse_args(argv)
  cases = CASES
  if args.smoke:
    cases, args.steps, args.warmup = (('narrow', 'float32'),), 2, 1
  ready = load_all(fresh=not args.smoke)
  rows = [row for case in cases for row in measure(*case, args, ready)]
  notes = ['Cores were shared with other programs (load_1min), in turns.']
  cli.finish(args, 'native_op', rows, COLUMNS, notes)


def load_all(fresh: bool) -> dict[str, dict]:
  """Loads all libraries that run here; program -> what that cost."""
  ready = {XLA: {}}
  with tempfile.TemporaryDirectory() as folder:
    prebuilt.build(pathlib.Path(folder))
    if fresh:
      os.environ['XDG_CACHE_HOME'] = folder
    finders = {HERE: compiler.make_library}
    kinds = list(prebuilt.KINDS.get(platform.machine(), ()))
    if kinds:
      kinds = kinds[kinds.index(prebuilt.choose_kind()) :]
    for kind in kinds:
      path = pathlib.Path(folder) / prebuilt.name_library(kind)
      finders[f'prebuilt {kind}'] = functools.partial(pathlib.Path, path)
    for program, find in finders.items():
      with CoreTimer() as timer:
        native.register(find(), f'{program}.')
      ready[program] = dict(
        ready_wall_s=timer.wall_s, ready_core_s=timer.core_s
      )
  return ready


@dataclasses.dataclass
class Program:
  """A compiled step, its table, and what its steps have cost."""

  step: object
  state: tuple
  timers: list


def compile_step(program: str, shape, dtype: str, batch: tuple) -> Program:
  """The step of one program, on a table of its own."""
  options = dict(jagged_embedding.OPTIONS)
  options['implementation'] = 'xla' if program == XLA else 'cpu'
  table = jagged_embedding.first_table(shape).astype(dtype)
  state = table, api.init_slots(table, 'row_adagrad')

  def step(state, ids, lengths, grads):
    bags = api.embedding_bag(
      state[0], ids, lengths, implementation=options['implementation']
    )
    grads += 0 * bags.astype(grads.dtype)  # the update comes after the lookup
    return api.embedding_bag_backward_and_update(
      *state, ids, lengths, grads, **options
    )

  before, native.PREFIX = native.PREFIX, f'{program}.'
  try:
    jitted = jax.jit(step, donate_argnums=0)
    return Program(jitted.lower(state, *batch).compile(), state, [])
  finally:
    native.PREFIX = before


def take_turn(programs: list, turn: int) -> list:
  """All of them, the first a later one each turn: caches favour nobody.

  >>> take_turn(['a', 'b', 'c'], 4)
  ['b', 'c', 'a']
  """
  first = turn % len(programs)
  return programs[first:] + programs[:first]


def measure(name: str, dtype: str, args, ready: dict[str, dict]) -> list[dict]:
  """Rows of one shape: every program."""
  shape = shapes.SHAPES[name]
  calls = jagged_embedding.batches(shape)
  rest = (
    jnp.asarray(shapes.lengths(shape)),
    jnp.asarray(jagged_embedding.bag_gradient(shape)),
  )
  programs = {
    program: compile_step(program, shape, dtype, (calls[0], *rest))
    for program in ready
  }
  for i in range(args.warmup + args.steps):
    for program in take_turn(list(programs.values()), i):
      program.state, timer = timing.measure(
        program.step, program.state, calls[i % len(calls)], *rest
      )
      program.timers.append(timer)
  rows = [
    {
      'case': f'{name}/{dtype}/{program}',
      'shape': name,
      'dtype': dtype,
      'program': program,
      **ready[program],
      **jagged_embedding.cost(compiled.timers[args.warmup :]),
      'load_1min': os.getloadavg()[0],
    }
    for program, compiled in programs.items()
  ]
  for row in rows:
    row['xla_x'] = rows[0]['core_ms'] / row['core_ms']
  return rows


if __name__ == '__main__':
  main()
