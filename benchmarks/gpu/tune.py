"""Which block sizes are fastest for each Triton kernel of `hstu_attention`?

8,192 tokens at most, fill 0.5, with both biases and without; each kernel alone.
Processes compile side by side, and what is timed holds a lock. The rows name
the sizes; put the best into `pallas_kernels/hstu_attention/blocks.py`.
"""

from benchmarks.gpu import kit, measure, programs

# Width of the heads -> kernel -> (block_q, block_k, warps, stages), ...
CHOICES = {
  128: {
    'forward': (
      (128, 64, 8, 2), (128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 2),
      (64, 64, 4, 3), (64, 128, 4, 2), (128, 32, 8, 3), (64, 32, 4, 3),
    ),
    'backward_queries': (
      (64, 64, 4, 2), (128, 64, 8, 2), (64, 32, 4, 2), (128, 32, 8, 2),
      (64, 64, 4, 1), (64, 64, 8, 2),
    ),
    'backward_keys': (
      (64, 64, 8, 2), (64, 128, 8, 2), (32, 128, 8, 2), (32, 64, 4, 2),
      (64, 64, 4, 2), (32, 64, 8, 2), (32, 128, 8, 3),
    ),
    'backward_bias': (
      (64, 64, 8, 2), (64, 64, 8, 3), (64, 64, 4, 2), (128, 128, 8, 1),
      (32, 32, 4, 2), (32, 32, 4, 3),
    ),
  },
  64: {
    'forward': (
      (128, 64, 8, 3), (128, 64, 8, 2), (128, 128, 8, 2), (64, 64, 4, 2),
      (64, 64, 4, 3), (64, 128, 4, 2),
    ),
    'backward_queries': (
      (128, 64, 8, 2), (64, 64, 4, 2), (64, 128, 4, 2), (64, 32, 4, 2),
    ),
    'backward_keys': (
      (64, 128, 8, 2), (64, 64, 4, 2), (64, 64, 8, 2), (32, 128, 8, 2),
      (128, 64, 4, 2), (128, 128, 8, 2), (32, 64, 4, 2),
    ),
    'backward_bias': (
      (64, 64, 8, 2), (64, 64, 8, 3), (64, 64, 4, 2), (128, 128, 8, 1),
      (32, 32, 4, 2), (32, 32, 4, 3),
    ),
  },
}  # fmt: skip


def cases(args):
  found = []
  for bias in ('both', 'none'):
    for width, kernels in CHOICES.items():
      for kernel, sizes in kernels.items():
        for size in sizes:
          if bias == 'none' and kernel == 'backward_bias':
            continue
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

  name = case['what'].removeprefix('kernel ')
  # All widths look the sizes up in this table.
  keys = ('block_q', 'block_k', 'warps', 'stages')
  for table in blocks.TABLE['triton', 'default'].values():
    table[name] = dict(zip(keys, case['sizes'], strict=True))
  padded = 8192 if args.rehearse else measure.PADDED_TOKENS
  turn, counter, arrays, flops = programs.program(case, padded)
  run = jax.jit(measure.looped(turn)).lower(1, counter, arrays).compile()
  seconds = kit.locked(measure.time_calls)(
    lambda turns: jax.block_until_ready(run(turns, counter, arrays)),
    0.0 if args.rehearse else 0.12,
  )
  return dict(ms=1e3 * seconds, tflops=flops / seconds / 1e12)


if __name__ == '__main__':
  kit.main(
    'benchmarks.gpu.tune', __doc__, cases, work, minutes=3, limit=60, workers=8
  )
