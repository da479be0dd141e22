"""Plans of models with towers: the tables of a tower lie on its host.

A plan says which features are in which tower in a section of its own,
`extra['towers']`, so that a plan for other towers is refused.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from genrec_jax.embedding import single_scheme
from genrec_jax.embedding.plan import PlanError, ShardingPlan
from genrec_jax.embedding.scheme import HOST, ONE, Scheme
from genrec_jax.embedding.towers import Towers, check_hosts, tower_of_table
from genrec_jax.features import TableSpec

SECTION = 'towers'  # of `ShardingPlan.extra`
AUTO = 'auto'
_SPREAD = 1 << 18  # numbers of a table that is worth spreading over a host


def check_settings(p, towers: Towers) -> None:
  """Refuses settings of `config.parallel` that towers cannot follow.

  Args:
    p: `config.parallel`.
    towers: of the model.
  """
  check_hosts(towers, p.hosts)
  if p.pool == 'rows':
    raise PlanError(
      "parallel.pool='rows' and towers (model.towers) contradict each other: "
      "a tower sees sums; set parallel.pool to 'auto' or 'sums'"
    )
  if p.determinism == 'mesh_invariant':
    raise PlanError(
      "parallel.determinism='mesh_invariant' and towers (model.towers) do not "
      'go together: a tower computes on the examples of all its peers at once, '
      'so that its sums are rounded otherwise on another mesh; set '
      'parallel.determinism=per_mesh'
    )


def plan_towers(
  towers: Towers,
  tables: Mapping[str, str],
  specs: Mapping[str, TableSpec],
  scheme: str,
  *,
  hosts: int = 1,
  devices: int = 1,
  replicas: int = 1,
  schemes: Mapping[str, Scheme] | None = None,
) -> ShardingPlan:
  """Every table of a tower on the tower's host.

  Args:
    towers: of the model.
    tables: feature -> its table.
    specs: the tables that are updated by rows.
    scheme: of all tables that name none themselves. '' and 'auto' keep tables
      whole, on one device of the host each, but for those that are larger than
      an even share of a device: where rows are spread over the devices of a
      host, each of them sends a part of every sum, so many times the bytes.
    hosts: of a replica group.
    devices: of a host.
    replicas: groups.
    schemes: from outside the library, by name.
  """
  own = check_hosts(towers, hosts)
  on_hosts = {
    table: number // own
    for table, number in tower_of_table(towers, tables).items()
  }
  missing = sorted(set(on_hosts) - set(specs))
  if missing:
    raise PlanError(
      f'tables {missing} are under towers and updated by optax (dense), so '
      'that every device holds them; set '
      "optimizer.rows.name='row_adagrad', or an optimizer in config.tables"
    )
  if scheme in ('', AUTO):
    specs = _choose_schemes(specs, on_hosts, devices)
  return single_scheme.plan_with_scheme(
    dict(specs),
    'row_wise' if scheme in ('', AUTO) else scheme,
    hosts=hosts,
    devices=devices,
    replicas=replicas,
    schemes=schemes,
    on_hosts=on_hosts,
  )


def _choose_schemes(
  specs: Mapping[str, TableSpec], on_hosts: Mapping[str, int], devices: int
) -> dict[str, TableSpec]:
  """The tables, those under towers with a scheme."""
  sizes = {name: specs[name].rows * specs[name].dim for name in on_hosts}
  held = dict.fromkeys(on_hosts.values(), 0)
  for name, host in on_hosts.items():
    held[host] += sizes[name]
  chosen = dict(specs)
  for name, host in on_hosts.items():
    if not specs[name].scheme:
      is_large = sizes[name] > held[host] / devices and devices > 1
      # Of a small table, parts of each sum cost more than its rows.
      is_large &= sizes[name] >= _SPREAD
      # Few rows would not be on all devices.
      is_large &= specs[name].rows >= 2 * devices
      scheme = 'table_row_wise' if is_large else 'table_wise'
      chosen[name] = dataclasses.replace(specs[name], scheme=scheme)
  return chosen


def add_towers(plan: ShardingPlan, towers: Towers, task) -> ShardingPlan:
  """The plan with its section, and the sums that towers see.

  Args:
    plan: of the tables.
    towers: of the model.
    task: whose features read the tables.

  Raises:
    PlanError: the plan was made for other towers, or puts a table where its
      tower cannot see it.
  """
  check_section(plan, towers)
  section = {'features': [list(own) for own in towers.features]}
  own = check_hosts(towers, plan.hosts)
  reads = task.expected_reads()
  for number, features in enumerate(towers.features):
    for feature in features:
      check_place(plan, feature, reads[feature].table, number, number // own)
  under = {name: 'sums' for names in towers.features for name in names}
  return dataclasses.replace(
    plan,
    extra={**plan.extra, SECTION: section},
    pooling=plan.pooling | under,
  )


def check_section(plan: ShardingPlan, towers: Towers | None) -> None:
  """Refuses a plan that was made for other towers.

  Args:
    plan: of all tables.
    towers: of the model; None if it has none.
  """
  planned = plan.extra.get(SECTION)
  if planned is None:
    return
  features = [] if towers is None else [list(own) for own in towers.features]
  if planned['features'] != features:
    raise PlanError(
      f'the plan was made for the towers {_describe(planned["features"])}, and '
      f'the model has {_describe(features) or "none"}'
    )


def check_place(
  plan: ShardingPlan, feature: str, table: str, tower: int, host: int
) -> None:
  """Refuses a table whose rows do not lie on the host of its tower alone.

  Args:
    plan: of all tables.
    feature: that reads the table.
    table: its name.
    tower: the number of the feature's tower.
    host: on which the tower is.
  """
  placed = plan.tables[table]
  if placed.spread in (ONE, HOST):
    owners = {d for i in range(placed.pieces) for d in plan.owners(table, i)}
    hosts = sorted({device // plan.devices for device in owners})
    where = f'they lie on hosts {hosts} by scheme {placed.scheme!r}'
    if hosts == [host]:
      return
  elif placed.spread is None:
    where = f'every device holds a copy of them (scheme {placed.scheme!r})'
  else:
    where = f'they lie on all devices (scheme {placed.scheme!r})'
  raise PlanError(
    f'feature {feature!r} is under tower {tower}, which is on host {host}: the '
    f'rows of its table {table!r} must lie on that host alone, as the schemes '
    "'table_row_wise', 'table_wise' and 'table_column_wise' lay them, and "
    f'{where}'
  )


def _describe(towers: Sequence[Sequence[str]]) -> str:
  """Towers in words."""
  return '; '.join(', '.join(own) for own in towers)
