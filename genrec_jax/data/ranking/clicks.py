"""A generated click log with planted interactions of known order.

Every value of a field has `traits` hidden signs. A term of order o is the
product of one trait of each of o distinct fields; the sums of the terms of each
order have equal variance, and a click is a draw from the sigmoid of their sum
and some noise. Traits are centred under the frequencies of their values, so
that a term of order o says nothing to a model of lower order. Numbers are
standard normal and take part as fields of one trait.

With `blocks`, the categorical fields are dealt out to that many groups, and
most terms join fields of one group: `list_blocks` says which fields belong
together, for whoever wants to find it out from the data.

Row i is a function of the seed and i: a longer log begins with a shorter one.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from genrec_jax.data.ranking import raw
from genrec_jax.data.ranking.generated_clicks import apply_sigmoid

BIAS = -1.0  # logit of an average row
_UNIT = 1 << 12  # rows of one draw
_NOISE_POINTS = 32  # of the quadrature over the noise


@dataclasses.dataclass(frozen=True)
class ClickLog:
  """What a log is like.

  Attributes:
    rows: how many.
    fields: categorical features, c0, c1, ...
    values: of each field; value k is 1 / (k + 1)^zipf times as frequent as 0.
    numbers: numeric features, n0, n1, ...
    orders: of the planted interactions.
    terms: of each order.
    noise: deviation of what no feature explains, in the logit.
    seed: of everything.
    traits: hidden signs of a value.
    signal: deviation of the logit that the features explain.
    zipf: exponent of the frequencies.
    blocks: groups of fields that interact, see `list_blocks`; 0 for none.
    within: probability that a term joins fields of one block, where there are
      blocks; the others join any features.
    silent: categorical features that no term has, the last ones.
  """

  rows: int = 120_000
  fields: int = 12
  values: int = 200
  numbers: int = 3
  orders: tuple[int, ...] = (1, 2, 3, 4)
  terms: int = 12
  noise: float = 0.5
  seed: int = 0
  traits: int = 3
  signal: float = 2.0
  zipf: float = 1.0
  blocks: int = 0
  within: float = 0.9
  silent: int = 0

  def __post_init__(self):
    for name, least in (('rows', 1), ('fields', 0), ('values', 2)):
      if getattr(self, name) < least:
        raise ValueError(
          f'data.clicks.{name} must be at least {least}, not '
          f'{getattr(self, name)}'
        )
    for name in ('numbers', 'terms', 'noise', 'signal', 'zipf'):
      if getattr(self, name) < 0:
        raise ValueError(f'data.clicks.{name} must not be negative')
    if self.terms and self.traits < 1:
      raise ValueError('data.clicks.traits must be at least 1')
    if not self.fields + self.numbers:
      raise ValueError('data.clicks.fields and numbers are both 0')
    if not 0 <= self.silent <= self.fields:
      raise ValueError(
        f'data.clicks.silent is {self.silent}; there are {self.fields} fields'
      )
    columns = self.telling + self.numbers
    for order in self.orders:
      if not 1 <= order <= columns:
        raise ValueError(
          f'data.clicks.orders holds {order}; there are {columns} features'
          + (' that terms may have' if self.silent else '')
        )
    self._check_blocks()

  def _check_blocks(self) -> None:
    if not 0 <= self.within <= 1:
      raise ValueError(
        f'data.clicks.within is {self.within}, must be from 0 to 1'
      )
    telling = self.telling
    if not 0 <= self.blocks <= telling:
      raise ValueError(
        f'data.clicks.blocks is {self.blocks}; {telling} fields make 0 to '
        f'{telling} blocks'
      )
    if not self.blocks:
      return
    smallest = telling // self.blocks
    for order in self.orders:
      if order > smallest:
        raise ValueError(
          f'data.clicks.orders holds {order}, but a block may have no more '
          f'than {smallest} fields: {telling} fields are in '
          f'{self.blocks} blocks'
        )

  @property
  def telling(self) -> int:
    """Categorical features that terms may have, the first ones."""
    return self.fields - self.silent

  @property
  def names(self) -> list[str]:
    return [
      'label',
      *(f'c{i}' for i in range(self.fields)),
      *(f'n{i}' for i in range(self.numbers)),
    ]

  @property
  def options(self) -> dict[str, dict]:
    """Options of the features, as `data.features` has them."""
    return {
      name: {'kind': 'categorical' if name[0] == 'c' else 'numeric'}
      for name in self.names[1:]
    }


def list_blocks(log: ClickLog) -> list[list[str]]:
  """The planted partition: names of the fields of each block.

  Blocks differ by one field at most. Fields are dealt out by a draw, so that
  neighbouring numbers mean nothing.

  >>> list_blocks(ClickLog(fields=6, orders=(2,), blocks=2))
  [['c0', 'c2', 'c5'], ['c1', 'c3', 'c4']]

  Args:
    log: with blocks or, for an empty list, without.
  """
  return [[f'c{i}' for i in block] for block in _deal_blocks(log)]


def _deal_blocks(log: ClickLog) -> list[np.ndarray]:
  if not log.blocks:
    return []
  # A generator of its own: the draws of traits and terms know no blocks.
  rng = np.random.default_rng([log.seed, 2])
  pieces = np.array_split(rng.permutation(log.telling), log.blocks)
  return [np.sort(piece) for piece in pieces]


class PlantedSignal:
  """The hidden part of a log: traits and terms."""

  def __init__(self, log: ClickLog):
    self.log = log
    rng = np.random.default_rng([log.seed, 0])
    weight = (1.0 + np.arange(log.values)) ** -log.zipf
    frequency = weight / weight.sum()
    self._cumulative = np.cumsum(frequency)[:-1]
    # As many of each sign, then centred and scaled for these frequencies.
    signs = np.where(np.arange(log.values) % 2, 1.0, -1.0)
    traits = rng.permuted(
      np.broadcast_to(signs, (log.fields, log.traits, log.values)), axis=-1
    )
    traits = traits - (traits @ frequency)[..., None]
    traits /= np.sqrt(traits**2 @ frequency)[..., None]
    self._traits = traits.astype(np.float32)
    self._overlap = np.einsum(
      'ftv,fuv,v->ftu', traits, traits, frequency, optimize=True
    )
    self._terms = [self._draw_terms(rng, order) for order in log.orders]
    share = log.signal / max(1, len(log.orders)) ** 0.5
    self._scales = [
      share / max(self._sum_variance(terms), 1e-12) ** 0.5
      for terms in self._terms
    ]

  def find_kinds(self) -> np.ndarray:
    """`[fields, values]` the kind of each value: those of one are alike.

    Traits that no term has make no difference, and so no kind.
    """
    # A trait has two values, one on each side of the middle between them.
    middle = (self._traits.max(-1) + self._traits.min(-1)) / 2
    bits = self._traits > middle[..., None]
    used = np.zeros(bits.shape[:2], bool)
    for field, trait in (x for terms in self._terms for t in terms for x in t):
      if field < self.log.fields:  # and no number
        used[field, trait] = True
    bits = bits & used[..., None]
    return np.einsum('ftv,t->fv', bits, 1 << np.arange(bits.shape[1]))

  def _draw_terms(self, rng, order: int) -> list[list[tuple[int, int]]]:
    """Terms: each a list of (feature, trait)."""
    log, terms = self.log, []
    blocks = _deal_blocks(log)
    for _ in range(log.terms):
      # A log without blocks draws what it drew before there were any.
      if blocks and rng.random() < log.within:
        block = blocks[rng.integers(len(blocks))]
        chosen = np.sort(rng.permutation(block)[:order])
      else:
        chosen = np.sort(rng.permutation(log.telling + log.numbers)[:order])
        chosen[chosen >= log.telling] += log.silent  # numbers come last
      trait = rng.integers(max(1, log.traits), size=order)
      trait[chosen >= log.fields] = 0
      terms.append(list(zip(chosen.tolist(), trait.tolist(), strict=True)))
    return terms

  def _sum_variance(self, terms) -> float:
    """Of the sum of the terms; those of other features are uncorrelated."""
    total = 0.0
    for a in terms:
      for b in terms:
        if [f for f, _ in a] == [f for f, _ in b]:
          product = 1.0
          for (field, t), (_, u) in zip(a, b, strict=True):
            if field < self.log.fields:
              product *= self._overlap[field, t, u]
          total += product
    return total

  def draw(self, unit: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values `[R, fields]`, numbers `[R, numbers]`, labels `[R]` of a unit."""
    log = self.log
    rng = np.random.default_rng([log.seed, 1, unit])
    values = np.searchsorted(
      self._cumulative, rng.random((_UNIT, log.fields)), 'right'
    )
    numbers = rng.standard_normal((_UNIT, log.numbers), np.float32)
    noise = rng.standard_normal(_UNIT)
    logits = self.signal(values, numbers) + log.noise * noise
    labels = rng.random(_UNIT) < apply_sigmoid(logits)
    return values, numbers, labels.astype(np.int64)

  def signal(self, values: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """`[R]` logits without the noise."""
    known = {}

    def find_factor(place):
      field, trait = place
      if field >= self.log.fields:
        return numbers[:, field - self.log.fields]
      if place not in known:
        known[place] = self._traits[field, trait][values[:, field]]
      return known[place]

    out = np.full(len(values), BIAS)
    for terms, scale in zip(self._terms, self._scales, strict=True):
      total = np.zeros(len(values))
      for term in terms:
        total += np.prod([find_factor(place) for place in term], axis=0)
      out += scale * total
    return out

  def probabilities(
    self, values: np.ndarray, numbers: np.ndarray
  ) -> np.ndarray:
    """`[R]` chance of a click given all features: the best prediction."""
    point, weight = np.polynomial.hermite_e.hermegauss(_NOISE_POINTS)
    logits = self.signal(values, numbers)[:, None]
    chance = apply_sigmoid(logits + self.log.noise * point[None])
    return chance @ (weight / weight.sum())


def generate_arrays(
  log: ClickLog, first: int = 0, stop: int | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
  """Rows `first` .. `stop` - 1 of a log, in pieces.

  Yields:
    Values `[R, fields]`, numbers `[R, numbers]`, labels `[R]` and `[R]` chances
    of a click, as the best possible model would predict them.
  """
  planted = PlantedSignal(log)
  for values, numbers, labels in _draw_units(planted, first, stop):
    yield values, numbers, labels, planted.probabilities(values, numbers)


def _draw_units(planted: PlantedSignal, first: int, stop: int | None):
  stop = planted.log.rows if stop is None else stop
  for unit in range(first // _UNIT, -(-stop // _UNIT)):
    a = max(first - unit * _UNIT, 0)
    b = min(stop - unit * _UNIT, _UNIT)
    yield tuple(column[a:b] for column in planted.draw(unit))


def true_probabilities(
  log: ClickLog, first: int = 0, stop: int | None = None
) -> np.ndarray:
  """`[R]` true chances of a click of the rows `first` .. `stop` - 1."""
  return np.concatenate([p for *_, p in generate_arrays(log, first, stop)])


def read_chunks(
  log: ClickLog, column_names: Sequence[str]
) -> Iterator[raw.RawChunk]:
  """The log as a reader yields it."""
  planted, done = PlantedSignal(log), 0
  for values, numbers, labels in _draw_units(planted, 0, None):
    columns = {'label': raw.NumberColumn(labels)}
    for i in range(log.fields):
      columns[f'c{i}'] = raw.NumberColumn(values[:, i])
    for i in range(log.numbers):
      columns[f'n{i}'] = raw.NumberColumn(numbers[:, i].astype(np.float64))
    yield raw.RawChunk(
      {name: columns[name] for name in column_names},
      len(labels),
      lambda i, done=done: f'generated clicks, row {done + i}',
    )
    done += len(labels)
