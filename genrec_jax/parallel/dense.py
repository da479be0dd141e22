"""Dense parameters on many devices: DDP, ZeRO-2, FSDP and hybrid sharding.

| mode    | stored parameters | optimizer state | a step's collectives     |
|---------|-------------------|-----------------|--------------------------|
| ddp     | whole             | whole           | all-reduces, in buckets  |
| grad_op | whole             | 1/W             | reduce-scatter, then     |
|         |                   |                 | all-gather of the update |
| fsdp    | 1/W               | 1/W             | all-gather (once or      |
|         |                   |                 | twice), reduce-scatter   |
| hybrid  | 1/G               | 1/G             | those inside a host, and |
|         |                   |                 | all-reduces of 1/G       |

W is the number of all devices, G that of the devices of a host. Gradients of
parameters that the rules do not cut are summed as in ddp. Each parameter has a
record of how it is cut (`cuts.Cut`), which the mode fills in; `make_layout`
takes other records for towers.

The same step serves all modes. It runs inside `jax.shard_map` on the blocks
that `placement.specs` describe:

    layout = make_layout(DenseOptions('fsdp', rules), mesh, params)

    def step(params, state, microbatches):      # of this shard
      held = layout.gather(params)
      loss = layout.remat(lambda h, b: summand(layout.use(h), b))
      run = lambda batch: jax.value_and_grad(loss)(held, batch)
      value, grads = accumulate_sums(run, microbatches)
      grads = layout.reduce(grads)
      norm = layout.norm(grads)
      grads = layout.clip(grads, norm)
      params, state = layout.apply(tx, grads, state, params)
      return params, state, collectives.sum_over_shards(value), norm

`summand` is the shard's part of the loss: see `collectives`. The optimizer must
work element by element, since it sees shards; `optax.clip_by_global_norm` would
see the norm of a shard, so `clip` does it here.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from genrec_jax.parallel import clipping, gathering
from genrec_jax.parallel import cuts as cuts_lib
from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.parallel import rules as rules_lib
from genrec_jax.parallel.buckets import sum_in_buckets
from genrec_jax.parallel.cuts import Cut

# Over which axes of the mesh a mode cuts what it cuts.
CUT = {
  'ddp': (),
  'grad_op': mesh_lib.AXES,
  'fsdp': mesh_lib.AXES,
  'hybrid': ('dev',),
}
GATHER_DTYPES = ('float32', 'bfloat16', 'float16')
REDUCE_DTYPES = ('float32', 'bfloat16')
_KEYS = {'mode': 'dense'}  # of the config, where it has another name


@dataclasses.dataclass(frozen=True)
class DenseOptions:
  """What a configuration says of dense parallelism.

  Attributes:
    mode: a key of `CUT`.
    rules: (regex, axis) pairs, see `rules`; ddp cuts nothing and needs none.
    gather_dtype: dtype of parameters on the wire and in the model; the stored
      parameters stay float32. With grad_op it is used in the model alone, since
      what grad_op gathers are the updated parameters that it stores.
    reduce_dtype: dtype of gradients on the wire and in the sum over devices.
    bucket_bytes: size at which a bucket of gradients is sent.
    keep_gathered: whether fsdp and hybrid gather once a step and hold the whole
      model from forward to backward; microbatches then share one reduction. If
      not, the backward pass gathers again, each microbatch scatters its own
      gradients, and no device ever needs the whole model.
    clip_norm: largest norm of the gradient of the whole model; 0 for no limit.
    offload_state: whether the optimizer state is in host memory between steps.
  """

  mode: str = 'ddp'
  rules: tuple[tuple[str, int | str | None], ...] = ()
  gather_dtype: str = 'float32'
  reduce_dtype: str = 'float32'
  bucket_bytes: int = 25 << 20
  keep_gathered: bool = False
  clip_norm: float = 0.0
  offload_state: bool = False

  def __post_init__(self):
    for field, known in (
      ('mode', tuple(CUT)),
      ('gather_dtype', GATHER_DTYPES),
      ('reduce_dtype', REDUCE_DTYPES),
    ):
      if getattr(self, field) not in known:
        raise ValueError(
          f'parallel.{_KEYS.get(field, field)} is {getattr(self, field)!r}, '
          f'must be one of {known}'
        )
    if self.bucket_bytes < 1:
      raise ValueError(
        f'parallel.bucket_mb makes {self.bucket_bytes} bytes, must be positive'
      )

  @property
  def stored_cut(self) -> bool:
    """Whether a device stores only its part of the parameters."""
    return self.mode in ('fsdp', 'hybrid')

  @property
  def gathers_again(self) -> bool:
    """Whether the backward pass gathers parameters a second time."""
    return self.stored_cut and not self.keep_gathered


@dataclasses.dataclass(frozen=True, eq=False)
class MeshLayout:
  """How the parameters of a model are divided over a mesh; see `make_layout`.

  Attributes:
    dense: the options.
    mesh: the mesh.
    params: whole parameters as `jax.ShapeDtypeStruct`s.
    cuts: path of a parameter -> how it is cut.
  """

  dense: DenseOptions
  mesh: Mesh
  params: Any
  cuts: dict[str, Cut]

  def gather(self, params):
    """Turns stored parameters into what `use` expects; called once a step."""

    def gather_parameter(cut, x):
      # Nothing to gather; only the dtype of the model is wanted.
      if not cut.scattered or not self.dense.stored_cut:
        return x.astype(self.dense.gather_dtype)
      # Stays a part: `use` gathers it inside what is differentiated, so that
      # its gradient is scattered at once.
      if self.dense.gathers_again:
        return x
      return gathering.gather_whole(x, self._make_wire(cut))

    return self._map_cuts(gather_parameter, params)

  def use(self, held):
    """Turns what `gather` returned into what the model computes with.

    These are whole parameters, except those of which each shard has a part of
    its own (`Cut.independent_axes`). Call it inside
    the function that is differentiated.
    """
    if not self.dense.gathers_again:
      return held
    return self._map_cuts(
      lambda cut, x: (
        gathering.gather_again(self._make_wire(cut), x) if cut.scattered else x
      ),
      held,
    )

  def remat(self, loss: Callable) -> Callable:
    """Makes `loss(held, ...)` gather parameters again for the backward pass."""
    return (
      gathering.regather_in_backward(loss) if self.dense.gathers_again else loss
    )

  def reduce(self, grads):
    """Sums gradients over shards and leaves each device its part.

    Args:
      grads: gradients with respect to what `gather` returned.

    Returns:
      Gradients in the shapes that the optimizer works on and in the dtypes of
      the stored parameters.
    """
    dense = self.dense

    def scatter_gradient(cut, x):
      # The backward pass of `use` has scattered it already.
      if not cut.scattered or dense.gathers_again:
        return x
      return gathering.scatter_sum(x, self._make_wire(cut))

    grads = self._map_cuts(scatter_gradient, grads)
    names, leaves, tree = _named_leaves(grads)
    places = {}  # axes left to sum over -> indices of leaves
    for place, name in enumerate(names):
      places.setdefault(self.cuts[name].summed_axes, []).append(place)
    # What is summed over most axes first: the whole parameters.
    for axes in sorted(places, key=len, reverse=True):
      if axes:
        sums = sum_in_buckets(
          [leaves[place] for place in places[axes]],
          axes,
          dense.reduce_dtype,
          dense.bucket_bytes,
        )
        for place, value in zip(places[axes], sums):
          leaves[place] = value
    grads = jax.tree_util.tree_unflatten(tree, leaves)
    return jax.tree_util.tree_map_with_path(
      lambda path, g: g.astype(
        self._parameter_dtypes[rules_lib.path_name(path)]
      ),
      grads,
    )

  def norm(self, grads, more: jax.Array | float = 0.0) -> jax.Array:
    """The norm of the gradient of the whole model, the same on each device.

    Args:
      grads: from `reduce`.
      more: sum of squares of further gradients, for instance of table rows.
    """
    names, leaves, _ = _named_leaves(grads)
    # Shards are disjoint over the axes of their cut and copies elsewhere: each
    # square must be counted once.
    squares = {}  # axes of a cut -> sum of squares of its parts
    for name, leaf in zip(names, leaves):
      if rules_lib.is_statistic(name):
        continue
      own = jnp.sum(jnp.square(leaf.astype(jnp.float32)))
      axes = self.cuts[name].over
      squares[axes] = squares.get(axes, jnp.float32(0)) + own
    whole = squares.pop((), jnp.float32(0))
    parts = jnp.float32(0)
    for axes, own in squares.items():
      # One scalar for all parameters that are cut alike.
      parts = parts + jax.lax.psum(own, axes)
    return jnp.sqrt(parts + whole + more)

  def clip(self, grads, norm: jax.Array):
    """Scales gradients down to `clip_norm` if their norm is larger."""
    return clipping.clip_gradients(grads, norm, self.dense.clip_norm)

  def apply(self, tx, grads, state, params, **extra):
    """Updates the stored parameters and the optimizer state.

    Args:
      tx: optax transformation.
      grads: reduced and clipped gradients.
      state: the state of `tx`.
      params: the parameters as stored.
      **extra: further arguments of `tx.update`.

    Returns:
      The new parameters, as stored, and the new state.
    """
    # The optimizer works on as much of a parameter as it has gradient.
    params = self.local_slice(params)
    updates, state = tx.update(grads, state, params, **extra)
    params = optax.apply_updates(params, updates)
    if not self.dense.stored_cut:
      params = self._map_cuts(
        lambda cut, x: (
          # In its own dtype: these are the parameters that stay, not copies for
          # a step.
          gathering.gather_whole(x, self._make_wire(cut, str(x.dtype)))
          if cut.scattered
          else x
        ),
        params,
      )
    return params, state

  @functools.cached_property
  def _parameter_dtypes(self) -> dict[str, jnp.dtype]:
    names, leaves, _ = _named_leaves(self.params)
    return {name: x.dtype for name, x in zip(names, leaves, strict=True)}

  def local_slice(self, params):
    """The part of the stored parameters that this device updates."""
    if self.dense.stored_cut:
      return params
    return self._map_cuts(self._own_part, params)

  def stored_axes(self, cut: Cut) -> tuple[str, ...]:
    """The axes over which a parameter itself is cut, not only its state."""
    return cut.over if self.dense.stored_cut else cut.independent_axes

  def _make_wire(self, cut: Cut, dtype: str = '') -> gathering.Wire:
    return gathering.Wire(
      cut.scattered,
      cut.dimension,
      dtype or self.dense.gather_dtype,
      self.dense.reduce_dtype,
    )

  def _own_part(self, cut: Cut, x):
    """What this device updates of a stored parameter."""
    if not cut.scattered:
      return x
    size = x.shape[cut.dimension] // mesh_lib.count_shards(
      self.mesh, cut.scattered
    )
    first = jax.lax.axis_index(cut.scattered) * size
    return jax.lax.dynamic_slice_in_dim(x, first, size, cut.dimension)

  def _map_cuts(self, f, tree):
    return jax.tree_util.tree_map_with_path(
      lambda path, x: f(self.cuts[rules_lib.path_name(path)], x), tree
    )


def make_layout(
  dense: DenseOptions,
  mesh: Mesh,
  params,
  overrides: Mapping[str, Cut] | None = None,
) -> MeshLayout:
  """Makes the layout of a model.

  Args:
    dense: what the configuration says.
    mesh: a mesh with the axes `mesh.AXES`.
    params: whole parameters, or `jax.eval_shape` of them.
    overrides: regex of paths -> cut, for parameters that the mode does not
      decide on: `{'towers/.*': Cut(0, ('host',), ('rep', 'dev'))}`.

  Raises:
    RuleError: rules or overrides do not fit the parameters.
    ValueError: a parameter is not of floating-point numbers.
  """
  params = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params
  )
  cuts = cuts_lib.resolve_cuts(
    CUT[dense.mode], dense.rules, mesh, params, overrides
  )
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
      raise ValueError(
        f'parameter {rules_lib.path_name(path)!r} is {leaf.dtype}: only '
        'floating-point parameters are trained'
      )
  return MeshLayout(dense, mesh, params, cuts)


def accumulate_sums(function: Callable, microbatches):
  """Sums `function(microbatch)` over microbatches in one loop.

  >>> accumulate_sums(jnp.sum, jnp.ones((3, 2))).item()
  6.0

  Args:
    function: microbatch -> tree of arrays, such as a loss and its gradients.
    microbatches: tree of arrays `[K, ...]`.

  Returns:
    The tree of sums; floating-point numbers are at least float32.
  """
  count = {x.shape[0] for x in jax.tree.leaves(microbatches)}
  if len(count) != 1:
    raise ValueError(f'microbatches must agree on their number: {count}')
  first = jax.tree.map(lambda x: x[0], microbatches)
  # No loop, which would keep XLA from overlapping what is around it.
  if count == {1}:
    return jax.tree.map(_widen, function(first))

  def add_microbatch(sums, microbatch):
    new = jax.tree.map(_widen, function(microbatch))
    return jax.tree.map(jnp.add, sums, new), None

  # Sums start as zeros, whose shapes only the function knows.
  shapes = jax.eval_shape(lambda b: jax.tree.map(_widen, function(b)), first)
  zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
  return jax.lax.scan(add_microbatch, zeros, microbatches)[0]


def _widen(x: jax.Array) -> jax.Array:
  if jnp.issubdtype(x.dtype, jnp.floating) and np.dtype(x.dtype).itemsize < 4:
    return x.astype(jnp.float32)
  return x


def _named_leaves(tree):
  leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
  names = [rules_lib.path_name(path) for path, _ in leaves]
  return names, [leaf for _, leaf in leaves], structure
