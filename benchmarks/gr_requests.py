"""Requests drawn at random, packed as models of requests want them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from genrec_jax.features import (
  ACTION,
  AGE,
  CANDIDATES,
  HISTORY,
  WATCH_TIME,
  WEEK_SECOND,
  WEIGHT,
  Examples,
  FeatureSpec,
  Jagged,
  LabelSpec,
  RequestSpec,
  stack_columns,
)

SPEC = RequestSpec(
  items=(FeatureSpec('item', rows=40), FeatureSpec('category', rows=7)),
  context=(FeatureSpec('user', rows=12), FeatureSpec('age_group', rows=5)),
  actions=(('click', 1), ('like', 2), ('share', 8)),
  labels=(
    LabelSpec('click'),
    LabelSpec('watched', 'regression'),
    LabelSpec('like'),
  ),
  watch_time=True,
)


class Request(NamedTuple):
  """One request; every column is a NumPy array.

  Attributes:
    history: column -> `[U]`.
    candidates: column -> `[T]`.
    context: name of a column -> id.
    week_second: of the request.
  """

  history: Mapping[str, np.ndarray]
  candidates: Mapping[str, np.ndarray]
  context: Mapping[str, int]
  week_second: int

  def reorder(self, order: Sequence[int]) -> 'Request':
    """The same request with its candidates in another order."""
    order = np.asarray(order)
    candidates = {name: x[order] for name, x in self.candidates.items()}
    return self._replace(candidates=candidates)


def draw(
  events: int, candidates: int, seed: int, spec: RequestSpec = SPEC
) -> Request:
  """A request with that many events and candidates."""
  rng = np.random.default_rng([seed, events, candidates])

  def draw_items(features, count):
    return {f.name: rng.integers(1, f.rows, count) for f in features}

  history = draw_items(spec.items, events)
  bits = sum(bit for _, bit in spec.actions)
  history[ACTION] = rng.integers(0, bits + 1, events) & bits
  ages = np.exp(rng.uniform(0, np.log(9e6), events)).astype(int)
  history[AGE] = -np.sort(-ages)
  if spec.watch_time:
    history[WATCH_TIME] = rng.uniform(0, 60, events).round(1)
  asked = draw_items(spec.candidate_features, candidates)
  for label in spec.labels:
    binary = label.kind == 'binary'
    asked[label.name] = (
      rng.integers(0, 2, candidates) if binary else rng.normal(size=candidates)
    )
  asked[WEIGHT] = rng.choice([0.5, 1.0, 2.0], candidates)
  context = {
    name: int(rng.integers(f.kind == 'categorical', f.rows))
    for name, f in spec.context_columns.items()
  }
  return Request(history, asked, context, int(rng.integers(7 * 86_400)))


def pack(
  requests: Sequence[Request | None],
  spec: RequestSpec,
  event_capacity: int,
  candidate_capacity: int,
) -> Examples:
  """A batch; None is padding, and so is what is left of the capacities."""
  some = next(r for r in requests if r is not None)
  empty = some._replace(
    history={name: x[:0] for name, x in some.history.items()},
    candidates={name: x[:0] for name, x in some.candidates.items()},
    context=dict.fromkeys(some.context, 0),
  )
  filled = [r or empty for r in requests]
  items = [f.name for f in spec.items]
  watch = [WATCH_TIME] if spec.watch_time else []
  history = _pack_part(
    [r.history for r in filled], (*items, ACTION, AGE), watch, event_capacity
  )
  labels = [label.name for label in spec.labels]
  candidates = _pack_part(
    [r.candidates for r in filled],
    [f.name for f in spec.candidate_features],
    (*labels, WEIGHT),
    candidate_capacity,
  )
  real = np.array([r is not None for r in requests])
  context = {
    name: [r.context[name] for r in filled] for name in spec.context_columns
  }
  batch = Examples(
    weights=real.astype(np.float32),
    row=np.where(real, np.arange(len(real)), -1).astype(np.int32),
    group=np.where(real, np.arange(len(real)), -1).astype(np.int32),
    jagged={HISTORY: history, CANDIDATES: candidates},
    ids=stack_columns(context, 'int32') if context else None,
    int_extras=stack_columns(
      {WEEK_SECOND: [r.week_second for r in filled]}, 'int32'
    ),
  )
  return jax.tree.map(jnp.asarray, batch)


def _pack_part(parts, whole, fractions, capacity: int) -> Jagged:
  lengths = [len(part[whole[0]]) for part in parts]
  if sum(lengths) > capacity:
    raise ValueError(f'{sum(lengths)} values do not fit into {capacity}')

  def join(name):
    # Padding holds what is not zero, which nobody may see.
    values = np.concatenate([part[name] for part in parts])
    return np.concatenate([values, np.ones(capacity - len(values))])

  floats = stack_columns({n: join(n) for n in fractions}, 'float32')
  columns = stack_columns({n: join(n) for n in whole}, 'int32')
  return Jagged(
    columns, np.array(lengths, np.int32), floats if fractions else None
  )


def draw_tables(reads: Mapping, seed: int = 0) -> dict[str, np.ndarray]:
  """Rows of all tables that a model reads, float32."""
  rng = np.random.default_rng(seed)
  sizes = {read.table: (read.rows, read.width) for read in reads.values()}
  return {
    name: rng.normal(size=size).astype(np.float32)
    for name, size in sorted(sizes.items())
  }


def find_ids(read, batch: Examples) -> jax.Array:
  """The ids of a read of a batch."""
  if read.part in batch.jagged:
    return batch.jagged[read.part][read.column]
  return batch.ids[read.column]


def read_rows(tables: Mapping, reads: Mapping, batch: Examples) -> dict:
  """Rows of each read of a batch."""
  return {
    name: tables[read.table][find_ids(read, batch)]
    for name, read in reads.items()
  }
