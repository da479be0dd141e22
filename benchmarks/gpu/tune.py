"""Which block sizes are fastest for each Triton kernel of `hstu_attention`?

8,192 tokens at most, fill 0.5, with both biases and without; each kernel alone.
Processes compile side by side, and what is timed holds a lock. The rows name
the sizes; `python -m benchmarks.gpu.tune --best DIR` puts the best into
`pallas_kernels/hstu_attention/tuned.json`, which this checkout then uses.
"""

import json
import math
import pathlib
import sys

from benchmarks.gpu import kit, measure, programs

# Biases -> width of the heads -> kernel -> (block_q, block_k, warps, stages)
# and, with biases, heads of a program.
CHOICES = {
  'both': {
    128: {
      'forward': (
        (64, 64, 4, 2, 1), (64, 32, 4, 2, 1), (64, 32, 4, 3, 1),
        (64, 32, 4, 2, 2), (64, 64, 4, 3, 1),
      ),
      'backward_queries': (
        (64, 64, 4, 2, 1), (64, 32, 4, 2, 1), (64, 64, 4, 1, 1),
      ),
      'backward_keys': (
        (64, 64, 4, 2, 1), (32, 64, 4, 2, 1), (64, 128, 8, 2, 1),
        (64, 64, 4, 1, 1),
      ),
      'backward_bias': (
        (64, 64, 8, 3, 1), (64, 64, 4, 1, 1), (64, 64, 8, 1, 1),
        (64, 64, 4, 2, 1),
      ),
    },
    64: {
      'forward': (
        (64, 64, 4, 2, 2), (64, 32, 4, 2, 1), (64, 32, 4, 2, 2),
        (64, 32, 4, 2, 4), (64, 64, 4, 2, 1),
      ),
      'backward_queries': (
        (64, 64, 4, 2, 2), (64, 32, 4, 2, 2), (64, 64, 4, 2, 1),
      ),
      'backward_keys': (
        (32, 64, 4, 2, 2), (64, 64, 4, 2, 1), (64, 64, 4, 2, 2),
      ),
      'backward_bias': (
        (64, 64, 8, 2, 2), (64, 64, 8, 3, 2), (64, 64, 8, 3, 1),
        (64, 64, 4, 2, 1),
      ),
    },
  },
  'none': {
    128: {
      'forward': ((64, 64, 4, 3), (64, 32, 4, 3)),
      'backward_queries': ((64, 64, 4, 2),),
      'backward_keys': ((64, 128, 8, 2), (64, 64, 4, 2)),
    },
    64: {
      'forward': ((64, 64, 4, 3), (64, 32, 4, 3)),
      'backward_queries': ((64, 64, 4, 2),),
      'backward_keys': ((64, 64, 4, 2),),
    },
  },
}  # fmt: skip


def cases(args):
  found = []
  for bias, widths in CHOICES.items():
    for width, kernels in widths.items():
      for kernel, sizes in kernels.items():
        for size in sizes:
          found.append(
            dict(
              case=f'{bias} {width} {kernel} ' + '-'.join(map(str, size)),
              max_len=8192,
              width=width,
              bias=bias,
              fill=0.5,
              what=f'kernel {kernel}',
              sizes=size,
              implementation='triton',
            )
          )
  return found


def work(case, args):
  import jax

  from pallas_kernels.hstu_attention import blocks

  kind = jax.devices()[0].device_kind
  # For this device, whose own sizes (tuned.json) come before all others.
  options = blocks.lookup(
    'triton',
    kind,
    case['width'],
    case['width'],
    blocks.class_here('triton'),
  )
  options[name_sizes(case)] = _options(case['sizes'])
  blocks.use('triton', kind, case['width'], options)
  padded = 8192 if args.rehearse else measure.PADDED_TOKENS
  turn, counter, arrays, flops = programs.program(case, padded)
  run = jax.jit(measure.looped(turn)).lower(1, counter, arrays).compile()
  seconds = kit.locked(measure.time_calls)(
    lambda turns: jax.block_until_ready(run(turns, counter, arrays)),
    0.0 if args.rehearse else 0.12,
  )
  return dict(ms=1e3 * seconds, tflops=flops / seconds / 1e12, device=kind)


def name_sizes(case) -> str:
  """The kernel as `blocks.TABLE` names its sizes."""
  kernel = case['what'].removeprefix('kernel ')
  if case['bias'] == 'none' or kernel == 'backward_bias':
    return kernel
  return f'{kernel} biased'


def _options(sizes) -> dict:
  keys = ('block_q', 'block_k', 'warps', 'stages', 'group')
  return dict(zip(keys, (*sizes, 1)[:5], strict=True))


def use_best(folder: str) -> None:
  """Puts the fastest of the measured sizes into `tuned.json`.

  Args:
    folder: where the rows of this module are.
  """
  from pallas_kernels.hstu_attention import blocks

  lines = (pathlib.Path(folder) / 'tune.jsonl').read_text().splitlines()
  best: dict[tuple, dict] = {}
  for row in map(json.loads, lines):
    key = row.get('width'), name_sizes(row) if 'what' in row else None
    if row.get('ms') and row['ms'] < best.get(key, {}).get('ms', math.inf):
      best[key] = row
  for (width, name), row in best.items():
    here = blocks.class_here('triton')
    options = blocks.lookup('triton', row['device'], width, width, here)
    options[name] = _options(row['sizes'])
    blocks.save('triton', row['device'], width, options)
    blocks.use('triton', row['device'], width, options)
    print(width, name, row['sizes'], f'{row["ms"]:.3f} ms')


if __name__ == '__main__':
  if sys.argv[1:2] == ['--best']:
    use_best(sys.argv[2])
  else:
    kit.main(
      'benchmarks.gpu.tune',
      __doc__,
      cases,
      work,
      minutes=3,
      limit=60,
      workers=8,
    )
