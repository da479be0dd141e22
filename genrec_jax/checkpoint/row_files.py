"""Where the rows of a step lie: rows/<table>/<process>-<number>.npz.

Apart from what writes them, so that a reader needs no JAX.
"""

NAME = 'rows'
BASE, DELTA = 'base', 'delta'


def file_name(table: str) -> str:
  """A table's directory: its name, but for what no file may be called."""
  kept = [c if c.isalnum() or c in '-_' else f'%{ord(c):02x}' for c in table]
  return ''.join(kept)


def file_names(body: dict, table: str) -> list[str]:
  """Files of a table in a step: those of its manifest, and no others."""
  start = f'{NAME}/{file_name(table)}/'
  return [name for name in body['files'] if name.startswith(start)]


def size(body: dict) -> int:
  """Bytes of the rows of a step, of its manifest."""
  return sum(
    size
    for name, (size, _) in body['files'].items()
    if name.startswith(f'{NAME}/')
  )
