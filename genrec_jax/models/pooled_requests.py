"""Requests for any ranking model: each candidate an example, histories pooled.

| what a candidate is told      | feature                                  |
|-------------------------------|------------------------------------------|
| its item, category, ..., and  | 'candidates.NAME'                        |
| what candidates alone have    |                                          |
| user, time of day, ...        | 'context.NAME'; of several slots pooled  |
| events with an action, pooled | 'history.NAME.ACTION', one an action     |
| how many there are (`counts`) | 'history.count.ACTION', log(1 + n)       |

So a model of single examples, such as DLRM, is told of each event what `stu` is
told, but for order and time, and for events without any action, unless
`unmarked` pools them: in data without such events an empty pool costs quality.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

import pallas_kernels
from genrec_jax.config.request_models import PooledRequests as Config
from genrec_jax.features import (
  CANDIDATES,
  HISTORY,
  PAD,
  WEIGHT,
  Examples,
  FeatureSpec,
  Inputs,
  RequestSpec,
  name_slots,
)
from genrec_jax.models import fields, request_actions
from genrec_jax.models.fields import LINEAR, first_order_table
from genrec_jax.models.request_tokens import (
  CONTEXT,
  RequestRead,
  Rows,
  has_context,
)

WHOLE = 'all'  # the pool of histories without actions
UNMARKED = 'unmarked'  # of the events without any bit


def list_pools(config: Config, spec: RequestSpec) -> dict[str, int]:
  """Name of each pool of a history -> its bit; 0 for `WHOLE`, `UNMARKED`."""
  names = {bit: name for name, bit in spec.actions}
  for seconds, bit in config.watch_times:
    names.setdefault(bit, f'watch_{seconds:g}_s')
  bits = request_actions.list_bits(spec, config.watch_times)
  pools = {names[bit]: bit for bit in bits}
  if not pools:
    return {WHOLE: 0}
  return pools | ({UNMARKED: 0} if config.unmarked else {})


class Source(NamedTuple):
  """Where a feature of a candidate is from.

  Attributes:
    feature: as the ranking model sees it.
    part: HISTORY, CANDIDATES or CONTEXT.
    columns: of the feature of an item or of the request, several of a feature
      of the context with several slots.
    pool: of a history, see `list_pools`.
  """

  feature: FeatureSpec
  part: str
  columns: tuple[str, ...]
  pool: str = ''

  def name_linear(self) -> dict[str, str]:
    """Column -> name of the read of its first-order weights."""
    if len(self.columns) == 1:
      return {self.columns[0]: self.feature.name + LINEAR}
    return {name: f'{self.part}.{name}{LINEAR}' for name in self.columns}


def list_sources(config: Config, spec: RequestSpec) -> tuple[Source, ...]:
  """All features with a table, in the order of `Inputs.vectors`."""
  found = []
  of_request = (CANDIDATES, spec.candidate_features), (CONTEXT, spec.context)
  for part, features in of_request:
    for f in features:
      made = FeatureSpec(
        f'{part}.{f.name}',
        f.kind,
        f.rows,
        table=f.source,
        pooling=f.pooling,
        max_len=f.max_len,
      )
      found.append(Source(made, part, name_slots(f)))
  for f in spec.items:
    for pool in list_pools(config, spec):
      made = FeatureSpec(
        f'{HISTORY}.{f.name}.{pool}',
        'multi_hot',
        f.rows,
        table=f.source,
        pooling=config.pooling,
      )
      found.append(Source(made, HISTORY, (f.name,), pool))
  return tuple(found)


def make_features(config: Config, spec: RequestSpec) -> tuple[FeatureSpec, ...]:
  """The features that a ranking model is made for."""
  found = [source.feature for source in list_sources(config, spec)]
  if config.counts:
    pools = list_pools(config, spec)
    found += [FeatureSpec(f'{HISTORY}.count.{p}', 'numeric') for p in pools]
  return tuple(found)


class PooledRanker(nnx.Module):
  """A ranking model over requests; called as `stu.STU` is.

  Args:
    ranker: class of the model, a value of `models.RANKERS`.
    ranker_config: of the model.
    config: what the model is told of a history.
    spec: of the requests.
    rngs: random keys.
  """

  def __init__(
    self,
    ranker: type[fields.Ranker],
    ranker_config,
    config: Config,
    spec: RequestSpec,
    rngs: nnx.Rngs,
  ):
    self.config, self.spec = config, spec
    self.ranker_config = ranker_config
    features = make_features(config, spec)
    self.ranker = ranker(ranker_config, features, len(spec.labels), rngs)
    self.list_reads()  # complains of what does not fit together

  @property
  def outer_sites(self) -> tuple[tuple[str, ...], ...]:
    """The first and the last product, see `products.assign_products`."""
    return tuple(
      tuple(f'ranker/{name}' for name in names)
      for names in self.ranker.outer_sites
    )

  def _widths(self) -> dict[str, int]:
    features = make_features(self.config, self.spec)
    return self.ranker.widths(self.ranker_config, features)

  def list_reads(self) -> dict[str, RequestRead]:
    """What `rows` must hold, by name; those of a history event by event."""
    widths = self._widths()
    reads = {}
    for source in list_sources(self.config, self.spec):
      f, part = source.feature, source.part
      for column, linear in source.name_linear().items():
        wanted = {f'{part}.{column}': (f.source, widths.get(f.name, 0))}
        if self.ranker.linear:
          table = first_order_table(self.ranker_config, f)
          wanted[linear] = table, 1
        for name, (table, width) in wanted.items():
          read = RequestRead(part, column, table, f.rows, width)
          if reads.setdefault(name, read) != read:
            raise ValueError(
              f'the model wants rows of table {table!r} {reads[name].width} '
              f'and {width} wide; all pools of a history must have one width'
            )
    return {name: read for name, read in reads.items() if read.width}

  def __call__(
    self, rows: Rows, batch: Examples, key=None, train: bool = False
  ) -> dict[str, jax.Array]:
    """Scores the candidates: `[K]` float32 of each label, as `STU` does.

    Args:
      rows: of all reads.
      batch: the requests.
      key: for dropout and batch statistics, while training.
      train: is for sequences, and changes nothing here.
    """
    del train
    logits = self.ranker(self.make_inputs(rows, batch), key)
    return {x.name: logits[:, i] for i, x in enumerate(self.spec.labels)}

  def make_inputs(self, rows: Rows, batch: Examples) -> Inputs:
    """What the ranking model sees of the candidates of a batch."""
    config, widths = self.config, self._widths()
    candidates = batch.jagged[CANDIDATES]
    count = candidates.columns.values.shape[0]
    user = pallas_kernels.segment_ids(candidates.lengths, count)
    enough = has_context(batch, config.min_context_events)[:, None]
    marks = self._mark_events(batch)

    def give_to_candidates(source: Source, columns, pooling):
      values, *_ = columns
      if source.part == CANDIDATES:
        return values
      if source.part == HISTORY:
        values = pool_events(values, batch, marks[source.pool], pooling)
      else:
        if source.feature.pooled:
          ids = [batch.ids[name] for name in source.columns]
          values = pool_slots(columns, ids, pooling)
        values = jnp.where(enough, values, 0.0)
      return values.at[user].get(mode='fill', fill_value=0)

    vectors, linear = [], jnp.zeros(count)
    for source in list_sources(config, self.spec):
      name = source.feature.name
      if widths.get(name):
        values = [rows[f'{source.part}.{column}'] for column in source.columns]
        vectors.append(
          give_to_candidates(source, values, source.feature.pooling)
        )
      if self.ranker.linear:
        by_feature = self.ranker_config.first_order == 'feature'
        pooling = 'sum' if by_feature else source.feature.pooling
        values = [rows[read] for read in source.name_linear().values()]
        linear += give_to_candidates(source, values, pooling)[:, 0]
    numbers = jnp.zeros((count, 0))
    if config.counts:
      counts = [
        pool_events(jnp.ones((len(mark), 1)), batch, mark, 'sum')
        for mark in marks.values()
      ]
      counts = jnp.log1p(jnp.concatenate(counts, axis=1))
      numbers = counts.at[user].get(mode='fill', fill_value=0)
    return Inputs(
      vectors=tuple(vectors),
      numbers=numbers,
      linear=linear,
      weights=jnp.where(user < len(enough), candidates[WEIGHT], 0.0),
      first=candidates.first,
    )

  def _mark_events(self, batch: Examples) -> dict[str, jax.Array]:
    """Pool -> `[K]` whether each event is in it."""
    history = batch.jagged[HISTORY]
    action = request_actions.mark_watch_times(history, self.config.watch_times)
    pools = list_pools(self.config, self.spec)
    bits = sum(pools.values())
    marks = {name: (action & bit) > 0 for name, bit in pools.items() if bit}
    if UNMARKED in pools:
      marks[UNMARKED] = (action & bits) == 0
    return marks or {WHOLE: jnp.ones(action.shape, bool)}


def pool_events(
  values: jax.Array, batch: Examples, mark: jax.Array, pooling: str
) -> jax.Array:
  """`[B, D]` sum or mean of the marked events of each history.

  Args:
    values: `[K, D]` of all events.
    batch: the requests.
    mark: `[K]` which events count.
    pooling: 'sum' or 'mean'; without an event both are 0.
  """
  lengths = batch.jagged[HISTORY].lengths
  user = pallas_kernels.segment_ids(lengths, values.shape[0])

  def add_up(x):
    # Padding belongs to a user behind the last one.
    return jax.ops.segment_sum(x, user, len(lengths) + 1)[:-1]

  total = add_up(jnp.where(mark[:, None], values, 0.0))
  if pooling == 'sum':
    return total
  events = add_up(mark.astype(jnp.float32))[:, None]
  return total / jnp.maximum(events, 1.0)


def pool_slots(
  values: Sequence[jax.Array], ids: Sequence[jax.Array], pooling: str
) -> jax.Array:
  """`[B, D]` sum or mean of the slots that have a value.

  Args:
    values: `[B, D]` rows of each slot.
    ids: `[B]` ids of each slot; `PAD` where it has no value.
    pooling: 'sum' or 'mean'; without a value both are 0.
  """
  used = [(slot > PAD)[:, None] for slot in ids]
  total = sum(
    jnp.where(mark, rows, 0.0) for mark, rows in zip(used, values, strict=True)
  )
  if pooling == 'sum':
    return total
  return total / jnp.maximum(sum(mark.astype(jnp.float32) for mark in used), 1)
