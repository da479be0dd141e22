"""Variants of an experiment: what the `sweep()` of a config yields.

    from genrec_jax.config import sweeps

    def sweep():
      return sweeps.product(
        sweeps.vary('optimizer.learning_rate', (1e-3, 3e-3)),
        sweeps.vary('seed', range(3)),
      )

A variant is a dictionary, {dotted key: value}, and a sweep any iterable of
them. A config may have several: `sweep()`, and `sweep_NAME()` for
`--sweep=NAME`.
"""

import dataclasses
import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence

from genrec_jax.config.errors import ConfigError

Variant = dict[str, object]
_IN_VAIN = 10_000  # draws without a new variant, after which there is none


def vary(key: str, values: Iterable) -> Iterator[Variant]:
  """One variant for each value of a key.

  >>> list(vary('seed', range(2)))
  [{'seed': 0}, {'seed': 1}]

  Args:
    key: dotted.
    values: of the key.
  """
  for value in values:
    yield {key: value}


def fixed(key: str, value) -> Iterator[Variant]:
  """One variant, with one value: for a `product`.

  >>> list(fixed('train.steps', 100))
  [{'train.steps': 100}]
  """
  yield {key: value}


def product(*sweeps: Iterable[Mapping]) -> Iterator[Variant]:
  """Every variant of one sweep with every variant of the others.

  The last sweep varies fastest.

  >>> list(product(vary('a', 'xy'), fixed('b', 1)))
  [{'a': 'x', 'b': 1}, {'a': 'y', 'b': 1}]

  Raises:
    ConfigError: two sweeps set one key.
  """
  for parts in itertools.product(*sweeps):
    yield _merge(parts)


def zipit(*sweeps: Iterable[Mapping]) -> Iterator[Variant]:
  """The first variants of all sweeps together, then the second ones.

  >>> list(zipit(vary('a', 'xy'), vary('b', (1, 2))))
  [{'a': 'x', 'b': 1}, {'a': 'y', 'b': 2}]

  Raises:
    ConfigError: sweeps have unequal lengths, or two set one key.
  """
  lists = [list(sweep) for sweep in sweeps]
  if len({len(variants) for variants in lists}) > 1:
    lengths = ' and '.join(str(len(variants)) for variants in lists)
    raise ConfigError(f'zipit has sweeps of unequal lengths: {lengths}')
  for parts in zip(*lists, strict=True):
    yield _merge(parts)


def chain(*sweeps: Iterable[Mapping]) -> Iterator[Variant]:
  """The variants of one sweep after those of the other.

  >>> list(chain(vary('a', 'x'), vary('b', (1,))))
  [{'a': 'x'}, {'b': 1}]
  """
  for sweep in sweeps:
    yield from map(dict, sweep)


@dataclasses.dataclass(frozen=True)
class Uniform:
  """Numbers between two ends, all alike.

  Attributes:
    low: the least.
    high: the greatest.
    log: whether their logarithms are alike instead, as of learning rates.
    whole: whether they are whole.
    digits: to which others are rounded, so that names stay short; more where
      the ends are close to each other.
  """

  low: float
  high: float
  log: bool = False
  whole: bool = False
  digits: int = 3

  def __post_init__(self):
    if not (math.isfinite(self.low) and math.isfinite(self.high)):
      raise ConfigError('the ends of Uniform must be finite numbers')
    if self.low > self.high or (self.log and self.low <= 0):
      above = ', above 0 with log' if self.log else ''
      raise ConfigError(
        f'Uniform goes from a number to a greater one{above}, not from '
        f'{self.low} to {self.high}'
      )
    if self.whole and math.ceil(self.low) > math.floor(self.high):
      raise ConfigError(
        f'Uniform has no whole number from {self.low} to {self.high}'
      )

  def draw(self, rng: random.Random) -> float | int:
    low, high = self.low, self.high
    if self.whole and not self.log:
      return rng.randint(math.ceil(low), math.floor(high))
    if self.log:
      value = math.exp(rng.uniform(math.log(low), math.log(high)))
    else:
      value = rng.uniform(low, high)
    if self.whole:
      return min(max(round(value), math.ceil(low)), math.floor(high))
    digits = self.digits
    if high > low:
      span = max(abs(low), abs(high)) / (high - low)
      digits += max(math.floor(math.log10(span)), 0)
    return min(max(float(f'{value:.{digits}g}'), low), high)


def sample(
  count: int,
  keys: Mapping[str, Uniform | Sequence],
  seed: int = 0,
) -> Iterator[Variant]:
  """So many random variants, no two alike; the same ones for a seed.

  A longer sample begins with the shorter one of its seed, so that a sweep may
  be extended. Where there are fewer variants, all of them come.

  >>> rates = {'optimizer.learning_rate': Uniform(1e-4, 1e-1, log=True)}
  >>> list(sample(2, rates))
  [{'optimizer.learning_rate': 0.0341}, {'optimizer.learning_rate': 0.0188}]

  Args:
    count: of variants.
    keys: key -> `Uniform`, or values of which one is chosen.
    seed: of the random numbers.

  Raises:
    ConfigError: a key has no values to choose from.
  """
  rng = random.Random(seed)
  for key, values in keys.items():
    if not isinstance(values, Uniform) and not len(values):
      raise ConfigError(f'sample has no values for {key}')
  seen, in_vain = set(), 0
  while len(seen) < count and in_vain < _IN_VAIN:
    variant = {
      key: values.draw(rng)
      if isinstance(values, Uniform)
      else values[rng.randrange(len(values))]
      for key, values in keys.items()
    }
    known = len(seen)
    seen.add(repr(variant))
    if len(seen) == known:
      in_vain += 1
      continue
    in_vain = 0
    yield variant


def _merge(parts: Iterable[Mapping]) -> Variant:
  merged = {}
  for part in parts:
    for key, value in part.items():
      if key in merged and merged[key] != value:
        raise ConfigError(
          f'two sweeps set {key}, to {merged[key]!r} and to {value!r}'
        )
      merged[key] = value
  return merged
