"""How fast numbers become codes of few bits: Gelem/s beside a copy.

  python -m benchmarks.quantiser_speed
  python -m benchmarks.quantiser_speed --peer_python PATH  # with fbgemm-gpu-cpu

A matrix of 4,096 x 4,096 float32 is encoded in a compiled program, along its
last axis: `encode` writes codes and scales, `there and back` the rounded
numbers; `copy` doubles every number, which reads and writes as many bytes as
anything must. The rows of tables (64 numbers) are encoded and decoded as
`packed_formats` has them, by a compiled program and by NumPy, and with
`--peer_python` by FBGEMM's operators for CPUs, on as many threads.

Times are medians of calls in one run; `copy_x` is how many copies one takes.
"""

import functools
import pathlib
import subprocess
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import cli
from genrec_jax.numerics import block_products, blocks
from genrec_jax.numerics.block_formats import BLOCK_FORMATS
from genrec_jax.numerics.packed_formats import PACKED_FORMATS
from genrec_jax.parallel import codecs

COLUMNS = (
  'case', 'ms', 'gelem_s', 'copy_x', 'back_ms', 'peer_ms', 'peer_back_ms',
  'peer_x', 'version',
)  # fmt: skip
SIZE, ROWS, WIDTH = 4096, 1 << 18, 64
TABLE_ROWS = (
  'fbgemm_int8', 'fbgemm_int4', 'fbgemm_int2', 'mx9', 'mx6', 'mx4',
  'mxfp6_e3m2', 'mxfp4_e2m1',
)  # fmt: skip


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('quantiser_speed', __doc__)
  parser.add_argument('--repeats', type=int, default=9, help='of a call (9)')
  parser.add_argument('--peer_python', default='', help='a Python with FBGEMM')
  args = parser.parse_args(argv)
  size, count = (64, 256) if args.smoke else (SIZE, ROWS)
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(size, size)).astype(np.float32))
  time_call = functools.partial(measure, repeats=args.repeats)
  copy = time_call(jax.jit(lambda x: x * 2), x)
  rows = [describe('copy', copy, x.size, copy)]
  shown = ('mx6',) if args.smoke else tuple(BLOCK_FORMATS)
  for name in shown:
    f = BLOCK_FORMATS[name]
    encode = jax.jit(lambda x, f=f: blocks.encode(x, f, xp=jnp))
    both = jax.jit(lambda x, f=f: block_products.round_to_blocks(x, f))
    took = time_call(encode, x)
    rows.append(describe(f'{name}, encode', took, x.size, copy))
    took = time_call(both, x)
    rows.append(describe(f'{name}, there and back', took, x.size, copy))
  f = BLOCK_FORMATS['mx6']
  across = jax.jit(lambda x: block_products.round_to_blocks(x, f, 0))
  took = time_call(across, x)
  rows.append(describe('mx6, there and back, axis 0', took, x.size, copy))
  table = rng.normal(size=(count, WIDTH)).astype(np.float32)
  rows += measure_rows(table, time_call)
  if args.peer_python:
    add_peer(rows, table, args)
  notes = [
    f'{size} x {size} numbers; tables: {count:,} rows of {WIDTH}.',
    'gelem_s: 10^9 numbers a second; peer_x: of FBGEMM in times of ours.',
  ]
  cli.finish(args, 'quantiser_speed', rows, COLUMNS, notes)


def measure(function, *args, repeats: int) -> float:
  """Seconds of a call, the median, after one that compiles."""
  jax.block_until_ready(function(*args))
  seconds = []
  for _ in range(repeats):
    begin = time.perf_counter()
    jax.block_until_ready(function(*args))
    seconds.append(time.perf_counter() - begin)
  return float(np.median(seconds))


def describe(case: str, seconds: float, count: int, copy: float) -> dict:
  return {
    'case': case,
    'ms': 1e3 * seconds,
    'gelem_s': count / seconds / 1e9,
    'copy_x': seconds / copy,
  }


def measure_rows(table: np.ndarray, time_call) -> list[dict]:
  """Rows of tables, by programs and by NumPy."""
  rows = []
  on_device = jnp.asarray(table)
  copy = time_call(jax.jit(lambda x: x * 2), on_device)
  for name in TABLE_ROWS:
    codec = codecs.Codec(PACKED_FORMATS[name])
    encode = jax.jit(codec.encode)
    decode = jax.jit(functools.partial(codec.decode, columns=WIDTH))
    data = encode(on_device)
    row = describe(
      f'rows in {name}, program', time_call(encode, on_device), table.size, copy
    )
    row['back_ms'] = 1e3 * time_call(decode, data)
    rows.append(row)
    written = PACKED_FORMATS[name]
    row = describe(
      f'rows in {name}, NumPy',
      time_call(written.encode, table),
      table.size,
      copy,
    )
    parts = written.encode(table)
    back = functools.partial(written.decode, columns=WIDTH)
    row['back_ms'] = 1e3 * time_call(back, parts)
    rows.append(row)
  return rows


def add_peer(rows: list[dict], table: np.ndarray, args) -> None:
  """What FBGEMM's operators take for the same rows."""
  with tempfile.TemporaryDirectory() as directory:
    source, target = (
      str(pathlib.Path(directory) / name) for name in ('in.npy', 'out.npz')
    )
    np.save(source, table)
    program = pathlib.Path(__file__).parent / 'peer_fused_rows.py'
    subprocess.run(
      [args.peer_python, str(program), source, target, str(args.repeats)],
      check=True,
    )
    found = dict(np.load(target))
  for row in rows:
    name, _, how = row['case'].removeprefix('rows in ').partition(', ')
    if how == 'program' and f'{name}/s' in found:
      row['peer_ms'] = 1e3 * float(found[f'{name}/s'])
      row['peer_back_ms'] = 1e3 * float(found[f'{name}/back_s'])
      row['peer_x'] = row['peer_ms'] / row['ms']
      row['version'] = str(found['version'])


if __name__ == '__main__':
  main()
