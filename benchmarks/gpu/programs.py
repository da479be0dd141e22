"""What is timed on a GPU: kernels, whole passes, a layer."""

import functools

from benchmarks.gpu import measure

# Matrix products that each kernel does, and that the mathematics needs.
KERNELS = dict(forward=2, backward_queries=3, backward_keys=4, backward_bias=2)
WHOLE = {'forward': 2, 'forward+backward': 7}


def program(case: dict, padded: int):
  """A turn of the loop, the lengths, its other arrays, and its FLOPs."""
  import jax.numpy as jnp
  import numpy as np

  if case['case'] == 'loop':
    one = jnp.ones(64, 'int32')
    return (lambda lengths, x: x * lengths[0]), one, one, 0
  width, heads = case['width'], measure.DIM // case['width']
  sizes = measure.lengths(case['max_len'], case['fill'], padded)
  inputs, dout = _batch(
    case['max_len'], case['fill'], width, case['bias'], padded
  )
  arrays = {n: x for n, x in inputs.items() if hasattr(x, 'shape')}
  static = {n: x for n, x in inputs.items() if n not in arrays}
  lengths = arrays.pop('lengths')
  rng = np.random.default_rng(1)
  arrays['dout'] = dout
  what = case['what']
  if what.startswith('kernel '):
    name = what.removeprefix('kernel ')
    turn, products = kernel(name, static), KERNELS[name]
  elif what == 'layer':
    turn, products = layer(static, heads, width, arrays, rng), 0
  else:
    static['implementation'] = case['implementation']
    turn, products = whole(what, static), WHOLE[what]
  flops = measure.attention_flops(sizes, heads, width, products)
  return turn, lengths, arrays, flops


@functools.lru_cache(maxsize=1)
def _batch(max_len, fill, width, bias, padded):
  """Inputs and the gradient of the result; cases of one batch share them."""
  import jax.numpy as jnp
  import numpy as np

  from pallas_kernels.hstu_attention import shapes

  sizes = measure.lengths(max_len, fill, padded)
  shape = shapes.Shape(
    len(sizes),
    max_len,
    measure.DIM // width,
    width,
    width,
    extra_positions=0,
    position_bias=bias in ('both', 'position'),
    time_bias=bias in ('both', 'time'),
  )
  inputs = shapes.inputs(shape, dtype='bfloat16', sizes=sizes)
  rng = np.random.default_rng(1)
  return inputs, jnp.asarray(rng.normal(size=inputs['v'].shape), 'bfloat16')


def whole(what: str, static: dict):
  import jax

  import pallas_kernels

  def turn(lengths, arrays):
    attend = functools.partial(pallas_kernels.hstu_attention, **static)
    names = ('q', 'k', 'v', 'position_bias', 'time_bias')
    trained = {n: arrays[n] for n in names if n in arrays}
    data = {n: arrays[n] for n in ('time', 'query_time') if n in arrays}
    run = functools.partial(attend, lengths=lengths, **data)
    if what == 'forward':
      return run(**trained)
    out, pull = jax.vjp(lambda trained: run(**trained), trained)
    return out, pull(arrays['dout'])

  return turn


def kernel(name: str, static: dict):
  """One launch. This alone knows how `gpu.py` feeds its kernels."""
  from pallas_kernels import triton_call
  from pallas_kernels.hstu_attention import gpu, gpu_plan
  from pallas_kernels.hstu_attention.spec import Context, Spec, Tensors

  size = static['max_len']
  spec = Spec(size, size, 'silu', 1.0, static['normaliser'], 0, None, 0, 0.0)

  def turn(lengths, arrays):
    get = arrays.get
    tensors = Tensors(*map(get, ('q', 'k', 'v', 'position_bias', 'time_bias')))
    context = Context(
      lengths, None, None, get('query_time'), get('time'), None, None
    )
    call = gpu_plan.call_of(tensors, context)
    launch = gpu_plan.launch_here(name, spec, call)
    given = gpu.inputs_of(spec, tensors, context)
    if name != 'forward':
      sums = given[4][:1]  # silu reads no sums
      given = (*given, arrays['dout'], sums, sums)
    return triton_call.run(gpu.kernel_of(name), launch, *given)

  return turn


def layer(static: dict, heads: int, width: int, arrays: dict, rng):
  """Forward and backward of an HSTU layer without biases."""
  import jax
  import jax.numpy as jnp

  def weight(rows, columns):
    values = rng.normal(size=(rows, columns)) * rows**-0.5
    return jnp.asarray(values, 'bfloat16')

  dim = heads * width
  arrays['weights'] = weight(dim, 4 * dim), weight(dim, dim)
  attend = whole('forward', static | dict(implementation='triton'))

  def norm(x):
    wide = x.astype(jnp.float32)
    return jax.nn.standardize(wide, epsilon=1e-6).astype(x.dtype)

  def run(weights, x, lengths):
    mixed = jax.nn.silu(norm(x) @ weights[0])
    u, v, q, k = jnp.split(mixed, 4, axis=-1)
    q, k, v = (y.reshape(-1, heads, width) for y in (q, k, v))
    out = attend(lengths, dict(q=q, k=k, v=v)).reshape(x.shape)
    return x + (norm(out) * u) @ weights[1]

  def turn(lengths, arrays):
    x = arrays['q'].reshape(-1, dim)
    out, pull = jax.vjp(
      lambda weights, x: run(weights, x, lengths), arrays['weights'], x
    )
    return out, pull(arrays['dout'].reshape(-1, dim))

  return turn
