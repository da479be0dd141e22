"""HSTU in parts, for retrieval: a history is encoded once, and kept.

    kept = keep_history(model, rows, events)          # [T, W], a row a token
    x, fresh = encode_new(model, rows, place)         # tokens behind the known

What a token is depends on those before it, and with a time bias on when the
next event comes: so the latest token is final only once another follows. It is
encoded anew with each question, as the first of the new tokens.
"""

import dataclasses

import jax
import jax.numpy as jnp

import pallas_kernels
from genrec_jax.config.models import HSTU as Config
from genrec_jax.features import Columns, Jagged
from genrec_jax.models.hstu import HSTU, embed_tokens
from genrec_jax.models.kept_layers import join_keys, run_layer


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class HistoryPlace:
  """What is kept of the sequences of a batch, with room for what is new.

  Attributes:
    kept: `[T, W]` rows of packed tokens; those of new ones hold anything.
    known: `[B]` int32 tokens of each sequence that are known.
    fresh: `[B]` int32 tokens behind them that are new.
    time: `[T]` int32 seconds of the event of each token; any zero will do.
    next_time: `[T]` int32 seconds of the event behind it, or of the question.
    max_new: static bound of `fresh`.
  """

  kept: jax.Array
  known: jax.Array
  fresh: jax.Array
  time: jax.Array
  next_time: jax.Array
  max_new: int = dataclasses.field(metadata=dict(static=True))


def explain_refusal(config) -> str:
  """Why nothing can be kept of histories; '' if it can.

  >>> explain_refusal(Config())
  ''
  """
  if not isinstance(config, Config):
    return (
      'only the model hstu keeps something of a history, and this is '
      f'{type(config).__name__}'
    )
  return ''


def keep_history(model: HSTU, rows: jax.Array, events: Jagged) -> jax.Array:
  """`[T, W]` rows of the tokens of whole histories, packed.

  Args:
    model: the model.
    rows: `[T, D]` the item row of each token.
    events: the tokens, with columns time and next_time.
  """
  c, parts = model.config, []
  x = embed_tokens(rows, model.position, events, 0.0, None).astype(c.dtype)
  for i in range(c.blocks):
    layer = getattr(model, f'layer_{i}')
    u, q, k, v = layer.project(x)
    parts.append(join_keys(k, v))
    if i + 1 < c.blocks:  # what comes out of the last is of no use here
      x = layer.combine(x, u, layer.attend(q, k, v, events))
  return jnp.concatenate(parts, axis=1)


def encode_new(
  model: HSTU, rows: jax.Array, place: HistoryPlace
) -> tuple[jax.Array, jax.Array]:
  """`[Q, D]` new tokens, as `HSTU` gives them, and their rows `[Q, W]`.

  Args:
    model: the model.
    rows: `[Q, D]` the item row of each new token, packed.
    place: what is known of their sequences.
  """
  c, found = model.config, []
  count = rows.shape[0]
  segment = pallas_kernels.segment_ids(place.fresh, count)
  x = rows.astype(jnp.float32) * jnp.float32(rows.shape[-1] ** 0.5)
  if model.position is not None:
    at = place.known.at[segment].get(mode='fill', fill_value=0)
    at += pallas_kernels.positions(place.fresh, count)
    x += model.position[...].at[at].get(mode='fill', fill_value=0)
  x = x.astype(c.dtype)
  times = jnp.stack([place.time, place.next_time], axis=1)
  events = Jagged(
    Columns(times, ('time', 'next_time')), place.known + place.fresh
  )
  parts = jnp.split(place.kept.astype(c.dtype), c.blocks, axis=1)
  for i, kept in enumerate(parts):
    layer = getattr(model, f'layer_{i}')
    x, own = run_layer(layer, x, kept, events, place.fresh, None, place.max_new)
    found.append(own)
  return x, jnp.concatenate(found, axis=1)
