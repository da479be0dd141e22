"""How fast is jagged HSTU attention, and what would padding have cost?

  python -m benchmarks.hstu_attention
  python -m benchmarks.hstu_attention --lengths 1024 8192 --backends triton xla
  python -m benchmarks.hstu_attention --part layer

Part `kernel`: `pallas_kernels.hstu_attention` on batches of one number of
padded tokens, for several longest lengths and fills (mean length / longest),
forward and forward + backward, beside the same batch padded: HSTU's attention
written densely (the padded reference), softmax attention from jax.nn (cuDNN's
flash kernel on a GPU) and torch's flash kernel where torch is installed.
Part `layer`: a whole HSTU layer, trained, beside a Transformer layer of the
same width with that softmax attention. FLOPs are those of the real tokens
(causal half), so a padded program's figure says what it achieves for the user.
"""

import dataclasses
import functools
import os

import jax
import jax.numpy as jnp
import numpy as np

import pallas_kernels
from benchmarks import cli, peer_attention, timing
from pallas_kernels import dispatch
from pallas_kernels.hstu_attention import api, shapes

LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
FILLS = (0.2, 0.5, 1.0)
COLUMNS = (
  'case', 'program', 'pass', 'tokens', 'core_s', 'wall_ms', 'tflops',
  'matmul_share', 'temp_mb', 'vs_ours_x',
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Sizes:
  """What differs between machines.

  Attributes:
    tokens: padded tokens of a batch.
    heads: attention heads.
    width: of a head.
    dtype: of q, k, v.
    repeats: measured calls.
  """

  tokens: int
  heads: int
  width: int
  dtype: str
  repeats: int


SIZES = {
  'cpu': Sizes(8_192, 2, 64, 'float32', 3),
  'cuda': Sizes(262_144, 4, 128, 'bfloat16', 20),
  'tpu': Sizes(131_072, 4, 128, 'bfloat16', 20),
}
SMOKE = Sizes(512, 1, 16, 'float32', 2)


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('hstu_attention', __doc__)
  parser.add_argument(
    '--part', choices=('kernel', 'layer', 'all'), default='all'
  )
  parser.add_argument('--lengths', nargs='+', type=int, default=LENGTHS)
  parser.add_argument('--fills', nargs='+', type=float, default=FILLS)
  parser.add_argument(
    '--backends',
    nargs='+',
    default=None,
    help='implementations to measure (the best here)',
  )
  parser.add_argument(
    '--bias',
    nargs='+',
    choices=('none', 'both'),
    default=('none', 'both'),
    help='without and with both relative biases',
  )
  args = parser.parse_args(argv)
  sizes = SMOKE if args.smoke else SIZES[dispatch.platform()]
  if args.smoke:
    args.lengths, args.fills = [128], [0.5]
  rate = matmul_rate(sizes)
  print(f'measured matmul rate: {rate / 1e12:.3g} TFLOP/s ({sizes.dtype})')
  rows = []
  for length in args.lengths:
    for fill in args.fills:
      batch = lengths(sizes.tokens // length, length, fill)
      if args.part in ('kernel', 'all'):
        rows += kernel_rows(sizes, length, fill, batch, rate, args)
      if args.part in ('layer', 'all'):
        rows += layer_rows(sizes, length, fill, batch, args)
      print(cli.table(rows[-12:], COLUMNS), flush=True)
  notes = [
    'core_s and wall_ms are medians; temp_mb is what XLA allocates beside '
    'arguments and results.',
    'tflops counts the real tokens: forward sum(2 H (dqk + dv) n^2) / 2, both '
    'passes (4 dqk + 3 dv) / (dqk + dv) times that; matmul_share is its share '
    f'of the rate of one large matmul, {rate / 1e12:.4g} TFLOP/s here.',
    'vs_ours_x is the program beside ours without bias, of the same case and '
    'pass (core-seconds on a CPU, wall elsewhere).',
  ]
  cli.finish(args, 'hstu_attention', rows, COLUMNS, notes)


def lengths(batch: int, longest: int, fill: float, seed: int = 0) -> np.ndarray:
  """`[batch]` lengths, uniform around fill * longest, one of them longest."""
  rng = np.random.default_rng(seed)
  spread = min(fill, 1.0 - fill)
  draw = rng.uniform(fill - spread, fill + spread, max(batch, 1))
  drawn = np.maximum(1, np.round(draw * longest)).astype(np.int32)
  if fill == 1.0:
    drawn[0] = longest
  return drawn


def flops(sizes: Sizes, batch: np.ndarray, backward: bool) -> float:
  """Of the real tokens, causal."""
  one = sizes.heads * sizes.width * float(np.sum(np.float64(batch) ** 2))
  return one * (7 if backward else 2)


def matmul_rate(sizes: Sizes) -> float:
  """FLOP/s of one large matmul in the dtype of the kernel."""
  size = 8192 if dispatch.platform() != 'cpu' else 1024
  x = jnp.ones((size, size), sizes.dtype)
  call, _ = timing.ahead(jnp.dot, [(x, x)])
  timers = [timing.measure(call, x, x)[1] for _ in range(8)]
  seconds = _seconds(timing.summary(timers[2:]))
  return 2.0 * size**3 / seconds


def _seconds(summary: dict) -> float:
  """Core-seconds tell on a shared CPU, wall time on an accelerator."""
  return summary['core_s' if dispatch.platform() == 'cpu' else 'wall_s']


def kernel_rows(sizes, length, fill, batch, rate, args) -> list[dict]:
  """One case: every program, both passes."""
  shape = shapes.Shape(
    len(batch), length, sizes.heads, sizes.width, sizes.width, 0
  )
  arguments = shapes.inputs(shape, dtype=sizes.dtype, sizes=batch)
  tables = ('position_bias', 'time_bias', 'query_time', 'time')
  plain = {n: x for n, x in arguments.items() if n not in tables}
  programs = {}
  for backend in args.backends or [None]:
    label = backend or best_backend()
    if 'none' in args.bias:
      programs[label] = ours(plain, backend)
    if 'both' in args.bias:
      programs[f'{label} + both biases'] = ours(arguments, backend)
  dense = peer_attention.pad(plain)
  programs['padded HSTU'] = peer_attention.padded_hstu(dense, length)
  programs['padded softmax'] = peer_attention.padded_softmax(dense)
  rows = []
  for backward in (False, True):
    first = None
    work = flops(sizes, batch, backward)
    passes = 'forward+backward' if backward else 'forward'
    for name, program in programs.items():
      row = {
        **_row('kernel', sizes, length, fill, batch, name, passes),
        **measure(program, backward, sizes.repeats),
      }
      if row.get('wall_s') is not None:
        seconds = _seconds(row)
        first = first or seconds
        row['tflops'] = work / seconds / 1e12
        row['matmul_share'] = work / seconds / rate
        row['vs_ours_x'] = seconds / first
      rows.append(row)
    torch_row = peer_attention.torch_flash(dense, backward, sizes.repeats)
    if torch_row:
      seconds = torch_row['wall_s']
      rows.append(
        {
          **_row(
            'kernel', sizes, length, fill, batch, 'torch flash, padded', passes
          ),
          **torch_row,
          'wall_ms': seconds * 1e3,
          'tflops': work / seconds / 1e12,
          'matmul_share': work / seconds / rate,
          'vs_ours_x': seconds / first,
        }
      )
  return rows


def _row(part, sizes, length, fill, batch, program, passes) -> dict:
  """What says which case a row is."""
  return {
    'case': f'{part}/{length}/{fill:g}/{program}/{passes}',
    'part': part,
    'max_len': length,
    'fill': fill,
    'batch': len(batch),
    'tokens': int(batch.sum()),
    'heads': sizes.heads,
    'width': sizes.width,
    'dtype': sizes.dtype,
    'program': program,
    'pass': passes,
  }


def best_backend() -> str:
  chosen = dispatch.choose('hstu_attention', api.BACKENDS)
  return next(n for n, b in api.BACKENDS.items() if b.run is chosen)


def ours(arguments: dict, backend: str | None):
  """A program of q, k, v and the tables."""
  trained = ('q', 'k', 'v', 'position_bias', 'time_bias')
  names = [n for n in trained if n in arguments]
  data, static = {}, {'implementation': backend}
  for name, value in arguments.items():
    if name not in trained:
      (data if hasattr(value, 'shape') else static)[name] = value

  def attend(tensors, data):
    return pallas_kernels.hstu_attention(**tensors, **data, **static)

  return peer_attention.Program(attend, {n: arguments[n] for n in names}, data)


def measure(program, backward: bool, repeats: int) -> dict:
  """Time and memory of one program; says why where it cannot run."""
  run, *inputs = program
  if backward:
    run = jax.grad(lambda *xs: jnp.sum(jnp.float32(program.run(*xs))))
  try:
    compiled = jax.jit(run).lower(*inputs).compile()
    timers = [timing.measure(compiled, *inputs)[1] for _ in range(repeats + 2)]
  except (jax.errors.JaxRuntimeError, NotImplementedError, ValueError) as error:
    return {'error': str(error).splitlines()[0][:200]}
  summary = timing.summary(timers[2:])
  memory = compiled.memory_analysis()
  return {
    **summary,
    'wall_ms': summary['wall_s'] * 1e3,
    'temp_mb': memory.temp_size_in_bytes / 2**20 if memory else None,
    'load_1min': os.getloadavg()[0],
  }


def layer_rows(sizes, length, fill, batch, args) -> list[dict]:
  """A trained layer: HSTU on packed tokens, a Transformer on padded ones."""
  programs = {
    f'HSTU layer ({b or best_backend()})': functools.partial(
      peer_attention.hstu_layer, implementation=b
    )
    for b in args.backends or [None]
  }
  programs['Transformer layer, padded'] = peer_attention.transformer_layer
  rows, first = [], None
  for name, make in programs.items():
    row = {
      **_row('layer', sizes, length, fill, batch, name, 'forward+backward'),
      **measure(make(sizes, length, batch), True, sizes.repeats),
    }
    if row.get('wall_s') is not None:
      first = first or _seconds(row)
      row['vs_ours_x'] = _seconds(row) / first
    rows.append(row)
  return rows


if __name__ == '__main__':
  main()
