"""Describes a state: the names, shapes and dtypes of its arrays."""

from collections.abc import Iterable

import jax


def describe_tree(tree, separator: str = '/') -> dict[str, str]:
  """Every leaf of a pytree, as in {'tables/item': 'float32[3953,50]'}."""
  return {
    path: f'{leaf.dtype}[{",".join(map(str, leaf.shape))}]'
    for path, leaf in _named_leaves(tree, separator)
  }


def find_difference(
  saved: dict[str, str],
  target: dict[str, str],
  *,
  partial: bool = False,
  padded: bool = False,
) -> str | None:
  """The first leaf that two descriptions disagree about, in words.

  Args:
    saved: description of a checkpoint.
    target: description of what shall be loaded.
    partial: leaves of the checkpoint that are not wanted are no difference.
    padded: nor are more rows than were saved.
  """
  for path in target if partial else [*saved, *target]:
    a, b = saved.get(path, 'absent'), target.get(path, 'absent')
    if a != b and not (padded and _has_more_rows(a, b)):
      return f'{path} is {a} in the checkpoint and {b} in this run'
  return None


def find_params(paths: Iterable[str]) -> str:
  """The field of a saved state whose parameters predict.

  >>> find_params(['params/w', 'averaged/w']), find_params(['params/w'])
  ('averaged', 'params')

  Args:
    paths: of its leaves.
  """
  is_averaged = any(path.startswith('averaged/') for path in paths)
  return 'averaged' if is_averaged else 'params'


def _has_more_rows(saved: str, target: str) -> bool:
  (dtype, shape), (wanted_dtype, wanted_shape) = (
    _parse_shape(saved),
    _parse_shape(target),
  )
  return (
    dtype == wanted_dtype
    and shape[1:] == wanted_shape[1:]
    and len(shape) == len(wanted_shape) > 0
    and wanted_shape[0] > shape[0]
  )


def shape_of(description: str) -> jax.ShapeDtypeStruct:
  """The array that `describe_tree` has described."""
  dtype, shape = _parse_shape(description)
  return jax.ShapeDtypeStruct(tuple(shape), dtype)


def _parse_shape(description: str) -> tuple[str, list[int]]:
  dtype, _, shape = description.removesuffix(']').partition('[')
  return dtype, [int(n) for n in shape.split(',') if n]


def find_obstacle(tree) -> str | None:
  """The first leaf of a pytree that Orbax cannot save, in words."""
  for path, leaf in _named_leaves(tree):
    if not isinstance(leaf, jax.Array):
      return f'{path} is a {type(leaf).__name__}, not a jax array'
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      return f'{path} is a typed PRNG key; save its jax.random.key_data'
    if leaf.size == 0:
      return f'{path} has no elements (shape {leaf.shape})'
    if jax.process_count() > 1 and leaf.is_fully_addressable:
      return (
        f'{path} lies on devices of this process alone; put it on a mesh of '
        'all processes (replicated, if not split)'
      )
  return None


def to_abstract(tree):
  """Shapes, dtypes and shardings; on the first device where there is none."""
  device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

  def leaf_of(leaf):
    sharding = getattr(leaf, 'sharding', None) or device
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

  return jax.tree.map(leaf_of, tree)


def _named_leaves(tree, separator: str = '/') -> list:
  return [
    (jax.tree_util.keystr(path, simple=True, separator=separator), leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  ]
