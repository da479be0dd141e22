"""Block sizes of the kernels, by backend and kind of device.

What a block size means is the backend's business; this file only holds the
figures, so that a tuning run changes a table and no code.
"""


def _triton(block_q: int, block_k: int, warps: int, stages: int) -> dict:
  return dict(block_q=block_q, block_k=block_k, warps=warps, stages=stages)


# (backend, kind of device or 'default') -> options of the backend, or where
# they depend on the width of the heads: widest head -> options.
TABLE = {
  ('pallas_tpu', 'default'): {'block_q': 256, 'block_k': 256},
  # Interpreted on the CPU, where a test wants several blocks of few tokens.
  ('interpret', 'default'): {'block_q': 128, 'block_k': 128},
  # By kernel, and by the wider of dqk and dv for numbers of two bytes. Not yet
  # tuned: sizes that compile without spilling registers on sm_80 and sm_90.
  ('triton', 'default'): {
    64: {
      'forward': _triton(128, 64, 4, 3),
      'backward_queries': _triton(64, 64, 4, 2),
      'backward_keys': _triton(64, 64, 4, 2),
      'backward_bias': _triton(64, 64, 4, 2),
    },
    128: {
      'forward': _triton(128, 64, 8, 2),
      'backward_queries': _triton(64, 64, 4, 2),
      'backward_keys': _triton(64, 64, 8, 2),
      'backward_bias': _triton(64, 64, 4, 2),
    },
    256: {
      'forward': _triton(64, 32, 4, 2),
      'backward_queries': _triton(64, 32, 8, 1),
      'backward_keys': _triton(32, 64, 8, 1),
      'backward_bias': _triton(32, 32, 4, 1),
    },
    512: {
      'forward': _triton(32, 32, 4, 1),
      'backward_queries': _triton(32, 32, 8, 1),
      'backward_keys': _triton(16, 32, 8, 1),
      'backward_bias': _triton(32, 32, 8, 1),
    },
  },
}


def lookup(backend: str, device_kind: str, dqk: int, dv: int) -> dict:
  """Options for a device; those of 'default' where it has no entry.

  Args:
    backend: name in `api.BACKENDS`.
    device_kind: as JAX names it, such as 'TPU v5e'.
    dqk: width of a query and key, per head.
    dv: width of a value, per head.
  """
  for kind in (device_kind, 'default'):
    if (backend, kind) in TABLE:
      return dict(_by_width(TABLE[backend, kind], max(dqk, dv)))
  raise KeyError(f'no block sizes for the backend {backend!r}.')


def _by_width(entry: dict, width: int) -> dict:
  widths = sorted(key for key in entry if isinstance(key, int))
  if not widths:
    return entry
  return entry[next((w for w in widths if width <= w), widths[-1])]
