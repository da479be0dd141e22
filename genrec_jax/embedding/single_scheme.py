"""Plans of one scheme for all tables, for those who want no planner."""

from collections.abc import Mapping

from genrec_jax.embedding.plan import PlanError, ShardingPlan, TablePlan
from genrec_jax.embedding.scheme import (
  HOST,
  ONE,
  SCHEMES,
  Scheme,
  add_to_schemes,
  find_most_pieces,
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
  on_hosts: Mapping[str, int] | None = None,
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
    on_hosts: table -> the host on which it must lie, as towers ask.

  Raises:
    PlanError: there is no such scheme, or it cannot be used here.
  """
  known, tables = add_to_schemes(schemes), {}
  chosen = {n: s.scheme or scheme for n, s in specs.items()}
  within = place_within_hosts(
    {n: specs[n] for n in on_hosts or {}},
    {n: find_scheme(chosen[n], known) for n in on_hosts or {}},
    on_hosts or {},
    devices,
  )
  for turn, (name, spec) in enumerate(sorted(specs.items())):
    own = chosen[name]
    kind = find_scheme(own, known)
    at = within.get(name)
    tables[name] = TablePlan(
      spec.rows,
      spec.dim,
      own,
      kind.place(turn, spec, hosts, devices) if at is None else at,
      dtype=spec.dtype,
      optimizer=spec.update,
      outside=None if own in SCHEMES else kind,
    )
  return ShardingPlan(tables, hosts, devices, replicas)


def place_within_hosts(
  specs: Mapping[str, TableSpec],
  kinds: Mapping[str, Scheme],
  on_hosts: Mapping[str, int],
  devices: int,
) -> dict[str, tuple[int, ...]]:
  """Table -> its places on a given host.

  Whole tables go to the device of their host that has least, the largest table
  first.

  >>> two = {'a': TableSpec('a', 90, 8), 'b': TableSpec('b', 9, 8)}
  >>> place_within_hosts(
  ...   two, dict.fromkeys(two, SCHEMES['table_wise']), {'a': 1, 'b': 1}, 4)
  {'a': (4,), 'b': (5,)}

  Args:
    specs: the tables.
    kinds: table -> its scheme.
    on_hosts: table -> the number of its host.
    devices: of a host.

  Raises:
    PlanError: rows of the scheme lie on several hosts.
  """
  held: dict[int, int] = {}
  places = {}
  size = {name: spec.rows * spec.dim for name, spec in specs.items()}
  for name in sorted(specs, key=lambda name: (-size[name], name)):
    kind, host = kinds[name], on_hosts[name]
    first = host * devices
    if kind.spread == HOST and not kind.places:
      places[name] = (host,)
      continue
    # Pieces of 'column_wise' could lie on several hosts, but need not.
    if kind.spread != ONE or kind.places:
      raise PlanError(
        f'table {name!r} is under a tower, whose host {host} must have all of '
        "its rows: its scheme must be 'table_row_wise', 'table_wise', "
        "'table_column_wise' or 'column_wise' (parallel.scheme, or scheme in "
        'config.tables)'
      )
    if kind.many_pieces:
      count = find_most_pieces(specs[name].dim, devices)
      places[name] = tuple(range(first, first + count))
    else:
      own = range(first, first + devices)
      places[name] = (min(own, key=lambda d: (held.get(d, 0), d)),)
    for device in places[name]:
      held[device] = held.get(device, 0) + size[name] // len(places[name])
  return places


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
