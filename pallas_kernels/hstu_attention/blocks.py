"""Block sizes of the kernels, by backend and kind of device.

What a block size means is the backend's business; this file only holds the
figures, so that a tuning run changes a table and no code.
"""

# (backend, kind of device or 'default') -> options of the backend.
TABLE = {
  ('pallas_tpu', 'default'): {'block_q': 256, 'block_k': 256},
  # Interpreted on the CPU, where a test wants several blocks of few tokens.
  ('interpret', 'default'): {'block_q': 128, 'block_k': 128},
}


def lookup(backend: str, device_kind: str, dqk: int, dv: int) -> dict:
  """Options for a device; those of 'default' where it has no entry.

  Args:
    backend: name in `api.BACKENDS`.
    device_kind: as JAX names it, such as 'TPU v5e'.
    dqk: width of a query and key, per head.
    dv: width of a value, per head.
  """
  del dqk, dv  # No figure depends on them so far.
  for kind in (device_kind, 'default'):
    if (backend, kind) in TABLE:
      return dict(TABLE[backend, kind])
  raise KeyError(f'no block sizes for the backend {backend!r}.')
