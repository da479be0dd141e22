"""Plans of one scheme for all tables, for those who want no planner."""

from collections.abc import Mapping

from genrec_jax.embedding.plan import PlanError, ShardingPlan, TablePlan
from genrec_jax.embedding.scheme import (
  SCHEMES,
  Scheme,
  add_to_schemes,
  find_scheme,
)
from genrec_jax.features import TableSpec


def plan_with_scheme(
  specs: dict[str, TableSpec],
  scheme: str,
  *,
  hosts: int = 1,
  devices: int = 1,
  replicas: int = 1,
  schemes: Mapping[str, Scheme] | None = None,
) -> ShardingPlan:
  """Every table by one scheme; tables take turns where they name a place.

  Schemes of many pieces cut a table into as many as there are devices (hosts,
  where a piece is of a host) if its width allows, else into as many as it does.

  >>> tables = {name: TableSpec(name, 90, 8) for name in 'ab'}
  >>> plan = plan_with_scheme(tables, 'table_wise', devices=4)
  >>> plan.tables['b'].at
  (1,)

  Args:
    specs: the tables.
    scheme: name of the scheme, of tables that name none themselves.
    hosts: of a replica group.
    devices: of a host.
    replicas: groups.
    schemes: from outside the library, by name.

  Raises:
    PlanError: there is no such scheme, or it cannot be used here.
  """
  known, tables = add_to_schemes(schemes), {}
  for turn, (name, spec) in enumerate(sorted(specs.items())):
    own = spec.scheme or scheme
    kind = find_scheme(own, known)
    tables[name] = TablePlan(
      spec.rows,
      spec.dim,
      own,
      kind.place(turn, spec, hosts, devices),
      dtype=spec.dtype,
      optimizer=spec.update,
      outside=None if own in SCHEMES else kind,
    )
  return ShardingPlan(tables, hosts, devices, replicas)


def require_same_tables(
  plan: ShardingPlan, specs: dict[str, TableSpec]
) -> None:
  """Refuses a plan that is not of these tables."""
  if set(plan.tables) != set(specs):
    raise PlanError(
      f'the plan is of the tables {sorted(plan.tables)}, the model has '
      f'{sorted(specs)}'
    )
  for name, spec in specs.items():
    table = plan.tables[name]
    planned = table.rows, table.dim, table.dtype, table.optimizer
    expected = spec.rows, spec.dim, spec.dtype, spec.update
    if planned != expected:
      raise PlanError(
        f'table {name!r} is planned as (rows, dim, dtype, optimizer) = '
        f'{planned}, the model has {expected}'
      )
