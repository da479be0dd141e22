"""Stochastic length: of a long history only a part is trained on.

The attention of a history of n events costs n^2. A history that is longer than
N^(alpha/2), N being the most events that are read, is cut to that many events
with probability 1 - N^alpha / n^2. Its expected cost is then at most in the
order of N^alpha. Nothing is cut in evaluation.

It is done before a batch is packed, so that work falls with the events. Kept
events stay in order and have their true ages; their positions are those among
what was kept.
"""

import dataclasses

import numpy as np

from genrec_jax.data import splits
from genrec_jax.data.requests import draws

SELECTORS = ('greedy', 'random', 'feature_weighted')
# Powers are rounded: 1024^.7 is 128, and a little less in floating point.
_ROUNDING = 1e-12


@dataclasses.dataclass(frozen=True)
class StochasticLength:
  """How histories are cut.

  >>> StochasticLength(1.6).find_threshold(4096)
  776

  Attributes:
    alpha: above 1, at most 2; 2 cuts nothing.
    selector: which events are kept of a history that is cut. 'greedy' keeps
      the latest, 'random' draws them all alike. 'feature_weighted' draws them
      one by one without putting back, event i with a weight of 1 - f_i / sum(f)
      over all events of the history, f being the age of an event when the
      candidates are asked for. Where all ages are equal, and without times,
      this is 'random'.
  """

  alpha: float
  selector: str = 'feature_weighted'

  def __post_init__(self):
    if not 1 < self.alpha <= 2:
      raise ValueError(
        f'alpha of stochastic length is {self.alpha}, must be above 1 and at '
        'most 2'
      )
    if self.selector not in SELECTORS:
      raise ValueError(
        f'selector of stochastic length is {self.selector!r}, must be one of '
        f'{", ".join(SELECTORS)}'
      )

  def find_threshold(self, most: int) -> int:
    """Events of a history that was cut, where `most` are read."""
    return int(most ** (self.alpha / 2) * (1 + _ROUNDING))

  def find_probability(self, lengths: np.ndarray, most: int) -> np.ndarray:
    """With which probability histories are cut, `[n]` float64.

    Args:
      lengths: `[n]` events of each, at most `most`.
      most: N, events that are read of a history.
    """
    squares = np.maximum(np.asarray(lengths, np.float64), 1) ** 2
    # Not above 0 up to the threshold, whose square is at most N^alpha.
    return np.maximum(1 - float(most) ** self.alpha / squares, 0)

  def find_cut(
    self, lengths: np.ndarray, most: int, keys: np.ndarray
  ) -> np.ndarray:
    """Which histories are cut, `[n]` bool.

    Args:
      lengths: `[n]` events of each, at most `most`.
      most: N, events that are read of a history.
      keys: `[n]` of the draws, see `draws.make_keys`.
    """
    uniform = draws.to_uniform(draws.draw_bits(keys, np.zeros(1, int)))
    return uniform < self.find_probability(lengths, most)

  def place_events(
    self,
    begin: np.ndarray,
    lengths: np.ndarray,
    cut: np.ndarray,
    most: int,
    keys: np.ndarray,
    *,
    time: np.ndarray | None = None,
    asked: np.ndarray | None = None,
  ) -> np.ndarray:
    """Positions of the events that stay, `[K]` int64, history behind history.

    Args:
      begin: `[n]` position of the first event of each history.
      lengths: `[n]` events of each.
      cut: `[n]` bool, which of them are cut.
      most: N, events that are read of a history.
      keys: `[n]` of the draws.
      time: `[N]` of all events; None where nothing has a time.
      asked: `[n]` times at which the candidates are asked for.
    """
    if not cut.any():
      return splits.expand_ranges(begin, lengths)
    count, long = self.find_threshold(most), lengths[cut]
    if self.selector == 'greedy':
      places = (long - count)[:, None] + np.arange(count)
    else:
      bits = draws.draw_bits(
        np.repeat(keys[cut], long),
        # Draw 0 of a key has said whether its history is cut.
        1 + splits.expand_ranges(np.zeros_like(long), long),
      )
      if self.selector == 'feature_weighted' and time is not None:
        at = splits.expand_ranges(begin[cut], long)
        weights = weigh_events(np.repeat(asked[cut], long) - time[at], long)
        # The smallest of such numbers are a weighted draw without putting
        # back (Efraimidis and Spirakis); a weight of 0 comes last.
        with np.errstate(divide='ignore'):
          bits = -np.log1p(-draws.to_uniform(bits)) / weights
      places = draws.keep_smallest(bits, long, count)
    return draws.place_runs(begin, lengths, cut, places)


def weigh_events(ages: np.ndarray, lengths: np.ndarray) -> np.ndarray:
  """1 - f / sum(f) of the ages f of each history, `[K]` float64.

  >>> weigh_events(np.array([6, 2, 0, 4, 4, 0]), np.array([3, 2, 1])).tolist()
  [0.25, 0.75, 1.0, 0.5, 0.5, 1.0]

  Args:
    ages: `[K]` of the events, history behind history.
    lengths: `[m]` events of each history, none 0.
  """
  ages = ages.astype(np.float64)
  sums = np.add.reduceat(ages, np.cumsum(lengths) - lengths)
  # All ages 0: all weights are 1.
  return 1 - ages / np.repeat(np.where(sums > 0, sums, 1), lengths)
