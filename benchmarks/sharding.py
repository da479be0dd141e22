"""What a device sends for its tables: compiled programs beside the formulas.

  python -m benchmarks.sharding
  pip install --no-deps 'libtpu==0.0.42.*'   # for JAX 0.10.2
  python -m benchmarks.sharding --targets tpu

Nothing runs and no data is needed. The three parts of a step (routing of ids,
forward, backward) are compiled: for 8 CPU devices as 2 hosts of 4, and ahead of
time for the 16 chips of a TPU v5e as 4 hosts of 4. Every collective of their
HLO must be one that benchmarks/sharding_formulas.py knows, with the same number
of bytes, and the planner (genrec_jax/planner/plan_traffic.py) must say the
same; otherwise this program fails.

Programs have overflow='raise': with 'rounds' they hold all collectives twice,
the second time in a loop that mostly does nothing.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks import cli, hlo, sharding_formulas
from benchmarks.sharding_formulas import PASSES, ROWS, Case, Sent
from genrec_jax import planner
from genrec_jax.embedding import single_scheme
from genrec_jax.embedding.exchange import KINDS, Exchange
from genrec_jax.embedding.layout import lay_out
from genrec_jax.embedding.plan import SCHEMES
from genrec_jax.embedding.sharded_tables import ShardedTables
from genrec_jax.features import Read, TableSpec
from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.parallel import slices
from genrec_jax.planner import plan_traffic
from genrec_jax.planner.traffic import Wire
from pallas_kernels import dispatch

TARGETS = {'cpu': (2, 4), 'tpu': (4, 4)}  # hosts, devices
TOPOLOGY = 'v5e:4x4'
LONG = {'cpu': 8, 'tpu': 16}  # ids in a bag
NARROW = ('float16', 'bfloat16', 'fp8', 'int8')
COLUMNS = (
  'case', 'dtype', 'bytes', 'formula_bytes', 'planner_bytes',
  'published_bytes', 'float32_x', 'note',
)  # fmt: skip


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('sharding', __doc__)
  parser.add_argument('--targets', nargs='+', choices=TARGETS, default=['cpu'])
  args = parser.parse_args(argv)
  rows = []
  for target in args.targets:
    if target == 'tpu' and (missing := slices.why_not()):
      cli.fail(missing)
    devices = find_devices(target)
    for case in smallest(target) if args.smoke else cases(target):
      found = list(measured(case, devices))
      rows += found
      print(cli.table(found, COLUMNS), flush=True)
  check(rows)
  add_ratios(rows)
  notes = [
    'bytes: what a device sends in a step, of the collectives in the compiled '
    'HLO; ring for all-reduce, all-gather and reduce-scatter.',
    'Compiled, not run. tpu: ahead of time for 16 chips of a v5e, no TPU was '
    'there. On a CPU the ragged exchange is emulated.',
    'Sizes: 32 examples on a device, 4 ids of each table (or as named), tables '
    'of width 64, as many as devices (or as named).',
  ]
  cli.finish(args, 'sharding', rows, COLUMNS, notes)


def find_devices(target: str):
  """The devices to compile for."""
  if target == 'tpu':
    return slices.find_chips(TOPOLOGY)
  wanted = math.prod(TARGETS[target])
  try:
    jax.config.update('jax_num_cpu_devices', wanted)
  except RuntimeError:  # JAX has begun already: as many as there are
    pass
  devices = jax.devices('cpu')
  if len(devices) < wanted:
    cli.fail(f'needs JAX_NUM_CPU_DEVICES={wanted}, there are {len(devices)}')
  return devices[:wanted]


def cases(target: str) -> Iterator[Case]:
  """What is compiled for a target."""
  hosts, devices = TARGETS[target]
  base = Case(target, 'table_wise', hosts=hosts, devices=devices)
  base = dataclasses.replace(base, tables=base.group)

  def case(scheme, kind='pooled', **fields):
    return dataclasses.replace(base, scheme=scheme, kind=kind, **fields)

  for scheme in SCHEMES:
    yield case(scheme)
  # Enough ids in a bag for sums, and in a batch for whole tables.
  yield case('row_wise', length=LONG[target])
  if target == 'cpu':
    yield case('data_parallel', length=LONG[target])
  yield case('table_wise', tables=base.group // 2 + 1)
  for scheme in ('table_wise', 'row_wise'):
    yield case(scheme, hosts=hosts // 2, replicas=2)
  # For the TPU the two that differ: an exchange sees pieces, not schemes.
  spread = list(SCHEMES)[1:]
  for scheme in spread if target == 'cpu' else spread[:2]:
    for kind in KINDS:
      yield case(scheme, kind)
  for codec in NARROW:
    yield case('row_wise', length=LONG[target], codec=codec)
    for kind in KINDS:
      yield case('table_wise', kind, codec=codec)


def smallest(target: str) -> list[Case]:
  """For --smoke."""
  hosts, devices = TARGETS[target]
  base = Case(
    target, 'table_row_wise', hosts=hosts, devices=devices, batch=8, length=2
  )
  return [
    base,
    dataclasses.replace(base, scheme='table_wise', kind='ragged', codec='int8'),
  ]


def measured(c: Case, devices) -> Iterator[dict]:
  """A row for each kind of collective, of the program or of the formulas."""
  found = {}  # (step, op, groups) -> (bytes, dtypes)
  for step, collectives in compiled(c, devices).items():
    for x in collectives:
      key = step, x.op, as_sets(x.groups)
      size, dtypes = found.get(key, (0, set()))
      found[key] = size + hlo.sent_bytes(x), dtypes | {x.dtype}

  def place(sent):
    return PASSES.index(sent.step), sent.op, sent.over

  planned = plan_bytes(c)
  predicted = sorted(sharding_formulas.predicted(c), key=place)
  for _, parts in itertools.groupby(predicted, key=place):
    parts = list(parts)
    first = parts[0]
    key = first.step, first.op, as_sets(groups(c, first.over))
    line = row(c, *found.pop(key, (0, set())), parts)
    # Scalars are those of parts that are compiled apart.
    scalars = sum(s.bytes for s in parts if s.what == 'scalars')
    where = first.step, first.op, first.over
    yield line | {'planner_bytes': _whole(planned.get(where, 0) + scalars)}
  for (step, op, _), measure in found.items():
    yield row(c, *measure, [Sent(step, 'unknown', op, ('?',), 0, '')])


def plan_bytes(c: Case) -> dict[tuple, float]:
  """(part of the step, collective, axes) -> bytes that the planner says."""
  specs, plan = place_tables(c)
  feature = planner.Feature(c.length, pooled=c.kind == 'pooled')
  loads = [
    planner.Load(n, s.rows, s.dim, optimizer=s.update, features=(feature,))
    for n, s in specs.items()
  ]
  found = {}
  for t in plan_traffic.list_plan(
    plan, loads, c.batch * c.group * c.replicas, Wire(exchange_of(c), c.target)
  ):
    key = t.step, t.op, t.over
    size = 0 if t.what == 'scalars' else t.bytes
    found[key] = found.get(key, 0) + size
  return found


def row(c: Case, size: float, dtypes: set[str], parts: list[Sent]) -> dict:
  """What the program sends, and what the formulas say in as many parts."""
  first = parts[0]
  shape = [c.replicas] * (c.replicas > 1) + [c.hosts, c.devices]
  shape = 'x'.join(map(str, shape))
  setting = f'{c.target}/{shape}/{c.tables}/{c.scheme}/{c.kind}'
  if c.length == LONG[c.target]:
    setting += f'/{c.length}'
  over = '+'.join(first.over)
  found = {
    'case': f'{setting}/{c.codec}/{first.step}/{first.op}/{over}',
    'target': c.target,
    'part': 'pooled' if c.kind == 'pooled' else 'sequence',
    'setting': setting,
    'scheme': c.scheme,
    'kind': c.kind,
    'mesh': shape,
    'tables': c.tables,
    'length': c.length,
    'codec': c.codec,
    'pass': first.step,
    'what': first.what,
    'op': first.op,
    'over': over,
    'dtype': '+'.join(sorted(dtypes)),
    'bytes': _whole(size),
    'formula_bytes': _whole(sum(s.bytes for s in parts)),
    'formula': ' + '.join(s.formula for s in parts),
    'note': '; '.join(s.note for s in parts if s.note),
  }
  if any(s.published is not None for s in parts):
    found['published_bytes'] = _whole(sum(s.published or 0 for s in parts))
  return found


def add_ratios(rows: list[dict]) -> None:
  """Bytes of rows in a narrow codec, over those of float32."""

  def key(row):
    return row['setting'], row['pass'], row['what']

  whole = {key(r): r['bytes'] for r in rows if r['codec'] == 'float32'}
  for r in rows:
    if r['what'] == 'rows' and r['codec'] != 'float32' and key(r) in whole:
      r['float32_x'] = r['bytes'] / whole[key(r)]


def check(rows: list[dict]) -> None:
  """Ends the program where a formula is not what was compiled."""
  wrong = [
    r
    for r in rows
    if not r['bytes'] == r['formula_bytes'] == r.get('planner_bytes')
  ]
  if wrong:
    cli.fail('formula and program differ:\n' + cli.table(wrong, COLUMNS))


# --- The programs.


def compiled(c: Case, devices) -> dict[str, list[hlo.Collective]]:
  """Part of the step -> its collectives."""
  specs, plan = place_tables(c)
  # Pooled reads travel as sums; others are not pooled at all.
  pooling = dict.fromkeys(specs, 'sums')
  tables = ShardedTables(lay_out(plan), specs, exchange_of(c), pooling=pooling)
  mesh = mesh_lib.arrange(devices, c.replicas, c.hosts, c.devices)
  split, same = PartitionSpec(mesh_lib.AXES), PartitionSpec()

  def placed(tree, spec=split):
    sharding = NamedSharding(mesh, spec)
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree
    )

  def mapped(fn, takes, gives):
    """`fn` of one device; what is split has a dimension of devices in front."""

    def on_device(*args):
      found = fn(
        *(
          jax.tree.map(lambda x: x[0], arg) if spec == split else arg
          for arg, spec in zip(args, takes, strict=True)
        )
      )
      return jax.tree.map(lambda x: x[None], found) if gives == split else found

    return jax.jit(
      jax.shard_map(
        on_device, mesh=mesh, in_specs=takes, out_specs=gives, check_vma=False
      )
    )

  def push(arrays, routes, grads, step):
    slots = tables.init_slots(arrays)
    pushed = tables.push(arrays, slots, routes, grads, 0.1, step)
    return pushed.arrays, pushed.square

  held = tables.layout.shapes()
  parts = tables.partition(held)
  arrays = {}
  for name, x in held.items():
    shards = 1 if name in tables.layout.whole else len(devices)
    every = jax.ShapeDtypeStruct((shards * x.shape[0], x.shape[1]), x.dtype)
    arrays[name] = placed(every, parts[name])
  ids = jax.ShapeDtypeStruct((len(devices), c.ids), jnp.int32)
  lengths = jax.ShapeDtypeStruct((len(devices), c.batch), jnp.int32)
  reads = {name: Read(ids, name) for name in specs}
  if c.kind == 'pooled':
    reads = {n: Read(ids, n, lengths, pooling='sum') for n in specs}
  number = placed(jax.ShapeDtypeStruct((), jnp.int32), same)

  route = mapped(lambda reads: tables.route(one_part(reads)), (split,), split)
  fetch = mapped(tables.fetch, (parts, split), split)
  push = mapped(push, (parts, split, split, same), (parts, same))
  with (
    dispatch.compiling_for(c.target, devices[0].device_kind),
    jax.sharding.use_abstract_mesh(mesh.abstract_mesh),
  ):
    reads = placed(reads)
    routes = placed(jax.eval_shape(route, reads))
    values = placed(jax.eval_shape(fetch, arrays, routes))
    programs = {
      'ids': route.trace(reads),
      'forward': fetch.trace(arrays, routes),
      'backward': push.trace(arrays, routes, values, number),
    }
    return {
      step: hlo.find_collectives(
        traced.lower(lowering_platforms=(c.target,)).compile()
      )
      for step, traced in programs.items()
    }


def place_tables(c: Case):
  """Table -> its spec, and the plan."""
  specs = {
    f't{i:02}': TableSpec(f't{i:02}', ROWS, c.width, update='row_sgd')
    for i in range(c.tables)
  }
  plan = single_scheme.plan_with_scheme(
    specs, c.scheme, hosts=c.hosts, devices=c.devices, replicas=c.replicas
  )
  return specs, plan


def exchange_of(c: Case) -> Exchange:
  """How rows travel."""
  kind = 'all_to_all' if c.kind == 'pooled' else c.kind
  capacity = sharding_formulas.CAPACITY
  return Exchange(kind, capacity, 'raise', c.codec, c.codec)


def one_part(reads):
  """Reads of a shard as those of its only microbatch."""
  return jax.tree.map(lambda x: x[None], reads)


def groups(c: Case, axes: tuple[str, ...]) -> list[list[int]]:
  """Numbers of the devices that a collective over `axes` brings together."""
  shape = c.replicas, c.hosts, c.devices
  numbers = np.arange(math.prod(shape)).reshape(shape)
  at = [mesh_lib.AXES.index(axis) for axis in axes]
  numbers = np.moveaxis(numbers, at, range(3 - len(at), 3))
  return numbers.reshape(-1, math.prod(shape[i] for i in at)).tolist()


def as_sets(groups) -> frozenset:
  return frozenset(frozenset(group) for group in groups)


def _whole(x: float) -> float:
  return int(x) if x == int(x) else x


if __name__ == '__main__':
  main()
