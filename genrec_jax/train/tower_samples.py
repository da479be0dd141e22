"""What a trained ranking run knows of its features, for a tower partitioner."""

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from genrec_jax.contracts import Extensions, weights_of
from genrec_jax.data.ranking import collation
from genrec_jax.data.ranking import rows as rows_lib
from genrec_jax.embedding import id_maps, lookup
from genrec_jax.features import PAD, Examples, FeatureSpec
from genrec_jax.planner.tower_partitioner import TowerFeature
from genrec_jax.serve.weights import load_weights
from genrec_jax.tasks.ranking import Ranking

BATCH = 1024
_NOT_VALUES = 2  # rows of a table: what is missing, and what is unseen


@dataclasses.dataclass(frozen=True)
class TowerSamples:
  """Training examples of a run, as a partitioner looks at them.

  Attributes:
    features: of the run, those with a table.
    rows: the examples, encoded.
    present: feature -> `[N]`, whether an example has a value.
    values: feature -> how many values it has.
    names: what the columns of `rows` are called.
  """

  features: tuple[TowerFeature, ...]
  rows: rows_lib.Rows
  present: dict[str, np.ndarray]
  values: dict[str, int]
  names: rows_lib.ColumnNames

  def codes(self) -> dict[str, np.ndarray]:
    """Feature -> `[N]`, its value as a number; of a list, the last one."""
    out = {}
    for feature in self.features:
      if feature.name in self.rows.bags:
        bags = self.rows.bags[feature.name]
        ends = np.maximum(bags.begin + bags.lengths - 1, 0)
        values = np.append(bags.values, PAD)  # where all lists are empty
        codes = np.where(bags.lengths > 0, values[ends], PAD)
      else:
        column = self.names.ids.index(feature.name)
        codes = self.rows.ids[:, column]
      out[feature.name] = codes
    return out

  def strata(self) -> np.ndarray:
    """`[N]`, which of the labels an example has, as a number."""
    bits = (self.rows.labels > 0.5).astype(np.int64)
    return bits @ (1 << np.arange(bits.shape[1]))


def load_samples(data, task: Ranking, samples: int, seed: int) -> TowerSamples:
  """Draws training examples, without replacement.

  Args:
    data: the `train.ranking_data.RankingData` of the run.
    task: of the run.
    samples: how many, or all where there are fewer.
    seed: of the draw.
  """
  split = data.splits['train']
  count = min(samples, len(split))
  draw = np.random.default_rng(seed).choice(len(split), count, replace=False)
  # All over the split: the first rows of a log in order of time are like each
  # other.
  at, parts = np.sort(draw), []
  for number in range(split.blocks):
    start, stop = split.starts[number : number + 2]
    own = at[(at >= start) & (at < stop)] - start
    if len(own):
      parts.append(split.block(number).take(own))
  rows = rows_lib.concatenate_rows(parts)
  tabled = [f for f in task.features if f.has_table]
  present = {}
  for feature in tabled:
    if feature.is_list:
      present[feature.name] = rows.bags[feature.name].lengths > 0
    else:
      column = split.names.ids.index(feature.name)
      present[feature.name] = rows.ids[:, column] != PAD
  values = {f.name: max(0, f.rows - _NOT_VALUES) for f in tabled}
  # What these examples read, and not what they may read at most.
  reads = {
    f.name: float(rows.bags[f.name].lengths.mean()) if f.is_list else 1.0
    for f in tabled
  }
  sizes = tuple(_measure_feature(task, f, reads[f.name]) for f in tabled)
  return TowerSamples(sizes, rows, present, values, split.names)


def _measure_feature(
  task: Ranking, feature: FeatureSpec, count: float
) -> TowerFeature:
  """A feature of which an example reads so many rows."""
  read = task.expected_reads().get(feature.name)
  if read is None:
    raise ValueError(
      f'the model has no rows of feature {feature.name!r} but first-order '
      'weights, so that there is nothing to put under a tower'
    )
  spec = task.tables()[read.table]
  row = spec.dim * jnp.dtype(spec.dtype).itemsize
  return TowerFeature(
    feature.name, feature.source, spec.rows * row, count * row
  )


def read_vectors(
  workdir,
  task: Ranking,
  samples: TowerSamples,
  checkpoint: str,
  extensions: Extensions | None = None,
) -> tuple[dict[str, np.ndarray], int]:
  """What a trained model has for each feature of each example.

  Args:
    workdir: of the run.
    task: of the run.
    samples: the examples.
    checkpoint: 'best' or 'latest'.
    extensions: what is used from outside the library.

  Returns:
    Feature -> `[N, D]`, pooled where the feature is a list; and the step of the
    weights.
  """
  extensions = extensions or Extensions()
  loaded = load_weights(workdir, task, checkpoint, extensions)
  maps = id_maps.collect_maps(task, extensions.id_maps)
  names = [feature.name for feature in samples.features]

  @jax.jit
  def read_batch(weights, batch):
    reads = {name: task.reads_for('predict', batch)[name] for name in names}
    rows = maps.lookup(weights['id_states'], reads)
    views = lookup.view_tables(weights['tables'], reads, rows)
    return {name: views[name].all() for name in names}

  pieces = {name: [] for name in names}
  weights = weights_of(loaded)
  for batch, count in _make_batches(samples):
    read = jax.device_get(read_batch(weights, batch))
    for name in names:
      pieces[name].append(np.asarray(read[name][:count], np.float32))
  vectors = {name: np.concatenate(x) for name, x in pieces.items()}
  return vectors, loaded.step


def _make_batches(
  samples: TowerSamples,
) -> Iterator[tuple[Examples, int]]:
  """Batches of one size, and how many of their examples are real."""
  for start in range(0, len(samples.rows), BATCH):
    own = samples.rows.slice_rows(start, start + BATCH)
    yield (
      collation.collate_rows(own, samples.names, batch_size=BATCH),
      len(own),
    )
