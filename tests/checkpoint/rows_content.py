"""Checkpoints by rows as a function of the step, written without Orbax."""

import jax.numpy as jnp
import numpy as np

from genrec_jax.checkpoint import chain, manifest, rows, snapshot
from genrec_jax.checkpoint.chunks import RowEncoding
from genrec_jax.embedding import dirty_rows as dirty_lib
from genrec_jax.embedding.layout import Piece, Stack

ROWS = {'item': 90, 'user id': 31}
WIDTH = 17  # of a piece; k-means in 4 bits wants more than 16
_CHUNK_ROWS = 32


def stacks(dtype='float32'):
  """One array: `item` in two pieces of its columns, then `user id`."""
  pieces, offset = [], 0
  for table, first_column in (('item', 0), ('item', WIDTH), ('user id', 0)):
    rows_of = ROWS[table]
    pieces.append(
      Piece(
        table=table,
        stack='s',
        spread='one',
        owners=(0,),
        offset=offset,
        depth=rows_of,
        first_column=first_column,
        columns=WIDTH,
        rows=rows_of,
        split='block',
      )
    )
    offset += rows_of
  return {'s': Stack('s', offset + 1, 1, WIDTH, dtype, 'some', tuple(pieces))}


def state(step, dtype='float32'):
  """(arrays, slots, marks); some items change from a step to the next."""
  items = ROWS['item']
  depth = stacks()['s'].depth
  rng = np.random.default_rng(0)
  values = rng.normal(size=(2, depth, WIDTH))
  sums, changed = rng.uniform(size=depth), np.zeros(depth, bool)
  sums[items : 2 * items] = sums[:items]  # of a row, not of a piece of it
  for s in range(1, step + 1):
    rng = np.random.default_rng(s)
    hit = np.flatnonzero(rng.uniform(size=items) < 0.1)
    hit = np.concatenate([hit, hit + items])
    changed[hit] = True
    values[:, hit] += 0.1 * rng.normal(size=(2, len(hit), WIDTH))
    sums[hit] += 0.5
  values[:, -1] = sums[-1] = 0  # the spare row
  slots = {
    'sum': jnp.asarray(sums, jnp.float32),
    'mean': jnp.asarray(values[1], jnp.float32),
    'count': jnp.int32(step),
  }
  dirty_rows = jnp.asarray(changed * dirty_lib.SINCE_BASE, jnp.uint8)
  return {'s': jnp.asarray(values[0], dtype)}, {'s': slots}, {'s': dirty_rows}


def write(
  directory, step, parents=(), encoding=None, dtype='float32', history=()
):
  """Writes a base, or a delta upon other steps."""
  encoding = encoding or RowEncoding()
  arrays, slots, dirty_rows = state(step, dtype)
  taken = snapshot.take_snapshot(
    stacks(dtype),
    arrays,
    slots,
    dirty_rows if parents else None,
    dirty_lib.SINCE_BASE,
    chunk_rows=_CHUNK_ROWS,
  )
  path = directory / str(step)
  (path / 'rows').mkdir(parents=True)
  rows.write_chunks(path / 'rows', taken.chunks, encoding)
  (path / 'state').mkdir()
  (path / 'state' / 'dense').write_bytes(b'what Orbax has written')
  about = encoding.describe() | {
    'kind': 'delta' if parents else 'base',
    'parents': [[p, chain.read_identity(directory / str(p))] for p in parents],
    'history': list(history),
    'tables': rows.describe(stacks(dtype), slots),
  }
  extra = {'tree': {'w': 'float32[3]'}, 'host': {'x': 0.5}, 'data': False}
  manifest.write(path, step, time=1.0e9 + step, rows=about, **extra)


def load(directory, step, dtype='float32'):
  """As the library restores it."""
  arrays, slots, _ = state(0, dtype)
  bodies = chain.verify_chain(directory, step)
  return rows.load_rows(directory, bodies, stacks(dtype), arrays, slots)
