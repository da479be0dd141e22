"""How each dense parameter is divided over a mesh: one record, four modes.

| mode            | dimension  | cut over       | gradient is summed over |
|-----------------|------------|----------------|-------------------------|
| ddp             | none       | –              | all axes                |
| grad_op, fsdp   | by a rule  | all axes       | all axes                |
| hybrid          | by a rule  | dev            | all axes                |
| a tower, `[T]`  | 0          | host           | rep, dev                |

A parameter that is cut over an axis *and* summed over it is gathered for the
model, and its gradient is scattered: a reduce-scatter. A parameter that is cut
over an axis without being summed over it stays apart: along 'host', every host
computes with its own towers, and the examples of other hosts never meet them.
So a tower is never gathered or scattered over hosts, whatever the mode of the
other parameters.
"""

import dataclasses
import re
from collections.abc import Mapping

from jax.sharding import Mesh

from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.parallel import rules as rules_lib
from genrec_jax.parallel.rules import RuleError


@dataclasses.dataclass(frozen=True)
class Cut:
  """How one parameter is cut, and where its gradient comes from.

  >>> tower = Cut(0, ('host',), ('rep', 'dev'))  # [T, ...], T / hosts on each
  >>> tower.scattered, tower.independent_axes
  ((), ('host',))
  >>> Cut(1, ('rep', 'host', 'dev')).scattered  # as fsdp cuts
  ('rep', 'host', 'dev')

  Attributes:
    dimension: the dimension that is cut; None if every device holds the whole
      parameter.
    over: mesh axes over which it is cut, the coarsest one first.
    summed: mesh axes over which its gradient is summed.
  """

  dimension: int | None = None
  over: tuple[str, ...] = ()
  summed: tuple[str, ...] = mesh_lib.AXES

  @property
  def scattered(self) -> tuple[str, ...]:
    """Axes whose shards make one parameter: gathered, gradients scattered."""
    return tuple(axis for axis in self.over if axis in self.summed)

  @property
  def independent_axes(self) -> tuple[str, ...]:
    """Axes along which each shard computes with a part of its own."""
    return tuple(axis for axis in self.over if axis not in self.summed)

  @property
  def summed_axes(self) -> tuple[str, ...]:
    """Axes over which the gradient is summed without being scattered."""
    return tuple(axis for axis in self.summed if axis not in self.over)


def resolve_cuts(
  axes: tuple[str, ...],
  rules: tuple,
  mesh: Mesh,
  params,
  overrides: Mapping[str, Cut] | None = None,
) -> dict[str, Cut]:
  """Path of every parameter -> its cut.

  Args:
    axes: mesh axes over which the mode cuts what its rules name; () for ddp.
    rules: (regex, dimension) pairs for parameters without an override, see
      `rules`.
    mesh: the mesh.
    params: a tree of whole parameters or their shapes.
    overrides: regex -> cut; a regex must match the whole path of a parameter,
      and the first one counts.

  Raises:
    RuleError: for a parameter that is not covered or does not divide, and for
      an override that fits no parameter.
  """
  shapes = rules_lib.named_shapes(params)
  cuts = _resolve_overrides(overrides or {}, mesh, shapes)
  rest = {name: shape for name, shape in shapes.items() if name not in cuts}
  dimensions = rules_lib.resolve_rules(
    # A mode that cuts nothing must not ask for rules.
    rules if axes else (('.*', None),),
    rest,
    mesh_lib.count_shards(mesh, axes),
  )
  for name, dimension in dimensions.items():
    cuts[name] = Cut() if dimension is None else Cut(dimension, axes)
  # In the order of the parameters, whichever way each was found.
  return {name: cuts[name] for name in shapes}


def _resolve_overrides(overrides, mesh, shapes) -> dict[str, Cut]:
  cuts = {}
  for pattern, cut in overrides.items():
    names = [name for name in shapes if re.fullmatch(pattern, name)]
    if not names:
      raise RuleError(
        f'the override {pattern!r} matches no parameter; there are '
        f'{", ".join(shapes)}'
      )
    for name in names:
      # The first override that matches counts.
      if name not in cuts:
        _check_override(pattern, cut, mesh, name, shapes[name])
        cuts[name] = cut
  return cuts


def _check_override(pattern, cut: Cut, mesh, name, shape) -> None:
  subject = f'the override {pattern!r} of parameter {name!r} of shape {shape}'
  if unknown := set(cut.over + cut.summed) - set(mesh.axis_names):
    raise RuleError(
      f'{subject} names {sorted(unknown)}; the axes of the mesh are '
      f'{", ".join(mesh.axis_names)}'
    )
  # Half a cut would be taken for none.
  if (cut.dimension is None) != (not cut.over):
    raise RuleError(f'{subject} needs both a dimension and axes, or neither')
  if cut.dimension is None:
    return
  if not 0 <= cut.dimension < len(shape):
    raise RuleError(f'{subject}: there is no dimension {cut.dimension}')
  shards = mesh_lib.count_shards(mesh, cut.over)
  if shape[cut.dimension] % shards:
    raise RuleError(
      f'{subject}: {shape[cut.dimension]} does not divide into {shards} shards'
    )
  # A device's own part must be one run of the dimension, or what is gathered
  # over the other axes would not be it.
  if cut.over != cut.independent_axes + cut.scattered:
    raise RuleError(
      f'{subject} is cut over {cut.over}: axes that the gradient is not summed '
      f'over must stand first, {cut.independent_axes + cut.scattered}'
    )
