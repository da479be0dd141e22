"""STU in parts: what is known of a history is computed once, and kept.

    kept = keep_history(model, rows, batch)          # [T, W], a row a token
    fresh = extend_history(model, rows, batch, place)  # rows of further events
    scores = score_candidates(model, rows, batch, place)

Candidates see the history and no other candidate, so that the keys and values
of a history serve any number of them: this is M-FALCON (arXiv 2402.17152,
algorithm 1). A row of what is kept has the keys and values of one token in all
layers, one behind the other; where it lies is up to the caller, who hands in
the rows of whole sequences, packed, with room for the tokens that are new
(`Place`).

| paper, published code (spec 2.7) | here                                    |
|----------------------------------|-----------------------------------------|
| prefill with kv_caching_lengths  | `keep_history`                          |
| cached_forward(delta_x)          | `score_candidates`, `extend_history`    |
| K_full = [cache ; delta K]       | `_run_delta`                            |
| N = max_kv_caching_len + delta   | `STU.longest`, the same everywhere      |

Differences from the paper: none of the formulas. The last layer of a history
is not finished, because nothing reads it.
"""

import dataclasses

import jax
import jax.numpy as jnp

import pallas_kernels
from genrec_jax.config.request_models import STU as Config
from genrec_jax.features import CANDIDATES, HISTORY, Examples
from genrec_jax.models.hstu import find_queries
from genrec_jax.models.kept_layers import join_keys, run_layer
from genrec_jax.models.request_sequences import Sequences
from genrec_jax.models.request_tokens import Rows, read_context
from genrec_jax.models.stu import STU
from genrec_jax.models.stu_stack import Stack


def explain_refusal(config: Config) -> str:
  """Why nothing can be kept of a history for candidates; '' if it can."""
  if config.listwise:
    return 'model.listwise=True: candidates see each other'
  if 'batch_normaliser' in config.reference_compat:
    return (
      "model.reference_compat='batch_normaliser': what is divided by depends "
      'on the candidates'
    )
  if 'context_by_candidates' in config.reference_compat:
    return (
      "model.reference_compat='context_by_candidates': what context counts "
      'depends on how many candidates there are'
    )
  return ''


def explain_rebuilding(config: Config, contextual: int) -> str:
  """Why a new event changes what is kept of the others; '' if it does not.

  >>> explain_rebuilding(Config(counted_from='start'), 0)
  ''

  Args:
    config: of the model.
    contextual: tokens of context of a request.
  """
  if config.counted_from == 'request':
    return (
      "model.counted_from='request': places and ages are counted back from the "
      'request'
    )
  if contextual and config.context_mask == 'both':
    return "model.context_mask='both': the context sees all of the history"
  if config.truncated_layers:
    return 'model.truncated_layers: which events layers see moves'
  if config.window is not None and config.full_tail:
    return 'model.full_tail: which events the window does not bind moves'
  return ''


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Place:
  """What is kept of the sequences of a batch, with room for what is new.

  Attributes:
    kept: `[T, W]` rows of packed tokens; those of new ones hold anything.
    known: `[B]` int32 tokens of each sequence that are known, context too.
    age: `[T]` int32 seconds from the event of a token to the request.
    max_new: static bound of the tokens of a sequence that are new.
  """

  kept: jax.Array
  known: jax.Array
  age: jax.Array
  max_new: int = dataclasses.field(metadata=dict(static=True))


def keep_history(model: STU, rows: Rows, batch: Examples) -> jax.Array:
  """`[T, W]` rows of the tokens of context and history, packed.

  Args:
    model: the model.
    rows: of all reads.
    batch: the requests; of candidates there is no room at all.
  """
  x, sequences = model.prepare(rows, batch)
  return _keep(model.stack, x, sequences)


def extend_history(
  model: STU, rows: Rows, batch: Examples, place: Place
) -> jax.Array:
  """`[Q, W]` rows of the tokens of further events, packed.

  The context counts, or not, as it did before: where a history reaches
  `min_context_events`, all of it must be kept anew.

  Args:
    model: one of which `explain_rebuilding` says nothing.
    rows: of all reads.
    batch: the new events as histories, and the context; ages are counted back
      from the request, as in `place`.
    place: what is kept, with room for the new tokens behind the known ones.
  """
  events = batch.jagged[HISTORY]
  each = model.config.tokens_of_event
  context = read_context(
    rows, batch, model.spec, model.config, _count_events(model, place)
  )
  x = model.tokens.embed(rows, batch, HISTORY, context, each)
  fresh = events.lengths * each
  count = x.shape[0]
  segment = pallas_kernels.segment_ids(fresh, count)
  known = place.known.at[segment].get(mode='fill', fill_value=0)
  inside = pallas_kernels.positions(fresh, count) + known
  lengths = place.known + fresh
  # Of its sequence, the token of the event before.
  at = find_queries(lengths, fresh, count, place.age.shape[0])
  age = place.age.at[at].get(mode='fill', fill_value=0)
  before = place.age.at[jnp.maximum(at - each, 0)].get(
    mode='fill', fill_value=0
  )
  gap = jnp.where(inside - each < model.slots, 0, before - age)
  most = model.positions.position[...].shape[0] - 1
  x = model.positions.add(
    x.astype(jnp.float32), jnp.minimum(inside, most), gap, inside < 0
  )
  x = x.astype(model.config.dtype)
  _, found = _run_delta(model.stack, x, fresh, None, place)
  return found


def score_candidates(
  model: STU, rows: Rows, batch: Examples, place: Place
) -> dict[str, jax.Array]:
  """`[K]` float32 of each label, as `STU.__call__` gives them.

  Args:
    model: one of which `explain_refusal` says nothing.
    rows: of all reads.
    batch: the requests. Their histories have their lengths, but no events.
    place: what is kept of them, with room for the candidates.
  """
  c = model.config
  context = read_context(rows, batch, model.spec, c)
  x = model.tokens.embed(rows, batch, CANDIDATES, context, 1)
  fresh = batch.jagged[CANDIDATES].lengths
  count = x.shape[0]
  segment = pallas_kernels.segment_ids(fresh, count)
  slots = jnp.full(count, model.slots, jnp.int32)
  at, gap = slots, jnp.zeros(count, jnp.int32)
  if c.counted_from == 'start':
    known = place.known.at[segment].get(mode='fill', fill_value=0)
    first = pallas_kernels.offsets(place.known + fresh)
    first = first.at[segment].get(mode='fill', fill_value=0)
    last = place.age.at[jnp.maximum(first + known - 1, 0)].get(
      mode='fill', fill_value=0
    )
    at, gap = known, jnp.where(known > slots, last, 0)
  most = model.positions.position[...].shape[0] - 1
  x = model.positions.add(
    x.astype(jnp.float32), jnp.minimum(at, most), gap, slots < 0
  )
  x, _ = _run_delta(model.stack, x.astype(c.dtype), fresh, fresh, place)
  return model.read_candidates(x, rows, batch)


def _count_events(model: STU, place: Place) -> jax.Array:
  """`[B]` events that are known."""
  known = jnp.maximum(place.known - model.slots, 0)
  return known // model.config.tokens_of_event


def _keep(stack: Stack, x: jax.Array, sequences: Sequences) -> jax.Array:
  c, parts, bypass = stack.config, [], None
  for i in range(c.blocks):
    if i == stack.first_truncated:
      x, sequences, bypass = stack.truncate(x, sequences)
    layer = getattr(stack, f'layer_{i}')
    u, q, k, v = layer.project(x)
    part = join_keys(k, v)
    if bypass is not None:
      others, bypassed = bypass
      none = jnp.zeros((others.shape[0], part.shape[1]), part.dtype)
      part = stack.restore(part, sequences, none, bypassed)
    parts.append(part)
    if i + 1 < c.blocks:
      attended = layer.attend(
        q, k, v, sequences.as_events(), sequences.candidates
      )
      x = layer.combine(x, u, attended)
  return jnp.concatenate(parts, axis=1)


def _run_delta(
  stack: Stack, x: jax.Array, fresh: jax.Array, candidates, place: Place
) -> tuple[jax.Array, jax.Array]:
  """New tokens behind all layers, `[Q, D]`, and what to keep of them.

  Args:
    stack: the layers.
    x: `[Q, D]` packed.
    fresh: `[B]` of each sequence.
    candidates: `[B]` of them that are candidates; None for none.
    place: what is kept, with room for them.
  """
  c, found = stack.config, []
  lengths = place.known + fresh
  if candidates is None:
    candidates = jnp.zeros_like(fresh)
  whole = sequences = Sequences(
    lengths, candidates, place.age, place.age.astype(jnp.uint32), x.shape[0]
  )
  width = c.heads * (c.dqk + c.dv)
  for i in range(c.blocks):
    layer = getattr(stack, f'layer_{i}')
    part = place.kept[:, i * width : (i + 1) * width].astype(x.dtype)
    if i >= stack.first_truncated:
      part, sequences, _ = stack.truncate(part, whole)
    x, own = run_layer(
      layer,
      x,
      part,
      sequences.as_events(),
      fresh,
      sequences.candidates,
      place.max_new,
    )
    found.append(own)
  return x, jnp.concatenate(found, axis=1)
