"""Would a hand-written kernel win where XLA already fuses?

  python -m benchmarks.left_to_xla

HSTU's output stage (layer norm, times U, dropout) and the factorisation
interaction X(X'Y) of the ranking models, each as plain jnp code under jit. The
output stage moves memory and computes little, so it is held against a copy that
reads and writes the same bytes on the same device; the interaction is two
matmuls, so it is held against one matmul of as many FLOPs. A kernel of ours
could win at most what is missing to those: `share` says how much of them XLA
reaches.
"""

import jax
import jax.numpy as jnp

from benchmarks import cli, timing
from genrec_jax.models import layers
from pallas_kernels import dispatch

COLUMNS = (
  'case', 'core_s', 'wall_ms', 'least_gb', 'copy_wall_ms',
  'matmul_wall_ms', 'share',
)  # fmt: skip


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('left_to_xla', __doc__)
  parser.add_argument('--repeats', type=int, default=15, help='measured (15)')
  args = parser.parse_args(argv)
  large = dispatch.platform() != 'cpu'
  tokens, width = (262_144, 512) if large else (16_384, 256)
  batch, features, dim, rank = (
    (65_536, 32, 128, 24) if large else (2_048, 32, 64, 24)
  )
  if args.smoke:
    tokens, batch, args.repeats = 256, 32, 2
  dtypes = ['float32', 'bfloat16'] if large else ['float32']
  rows = []
  for dtype in dtypes:
    for rate in (0.0, 0.2):
      rows += output_stage(tokens, width, rate, dtype, args.repeats)
    rows += interaction(batch, features, dim, rank, dtype, args.repeats)
  notes = [
    'share is the wall time of the copy (output stage: as many bytes as must '
    'be read and written) or of one matmul (interaction: as many FLOPs) over '
    'that of the op: 1 means that no kernel could be faster.',
  ]
  cli.finish(args, 'left_to_xla', rows, COLUMNS, notes)


def output_stage(tokens, width, rate, dtype, repeats) -> list[dict]:
  """dropout(u * layer_norm(a)), forward and backward."""
  key = jax.random.key(0)
  u, a, grad = (
    jax.random.normal(k, (tokens, width), dtype)
    for k in jax.random.split(key, 3)
  )
  norm = layers.LayerNorm(width)

  def forward(u, a):
    return layers.apply_dropout(u * norm(a), rate, key)

  def backward(u, a, grad):
    return jax.vjp(forward, u, a)[1](grad)

  rows = []
  # Arrays that must be read and written: u, a -> y; u, a, dy -> du, da.
  for name, run, inputs, arrays in (
    ('forward', forward, (u, a), 3),
    ('backward', backward, (u, a, grad), 5),
  ):
    moved = arrays * u.nbytes
    same = jnp.zeros(moved // 2 // u.dtype.itemsize, dtype)
    copy = _time(lambda x: x + 1, (same,), repeats)
    found = _time(run, inputs, repeats)
    rows.append(
      {
        'case': f'layer_norm_mul_dropout/{name}/{rate:g}/{dtype}',
        'dropout': rate,
        'tokens': tokens,
        'width': width,
        'dtype': dtype,
        **found,
        'least_gb': moved / 1e9,
        'copy_wall_ms': copy['wall_ms'],
        'share': copy['wall_ms'] / found['wall_ms'],
      }
    )
  return rows


def interaction(batch, features, dim, rank, dtype, repeats) -> list[dict]:
  """X(X'Y) of `[B, n, d]` with Y `[n, k]`."""
  keys = jax.random.split(jax.random.key(0), 3)
  x = jax.random.normal(keys[0], (batch, features, dim), dtype)
  y = jax.random.normal(keys[1], (features, rank), dtype)
  grad = jax.random.normal(keys[2], (batch, features, rank), dtype)

  def forward(x, y):
    return jnp.einsum('bnd,bdk->bnk', x, jnp.einsum('bnd,nk->bdk', x, y))

  def backward(x, y, grad):
    return jax.vjp(forward, x, y)[1](grad)

  rows = []
  for name, run, inputs, times in (
    ('forward', forward, (x, y), 1),
    ('backward', backward, (x, y, grad), 3),
  ):
    flops = times * 4 * batch * features * dim * rank
    side = round((flops / 2) ** (1 / 3) / 128) * 128 or 128
    square = jnp.ones((side, side), dtype)
    matmul = _time(jnp.dot, (square, square), repeats)
    scaled = matmul['wall_ms'] * flops / (2 * side**3)
    found = _time(run, inputs, repeats)
    rows.append(
      {
        'case': f'fm_interaction/{name}/{dtype}',
        'batch': batch,
        'features': features,
        'dim': dim,
        'rank': rank,
        'dtype': dtype,
        **found,
        'gflop': flops / 1e9,
        'matmul_wall_ms': scaled,
        'share': scaled / found['wall_ms'],
      }
    )
  return rows


def _time(run, inputs, repeats) -> dict:
  call, _ = timing.ahead(run, [inputs])
  timers = [timing.measure(call, *inputs)[1] for _ in range(repeats + 2)]
  summary = timing.summary(timers[2:])
  return {**summary, 'wall_ms': summary['wall_s'] * 1e3}


if __name__ == '__main__':
  main()
