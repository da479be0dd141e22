"""The nets of the study of TBSM: plain functions of parameters, H and w.

The study (section 5 of arXiv 2008.11922, `tbsm_synthetic.py`) has no tower:
events H `[B, T, D]` and a candidate w `[B, D]` are given. A net makes features
of them, and an MLP with one hidden layer, twice as wide, a logit.

  dot         J = 1: products of w with each event
  ind, def    J heads: those of A_j w and of A_j^t A_j w
  attention   J heads: w attends to the events, multi-head
  concat      H and w side by side
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

KINDS = ('dot', 'ind', 'def', 'attention', 'concat')


@dataclasses.dataclass(frozen=True)
class Net:
  """A net that is not trained yet.

  Attributes:
    kind: of KINDS.
    heads: J.
    hidden: width of the MLP; 0 is twice that of its input.
    frozen: whether A stays as it was drawn, as the published code has it.
    redrawn: whether the projections of the attention are drawn anew at each
      call, likewise.
  """

  kind: str
  heads: int = 1
  hidden: int = 0
  frozen: bool = False
  redrawn: bool = False

  def count_inputs(self, events: int, width: int) -> int:
    """Inputs of the MLP."""
    if self.kind == 'concat':
      return (events + 1) * width
    if self.kind == 'attention':
      return self.heads * width
    return self.heads * events

  def init(self, key: jax.Array, events: int, width: int) -> dict:
    """Fresh parameters: as the published code draws them."""
    keys = iter(jax.random.split(key, 9))
    inputs = self.count_inputs(events, width)
    hidden = self.hidden or 2 * inputs
    params = {}
    if self.kind in ('ind', 'def'):
      draws = jax.random.normal(next(keys), (self.heads, width, width))
      params['matrix'] = jnp.eye(width)[None] + draws * width**-0.5
    elif self.kind == 'attention':
      for name in ('query', 'key', 'value'):
        draws = jax.random.normal(next(keys), (width, inputs))
        params[name] = draws * width**-0.5
      params['projections'] = draw_projections(next(keys), inputs)
    params['hidden'] = _draw_linear(next(keys), inputs, hidden)
    params['out'] = _draw_linear(next(keys), hidden, 1)
    return params

  def apply(
    self, params: dict, events: jax.Array, candidate: jax.Array, key=None
  ) -> jax.Array:
    """Logits `[B]`.

    Args:
      params: of `init`.
      events: H.
      candidate: w.
      key: for projections that are redrawn.
    """
    features = self._make_features(params, events, candidate, key)
    hidden = jax.nn.relu(_multiply(features, params['hidden']))
    return _multiply(hidden, params['out'])[:, 0]

  def _make_features(self, params, events, candidate, key) -> jax.Array:
    if self.kind == 'concat':
      return jnp.concatenate([events.reshape(len(events), -1), candidate], 1)
    if self.kind == 'attention':
      projections = params['projections']
      if self.redrawn:
        projections = draw_projections(key, self.heads * events.shape[-1])
      return attend(params, projections, events, candidate, self.heads)
    w = candidate[:, None]
    if self.kind != 'dot':
      a = params['matrix']
      if self.frozen:
        a = jax.lax.stop_gradient(a)
      w = jnp.einsum('joi,bi->bjo', a, candidate)
      if self.kind == 'def':
        w = jnp.einsum('joi,bjo->bji', a, w)
    return jnp.einsum('btd,bjd->bjt', events, w).reshape(len(events), -1)


def draw_projections(key: jax.Array, width: int) -> dict:
  """What `torch.nn.MultiheadAttention` draws, Xavier uniform."""
  first, last = jax.random.split(key)
  bound = (6 / (width + 3 * width)) ** 0.5
  # Its output projection keeps the uniform draw of a linear layer.
  own = width**-0.5
  return {
    'in': jax.random.uniform(
      first, (width, 3, width), minval=-bound, maxval=bound
    ),
    'in_bias': jnp.zeros((3, width)),
    'out': jax.random.uniform(last, (width, width), minval=-own, maxval=own),
    'out_bias': jnp.zeros(width),
  }


def attend(
  params: dict, projections: dict, events, candidate, heads: int
) -> jax.Array:
  """Multi-head attention of the candidate on the events, `[B, heads * D]`."""
  b, t, width = events.shape
  names = 'query', 'key', 'value'
  x = [
    given @ params[name]
    for name, given in zip(names, (candidate, events, events), strict=True)
  ]
  q, k, v = (
    jnp.einsum('...i,io->...o', part, projections['in'][:, i])
    + projections['in_bias'][i].reshape((1,) * (part.ndim - 1) + (-1,))
    for i, part in enumerate(x)
  )
  q = q.reshape(b, heads, width)
  k, v = k.reshape(b, t, heads, width), v.reshape(b, t, heads, width)
  scores = jnp.einsum('bhd,bthd->bht', q, k) * width**-0.5
  mixed = jnp.einsum('bht,bthd->bhd', jax.nn.softmax(scores, axis=-1), v)
  return (
    mixed.reshape(b, -1) @ projections['out'] + projections['out_bias'][None]
  )


def _draw_linear(key: jax.Array, inputs: int, outputs: int) -> dict:
  """As DLRM draws its layers."""
  first, last = jax.random.split(key)
  deviation = (2 / (inputs + outputs)) ** 0.5
  return {
    'kernel': deviation * jax.random.normal(first, (inputs, outputs)),
    'bias': outputs**-0.5 * jax.random.normal(last, (outputs,)),
  }


def _multiply(x: jax.Array, layer: dict) -> jax.Array:
  return x @ layer['kernel'] + layer['bias'][None]


def count_parameters(net: Net, events: int, width: int) -> int:
  """Numbers of a net."""
  init = functools.partial(net.init, events=events, width=width)
  shapes = jax.eval_shape(init, jax.random.key(0))
  return sum(x.size for x in jax.tree.leaves(shapes))


def choose_hidden(net: Net, size: int, events: int, width: int) -> Net:
  """The net with the hidden width that has about `size` parameters."""
  least = dataclasses.replace(net, hidden=1)
  # Each hidden unit has its inputs, its bias and its weight in the logit.
  each = net.count_inputs(events, width) + 2
  more = size - count_parameters(least, events, width)
  return dataclasses.replace(net, hidden=1 + max(0, round(more / each)))
