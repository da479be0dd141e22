"""Records of a server, as a text of Python's: good ones, reading, an oracle."""

import dataclasses

from benchmarks import robustness_oracles as oracles
from benchmarks.robustness_layouts import list_cells
from benchmarks.robustness_oracles import Refusal
from genrec_jax.data.ranking import raw

_NAMES = ('user', 'price', 'tags')


def make_records(rng):
  def value():
    return rng.choice(
      [1, 2.5, 'x', '', None, True, -(2**70), 'ü', float('nan')]
    )

  return repr(
    [
      {'user': value(), 'price': value(), 'tags': [value() for _ in range(2)]}
      for _ in range(rng.randrange(1, 5))
    ]
  ).encode()


def _parse_records(content: bytes) -> list:
  """The records, odd ones too; `deep` stands for a list of many levels."""
  deep = []
  for _ in range(10**5):
    deep = [deep]
  names = dict(nan=float('nan'), deep=deep, huge=10**5000, __builtins__={})
  try:
    records = eval(content.decode('latin-1'), names)  # noqa: S307
  except Exception as e:
    raise Refusal(str(e)) from None
  if not isinstance(records, list):
    raise Refusal('no list')
  if not all(isinstance(record, dict) for record in records):
    raise Refusal('no records')
  return records


def read_records(path, rows):
  try:
    records = _parse_records(path.read_bytes())
  except Refusal as e:  # which is Python's matter, not the reader's
    raise ValueError(f'{path}: {str(e)[:200]}') from None
  try:
    chunk = raw.from_records(records, _NAMES)
  except ValueError as e:
    if not str(e).startswith('row '):
      raise
    raise ValueError(f'{path}: {e}') from None
  columns = []
  for name in _NAMES:
    is_list = isinstance(chunk.columns[name], raw.ListColumn)
    cells = list_cells(dataclasses.replace(chunk), name) if is_list else None
    columns.append(cells or list(chunk.columns[name]))
  return list(zip(*columns, strict=True))


def expect_records(content):
  records = _parse_records(content)
  if any(name not in record for record in records for name in _NAMES):
    raise Refusal('names')
  columns = []
  for name in _NAMES:
    try:
      column = oracles.record_column([record[name] for record in records])
    except ValueError as e:  # numbers that Python does not write
      raise Refusal(str(e)) from None
    columns.append([tuple(x) if isinstance(x, list) else x for x in column])
  return list(zip(*columns, strict=True))
