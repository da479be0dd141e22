"""Towers: what a step sends to which devices, and what it takes.

  python -m benchmarks.dmt
  python -m benchmarks.dmt --part steps

A training step of DLRM with 64 features of one id each, tables 64 wide, on 8 to
64 devices. Vectors of features get to the examples in several ways:

  flat           whole tables; sums in one exchange of all devices
  flat by rows   tables over all devices; rows travel
  flat in steps  rows over the devices of a host; sums within it, then between
  sptt           whole tables; towers that change nothing
  sptt, rows in the host  the same, as the tables of `flat in steps` lie
  dmt C          whole tables; towers of DLRM, which keep one number of C
  dmt 4, narrow  bfloat16 within hosts and int8 between them

  bytes  of the collectives in the compiled HLO, by the devices that they bring
         together, beside the planner's formulas, which must be equal to the
         byte. No collective of features under towers may bring all devices
         together. Nothing runs.
  steps  wall time and core-seconds of a step on 8 fake devices, 2 hosts of 4,
         and on two processes over loopback, a host each, that have two devices;
         32 features and 4 towers, 512 examples a device. The ways take turns.
         No network is involved: this shows what a step of towers computes, and
         not what they are for.
  tpu    the collectives of the steps on 16 chips of a v5e as 4 hosts of 4,
         compiled by libtpu ahead of time, see `benchmarks.dmt_slices`.

Each row of bytes is in the result file at once, and what is there is not
compiled again, unless `--again` is given.
"""

import os

import jax

from benchmarks import cli, dmt_slices, dmt_time, hlo, table_steps
from benchmarks.dmt_steps import (
  FLAT,
  SMOKE_SIZES,
  Setting,
  build,
  compile_step,
  settings,
)
from benchmarks.multi_hot import QUICK
from genrec_jax import planner
from genrec_jax.parallel import slices
from genrec_jax.planner import plan_traffic, traffic
from genrec_jax.runtime import planning

PARTS = ('bytes', 'steps', 'tpu')
BYTES = (
  'case', 'near_bytes', 'far_bytes', 'values_near_bytes', 'values_far_bytes',
  'values_far_x', 'groups', 'far_peers', 'far_message_bytes', 'formula_off',
)  # fmt: skip
COLLECTIVES = (
  'case', 'group_size', 'near_bytes', 'far_bytes', 'formula_bytes',
)  # fmt: skip
NOTES = (
  'near_bytes, far_bytes: that a device sends in a step for its tables within '
  'its host and to others, of the collectives in the compiled HLO; values_*: '
  'of sums, rows, vectors and gradients, without ids and lengths. '
  'values_far_x: over that of the flat way. all_reduce_bytes: of dense '
  'gradients and scalars, not in the others.',
  'groups: how many devices the collectives of tables bring together.',
  'far_peers, far_message_bytes: of the largest exchange of values between '
  'hosts, in one direction.',
  "formula_off: bytes by which the planner's formulas are off, of all "
  'collectives of tables.',
  "overflow='raise', so that one branch is compiled; dense='ddp'. The model "
  'above the towers is 16 wide, and 64 without them.',
  '*_x of steps: medians over the turns, over the flat way. No network: eight '
  'devices of one process, or two processes over loopback.',
)


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('dmt', __doc__)
  parser.add_argument('--part', choices=PARTS, default='bytes')
  parser.add_argument(
    '--again', action='store_true', help='also what the result file has'
  )
  parser.add_argument('--turns', type=int, default=15, help='timed (15)')
  parser.add_argument(
    '--jobs', nargs='+', choices=dmt_time.JOBS, default=[*dmt_time.JOBS],
    help='of the steps',
  )  # fmt: skip
  args = parser.parse_args(argv)
  if args.part == 'steps':
    args.turns = 2 if args.smoke else args.turns
    for job in args.jobs:
      rows = dmt_time.time_job(job, args.turns, args.smoke)
      cli.finish(args, 'dmt', rows, dmt_time.COLUMNS, NOTES)
    return
  if args.part == 'tpu':
    if missing := slices.why_not():
      cli.fail(missing)
    for setting in dmt_slices.list_settings(args.smoke, SMOKE_SIZES):
      rows = dmt_slices.send(setting)
      cli.finish(args, 'dmt', rows, dmt_slices.COLUMNS, NOTES)
    return
  start_devices(8 if args.smoke else 64)
  done = {} if args.again else cli.read_rows(args, 'dmt')
  for setting in settings(args.smoke):
    if setting.case in done:
      continue
    row, collectives = send(setting)
    done[setting.case] = row
    whole = done[f'{setting.mesh}/{FLAT.name}']['values_far_bytes']
    row['values_far_x'] = row['values_far_bytes'] / whole
    cli.finish(args, 'dmt', [row], BYTES, NOTES)
    if setting.mesh == '2x4':
      cli.finish(args, 'dmt', collectives, COLLECTIVES, NOTES)


def start_devices(count: int) -> None:
  """Splits the CPU, unless JAX has begun already."""
  os.environ.setdefault('NPROC', '32')
  try:
    jax.config.update('jax_num_cpu_devices', count)
  except RuntimeError:
    pass
  if len(jax.devices()) < count:
    cli.fail(f'needs JAX_NUM_CPU_DEVICES={count}, not {len(jax.devices())}')


def send(setting: Setting) -> tuple[dict, list[dict]]:
  """The row of a setting, and those of its collectives."""
  config, task, runtime = build(setting)
  program = compile_step(runtime, setting, QUICK)
  found, reduced = {}, 0.0
  for x in hlo.find_collectives(program):
    if x.computation != hlo.ENTRY:
      raise ValueError(f'{x.op} in {x.computation}: how often is not known')
    if x.op == traffic.ALL_REDUCE:
      reduced += hlo.sent_bytes(x)
      continue
    over = table_steps.name_axes(x.groups, runtime.mesh)
    found.setdefault((x.op, over), []).append(x)
  if setting.way.compression:
    require_steps(setting, found)
  foreseen = foresee(config, task, runtime)
  near = far = values_near = values_far = 0.0
  rows, largest = [], None
  for (op, over), own in found.items():
    of_kind = dict.fromkeys(('near', 'far'), 0.0)
    for x in own:
      links = split_by_link(x, setting)
      of_kind['near'] += links[0]
      of_kind['far'] += links[1]
      if x.dtype == 's32':  # ids and lengths
        continue
      values_near += links[0]
      values_far += links[1]
      if links[1] and (
        largest is None or x.bytes_result > largest.bytes_result
      ):
        largest = x
    near, far = near + of_kind['near'], far + of_kind['far']
    rows.append(
      {
        'case': f'{setting.case}/{op}/{"+".join(over)}',
        'kind': 'collective',
        'mesh': setting.mesh,
        'way': setting.way.name,
        'op': op,
        'over': '+'.join(over),
        'link': {('dev',): 'within', ('host',): 'between'}.get(over, 'both'),
        'group_size': own[0].group_size,
        'count': sum(x.count for x in own),
        'near_bytes': _whole(of_kind['near']),
        'far_bytes': _whole(of_kind['far']),
        'formula_bytes': _whole(foreseen.get((op, over), 0.0)),
      }
    )
  sent = {k: sum(map(hlo.sent_bytes, own)) for k, own in found.items()}
  off = sum(
    abs(sent.get(k, 0.0) - foreseen.get(k, 0.0)) for k in {*sent, *foreseen}
  )
  if off:
    cli.fail(f'{setting}: formulas {foreseen}, program {sent}')
  return {
    'case': setting.case,
    'kind': 'bytes',
    'mesh': setting.mesh,
    'devices': setting.devices,
    'way': setting.way.name,
    'scheme': setting.way.scheme,
    'compression': setting.way.compression,
    'near_bytes': _whole(near),
    'far_bytes': _whole(far),
    'values_near_bytes': _whole(values_near),
    'values_far_bytes': _whole(values_far),
    'groups': ', '.join(
      str(n) for n in sorted({x[0].group_size for x in found.values()})
    ),
    **describe_messages(largest, setting),
    'all_reduce_bytes': _whole(reduced),
    'formula_off': _whole(off),
  }, rows


def require_steps(setting: Setting, found) -> None:
  """Ends the program where a collective of towers spans all devices."""
  if spanning := [key for key in found if len(key[1]) > 1]:
    cli.fail(f'{setting}: {spanning} bring all devices together')


def foresee(config, task, runtime) -> dict[tuple[str, tuple], float]:
  """(collective, axes) -> bytes by the planner's formulas."""
  axes = {'replicas': 'rep', 'hosts': 'host', 'devices': 'dev'}
  shape = {name: runtime.mesh.shape[axis] for name, axis in axes.items()}
  found = {}
  for t in plan_traffic.list_plan(
    runtime.plan,
    planning.expected_loads(config, task, shape),
    config.train.batch_size,
    traffic.Wire(planning.pooling_rule(config).exchange, 'cpu'),
    planner.from_towers(task.towers),
  ):
    if t.op != traffic.ALL_REDUCE:
      found[t.op, t.over] = found.get((t.op, t.over), 0.0) + t.bytes
  return found


def split_by_link(collective, setting: Setting) -> tuple[float, float]:
  """Bytes to devices of the same host, and to those of others.

  Only an all-to-all may go both ways: to each peer as much.
  """
  group, sent = collective.groups[0], hlo.sent_bytes(collective)
  near = count_near(group, setting)
  if near in (0, len(group) - 1):
    return (0.0, sent) if near == 0 else (sent, 0.0)
  if collective.op != traffic.ALL_TO_ALL:
    raise ValueError(f'{collective.op} within hosts and between them')
  share = near / (len(group) - 1)
  return share * sent, (1 - share) * sent


def count_near(group, setting: Setting) -> int:
  """Peers of the first of a group that are on its host."""
  host = group[0] // setting.on_host
  return sum(d // setting.on_host == host for d in group[1:])


def describe_messages(collective, setting: Setting) -> dict:
  """Peers on other hosts, and what one of them is sent, in one direction."""
  if collective is None:
    return {}
  group = collective.groups[0]
  return {
    'far_peers': len(group) - 1 - count_near(group, setting),
    'far_message_bytes': collective.bytes_result // len(group),
  }


def _whole(x: float) -> float:
  return int(x) if x == int(x) else x


if __name__ == '__main__':
  main()
