"""Rules by which parameters are cut: (regex, axis), the first match counts.

    rules = (
      ('.*/(scale|bias)', None),       # whole on every device
      ('layer_\\d+/uvqk/kernel', 1),   # cut along dimension 1
      ('.*', 'largest'),
    )

A regex must match the whole path of a parameter, 'layer_0/uvqk/kernel'. An
axis is a dimension, None (not cut), or 'largest': the largest dimension that
divides, and not cut where none does. Nothing else is decided silently: a
parameter that no rule covers, or that does not divide, is an error.
"""

import math
import re
from collections.abc import Iterable

import jax

LARGEST = 'largest'


class RuleError(ValueError):
  """Rules that do not fit the parameters; the message says what would."""


def resolve_rules(
  rules: Iterable[tuple[str, int | str | None]], shapes, shards: int
) -> dict[str, int | None]:
  """Finds the dimension in which to cut every parameter.

  >>> shapes = {'layer_0': {'kernel': (8, 16), 'bias': (16,)}}
  >>> resolve_rules([('.*/bias', None), ('.*', 'largest')], shapes, shards=4)
  {'layer_0/bias': None, 'layer_0/kernel': 1}

  Args:
    rules: ordered (regex, axis) pairs.
    shapes: a tree of arrays or shapes, `{'layer_0': {'kernel': (8, 16)}}`, or
      flat, `{'layer_0/kernel': (8, 16)}`.
    shards: number of parts into which a dimension is cut.

  Returns:
    Path of every parameter -> dimension, or None for one that is not cut.

  Raises:
    RuleError: a parameter is not covered, or its dimension does not divide.
  """
  rules = [_check_rule(rule) for rule in rules]
  cuts = {}
  for name, shape in named_shapes(shapes).items():
    for pattern, axis in rules:
      # The whole path: a rule for `bias` must not match `bias_table` too.
      if pattern.fullmatch(name):
        cuts[name] = _resolve_axis(pattern.pattern, axis, name, shape, shards)
        break
    else:
      best = largest_divisible_dim(shape, shards)
      raise RuleError(
        f'no rule covers parameter {name!r} of shape {shape}, to be cut into '
        f'{shards}: add {(generalise_name(name), best)!r}'
      )
  return cuts


def named_shapes(tree) -> dict[str, tuple[int, ...]]:
  """The shape of every leaf of a tree of arrays or of shapes, by its path."""
  leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_shape)
  return {
    path_name(path): tuple(getattr(leaf, 'shape', leaf))
    for path, leaf in leaves
  }


def path_name(path) -> str:
  """The key path of a leaf as text, such as 'layer_0/uvqk/kernel'."""
  return jax.tree_util.keystr(path, simple=True, separator='/')


def largest_divisible_dim(shape: tuple[int, ...], shards: int) -> int | None:
  """The largest dimension divisible by `shards`, or None; the first of equals.

  >>> largest_divisible_dim((6, 8, 8), shards=4)
  1
  """
  # A dimension of size zero would divide by anything.
  fit = [d for d, n in enumerate(shape) if n and n % shards == 0]
  return max(fit, key=lambda d: shape[d], default=None)


def generalise_name(name: str) -> str:
  """A regex for a parameter and its counterparts in other layers.

  >>> generalise_name('layer_0/kernel')
  'layer_\\\\d+/kernel'
  """
  return re.sub(r'\d+', r'\\d+', re.sub(r'([.+*?()\[\]{}^$|])', r'\\\1', name))


def _resolve_axis(pattern, axis, name, shape, shards) -> int | None:
  if axis is None:
    return None
  if axis == LARGEST:
    return largest_divisible_dim(shape, shards)
  subject = f'rule {(pattern, axis)!r} on parameter {name!r} of shape {shape}'
  best = largest_divisible_dim(shape, shards)
  better = f'put {(generalise_name(name), best)!r} in front of it'
  if not -len(shape) <= axis < len(shape):
    raise RuleError(f'{subject}: there is no dimension {axis}; {better}')
  # Negative dimensions count from the end; cuts name them from the start.
  axis %= len(shape)
  if shape[axis] % shards:
    hint = 'no dimension divides' if best is None else f'{shape[best]} does'
    raise RuleError(
      f'{subject}: {shape[axis]} does not divide into {shards} shards, {hint}: '
      f'{better}'
    )
  return axis


def _check_rule(rule):
  try:
    pattern, axis = rule
    pattern = re.compile(pattern)
  except (TypeError, ValueError, re.error) as e:
    raise RuleError(f'{rule!r} is not a (regex, axis) pair: {e}') from None
  # Not `isinstance`, for which True is the dimension 1.
  if axis is not None and axis != LARGEST and type(axis) is not int:
    raise RuleError(
      f'axis of rule {rule!r} must be an int, None or {LARGEST!r}'
    )
  return pattern, axis


def _is_shape(x) -> bool:
  return isinstance(x, tuple | list) and all(isinstance(n, int) for n in x)


def is_statistic(name: str) -> bool:
  """Whether a parameter is a running statistic, which is not trained."""
  return name.rpartition('/')[2].startswith('running_')


def count_weights(tree) -> int:
  """The number of weights in a tree of arrays or shapes, without statistics."""
  return sum(
    math.prod(shape)
    for name, shape in named_shapes(tree).items()
    if not is_statistic(name)
  )
