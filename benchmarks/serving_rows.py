"""Tables of 8, 4 and 2 bits at serving: what they keep, cost and save.

  python -m benchmarks.serving_rows --part quality --run 'Frappe, DLRM=A,B,C'
  python -m benchmarks.serving_rows --part speed
  python -m benchmarks.serving_rows --part speed --peer_python PATH

quality: workdirs of trained runs, one for each seed, are evaluated on their
test split with the rows of all tables in a format, by `numerics.rows`. `minus`
is the mean over seeds of the difference from the same weights in float32, `se`
its standard error. Nothing is trained again.

speed: 65,536 bags of 20 ids over a table of 1,000,000 rows of 64 numbers, drawn
uniformly, in a compiled program, by XLA and by C++; `mlookups_s` are 10^6 rows
read a second, `float32_x` the time over that of float32 in C++. With
`--peer_python` the same by FBGEMM's operator for CPUs, on as many threads.
"""

import functools
import pathlib
import subprocess
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

import pallas_kernels
from benchmarks import cli
from benchmarks.quantiser_speed import measure
from genrec_jax import config as config_lib
from genrec_jax.checkpoint import trees
from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.embedding import packed_rows
from genrec_jax.numerics.packed_formats import PACKED_FORMATS
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import results

COLUMNS = (
  'case', 'seeds', 'metric', 'value', 'std', 'minus', 'minus_se', 'table_mb',
  'bytes_x', 'ms', 'mlookups_s', 'float32_x', 'peer_ms', 'peer_x',
)  # fmt: skip
FORMATS = (
  'fbgemm_fp16', 'tbe_int8', 'tbe_fp8', 'fbgemm_mx4', 'tbe_int4', 'tbe_int2',
)  # fmt: skip
METRICS = ('auc', 'logloss', 'hr@10', 'ndcg@10')
PLAIN = 'float32'
WAYS = {'cpu': 'C++', 'xla': 'XLA'}
ROWS, WIDTH, BAGS, IDS = 1_000_000, 64, 65_536, 20


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('serving_rows', __doc__)
  parser.add_argument('--part', choices=('quality', 'speed'), required=True)
  parser.add_argument(
    '--run', action='append', default=[], metavar='NAME=WORKDIR,...'
  )
  parser.add_argument('--formats', nargs='+', default=FORMATS)
  parser.add_argument('--repeats', type=int, default=9, help='of a call (9)')
  parser.add_argument('--peer_python', default='', help='a Python with FBGEMM')
  args = parser.parse_args(argv)
  notes = ['minus: mean difference from the same weights in float32.']
  if args.part == 'quality':
    rows = []
    for run in args.run:
      name, _, workdirs = run.partition('=')
      rows += measure_quality(name, workdirs.split(','), args.formats)
  else:
    rows = measure_speed(args)
    notes.append('peer: FBGEMM, IntNBitTableBatchedEmbeddingBagsCodegen, CPU.')
  cli.finish(args, 'serving_rows', rows, COLUMNS, notes)


def measure_quality(name: str, workdirs, formats) -> list[dict]:
  """Rows of a model: a format and a metric each."""
  found = {
    number_format: [evaluate(workdir, number_format) for workdir in workdirs]
    for number_format in (PLAIN, *formats)
  }
  rows = []
  for number_format, runs in found.items():
    for metric in METRICS:
      if metric not in runs[0][0]:
        continue
      values = np.array([metrics[metric] for metrics, _ in runs])
      plain = np.array([metrics[metric] for metrics, _ in found[PLAIN]])
      size, whole = runs[0][1], found[PLAIN][0][1]
      row = dict(
        case=f'{name}/{number_format}/{metric}',
        part='quality',
        model=name,
        format=number_format,
        metric=metric,
        seeds=len(values),
        value=float(values.mean()),
        table_mb=size / 1e6,
        bytes_x=size / whole,
      )
      if len(values) > 1:
        row['std'] = float(values.std(ddof=1))
      if number_format != PLAIN:
        row['minus'] = float((values - plain).mean())
        if len(values) > 1:
          spread = (values - plain).std(ddof=1)
          row['minus_se'] = float(spread / len(values) ** 0.5)
      rows.append(row)
  return rows


def evaluate(workdir: str, number_format: str) -> tuple[dict, float]:
  """Test metrics of a run with its tables in a format, and their bytes."""
  path = pathlib.Path(workdir)
  config = ConfigDict(config_lib.read_config(path / 'config.json'))
  config.eval.splits = ('test',)
  if number_format != PLAIN:
    config.numerics.rows = (('.*', number_format),)
  # It writes eval.json, and the workdir is somebody's.
  before = path / 'eval.json'
  kept = before.read_bytes() if before.exists() else None
  try:
    found = results.evaluate_run(config.lock(), path, TASK_KINDS)
  finally:
    before.unlink(missing_ok=True)
    if kept is not None:
      before.write_bytes(kept)
  shapes = table_shapes(path)
  size = sum(rows * row_bytes(number_format, dim) for rows, dim in shapes)
  return found['metrics']['test'], size


def row_bytes(number_format: str, dim: int) -> int:
  if number_format == PLAIN:
    return 4 * dim
  return PACKED_FORMATS[number_format].bytes_per_row(dim)


def table_shapes(workdir: pathlib.Path) -> list[tuple[int, int]]:
  """Of the tables of a run, as its newest checkpoint has them."""
  with CheckpointManager(workdir / 'checkpoints') as checkpoints:
    manifest = checkpoints.read_manifest(checkpoints.latest())
  if 'rows' in manifest:
    about = manifest['rows']['tables'].values()
    return [(table['rows'], table['dim']) for table in about]
  return [
    trees.shape_of(array).shape
    for name, array in manifest['tree'].items()
    if name.startswith('tables/')
  ]


def measure_speed(args) -> list[dict]:
  rows, bags = (1000, 64) if args.smoke else (ROWS, BAGS)
  rng = np.random.default_rng(0)
  table = rng.normal(size=(rows, WIDTH)).astype(np.float32)
  ids = rng.integers(0, rows, bags * IDS).astype(np.int32)
  lengths = jnp.full(bags, IDS, jnp.int32)
  plain = jax.jit(
    lambda *given: pallas_kernels.embedding_bag(*given, implementation='xla')
  )
  native = jax.jit(pallas_kernels.embedding_bag)
  given = (jnp.asarray(ids), lengths)
  took = {
    f'{PLAIN}, XLA': measure(
      plain, jnp.asarray(table), *given, repeats=args.repeats
    ),
    f'{PLAIN}, C++': measure(
      native, jnp.asarray(table), *given, repeats=args.repeats
    ),
  }
  for name in args.formats:
    packed = packed_rows.pack_table(table, name)
    for implementation in ('cpu', 'xla'):
      bag = functools.partial(
        packed_rows.embedding_bag, implementation=implementation
      )
      key = f'{name}, {WAYS[implementation]}'
      try:
        took[key] = measure(jax.jit(bag), packed, *given, repeats=args.repeats)
      except NotImplementedError:
        continue  # of these rows XLA alone makes numbers
  peer = run_peer(table, ids, args) if args.peer_python else {}
  found = []
  for key, seconds in took.items():
    name, _, way = key.partition(', ')
    size = rows * row_bytes(name, WIDTH)
    row = dict(
      case=f'speed/{key}',
      part='speed',
      format=name,
      way=way,
      ms=1e3 * seconds,
      mlookups_s=ids.size / seconds / 1e6,
      table_mb=size / 1e6,
      bytes_x=size / table.nbytes,
      float32_x=seconds / took[f'{PLAIN}, C++'],
    )
    if f'{name}/s' in peer:
      row['peer_ms'] = 1e3 * float(peer[f'{name}/s'])
      row['peer_x'] = row['peer_ms'] / row['ms']
      row['version'] = str(peer['version'])
    found.append(row)
  return found


def run_peer(table: np.ndarray, ids: np.ndarray, args) -> dict:
  """FBGEMM's times, by `peer_packed_bags.py` in another environment."""
  program = pathlib.Path(__file__).with_name('peer_packed_bags.py')
  with tempfile.TemporaryDirectory() as folder:
    source, target = f'{folder}/in.npz', f'{folder}/out.npz'
    np.savez(source, table=table, ids=ids, lengths=IDS)
    command = [args.peer_python, program, source, target, str(args.repeats)]
    subprocess.run(command, check=True)
    return dict(np.load(target))


if __name__ == '__main__':
  main()
