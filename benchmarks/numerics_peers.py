"""Codes of block formats and of FBGEMM's rows, beside those of other libraries.

  python -m benchmarks.numerics_peers --peer_python PATH --microxcaling DIR

`--peer_python` is a Python with torch, torchao and fbgemm-gpu-cpu, DIR a
checkout of microsoft/microxcaling; `benchmarks/peer_numerics.py` runs there on
the same numbers. A row counts the numbers whose code, scale or value differ
from ours, in all data sets together, and beside them those that are known to,
for the reasons that its `known_as` names:

- log2: microxcaling and FBGEMM's MX4 take the exponent from a logarithm in
  float32, which is one too large for numbers within some units of a power of
  two; so is what they make of the largest float.
- smallest: torchao keeps scales of 2^-127 from being used.
- not finite: a block that holds an infinity; the standard leaves it open.
- half below: microxcaling adds a half in float32, which rounds numbers just
  below a half up.
- subnormal: ours are zeros, as XLA's are.
- zeros: where the least number of a row is a zero, ours is not -0.

With `--golden FILE` what the peers make of a few rows is written to FILE, data
and versions with it; tests/numerics/peers.npz is one, which a test compares
without any peer.
"""

import os
import pathlib
import subprocess
import tempfile

import numpy as np

from benchmarks import cli
from genrec_jax.numerics import blocks
from genrec_jax.numerics.block_formats import BLOCK_FORMATS
from genrec_jax.numerics.fused_rows import FUSED_ROWS
from genrec_jax.numerics.packed_formats import join_parts, split_parts

COLUMNS = (
  'case', 'numbers', 'differ', 'known', 'known_as', 'scales_differ', 'peer',
  'version',
)  # fmt: skip
ROWS, WIDTH = 1024, 128
GOLDEN_ROWS, DATA = 6, 'data'
ROUNDINGS = ('even', 'away', 'down')
MODES = ('floor', 'rceil', 'ceil', 'even')


def draw(rows: int) -> dict[str, np.ndarray]:
  """Ten data sets, of the kinds that quantisers trip over."""
  rng = np.random.default_rng(0)
  shape = rows, WIDTH
  x = rng.normal(size=shape)
  specials = rng.normal(size=shape)
  specials[:, 0] = np.resize(
    [3.4028235e38, 2.0**-126, 2.0**-149, 0, np.inf, 1e38], rows
  )
  return {
    name: np.asarray(values, np.float32)
    for name, values in {
      'normal': x,
      'wide rows': x * 2.0 ** rng.uniform(-40, 40, (rows, 1)),
      'wide': x * 2.0 ** rng.uniform(-12, 12, shape),
      'tiny': x * 2.0 ** rng.integers(-140, -110, (rows, 1)),
      'huge': np.clip(x, -1.9, 1.9) * 2.0 ** rng.integers(100, 127, (rows, 1)),
      'ties': rng.integers(-256, 256, shape) / 64,
      'sparse': x * (rng.random(shape) < 0.1),
      'embeddings': x * 0.05,
      'near powers': 2.0 ** rng.integers(-8, 8, shape)
      * (1 + rng.integers(-2, 3, shape) * 2.0**-24),
      'specials': specials,
    }.items()
  }


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('numerics_peers', __doc__)
  parser.add_argument('--peer_python', default='', help='a Python with torch')
  parser.add_argument('--microxcaling', default='', help='a checkout')
  parser.add_argument('--golden', default='', help='a file to write and end')
  args = parser.parse_args(argv)
  data = draw(16 if args.smoke else GOLDEN_ROWS if args.golden else ROWS)
  found = run_peers(args.peer_python, args.microxcaling, data)
  if args.golden:
    inputs = {f'{DATA}/{name}': x for name, x in data.items()}
    np.savez_compressed(args.golden, **inputs, **found)
    return
  rows = list(compare(found, data))
  notes = [
    f'{len(data)} data sets of {len(data["normal"])} x {WIDTH} numbers: '
    f'{", ".join(data)}.',
    'differ: numbers that are not ours and for which no known reason holds; '
    'known: those for which one does (see the docstring of the benchmark).',
  ]
  cli.finish(args, 'numerics_peers', rows, COLUMNS, notes)


def run_peers(python: str, microxcaling: str, data) -> dict[str, np.ndarray]:
  """What the other libraries make of the data; nothing without a Python."""
  if not python:
    return {}
  with tempfile.TemporaryDirectory() as directory:
    source, target = (
      str(pathlib.Path(directory) / name) for name in ('in.npz', 'out.npz')
    )
    np.savez(source, **data)
    program = pathlib.Path(__file__).parent / 'peer_numerics.py'
    command = [python, str(program), source, target]
    if microxcaling:
      command.append(os.path.abspath(microxcaling))
    subprocess.run(command, check=True, env={**os.environ, 'PYTHONPATH': ''})
    return dict(np.load(target))


class Tally:
  """Counts of one format with one option, over all data sets."""

  def __init__(self, case: str, peer: str, version: str):
    self.row = {
      'case': case, 'numbers': 0, 'differ': 0, 'known': 0, 'known_as': '',
      'scales_differ': 0, 'peer': peer, 'version': version,
    }  # fmt: skip

  def add(self, differ: np.ndarray, reasons: dict[str, np.ndarray]) -> None:
    """Adds numbers that differ, and masks of those that may by a reason."""
    known = np.zeros_like(differ)
    names = set(filter(None, self.row['known_as'].split(', ')))
    for name, mask in reasons.items():
      hits = differ & np.broadcast_to(mask, differ.shape)
      if hits.any():
        names.add(name)
      known |= hits
    self.row['numbers'] += differ.size
    self.row['known'] += int(known.sum())
    self.row['differ'] += int((differ & ~known).sum())
    self.row['known_as'] = ', '.join(sorted(names))


def compare(found, data):
  """Rows of the result."""
  tallies = {}
  for key, value in found.items():
    peer, *rest = key.split('/')
    if peer in ('torch', 'version'):
      continue
    kind, name, *option = rest
    x, version = data[kind], str(found[f'version/{peer}'])
    case = '/'.join([peer, name, *option[: peer != 'fbgemm']])
    tally = tallies.setdefault(case, Tally(case, peer, version))
    if peer == 'microxcaling':
      compare_values(tally, x, BLOCK_FORMATS[name], option[0], value)
    elif peer == 'torchao':
      compare_codes(tally, x, BLOCK_FORMATS[name], *option, value)
    else:
      compare_bytes(tally, x, name, option[0], value)
  for tally in tallies.values():
    yield tally.row


def compare_values(tally, x, number_format, rounding, theirs) -> None:
  """Of microxcaling, which gives numbers."""
  encoded = blocks.encode(x, number_format, rounding=rounding)
  ours = blocks.decode(encoded, number_format)
  same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
  scale = np.repeat(encoded.scales.astype(int) - 127, 32, -1)
  steps = np.abs(x.astype(np.float64)) * 2.0 ** (
    number_format.mantissa_bits - scale - number_format.least_exponent
  )
  largest = per_block(x)
  tally.add(~same, {
    'log2': near_power_of_two(largest) | near_power_of_two(np.abs(x))
    | (largest > 3.4028e38),
    'half below': np.abs(steps - 0.5) < 2.0**-20,
    'not finite': np.isinf(largest),
  })  # fmt: skip


def compare_codes(tally, x, number_format, mode, what, theirs) -> None:
  """Of torchao, which gives scales and codes."""
  encoded = blocks.encode(x, number_format, scale_mode=mode)
  largest = per_block(x)
  reasons = {
    'not finite': np.isinf(largest),
    'smallest': np.repeat(encoded.scales == 0, 32, -1),
  }
  if what == 'scales':
    differ = encoded.scales != theirs.reshape(encoded.scales.shape)
    known = reasons['not finite'][:, ::32] | reasons['smallest'][:, ::32]
    tally.row['scales_differ'] += int((differ & ~known).sum())
    return
  codes = encoded.codes
  if theirs.shape != codes.shape:  # two in a byte
    theirs = np.stack([theirs & 15, theirs >> 4], -1).reshape(codes.shape)
  tally.add(codes != theirs, reasons)


def compare_bytes(tally, x, name, what, theirs) -> None:
  """Of FBGEMM, which gives rows of bytes, and numbers of them."""
  name, _, gradients = name.partition(' ')
  number_format = FUSED_ROWS[name]
  if gradients:
    number_format = number_format.gradients
  ours = join_parts(number_format, x)
  reasons = {
    'not finite': ~np.isfinite(x).all(-1, keepdims=True),
    'subnormal': ((np.abs(x) < 2.0**-126) & (x != 0)).any(-1, keepdims=True)
    | (np.ptp(np.where(np.isfinite(x), x, 0), -1)[:, None] < 2.0**-117),
    'zeros': (x.min(-1) == 0)[:, None] & np.signbit(x).any(-1, keepdims=True),
  }
  if what == 'back':
    back = split_parts(number_format, ours, x.shape[-1])
    same = (back == theirs) | (np.isnan(back) & np.isnan(theirs))
    tally.add(~same, reasons)
    return
  if name == 'fbgemm_mx4':
    largest = per_block(x)
    near = near_power_of_two(largest) | (largest > 3.4e38)
    reasons['log2'] = np.repeat(near[:, ::32], 17, -1)
  tally.add(ours != theirs.reshape(ours.shape), reasons)


def per_block(x: np.ndarray) -> np.ndarray:
  """The largest magnitude of each number's block of 32."""
  return np.repeat(np.abs(x).reshape(len(x), -1, 32).max(-1), 32, -1)


def near_power_of_two(x: np.ndarray) -> np.ndarray:
  """Within 44 units of the last place below one."""
  return (np.abs(x).view(np.int32) & 0x7FFFFF) >= 0x800000 - 44


if __name__ == '__main__':
  main()
