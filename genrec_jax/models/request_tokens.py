"""Requests -> tokens: content, actions and context, in one of three layouts.

| published code (spec 2.2)              | here                              |
|----------------------------------------|-----------------------------------|
| MLP_c, of the id of an item            | `content`                         |
| MLP_a, of its other features           | `attributes`                      |
| target-enrich features, their dummies  | `RequestSpec.candidates`, `absent`|
| action encoder, MLP_act                | `actions`, `action`               |
| ContextualPreprocessor                 | layout 'summed'                   |
| ContextualInterleavePreprocessor       | layout 'interleaved'              |
| batched contextual linear, e_s W_s+b_s | `slot_0`, `slot_1`, ...           |
| contextual_feature_to_max_length       | `RequestSpec.context_columns`     |
| ParameterizedContextualizedMLP         | `ContextMLP`                      |
| y = x M_b + MLP(shared)                | M_b: `matrix`, `norm`; `shift`    |

Differences from the paper: features that candidates alone have go with the
other features of an item; the published code has them beside its id.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

import pallas_kernels
from genrec_jax.config.request_models import STU as Config
from genrec_jax.features import (
  AGE,
  CANDIDATES,
  HISTORY,
  PAD,
  Examples,
  RequestSpec,
)
from genrec_jax.models import layers, mlp, request_actions
from genrec_jax.models.request_sequences import (
  Layout,
  Sequences,
  lay_out,
  number_tokens,
)
from genrec_jax.models.swish_mlp import EPS, SwishMLP

CONTEXT = 'context'
ABSENT_STD = 0.1  # of the vectors from which `RequestTokens.absent` starts
PARTS = (HISTORY, CANDIDATES)
Rows = Mapping[str, jax.Array]  # name of a read -> its rows


class RequestRead(NamedTuple):
  """Rows that a model wants of a batch of requests.

  Attributes:
    part: HISTORY, CANDIDATES or CONTEXT, which is `Examples.ids`.
    column: of that part, with the ids.
    table: whose rows they are.
    rows: of the table.
    width: of a row.
  """

  part: str
  column: str
  table: str
  rows: int
  width: int


def list_reads(config: Config, spec: RequestSpec) -> dict[str, RequestRead]:
  """'history.NAME', 'candidates.NAME' and 'context.NAME' of all columns."""
  parts = {
    HISTORY: {f.name: f for f in spec.items},
    CANDIDATES: {f.name: f for f in spec.candidate_features},
    CONTEXT: spec.context_columns,
  }
  return {
    f'{part}.{name}': RequestRead(part, name, f.source, f.rows, config.row_dim)
    for part, columns in parts.items()
    for name, f in columns.items()
  }


def has_context(
  batch: Examples, least: int, with_candidates: bool = False
) -> jax.Array:
  """`[B]`, whether the context of each request counts.

  Args:
    batch: the requests.
    least: events that the history must have.
    with_candidates: whether candidates count like events. A score then depends
      on how many others are asked for.
  """
  parts = PARTS if with_candidates else (HISTORY,)
  return sum(batch.jagged[part].lengths for part in parts) >= least


def read_context(
  rows: Rows,
  batch: Examples,
  spec: RequestSpec,
  config: Config,
  events: jax.Array | None = None,
) -> list[jax.Array]:
  """`[B, width]` of each slot; zeros where it has no value.

  No slot has one where `has_context` says so, and of a feature of several slots
  those that are not used have none.

  Args:
    rows: of all reads.
    batch: the requests.
    spec: what they hold.
    config: of the model.
    events: `[B]` of the history of each, in place of those of the batch.
  """
  if events is None:
    enough = has_context(
      batch,
      config.min_context_events,
      'context_by_candidates' in config.reference_compat,
    )[:, None]
  else:
    enough = (events >= config.min_context_events)[:, None]
  return [
    jnp.where(
      enough & (batch.ids[name] > PAD)[:, None] if f.pooled else enough,
      rows[f'{CONTEXT}.{name}'],
      0.0,
    )
    for name, f in spec.context_columns.items()
  ]


class ContextMLP(nnx.Module):
  """A linear map whose matrix and shift are made of the context.

  Args:
    context: width of the context.
    dim_in: width of a token's input.
    hidden: width of what is made of the context first.
    dim_out: width of a token.
    rngs: random keys.
  """

  def __init__(
    self, context: int, dim_in: int, hidden: int, dim_out: int, rngs: nnx.Rngs
  ):
    self.shape = dim_in, dim_out
    init = mlp.xavier_normal
    self.compress = layers.Linear(context, hidden, kernel_init=init, rngs=rngs)
    self.matrix = layers.Linear(
      hidden, dim_in * dim_out, kernel_init=init, rngs=rngs
    )
    self.norm = layers.LayerNorm(dim_in * dim_out, eps=EPS, affine=True)
    # The published code starts all that has two axes like this.
    for param in (self.norm.scale, self.norm.shift):
      param[...] = init(rngs.params(), self.shape).ravel()
    self.shift = SwishMLP(
      hidden, hidden, dim_out, init=init, norm=False, rngs=rngs
    )

  def __call__(
    self, x: jax.Array, context: jax.Array, lengths: jax.Array, longest: int
  ) -> jax.Array:
    """`[K, dim_in]` -> `[K, dim_out]`.

    Args:
      x: packed.
      context: `[B, width]`.
      lengths: `[B]` of `x`.
      longest: static bound of the lengths.
    """
    shared = self.compress(context)
    matrices = self.norm(self.matrix(shared)).reshape(-1, *self.shape)
    # A dense view: one product a request instead of one matrix a token.
    dense = pallas_kernels.to_dense(x, lengths, longest)
    y = jnp.einsum('bli,bio->blo', dense, matrices)
    y += self.shift(shared)[:, None]
    return pallas_kernels.to_jagged(y, lengths, x.shape[0])


class RequestTokens(nnx.Module):
  """Rows of a batch -> tokens and where they stand."""

  def __init__(self, config: Config, spec: RequestSpec, rngs: nnx.Rngs):
    c = self.config = config
    self.spec = spec
    self.slots = len(spec.context_columns)
    if c.context_mlps and not self.slots:
      raise ValueError(
        'model.context_mlps=True, but the requests have no context'
      )
    # The first feature of an item is its id.
    features = len(spec.candidate_features)
    together = features if c.joint_content else 1
    self.split = together * c.row_dim
    self.content = self._make_mlp(self.split, rngs)
    attributes = actions = action = None
    if rest := features - together:
      attributes = self._make_mlp(rest * c.row_dim, rngs)
    if c.layout != 'no_actions':
      bits = request_actions.list_bits(spec, c.watch_times)
      if not bits:
        raise ValueError(
          f'model.layout={c.layout!r}, but the requests know of no action; '
          "take 'no_actions'"
        )
      actions = request_actions.ActionEncoder(
        bits, c.action_dim, c.action_std, rngs
      )
      action = self._make_mlp(actions.width, rngs)
    # What was None once cannot become a module.
    self.attributes = attributes
    self.actions, self.action = actions, action
    # In place of what candidates alone have, one vector a feature.
    self.absent = layers.optional_param(
      bool(spec.candidates),
      layers.normal(ABSENT_STD),
      rngs,
      (len(spec.candidates), c.row_dim),
    )
    for i in range(self.slots):
      slot = layers.Linear(
        c.row_dim, c.dim, kernel_init=mlp.xavier_normal, rngs=rngs
      )
      setattr(self, f'slot_{i}', slot)

  def _make_mlp(self, width: int, rngs: nnx.Rngs) -> nnx.Module:
    c = self.config
    if c.context_mlps:
      return ContextMLP(
        self.slots * c.row_dim, width, c.token_hidden, c.dim, rngs
      )
    return SwishMLP(
      width, c.token_hidden, c.dim, init=mlp.xavier_normal, rngs=rngs
    )

  def find_layout(self, batch: Examples, train: bool) -> Layout:
    """How the sequences of a batch lie, in training or outside of it."""
    c = self.config
    # Listwise candidates would see the tokens of each other's actions.
    both = train and c.candidate_actions and not c.listwise
    of_candidate = c.tokens_of_event if both else 1
    return lay_out(batch, self.slots, c.tokens_of_event, of_candidate)

  def __call__(
    self, rows: Rows, batch: Examples, train: bool
  ) -> tuple[jax.Array, Sequences]:
    """Tokens `[T, D]` float32, and what is known of them.

    Args:
      rows: `[K, width]` of each of `list_reads`.
      batch: the requests.
      train: whether candidates have all the tokens of the training.
    """
    layout = self.find_layout(batch, train)
    context = read_context(rows, batch, self.spec, self.config)
    history = self.embed(rows, batch, HISTORY, context, layout.of_event)
    candidates = self.embed(
      rows, batch, CANDIDATES, context, layout.of_candidate
    )
    dtype = self.config.dtype
    slots = [
      getattr(self, f'slot_{i}')(vector.astype(dtype))
      for i, vector in enumerate(context)
    ]
    size = batch.weights.shape[0]
    slots = (
      jnp.stack(slots, axis=1)
      if slots
      else jnp.zeros((size, 0, self.config.dim), dtype)
    )
    x = layout.join(slots, history, candidates)
    ages = jnp.repeat(batch.jagged[HISTORY][AGE], layout.of_event)
    none = jnp.zeros(layout.candidate_capacity, ages.dtype)
    age = layout.join(jnp.zeros(slots.shape[:2], ages.dtype), ages, none)
    number = number_tokens(layout, batch, x.shape[0])
    sequences = Sequences(
      layout.lengths,
      layout.candidates,
      age,
      number,
      layout.candidate_capacity,
    )
    return x.astype(jnp.float32), sequences

  def concatenate_items(self, rows: Rows, part: str) -> jax.Array:
    """`[K, sum of widths]`, all features of a candidate, or of an event."""
    is_asked = part == CANDIDATES
    features = self.spec.candidate_features if is_asked else self.spec.items
    vectors = [rows[f'{part}.{f.name}'] for f in features]
    if self.absent is not None and not is_asked:
      absent = self.absent[...].reshape(1, -1)
      count = vectors[0].shape[0]
      vectors.append(jnp.broadcast_to(absent, (count, absent.shape[1])))
    return jnp.concatenate(vectors, axis=1).astype(self.config.dtype)

  def embed(
    self,
    rows: Rows,
    batch: Examples,
    part: str,
    context: list[jax.Array],
    tokens: int,
  ) -> jax.Array:
    """`[tokens * K, D]` tokens of the events or candidates of a part.

    Args:
      rows: of all reads.
      batch: the requests.
      part: 'history' or 'candidates'.
      context: as `read_context` gives it.
      tokens: of each of them.
    """
    c = self.config
    items = self.concatenate_items(rows, part)
    if not len(items):
      return jnp.zeros((0, c.dim), items.dtype)
    first, others = jnp.split(items, [self.split], axis=1)
    content = self._apply(self.content, first, batch, part, context)
    if self.attributes is not None:
      content += self._apply(self.attributes, others, batch, part, context)
    if self.action is None or (c.layout == 'interleaved' and tokens == 1):
      return content
    if part == HISTORY:
      marked = request_actions.mark_watch_times(
        batch.jagged[HISTORY], c.watch_times
      )
      action = self.actions(marked)
    else:
      action = self.actions.encode_candidates(items.shape[0])
    action = self._apply(
      self.action, action.astype(c.dtype), batch, part, context
    )
    if c.layout == 'summed':
      return content + action
    return jnp.stack([content, action], axis=1).reshape(-1, c.dim)

  def _apply(self, net, x, batch, part, context) -> jax.Array:
    c = self.config
    if not c.context_mlps:
      return net(x)
    longest = c.max_history if part == HISTORY else c.max_candidates
    flat = jnp.concatenate(context, axis=1).astype(c.dtype)
    return net(x, flat, batch.jagged[part].lengths, longest)
