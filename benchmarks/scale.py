"""What a device needs for its tables as the number of devices grows.

  pip install --no-deps 'libtpu==0.0.42.*'   # for JAX 0.10.2
  python -m benchmarks.scale
  python -m benchmarks.scale --cases rows/all_to_all --devices 8 512

The load of a device is fixed: ids that it reads, and bags that it pools. A step
of the tables (routing, lookup, exchange, update) is compiled ahead of time for
slices of a TPU v5p that are not there, and nothing runs. Every figure is of one
device: memory beside what the step is given, bytes that it sends, arithmetic
and memory traffic as XLA counts them, and what the compilation takes.

A loop for further rounds is compiled as well, and mostly has none: what it
would send in one round stands apart.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks import cli, hlo
from benchmarks.result import CoreTimer
from genrec_jax.embedding import single_scheme
from genrec_jax.embedding.exchange import KINDS, Exchange
from genrec_jax.embedding.layout import lay_out
from genrec_jax.embedding.sharded_tables import ShardedTables
from genrec_jax.features import Read, TableSpec
from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.parallel import slices
from pallas_kernels import dispatch

SLICES = {
  8: 'v5p:2x2x2',
  16: 'v5p:2x2x4',
  64: 'v5p:4x4x4',
  128: 'v5p:4x4x8',
  256: 'v5p:4x8x8',
  512: 'v5p:8x8x8',
  1024: 'v5p:8x8x16',
}
OF_HOST = 4  # chips
# Rows are as wide as a register of a TPU: narrower ones are laid out anew, as a
# whole table, in every step.
WIDTH = 128
IDS, PER_BAG = 8_192, 8  # that a device reads
ROWS, COPIED_ROWS = 100_000_000, 10_000
# Where a table is on one device or host, so many share the rows and the ids.
TABLES = {'table_wise': 1024, 'table_row_wise': 256}
COLUMNS = (
  'case', 'temp_mb', 'temp_x', 'sent_mb', 'round_mb', 'gflops', 'touched_mb',
  'trace_core_s', 'compile_core_s',
)  # fmt: skip
NOTES = (
  f'{IDS:,} ids on each device, of a table of {ROWS:,} x {WIDTH} whose rows '
  f'are spread over all, moved by row_adagrad; copied tables have '
  f'{COPIED_ROWS:,} rows. Pooled: bags of {PER_BAG} ids.',
  'temp_mb: beside the tables, their slots and the ids; temp_x: over that of '
  'the fewest devices.',
  'sent_mb: by the ring or the direct way, outside of loops; round_mb: in one '
  'further round. touched_mb: bytes accessed, of XLA, for which an update of '
  'some rows reads and writes the whole array, that shrinks with more devices.',
  'Compiled for TPU v5p ahead of time; nothing ran.',
)


@dataclasses.dataclass(frozen=True)
class Case:
  """What is read, and how it travels.

  Attributes:
    scheme: where rows lie.
    kind: of the exchange.
    pooled: how a pooled read travels, or '' for a plain one.
    way: the same in words.
  """

  scheme: str = 'row_wise'
  kind: str = 'all_to_all'
  pooled: str = ''
  way: str = ''


CASES = {
  **{
    f'rows/{kind}': Case(kind=kind, way=f'rows, exchange {kind}')
    for kind in KINDS
  },
  'sums/row_wise': Case(pooled='sums', way='sums, row_wise'),
  'sums/table_row_wise': Case(
    'table_row_wise', pooled='sums', way='sums, table_row_wise'
  ),
  'sums/table_wise': Case('table_wise', pooled='sums', way='sums, table_wise'),
  'rows/data_parallel': Case('data_parallel', way='copied table'),
}


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('scale', __doc__)
  parser.add_argument('--cases', nargs='+', choices=CASES, default=[*CASES])
  parser.add_argument(
    '--devices', nargs='+', type=int, choices=SLICES, default=[*SLICES]
  )
  args = parser.parse_args(argv)
  if args.smoke:
    args.cases, args.devices = ['rows/all_to_all'], [8, 16]
  if missing := slices.why_not():
    cli.fail(missing)
  rows, means = [], []
  for name in args.cases:
    points = []
    for row in measure(name, args.devices):
      points.append(row)
      print(cli.table([row], COLUMNS), flush=True)
    rows += points
    means.append(summarise(name, points))
  cli.finish(args, 'scale', [*rows, *means], COLUMNS, NOTES)


def summarise(name: str, points: Sequence[dict]) -> dict:
  """The points of a case as one row, a column for each number of devices."""
  found = {'case': name, 'kind': 'case', 'way': CASES[name].way}
  for point in points:
    for key in ('temp_mb', 'sent_mb'):
      found[f'{key}@{point["devices"]}'] = point[key]
  last = points[-1]
  return found | {
    'temp_x': last['temp_x'],
    'most_x': max(p['temp_x'] for p in points),
    'core_s': max(p['trace_core_s'] + p['compile_core_s'] for p in points),
  }


def measure(name: str, counts: list[int]) -> Iterator[dict]:
  """A row for each number of devices."""
  least = None
  for devices in counts:
    with CoreTimer() as tracing:
      lowered = lower(CASES[name], devices)
    with CoreTimer() as compiling:
      compiled = lowered.compile()
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
    sent = {True: 0.0, False: 0.0}
    for collective in hlo.find_collectives(compiled):
      sent[collective.computation == hlo.ENTRY] += hlo.sent_bytes(collective)
    least = least or memory.temp_size_in_bytes
    yield {
      'case': f'{name}/{devices}',
      'kind': 'point',
      'devices': devices,
      'temp_mb': memory.temp_size_in_bytes / 1e6,
      'temp_x': memory.temp_size_in_bytes / least,
      'argument_mb': memory.argument_size_in_bytes / 1e6,
      'sent_mb': sent[True] / 1e6,
      'round_mb': sent[False] / 1e6,
      'gflops': cost.get('flops', 0.0) / 1e9,
      'touched_mb': cost.get('bytes accessed', 0.0) / 1e6,
      'trace_core_s': tracing.core_s,
      'compile_core_s': compiling.core_s,
    }


def lower(case: Case, devices: int):
  """The step of the tables, for so many chips."""
  hosts = devices // OF_HOST
  rows = COPIED_ROWS if case.scheme == 'data_parallel' else ROWS
  count = TABLES.get(case.scheme, 1)
  specs = {
    f't{i:03}': TableSpec(
      f't{i:03}', max(1, rows // count), WIDTH, update='row_adagrad'
    )
    for i in range(count)
  }
  plan = single_scheme.plan_with_scheme(
    specs, case.scheme, hosts=hosts, devices=OF_HOST
  )
  pooling = dict.fromkeys(specs, case.pooled) if case.pooled else {}
  tables = ShardedTables(
    lay_out(plan), specs, Exchange(case.kind), pooling=pooling
  )
  chips = slices.find_chips(SLICES[devices])
  mesh = mesh_lib.arrange(chips, 1, hosts, OF_HOST)
  split, same = PartitionSpec(mesh_lib.AXES), PartitionSpec()
  shapes = tables.layout.shapes()
  slots = jax.eval_shape(tables.init_slots, shapes)
  specs_of = tables.partition(shapes), tables.partition(slots)

  def step(arrays, slots, ids, lengths, number):
    reads = {name: Read(ids[name][None], name) for name in specs}
    if case.pooled:
      reads = {
        name: dataclasses.replace(
          read, lengths=lengths[name][None], pooling='sum'
        )
        for name, read in reads.items()
      }
    routes = tables.route(reads)
    fetched = tables.fetch(arrays, routes)
    grads = jax.tree.map(lambda x: 0.5 * x + 1, fetched)
    pushed = tables.push(arrays, slots, routes, grads, 0.1, number)
    return pushed.arrays, pushed.slots, pushed.square

  mapped = jax.shard_map(
    step,
    mesh=mesh,
    in_specs=(*specs_of, split, split, same),
    out_specs=(*specs_of, same),
    check_vma=False,
  )

  def whole(x, spec):
    """What all devices together hold of what one holds."""
    held = 1 if spec == same or not x.ndim else devices
    shape = (held * x.shape[0], *x.shape[1:]) if x.ndim else ()
    sharding = NamedSharding(mesh, spec)
    return jax.ShapeDtypeStruct(shape, x.dtype, sharding=sharding)

  each = max(PER_BAG, IDS // count)  # ids of one table on a device
  ids = jax.ShapeDtypeStruct((each,), jnp.int32)
  lengths = jax.ShapeDtypeStruct((each // PER_BAG,), jnp.int32)
  number = jax.ShapeDtypeStruct((), jnp.int32)
  kind = mesh.devices.flat[0].device_kind
  with (
    dispatch.compiling_for('tpu', kind),
    jax.sharding.use_abstract_mesh(mesh.abstract_mesh),
  ):
    traced = jax.jit(mapped, donate_argnums=(0, 1)).trace(
      *jax.tree.map(whole, (shapes, slots), specs_of),
      {name: whole(ids, split) for name in specs},
      {name: whole(lengths, split) for name in specs},
      whole(number, same),
    )
    return traced.lower(lowering_platforms=('tpu',))


if __name__ == '__main__':
  main()
