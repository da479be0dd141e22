"""How much less is written and stored when checkpoints hold what has changed?

  python -m benchmarks.check_n_run
  python -m benchmarks.check_n_run --streams 2021 --bits 4 --rows 200000

A base at the start, then intervals of a stream (access_streams.py), each with a
checkpoint of the library's own saver at its end: every policy, every bit width.
Rows are 64 wide with row-wise AdaGrad; those a stream touches in an interval
are moved by the library's row optimizer with gradients drawn at random (normal,
larger for rows read more often), the others stay as they are. Sizes are those
of the directories, whatever is in them:

- written: of the step just saved; the mean counts the first base too;
- kept: of all that is left after the save, which is the newest checkpoint and
  what it needs (`keep=1`).

Both are compared with policy 'full' at 32 bits on the same stream. At the end
the newest checkpoint is restored: at 32 bits it must equal the tables bit for
bit; at fewer, quantising and reading back the tables themselves. So all
policies have restored the same.

Check-N-Run reports 6 to 17 times less written and 2.5 to 8 times less kept, of
its own system (intermittent, 8 to 2 bits) on models whose intervals touch about
26 % of the rows. docs/check_n_run.md tells what came of it here.
"""

import argparse
import pathlib
import shutil
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import access_streams, cli, locality
from benchmarks.access_streams import Stream
from genrec_jax.checkpoint import chunks, manifest
from genrec_jax.checkpoint.delta import DeltaOptions, RowSaver, RowTables
from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.checkpoint.policy import POLICIES
from genrec_jax.embedding import dirty_rows as dirty_lib
from genrec_jax.embedding import relayout, single_scheme
from genrec_jax.embedding.layout import lay_out
from genrec_jax.embedding.row_optimizers import find_optimizer
from genrec_jax.features import TableSpec
from genrec_jax.numerics import row_quant
from genrec_jax.report import chart_files, charts
from genrec_jax.report.axes import Axis, linear_axis

ROWS, DIM = 250_000, 64
OPTIMIZER, RATE = 'row_adagrad', 0.05
STREAMS = (*access_streams.YEARS, 'ml-1m')
MADE = 'power_law'  # needs no data
QUANTISED = (8, 4, 3, 2)
PAPER = {'written_x': (6.0, 17.0), 'kept_x': (2.5, 8.0)}
DRAWN, DRAWN_BITS = 'trace 2021', 4  # stream and bits of the picture
COLUMNS = (
  'case', 'fraction', 'union', 'written_bytes', 'written_x', 'kept_bytes',
  'kept_x', 'kept_mean_x', 'bases', 'error_steps', 'written_x_range',
  'kept_x_range',
)  # fmt: skip
NOTES = [
  'written_bytes: of a save, mean over all, the first base included; '
  'kept_bytes: most that was left after a save. *_x: of full float32 '
  'checkpoints, over these; kept_mean_x: mean over the saves.',
  'bases: saves that hold all rows; 0 is the first one.',
  'error_steps: largest difference of a restored weight, in steps of plain '
  'quantisation over the range of its row.',
  'Gradients are drawn at random.',
]


def main(argv: list[str] | None = None) -> None:
  args = parse(argv)
  measured = False
  with tempfile.TemporaryDirectory(dir=args.directory) as directory:
    for name in args.streams:
      stream = make(name, args)
      if stream is None:
        print(f'{name} is left out: it is not under GENREC_DATA')
        continue
      rows, measured = measure(stream, args, pathlib.Path(directory)), True
      rows += ranges(rows)
      cli.finish(args, 'check_n_run', rows, COLUMNS, NOTES)
  if not measured:
    cli.fail('there is no stream to measure; set GENREC_DATA')


def parse(argv) -> argparse.Namespace:
  parser = cli.parser('check_n_run', __doc__)
  parser.add_argument('--streams', nargs='+', choices=(*STREAMS, MADE))
  parser.add_argument(
    '--bits', nargs='+', type=int, choices=QUANTISED, default=QUANTISED
  )
  parser.add_argument('--rows', type=int, default=ROWS, help='of a trace')
  parser.add_argument('--intervals', type=int, default=access_streams.INTERVALS)
  parser.add_argument('--directory', help='for checkpoints, some GB')
  args = parser.parse_args(argv)
  if args.smoke:
    args.rows, args.intervals, args.bits = 3_000, 3, (4,)
  args.streams = args.streams or ((MADE,) if args.smoke else STREAMS)
  return args


def make(name: str, args) -> Stream | None:
  """A stream, None where its data are missing."""
  if name == 'ml-1m':
    path = access_streams.ratings()
    return path and access_streams.movielens(path, args.intervals)
  if name == MADE:
    title, spectrum = 'power law', access_streams.power_law(0.3)
  elif path := access_streams.statistics(name):
    title = f'trace {name}'
    spectrum = access_streams.fit(locality.read(path))
  else:
    return None
  return access_streams.trace(
    spectrum,
    title,
    args.rows,
    batches=spectrum.batches(access_streams.FRACTION),
    intervals=args.intervals,
  )


class Model:
  """Tables that an interval moves where it touches them.

  Attributes:
    arrays: table -> `[rows, DIM]`.
    slots: table -> slots of the optimizer.
    stacks: what lies in the arrays, as the saver asks.
  """

  def __init__(self, tables):
    rng = np.random.default_rng(0)
    specs = {
      name: TableSpec(name, rows, DIM, update=OPTIMIZER)
      for name, rows in tables.items()
    }
    layout = lay_out(single_scheme.plan_with_scheme(specs, 'data_parallel'))
    self.stacks = relayout.find_stacks(layout)
    self.arrays = {
      name: jnp.asarray(0.1 * rng.standard_normal((rows, DIM), np.float32))
      for name, rows in tables.items()
    }
    optimizer = find_optimizer(OPTIMIZER)
    self.slots = {n: optimizer.init(x) for n, x in self.arrays.items()}
    self._rng, self._update = (
      rng,
      jax.jit(optimizer.update, donate_argnums=(0, 1)),
    )

  def move(self, interval) -> dict[str, jax.Array]:
    """One interval; returns the rows it has moved, for `mark_rows`."""
    moved = {}
    for name, (ids, reads) in interval.items():
      # Few lengths, few compilations; behind the ids are rows out of range.
      table = self.arrays[name]
      room = 2 ** int(np.ceil(np.log2(len(ids) + 1)))
      grads = np.zeros((room, DIM), np.float32)
      grads[: len(ids)] = self._rng.standard_normal((len(ids), DIM), np.float32)
      grads[: len(ids)] *= np.sqrt(reads, dtype=np.float32)[:, None]
      padded = np.full(room, table.shape[0], np.int32)
      padded[: len(ids)] = ids
      moved[name] = jnp.asarray(padded)
      self.arrays[name], self.slots[name] = self._update(
        table, self.slots[name], moved[name], jnp.asarray(grads), RATE
      )
    return moved

  def quantised(self, bits: int) -> dict[str, np.ndarray]:
    """The arrays as a checkpoint at so many bits tells them."""
    if bits == chunks.EXACT:
      return {name: np.asarray(x) for name, x in self.arrays.items()}
    method = DeltaOptions().method
    return {
      name: row_quant.dequantize(
        row_quant.quantize(np.asarray(x), bits, method), DIM, bits, method
      )
      for name, x in self.arrays.items()
    }


class Run:
  """One policy at one bit width.

  Attributes:
    written: bytes of each save.
    kept: bytes left after each.
    bases: saves that hold all rows.
  """

  def __init__(self, policy: str, bits: int, model: Model, directory):
    self.policy, self.bits = policy, bits
    self.written, self.kept, self.bases = [], [], []
    self._model = model
    self._directory = directory / f'{policy}_{bits}'
    self._checkpoints = CheckpointManager(self._directory, keep=1)
    options = DeltaOptions(policy=policy, bits=bits)
    self._saver = RowSaver(self._checkpoints, model.stacks, options)
    self._dirty_rows = dirty_lib.init_dirty_rows(model.arrays)

  def save(self, step: int, moved) -> None:
    """A checkpoint of the model, written to its end."""
    model = self._model
    self._dirty_rows = self._saver.save(
      step,
      {'step': jnp.int32(step)},
      RowTables(
        model.arrays, model.slots, dirty_lib.mark_rows(self._dirty_rows, moved)
      ),
    )
    self._checkpoints.wait()
    self.written.append(size(self._directory / str(step)))
    self.kept.append(size(self._directory))
    body = manifest.read(self._directory / str(step))
    if body['rows']['kind'] == 'base':
      self.bases.append(step)

  def check(self, wanted) -> dict:
    """Restores the newest checkpoint and compares it.

    Args:
      wanted: table -> its weights, through the quantiser where there is one.
    """
    model = self._model
    step, _, _ = self._checkpoints.restore({'step': jnp.int32(0)})
    shapes = jax.eval_shape(lambda: (model.arrays, model.slots))
    loaded = self._checkpoints.restore_rows(step, model.stacks, *shapes)
    worst = 0.0
    for name, array in model.arrays.items():
      found = np.asarray(loaded.arrays[name])
      for slot, values in model.slots[name].items():
        if not np.array_equal(loaded.slots[name][slot], values):
          raise AssertionError(f'{self._name}: slot {slot} of {name} differs')
      if not np.array_equal(found, wanted[name]):
        raise AssertionError(f'{self._name}: table {name} differs')
      if self.bits != chunks.EXACT:
        # of all steps between the least and the largest weight of a row
        spread = np.ptp(array, axis=1, keepdims=True) / (2**self.bits - 1)
        worst = max(worst, float(np.max(np.abs(found - array) / spread)))
    self._checkpoints.close()
    shutil.rmtree(self._directory)
    return {'error_steps': worst} if worst else {}

  @property
  def _name(self) -> str:
    return f'restored from {self.policy} at {self.bits} bits'


def size(directory: pathlib.Path) -> int:
  """Bytes of all files below a directory."""
  return sum(p.stat().st_size for p in directory.rglob('*') if p.is_file())


def measure(stream: Stream, args, directory: pathlib.Path) -> list[dict]:
  """Every policy and bit width on one stream, side by side."""
  model = Model(stream.tables)
  runs = [
    Run(policy, bits, model, directory / stream.name)
    for policy in POLICIES
    for bits in (chunks.EXACT, *args.bits)
  ]
  for run in runs:
    run.save(0, {})
  for step, interval in enumerate(stream.intervals(), 1):
    moved = model.move(interval)
    for run in runs:
      run.save(step, moved)
    print(f'{stream.name}: interval {step} of {args.intervals}')
  each, union = stream.fractions()
  whole, checked = runs[0], {}
  for bits in dict.fromkeys(run.bits for run in runs):
    wanted = model.quantised(bits)
    for run in runs:
      if run.bits == bits:
        checked[run] = run.check(wanted)
  return [
    {
      'case': f'{stream.name}/{run.policy}/{run.bits}',
      'kind': 'run',
      'stream': stream.name,
      'policy': run.policy,
      'bits': run.bits,
      'rows': stream.rows,
      'dim': DIM,
      'fraction': float(each.mean()),
      'union': float(union[-1]),
      'written_bytes': float(np.mean(run.written)),
      'written_x': float(np.mean(whole.written) / np.mean(run.written)),
      'least_x': float(np.mean(whole.written) / np.max(run.written)),
      'kept_bytes': max(run.kept),
      'kept_x': max(whole.kept) / max(run.kept),
      'kept_mean_x': float(np.mean(whole.kept) / np.mean(run.kept)),
      'bases': bases(run),
      'written_share_each': shares(run.written, whole.written),
      'kept_share_each': shares(run.kept, whole.kept),
      **checked[run],
    }
    for run in runs
  ]


def bases(run: Run) -> str:
  every = len(run.bases) == len(run.written)
  return 'all' if every else ', '.join(map(str, run.bases))


def shares(some: list[int], whole: list[int]) -> list[float]:
  return [round(a / b, 5) for a, b in zip(some, whole, strict=True)]


def ranges(rows: list[dict]) -> list[dict]:
  """For each stream and policy, from most to fewest bits below 32."""
  found = []
  for key in dict.fromkeys((r['stream'], r['policy']) for r in rows):
    of = [r for r in rows if (r['stream'], r['policy']) == key]
    few = sorted((r for r in of if r['bits'] < 32), key=lambda r: -r['bits'])
    row = {
      'case': '/'.join((*key, 'range')),
      'kind': 'range',
      'stream': key[0],
      'policy': key[1],
      'fraction': of[0]['fraction'],
      'union': of[0]['union'],
    }
    for name in (*PAPER, 'kept_mean_x'):
      row[f'{name}_32'] = of[0][name]
      row[f'{name}_range'] = f'{few[0][name]:.1f} – {few[-1][name]:.1f}'
    for name, (low, high) in PAPER.items():
      row[f'{name}_published'] = f'{low:g} – {high:g}'
    found.append(row)
  return found


def draw(rows: list[dict]) -> str:
  """Returns the picture: what was written and kept at each interval."""
  runs = [row for row in rows if row['kind'] == 'run']
  streams = [row['stream'] for row in runs]
  drawn = DRAWN if DRAWN in streams else streams[0]
  runs = [row for row in runs if row['stream'] == drawn]
  few = {row['bits'] for row in runs} - {chunks.EXACT}
  bits = DRAWN_BITS if DRAWN_BITS in few else min(few)
  of = {
    row['policy'].replace('_', '-'): row for row in runs if row['bits'] == bits
  }
  panels = []
  for key, title in (('written', 'Written'), ('kept', 'Kept')):
    low, high = PAPER[f'{key}_x']
    text = f'paper: {low:g}–{high:g}× less'
    series, top = [chart_files.shaded_range(text, 1 / high, 1 / low)], 1 / low
    for i, (name, row) in enumerate(of.items()):
      shares = row[f'{key}_share_each']
      # The last one is dashed: what it hides shows.
      shape = 'dashes' if 0 < i == len(of) - 1 else 'curve'
      curve = list(enumerate(shares)), chart_files.pick_color(i), shape
      series.append(charts.Series(name, *curve))
      top, last = max(top, *shares), len(shares) - 1
    ticks = [(x, str(x)) for x in range(0, last + 1, 1 + last // 16)]
    x = Axis(-0.025 * last, 1.025 * last, ticks, f'interval of {drawn}')
    y = linear_axis(0, 1.06 * top, label='{:.0%}'.format)
    title += f' at {bits} bits, of a full float32 checkpoint'
    panels.append(charts.Chart(title, x, y, series))
  return chart_files.draw_file(panels)


if __name__ == '__main__':
  main()
