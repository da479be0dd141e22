"""Do the Triton kernels of `hstu_attention` compile, and to what, for each GPU?

  pip install 'genrec_jax[triton]' && python -m benchmarks.aot_compile_gpu

Compiles each kernel to machine code with Triton alone. No GPU is needed and
none is used, so nothing here says how fast a kernel is. Registers a thread,
shared memory a program and bytes spilled from registers come from NVIDIA's
assembler, or from the notes in the AMD code.
"""

import os
import pathlib
import re
import subprocess
import tempfile
import time

from benchmarks import cli
from pallas_kernels.hstu_attention import gpu, gpu_plan, shapes
from pallas_kernels.hstu_attention.spec import Spec

# name -> backend, architecture, threads a warp
TARGETS = {
  'sm_80': ('cuda', 80, 32),
  'sm_90': ('cuda', 90, 32),
  'sm_100': ('cuda', 100, 32),
  'gfx942': ('hip', 'gfx942', 64),
}
DTYPES = ('bfloat16', 'float32')
# case -> name in shapes.SHAPES, changes of it, changes of the spec
CASES = {
  'plain': ('ml20m_hstu', dict(position_bias=False, time_bias=False), {}),
  'both biases': ('ml20m_hstu', {}, {}),
  'ML-1M': ('ml1m_hstu', {}, {}),
  'cached, softmax': ('ranking_cached', {}, dict(mode='softmax')),
  'everything': (
    'ranking_cached',
    dict(position_bias=True, time_bias=True, window=64, full_tail=8),
    dict(dropout=0.2, normaliser=None),
  ),
  'widest': ('ml20m_hstu', dict(dqk=256, dv=256), {}),
}
COLUMNS = (
  'case', 'compiled', 'registers', 'spilled_bytes', 'shared_bytes',
  'compile_s', 'error',
)  # fmt: skip
# What one block may use of each architecture's shared memory.
SHARED_BYTES = {
  'sm_80': 166_912,
  'sm_90': 232_448,
  'sm_100': 232_448,
  'gfx942': 65_536,
}


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('aot_compile_gpu', __doc__)
  parser.add_argument('--only', default='', help='cases that contain this')
  args = parser.parse_args(argv)
  os.environ.setdefault('JAX_PLATFORMS', 'cpu')
  os.environ.setdefault('TRITON_DEFAULT_FP_FUSION', '1')
  rows = []
  for name, kernel, target, dtype in _chosen(args):
    case = f'{name}: {kernel}, {dtype}, {target}'
    if args.only not in case:
      continue
    rows.append({'case': case, **_row(name, kernel, target, dtype)})
    print(cli.table(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
  notes = [
    'Compiled, not executed: no GPU was there. compile_s is wall time on a '
    'machine with other work.',
  ]
  cli.finish(args, 'aot_compile_gpu', rows, COLUMNS, notes)
  if not all(row['compiled'] for row in rows):
    cli.fail('some kernels do not compile')


def _chosen(args):
  if args.smoke:
    # One without and one with every option; the dtypes in turn.
    for kernel in gpu_plan.KERNELS:
      yield 'plain', kernel, 'sm_90', 'float32'
      yield 'everything', kernel, 'sm_90', 'bfloat16'
    return
  for name in CASES:
    for target in TARGETS:
      for dtype in DTYPES:
        for kernel in gpu_plan.KERNELS:
          plain = name in ('plain', 'widest')
          if not (plain and kernel == 'backward_bias' and name == 'plain'):
            yield name, kernel, target, dtype


def _row(name: str, kernel: str, target: str, dtype: str) -> dict:
  base, shape_changes, spec_changes = CASES[name]
  begin = time.perf_counter()
  row = dict(what=name, kernel=kernel, target=target, dtype=dtype, shape=base)
  try:
    launch = plan(base, shape_changes, spec_changes, kernel, target, dtype)
    compiled = compile_launch(launch, kernel, target, dtype)
  except Exception as error:  # any failure is a result
    return row | dict(compiled=False, error=str(error).splitlines()[0][:200])
  seconds = time.perf_counter() - begin
  shared = compiled.metadata.shared
  row |= dict(
    block_q=launch.constants.block_q,
    block_k=launch.constants.block_k,
    warps=launch.warps,
    stages=launch.stages,
    compiled=shared <= SHARED_BYTES[target],
    shared_bytes=shared,
    compile_s=seconds,
  )
  if not row['compiled']:
    row['error'] = 'more shared memory than there is'
  return row | resources(compiled, target)


def plan(base, shape_changes, spec_changes, kernel, target, dtype):
  """The launch of a kernel for a shape of `shapes.SHAPES`."""
  import dataclasses

  shape = dataclasses.replace(shapes.SHAPES[base], **shape_changes)
  spec = Spec(
    max_len=shape.max_len,
    max_queries=shape.queries or shape.max_len,
    mode='silu',
    alpha=1.0,
    normaliser=float(shape.positions),
    contextual=shape.contextual,
    window=shape.window,
    full_tail=shape.full_tail,
    dropout=0.0,
  )
  call = gpu_plan.Call(
    batch=shape.batch,
    queries=shape.batch * (shape.queries or shape.max_len),
    keys=shape.batch * shape.max_len,
    heads=shape.heads,
    dqk=shape.dqk,
    dv=shape.dv,
    dtype=dtype,
    positions=2 * shape.positions - 1 if shape.position_bias else 0,
    buckets=shapes.TIME_BUCKETS if shape.time_bias else 0,
    tail=bool(shape.queries),
    targets=bool(shape.targets),
  )
  spec = dataclasses.replace(spec, **spec_changes)
  kind = f'compiled for {target}'  # no entry: the default block sizes
  cuda = TARGETS[target][0] == 'cuda'
  return gpu_plan.launch(kernel, spec, call, kind, cuda)


def compile_launch(launch, kernel: str, target: str, dtype: str):
  """Machine code of a launch, by Triton alone."""
  import triton
  from triton.backends.compiler import GPUTarget
  from triton.compiler import ASTSource

  function = gpu.kernel_of(kernel)
  names = {'bfloat16': '*bf16', 'float32': '*fp32'}
  values = names[dtype]
  arguments = [values] * 3 + '*i32 *fp32 *fp32 *i32 *i32 *i32 *fp32'.split()
  arguments.append('*u32')
  if kernel != 'forward':
    arguments += [values, '*fp32', '*fp32']
  arguments += [names[output.dtype.name] for output in launch.outputs]
  signature = dict(zip(function.arg_names, arguments, strict=False))
  source = ASTSource(
    function,
    signature=signature | {'s': 'constexpr'},
    constexprs={'s': launch.constants},
    # As jax-triton does: JAX's buffers begin at multiples of 16 bytes.
    attrs={(i,): [['tt.divisibility', 16]] for i in range(len(arguments))},
  )
  options = dict(num_warps=launch.warps, num_stages=launch.stages)
  return triton.compile(
    source, target=GPUTarget(*TARGETS[target]), options=options
  )


def resources(compiled, target: str) -> dict:
  """Registers and spilled bytes of compiled code, where they can be told."""
  if 'amdgcn' in compiled.asm:
    text = compiled.asm['amdgcn']
    registers = re.search(r'\.vgpr_count:\s*(\d+)', text)
    spilled = re.search(r'\.vgpr_spill_count:\s*(\d+)', text)
    factor = 4  # it counts registers
  else:
    text = _assembler_says(compiled.asm['ptx'])
    registers = re.search(r'Used (\d+) registers', text)
    spilled = re.search(r'(\d+) bytes spill stores', text)
    factor = 1
  found = {}
  if registers:
    found['registers'] = int(registers[1])
  if spilled:
    found['spilled_bytes'] = int(spilled[1]) * factor
  return found


def _assembler_says(ptx: str) -> str:
  import triton

  arch = re.search(r'^\.target (\S+)', ptx, re.MULTILINE)[1].split(',')[0]
  folder = pathlib.Path(triton.__file__).parent / 'backends/nvidia/bin'
  said = ''
  with tempfile.NamedTemporaryFile('w', suffix='.ptx') as file:
    file.write(ptx)
    file.flush()
    # The wheel holds two; which of them knows this PTX depends on its version.
    for program in sorted(folder.glob('ptxas*')):
      said = subprocess.run(
        [program, '-v', f'--gpu-name={arch}', file.name, '-o', os.devnull],
        capture_output=True,
        text=True,
      ).stderr
      if 'registers' in said:
        break
  return said


if __name__ == '__main__':
  main()
