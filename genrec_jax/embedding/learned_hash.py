"""Learns which ids share a row: counts and vectors in, a map out.

Frequent ids get rows of their own; the others are put together with those whose
vectors are near, weighed by their counts, so that the squared distance between
the vector of an occurrence and the mean of its row is least (arXiv 2203.15837
names the two ingredients and no more). Ids that nobody has counted, those of
unseen values, have rows that no other id has.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from genrec_jax.embedding.row_clusters import cluster_vectors, shrink_vectors

METHODS = ('both', 'frequency', 'embedding')


@dataclasses.dataclass(frozen=True)
class HashOptions:
  """How a map is made.

  Attributes:
    rows: of the table, that of padding and those of unseen ids included.
    private: how many ids, the most frequent ones, have rows of their own.
    reserved: rows of ids that were never counted.
    shrink: the count at which a vector is half its own and half the mean of
      all; what was seen rarely is noise.
    method: 'both'; 'frequency' hashes what has no row of its own; 'embedding'
      gives no row away and puts all ids together by their vectors.
    seed: of all draws.
  """

  rows: int
  private: int = 0
  reserved: int = 1
  shrink: float = 10.0
  method: str = 'both'
  seed: int = 0

  def __post_init__(self):
    if self.method not in METHODS:
      raise ValueError(
        f'method is {self.method!r}, must be one of {", ".join(METHODS)}'
      )
    if self.method == 'embedding' and self.private:
      raise ValueError(
        f"method='embedding' gives no id a row of its own, and private is "
        f'{self.private:,}'
      )
    for name in ('rows', 'private', 'reserved'):
      if not isinstance(getattr(self, name), (int, np.integer)):
        raise ValueError(
          f'{name} is {getattr(self, name)!r}, must be a number of rows'
        )
    for name, least in (('private', 0), ('reserved', 1), ('shrink', 0)):
      if not getattr(self, name) >= least:
        raise ValueError(
          f'{name} is {getattr(self, name):,}, must be at least {least}'
        )
    if self.shared < 1:
      raise ValueError(
        f'{self.rows:,} rows are too few: one is for padding, '
        f'{self.reserved:,} for unseen ids and {self.private:,} for ids of '
        f'their own, so that {self.reserved + self.private + 2:,} are the least'
      )

  @property
  def shared(self) -> int:
    """Rows that ids share."""
    return self.rows - 1 - self.reserved - self.private


def learn_rows(
  counts: np.ndarray,
  vectors: np.ndarray | None,
  options: HashOptions,
  *,
  unseen: int = 1,
  tell: Callable[[int, int], None] | None = None,
) -> np.ndarray:
  """The row of each id.

  >>> counts = np.array([9, 5, 4, 3, 2])
  >>> vectors = np.array([[0.0], [5.0], [1.0], [5.1], [1.1]])
  >>> options = HashOptions(rows=5, private=1, shrink=0.0)
  >>> rows = learn_rows(counts, vectors, options)
  >>> rows[[0, 1, 6]].tolist(), bool(rows[2] == rows[4] != rows[3] == rows[5])
  ([0, 1, 4], True)

  Args:
    counts: `[K]` how often the ids 1 .. K were seen; those that never were lie
      with `unseen` ones.
    vectors: `[K, D]` of these ids; None for `method='frequency'`.
    options: how.
    unseen: ids behind those, of values that nobody has counted.
    tell: as of `row_clusters.cluster_vectors`.

  Returns:
    `[1 + K + unseen]` int32; that of id 0 is 0.
  """
  counts = np.asarray(counts)
  if not np.all(counts >= 0):
    raise ValueError('counts hold negative numbers or NaN')
  if options.private > len(counts):
    raise ValueError(
      f'{options.private:,} ids shall have rows of their own, and there are '
      f'{len(counts):,}'
    )
  if vectors is not None and len(vectors) != len(counts):
    raise ValueError(
      f'{len(vectors):,} vectors are given for {len(counts):,} ids: they are '
      'of another table'
    )
  # Ids that were seen as often are in a drawn order: that of their numbers may
  # come from data that nobody should know yet.
  ties = np.random.default_rng([options.seed, 1]).permutation(len(counts))
  order = np.lexsort((ties, -counts))
  private, tail = order[: options.private], order[options.private :]
  tail = tail[counts[tail] > 0]
  rows = np.zeros(1 + len(counts) + unseen, np.int32)
  rows[1 + private] = 1 + np.arange(len(private), dtype=np.int32)
  first = 1 + options.private
  if options.method == 'frequency':
    rng = np.random.default_rng(options.seed)
    rows[1 + tail] = first + rng.integers(options.shared, size=len(tail))
  elif vectors is None:
    raise ValueError(f'method={options.method!r} needs vectors')
  elif len(tail):
    near = shrink_vectors(
      np.asarray(vectors, np.float32), counts, options.shrink
    )
    found = cluster_vectors(
      near[tail],
      counts[tail],
      options.shared,
      seed=options.seed,
      tell=tell,
    )
    rows[1 + tail] = first + found.labels
  never = 1 + np.flatnonzero(rows[1:] == 0)
  last = options.rows - options.reserved
  rows[never] = last + np.arange(len(never)) % options.reserved
  return rows


def spread_rows(ids: int, rows: int, seed: int) -> np.ndarray:
  """The row of each id where nothing has been counted: as many ids on each.

  >>> spread_rows(7, 4, seed=0).tolist()
  [0, 1, 3, 3, 2, 1, 2]

  Args:
    ids: that of padding included.
    rows: that of padding included.
    seed: of the draw.

  Returns:
    `[ids]` int32; that of id 0 is 0.
  """
  places = np.random.default_rng(seed).permutation(ids - 1)
  return np.append(0, 1 + places % (rows - 1)).astype(np.int32)
