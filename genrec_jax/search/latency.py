"""How long matrix products take here, as a table for searches.

  python -m genrec_jax.search.latency latency.json
  genrec search CONFIG --workdir=DIR \\
    --config.search.latency_table=latency.json --config.search.cost=latency_us

Times are those of relu(x W + b) for a batch of examples, in microseconds for
each of them, for all pairs of the given sizes; between sizes they are
interpolated. Products of pairs of vectors and reads of tables are not in them.
A table is of one machine, and no other one searches with it.
"""

import argparse
import dataclasses
import itertools
import json
import os
import pathlib
import platform
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

SIZES = (1, 4, 16, 64, 256, 1024)
_TURNS, _LEAST_S = 5, 0.02


def name_machine() -> str:
  """What a table is of.

  >>> name_machine() == name_machine()
  True
  """
  device = jax.devices()[0]
  parts = [device.device_kind, f'{jax.device_count()} devices']
  if device.platform == 'cpu':
    parts = [platform.machine(), f'{os.cpu_count()} cores']
  return ', '.join([device.platform, *parts, f'jax {jax.__version__}'])


@dataclasses.dataclass(frozen=True)
class LatencyTable:
  """Microseconds of a matrix for an example.

  Attributes:
    machine: of `name_machine`.
    batch: examples at a time.
    sizes: that were measured, from the smallest on.
    times: by input size and output size.
  """

  machine: str
  batch: int
  sizes: tuple[int, ...]
  times: tuple[tuple[float, ...], ...]

  def find(self, i, o: int):
    """The time of a matrix; the input size may be one in the mean, of JAX.

    >>> table = LatencyTable('', 1, (1, 3), ((1.0, 2.0), (3.0, 6.0)))
    >>> float(table.find(2, 1)), float(table.find(2, 2))
    (2.0, 3.0)
    """
    column = np.array([self._interpolate(row, o) for row in self.times])
    if isinstance(i, jax.Array):
      sizes = np.array(self.sizes, np.float32)
      return jnp.interp(i, sizes, column.astype(np.float32))
    self._check(float(i))
    return np.interp(i, self.sizes, column)

  def _interpolate(self, row: Sequence[float], size: int) -> float:
    self._check(size)
    return float(np.interp(size, self.sizes, row))

  def _check(self, size: float) -> None:
    if not self.sizes[0] <= size <= self.sizes[-1]:
      raise ValueError(
        f'search.latency_table has sizes from {self.sizes[0]:,} to '
        f'{self.sizes[-1]:,}, and a matrix of the space has {size:,.7g}: '
        'measure '
        'it with further --sizes'
      )

  def save(self, path: str | os.PathLike) -> None:
    text = json.dumps(dataclasses.asdict(self), indent=1)
    pathlib.Path(path).write_text(text)

  @classmethod
  def load(cls, path: str | os.PathLike) -> 'LatencyTable':
    """Reads a table of this machine.

    Raises:
      ValueError: it is no such table, or one of another machine.
    """
    try:
      found = json.loads(pathlib.Path(path).read_text())
      times = np.array(found['times'], np.float64)
      sizes = tuple(map(int, found['sizes']))
      made = cls(
        str(found['machine']), int(found['batch']), sizes, _to_tuples(times)
      )
    except OSError as e:
      raise ValueError(
        f'search.latency_table={path} cannot be read: {e.strerror}'
      ) from None
    except (KeyError, TypeError, ValueError) as e:
      raise ValueError(
        f'search.latency_table={path} is no table of latencies ({e}); '
        '`python -m genrec_jax.search.latency` makes one'
      ) from None
    good = times.shape == (len(sizes),) * 2 and bool(np.all(times > 0))
    good = good and bool(np.all(np.isfinite(times)))
    if not good or list(sizes) != sorted(set(sizes)):
      raise ValueError(f'search.latency_table={path}: its times are damaged')
    if made.machine != (here := name_machine()):
      raise ValueError(
        f'search.latency_table={path} was measured on another machine '
        f'({made.machine}); this one is {here}'
      )
    return made


def measure_latency(sizes: Sequence[int], batch: int) -> LatencyTable:
  """Measures all pairs of sizes here.

  Args:
    sizes: of inputs and outputs.
    batch: examples at a time.
  """
  sizes = tuple(sorted(set(sizes)))
  times = np.zeros((len(sizes), len(sizes)))
  for (a, i), (b, o) in itertools.product(enumerate(sizes), enumerate(sizes)):
    times[a, b] = measure_matrix(i, o, batch) / batch * 1e6
  return LatencyTable(name_machine(), batch, sizes, _to_tuples(times))


def _to_tuples(times: np.ndarray) -> tuple[tuple[float, ...], ...]:
  # Tables are compared, with the tasks that have them.
  return tuple(tuple(row) for row in times.tolist())


def measure_matrix(i: int, o: int, batch: int) -> float:
  """Seconds of relu(x W + b), the least of some turns."""
  x = jnp.ones((batch, i))
  w, bias = jnp.ones((i, o)), jnp.ones(o)
  run = jax.jit(lambda x, w, bias: jax.nn.relu(x @ w + bias[None]))
  run(x, w, bias).block_until_ready()
  best, count = float('inf'), 1
  turns = 0
  while turns < _TURNS:
    begun = time.perf_counter()
    for _ in range(count):
      made = run(x, w, bias)
    made.block_until_ready()
    seconds = time.perf_counter() - begun
    if seconds < _LEAST_S:  # too short for the clock
      count *= 4
      continue
    best, turns = min(best, seconds / count), turns + 1
  return best


def main(argv: Sequence[str] | None = None) -> None:
  parser = argparse.ArgumentParser(
    prog='python -m genrec_jax.search.latency',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('path', help='file to write')
  parser.add_argument(
    '--sizes', nargs='+', type=int, default=SIZES, help='of inputs and outputs'
  )
  parser.add_argument(
    '--batch', type=int, default=512, help='examples at a time'
  )
  args = parser.parse_args(argv)
  if len(set(args.sizes)) < 2 or min(args.sizes) < 1 or args.batch < 1:
    parser.error('two sizes or more are needed, and a batch of one or more')
  table = measure_latency(args.sizes, args.batch)
  table.save(args.path)
  print(f'{table.machine}: microseconds of an example, input by output size')
  print(' ' * 8 + ''.join(f'{size:>9,}' for size in table.sizes))
  for size, row in zip(table.sizes, table.times, strict=True):
    print(f'{size:>8,}' + ''.join(f'{x:9.4f}' for x in row))


if __name__ == '__main__':
  main()
