"""How long should the GPU kernels take, by the instructions of their loops?

  pip install 'genrec_jax[triton]' && python -m benchmarks.gpu_roofline
  python -m benchmarks.gpu_roofline --measured

Compiles each attention kernel for an H100 with Triton alone, disassembles it,
and counts the clocks that the batch of `benchmarks.gpu.kernels` (8,192 tokens
at most, half of the longest in the mean, 512 numbers a token, bfloat16) takes
on each unit of a multiprocessor: its schedulers (`issue`), the units of
multiplications and additions (`fma`), of whole numbers and comparisons (`alu`),
of special functions (`xu`), of shared memory and loads (`lsu`), of matrices
(`tensor`). How often a branch is taken is counted from the batch's times. No
GPU is there and none is timed.

The prediction is sqrt(u^2 + s^2) at a clock of 1.6 GHz. u is the busiest unit,
the memory's at 1.2 times its clocks. s is what waits: the clocks of the
matrices and twice those of the schedulers or of special functions, whichever is
more, divided by the groups of four warps that a multiprocessor holds; and 300
clocks a turn of the loop, divided by the programs that it holds. These four
numbers were chosen to meet times that were measured on an H200; `--measured`
compiles the block sizes that are timed in `h200/gpu_tune.json` and shows both.
What is timed there are the kernels of 41548525: run it with those, and name
them by `--kernels-of COMMIT`. Not in it: the second cache, conflicts of banks,
and that tiles on the diagonal meet more buckets than others.

Beside the kernel of the keys' gradients, `added_gb` is what it would have to
add up in memory, by atomic additions of float32, to compute the gradients of
the queries, too.

  python -m benchmarks.gpu_roofline --lines forward

prints which lines of the source the clocks of a kernel's loop come from.
"""

import collections
import functools
import json
import math
import pathlib

import numpy as np

from benchmarks import aot_compile_gpu, cli, result, sass
from benchmarks.gpu import measure
from pallas_kernels.hstu_attention import blocks, gpu_plan, shapes
from pallas_kernels.hstu_attention.reference import BUCKET_WIDTH
from pallas_kernels.hstu_attention.spec import Spec

LONGEST = 8_192
MULTIPROCESSORS = 132
CLOCK = 1.6e9
MEMORY = 1.2
OF_INSTRUCTION = 2.0
OF_TURN = 300.0
WIDTHS = (64, 128, 256)
MARGIN = 1e-4  # as triton_bias_tiles has it
KIND = 'measured sizes'  # of devices, as `blocks` calls it
COLUMNS = (
  'case', 'sizes', 'registers', 'spilled_bytes', 'shared_bytes', 'blocks_an_sm',
  *sass.UNITS, 'predicted_ms', 'measured_ms', 'x', 'added_gb',
)  # fmt: skip


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('gpu_roofline', __doc__)
  parser.add_argument(
    '--measured', action='store_true', help='the sizes that were timed'
  )
  parser.add_argument('--only', default='', help='cases that contain this')
  parser.add_argument('--kernels-of', default='', help='a commit, for the rows')
  parser.add_argument(
    '--lines', default='', help='a kernel; prints its lines, writes nothing'
  )
  args = parser.parse_args(argv)
  aot_compile_gpu.prepare_compilers(False)
  if args.lines:
    for width in WIDTHS:
      show_lines(args.lines, width)
    return
  rows = []
  for case in _measured_cases() if args.measured else _cases():
    name = f'{case["bias"]}/{case["width"]}/{case["kernel"]}'
    if args.measured:
      name += '/' + '-'.join(map(str, case['sizes']))
    if args.kernels_of:
      name += f'/{args.kernels_of}'
    if args.only not in name or (args.smoke and rows):
      continue
    rows.append({'case': name, **_row(args, case)})
    print(cli.table(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
  if compared := [row['x'] for row in rows if 'x' in row]:
    rows.append(_agreement(args, compared))
  cli.finish(args, 'gpu_roofline', rows, COLUMNS, NOTES)


def _row(args, case) -> dict:
  what = {name: case[name] for name in ('bias', 'width', 'kernel')}
  row = dict(
    **what,
    kind='timed sizes' if args.measured else 'tuned sizes',
    kernels_of=args.kernels_of or 'this version',
    **predict(**what, sizes=case.get('sizes', ())),
  )
  if ms := case.get('ms'):
    row |= dict(measured_ms=ms, fastest=case['fastest'])
    row['x'] = row['predicted_ms'] / ms
  return row


def _agreement(args, ratios: list[float]) -> dict:
  errors = np.abs(np.log(ratios))
  return {
    'case': '/'.join(filter(None, ('agreement', args.only, args.kernels_of))),
    'kind': 'agreement',
    'kernels_of': args.kernels_of or 'this version',
    'times': len(ratios),
    'within_30': float(np.mean(errors < math.log(1.3))),
    'x': float(np.exp(np.median(errors))),
  }


NOTES = [
  'Units: millions of clocks of a multiprocessor, for the whole batch. Nothing '
  'was timed here; measured_ms is from an H200.',
]


def _cases():
  for bias in ('none', 'both'):
    for width in WIDTHS:
      for kernel in gpu_plan.KERNELS[: 3 if bias == 'none' else 4]:
        yield dict(bias=bias, width=width, kernel=kernel)


def _measured_cases():
  """The kernels and sizes that have a time on an H200."""
  path = pathlib.Path(result.RESULTS) / 'h200/gpu_tune.json'
  cases = []
  for row in json.loads(path.read_text())['rows']:
    bias, width, kernel, _ = row['case'].split()
    what = dict(bias=bias, width=int(width), kernel=kernel)
    if row.get('ms'):
      cases.append(what | dict(sizes=tuple(row['sizes']), ms=row['ms']))
  for case in cases:
    same = [
      other['ms']
      for other in cases
      if all(other[n] == case[n] for n in ('bias', 'width', 'kernel'))
    ]
    case['fastest'] = case['ms'] == min(same)
  return cases


def predict(bias: str, width: int, kernel: str, sizes: tuple = ()) -> dict:
  """Resources, clocks of the units and the predicted milliseconds.

  Args:
    bias: 'none' or 'both'.
    width: of a head.
    kernel: name of the kernel.
    sizes: block sizes, warps, stages and heads; the tuned ones if empty.
  """
  launch, compiled = _compile(bias, width, kernel, sizes)
  found = aot_compile_gpu.resources(compiled)
  shared = compiled.metadata.shared
  held = aot_compile_gpu.count_blocks(
    found['registers'], launch.warps, shared, 'sm_90'
  )
  clocks, turns = _count(launch, compiled)
  ms = combine(clocks, turns, launch.warps, held)
  added = {}
  if kernel == 'backward_keys':
    block = launch.constants.block_q * launch.constants.group * width
    added['added_gb'] = 4 * block * sum(_turns(launch)) / 1e9
  return {
    'sizes': '-'.join(map(str, _sizes(launch))),
    **{name: found.get(name, 0) for name in ('registers', 'spilled_bytes')},
    'shared_bytes': shared,
    'blocks_an_sm': held,
    **{u: clocks[u] / 1e6 for u in sass.UNITS},
    'predicted_ms': ms,
    **added,
  }


def combine(clocks: dict, turns: float, warps: int, held: int) -> float:
  """The predicted milliseconds, as the head of this file has it.

  >>> ours = dict(issue=8e5, fma=0, alu=0, xu=1.6e6, lsu=1e6, tensor=1.2e6)
  >>> round(combine(ours, turns=0, warps=4, held=3), 3)
  1.357

  Args:
    clocks: of each unit of a multiprocessor.
    turns: of the loops of its programs.
    warps: of a program.
    held: programs that it holds at once.
  """
  groups = warps / 4
  unit = max(clocks[u] * (MEMORY if u == 'lsu' else 1.0) for u in sass.UNITS)
  alone = clocks['tensor']
  alone += OF_INSTRUCTION * max(clocks['issue'], clocks['xu'])
  alone = (alone + OF_TURN * turns * groups) / (held * groups)
  return math.hypot(unit, alone) / CLOCK * 1e3


def _sizes(launch):
  s = launch.constants
  return s.block_q, s.block_k, launch.warps, launch.stages, s.group


def show_lines(kernel: str, width: int, bias: str = 'both') -> None:
  """Prints the lines of the source that take most of a kernel's loop."""
  launch, compiled = _compile(bias, width, kernel, ())
  loop = _loops(compiled)[0]
  rates = _rates(launch)
  lines = sass.count_by_line(loop, rates, launch.warps)
  print(f'{kernel}, {bias}, heads of {width}: clocks a turn of the loop')
  rows = []
  for place, clocks in sorted(
    lines.items(), key=lambda item: -max(item[1].values())
  )[:25]:
    file, line = place or ('', 0)
    path = pathlib.Path(file)
    text = path.read_text().splitlines()[line - 1].strip() if file else '–'
    rows.append({'line': f'{path.name}:{line}', **clocks, 'source': text[:60]})
  print(cli.table(rows, ('line', *sass.UNITS, 'source')))


@functools.lru_cache(maxsize=1)
def _batch():
  """Lengths of the batch, and the times of its keys and queries."""
  sizes = measure.lengths(LONGEST, 0.5)
  shape = shapes.Shape(len(sizes), LONGEST, 1, 1, 1, extra_positions=0)
  inputs = shapes.inputs(shape, sizes=sizes)
  return sizes, np.asarray(inputs['time']), np.asarray(inputs['query_time'])


def _compile(bias, width, kernel, sizes):
  lengths, _, _ = _batch()
  tokens = int(lengths.sum())
  both = bias == 'both'
  call = gpu_plan.CallShapes(
    batch=len(lengths),
    queries=tokens,
    keys=tokens,
    heads=measure.DIM // width,
    dqk=width,
    dv=width,
    dtype='bfloat16',
    positions=2 * LONGEST - 1 if both else 0,
    buckets=shapes.TIME_BUCKETS if both else 0,
    tail=False,
    targets=False,
  )
  kind = 'NVIDIA H100'
  if sizes:
    q, k, warps, stages, group = (*sizes, 1)[:5]
    entry = dict(block_q=q, block_k=k, warps=warps, stages=stages, group=group)
    blocks.TABLE['triton', KIND] = {width: {kernel: entry}}
    kind = KIND
  spec = Spec(LONGEST, LONGEST, 'silu', 1.0, float(LONGEST), 0, None, 0, 0.0)
  launch = gpu_plan.launch(kernel, spec, call, kind, True, '9.0')
  return launch, aot_compile_gpu.compile_launch(launch, 'sm_90', 'bfloat16')


def _loops(compiled):
  return sass.find_loops(*sass.read(sass.disassemble(compiled.asm['cubin'])))


def _count(launch, compiled) -> tuple[dict, float]:
  """Clocks of a multiprocessor by unit, and turns of its loops."""
  rates = _rates(launch)
  counts = [sass.count(x, rates, launch.warps) for x in _loops(compiled)]
  # The first loop's tiles need no mask, the second one's do.
  turns = _turns(launch)
  total = collections.Counter()
  if launch.kernel == 'backward_bias':
    turns = turns[:1]
  for one, passes in zip(counts, turns, strict=True):
    for unit, clocks in one.items():
      total[unit] += clocks * passes / MULTIPROCESSORS
  return total, sum(turns) / MULTIPROCESSORS


def _turns(launch) -> tuple[int, int]:
  """Tiles of the batch that are seen as a whole, and those that need a mask."""
  s = launch.constants
  whole = masked = 0
  for length in map(int, _batch()[0]):
    if launch.kernel == 'backward_bias':
      rows = -(-length // s.block_q)
      whole += rows * (rows + 1) // 2
      continue
    by_keys = launch.kernel == 'backward_keys'
    own, other = (s.block_k, s.block_q) if by_keys else (s.block_q, s.block_k)
    for begin in range(0, length, own):
      end = min(begin + own, length)
      if by_keys:
        first, free, last = (
          begin // other,
          -(-end // other),
          -(-length // other),
        )
        masked += free - first
        whole += last - free
      else:
        whole += begin // other
        masked += -(-end // other) - begin // other
  programs = s.heads // s.group
  return whole * programs, masked * programs


def _rates(launch) -> dict:
  """How often a turn takes the branches whose frequency the data decide."""
  s = launch.constants
  if not s.buckets:
    return {}
  counts = _boundaries(s.block_q, s.block_k)
  single, one, few, many = (
    np.mean(counts == 0),
    np.mean(counts == 1),
    np.mean((counts > 1) & (counts <= s.steps)),
    np.mean(counts > s.steps),
  )
  parts = s.heads // s.group
  known = counts[counts <= s.steps]
  add, by_bucket = 'add_time_bias', '_add_by_bucket'
  within = 'high - low <= s.steps'
  return {
    (add, 'high == low', 'if'): single,
    (add, 'high == low', 'else'): 1 - single,
    (add, 'high - low == 1', 'if'): _share(one, 1 - single),
    (add, 'high - low == 1', 'else'): _share(few + many, 1 - single),
    (add, within, 'if'): _share(few, few + many),
    (add, within, 'else'): _share(many, few + many),
    # As the kernels had it up to 41548525.
    ('time_bias_of', 'known & (high - low <= 1)', 'if'): single + one,
    ('time_bias_of', 'known & (high - low <= 1)', 'else'): few + many,
    ('time_bias_of', f'known & ({within})', 'if'): _share(few, few + many),
    ('time_bias_of', f'known & ({within})', 'else'): _share(many, few + many),
    ('backward_bias', 'part == 0', 'if'): 1 / parts,
    ('backward_bias', 'part == parts - 1', 'if'): 1 / parts,
    (by_bucket, within, 'if'): 1 - many,
    (by_bucket, within, 'else'): many,
    (by_bucket, f'known & ({within})', 'if'): 1 - many,
    (by_bucket, f'known & ({within})', 'else'): many,
    (by_bucket, 'low < high', 'if'): np.mean(known > 0),
    (by_bucket, 'one in range(low, high)', 'for'): _share(
      known.mean(), np.mean(known > 0)
    ),
    # A few near the diagonal.
    (by_bucket, 'one in range(lowest, highest + 1)', 'for'): 5.0,
  }


def _share(part: float, whole: float) -> float:
  return float(part / whole) if whole else 0.0


@functools.lru_cache(maxsize=8)
def _boundaries(block_q: int, block_k: int) -> np.ndarray:
  """`count_boundaries` of all sequences of the batch."""
  lengths, key_time, query_time = _batch()
  ends = np.cumsum(lengths)
  return np.concatenate(
    [
      count_boundaries(
        query_time[end - n : end], key_time[end - n : end], block_q, block_k
      )
      for n, end in zip(map(int, lengths), map(int, ends), strict=True)
    ]
  )


def count_boundaries(
  query_time: np.ndarray, key_time: np.ndarray, block_q: int, block_k: int
) -> np.ndarray:
  """How many boundaries of buckets each tile of a sequence may meet.

  As `triton_bias_tiles.buckets_of` finds it, for tiles that need no mask; 99
  where it cannot be told.

  >>> count_boundaries(np.array([0, 1, 1000, 9000]), np.arange(4), 2, 2)
  array([8])

  Args:
    query_time: times of its queries, which grow.
    key_time: times of its keys.
    block_q: queries of a tile.
    block_k: keys of a tile.
  """
  length = len(key_time)
  rows, keys = query_time.astype(np.float64), key_time.astype(np.float64)
  row0 = np.arange(0, length, block_q)[:, None]
  key0 = np.arange(0, length, block_k)[None]
  least = rows[row0] - keys[np.minimum(key0 + block_k, length) - 1]
  most = rows[np.minimum(row0 + block_q, length) - 1] - keys[key0]
  low = np.maximum(_bucket(least) - MARGIN, 0).astype(int)
  high = (_bucket(most) + MARGIN).astype(int)
  counts = np.where(least >= 0, high - low, 99)
  return counts[key0 + block_k <= row0]


def _bucket(seconds):
  return np.log(np.maximum(seconds, 1)) / BUCKET_WIDTH


if __name__ == '__main__':
  main()
