"""How fast is each Triton kernel, and the whole attention?

bfloat16, 262,144 padded tokens, 512 numbers a token in heads of 64 or 128. Each
row says what one call takes (a loop of calls in one program, so no dispatch in
between) and, over the causal half of the real tokens, its TFLOP/s: of the
products that the kernel does (forward 2, dq 3, dkdv 4, bias 2), or for whole
passes of those the mathematics needs (forward 2, with backward 7). Rows
'matmul' and 'loop' are the measures: one large product, and a turn of nothing.
"""

import itertools
import time

from benchmarks.gpu import kit, measure, programs


def cases(args) -> list[dict]:
  """The most informative first; fills of one case share compiled kernels."""
  sizes = (64,) if args.rehearse else (1024, 8192, 256)
  found = [dict(case='matmul'), dict(case='loop')]
  orders = itertools.product(
    ((0.5,), (1.0, 0.2)), (('both', 'none'), ('time', 'position')), (128, 64)
  )
  for fills, biases, width in orders:
    for length, bias, fill in itertools.product(sizes, biases, fills):
      found += [
        _case(length, width, bias, fill, 'triton', what)
        for what in _whats(bias)
      ]
  return found + [
    _case(sizes[0], 128, bias, 0.5, 'xla', what)
    for bias in ('both', 'none')
    for what in programs.WHOLE
  ]


def _whats(bias: str) -> list[str]:
  kernels = [f'kernel {name}' for name in programs.KERNELS]
  if bias != 'none':
    return [*kernels, *programs.WHOLE]
  return [*kernels[:3], *programs.WHOLE, 'layer']


def _case(length, width, bias, fill, implementation, what) -> dict:
  name = f'{length}, width {width}, {bias} bias, fill {fill}, {what}'
  return dict(
    case=f'{implementation}: {name}',
    max_len=length,
    width=width,
    bias=bias,
    fill=fill,
    what=what,
    implementation=implementation,
  )


def work(case: dict, args) -> dict:
  import jax

  if case['case'] == 'matmul':
    return matmul(512 if args.rehearse else 8192)
  padded = 256 if args.rehearse else measure.PADDED_TOKENS
  begin = time.perf_counter()
  turn, counter, arrays, flops = programs.program(case, padded)
  loop = jax.jit(measure.looped(turn))
  compiled = loop.lower(1, counter, arrays).compile()
  row = dict(compile_s=time.perf_counter() - begin)
  seconds = kit.locked(measure.time_calls)(
    lambda turns: jax.block_until_ready(compiled(turns, counter, arrays)),
    0.0 if args.rehearse else 0.3,
  )
  memory = compiled.memory_analysis()
  return row | dict(
    ms=1e3 * seconds,
    tflops=flops / seconds / 1e12,
    tokens=int(counter.sum()),
    temp_mb=memory.temp_size_in_bytes / 2**20 if memory else None,
    **device(),
  )


def device() -> dict:
  import jax

  return dict(device=jax.devices()[0].device_kind)


def matmul(size: int) -> dict:
  import jax
  import jax.numpy as jnp

  keys = jax.random.split(jax.random.key(0))
  x, w = (jax.random.normal(k, (size, size), jnp.bfloat16) for k in keys)
  w = w * jnp.bfloat16(size**-0.5)
  product = jax.jit(
    lambda turns, x: jax.lax.fori_loop(0, turns, lambda _, x: x @ w, x)
  )
  seconds = measure.time_calls(
    lambda turns: jax.block_until_ready(product(turns, x))
  )
  return dict(ms=1e3 * seconds, tflops=2 * size**3 / seconds / 1e12, **device())


if __name__ == '__main__':
  kit.main('benchmarks.gpu.kernels', __doc__, cases, work, minutes=9)
