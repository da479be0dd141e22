"""What one checkpoint holds, and what a restore of it reads, in words."""

import collections
import json

from genrec_jax.checkpoint import chain, policy, row_files
from genrec_jax.checkpoint.inspect_text import (
  format_columns,
  format_count,
)
from genrec_jax.formatting import format_bytes

_ROWS = f'{row_files.NAME}/'


def describe_files(body: dict, below: str = '') -> tuple[int, int]:
  """How many files, and bytes, a step has below a directory of its own."""
  sizes = [
    n for name, (n, _) in body['files'].items() if name.startswith(below)
  ]
  return len(sizes), sum(sizes)


def describe_rows(body: dict) -> tuple[int, int]:
  """The same of what is written by rows."""
  return describe_files(body, _ROWS)


def delta_fraction(body: dict, needs: list[dict]) -> float | None:
  """S of a delta: how large its rows are beside those of its base."""
  if not needs:
    return None
  return row_files.count_bytes(body) / max(row_files.count_bytes(needs[0]), 1)


def fraction_text(body: dict, needs: list[dict]) -> str:
  fraction_of_base = delta_fraction(body, needs)
  return '-' if fraction_of_base is None else f'{fraction_of_base:.1%}'


def describe(
  directory,
  bodies: dict[int, dict],
  step: int,
  *,
  quick: bool = False,
  contents: bool = False,
) -> list[str]:
  """Lines about a whole step.

  Args:
    directory: where it lies.
    bodies: step -> manifest, of this and all it needs.
    step: which.
    quick: do not look into the files of rows.
    contents: list arrays and host values too.
  """
  body = bodies[step]
  needs = [bodies[parent] for parent, _ in chain.read_parents(body)]
  lines = [_format_title(body), '']
  if 'rows' in body:
    row_counts = (
      None if quick else _count_held_rows(directory / str(step), body)
    )
    lines += [*_format_tables(body, row_counts), '']
  lines += _format_restore([*needs, body])
  if history := _format_history(body, needs):
    lines += ['', *history]
  if contents:
    lines += ['', *_format_contents(body)]
  return lines


def _format_title(body: dict) -> str:
  parts = [f'step {body["step"]}:']
  if entry := body.get('rows'):
    bits = f'{entry["bits"]} bits'
    if entry['bits'] < 32:
      bits += f' ({entry["method"]})'
    parts.append(f'{entry["kind"]}, rows at {bits}, slots {entry["slots"]};')
  parts.append(f'{format_count(len(body["tree"]), "dense array")};')
  parts.append(f'{"with" if body["data"] else "no"} data iterator')
  return ' '.join(parts)


def _count_held_rows(step_dir, body: dict) -> collections.Counter:
  """Rows of each table in the files of this step."""
  rows = collections.Counter()
  for name, table in row_files.of_tables(body, body['rows']['tables']):
    about = row_files.describe_file(step_dir, name, body)
    if about['first_column'] == 0:  # a row may be in pieces
      rows[table] += about['count']
  return rows


def _format_tables(
  body: dict, held_rows: collections.Counter | None
) -> list[str]:
  head = ['<table', '>rows', '>dim', '<dtype', '<optimizer', '<slots']
  rows = []
  for name, table in body['rows']['tables'].items():
    slots = [f'{slot} ({per})' for slot, per in table['slots'].items()]
    slots += [f'{slot} {value}' for slot, value in table['scalars'].items()]
    row = [name, f'{table["rows"]:,}', str(table['dim']), table['dtype']]
    row += [table['optimizer'], ', '.join(slots) or '-']
    if held_rows is not None:
      row += [f'{held_rows[name]:,}', f'{held_rows[name] / table["rows"]:.1%}']
    rows.append(row)
  return format_columns(
    head + ['>held here', '>'][: 2 * (held_rows is not None)], rows
  )


def _format_restore(bodies: list[dict]) -> list[str]:
  """What is read of all steps: each compared as a whole, then loaded."""
  count, size = (sum(x) for x in zip(*map(describe_files, bodies), strict=True))
  last = bodies[-1]
  lines = [
    f'a restore of step {last["step"]} compares {format_count(count, "file")}, '
    f'{format_bytes(size)}, and loads of them'
  ]
  rows = []
  for body in bodies:
    if 'rows' in body:
      files, size = describe_rows(body)
      rows.append([f'  step {body["step"]}', 'rows', files, format_bytes(size)])
  all_files, all_bytes = describe_files(last)
  files, size = describe_rows(last)
  rows.append(
    [f'  step {last["step"]}', 'dense', all_files - files]
    + [format_bytes(all_bytes - size)]
  )
  rows = [[a, b, format_count(n, 'file'), size] for a, b, n, size in rows]
  return lines + format_columns(('<', '<', '>', '>'), rows)[1:]


def _format_history(body: dict, needs: list[dict]) -> list[str]:
  """Sizes of the deltas since the base, and when a new base pays off."""
  if not needs:
    return []
  sizes = [*body['rows']['history'], delta_fraction(body, needs)]
  shown = ', '.join(f'{s:.3f}' for s in sizes[-8:])
  if len(sizes) > 8:
    shown = f'..., {shown}'
  lines = [
    f'{format_count(len(sizes), "delta")} since the base of step '
    f'{needs[0]["step"]}, as fractions of its size: {shown}'
  ]
  if len(needs) == 1:  # each holds what changed since the base
    again, on = 1 + sum(sizes), (len(sizes) + 1) * sizes[-1]
    base = policy.wants_base('intermittent', sizes)
    costs = (
      f'F = 1 + sum = {again:.3f} {"<=" if base else ">"} '
      f'I = {len(sizes) + 1} x {sizes[-1]:.3f} = {on:.3f}'
    )
    lines.append(
      f'by the rule of intermittent the next is a {"base" if base else "delta"}'
      f', since {costs}'
    )
  return lines


def _format_contents(body: dict) -> list[str]:
  rows = [[f'  {name}', what] for name, what in body['tree'].items()]
  return [
    f'arrays of the dense part of step {body["step"]}:',
    *format_columns(('<', '<'), rows)[1:],
    '',
    'host values:',
    *json.dumps(body['host'], indent=2).splitlines(),
  ]
