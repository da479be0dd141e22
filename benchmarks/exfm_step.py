"""What a teacher costs its students: a step with heads, fed by scores or zeros.

  python -m benchmarks.exfm_step --runs DIR

The same student, DLRM on its segment of the usual stream of benchmarks/exfm.py,
by four kinds of input: without a teacher; with a head (AH) that is fed zeros;
with that head and the scores of the parts; with the adapter and its own step
(AH + SA). `loop` takes batches from the parts as a training does, `step` has
them in memory. The kinds take turns, a few steps at a time, in one process;
`core_ms` is the median over turns of what a step costs, and `x` the median of
the ratios to the kind that `of` names, within each turn; `x_low`, `x_high` are
the quarter below and above it.

`parameters` are the numbers that a compiled step of the student takes and gives
back as its state, and `teacher` how many of them have the shape of one of the
teacher's weight matrices and tables and not of the student's: none.
"""

import argparse
import pathlib
import time

import jax
import numpy as np

from benchmarks import cli, exfm
from benchmarks.exfm_worlds import Teacher
from genrec_jax import config as config_lib
from genrec_jax.data.parquet import pa, pq
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import experiment as experiment_lib

COLUMNS = (
  'case', 'core_ms', 'of', 'x', 'x_low', 'x_high', 'turns', 'parameters',
  'heads', 'teacher',
)  # fmt: skip
# Kind -> (method, whether the scores are zeros, what it is compared with).
KINDS = {
  'no teacher': ('none', False, ''),
  'head, zeros': ('head', True, 'no teacher'),
  'head, scores': ('head', False, 'head, zeros'),
  'adapter, scores': ('adapter', False, 'head, scores'),
}
STEPS = 10  # of a kind in a turn
SEED = 1
NOTES = (
  'Batches of 1,024; one thread where the file is of cpu1.',
  'x: the median over turns of a ratio within the turn.',
)


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('exfm_step', __doc__)
  parser.add_argument('--runs', required=True, help='directory of all runs')
  parser.add_argument('--turns', type=int, default=40, help='of each kind (40)')
  args = parser.parse_args(argv)
  turns = 3 if args.smoke else args.turns
  world = exfm.make_world(args, 'usual', SEED)
  parts = world.annotate(0, Teacher(), 0)
  sides = {kind: Side(args, world, parts, kind) for kind in KINDS}
  rows = []
  for part in ('loop', 'step'):
    times = {kind: [] for kind in KINDS}
    order = list(KINDS)
    for _ in range(turns):
      for kind in order:
        times[kind].append(sides[kind].time_steps(part))
      order = [*order[1:], order[0]]  # nobody is always the first
    rows += [describe(part, kind, times) for kind in KINDS]
  teacher = count_shapes(world.folder / 'teachers' / Teacher().name)
  for row in rows:
    row |= sides[row['kind']].count_parameters(teacher)
  cli.finish(args, 'exfm_step', rows, COLUMNS, NOTES)


class Side:
  """A student of one kind, compiled, with its batches."""

  def __init__(self, args: argparse.Namespace, world, parts, kind: str):
    """Compiles its step.

    Args:
      args: of the command line.
      world: the stream.
      parts: annotated ones.
      kind: of KINDS.
    """
    method, zeros, _ = KINDS[kind]
    parts = blank_scores(parts) if zeros else parts
    knobs = exfm.RECIPES[method].knobs
    config = world.configure_student(
      'dlrm', parts, SEED, method=method, **knobs
    )
    folder = pathlib.Path(args.runs) / 'step' / kind.replace(', ', '_')
    folder.mkdir(parents=True, exist_ok=True)
    built = experiment_lib.build_experiment(
      config, folder, TASK_KINDS, lambda line: None
    )
    self._experiment, self._config = built, config
    self._begin_parts()
    self._state = built.runtime.fresh_state()
    self._step = built.runtime.step()
    self._batches = self._take()
    for batch in self._batches:
      self._state, loss = self._step(self._state, batch)
    jax.block_until_ready(loss)

  def _begin_parts(self) -> None:
    built, config = self._experiment, self._config
    made = iter(built.train_batches(config))
    self._stream = built.runtime.batches(made)

  def _take(self, count: int = STEPS) -> list:
    batches = []
    while len(batches) < count:
      batch = next(self._stream, None)
      if batch is None:  # the parts have ended: once more
        self._begin_parts()
      else:
        batches.append(batch)
    return batches

  def time_steps(self, part: str) -> float:
    """Core-milliseconds of a step, over a few of them.

    Args:
      part: 'loop' or 'step'.
    """
    batches = self._batches
    begun = time.process_time()
    for i in range(STEPS):
      batch = batches[i] if part == 'step' else self._take(1)[0]
      self._state, loss = self._step(self._state, batch)
    jax.block_until_ready(loss)
    return 1000 * (time.process_time() - begun) / STEPS

  def count_parameters(self, teacher: set[tuple]) -> dict:
    """How many numbers the state has, those of heads, those of the teacher.

    Args:
      teacher: shapes of the weights of the teacher.
    """
    state = self._state
    own = [x.shape for x in jax.tree.leaves((state.params, state.tables))]
    aux = [x.shape for x in jax.tree.leaves(state.aux)]
    compiled = self._step.lower(state, self._batches[0]).compile()
    taken = [x.shape for x in jax.tree.leaves(compiled.args_info[0][0])]
    foreign = [x for x in taken if x in teacher - {*own, *aux} and len(x) > 1]
    return {
      'parameters': count_numbers(own),
      'heads': count_numbers(aux),
      'teacher': len(foreign),
    }


def count_numbers(shapes) -> int:
  return int(sum(np.prod(shape) for shape in shapes))


def count_shapes(workdir: pathlib.Path) -> set[tuple]:
  """The shapes of all weights of a run that was trained."""
  config = config_lib.load_saved(workdir / 'config.json')
  built = experiment_lib.build_experiment(
    config, workdir, TASK_KINDS, lambda line: None
  )
  state = built.runtime.abstract_state()
  return {x.shape for x in jax.tree.leaves((state.params, state.tables))}


def blank_scores(parts: pathlib.Path) -> pathlib.Path:
  """The same parts with zeros for the scores, which count all the same."""
  made = parts.with_name(f'{parts.name}_zeros')
  made.mkdir(exist_ok=True)
  for path in sorted(parts.iterdir()):
    target = made / path.name
    if target.exists():
      continue
    if path.suffix != '.parquet':
      target.touch()
      continue
    table = pq.read_table(path)
    zeros = pa.array(np.zeros(len(table), np.float32))
    at = table.column_names.index('teacher')
    pq.write_table(table.set_column(at, 'teacher', zeros), target)
  return made


def describe(part: str, kind: str, times: dict[str, list[float]]) -> dict:
  """The row of a kind."""
  row = {
    'case': f'{part}/{kind}',
    'part': part,
    'kind': kind,
    'turns': len(times[kind]),
    'core_ms': float(np.median(times[kind])),
  }
  if base := KINDS[kind][2]:
    ratios = np.array(times[kind]) / np.array(times[base])
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    row |= {'of': base, 'x': float(middle)}
    row |= {'x_low': float(low), 'x_high': float(high)}
  return row


if __name__ == '__main__':
  main()
