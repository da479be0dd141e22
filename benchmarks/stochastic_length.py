"""What stochastic length leaves of histories, beside the paper's table.

  python -m benchmarks.stochastic_length
  python -m benchmarks.stochastic_length --train --runs DIR

The paper (Zhai et al. 2024, table 3) prints the sparsity, 1 - mean length / N,
for histories of 30, 60 and 90 days, four N and five alphas. It does not print
the lengths before. Its row of alpha = 2, which cuts nothing, is the mean of
min(L, N) at four N: a distribution of lengths L is fitted to this row alone, a
normal one with a share spread evenly below its mean, and nothing else is tuned.
The other rows follow in two ways: 'formula' sums over the distribution, 'drawn'
makes users of such lengths and lets the code that packs batches draw.

`--train` measures what models lose by it, see `stochastic_length_runs`.
"""

import dataclasses

import numpy as np
from scipy import optimize, stats

from benchmarks import cli, gr_runs, stochastic_length_runs
from genrec_jax.data.requests import packing
from genrec_jax.data.requests.requests import EventStore, Requests
from genrec_jax.data.requests.stochastic_length import StochasticLength

MOST = (1024, 2048, 4096, 8192)
# Days -> alpha -> sparsity at each N, in percent.
PAPER = {
  30: {
    1.6: (71.5, 76.1, 80.5, 84.4),
    1.7: (56.1, 63.6, 69.8, 75.6),
    1.8: (40.2, 45.3, 54.1, 66.4),
    1.9: (17.2, 21.0, 36.3, 64.1),
    2.0: (3.1, 6.6, 29.1, 64.1),
  },
  60: {
    1.6: (71.5, 75.8, 79.4, 83.8),
    1.7: (57.3, 60.6, 67.3, 74.5),
    1.8: (37.5, 42.6, 51.9, 62.6),
    1.9: (15.0, 17.7, 29.6, 57.8),
    2.0: (1.2, 2.5, 18.9, 57.6),
  },
  90: {
    1.6: (68.0, 74.6, 78.6, 83.5),
    1.7: (56.3, 61.2, 67.5, 74.3),
    1.8: (38.9, 42.0, 50.4, 61.0),
    1.9: (16.2, 17.3, 27.2, 54.3),
    2.0: (0.9, 1.6, 13.5, 54.0),
  },
}
USERS = 100_000
LONGEST = 16_384  # of the fitted lengths, beyond which nothing is left
COLUMNS = (
  'case',
  *(f'{way}_{n}' for n in MOST for way in ('drawn', 'formula', 'paper')),
  'mean', 'deviation', 'below', 'fit_off', *(f'off_{n}' for n in MOST),
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Lengths:
  """A normal distribution, of which a share is spread evenly below its mean.

  Attributes:
    mean: of the normal one, in events.
    deviation: likewise.
    below: share of users whose lengths lie evenly between 1 and the mean.
  """

  mean: float
  deviation: float
  below: float

  def find_shares(self) -> np.ndarray:
    """The share of users with 0, 1, ... LONGEST events."""
    length = np.arange(LONGEST + 1)
    normal = stats.norm.pdf(length, self.mean, self.deviation) * (length > 0)
    even = ((length > 0) & (length < self.mean)).astype(float)
    return (
      1 - self.below
    ) * normal / normal.sum() + self.below * even / even.sum()

  def find_sparsity(self, most: int, alpha: float) -> float:
    """In percent, by the formula."""
    how = StochasticLength(alpha)
    lengths = np.minimum(np.arange(LONGEST + 1), most)
    cut = how.find_probability(lengths, most)
    kept = cut * how.find_threshold(most) + (1 - cut) * lengths
    return 100 * (1 - self.find_shares() @ kept / most)

  def make_users(self, count: int) -> np.ndarray:
    """`[count]` lengths, at evenly spread quantiles."""
    quantiles = (np.arange(count) + 0.5) / count
    return np.searchsorted(np.cumsum(self.find_shares()), quantiles)


def fit_lengths(sparsities: tuple[float, ...]) -> Lengths:
  """Fits lengths to the row of alpha = 2, by least squares."""

  def find_errors(values: np.ndarray) -> list[float]:
    lengths = Lengths(1000 * values[0], 1000 * values[1], values[2])
    return [
      lengths.find_sparsity(most, 2.0) - wanted
      for most, wanted in zip(MOST, sparsities, strict=True)
    ]

  bounds = ([0.5, 0.05, 0.0], [10.0, 4.0, 1.0])
  found = optimize.least_squares(find_errors, [3.5, 0.7, 0.1], bounds=bounds)
  mean, deviation, below = found.x
  return Lengths(1000 * mean, 1000 * deviation, below)


def draw_sparsity(lengths: np.ndarray, most: int, alpha: float) -> float:
  """In percent, of users of whom each asks once, as batches are packed."""
  offsets = np.concatenate([[0], np.cumsum(lengths)])
  users = np.arange(len(lengths))
  none = np.zeros(len(lengths) + 1, int)
  spans = packing.find_spans(
    _Events(EventStore(offsets, {}, np.zeros(0, np.int32))),
    Requests(users, offsets[1:], none, {}, {}),
    users,
    None,
    max_history=most,
    max_candidates=1,
    draws=packing.Draws(0, 0, StochasticLength(alpha)),
  )
  return 100 * (1 - spans.events.mean() / most)


@dataclasses.dataclass(frozen=True)
class _Events:
  """The part of a `RequestDataset` that lengths are found in."""

  events: EventStore


def simulate_sparsity(args) -> list[dict]:
  """A row for each line of the paper's table, and one for each fit."""
  rows, fits = [], []
  for days, table in PAPER.items():
    fitted = fit_lengths(table[2.0])
    users = fitted.make_users(USERS // 100 if args.smoke else USERS)
    off = {}
    for alpha, paper in table.items():
      row = {
        'case': f'{days} days, alpha {alpha}',
        'kind': 'sparsity',
        'days': days,
        'alpha': alpha,
      }
      for most, published in zip(MOST, paper, strict=True):
        row[f'drawn_{most}'] = draw_sparsity(users, most, alpha)
        row[f'formula_{most}'] = fitted.find_sparsity(most, alpha)
        row[f'paper_{most}'] = published
        if alpha < 2:
          off[most] = max(
            off.get(most, 0.0), abs(row[f'drawn_{most}'] - published)
          )
      rows.append(row)
    fits.append({
      'case': f'{days} days, lengths',
      'kind': 'fit',
      'days': days,
      'users': len(users),
      **dataclasses.asdict(fitted),
      **{f'off_{most}': value for most, value in off.items()},
      'fit_off': max(
        abs(fitted.find_sparsity(most, 2.0) - wanted)
        for most, wanted in zip(MOST, table[2.0], strict=True)
      ),
    })  # fmt: skip
  return rows + fits


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('stochastic_length', __doc__)
  parser.add_argument('--train', action='store_true', help='train models')
  gr_runs.add_options(parser, required=False)
  args = parser.parse_args(argv)
  if args.train:
    if not args.runs:
      parser.error('--train wants --runs DIR')
    stochastic_length_runs.train(args)
    return
  rows = simulate_sparsity(args)
  notes = [
    'sparsity: 1 - mean length / N in percent. drawn: by the code that packs '
    'batches, of users at evenly spread quantiles of the fitted lengths; '
    'formula: summed over these lengths. Fitted to the row of alpha 2 alone.',
    'off_N: largest difference of drawn from the paper at N, alpha below 2.',
  ]
  cli.finish(args, 'stochastic_length', rows, COLUMNS, notes)


if __name__ == '__main__':
  main()
