"""A generated stream of impressions whose truth drifts, window by window.

In window t, with w_c and w_s in the ratio c : 1 - c of `common` and of squares
that sum to 1, the logit of a click of a row in segment g is

    a_g(t) + sum over fields of [w_c u_v(t) + w_s s_{g,v}(t)]
           + sum over pairs of fields of <p_v(t), q_w(t)>

where v and w are the values that the row has. a, u, s, p and q are stationary
AR(1) processes over windows, whose correlation with what they are now falls to
a half in `half_life` windows. Some values are born anew in each window, with
another id and other effects, and an id that has gone never returns. So a model
that stands still falls behind. The true probability of each row is known, and
with it the least NE that any model can have (`find_floor`).

Effects are centred under the frequencies of the values. Those of all fields
together, in each segment, and those of all pairs together are then scaled so
that the deviation of the logits is `signal` in every window, whatever has been
drawn.

Window k is a function of the options and k, but for `windows`: a longer stream
begins with a shorter one.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from genrec_jax.data.ranking import raw
from genrec_jax.data.ranking.generated_clicks import (
  apply_sigmoid,
  draw_places,
  find_entropy,
  make_zipf,
)

NEVER = -1  # the time of a label that does not arrive
# The largest delay over the mean one: a draw has 53 bits.
LONGEST_DELAY = 53 * math.log(2)
_CHUNK = 1 << 12  # rows that a reader yields at once
_QUADRATURE_POINTS = 64  # of the quadrature over the logits
# Each use of random numbers has a sequence of its own.
_PAIRS, _PROCESSES, _ROWS = range(3)


@dataclasses.dataclass(frozen=True)
class DriftLog:
  """What a stream is like.

  Attributes:
    windows: how many there are.
    rows: rows of a window.
    window_s: seconds of a window; the first one begins at 0.
    segments: surfaces that rows are shown on.
    segment_zipf: exponent of the frequencies of segments.
    fields: categorical features beside the segment, named c0, c1 and so on.
    values: values of each field that are alive at a time.
    zipf: exponent of the frequencies of values.
    pairs: pairs of fields that interact, drawn by the seed.
    width: of the vectors whose product is the effect of a pair; a smaller one
      is easier to learn.
    half_life: windows after which half of the correlation of effects is left.
    jumps: probability that a window begins with a jump, in which a share of the
      values, drawn from 0 to 1, gets other effects at once.
    reborn: share of the values that are born anew in each window.
    common: how much the effects of fields have in common in all segments: 1 is
      everything, 0 nothing. Pairs have the same effects in all segments.
    signal: deviation of the logits of a segment in a window.
    pair_share: share of the variance of the signal that pairs have, where there
      are pairs.
    rate: expected share of clicks.
    rate_spread: deviation of the mean logits of segments, which drift too.
    rate_half_life: their half-life; 0 is `half_life`.
    delay: mean windows between a row and its label, exponential.
    lost: share of the clicks whose label never arrives.
    seed: of everything.
  """

  windows: int = 24
  rows: int = 10_000
  window_s: int = 3_600
  segments: int = 4
  segment_zipf: float = 0.5
  fields: int = 8
  values: int = 500
  zipf: float = 1.0
  pairs: int = 8
  width: int = 4
  half_life: float = 24.0
  jumps: float = 0.0
  reborn: float = 0.01
  common: float = 0.7
  signal: float = 1.5
  pair_share: float = 0.3
  rate: float = 0.02
  rate_spread: float = 0.3
  rate_half_life: float = 0.0
  delay: float = 0.5
  lost: float = 0.0
  seed: int = 0

  def __post_init__(self):
    for name, least in (
      ('windows', 1),
      ('rows', 1),
      ('window_s', 1),
      ('segments', 1),
      ('segment_zipf', 0),
      ('fields', 1),
      ('values', 2),
      ('zipf', 0),
      ('pairs', 0),
      ('width', 1),
      ('signal', 0),
      ('rate_spread', 0),
      ('rate_half_life', 0),
      ('delay', 0),
      ('seed', 0),
    ):
      if not getattr(self, name) >= least:
        raise ValueError(
          f'data.drift.{name} must be at least {least}, not '
          f'{getattr(self, name)}'
        )
    for name in ('jumps', 'reborn', 'common', 'pair_share', 'lost'):
      if not 0 <= getattr(self, name) <= 1:
        raise ValueError(
          f'data.drift.{name} is {getattr(self, name)}, must be from 0 to 1'
        )
    if not self.half_life > 0:
      raise ValueError(
        f'data.drift.half_life is {self.half_life}, must be above 0'
      )
    if not 0 < self.rate < 1:
      raise ValueError(
        f'data.drift.rate is {self.rate}, must be above 0 and below 1'
      )
    most = math.comb(self.fields, 2)
    if self.pairs > most:
      raise ValueError(
        f'data.drift.pairs is {self.pairs}; {self.fields} fields make 0 to '
        f'{most} pairs'
      )

  @property
  def features(self) -> list[str]:
    return ['segment', *(f'c{i}' for i in range(self.fields))]

  @property
  def names(self) -> list[str]:
    """The columns; those behind the features say what a model may not see."""
    beside = ['time', 'window', 'example_id', 'probability']
    return ['label', *self.features, *beside]

  @property
  def options(self) -> dict[str, dict]:
    """Options of the features, as `data.features` has them."""
    return {name: {'kind': 'categorical'} for name in self.features}


@dataclasses.dataclass(frozen=True)
class DriftWindow:
  """N rows of a window, in the order of time.

  Attributes:
    example_id: `[N]` int64, another one for each row of the stream.
    time: `[N]` int64 seconds.
    segment: `[N]` int64.
    ids: `[N, F]` int64, of the values of the fields.
    label: `[N]` uint8, 1 for a click.
    probability: `[N]` float64, the true one of a click.
    label_time: `[N]` int64 seconds when a click's label arrives; `NEVER` where
      it is lost, and of rows without a click.
  """

  example_id: np.ndarray
  time: np.ndarray
  segment: np.ndarray
  ids: np.ndarray
  label: np.ndarray
  probability: np.ndarray
  label_time: np.ndarray

  def __len__(self) -> int:
    return len(self.label)


@dataclasses.dataclass(frozen=True)
class Processes:
  """The AR(1) processes in one window, each of deviation 1.

  S segments, F fields of V values, P pairs of vectors of width W.

  Attributes:
    born: `[F, V]` int64 window in which the value was born, 0 for the first.
    base: `[S]` of the mean logits.
    common: `[F, V]` effects u, of all segments.
    own: `[S, F, V]` effects s, of one segment each.
    left: `[P, V, W]` vectors p, of the first field of a pair.
    right: `[P, V, W]` vectors q, of the second one.
  """

  born: np.ndarray
  base: np.ndarray
  common: np.ndarray
  own: np.ndarray
  left: np.ndarray
  right: np.ndarray


@dataclasses.dataclass(frozen=True)
class Effects:
  """What is added up to the logits of a window.

  Attributes:
    base: `[S]` mean logits of the segments.
    fields: `[S, F, V]`, of the value of each field.
    left: `[P, V, W]`; its products with `right` are the effects of pairs.
    right: `[P, V, W]`.
  """

  base: np.ndarray
  fields: np.ndarray
  left: np.ndarray
  right: np.ndarray


class DriftStream:
  """Makes the windows of a stream.

  >>> stream = DriftStream(DriftLog(rows=500, fields=3, pairs=1))
  >>> window = stream.window(5)
  >>> window.ids.shape, window.time[0] // 3600, window.example_id[:2].tolist()
  ((500, 3), np.int64(5), [2500, 2501])

  Windows may be asked for in any order; one behind the other is fastest, since
  the processes go forward alone.
  """

  def __init__(self, log: DriftLog):
    self.log = log
    every = list(itertools.combinations(range(log.fields), 2))
    chosen = self._generate(_PAIRS).permutation(len(every))[: log.pairs]
    self.pairs = [every[i] for i in sorted(chosen.tolist())]
    self.shares = make_zipf(log.segments, log.segment_zipf)
    self.frequencies = make_zipf(log.values, log.zipf)
    self.bias = _find_bias(log.rate, math.hypot(log.signal, log.rate_spread))
    self._at, self._processes = -1, None

  def processes(self, k: int) -> Processes:
    """The processes in window k."""
    if k < 0:
      raise ValueError(f'there is no window {k}; the first one is 0')
    if k < self._at:
      self._at, self._processes = -1, None
    while self._at < k:
      self._processes = self._advance(self._at + 1, self._processes)
      self._at += 1
    return self._processes

  def effects(self, k: int) -> Effects:
    """What is added up to the logits of window k."""
    log, now = self.log, self.processes(k)
    pair_share = log.pair_share if self.pairs else 0.0
    scale = math.hypot(log.common, 1 - log.common)
    fields = (log.common * now.common + (1 - log.common) * now.own) / scale
    fields -= (fields * self.frequencies).sum(-1, keepdims=True)
    # Values of different fields are drawn independently: variances add up.
    variance = (fields**2 * self.frequencies).sum((-1, -2))
    scale = _find_scale(log.signal * (1 - pair_share) ** 0.5, variance)
    # A centred vector has no effect but together with the other one.
    weight = self.frequencies[:, None]
    left = now.left - (now.left * weight).sum(1, keepdims=True)
    right = now.right - (now.right * weight).sum(1, keepdims=True)
    # Of <p, q> for independent p, q: their covariances, multiplied.
    variance = (_covary(left, weight) * _covary(right, weight)).sum()
    left *= _find_scale(log.signal * pair_share**0.5, variance)
    base = self.bias + log.rate_spread * now.base
    return Effects(base, fields * scale[:, None, None], left, right)

  def window(self, k: int) -> DriftWindow:
    """The rows of window k, which are the same in whatever order it is asked.

    Args:
      k: from 0; `windows` of the log is no limit.
    """
    log, born = self.log, self.processes(k).born
    rng = self._generate(_ROWS, k)
    # In a fixed order: each draw takes the place of those before it.
    segment = draw_places(rng, self.shares, (log.rows,))
    places = draw_places(rng, self.frequencies, (log.rows, log.fields))
    time = np.sort(rng.integers(log.window_s, size=log.rows))
    logits = self.add_effects(self.effects(k), segment, places)
    probability = apply_sigmoid(logits)
    label = rng.random(log.rows) < probability
    delay = -np.log1p(-rng.random(log.rows)) * (log.delay * log.window_s)
    arrives = label & (rng.random(log.rows) >= log.lost)
    time += k * log.window_s
    return DriftWindow(
      example_id=k * log.rows + np.arange(log.rows),
      time=time,
      segment=segment,
      ids=find_ids(log, born[np.arange(log.fields), places], places),
      label=label.astype(np.uint8),
      probability=probability,
      label_time=np.where(arrives, time + delay.astype(np.int64), NEVER),
    )

  def add_effects(
    self, effects: Effects, segment: np.ndarray, places: np.ndarray
  ) -> np.ndarray:
    """The logits of N rows.

    Args:
      effects: of their window.
      segment: `[N]`.
      places: `[N, F]` the number of the value within its field.

    Returns:
      `[N]` float64.
    """
    out = effects.base[segment]
    for field in range(self.log.fields):
      out += effects.fields[:, field][segment, places[:, field]]
    for i, (a, b) in enumerate(self.pairs):
      left, right = effects.left[i], effects.right[i]
      out += (left[places[:, a]] * right[places[:, b]]).sum(-1)
    return out

  def _advance(self, k: int, last: Processes | None) -> Processes:
    log, rng = self.log, self._generate(_PROCESSES, k)
    base = rng.standard_normal(log.segments)
    common = rng.standard_normal((log.fields, log.values))
    own = rng.standard_normal((log.segments, log.fields, log.values))
    size = len(self.pairs), log.values, log.width
    left, right = rng.standard_normal(size), rng.standard_normal(size)
    reborn = rng.random((log.fields, log.values)) < log.reborn
    jump, share = rng.random(2)
    jumped = rng.random((log.fields, log.values)) < share
    if last is None:
      born = np.zeros((log.fields, log.values), np.int64)
      return Processes(born, base, common, own, left, right)
    # What is kept of the last window; of a value that begins anew, nothing.
    rest = 0.5 ** (1 / log.half_life)
    slow = 0.5 ** (1 / (log.rate_half_life or log.half_life))
    keep = np.where(reborn | (jumped & (jump < log.jumps)), 0.0, rest)
    firsts = [a for a, _ in self.pairs]
    seconds = [b for _, b in self.pairs]
    return Processes(
      np.where(reborn, k, last.born),
      _blend(last.base, base, np.float64(slow)),
      _blend(last.common, common, keep),
      _blend(last.own, own, keep),
      _blend(last.left, left, keep[firsts, :, None]),
      _blend(last.right, right, keep[seconds, :, None]),
    )

  def _generate(self, *use: int) -> np.random.Generator:
    return np.random.default_rng([self.log.seed, *use])


def find_ids(log: DriftLog, born: np.ndarray, places: np.ndarray) -> np.ndarray:
  """Ids of values: another one for each birth.

  >>> find_ids(DriftLog(values=10), np.array([0, 3]), np.array([7, 7])).tolist()
  [7, 37]

  Args:
    log: the stream.
    born: int64 windows in which the values were born.
    places: the numbers of the values within their fields.

  Returns:
    int64, of the same shape.
  """
  return born * log.values + places


def find_floor(windows: Iterable[DriftWindow]) -> float:
  """The NE of the true probabilities, which no model can beat in the mean.

  It is the mean entropy of the probabilities over that of their mean. The NE
  that is measured with drawn labels differs from it by their noise.

  Args:
    windows: whose rows are taken together.
  """
  entropy = total = rows = 0.0
  for window in windows:
    entropy += find_entropy(window.probability).sum()
    total += window.probability.sum()
    rows += len(window)
  if not rows:
    raise ValueError('there are no windows, so that no floor is known')
  return float(entropy / rows / find_entropy(np.float64(total / rows)))


def read_chunks(
  log: DriftLog, column_names: Sequence[str]
) -> Iterator[raw.RawChunk]:
  """The stream as a reader yields it."""
  stream = DriftStream(log)
  for k in range(log.windows):
    window = stream.window(k)
    columns = {
      'label': window.label.astype(np.int64),
      'segment': window.segment,
      **{f'c{i}': window.ids[:, i] for i in range(log.fields)},
      'time': window.time,
      'window': np.full(log.rows, k),
      'example_id': window.example_id,
      'probability': window.probability,
    }
    for first in range(0, log.rows, _CHUNK):
      stop = min(first + _CHUNK, log.rows)
      yield raw.RawChunk(
        {
          name: raw.NumberColumn(columns[name][first:stop])
          for name in column_names
        },
        stop - first,
        lambda i, k=k, first=first: (
          f'generated stream, window {k}, row {first + i}'
        ),
      )


def _blend(last: np.ndarray, fresh: np.ndarray, keep: np.ndarray) -> np.ndarray:
  """A step of AR(1) that leaves the variance at 1."""
  return keep * last + np.sqrt(1 - keep**2) * fresh


def _covary(vectors: np.ndarray, weight: np.ndarray) -> np.ndarray:
  """`[P, W, W]` covariances of centred vectors `[P, V, W]`."""
  # No matrix product: its sums depend on the number of threads.
  return np.einsum('pvi,pvj->pij', vectors * weight, vectors)


def _find_scale(deviation: float, variance: np.ndarray) -> np.ndarray:
  # Without pairs there is no variance; nor where one value has all rows.
  return deviation / np.sqrt(np.maximum(variance, 1e-12))


def _find_bias(rate: float, deviation: float) -> float:
  """The mean of normal logits whose mean probability is `rate`."""
  point, weight = np.polynomial.hermite_e.hermegauss(_QUADRATURE_POINTS)
  weight = weight / weight.sum()
  low, high = -40.0 - 8 * deviation, 40.0 + 8 * deviation
  for _ in range(100):  # halves: as near as numbers can be
    middle = (low + high) / 2
    mean = (apply_sigmoid(middle + deviation * point) * weight).sum()
    low, high = (middle, high) if mean < rate else (low, middle)
  return (low + high) / 2
