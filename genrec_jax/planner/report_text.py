"""The text of a report."""

import numpy as np

from genrec_jax.formatting import format_bytes
from genrec_jax.planner import pooling
from genrec_jax.planner.balance import measure_imbalance

MOST_DEVICES = 8
# Columns of the report, in the order of `Cost`.
PARTS = ('lookup', 'update', 'rows', 'gradients', 'ordering')


def render_report(report, top: int) -> str:
  """A `Report` for people, with the `top` most expensive tables."""
  sections = (
    _format_head(report), _format_devices(report), _format_balance(report),
    report.towers.lines(top) if report.towers else [], _format_bounds(report),
    _format_tables(report, top), pooling.describe_pooling(report.pooling, top),
    list(report.notes),
  )  # fmt: skip
  return '\n\n'.join('\n'.join(s) for s in sections if s)


def _format_head(c) -> list[str]:
  t = c.topology
  bound = c.sizes[0]
  lines = [
    f'{len(c.tables):,} tables on {t.name}, replicas x hosts x devices = '
    f'{t.replicas} x {t.hosts} x {t.devices}, {c.batch:,} examples a step',
    f'plan: {c.made_by}' + (f', the best of {c.tried:,}' if c.tried else ''),
    f'tables: {format_bytes(sum(line.bytes for line in c.tables))} in a group',
    f'predicted step of the tables: {format_time(c.step)} on the busiest '
    f'device, nothing overlapped',
    f'critical path: {format_time(c.critical_path)}, longest compute and '
    'longest exchange',
    f'binds: {bound.binds}',
  ]
  if t.group_size > 1 and c.formats:
    lines.append(_describe_formats(c.formats))
  if t.replicas > 1:
    lines.append(
      f'{t.replicas} copies are kept alike: {format_bytes(c.allocated)} a '
      'device when all of it is averaged; not in the times'
    )
  if len(c.over):
    lines.append(f'DOES NOT FIT on {len(c.over)} of {t.group_size} devices')
  return lines


def _describe_formats(formats) -> str:
  """What travels; most tables first.

  >>> _describe_formats({'float32/float32': 3})
  'formats of rows/gradients that travel: float32/float32 (3 tables)'
  """
  (first, most), *rest = sorted(formats.items(), key=lambda x: (-x[1], x[0]))
  parts = [f'{first} ({most:,} {"table" if most == 1 else "tables"})']
  parts += [f'{names} ({count:,})' for names, count in rest]
  text = 'formats of rows/gradients that travel: ' + ', '.join(parts)
  if set(formats) == {'float32/float32'}:
    return text
  return text + '; the times do not have their encoding'


def _format_devices(c) -> list[str]:
  """The busiest devices, and the mean of all."""
  t = c.topology
  lines = [
    f'a device: {format_bytes(t.memory)}, of it {format_bytes(c.budget)} for '
    f'tables ({t.reserve:.0%} and {format_bytes(c.dense.bytes)} of the dense '
    'part off)',
    f'{"":>8} {"bytes":>10} {"":>10} {"":>10} {"":>6} {"compute":>21} '
    f'{"exchange of":>21}',
    f'{"device":>8} {"rows":>10} {"filling":>10} {"buffers":>10} {"of it":>6}'
    + ''.join(f' {part:>10}' for part in PARTS[: _count_parts(t)])
    + f' {"step":>10}',
  ]
  order = np.argsort(-c.times.sum(axis=1), kind='stable')
  shown = sorted(order[:MOST_DEVICES])
  for d in shown:
    about = c.row_bytes[d], c.buffer_bytes[d], c.times[d]
    lines.append(_device_line(str(d), c, *about))
  if len(order) > len(shown):
    lines.append(
      f'{"":>8} and {len(order) - len(shown):,} devices with less to do'
    )
  if len(order) > 1:
    about = c.row_bytes.mean(), c.buffer_bytes.mean(), c.times.mean(axis=0)
    lines.append(_device_line('mean', c, *about))
  return lines


def _count_parts(topology) -> int:
  """How many of `PARTS` are shown: the last one if anybody has measured it."""
  return len(PARTS) if topology.ordering else len(PARTS) - 1


def _device_line(name, c, rows, buffers, times) -> str:
  share = (c.allocated + buffers) / c.budget if c.budget > 0 else np.inf
  return (
    f'{name:>8} {format_bytes(rows):>10} '
    f'{format_bytes(c.allocated - rows):>10} {format_bytes(buffers):>10} '
    f'{share:>6.1%}'
    + ''.join(
      f' {format_time(x):>10}' for x in times[: _count_parts(c.topology)]
    )
    + f' {format_time(sum(times)):>10}'
  )


def _format_balance(c) -> list[str]:
  lines = [f'{"imbalance":>10} {"max/mean":>9} {"variation":>9} '
           f'{"KL":>9} {"chi2":>9}']  # fmt: skip
  for name, values in (
    ('time', c.times.sum(axis=1)),
    ('bytes', c.row_bytes),
  ):
    measures = measure_imbalance(values)
    lines.append(
      f'{name:>10}' + ''.join(f' {value:>9.4f}' for value in measures.values())
    )
  return lines if c.topology.group_size > 1 else []


def _format_bounds(c) -> list[str]:
  dense = c.dense.parameters or c.dense.flops
  lines = [
    'bounds with perfectly spread tables, as many examples a device'
    + (', of sums that travel flat' if c.towers else '')
    + (', with the dense layers, which no time above has' if dense else '')
    + ':',
    f'{"hosts":>8} {"devices":>8} {"capacity":>9} {"memory":>10} '
    f'{"injection":>10} {"bisection":>10} {"compute":>10}  binds',
  ]
  for s in c.sizes:
    lines.append(
      f'{s.hosts:>8,} {s.devices:>8,} {s.capacity:>9.1%} '
      f'{format_time(s.memory):>10} {format_time(s.injection):>10} '
      f'{format_time(s.bisection):>10} {format_time(s.compute):>10}  '
      f'{s.binds}'
    )
  return lines


def _format_tables(c, top: int) -> list[str]:
  order = sorted(
    range(len(c.tables)), key=lambda i: (-c.tables[i].cost.total, i)
  )
  counts = {}
  for table in c.tables:
    counts[table.scheme] = counts.get(table.scheme, 0) + 1
  shown = [c.tables[i] for i in order[:top]]
  width = max(len(table.name) for table in shown) if shown else 5
  lines = [
    'schemes: ' + ', '.join(f'{n:,} {s}' for s, n in sorted(counts.items())),
    f'{"table":{width}} {"rows":>14} {"width":>6} {"bytes":>10} '
    f'{"a piece":>10}  scheme',
  ]
  for table in shown:
    lines.append(
      f'{table.name:{width}} {table.rows:>14,} {table.dim:>6} '
      f'{format_bytes(table.bytes):>10} {format_time(table.cost.total):>10}  '
      f'{table.scheme}{_format_places(table.at)}'
    )
  if rest := [c.tables[i] for i in order[top:]]:
    total = sum(table.bytes for table in rest)
    lines.append(f'and {len(rest):,} more, {format_bytes(total)}')
  return lines


def _format_places(at: tuple[int, ...]) -> str:
  if not at:
    return ''
  some = ', '.join(map(str, at[:MOST_DEVICES]))
  more = f', ... ({len(at)})' if len(at) > MOST_DEVICES else ''
  return f' at {some}{more}'


def format_time(seconds: float) -> str:
  """Seconds as people read them.

  >>> format_time(0.00123)
  '1.230 ms'
  """
  if seconds == 0:
    return '-'
  if seconds >= 1:
    return f'{seconds:,.3f} s'
  if seconds >= 1e-3:
    return f'{1e3 * seconds:.3f} ms'
  return f'{1e6 * seconds:.1f} us'
