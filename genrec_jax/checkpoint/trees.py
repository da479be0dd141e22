"""What a state looks like: the names, shapes and dtypes of its arrays."""

import jax


def describe(tree) -> dict[str, str]:
  """Every leaf of a pytree, as in {'tables/item': 'float32[3953,50]'}."""
  return {
    path: f'{leaf.dtype}[{",".join(map(str, leaf.shape))}]'
    for path, leaf in _leaves(tree)
  }


def difference(saved: dict[str, str], wanted: dict[str, str]) -> str | None:
  """The first leaf that two descriptions disagree about, in words."""
  for path in [*saved, *wanted]:
    if saved.get(path) != wanted.get(path):
      return (
        f'{path} is {saved.get(path, "absent")} in the checkpoint and '
        f'{wanted.get(path, "absent")} in this run'
      )
  return None


def obstacle(tree) -> str | None:
  """The first leaf of a pytree that Orbax cannot save, in words."""
  for path, leaf in _leaves(tree):
    if not isinstance(leaf, jax.Array):
      return f'{path} is a {type(leaf).__name__}, not a jax array'
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      return f'{path} is a typed PRNG key; save its jax.random.key_data'
    if leaf.size == 0:
      return f'{path} has no elements (shape {leaf.shape})'
  return None


def abstract(tree):
  """Shapes, dtypes and shardings; on the first device where there is none."""
  device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

  def leaf_of(leaf):
    sharding = getattr(leaf, 'sharding', None) or device
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

  return jax.tree.map(leaf_of, tree)


def _leaves(tree) -> list:
  return [
    (jax.tree_util.keystr(path, simple=True, separator='/'), leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  ]
