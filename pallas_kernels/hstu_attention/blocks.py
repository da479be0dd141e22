"""Block sizes of the kernels, by backend and kind of device.

What a block size means is the backend's business; this file only holds the
figures. `python -m benchmarks.tune_blocks --write` measures others on the
device at hand and writes the best to `tuned.json`, which comes before the table
here.
"""

import json
import pathlib

from pallas_kernels import dispatch

TUNED = pathlib.Path(__file__).with_name('tuned.json')


def _triton(
  block_q: int, block_k: int, warps: int, stages: int, group: int = 1
) -> dict:
  return dict(
    block_q=block_q, block_k=block_k, warps=warps, stages=stages, group=group
  )


# Compute capabilities of NVIDIA's that give a program 99 KiB of shared memory:
# A10, L4, the cards for workstations. Others from 8.0 on have 163 KiB and more;
# `triton_call.why_not` refuses the earlier ones.
SMALL = ('8.6', '8.9', '12.0', '12.1')

# (backend, kind of device or class of devices) -> options of the backend, or
# where they depend on the width of the heads: widest head -> options. Classes
# are 'default' and those of `gpu_class`.
TABLE = {
  ('pallas_tpu', 'default'): {'block_q': 256, 'block_k': 256},
  # Interpreted on the CPU, where a test wants several blocks of few tokens.
  ('interpret', 'default'): {'block_q': 64, 'block_k': 32},
  # By the wider of dqk and dv, for bfloat16 (four times as wide for float32),
  # then by kernel; 'biased' are those with a bias, where they have sizes of
  # their own, 'masked' those with masks beside the causal one, or dropout. Up
  # to 128, what was fastest on an H200, of the sizes in benchmarks/gpu/tune.py
  # and before; the gradients of keys and of the tables by what
  # benchmarks/gpu_roofline.py predicts of the kernels since. Wider heads were
  # not tried there: sizes at which the compiler spills few registers or none.
  ('triton', 'default'): {
    64: {
      'forward': _triton(64, 64, 4, 3),
      'forward biased': _triton(64, 64, 4, 2, 2),
      'backward_queries': _triton(64, 64, 4, 2),
      'backward_queries biased': _triton(64, 64, 4, 2, 2),
      'backward_keys': _triton(64, 64, 4, 2),
      'backward_keys biased': _triton(64, 64, 4, 2),
      'backward_bias': _triton(64, 64, 4, 2),
    },
    128: {
      'forward': _triton(64, 64, 4, 3),
      'forward biased': _triton(64, 64, 4, 2),
      'backward_queries': _triton(64, 64, 4, 2),
      'backward_keys': _triton(64, 128, 8, 2),
      'backward_keys biased': _triton(64, 64, 4, 2),
      'backward_keys biased, masked': _triton(32, 64, 4, 2),
      'backward_bias': _triton(64, 64, 8, 3),
    },
    256: {
      'forward': _triton(64, 32, 8, 2),
      'backward_queries': _triton(64, 32, 8, 2),
      'backward_keys': _triton(32, 64, 8, 1),
      'backward_bias': _triton(32, 32, 8, 1),
    },
    512: {
      'forward': _triton(32, 32, 8, 1),
      'backward_queries': _triton(32, 32, 8, 1),
      'backward_keys': _triton(16, 32, 8, 1),
      'backward_bias': _triton(32, 32, 8, 1),
    },
    # Heads of 256 in float32: with the sizes above, up to 27 KB of a thread's
    # numbers were spilled.
    1024: {
      'forward': _triton(16, 16, 8, 1),
      'backward_queries': _triton(16, 16, 8, 1),
      'backward_keys': _triton(16, 16, 8, 1),
      'backward_bias': _triton(16, 16, 8, 1),
    },
  },
  # AMD's GPUs have 64 KiB of shared memory.
  ('triton', 'rocm'): {
    64: {
      'forward': _triton(128, 64, 4, 1),
      'backward_queries': _triton(64, 64, 4, 1),
      'backward_keys': _triton(64, 64, 4, 1),
      'backward_bias': _triton(64, 64, 4, 1),
    },
    128: {
      'forward': _triton(64, 64, 4, 1),
      'backward_queries': _triton(64, 32, 4, 1),
      'backward_keys': _triton(32, 64, 4, 1),
      'backward_bias': _triton(32, 32, 4, 1),
    },
    256: {
      'forward': _triton(64, 32, 4, 1),
      'backward_queries': _triton(32, 32, 4, 1),
      'backward_keys': _triton(16, 32, 4, 1),
      'backward_bias': _triton(32, 32, 4, 1),
    },
    512: {
      'forward': _triton(32, 32, 4, 1),
      'backward_queries': _triton(16, 32, 4, 1),
      'backward_keys': _triton(16, 16, 4, 1),
      'backward_bias': _triton(16, 16, 4, 1),
    },
  },
}

_DEFAULT = TABLE['triton', 'default']
# For 16 bits alone. A product has 64 rows at least: by what
# benchmarks/gpu_roofline.py predicts, of the sizes that spill few registers.
TABLE['triton', 'hopper'] = _DEFAULT | {
  256: {
    'forward': _triton(128, 32, 8, 2),
    'backward_queries': _triton(128, 32, 8, 2),
    'backward_keys': _triton(32, 64, 8, 2),
    'backward_bias': _triton(64, 64, 8, 1),
  }
}
# What fits; nothing was timed on such a GPU.
TABLE['triton', 'small'] = _DEFAULT | {
  128: _DEFAULT[128]
  | {
    # Float32 heads of 32 would need up to 112 KiB by the other sizes.
    'backward_keys': _triton(64, 64, 4, 2),
    'backward_bias': _triton(64, 64, 8, 2),
  },
  256: _DEFAULT[256]
  | {
    'backward_queries': _triton(64, 32, 8, 1),
    'backward_keys': _triton(32, 32, 8, 2),
    'backward_bias': _triton(32, 32, 4, 2),
  },
}


def gpu_class(cuda: bool, capability: str | None, dtype: str) -> str:
  """The class of a GPU whose kind has no sizes of its own.

  >>> gpu_class(True, '9.0', 'bfloat16'), gpu_class(True, '8.9', 'bfloat16')
  ('hopper', 'small')

  Args:
    cuda: whether it is NVIDIA's.
    capability: its compute capability, None where that is not known.
    dtype: of queries and keys.
  """
  if not cuda:
    return 'rocm'
  if capability in SMALL:
    return 'small'
  # Float32 takes the sizes of heads four times as wide, and is not multiplied
  # from shared memory.
  hopper = capability == '9.0' and dtype != 'float32'
  return 'hopper' if hopper else 'default'


def class_here(backend: str) -> str:
  """The class of the default device, as `lookup` takes it, for bfloat16."""
  if backend != 'triton':
    return 'default'
  cuda = dispatch.platform() == 'cuda'
  return gpu_class(cuda, dispatch.compute_capability(), 'bfloat16')


def lookup(
  backend: str,
  device_kind: str,
  dqk: int,
  dv: int,
  device_class: str = 'default',
) -> dict:
  """Options for a device; those of its class where it has none of its own.

  Args:
    backend: name in `api.BACKENDS`.
    device_kind: as JAX names it, such as 'TPU v5e'.
    dqk: width of a query and key, per head.
    dv: width of a value, per head.
    device_class: 'default', or from `gpu_class`.
  """
  usual = TABLE.get((backend, device_class))
  own = TABLE.get((backend, device_kind), usual)
  if own is None:
    raise KeyError(f'no block sizes for the backend {backend!r}.')
  if usual and any(isinstance(key, int) for key in own):
    own = usual | own
  return dict(_by_width(own, max(dqk, dv)))


def use(backend: str, device_kind: str, width: int, options: dict) -> None:
  """Uses other options from now on, in this process.

  Args:
    backend: name in `api.BACKENDS`.
    device_kind: as JAX names it.
    width: the widest head that the options are for.
    options: block sizes, as in `TABLE`.
  """
  known = TABLE.get((backend, device_kind), {})
  TABLE[backend, device_kind] = {**known, width: options}


def save(backend: str, device_kind: str, width: int, options: dict) -> None:
  """Adds options to `tuned.json`; the arguments are those of `use`."""
  tuned = _read()
  entry = tuned.setdefault(backend, {}).setdefault(device_kind, {})
  entry[str(width)] = options
  TUNED.write_text(json.dumps(tuned, indent=1, sort_keys=True) + '\n')


def _read() -> dict:
  return json.loads(TUNED.read_text()) if TUNED.exists() else {}


def _by_width(entry: dict, width: int) -> dict:
  widths = sorted(key for key in entry if isinstance(key, int))
  if not widths:
    return entry
  # The narrowest entry that is wide enough; the widest one beyond it.
  return entry[next((w for w in widths if width <= w), widths[-1])]


for _backend, _kinds in _read().items():
  for _kind, _entry in _kinds.items():
    for _width, _options in _entry.items():
      use(_backend, _kind, int(_width), _options)
