"""Does the prediction of `gpu_roofline` hold for kernels of others?

  python -m benchmarks.gpu_roofline_peers flash.cubin --program flash \
    --width 128 --tile 128 64 --warps 4 --shared 65536 --function \
    'traitsILi128ELi128ELi64E.*ELb0ELb1ELb0ELb0ELb1ELb1ELb0ELb0EEEv'
  python -m benchmarks.gpu_roofline_peers meta.cubin --program meta \
    --width 64 --tile 128 64 --warps 8 --shared 24576 --function _hstu_attn_fwd

Nothing of the formula was chosen by these kernels. `flash` is the forward pass
of FlashAttention-2 as PyTorch's library has it (`cuobjdump -xelf sm_80
libtorch_cuda.so` takes it out), on 32 padded sequences of 8,192 tokens; `meta`
the forward pass of Meta's HSTU attention, compiled by Triton 3.6 with settings
of its own tuner, on the batch of `gpu_roofline`. Their times are of an H100
(`h100/gpu_peers.json`). Both are causal, without biases, 512 numbers a token.
"""

import json
import pathlib
import re
import subprocess

from benchmarks import aot_compile_gpu, cli, gpu_roofline, result, sass
from benchmarks.gpu import measure

COLUMNS = (
  'case', 'registers', 'blocks_an_sm', *sass.UNITS, 'predicted_ms',
  'measured_ms', 'x',
)  # fmt: skip
NOTES = [
  'Units: millions of clocks of a multiprocessor, for the whole batch. '
  'measured_ms is from an H100, for meta with the fastest of six settings.'
]


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('gpu_roofline_peers', __doc__)
  parser.add_argument('cubin', type=pathlib.Path, help='machine code')
  parser.add_argument('--program', choices=('flash', 'meta'), required=True)
  parser.add_argument('--function', required=True, help='pattern of its name')
  parser.add_argument('--width', type=int, required=True, help='of a head')
  parser.add_argument(
    '--tile', type=int, nargs=2, required=True, help='queries and keys'
  )
  parser.add_argument('--warps', type=int, required=True)
  parser.add_argument('--shared', type=int, required=True, help='its bytes')
  parser.add_argument('--version', default='', help='of the program')
  args = parser.parse_args(argv)
  aot_compile_gpu.prepare_compilers(False)
  tile = '-'.join(map(str, (*args.tile, args.warps)))
  row = {'case': f'{args.program}/{args.width}/{tile}', **_row(args)}
  cli.finish(args, 'gpu_roofline_peers', [row], COLUMNS, NOTES)


def _row(args) -> dict:
  registers = _registers(args.cubin, args.function)
  held = aot_compile_gpu.count_blocks(
    registers, args.warps, args.shared, 'sm_90'
  )
  loop = _main_loop(args)
  turns = _turns(args) / gpu_roofline.MULTIPROCESSORS
  clocks = {
    unit: clocks * turns
    for unit, clocks in sass.count(loop, {}, args.warps).items()
  }
  predicted = gpu_roofline.combine(clocks, turns, args.warps, held)
  measured = _measured(args.program, args.width)
  return {
    'program': args.program,
    'version': args.version,
    'width': args.width,
    'sizes': '-'.join(map(str, (*args.tile, args.warps))),
    'registers': registers,
    'shared_bytes': args.shared,
    'blocks_an_sm': held,
    **{unit: n / 1e6 for unit, n in clocks.items()},
    'predicted_ms': predicted,
    'measured_ms': measured,
    'x': predicted / measured,
  }


def _registers(cubin: pathlib.Path, function: str) -> int:
  said = subprocess.run(
    [sass.tool('cuobjdump'), '-res-usage', cubin],
    capture_output=True,
    text=True,
    check=True,
  )
  lines = (said.stdout + said.stderr).splitlines()
  for name, usage in zip(lines, lines[1:], strict=False):
    if 'Function' in name and re.search(function, name):
      return int(re.search(r'REG:(\d+)', usage)[1])
  cli.fail(f'no function {function} in {cubin}')


def _main_loop(args) -> sass.Loop:
  """The loop over tiles that need no mask: the shortest of the fullest."""
  listing = sass.disassemble(args.cubin.read_bytes(), args.function)
  loops = sass.find_loops(*sass.read(listing))

  def products(loop):
    return sum(one.name in ('HGMMA', 'HMMA') for one in loop.instructions)

  most = max(map(products, loops))
  full = [loop for loop in loops if products(loop) == most]
  return min(full, key=lambda loop: len(loop.instructions))


def _turns(args) -> int:
  longest = gpu_roofline.LONGEST
  lengths = measure.lengths(longest, 0.5)
  if args.program == 'flash':  # padded
    lengths = [longest] * len(lengths)
  rows, keys = args.tile
  tiles = sum(
    -(-min(begin + rows, length) // keys)
    for length in map(int, lengths)
    for begin in range(0, length, rows)
  )
  return tiles * measure.DIM // args.width


def _measured(program: str, width: int) -> float:
  path = pathlib.Path(result.RESULTS) / 'h100/gpu_peers.json'
  for row in json.loads(path.read_text())['rows']:
    what = row.get('program'), row.get('width'), row.get('what')
    if what == (program, width, 'forward') and row.get('fill') == 0.5:
      return row['ms']
  raise KeyError(f'no time of {program} with heads of {width}')


if __name__ == '__main__':
  main()
