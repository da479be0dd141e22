"""Tables drawn from published statistics of embedding traces.

facebookresearch/dlrm_datasets counts, for one batch over all tables of a model,
how often each row is read: the share of rows, and the share of reads, that
belong to rows read once, twice, 3 or 4 times, 5 to 8 times and so on. The files
say nothing of single tables. Here

- the reads of an example are split over the tables by a lognormal share,
- each table's histogram of reads is the published one, perturbed (Dirichlet),
- rows read in the batch follow from both; all rows are more of them by a factor
  drawn log-uniformly,
- widths are drawn from a few.

So totals and skew are published, and how tables differ is assumed.
`draw_counts` makes the reads of each row of one table, `draw_ids` a batch.
"""

import dataclasses
import pathlib
import re

import numpy as np

from genrec_jax.planner.workload import Feature, Load

BINS = 17  # (0, 1], (1, 2], (2, 4], ... (16384, 32768], above
CONCENTRATION = 50.0  # of the Dirichlet distribution
SIGMA = 1.0  # of the logarithm of a table's share of the reads
WIDTHS = (16, 32)
UNREAD = (1.0, 30.0)  # rows of a table, in rows read in one batch


@dataclasses.dataclass(frozen=True)
class Locality:
  """Statistics of one batch of a trace.

  Attributes:
    tables: how many.
    batch: examples.
    reads: of all tables together.
    distinct: rows read.
    rows: `[17]` share of the rows in each bin of reads.
    accesses: `[17]` share of the reads in each bin.
  """

  tables: int
  batch: int
  reads: int
  distinct: int
  rows: tuple[float, ...]
  accesses: tuple[float, ...]


def read(path) -> Locality:
  """The first trace of a file of statistics."""
  path = pathlib.Path(path)
  if not path.exists():
    raise FileNotFoundError(
      f'{path} is not there: it is locality_stats.txt of '
      'facebookresearch/dlrm_datasets, embedding_bag/2021 or 2022'
    )
  text = path.read_text()
  head = re.search(r'_t(\d+)_bs(\d+)', text)
  counts = re.search(r'# of indices: (\d+)\s+.*cols: (\d+)', text)
  shares = [
    float(x) for x in re.findall(r'^\(\d+(?:, \d+\]|\+): ([\d.]+)', text, re.M)
  ]
  if not head or not counts or len(shares) < 2 * BINS:
    raise ValueError(f'{path} holds no statistics of a trace')
  return Locality(
    tables=int(head[1]),
    batch=int(head[2]),
    reads=int(counts[1]),
    distinct=int(counts[2]),
    rows=tuple(shares[:BINS]),
    accesses=tuple(shares[BINS : 2 * BINS]),
  )


def bin_bounds() -> tuple[np.ndarray, np.ndarray]:
  """Least and most reads of a row in each bin; the last one is cut short."""
  high = 2 ** np.arange(BINS)
  low = np.concatenate([[1], high[:-1] + 1])
  return low, high


def mean_reads() -> np.ndarray:
  """Reads of a row in each bin, on average, by the density 1 / x."""
  low, high = bin_bounds()
  width = np.log((high + 0.5) / (low - 0.5))
  return (high - low + 1) / width


def distinct_share(accesses) -> float:
  """Rows read for each read, from the share of the reads in each bin."""
  accesses = np.asarray(accesses, float)
  return float((accesses / mean_reads()).sum() / accesses.sum())


def draw_counts(accesses, reads: int, rng: np.random.Generator) -> np.ndarray:
  """Reads of each row: log-uniform in its bin, until there are enough.

  Args:
    accesses: `[17]` share of the reads in each bin.
    reads: how many there must be.
    rng: the source of chance.

  Returns:
    `[rows read]`, their sum is `reads`.
  """
  low, high = bin_bounds()
  accesses = np.asarray(accesses, float)
  chance = accesses / mean_reads()
  total_counts = np.zeros(0, np.int64)
  while total_counts.sum() < reads:
    bins = rng.choice(BINS, size=1024, p=chance / chance.sum())
    logs = rng.uniform(np.log(low[bins] - 0.5), np.log(high[bins] + 0.5))
    counts = np.clip(np.rint(np.exp(logs)), low[bins], high[bins])
    total_counts = np.concatenate([total_counts, counts.astype(np.int64)])
  last = int(np.searchsorted(np.cumsum(total_counts), reads))
  total_counts = total_counts[: last + 1]
  total_counts[-1] -= total_counts.sum() - reads
  return total_counts


def draw_ids(
  counts: np.ndarray, rows: int, rng: np.random.Generator
) -> np.ndarray:
  """A batch of ids, shuffled, in which rows are read so often."""
  if len(counts) > rows:
    raise ValueError(f'{len(counts)} rows are read, the table has {rows}')
  chosen = rng.choice(rows, size=len(counts), replace=False)
  ids = np.repeat(chosen, counts)
  rng.shuffle(ids)
  return ids


def draw_loads(
  locality: Locality, seed: int, *, tables: int | None = None
) -> list[Load]:
  """Tables with the reads and the skew of a trace.

  Args:
    locality: the statistics.
    seed: of the draw.
    tables: how many; None for as many as the trace has. Reads of a table stay
      what they are on average.
  """
  rng = np.random.default_rng(seed)
  tables = tables or locality.tables
  shares = rng.lognormal(sigma=SIGMA, size=tables)
  an_example = locality.reads / locality.batch / locality.tables * tables
  lengths = an_example * shares / shares.sum()
  alpha = CONCENTRATION * np.maximum(locality.accesses, 1e-3)
  loads = []
  for number, length in enumerate(lengths):
    distinct = distinct_share(rng.dirichlet(alpha))
    read = max(1.0, length * locality.batch * distinct)
    rows = int(read * np.exp(rng.uniform(*np.log(UNREAD)))) + 1
    loads.append(
      Load(
        f'table_{number}',
        max(100, rows),
        int(rng.choice(WIDTHS)),
        dtype='bfloat16',
        features=(Feature(float(length)),),
      )
    )
  return loads
