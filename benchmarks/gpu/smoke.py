"""Do the Triton kernels run on this GPU, and are they right?

Outputs and all gradients of `hstu_attention`, 'triton' against 'reference' in
exact float32, ||a - b|| / ||b||; padding must be zero, and a second run the
same to the bit. First row: the machine.
"""

import functools
import time

from benchmarks.gpu import kit

BIASES = ('both', 'none', 'time', 'position')
# name -> options of the batch's shape, options of the call
MASKS = {
  'targets, context': (dict(targets=16, contextual=3), {}),
  'window, tail': (dict(window=48, full_tail=16), {}),
  'cached keys': (dict(queries=32), {}),
  'window, prefix': (dict(window=48, prefix=20), {}),
  # Few buckets a tile, so that the kernels need not look into the table.
  'long': (dict(heads=4), dict(sizes=[1500, 700, 1, 64])),
  'long, softmax': (
    dict(heads=4),
    dict(sizes=[1500, 700, 1, 64], mode='softmax'),
  ),
  'long, targets': (
    dict(heads=4, targets=100, contextual=3),
    dict(sizes=[1300, 800, 5]),
  ),
  'times in any order': (
    dict(heads=4),
    dict(sizes=[900, 500], times='any order'),
  ),
  'softmax': ({}, dict(mode='softmax')),
  'dropout': ({}, dict(dropout=0.25)),
  'normaliser a query': ({}, dict(normaliser='queries')),
  'everything': (
    dict(targets=16, contextual=3, window=48, full_tail=16, queries=64),
    dict(dropout=0.25),
  ),
}
TOLERANCE = {'float32': 1e-4, 'bfloat16': 2e-2}
TRAINED = ('q', 'k', 'v', 'position_bias', 'time_bias')


def cases(args) -> list[dict]:
  del args

  def case(dtype, bias='both', mask='causal', width=64):
    name = f'{dtype}, {bias} bias, {mask}, width {width}'
    return dict(case=name, dtype=dtype, bias=bias, mask=mask, width=width)

  found = [dict(case='machine')]
  found += [case('bfloat16', bias) for bias in BIASES]
  found += [case('float32', bias) for bias in BIASES]
  found += [case('bfloat16', mask=mask) for mask in MASKS]
  found += [case('bfloat16', width=width) for width in (128, 50, 25, 256)]
  return found + [case('float32', mask='everything'), case('float32', width=50)]


def work(case: dict, args) -> dict:
  if case['case'] == 'machine':
    return machine() | ({'ok': True} if args.rehearse else {})
  import jax
  import jax.numpy as jnp

  inputs = arguments(case, args.rehearse)
  triton, given = program(inputs, 'triton')
  begin = time.perf_counter()
  compiled = jax.jit(triton).lower(*given).compile()
  compile_s = time.perf_counter() - begin
  got, again = compiled(*given), compiled(*given)
  exact = {
    n: x.astype(jnp.float32) if n in 'qkv' else x for n, x in given[0].items()
  }
  with jax.default_matmul_precision('highest'):
    reference, _ = program(inputs, 'reference')
    wanted = jax.jit(reference)(exact, given[1].astype(jnp.float32))
  errors = {name: distance(got[name], wanted[name]) for name in wanted}
  asking = inputs.get('query_lengths', inputs['lengths'])
  zeros = not jnp.any(got['out'][int(asking.sum()) :])
  same = all(bool(jnp.all(got[n] == again[n])) for n in got)
  limit = TOLERANCE[case['dtype']]
  ok = zeros and same and all(error <= limit for error in errors.values())
  return dict(
    ok=bool(ok),
    worst=max(errors.values()),
    errors=errors,
    padding_is_zero=bool(zeros),
    same_twice=same,
    compile_s=compile_s,
  )


def machine() -> dict:
  """Versions, device, and whether Triton kernels can run."""
  import importlib.metadata
  import shutil

  import jax

  from pallas_kernels import triton_call

  names = ('jax', 'jaxlib', 'jax-triton', 'triton', 'torch', 'numpy')
  found = {
    d.metadata['Name']: d.version for d in importlib.metadata.distributions()
  }
  device = jax.devices()[0]
  reason = triton_call.why_not()
  return dict(
    ok=reason is None,
    why_not=reason,
    kind=device.device_kind,
    platform=device.client.platform_version.replace('\n', ' '),
    versions={name: found.get(name) for name in names},
    ptxas=shutil.which('ptxas'),
  )


def arguments(case: dict, tiny: bool) -> dict:
  """Of `hstu_attention`."""
  import jax
  import jax.numpy as jnp

  from pallas_kernels.hstu_attention import shapes

  changes, call = MASKS.get(case['mask'], ({}, {}))
  call = dict(call)
  sizes = call.pop('sizes', [300, 3, 0, 129, 64, 200, 257])
  times = call.pop('times', None)
  if tiny:
    sizes = [40, 3, 0, 20]
  width = min(case['width'], 32) if tiny else case['width']
  if tiny:
    changes = {n: min(x, 8) for n, x in changes.items()}
  changes = dict(heads=2) | changes
  shape = shapes.Shape(
    len(sizes),
    max(sizes),
    dqk=width,
    dv=width,
    position_bias=case['bias'] in ('both', 'position'),
    time_bias=case['bias'] in ('both', 'time'),
    **changes,
  )
  inputs = shapes.inputs(shape, dtype=case['dtype'], sizes=sizes) | call
  if times:
    inputs['time'] = jax.random.permutation(jax.random.key(3), inputs['time'])
  if 'dropout' in call:
    inputs['dropout_seed'] = jnp.uint32(7)
  if call.get('normaliser') == 'queries':
    inputs['normaliser'] = jnp.linspace(3.0, 90.0, inputs['q'].shape[0])
  return inputs


def program(inputs: dict, implementation: str):
  """(trained arrays, gradient of out) -> out and gradients; its arguments."""
  import jax
  import jax.numpy as jnp

  import pallas_kernels

  trained = {n: inputs[n] for n in TRAINED if n in inputs}
  others = {n: x for n, x in inputs.items() if n not in trained}
  attend = functools.partial(
    pallas_kernels.hstu_attention, **others, implementation=implementation
  )

  def run(trained, dout):
    out, pull = jax.vjp(lambda arrays: attend(**arrays), trained)
    return {'out': out, **pull(dout)[0]}

  size = (*inputs['q'].shape[:2], inputs['v'].shape[2])
  dout = jax.random.normal(jax.random.key(5), size, jnp.float32)
  return run, (trained, dout.astype(inputs['v'].dtype))


def distance(a, b) -> float:
  """||a - b|| / ||b||; NaN where either holds one."""
  import jax.numpy as jnp

  a, b = a.astype(jnp.float32), b.astype(jnp.float32)
  return float(jnp.linalg.norm(a - b) / jnp.maximum(jnp.linalg.norm(b), 1e-9))


if __name__ == '__main__':
  kit.main('benchmarks.gpu.smoke', __doc__, cases, work, workers=6)
