"""A loss with sampled negatives: rows in C++ against vectors by XLA.

  python -m benchmarks.score_rows

Sampled softmax of tokens of 128 negatives and a positive each, with the
gradients of queries and table. `vectors` gathers the rows of a chunk of tokens,
as losses do without the C++ library, `rows` uses `pallas_kernels.score_rows`.
Both take turns. `core_ms` is the median of all calls, `x` how many times that
of `rows` it is. `arithmetic_ms` is what three products of as many numbers take
at the rate of a large matmul on one core.

ml1m       16,384 tokens, 3,953 rows of 50, the shape of an ML-1M batch.
popular    the same, negatives by zipf 1.
large      8,192 tokens, 200,000 rows of 64.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

import pallas_kernels
from benchmarks import cli, timing
from genrec_jax.tasks import losses
from pallas_kernels.jagged_embedding import cpu

COLUMNS = ('case', 'core_ms', 'wall_ms', 'x', 'arithmetic_ms')
# Name -> tokens, rows, columns, whether ids are zipf.
SHAPES = {
  'ml1m': (16_384, 3_953, 50, False),
  'popular': (16_384, 3_953, 50, True),
  'large': (8_192, 200_000, 64, False),
}
NEGATIVES = 128


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('score_rows', __doc__)
  parser.add_argument('--repeats', type=int, default=15, help='measured (15)')
  args = parser.parse_args(argv)
  if reason := cpu.why_not():
    cli.fail(f'there is no C++ library: {reason}')
  rows = []
  for name, shape in SHAPES.items():
    tokens, size, dim, zipf = shape
    if args.smoke:
      tokens, size, args.repeats = 128, 300, 2
    rows += measure(name, tokens, size, dim, zipf, args.repeats)
  cli.finish(args, 'score_rows', rows, COLUMNS)


def measure(
  name: str, tokens: int, size: int, dim: int, zipf: bool, repeats: int
) -> list[dict]:
  """A row for each program.

  Args:
    name: of the shape.
    tokens: how many.
    size: rows of the table.
    dim: columns.
    zipf: whether few rows are read often.
    repeats: calls that are measured.
  """
  rng = np.random.default_rng(0)
  weights = 1 / np.arange(1.0, size + 1) if zipf else np.ones(size)
  shape = tokens, 1 + NEGATIVES
  ids = rng.choice(size, shape, p=weights / weights.sum())
  inputs = (
    jnp.asarray(rng.normal(size=(tokens, dim)) * 3, jnp.float32),
    jnp.asarray(rng.normal(size=(size, dim)) * dim**-0.5, jnp.float32),
    jnp.asarray(ids, jnp.int32),
  )
  programs = {
    program: timing.ahead(jax.value_and_grad(loss, argnums=(0, 1)), [inputs])[0]
    for program, loss in (('vectors', sum_by_vectors), ('rows', sum_by_rows))
  }
  found = {program: run(*inputs) for program, run in programs.items()}
  for x, y in zip(*map(jax.tree.leaves, found.values()), strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)
  timers = {program: [] for program in programs}
  for _ in range(repeats):
    for program, run in programs.items():
      timers[program].append(timing.measure(run, *inputs)[1])
  costs = {program: timing.summary(own) for program, own in timers.items()}
  return [
    {
      'case': f'{name}/{program}',
      'tokens': tokens,
      'rows': size,
      'dim': dim,
      'core_ms': 1e3 * cost['core_s'],
      'wall_ms': 1e3 * cost['wall_s'],
      'x': cost['core_s'] / costs['rows']['core_s'],
      'arithmetic_ms': 1e3 * 6 * ids.size * dim / matmul_rate(),
    }
    for program, cost in costs.items()
  ]


@functools.cache
def matmul_rate() -> float:
  """FLOPs in a core-second, of two matrices of a thousand rows."""
  square = jnp.ones((1_024, 1_024))
  run, _ = timing.ahead(jnp.dot, [(square, square)])
  timers = [timing.measure(run, square, square)[1] for _ in range(20)]
  return 2 * 1_024**3 / timing.summary(timers)['min_core_s']


def sum_by_rows(queries, table, ids) -> jax.Array:
  """The sum of all losses; gradients of scores alone are kept."""
  return _sum_losses(pallas_kernels.score_rows(queries, table, ids), ids)


def sum_by_vectors(queries, table, ids) -> jax.Array:
  """The same, a chunk of tokens at a time."""

  def add(vectors, queries, ids):
    return _sum_losses(jnp.einsum('td,trd->tr', queries, vectors), ids)

  chunk = math.gcd(len(ids), losses.chunk_for(ids.shape[1], table.shape[1]))
  return losses.sum_over_chunks(add, chunk, table, ids, queries, ids)


def _sum_losses(scores, ids) -> jax.Array:
  hit = ids[:, 1:] == ids[:, :1]
  return jnp.sum(losses.sampled_softmax(scores[:, 0], scores[:, 1:], hit))


if __name__ == '__main__':
  main()
