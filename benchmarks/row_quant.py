"""What quantising the rows of a checkpoint costs, saves and loses.

  python -m benchmarks.row_quant
  python -m benchmarks.row_quant --peer_python PATH  # of a Python with torch

100 thousand rows of 64 through `row_quant.quantize`, packing and checks of the
input among it, in one thread. `numpy` is `adaptive` without XLA. Errors are
mean L2 norms of what a row is off by, over 20 thousand rows of each of three
distributions, as multiples of that of `asymmetric` with as many bits.

`--peer_python` runs torch's quantisers (`benchmarks/peer_row_quant.py`) on the
same rows, in one thread, and counts the rows whose bytes differ.
"""

import os
import pathlib
import subprocess
import tempfile

import numpy as np

from benchmarks import cli, timing
from genrec_jax.numerics import formats, range_search
from genrec_jax.numerics.levels import choose_levels
from genrec_jax.numerics.range_tuning import mean_error
from genrec_jax.numerics.row_quant import dequantize, quantize

DIM, SMOKE_ROWS = 64, 600
DISTRIBUTIONS = {
  'normal': lambda rng, shape: rng.standard_normal(shape),
  't3': lambda rng, shape: rng.standard_t(3, shape),
  'uniform': lambda rng, shape: rng.uniform(-1, 1, shape),
}
COLUMNS = (
  'case', 'core_s', 'min_core_s', 'wall_s', 'min_wall_s', 'back_core_s',
  'row_bytes', 'float32_x', 'normal_x', 't3_x', 'uniform_x', 'peer_core_s',
  'peer_x', 'peer_rows', 'peer_differ', 'load_1min',
)  # fmt: skip


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('row_quant', __doc__)
  parser.add_argument('--rows', type=int, default=100_000, help='(100,000)')
  parser.add_argument('--error_rows', type=int, default=20_000, help='(20,000)')
  parser.add_argument('--repeats', type=int, default=5, help='of each (5)')
  parser.add_argument('--peer_python', default='', help='a Python with torch')
  args = parser.parse_args(argv)
  if args.smoke:
    args.rows, args.error_rows, args.repeats = SMOKE_ROWS, 100, 1
  rows = draw('normal', args.rows)
  samples = {name: draw(name, args.error_rows) for name in DISTRIBUTIONS}
  found = []
  for bits in formats.bit_widths():
    errors = {}
    quantisers = [f for f in formats.FORMATS.values() if f.bits == bits]
    for quantiser in quantisers:
      method = quantiser.method
      row = {
        'case': f'{method}/{bits}',
        'method': method,
        'bits': bits,
        **costs(rows, bits, method, args.repeats),
        'row_bytes': quantiser.bytes_per_row(DIM),
        'float32_x': 4 * DIM / quantiser.bytes_per_row(DIM),
      }
      errors[method] = {
        name: mean_error(
          sample, dequantize(quantize(sample, bits, method), DIM, bits, method)
        )
        for name, sample in samples.items()
      }
      found.append(row | {f'{n}_l2': e for n, e in errors[method].items()})
    for row in found:
      if row['bits'] == bits:
        for name, plain in errors['asymmetric'].items():
          row[f'{name}_x'] = row[f'{name}_l2'] / plain
  found += in_numpy(rows, args.repeats)
  notes = [
    'core_s and wall_s: medians over the calls, min_* the least; back_core_s: '
    'of dequantize. float32_x: how many times less than float32.',
    '*_l2: mean L2 error of a row of 64, *_x: of asymmetric with as many bits.',
    'The processor was shared with other programs (load_1min): core_s suffers '
    'less than wall_s, the least less than the median.',
  ]
  if args.peer_python:
    beside_torch(found, rows, args.peer_python)
    notes.append(
      'peer: torch on one thread; peer_differ of the first peer_rows rows have '
      'other codes, scale or bias (3 bits: other scale or bias).'
    )
  cli.finish(args, 'row_quant', found, COLUMNS, notes)


def draw(name: str, count: int, seed: int = 0) -> np.ndarray:
  rng = np.random.default_rng(seed)
  return DISTRIBUTIONS[name](rng, (count, DIM)).astype(np.float32)


def costs(rows: np.ndarray, bits: int, method: str, repeats: int) -> dict:
  arrays = quantize(rows[: 2 * range_search.BLOCK], bits, method)  # compiles
  calls, back = [], []
  for _ in range(repeats):
    arrays, timer = timing.measure(quantize, rows, bits, method)
    calls.append(timer)
    back.append(timing.measure(dequantize, arrays, DIM, bits, method)[1])
  return {
    'rows': len(rows),
    'dim': DIM,
    'load_1min': os.getloadavg()[0],
    **timing.summary(calls),
    'back_core_s': timing.summary(back)['core_s'],
  }


def in_numpy(rows: np.ndarray, repeats: int) -> list[dict]:
  """Rows of the search without XLA: what remains where JAX has no CPU."""
  few, range_search.FEW = range_search.FEW, len(rows)
  try:
    return [
      {
        'case': f'adaptive/{bits}/numpy',
        'method': 'adaptive, NumPy alone',
        'bits': bits,
        **costs(rows, bits, 'adaptive', repeats),
      }
      for bits in formats.bit_widths()
      if bits <= 4
    ]
  finally:
    range_search.FEW = few


def beside_torch(found: list[dict], rows: np.ndarray, python: str) -> None:
  """Puts torch's cost, and the rows it has otherwise, into our rows."""
  program = pathlib.Path(__file__).with_name('peer_row_quant.py')
  with tempfile.TemporaryDirectory() as place:
    source, target = (f'{place}/{name}' for name in ('rows.npy', 'out.npz'))
    np.save(source, rows)
    try:
      subprocess.run([python, program, source, target], check=True)
    except (OSError, subprocess.CalledProcessError) as e:
      cli.fail(f'--peer_python {python} must be a Python with torch: {e}')
    with np.load(target) as file:
      peer = dict(file)
  for row in found:
    theirs = peer.get(row['case'])
    if theirs is None:
      continue
    bits = row['bits']
    row['peer'] = f'torch {peer["torch"]}'
    row['compared'], row['peer_rows'] = True, len(theirs)
    arrays = quantize(rows[: len(theirs)], bits, row['method'])
    if bits == 3:
      top = np.full(len(theirs), 7, np.float32)
      bias, scale, _ = choose_levels(np, *theirs.T, top, half=True)
      differ = (arrays['scale'] != scale) | (arrays['bias'] != bias)
    else:
      ours = [
        a.reshape(len(a), -1).view(np.uint8)
        for a in (arrays[n] for n in ('codes', 'scale', 'bias'))
      ]
      differ = (np.concatenate(ours, axis=1) != theirs).any(axis=1)
      row['peer_core_s'] = float(peer[f'{row["case"]}/core_s'])
      row['peer_x'] = row['peer_core_s'] / row['core_s']
    row['peer_differ'] = int(differ.sum())


if __name__ == '__main__':
  main()
