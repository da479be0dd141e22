"""What formats of few bits keep of random vectors: their QSNR, and the front.

  python -m benchmarks.qsnr

QSNR is the power of the numbers over that of the error, in dB, the mean over
vectors: 2,000 of 1,024 normal numbers, each vector of a deviation that is the
magnitude of a normal number (arXiv 2302.08007 takes more than 10,000 such
vectors; so does --vectors=10000). `least_margin_db` is by how much the worst of
12,800 adversarial blocks stays above the bound of that paper's theorem.

The rows `sweep/...` are formats of the same kind: blocks of k1 numbers with an
exponent of 8 bits, groups of k2 with one of d2 bits, magnitudes of m bits.
`front` marks those that no other beats with as many bits or fewer, and
`to_front_db` is how far below the front a row is. docs/qsnr.svg shows them.
"""

import itertools
import math
from collections.abc import Mapping

import numpy as np

from benchmarks import cli
from genrec_jax.numerics import blocks
from genrec_jax.numerics.block_formats import BLOCK_FORMATS, BlockFormat
from genrec_jax.numerics.formats import FORMATS
from genrec_jax.numerics.integer_formats import (
  INTEGER_FORMATS,
  round_to_integers,
)
from genrec_jax.report import chart_files, charts
from genrec_jax.report.axes import linear_axis

COLUMNS = (
  'case', 'mean_bits', 'qsnr_db', 'spread_db', 'published_db', 'bound_db',
  'least_margin_db', 'front', 'to_front_db',
)  # fmt: skip
LENGTH = 1024
# Of the paper, and where it has none of a measurement with 2,000 vectors.
PUBLISHED = {'mx9': 46.6, 'mx6': 28.4, 'mx4': 15.8}
SWEEP = dict(
  k1=(8, 16, 32, 64, 128), k2=(1, 2, 4, 8, 16), d2=(0, 1, 2), m=range(1, 9)
)
RCEIL = ('mxfp8_e4m3', 'mxfp8_e5m2', 'mxfp6_e3m2', 'mxfp4_e2m1')


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('qsnr', __doc__)
  parser.add_argument('--vectors', type=int, default=2000, help='(2000)')
  args = parser.parse_args(argv)
  vectors = draw_vectors(32 if args.smoke else args.vectors)
  rows = measure_formats(vectors) + measure_sweep(
    vectors[: 16 if args.smoke else 400]
  )
  mark_front(rows)
  notes = [
    f'{len(vectors):,} vectors of {LENGTH:,}; the sweep on the first '
    f'{min(400, len(vectors))}.',
    'spread_db: standard deviation over vectors.',
    'published_db: of the paper, by its own draw of vectors.',
  ]
  cli.finish(args, 'qsnr', rows, COLUMNS, notes)


def draw_vectors(count: int) -> np.ndarray:
  rng = np.random.default_rng(0)
  deviations = np.abs(rng.normal(size=(count, 1)))
  return (deviations * rng.normal(size=(count, LENGTH))).astype(np.float32)


def measure_formats(vectors: np.ndarray) -> list[dict]:
  """The formats of the library."""
  rows = []
  for name, f in BLOCK_FORMATS.items():
    for mode in ('', 'rceil') if name in RCEIL else ('',):
      found = round_all(vectors, f, mode)
      row = {
        'case': f'{name}/{mode}' if mode else name,
        'mean_bits': f.mean_bits,
        **summarise(vectors, found),
      }
      if name in PUBLISHED:
        row['published_db'] = PUBLISHED[name]
      if not f.exponent_bits and not mode:
        row |= measure_bound(f)
      rows.append(row)
  for name, f in INTEGER_FORMATS.items():
    rows.append({
      'case': f'{name}, a scale for {LENGTH}',
      'mean_bits': f.mean_bits(LENGTH),
      **summarise(vectors, round_to_integers(vectors, f)),
    })  # fmt: skip
  for name in (
    'bfloat16', 'fp8', 'int8', 'fbgemm_int4', 'fbgemm_int2', 'fbgemm_mx4',
  ):  # fmt: skip
    written = FORMATS[name]
    back = written.decode(written.encode(vectors), LENGTH)
    rows.append({
      'case': f'{name}, by rows of {LENGTH}',
      'mean_bits': 8 * written.bytes_per_row(LENGTH) / LENGTH,
      **summarise(vectors, back),
    })  # fmt: skip
  return rows


def round_all(x: np.ndarray, f: BlockFormat, mode: str = '') -> np.ndarray:
  return blocks.decode(blocks.encode(x, f, scale_mode=mode), f)


def summarise(x: np.ndarray, found: np.ndarray) -> dict:
  each = find_qsnr(x, found)
  return {'qsnr_db': float(each.mean()), 'spread_db': float(each.std())}


def find_qsnr(x: np.ndarray, found: np.ndarray) -> np.ndarray:
  """QSNR of each vector, in dB.

  >>> find_qsnr(np.ones((1, 4)), np.full((1, 4), 0.9)).round(6).tolist()
  [20.0]
  """
  wide = x.astype(np.float64)
  error = ((found - wide) ** 2).sum(-1)
  with np.errstate(divide='ignore'):
    return 10 * np.log10((wide**2).sum(-1) / error)


def find_bound(m: int, d2: int, k1: int, k2: int) -> float:
  """What no vector, however it is distributed, is below, in dB.

  >>> [round(find_bound(m, 1, 16, 2), 2) for m in (7, 4, 2)]
  [34.74, 16.68, 4.64]
  """
  beta = 2**d2 - 1
  power = 2.0 ** (2 * beta)
  return 6.02 * m + 10 * math.log10(power / (k1 + (power - 1) * k2))


def measure_bound(f: BlockFormat) -> dict:
  """The bound, and by how much the worst of nasty blocks stays above it."""
  group = f.group or 1
  bound = find_bound(f.mantissa_bits + 1, f.shift_bits, f.block, group)
  rng = np.random.default_rng(1)
  step = 2.0**-f.mantissa_bits
  parts = []
  for _ in range(64):
    x = np.zeros((200, f.block))
    x[:, 0] = 1 + rng.random(200) * rng.choice([0, 1], 200)
    # Half steps, of the block and of finer groups, a hair to either side.
    halves = (rng.integers(0, 8, x.shape) + 0.5) * step
    halves /= rng.choice([1, 2], x.shape)
    halves *= 1 + rng.choice([-1, 0, 1], x.shape) * 2.0**-20
    keep = rng.random(x.shape) < rng.random()
    x[:, 1:] = (halves * keep * rng.choice([-1, 1], x.shape))[:, 1:]
    parts.append(x * 2.0 ** rng.integers(-60, 60, (200, 1)))
  x = np.concatenate(parts).astype(np.float32)
  least = find_qsnr(x, round_all(x, f)).min()
  return {'bound_db': bound, 'least_margin_db': float(least - bound)}


def measure_sweep(vectors: np.ndarray) -> list[dict]:
  """All formats of two levels within the bounds of SWEEP."""
  rows = []
  for k1, k2, d2, m in itertools.product(*SWEEP.values()):
    # Without a second level there are no groups; every block is one.
    if (d2 == 0 and k2 != 1) or k2 > k1:
      continue
    found = round_two_levels(vectors, k1, k2, d2, m)
    rows.append({
      'case': f'sweep/k1={k1},k2={k2},d2={d2},m={m}',
      'mean_bits': m + 1 + 8 / k1 + d2 / k2,
      **summarise(vectors, found),
    })  # fmt: skip
  return rows


def round_two_levels(x: np.ndarray, k1: int, k2: int, d2: int, m: int):
  """The definition in floats of 64 bits; also m = 8, which has no byte.

  >>> x = np.float32([[1, 0.3, 0.01, -0.02]])
  >>> round_two_levels(x, 4, 2, 1, 2).tolist()
  [[1.0, 0.5, 0.0, -0.0]]
  """
  split = x.astype(np.float64).reshape(len(x), -1, k1 // k2, k2)
  magnitude = np.abs(split)
  exponent = np.frexp(magnitude.max((-1, -2), keepdims=True))[1] - 1
  own = np.frexp(magnitude.max(-1, keepdims=True))[1] - 1
  shift = np.clip(exponent - own, 0, 2**d2 - 1)
  step = 2.0 ** (exponent - shift - m + 1)
  most = 2**m - 1
  return (np.clip(np.rint(split / step), -most, most) * step).reshape(x.shape)


def mark_front(rows: list[dict]) -> None:
  """Says which rows no other beats, and how far the others are below them."""
  for row in rows:
    best = max(
      other['qsnr_db']
      for other in rows
      if other['mean_bits'] <= row['mean_bits']
    )
    row['to_front_db'] = best - row['qsnr_db']
    row['front'] = row['to_front_db'] == 0


def draw(rows: list[Mapping]) -> str:
  """The picture of docs/: QSNR against bits, with the front."""
  series = [
    charts.Series(
      'two levels, swept',
      scatter(rows, lambda r: 'sweep' in r['case']),
      'muted',
    )
  ]
  front = sorted((r['mean_bits'], r['qsnr_db']) for r in rows if r['front'])
  series.append(charts.Series('front', front, 'ink', 'dashes'))
  kinds = {
    'MX9, MX6, MX4': lambda r: r['case'] in ('mx9', 'mx6', 'mx4'),
    'MXFP8, 6, 4': lambda r: r['case'].startswith('mxfp'),
    'MXINT8, MSFP': lambda r: r['case'].startswith(('mxint', 'msfp')),
    'INT8, INT4, VSQ': lambda r: 'a scale for' in r['case'],
    'rows of the exchange': lambda r: 'by rows' in r['case'],
  }
  for i, (name, choose) in enumerate(kinds.items()):
    points = scatter(rows, choose)
    # Whiskers of no length: large dots.
    series.append(
      charts.Series(
        name,
        points,
        chart_files.pick_color(i),
        band=[(x, y, y) for x, y in points if y == y],
        whiskers=True,
      )
    )
  return chart_files.draw_file([
    charts.Chart(
      'QSNR of normal numbers, dB',
      linear_axis(2, 10, 'bits of a number, scales included'),
      linear_axis(0, 55),
      series,
    )
  ])  # fmt: skip


def scatter(rows, choose) -> list[tuple[float, float]]:
  """Points that no line joins."""
  points = []
  for row in sorted(rows, key=lambda row: row['mean_bits']):
    if choose(row):
      x = row['mean_bits']
      points += [(x, row['qsnr_db']), (x, float('nan'))]
  return points


if __name__ == '__main__':
  main()
