"""Plans of one scheme for all tables, for those who want no planner."""

from genrec_jax.embedding.plan import (
  SCHEMES,
  PlanError,
  ShardingPlan,
  TablePlan,
)
from genrec_jax.features import TableSpec


def one_scheme(
  specs: dict[str, TableSpec],
  scheme: str,
  *,
  hosts: int = 1,
  devices: int = 1,
  replicas: int = 1,
) -> ShardingPlan:
  """Every table by one scheme; tables take turns where they name a place.

  Column schemes cut a table into as many pieces as there are devices (hosts,
  for 'grid') if its width allows, else into as many as it does.
  """
  if scheme not in SCHEMES:
    raise PlanError(f'scheme is {scheme!r}, must be one of {SCHEMES}')
  group, tables = hosts * devices, {}
  for turn, (name, spec) in enumerate(sorted(specs.items())):
    host, dim = turn % hosts, spec.dim
    first = host * devices
    at = {
      'table_wise': (turn % group,),
      'column_wise': range(_pieces(dim, group)),
      'table_column_wise': range(first, first + _pieces(dim, devices)),
      'table_row_wise': (host,),
      'grid': range(_pieces(dim, hosts)),
    }.get(scheme, ())
    tables[name] = TablePlan(
      spec.rows,
      spec.dim,
      scheme,
      tuple(at),
      dtype=spec.dtype,
      optimizer=spec.update,
    )
  return ShardingPlan(tables, hosts, devices, replicas)


def _pieces(dim: int, most: int) -> int:
  """The most equal pieces, up to `most`, that a width can be cut into."""
  return max(n for n in range(1, most + 1) if dim % n == 0)


def check(plan: ShardingPlan, specs: dict[str, TableSpec]) -> None:
  """Refuses a plan that is not of these tables."""
  if set(plan.tables) != set(specs):
    raise PlanError(
      f'the plan is of the tables {sorted(plan.tables)}, the model has '
      f'{sorted(specs)}'
    )
  for name, spec in specs.items():
    table = plan.tables[name]
    planned = table.rows, table.dim, table.dtype, table.optimizer
    wanted = spec.rows, spec.dim, spec.dtype, spec.update
    if planned != wanted:
      raise PlanError(
        f'table {name!r} is planned as (rows, dim, dtype, optimizer) = '
        f'{planned}, the model has {wanted}'
      )
