"""Do the Triton kernels of `hstu_attention` compile, and to what, for each GPU?

  pip install 'genrec_jax[triton]' && python -m benchmarks.aot_compile_gpu

Compiles each kernel to machine code with Triton alone. No GPU is needed and
none is used, so nothing here says how fast a kernel is. Registers a thread,
shared memory a program and bytes spilled from registers come from NVIDIA's
assembler, or from the notes in the AMD code; `loop_spills` are the instructions
in the inner loop that a warp writes or reads spilled registers by, of those
without masks where there are two; `blocks_an_sm` is how many
programs run at once on a multiprocessor, `copy_bytes` the least that a thread
copies to shared memory ahead of its use.

  pip install jax-triton
  pip install --no-deps jax-cuda12-plugin jax-cuda12-pjrt  # of JAX's version
  python -m benchmarks.aot_compile_gpu --xla

does the same for whole programs: XLA compiles forward and backward, the kernels
in it, for an H100.
"""

import dataclasses
import functools
import importlib.util
import os
import pathlib
import re
import subprocess
import tempfile
import time
import unittest.mock

from benchmarks import aot_compile, cli, sass
from pallas_kernels import dispatch
from pallas_kernels.hstu_attention import gpu, gpu_plan, shapes
from pallas_kernels.hstu_attention.spec import Spec

# name -> backend, architecture, threads a warp
TARGETS = {
  'sm_80': ('cuda', 80, 32),
  'sm_89': ('cuda', 89, 32),
  'sm_90': ('cuda', 90, 32),
  'sm_100': ('cuda', 100, 32),
  'gfx942': ('hip', 'gfx942', 64),
}
DTYPES = ('bfloat16', 'float32')
# case -> name in shapes.SHAPES, changes of it, changes of the spec, targets
CASES = {
  'no bias': (
    'ml20m_hstu', dict(position_bias=False, time_bias=False), {}, ('sm_90',),
  ),
  'both biases': ('ml20m_hstu', {}, {}, TARGETS),
  'every option': (
    'ranking_cached',
    dict(window=64, full_tail=8),
    dict(dropout=0.2, normaliser=None),
    TARGETS,
  ),
  'semi-local': (
    'ranking_cached', dict(window=64, prefix=32), {}, ('sm_89', 'sm_90'),
  ),
  'softmax': ('ml20m_hstu', {}, dict(mode='softmax'), ('sm_90', 'gfx942')),
  'odd width': ('ml1m_hstu', {}, {}, ('sm_90',)),
  'odd width, two heads': ('ml1m_large', {}, {}, ('sm_90',)),
  'narrow heads': ('books_hstu', {}, {}, ('sm_90',)),
  'position bias': ('synthetic_stream', {}, {}, ('sm_90',)),
  'targets': ('ranking', {}, {}, ('sm_90',)),
  'window': ('long_window', {}, {}, ('sm_90',)),
  'widest': ('ml20m_hstu', dict(dqk=256, dv=256), {}, TARGETS),
}  # fmt: skip
WHOLE = 'forward and backward'  # as a kernel's name: the program, by XLA
# Bytes of a thread's copy to shared memory ahead of its use.
COPIES = re.compile(r'cp\.async\.c[ag]\.shared\.global [^;]*?\], (0x\w+)')
COLUMNS = (
  'case', 'compiled', 'registers', 'spilled_bytes', 'loop_spills',
  'shared_bytes', 'blocks_an_sm', 'copy_bytes', 'temp_bytes', 'kernels',
  'compile_s', 'error',
)  # fmt: skip
# As XLA wants to be told of it.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32
  shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 memory_bandwidth: 3352000000000
  l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84929347584 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 } registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
# What one block may use of each architecture's shared memory.
SHARED_BYTES = {
  'sm_80': 166_912,
  'sm_89': 101_376,
  'sm_90': 232_448,
  'sm_100': 232_448,
  'gfx942': 65_536,
}


# And what a multiprocessor has.
SHARED_OF_SM = {
  'sm_80': 167_936,
  'sm_89': 102_400,
  'sm_90': 233_472,
  'sm_100': 233_472,
}


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('aot_compile_gpu', __doc__)
  parser.add_argument('--only', default='', help='cases that contain this')
  parser.add_argument('--xla', action='store_true', help='whole programs')
  args = parser.parse_args(argv)
  prepare_compilers(args.xla)
  rows = []
  for name, kernel, target, dtype in _chosen(args):
    case = f'{name}: {kernel}, {dtype}, {target}'
    if args.only not in case:
      continue
    row = _whole if kernel == WHOLE else _row
    rows.append({'case': case, **row(name, kernel, target, dtype)})
    print(cli.table(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
  notes = [
    'Compiled, not executed: no GPU was there. compile_s is wall time on a '
    'machine with other work.',
  ]
  cli.finish(args, 'aot_compile_gpu', rows, COLUMNS, notes)
  if not all(row['compiled'] for row in rows):
    cli.fail('some kernels do not compile')


def prepare_compilers(xla: bool) -> None:
  """Environment of the compilers; ends where their packages are not here.

  Args:
    xla: whether XLA compiles too.
  """
  os.environ.setdefault('JAX_PLATFORMS', 'cpu')
  os.environ.setdefault('TRITON_DEFAULT_FP_FUSION', '1')
  os.environ.setdefault('TRITON_ALWAYS_COMPILE', '1')  # whatever it has kept
  os.environ.setdefault('JAX_SKIP_CUDA_CONSTRAINTS_CHECK', '1')
  for package in ('triton', 'jax_triton') if xla else ('triton',):
    if importlib.util.find_spec(package) is None:
      cli.fail(f'there is no package {package} here; see --help.')


def _chosen(args):
  if args.xla:
    for name in ('both biases', 'every option', 'softmax'):
      yield name, WHOLE, 'sm_90', 'bfloat16'
    return
  if args.smoke:  # without and with every option, each dtype once
    for kernel in gpu_plan.KERNELS[:3]:
      yield 'no bias', kernel, 'sm_90', 'float32'
    for kernel in gpu_plan.KERNELS:
      yield 'every option', kernel, 'sm_90', 'bfloat16'
    return
  for name, (base, changes, _, targets) in CASES.items():
    shape = dataclasses.replace(shapes.SHAPES[base], **changes)
    biased = shape.position_bias or shape.time_bias
    for target in targets:
      for dtype in DTYPES:
        for kernel in gpu_plan.KERNELS[: 4 if biased else 3]:
          yield name, kernel, target, dtype


def _row(name: str, kernel: str, target: str, dtype: str) -> dict:
  row = dict(
    what=name, kernel=kernel, target=target, dtype=dtype, shape=CASES[name][0]
  )
  begin = time.perf_counter()
  try:
    launch = plan(name, kernel, target, dtype)
    compiled = compile_launch(launch, target, dtype)
  except Exception as error:  # any failure is a result
    return row | dict(compiled=False, error=str(error).splitlines()[0][:200])
  row |= dict(
    block_q=launch.constants.block_q,
    block_k=launch.constants.block_k,
    warps=launch.warps,
    stages=launch.stages,
    compiled=compiled.metadata.shared <= SHARED_BYTES[target],
    shared_bytes=compiled.metadata.shared,
    compile_s=time.perf_counter() - begin,
  )
  if not row['compiled']:
    row['error'] = 'needs more shared memory than there is'
  row |= resources(compiled)
  if 'cubin' in compiled.asm:
    row['loop_spills'] = _count_spills(compiled.asm['cubin'])
  if target in SHARED_OF_SM and 'registers' in row:
    row['blocks_an_sm'] = count_blocks(
      row['registers'], launch.warps, row['shared_bytes'], target
    )
  return row


def _count_spills(cubin: bytes) -> int | None:
  """Reads and writes of spilled registers in the first inner loop.

  None where no loop is known by its products of matrices: float32 has others.
  """
  loops = sass.find_loops(*sass.read(sass.disassemble(cubin)))
  if not loops:
    return None
  return sum(one.name in ('LDL', 'STL') for one in loops[0].instructions)


def count_blocks(registers: int, warps: int, shared: int, target: str) -> int:
  """Blocks that run at once on a multiprocessor of NVIDIA's.

  >>> count_blocks(255, 4, 81_920, 'sm_90'), count_blocks(158, 4, 0, 'sm_90')
  (2, 3)

  Args:
    registers: of a thread.
    warps: of a block.
    shared: bytes of a block.
    target: architecture.
  """
  # Registers are given to warps by 256, and a block takes 1 KiB for the system.
  of_block = warps * -(-registers * 32 // 256) * 256
  held = 48 if target == 'sm_89' else 64  # warps
  return min(
    (1 << 16) // of_block,
    SHARED_OF_SM[target] // (shared + 1024),
    held // warps,
  )


def _whole(name: str, kernel: str, target: str, dtype: str) -> dict:
  """XLA compiles output and all gradients for an H100."""
  import jax

  shape = dataclasses.replace(shapes.SHAPES[CASES[name][0]], **CASES[name][1])
  options = dict(CASES[name][2], implementation='triton')
  if 'dropout' in options:
    options['dropout_seed'] = jax.numpy.uint32(0)
  program, arguments = aot_compile.program(
    shapes.inputs(shape, dtype=dtype) | options, 'forward+backward'
  )
  begin = time.perf_counter()
  compiled = compile_for_h100(jax.jit(program), arguments)
  return dict(
    what=name,
    kernel=kernel,
    target=target,
    dtype=dtype,
    shape=CASES[name][0],
    compiled=True,
    temp_bytes=compiled.memory_analysis().temp_size_in_bytes,
    kernels=compiled.as_text().count('custom_call_target="triton_kernel_call'),
    compile_s=time.perf_counter() - begin,
  )


def compile_for_h100(program, arguments):
  """A program as XLA compiles it for an H100, which need not be there.

  Args:
    program: from `jax.jit`.
    arguments: of it; their shapes and dtypes count.
  """
  import jax
  import jax_triton
  from jax.experimental import topologies
  from jax.sharding import NamedSharding, PartitionSpec

  devices = topologies.get_topology_desc(
    '1x1x8', 'cuda', target_config=H100, topology='1x1x8'
  ).devices
  mesh = jax.sharding.Mesh(devices[:1], ('x',))
  everywhere = NamedSharding(mesh, PartitionSpec())
  arguments = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere),
    arguments,
  )
  # No device is there to be asked.
  launch = functools.partial(jax_triton.triton_call, compute_capability=90)
  with (
    dispatch.compiling_for('cuda', 'NVIDIA H100 80GB HBM3', '9.0'),
    unittest.mock.patch.object(jax_triton, 'triton_call', launch),
    jax.sharding.use_abstract_mesh(mesh.abstract_mesh),
  ):
    lowered = program.trace(*arguments)
    return lowered.lower(lowering_platforms=('cuda',)).compile()


def plan(name: str, kernel: str, target: str, dtype: str):
  """The launch of a kernel in one of `CASES`."""
  base, shape_changes, spec_changes, _ = CASES[name]
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
    prefix=shape.prefix,
    dropout=0.0,
  )
  call = gpu_plan.CallShapes(
    batch=shape.batch,
    queries=shape.batch * (shape.queries or shape.max_len),
    keys=shape.batch * shape.max_len,
    heads=shape.heads,
    # As `gpu.attention` fills them up.
    dqk=gpu_plan.pad_width(shape.dqk, 2 if dtype == 'bfloat16' else 4),
    dv=gpu_plan.pad_width(shape.dv, 2 if dtype == 'bfloat16' else 4),
    dtype=dtype,
    positions=2 * shape.positions - 1 if shape.position_bias else 0,
    buckets=shapes.TIME_BUCKETS if shape.time_bias else 0,
    tail=bool(shape.queries),
    targets=bool(shape.targets),
  )
  spec = dataclasses.replace(spec, **spec_changes)
  kind = f'compiled for {target}'  # no entry: the default block sizes
  vendor, architecture, _ = TARGETS[target]
  cuda = vendor == 'cuda'
  capability = f'{architecture // 10}.{architecture % 10}' if cuda else None
  return gpu_plan.launch(kernel, spec, call, kind, cuda, capability)


def compile_launch(launch, target: str, dtype: str):
  """Machine code of a launch, by Triton alone."""
  import triton
  from triton.backends.compiler import GPUTarget
  from triton.compiler import ASTSource

  function = gpu.kernel_of(launch.kernel)
  names = {'bfloat16': '*bf16', 'float32': '*fp32'}
  values = names[dtype]
  arguments = [values] * 3 + '*i32 *fp32 *fp32 *i32 *i32 *fp32'.split()
  arguments.append('*u32')
  if launch.kernel != 'forward':
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


def resources(compiled) -> dict:
  """Registers and spilled bytes of compiled code, where they can be told."""
  found = {}
  if 'amdgcn' in compiled.asm:
    text = compiled.asm['amdgcn']
    registers = re.search(r'\.vgpr_count:\s*(\d+)', text)
    spilled = re.search(r'\.vgpr_spill_count:\s*(\d+)', text)
    factor = 4  # it counts registers
  else:
    text = _assembler_says(compiled.asm['ptx'])
    registers = re.search(r'Used (\d+) registers', text)
    spilled = re.search(r'(\d+) bytes spill stores', text)
    loads = re.search(r'(\d+) bytes spill loads', text)
    if loads:
      found['spill_loads_bytes'] = int(loads[1])
    sizes = COPIES.findall(compiled.asm['ptx'])
    if sizes:
      found['copy_bytes'] = min(int(size, 0) for size in sizes)
    factor = 1
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
