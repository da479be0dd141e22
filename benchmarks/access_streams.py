"""Which rows are touched between two checkpoints? Streams for check_n_run.

  python -m benchmarks.access_streams

Two kinds of streams, each a number of intervals in which rows of tables are
touched: *traces*, drawn with the statistics of published embedding traces
(facebookresearch/dlrm_datasets), and *MovieLens-1M*, its ratings in the order
of time, users and items as rows, cut into equal numbers of ratings.

Published is how often the rows are read in ONE batch: how many rows are read
once, twice, 3 or 4 times, 5 to 8 times and so on. That says nothing of rows the
batch does not read, of two batches, or of single tables. So a trace here is

- fitted: each row has a rate, its expected reads per batch; reads are Poisson.
  Rates from 4 on are log-uniform within octaves, those below have the density
  of a power law, rate^-exponent per unit of log(rate). Exponent and weights are
  those whose counts are nearest to the published histogram. Rows read 1, 2,
  3 or 4 times are three numbers for a law with two, so the law is tested;
- assumed: that the law goes on below what one batch can show, down to where
  all rows are `ROWS` times those one batch reads; that reads are independent
  and rates constant in time; that all tables have the same law;
- chosen: the length of an interval, so that 26 % of the rows are touched in it
  on average, as Check-N-Run reports for 30 minutes of its models.

What follows and is not fitted: how the union of intervals grows.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from scipy import optimize, stats

from benchmarks import cli, locality
from benchmarks.planner import data
from genrec_jax.data import readers

FRACTION = 0.26  # of the rows, touched in an interval; the paper's
ROWS = 30.0  # all rows, in rows one batch reads
INTERVALS = 12
LENGTHS = (0.25, 1.0, 4.0)  # of an interval, in that of FRACTION
YEARS = ('2021', '2022')
SPLIT = 4.0  # rate above which the spectrum is free
TOP = 2.0**17
STEPS = 16  # rates an octave
COLUMNS = (
  'case', 'rows_x', 'exponent', 'histogram_error', 'batch_fraction',
  'interval_batches', 'interval_m_examples', 'short_fraction', 'fraction',
  'long_fraction', 'union_2', 'union_6', 'union_12', 'paper_union',
)  # fmt: skip
EXAMPLES = 11e9  # after which the paper's union was measured: 52 % of the rows


@dataclasses.dataclass(frozen=True)
class Spectrum:
  """How many rows have which rate.

  Attributes:
    rates: `[G]` reads per batch, spaced evenly in the logarithm.
    weights: `[G]` share of the rows at each.
    exponent: of the power law below `SPLIT`.
  """

  rates: np.ndarray
  weights: np.ndarray
  exponent: float

  def touched(self, batches: float) -> float:
    """Share of the rows that so many batches touch, on average."""
    return float(-self.weights @ np.expm1(-self.rates * batches))

  def batches(self, fraction: float) -> float:
    """How many batches touch this share of the rows, on average."""
    log = optimize.brentq(
      lambda x: self.touched(np.exp(x)) - fraction, -5, np.log(1e15)
    )
    return float(np.exp(log))

  def histogram(self) -> np.ndarray:
    """`[17]` rows read in a batch, by bins of reads, as a share of all rows."""
    return _in_bins(self.rates) @ self.weights

  def draw(self, rows: int, rng: np.random.Generator) -> np.ndarray:
    """`[rows]` rates."""
    chosen = rng.choice(len(self.rates), size=rows, p=self.weights)
    return self.rates[chosen] * 2 ** (rng.uniform(-0.5, 0.5, rows) / STEPS)


def fit(trace: locality.Locality, rows_x: float = ROWS) -> Spectrum:
  """The spectrum of rates behind the published histogram of one batch.

  Args:
    trace: the statistics.
    rows_x: all rows, in rows read in one batch.
  """
  octaves = np.arange(-50 * STEPS, int(np.log2(TOP)) * STEPS) + 0.5
  rates = 2 ** (octaves / STEPS)
  inside = _in_bins(rates)
  # Shares of rows have three decimals: for the rare rows that are read often,
  # their share of the reads says more.
  a_share = trace.reads / trace.distinct / locality.mean_reads()
  few = np.asarray(trace.accesses) * a_share
  target = np.where(np.asarray(trace.rows) >= 0.02, trace.rows, few)
  scale = np.maximum(target, 0.0005 * a_share)  # of the last decimal: half

  def shapes(exponent):
    law = np.where(rates < SPLIT, rates**-exponent, 0) / STEPS
    free = [
      (rates >= low) & (rates < 2 * low)
      for low in 2.0 ** np.arange(np.log2(SPLIT), np.log2(TOP))
    ]
    return np.stack([law, *(of / STEPS for of in free)], 1)

  def solve(exponent):
    system = inside @ shapes(exponent)
    return optimize.nnls(system / scale[:, None], target / scale)

  exponent = optimize.minimize_scalar(
    lambda x: solve(x)[1], bounds=(0.02, 0.95), method='bounded'
  ).x
  weights = shapes(exponent) @ solve(exponent)[0]
  # From the most read row down, until there are rows_x rows.
  enough = np.cumsum(weights[::-1])[::-1] <= rows_x
  rates, weights = rates[enough], weights[enough]
  return Spectrum(rates, weights / weights.sum(), float(exponent))


def power_law(exponent: float) -> Spectrum:
  """Rates over six decades, which need no data."""
  rates = 2 ** (np.arange(-10 * STEPS, 10 * STEPS) / STEPS)
  weights = rates**-exponent
  return Spectrum(rates, weights / weights.sum(), exponent)


def _in_bins(rates: np.ndarray) -> np.ndarray:
  """`[17, G]` chance that a row of each rate is read so often in a batch."""
  edges = np.concatenate([[0], locality.bin_bounds()[1][:-1], [np.inf]])
  below = stats.poisson.cdf(edges[:, None], rates[None])
  return np.diff(below, axis=0)


@dataclasses.dataclass(frozen=True)
class Stream:
  """Rows touched, interval after interval.

  Attributes:
    name: what it is.
    tables: rows of each.
    intervals: makes an iterator over the intervals, from the first one: table
      -> (`[n]` ids, sorted and distinct; `[n]` how often each was read).
  """

  name: str
  tables: Mapping[str, int]
  intervals: Callable[[], Iterator[dict[str, tuple[np.ndarray, np.ndarray]]]]

  @property
  def rows(self) -> int:
    return sum(self.tables.values())

  def fractions(self) -> tuple[np.ndarray, np.ndarray]:
    """Share of all rows touched in each interval, and up to its end."""
    seen = {name: np.zeros(rows, bool) for name, rows in self.tables.items()}
    each, union = [], []
    for interval in self.intervals():
      for name, (ids, _) in interval.items():
        seen[name][ids] = True
      each.append(sum(len(ids) for ids, _ in interval.values()) / self.rows)
      union.append(sum(int(of.sum()) for of in seen.values()) / self.rows)
    return np.array(each), np.array(union)


def trace(
  spectrum: Spectrum,
  name: str,
  rows: int,
  *,
  batches: float,
  tables: int = 4,
  intervals: int = INTERVALS,
  seed: int = 0,
) -> Stream:
  """A stream of rows whose rates have a spectrum.

  Args:
    spectrum: the rates.
    name: of the stream.
    rows: of all tables together, far fewer than the traces have. What fraction
      of them is touched does not depend on it.
    batches: an interval.
    tables: how many; each has half the rows of the one before.
    intervals: how many.
    seed: of the draw.
  """
  shares = 0.5 ** np.arange(tables)
  ends = np.rint(np.cumsum(shares / shares.sum()) * rows).astype(int)
  sizes = np.diff(ends, prepend=0)
  rates = np.split(spectrum.draw(rows, np.random.default_rng(seed)), ends[:-1])

  def draw():
    rng = np.random.default_rng((seed, 1))
    for _ in range(intervals):
      interval = {}
      for number, of in enumerate(rates):
        reads = rng.poisson(of * batches)
        (ids,) = np.nonzero(reads)
        interval[f'table_{number}'] = ids, reads[ids]
      yield interval

  names = (f'table_{number}' for number in range(tables))
  return Stream(name, dict(zip(names, sizes.tolist(), strict=True)), draw)


def movielens(path, intervals: int = INTERVALS) -> Stream:
  """Ratings in the order of time, in equal numbers.

  Args:
    path: `ratings.dat`.
    intervals: how many.
  """
  chunks = list(readers.movielens_dat(path))
  order = np.argsort(np.concatenate([c.time for c in chunks]), kind='stable')
  columns, tables = {}, {}
  for name in ('user', 'item'):
    values = np.concatenate([getattr(c, name) for c in chunks])
    known, numbers = np.unique(values, return_inverse=True)
    tables[name], columns[name] = len(known), numbers[order]

  def cut():
    parts = {n: np.array_split(ids, intervals) for n, ids in columns.items()}
    for number in range(intervals):
      yield {
        name: np.unique(part[number], return_counts=True)
        for name, part in parts.items()
      }

  return Stream('ml-1m', tables, cut)


def find(*path: str) -> pathlib.Path | None:
  """A file of the data directory, None where it is not there."""
  found = data().joinpath(*path)
  return found if found.exists() else None


def statistics(year: str) -> pathlib.Path | None:
  """Statistics of the traces of a year."""
  return find('dlrm_locality', f'locality_stats_{year}.txt')


def ratings() -> pathlib.Path | None:
  return find('ml-1m', 'ratings.dat')


def main(argv: list[str] | None = None) -> None:
  args = cli.parser('access_streams', __doc__).parse_args(argv)
  rows = []
  for year in YEARS:
    if path := statistics(year):
      published = locality.read(path)
      for rows_x in (ROWS, ROWS / 3, ROWS * 3):
        rows.append(measure_trace(year, published, rows_x))
    else:
      print(f'{year} is left out: its statistics are not under GENREC_DATA')
  if path := ratings():
    rows += measure_movielens(path)
  else:
    print('ml-1m is left out: it is not under GENREC_DATA')
  notes = [
    'fraction: of the rows touched in an interval, on average; short and long: '
    'in a quarter of its length and in four times it. union_k: in k intervals.',
    'histogram_error: largest difference of the shares of rows read once, '
    'twice, ... in a batch between the spectrum and the published ones.',
    'paper_union: touched in 11 billion examples; 52 % in the paper.',
  ]
  cli.finish(args, 'access_streams', rows, COLUMNS, notes, merge=False)


def measure_trace(year: str, published, rows_x: float) -> dict:
  """What the spectrum of a trace says of intervals; nothing is drawn."""
  spectrum = fit(published, rows_x)
  batches = spectrum.batches(FRACTION)
  found = spectrum.histogram()
  error = np.abs(found / found.sum() - np.asarray(published.rows)).max()
  short, long = (spectrum.touched(batches * x) for x in (LENGTHS[0], 4.0))
  return {
    'case': f'{year}/rows{rows_x:g}',
    'stream': f'trace {year}',
    'assumed': 'main' if rows_x == ROWS else 'other',
    'rows_x': rows_x,
    'exponent': spectrum.exponent,
    'histogram_error': float(error),
    'batch_fraction': spectrum.touched(1.0),
    'interval_batches': batches,
    'interval_m_examples': batches * published.batch / 1e6,
    'short_fraction': short,
    'fraction': spectrum.touched(batches),
    'long_fraction': long,
    'paper_union': spectrum.touched(EXAMPLES / published.batch),
    **{f'union_{k}': spectrum.touched(batches * k) for k in (2, 6, 12)},
  }


def measure_movielens(path) -> list[dict]:
  """Users, items and both, as they were touched."""
  chosen = {x: movielens(path, round(INTERVALS / x)) for x in LENGTHS}
  rows = []
  for name, keep in (
    ('both', ('user', 'item')), ('user', ('user',)), ('item', ('item',)),
  ):  # fmt: skip
    found = {x: only(of, keep).fractions() for x, of in chosen.items()}
    each, union = found[1.0]
    rows.append(
      {
        'case': f'ml-1m/{name}',
        'stream': f'MovieLens-1M, {_NAMES[name]}',
        'assumed': 'nothing',
        'short_fraction': found[0.25][0].mean(),
        'fraction': each.mean(),
        'least_fraction': each.min(),
        'most_fraction': each.max(),
        'long_fraction': found[4.0][0].mean(),
        'rows': only(chosen[1.0], keep).rows,
        **{f'union_{k}': union[k - 1] for k in (2, 6, 12)},
      }
    )
  return rows


_NAMES = {'both': 'users and items', 'user': 'users', 'item': 'items'}


def only(stream: Stream, names) -> Stream:
  """Some of the tables of a stream."""

  def pick():
    for interval in stream.intervals():
      yield {name: interval[name] for name in names}

  tables = {name: stream.tables[name] for name in names}
  return Stream(stream.name, tables, pick)


if __name__ == '__main__':
  main()
