"""What is made of the events of a history for a candidate: the vector c.

Every head is called with the events z `[K, m]`, packed, the candidate w
`[B, m]`, and the places of the events, and returns `[B, width]`. An example
without an event has c = 0.

| head              | c                                                       |
|-------------------|---------------------------------------------------------|
| `ComparingHead`   | sum of y_i z_i, y = MLP of all z_i . (1, A or A^t A) w   |
| `MeanHead`        | mean of z_i                                             |
| `ConcatHead`      | all z_i in their places                                 |
| `AttentionHead`   | softmax attention of w on z_i, multi-head               |
| `RecurrentHead`   | last state of a GRU or an LSTM over z_i                 |
| `TargetHead`      | sum of MLP(z_i, w, z_i - w, z_i w) z_i, as in DIN       |
"""

import jax
import jax.numpy as jnp
from flax import nnx

from genrec_jax.config.event_models import TBSM as Config
from genrec_jax.features import Inputs
from genrec_jax.models import layers, mlp
from genrec_jax.models.event_places import EventPlaces
from genrec_jax.numerics import products


def make_head(config: Config, span: int, rngs: nnx.Rngs) -> nnx.Module:
  """The head of a mechanism.

  Args:
    config: of the model.
    span: places of the history that it has.
    rngs: random keys.
  """
  if config.compares:
    return ComparingHead(config, span, rngs)
  if config.mechanism == 'concat':
    return ConcatHead(config, span)
  kinds = {
    'mean': MeanHead,
    'attention': AttentionHead,
    'gru': RecurrentHead,
    'lstm': RecurrentHead,
    'din': TargetHead,
  }
  return kinds[config.mechanism](config, rngs)


class ComparingHead(nnx.Module):
  """Inner products with the candidate in a learned space, as in the paper."""

  matrix_site = products.Site()

  def __init__(self, config: Config, span: int, rngs: nnx.Rngs):
    self.config, self.span, self.width = config, span, config.width
    m = config.width
    self.matrix = layers.optional_param(
      config.mechanism != 'dot', layers.normal(m**-0.5), rngs, (m, m)
    )
    self.attention = (
      mlp.MLP(span, config.attention_hidden, span, init=config.init, rngs=rngs)
      if config.weights == 'mlp'
      else None
    )

  def __call__(self, z, w, places: EventPlaces, x: Inputs) -> jax.Array:
    places = places.keep_latest(self.span)
    weights = self.weigh_events(z, w, places, x)
    return places.add_up(weights[:, None] * z)

  def weigh_events(self, z, w, places: EventPlaces, x: Inputs) -> jax.Array:
    """`[K]` weight of each event; `places` are those of its span."""
    w = self.transform(w)
    # Elementwise, since packed events have no batch dimension of their own.
    a = jnp.sum(z * places.spread(w), axis=-1)
    a = jnp.where(places.is_real, a, jnp.zeros_like(a))
    if self.attention is None:
      return a
    y = jax.nn.sigmoid(self.attention(places.place(a), x))
    return places.gather(y)

  def transform(self, w: jax.Array) -> jax.Array:
    """The candidate in the space of the head: w, A w or A^t A w."""
    if self.matrix is None:
      return w
    a, site = self.matrix[...], self.matrix_site
    w = products.dot(w, a, site=site, spec='bi,oi->bo')
    if self.config.mechanism == 'ind':
      return w
    return products.dot(w, a, site=site, spec='bo,oi->bi')


class MeanHead(nnx.Module):
  """The mean of the events."""

  def __init__(self, config: Config, rngs: nnx.Rngs):
    del rngs
    self.width = config.width

  def __call__(self, z, w, places: EventPlaces, x: Inputs) -> jax.Array:
    count = jnp.maximum(places.lengths, 1).astype(z.dtype)
    return places.add_up(z) / count[:, None]


class ConcatHead(nnx.Module):
  """All events, each in its place; zeros where there is none."""

  def __init__(self, config: Config, span: int):
    self.width = span * config.width

  def __call__(self, z, w, places: EventPlaces, x: Inputs) -> jax.Array:
    return places.place(z).reshape(len(w), -1)


class AttentionHead(nnx.Module):
  """Softmax attention of the candidate on the events.

  Each of the J heads is as wide as an event, as in the published code, whose
  weights are drawn anew in each step and so are not trained; these are.
  """

  def __init__(self, config: Config, rngs: nnx.Rngs):
    m, self.heads = config.width, config.heads
    self.width = m * self.heads

    def make(dim_in):
      return mlp.make_linear(dim_in, self.width, rngs, 'xavier_normal')

    self.query, self.key, self.value = make(m), make(m), make(m)
    self.out = make(self.width)

  def __call__(self, z, w, places: EventPlaces, x: Inputs) -> jax.Array:
    c = places.add_up(
      self._weigh_events(z, w, places)[..., None] * self._split(self.value(z))
    )
    c = self.out(c.reshape(len(w), -1))
    # The bias of the last layer is nothing that was said of no events.
    return jnp.where(places.lengths[:, None] > 0, c, jnp.zeros_like(c))

  def _weigh_events(self, z, w, places: EventPlaces) -> jax.Array:
    """`[K, J]`, of each history and head with sum 1."""
    q, k = self._split(self.query(w)), self._split(self.key(z))
    scores = jnp.sum(places.spread(q) * k, axis=-1) * k.shape[-1] ** -0.5
    placed = places.place(scores.astype(jnp.float32))
    real = places.has_event[..., None]
    # Not infinite: a history without events has a row of nothing else.
    placed = jnp.where(real, placed, -1e30)
    shares = jnp.where(real, jax.nn.softmax(placed, axis=1), 0.0)
    return places.gather(shares).astype(z.dtype)

  def _split(self, values: jax.Array) -> jax.Array:
    return values.reshape(len(values), self.heads, -1)


class RecurrentHead(nnx.Module):
  """The last state of a GRU or an LSTM over the events, oldest first.

  The products with events are computed packed; those with the state are as many
  as there are places, whatever the lengths.
  """

  def __init__(self, config: Config, rngs: nnx.Rngs):
    self.is_lstm = config.mechanism == 'lstm'
    self.width = config.recurrent_width or config.width
    gates = (4 if self.is_lstm else 3) * self.width
    self.input = mlp.make_linear(config.width, gates, rngs, 'xavier_normal')
    self.state = mlp.make_linear(self.width, gates, rngs, 'xavier_normal')

  def __call__(self, z, w, places: EventPlaces, x: Inputs) -> jax.Array:
    given = jnp.swapaxes(places.place(self.input(z)), 0, 1)
    real = places.has_event.T[..., None]
    move = self._move_lstm if self.is_lstm else self._move_gru

    def step(state, event):
      given, real = event
      moved = move(state, given)
      kept = jax.tree.map(lambda a, b: jnp.where(real, a, b), moved, state)
      return kept, None

    start = jnp.zeros((len(w), self.width), z.dtype)
    start = (start, start) if self.is_lstm else start
    state, _ = jax.lax.scan(step, start, (given, real))
    return state[0] if self.is_lstm else state

  def _move_gru(self, h: jax.Array, given: jax.Array) -> jax.Array:
    reset, update, new = jnp.split(given, 3, axis=-1)
    own_reset, own_update, own_new = jnp.split(self.state(h), 3, axis=-1)
    reset = jax.nn.sigmoid(reset + own_reset)
    update = jax.nn.sigmoid(update + own_update)
    new = jnp.tanh(new + reset * own_new)
    return (1 - update) * new + update * h

  def _move_lstm(self, state, given: jax.Array):
    h, c = state
    enter, forget, new, leave = jnp.split(given + self.state(h), 4, axis=-1)
    c = jax.nn.sigmoid(forget) * c + jax.nn.sigmoid(enter) * jnp.tanh(new)
    return jax.nn.sigmoid(leave) * jnp.tanh(c), c


class TargetHead(nnx.Module):
  """An MLP weighs each event by itself, beside the candidate, as in DIN."""

  def __init__(self, config: Config, rngs: nnx.Rngs):
    self.width = config.width
    self.attention = mlp.MLP(
      4 * config.width, config.attention_hidden, 1, init=config.init, rngs=rngs
    )

  def __call__(self, z, w, places: EventPlaces, x: Inputs) -> jax.Array:
    w = places.spread(w)
    beside = jnp.concatenate([z, w, z - w, z * w], axis=-1)
    return places.add_up(self.attention(beside, x) * z)
