"""Shardings of parameters and optimizer state, in device or host memory.

Nothing here computes anything in a step. `specs` and `state_specs` are the
in_specs and out_specs of the step's `shard_map`. The shardings, which also say
in which memory an array is, belong to the `jit` around it:

    resting = placement.state_shardings(layout, tx)
    params = placement.init_sharded(init_fn, placement.shardings(layout))
    state = placement.init_sharded(tx.init, resting, params)

    def train(params, state, batch):            # jit it, donate params, state
      state = placement.to_device(state, resting)
      params, state = shard_map(step, ...)(params, state, batch)
      return params, placement.to_rest(state, resting)
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec

from genrec_jax.parallel import rules as rules_lib
from genrec_jax.parallel.dense import MeshLayout

HOST, DEVICE = 'pinned_host', 'device'

# What makes an optimizer more than elementwise, as names in its jaxpr.
_MIXING = ('arg', 'conv_general', 'cum', 'dot_general', 'reduce_', 'sort')


def specs(layout: MeshLayout):
  """A `PartitionSpec` for every parameter, as it is stored."""
  return _make_specs(layout, layout.stored_axes)


def update_specs(layout: MeshLayout):
  """A `PartitionSpec` for every parameter as the optimizer sees it.

  The gradients that `MeshLayout.reduce` returns are divided in the same way.
  """
  return _make_specs(layout, lambda cut: cut.over)


def _make_specs(layout: MeshLayout, axes_of: Callable):
  def make_spec(path, leaf):
    cut = layout.cuts[rules_lib.path_name(path)]
    if not axes_of(cut):
      return PartitionSpec()
    axes = [None] * len(leaf.shape)
    axes[cut.dimension] = axes_of(cut)
    return PartitionSpec(*axes)

  return jax.tree_util.tree_map_with_path(make_spec, layout.params)


def state_specs(layout: MeshLayout, tx: optax.GradientTransformation):
  """A `PartitionSpec` for every leaf of `tx.init(params)`.

  A leaf that belongs to a parameter, such as a moment, is divided like its
  gradient; any other, such as a step count, is on every device.

  Args:
    layout: the layout of the parameters.
    tx: optax transformation.

  Raises:
    ValueError: the optimizer needs more of a parameter than its shard.
  """
  state = jax.eval_shape(tx.init, layout.params)
  # Without cuts, every device sees whole parameters and any optimizer will do.
  if any(cut.over for cut in layout.cuts.values()):
    _check_elementwise(layout, tx, state)
  return optax.tree_utils.tree_map_params(
    tx,
    _like_parameter,
    state,
    update_specs(layout),
    layout.params,
    transform_non_params=lambda _: PartitionSpec(),
    # What stands in the place of a parameter that an optimizer leaves out has
    # no shape to divide.
    is_leaf=lambda x: isinstance(x, optax.MaskedNode),
  )


def shardings(layout: MeshLayout):
  """A sharding for every parameter, as it is stored."""
  return _make_shardings(layout, specs(layout))


def state_shardings(layout: MeshLayout, tx: optax.GradientTransformation):
  """A sharding for every leaf of the optimizer state between two steps.

  Arrays are in host memory where `offload_state` says so; scalars never are.
  """
  resting = _make_shardings(layout, state_specs(layout, tx))
  if not layout.dense.offload_state:
    return resting
  state = jax.eval_shape(tx.init, layout.params)
  return jax.tree.map(
    # Moving a scalar to the host and back takes time and saves no memory.
    lambda s, leaf: s.with_memory_kind(HOST) if leaf.shape else s,
    resting,
    state,
  )


def to_device(state, resting):
  """Moves state to device memory; for use inside jit, before the shard_map."""
  return jax.tree.map(
    lambda x, s: (
      jax.device_put(x, s.with_memory_kind(DEVICE))
      if s.memory_kind == HOST
      else x
    ),
    state,
    resting,
  )


def to_rest(state, resting):
  """The inverse of `to_device`; inside jit, after the shard_map."""
  return jax.tree.map(
    lambda x, s: jax.device_put(x, s) if s.memory_kind == HOST else x,
    state,
    resting,
  )


def init_sharded(function: Callable, shardings, *args):
  """Calls `function(*args)` so that every device computes its own part.

  No device and no host ever holds the whole model.

  Args:
    function: makes a tree of arrays.
    shardings: tree of the shardings of these arrays.
    *args: arguments of the function.
  """
  return jax.jit(function, out_shardings=shardings)(*args)


def _make_shardings(layout: MeshLayout, specs):
  return jax.tree.map(lambda spec: NamedSharding(layout.mesh, spec), specs)


def _like_parameter(leaf, spec, param):
  if isinstance(leaf, optax.MaskedNode):
    return leaf
  if leaf.shape != param.shape:
    raise ValueError(
      f'the optimizer keeps {leaf.shape} for a parameter of {param.shape}: '
      'only state in the shape of its parameter can be sharded; set '
      "parallel.dense='ddp' or another optimizer.name"
    )
  return spec


def _check_elementwise(layout, tx, state) -> None:
  """Fails for an optimizer that would see a norm of its shard alone."""
  # Read from its program, since optax does not say what an optimizer mixes.
  jaxpr = jax.make_jaxpr(tx.update)(layout.params, state, layout.params)
  forbidden = sorted(
    {name for name in _list_primitives(jaxpr.jaxpr) if name.startswith(_MIXING)}
  )
  if forbidden:
    raise ValueError(
      f'with parallel.dense={layout.dense.mode!r} devices update shards of '
      'parameters, but the optimizer combines elements of a parameter '
      f'({", ".join(forbidden)}) and would see its shard alone. Clipping '
      'belongs into optimizer.clip_norm; for other such optimizers set '
      "parallel.dense='ddp'"
    )


def _list_primitives(jaxpr):
  """Names of the primitives that meet arrays, of inner jaxprs too."""
  for equation in jaxpr.eqns:
    # Schedules compute with scalars, which every device has.
    if any(jnp.ndim(v.aval) for v in equation.invars):
      yield equation.primitive.name
    for value in jax.tree.leaves(
      list(equation.params.values()),
      is_leaf=lambda x: hasattr(x, 'eqns') or hasattr(x, 'jaxpr'),
    ):
      inner = getattr(value, 'jaxpr', value)
      if hasattr(inner, 'eqns'):
        yield from _list_primitives(inner)
