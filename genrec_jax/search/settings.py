"""What a config says of a search, in objects."""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from genrec_jax.config.models import DLRM
from genrec_jax.features import FeatureSpec
from genrec_jax.models import fields
from genrec_jax.search.latency import LatencyTable
from genrec_jax.search.mlp_space import MlpSpace
from genrec_jax.search.net_space import COSTS, LATENCY, NetSpace
from genrec_jax.search.table_space import TableSpace

SPACES = ('mlp', 'emb_dim', 'emb_rows')


@dataclasses.dataclass(frozen=True)
class SearchSettings:
  """The section `search` of a config; of its keys see there.

  Attributes:
    section: the keys.
  """

  section: Mapping[str, object]

  def __getattr__(self, name: str):
    try:
      return self.section[name]
    except KeyError:
      raise AttributeError(name) from None

  @property
  def budgets(self) -> dict[str, float]:
    """Cost -> the most there may be, of those that have a budget.

    >>> SearchSettings({'max_flops': 3e6, 'max_parameters': 0., 'max_bytes': 0.}
    ... ).budgets
    {'flops': 3000000.0}
    """
    most = {n: self.section.get(f'max_{n}', 0.0) for n in (*COSTS, LATENCY)}
    return {name: value for name, value in most.items() if value}

  def check_budgets(self, space: NetSpace) -> None:
    """Refuses budgets that no model or every model is within."""
    if space.latency is None and (
      LATENCY in self.budgets
      or self.cost_loss in ('linear', 'exponential')
      and self.cost == LATENCY
    ):
      raise ValueError(
        f'{LATENCY} is counted, and search.latency_table names no table: '
        '`python -m genrec_jax.search.latency` makes one'
      )
    least, most = map(space.measure_architecture, space.find_extremes())
    for name, budget in self.budgets.items():
      if not least[name] <= budget <= most[name]:
        what = 'the smallest' if budget < least[name] else 'the largest'
        raise ValueError(
          f'search.max_{name}={budget:,.7g}: {what} model of the space has '
          f'{(least if budget < least[name] else most)[name]:,.7g} {name}; '
          f'models have {least[name]:,.7g} to {most[name]:,.7g}'
        )
    if self.cost_loss == 'budget' and not self.budgets:
      raise ValueError(
        "search.cost_loss='budget' has no budget: set search.max_flops, "
        'search.max_parameters or search.max_bytes'
      )

  def is_within(self, costs: Mapping[str, float]) -> bool:
    """Whether a model keeps all budgets."""
    return all(costs[name] <= most for name, most in self.budgets.items())


def build_space(
  settings: SearchSettings,
  config: DLRM,
  features: Sequence[FeatureSpec],
  outputs: int,
  row_bytes: Mapping[str, int],
  extra: Mapping[str, TableSpace] | None = None,
) -> NetSpace:
  """The architectures from which a search chooses.

  Args:
    settings: of the search.
    config: of the model around what is searched.
    features: inputs.
    outputs: number of logits.
    row_bytes: table -> bytes of a number in its rows.
    extra: name -> a space from outside the library.
  """
  spaces = set(settings.spaces)
  known = {*SPACES, *(extra or {})}
  if unknown := sorted(spaces - known):
    raise ValueError(
      f'search.spaces holds {unknown[0]!r}, must be among '
      f'{", ".join(sorted(known))}'
    )
  outside = {n: x for n, x in (extra or {}).items() if n in spaces}
  tabled = fields.table_features(features)
  widths = fields.own_widths(config, features)
  dims, rows = {}, {}
  for feature in tabled:
    table = feature.source
    dims.setdefault(table, (widths[feature.name],))
    rows.setdefault(table, (feature.rows,))
  chosen = [t for t in dims if re.fullmatch(settings.tables, t)]
  if spaces - {'mlp'} and not chosen:
    raise ValueError(
      f'search.tables={settings.tables!r} matches none of the tables '
      f'{", ".join(dims)}'
    )
  for table in chosen:
    if 'emb_dim' in spaces:
      dims[table] = tuple(sorted(set(settings.dims)))
    if 'emb_rows' in spaces:
      rows[table] = choose_rows(rows[table][0], settings.row_shares)
  numbers = len(fields.numeric_features(features))
  nets = {'bottom': config.dim if numbers else 0, 'top': outputs}
  for name, last in nets.items():
    if 'mlp' in spaces:
      sizes = tuple(sorted(set(settings.section[name])))
      layers = (sizes,) * settings.section[f'{name}_layers']
      nets[name] = MlpSpace(name, layers, last, settings.skips)
    else:
      layers = tuple((width,) for width in getattr(config, name))
      nets[name] = MlpSpace(name, layers, last, skips=False)
  space = NetSpace(
    tuple(features),
    config,
    nets['bottom'] if numbers else None,
    nets['top'],
    dims,
    rows,
    dict(row_bytes),
    outside,
    tuple(chosen) if outside else (),
    LatencyTable.load(path) if (path := settings.latency_table) else None,
  )
  widest = max(max(sizes) for sizes in dims.values())
  if space.interaction == 'dot' and widest > config.dim:
    raise ValueError(
      f'search.dims={tuple(settings.dims)} has widths above '
      f"model.dim={config.dim}, to which interaction='dot' fills up narrower "
      f'vectors: set model.dim={widest}'
    )
  if not space.choices:
    raise ValueError(
      f'search.spaces={tuple(settings.spaces)} leave nothing to choose: every '
      'choice has one option'
    )
  return space


def choose_rows(ids: int, shares: Sequence[float]) -> tuple[int, ...]:
  """Numbers of rows, from the most on.

  Row 0 is padding, and there is one more at least.

  >>> choose_rows(5000, (1.0, .1, .01, .001)), choose_rows(12, (1.0, .1, .01))
  ((5000, 501, 51, 6), (12, 3, 2))

  Args:
    ids: of the table, that of padding included.
    shares: of the ids that stand for values.
  """
  sizes = {
    ids if share == 1 else min(ids, 1 + max(1, -int(-(ids - 1) * share // 1)))
    for share in shares
  }
  return tuple(sorted(sizes, reverse=True))
