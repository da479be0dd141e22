"""How long does a save stop the training, and how long does it slow it?

  python -m benchmarks.checkpoint_stall --directory DIR
  python -m benchmarks.checkpoint_stall --directory DIR --rows 500000

A table of rows of 64 float32 with row-wise AdaGrad, and steps that update
106,496 ids of it. In turns, each several times:

  orbax        Orbax's own Checkpointer.save_checkpointables_async
  whole        the library's checkpoint of everything, which Orbax writes too
  base         the library's checkpoint by rows, all of them
  delta S      the same with what changed since, a share S of the rows

at 32 bits and, by rows, at 4. `call` is what the call that saves takes, after
the save before is complete, and `stop` that and what the step after it takes
longer than others. Then steps are taken, as a training would, until the
checkpoint is on the disk (`complete`, from the beginning of the call). `lost`
is how much training this took: the time until then without the steps that were
made meanwhile, each at what it takes when nothing is saved.

On this machine the devices' memory is the host's. So nothing travels, as it
would from an accelerator; what is waited for is a copy within the memory, and
Orbax leaves even that to the step: it keeps the array, which the step, to whom
it was given away, must then copy. And writing takes cores that the steps would
use.
"""

import dataclasses
import functools
import os
import pathlib
import shutil
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from orbax.checkpoint import v1 as ocp

from benchmarks import cli, jagged_embedding, timing
from benchmarks.result import CoreTimer
from genrec_jax.checkpoint.delta import DeltaOptions, RowSaver, RowTables
from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.embedding import dirty_rows as dirty_lib
from genrec_jax.embedding import relayout, single_scheme
from genrec_jax.embedding.layout import lay_out
from genrec_jax.embedding.row_optimizers import find_optimizer
from genrec_jax.features import TableSpec
from pallas_kernels.jagged_embedding import api, shapes

ROWS, DIM, OPTIMIZER, RATE = 2_000_000, 64, 'row_adagrad', 0.05
SHARES = (0.05, 0.26, 0.52)  # 26 % and 52 % are the paper's
BITS = (32, 4)
PLAIN = 'orbax'
COLUMNS = (
  'case', 'written_bytes', 'call_ms', 'stop_ms', 'min_stop_ms', 'of_orbax_x',
  'call_core_ms', 'stop_core_ms', 'of_orbax_core_x', 'complete_s', 'step_x',
  'lost_s', 'core_s', 'load_1min',
)  # fmt: skip


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('checkpoint_stall', __doc__)
  parser.add_argument('--directory', help='for checkpoints, some GB')
  parser.add_argument('--rows', type=int, default=ROWS)
  parser.add_argument('--rounds', type=int, default=3, help='of all cases (3)')
  args = parser.parse_args(argv)
  if args.smoke:
    args.rows, args.rounds = 2_000, 1
  with tempfile.TemporaryDirectory(dir=args.directory) as directory:
    training = Training(args.rows, 16 if args.smoke else 4096)
    found = measure(training, pathlib.Path(directory) / 'saves', args.rounds)
  notes = [
    'Medians over the rounds; min_* the least. of_orbax_x: the least stop of '
    'Orbax over that of this case, of_orbax_core_x: of the medians of core-ms. '
    'step_x: a step while a checkpoint is '
    'written, over one while none is. core_s: all that the save cost, stall '
    'and writing, without the steps. Memory of the device is that of the host.',
  ]
  cli.finish(
    args, 'checkpoint_stall', summaries(found, args.rows), COLUMNS, notes
  )


class Training:
  """A table, and steps that update it.

  Attributes:
    arrays, slots: as a state has them.
    stacks: what lies in the arrays.
    step_s, step_core_s: what a step costs where nothing is saved.
  """

  def __init__(self, rows: int, bags: int):
    shape = shapes.Shape(rows, DIM, bags, 26)
    spec = TableSpec('table', rows, DIM, update=OPTIMIZER)
    plan = single_scheme.plan_with_scheme({'table': spec}, 'data_parallel')
    self.stacks = relayout.find_stacks(lay_out(plan))
    optimizer = find_optimizer(OPTIMIZER)
    lengths = jnp.asarray(shapes.lengths(shape))
    grads = jnp.asarray(jagged_embedding.bag_gradient(shape))

    def step(table, slots, ids):
      return api.embedding_bag_backward_and_update(
        table, slots, ids, lengths, grads, learning_rate=RATE,
        optimizer=optimizer,
      )  # fmt: skip

    table = jax.jit(
      lambda: 0.1 * jax.random.normal(jax.random.key(0), (rows, DIM))
    )()
    self.arrays = {'table': table}
    self.slots = {'table': optimizer.init(table)}
    self._ids = [jnp.asarray(shapes.ids(shape, seed)) for seed in range(4)]
    arguments = table, self.slots['table'], self._ids[0]
    self._run, _ = timing.ahead(step, [arguments], donate_argnums=(0, 1))
    self._taken = 0
    self.step_s = self.step_core_s = 0.0

  def step(self) -> CoreTimer:
    """Takes one; the state is given away, as in a training."""
    ids = self._ids[self._taken % len(self._ids)]
    self._taken += 1
    (table, slots), timer = timing.measure(
      self._run, self.arrays['table'], self.slots['table'], ids
    )
    self.arrays, self.slots = {'table': table}, {'table': slots}
    return timer

  def rest(self, steps: int = 10) -> None:
    """Finds out what a step costs while nothing is saved."""
    timers = [self.step() for _ in range(steps)]
    self.step_s = statistics.median(t.wall_s for t in timers)
    self.step_core_s = statistics.median(t.core_s for t in timers)

  def dirty_rows(self, share: float) -> dict[str, jax.Array]:
    """Marks of a share of the rows, drawn anew each time."""
    rng = np.random.default_rng(self._taken)
    rows = self.arrays['table'].shape[0]
    hit = np.zeros(rows, np.uint8)
    hit[rng.choice(rows, round(share * rows), replace=False)] = (
      dirty_lib.SINCE_BASE | dirty_lib.SINCE_SAVE
    )
    return {'table': jnp.array(hit)}


@dataclasses.dataclass(frozen=True)
class Way:
  """A way to save.

  Attributes:
    name: what the rows of results are called by.
    save: begins it; the training waits for that.
    wait: returns when it is complete.
    path: where it then lies.
    bits: of a weight.
  """

  name: str
  save: Callable[[], object]
  wait: Callable[[], object]
  path: pathlib.Path
  bits: int = 32


def measure(training: Training, directory: pathlib.Path, rounds: int) -> dict:
  """(way, bits) -> what each of its saves cost."""
  found = {}
  for number in range(rounds + 1):  # the first, to warm up, does not count
    for way in ways(training, directory):
      training.rest()
      seen = one(training, way)
      seen['written_bytes'] = size(way.path)
      if number:
        found.setdefault((way.name, way.bits), []).append(seen)
    shutil.rmtree(directory)
  return found


def ways(training: Training, directory: pathlib.Path) -> Iterator[Way]:
  """All of them; each is to be saved and complete before the next."""

  def everything():
    return {'table': training.arrays, 'slots': training.slots}

  begun = []
  with ocp.training.Checkpointer(directory / PLAIN) as orbax:
    yield Way(
      PLAIN,
      lambda: begun.append(
        orbax.save_checkpointables_async(0, {'state': everything()})
      ),
      lambda: begun[0].result(),
      directory / PLAIN,
    )
  with CheckpointManager(directory / 'whole') as whole:
    yield Way(
      'whole',
      lambda: whole.save(0, everything()),
      whole.wait,
      directory / 'whole' / '0',
    )
  for bits in BITS:
    yield from by_rows(training, directory / str(bits), bits)


def by_rows(training: Training, path: pathlib.Path, bits: int) -> Iterator[Way]:
  """A base and deltas of it, which follow each other in one directory."""
  with CheckpointManager(path, keep=1) as checkpoints:
    options = DeltaOptions('one_shot', bits=bits)
    saver = RowSaver(checkpoints, training.stacks, options)

    def save(step: int, dirty_rows):
      tables = RowTables(training.arrays, training.slots, dirty_rows)
      saver.save(step, {'step': jnp.int32(step)}, tables)

    for step, share in enumerate((0.0, *SHARES)):
      yield Way(
        f'delta {share:.0%}' if share else 'base',
        functools.partial(save, step, training.dirty_rows(share)),
        checkpoints.wait,
        path / str(step),
        bits,
      )


def one(training: Training, way: Way) -> dict[str, float]:
  """A save, and the steps until it is complete."""
  with CoreTimer() as whole:
    with CoreTimer() as call:
      way.save()
    failed = []
    waiting = threading.Thread(target=_caught, args=(way.wait, failed))
    waiting.start()
    timers = [training.step()]
    while waiting.is_alive():
      timers.append(training.step())
  waiting.join()
  if failed:
    raise failed[0]
  # The first has other things to do; when the last began, all may be done.
  steps = [t.wall_s for t in timers[1:-1]]
  longer = timers[0].wall_s - training.step_s
  longer_core = timers[0].core_s - training.step_core_s
  return {
    'call_ms': 1e3 * call.wall_s,
    'stop_ms': 1e3 * (call.wall_s + max(longer, 0.0)),
    'call_core_ms': 1e3 * call.core_s,
    'stop_core_ms': 1e3 * (call.core_s + max(longer_core, 0.0)),
    'complete_s': whole.wall_s,
    'lost_s': max(whole.wall_s - len(timers) * training.step_s, 0.0),
    'core_s': max(whole.core_s - len(timers) * training.step_core_s, 0.0),
    **({'step_x': statistics.median(steps) / training.step_s} if steps else {}),
    'load_1min': os.getloadavg()[0],
  }


def _caught(call, failed: list) -> None:
  try:
    call()
  except Exception as e:
    failed.append(e)


def size(directory: pathlib.Path) -> int:
  """Bytes of all files below a directory."""
  return sum(p.stat().st_size for p in directory.rglob('*') if p.is_file())


def summaries(found: dict, rows: int) -> list[dict]:
  made = []
  for (way, bits), of in found.items():
    row = {
      'case': f'{rows}/{way}/{bits}',
      'rows': rows,
      'way': way,
      'bits': bits,
      'rounds': len(of),
      'min_stop_ms': min(seen['stop_ms'] for seen in of),
    }
    for key in dict.fromkeys(k for seen in of for k in seen):
      row[key] = statistics.median(s[key] for s in of if key in s)
    made.append(row)
  (plain,) = (row for row in made if row['way'] == PLAIN)
  for row in made:
    row['of_orbax_x'] = plain['min_stop_ms'] / row['min_stop_ms']
    row['of_orbax_core_x'] = plain['stop_core_ms'] / row['stop_core_ms']
  return made


if __name__ == '__main__':
  main()
