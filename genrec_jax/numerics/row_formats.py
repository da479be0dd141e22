"""Tables whose rows are read in few bits: the rules of `numerics.rows`.

    (('items', 'tbe_int4'), ('.*', 'tbe_int8'))

The first rule whose regex matches the whole name of a table says how its rows
are packed; a table without one keeps its numbers. What an evaluation computes
with is what a service computes that reads the packed rows of a serving copy:
the same bytes, made and read back. Here they do not stay packed.
"""

import re
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from genrec_jax.config.loading import quote_value
from genrec_jax.numerics import packed_formats, policy
from genrec_jax.numerics.packed_formats import PACKED_FORMATS

_KEY = 'numerics.rows'
_AT_A_TIME = 1 << 16  # rows


def choose_formats(
  rules: Sequence[tuple[str, str]], tables: Sequence[str]
) -> dict[str, str]:
  """Table -> format, of those that have one.

  >>> choose_formats([('item.*', 'tbe_int4')], ['items', 'user'])
  {'items': 'tbe_int4'}

  Args:
    rules: ordered (regex, format).
    tables: names of all tables.

  Raises:
    ValueError: for a rule without a table, or a format that does not exist.
  """
  chosen = {}
  for rule in rules:
    pattern, name = check_rule(rule)
    matched = [table for table in tables if pattern.fullmatch(table)]
    if not any(table not in chosen for table in matched):
      why = 'which matches no table as a whole'
      if matched:
        why = 'and patterns in front of it decide all that it matches'
      raise ValueError(
        f'{_KEY} has the pattern {pattern.pattern!r}, {why}; tables are '
        f'{", ".join(tables) or "none"}'
      )
    chosen = dict.fromkeys(matched, name) | chosen
  return {table: chosen[table] for table in tables if table in chosen}


def check_rule(rule) -> tuple[re.Pattern, str]:
  """The pattern and the format of an entry of `numerics.rows`.

  Raises:
    ValueError: it is no such pair, the pattern is no regex, or there is no such
      format.
  """
  pattern, name = policy.check_rule(rule, _KEY, 'format', 'tbe_int4')
  if not isinstance(name, str) or name not in PACKED_FORMATS:
    raise ValueError(
      f'{_KEY} has the format {quote_value(name)}; formats are '
      + ', '.join(PACKED_FORMATS)
    )
  return pattern, name


def round_table(table: jax.Array, name: str) -> jax.Array:
  """A table as it is after its rows were packed and read back.

  Args:
    table: `[rows, dim]`.
    name: of the format.
  """
  number_format, dim = PACKED_FORMATS[name], table.shape[-1]
  rows = np.array(table).astype(np.float32)
  for start in range(0, len(rows), _AT_A_TIME):
    some = slice(start, start + _AT_A_TIME)
    packed = packed_formats.join_parts(number_format, rows[some])
    rows[some] = packed_formats.split_parts(number_format, packed, dim)
  return jnp.asarray(rows.astype(table.dtype))


def describe_formats(chosen: Mapping[str, str], dims: Mapping[str, int]) -> str:
  """How many bytes a row of each table has, as a line of a log.

  >>> describe_formats({'items': 'tbe_int4'}, {'items': 64})
  'rows of items in tbe_int4 (36 bytes)'
  """
  parts = []
  for table, name in chosen.items():
    size = PACKED_FORMATS[name].bytes_per_row(dims[table])
    parts.append(f'{table} in {name} ({size} bytes)')
  return f'rows of {", ".join(parts)}'
