"""What a config says of a search, in objects."""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from genrec_jax.config.models import DLRM, Wukong
from genrec_jax.features import FeatureSpec
from genrec_jax.models import RANKERS, fields
from genrec_jax.search.architecture import (
  COSTS,
  LATENCY,
  ArchitectureSpace,
)
from genrec_jax.search.dlrm_space import DlrmSpace
from genrec_jax.search.latency import LatencyTable
from genrec_jax.search.mlp_space import MlpSpace
from genrec_jax.search.table_space import TableSpace
from genrec_jax.search.wukong_space import WukongSpace

SPACES = ('mlp', 'emb_dim', 'emb_rows', 'wukong')
# What begins the names of choices, beside those.
_TAKEN = ('dim', 'rows', 'top', 'bottom', 'multiplier')


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

  def check_budgets(self, space: ArchitectureSpace) -> None:
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
    for name, budget in self.budgets.items():
      ends = space.find_extremes(name)
      least, most = map(space.measure_architecture, ends)
      if not least[name] <= budget <= most[name]:
        what, costs = 'largest', most
        if budget < least[name]:
          what, costs = 'smallest', least
        raise ValueError(
          f'search.max_{name}={budget:,.7g}: the {what} model of the space has '
          f'{costs[name]:,.7g} {name}; '
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
  config: DLRM | Wukong,
  features: Sequence[FeatureSpec],
  outputs: int,
  row_bytes: Mapping[str, int],
  extra: Mapping[str, TableSpace] | None = None,
  may_be_one: bool = False,
) -> ArchitectureSpace:
  """The architectures from which a search chooses.

  Args:
    settings: of the search.
    config: of the model around what is searched.
    features: inputs.
    outputs: number of logits.
    row_bytes: table -> bytes of a number in its rows.
    extra: name -> a space from outside the library.
    may_be_one: whether there may be one architecture alone.
  """
  spaces = set(settings.spaces)
  if 'wukong' in spaces and not isinstance(config, Wukong):
    raise ValueError(
      "search.spaces holds 'wukong': set model.name=wukong, or take another one"
    )
  known = {*SPACES, *(extra or {})}
  if unknown := sorted(spaces - known):
    raise ValueError(
      f'search.spaces holds {unknown[0]!r}, must be among '
      f'{", ".join(sorted(known))}'
    )
  if taken := sorted({*SPACES, *_TAKEN} & {*(extra or {})}):
    raise ValueError(
      f'a space from outside is called {taken[0]!r}, as something of the '
      'library is: give it another name'
    )
  if 'emb_rows' in spaces and 1.0 not in settings.row_shares:
    raise ValueError(
      f'search.row_shares={tuple(settings.row_shares)} lacks 1.0, a row for '
      'each id; a table that shall have fewer in any case has them by '
      'config.tables (id_map, rows) and not by a search'
    )
  outside = {n: x for n, x in (extra or {}).items() if n in spaces}
  tabled = fields.table_features(features)
  model = RANKERS['wukong' if isinstance(config, Wukong) else 'dlrm']
  widths = model.widths(config, features)
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
  path = settings.latency_table
  given = dict(
    features=tuple(features),
    config=config,
    dims=dims,
    rows=rows,
    row_bytes=dict(row_bytes),
    extra=outside,
    extra_tables=tuple(chosen) if outside else (),
    latency=LatencyTable.load(path) if path else None,
  )
  if isinstance(config, Wukong):
    space = _build_wukong_space(settings, outputs, given)
  else:
    space = _build_dlrm_space(settings, outputs, given)
  if not space.choices and not may_be_one:
    raise ValueError(
      f'search.spaces={tuple(settings.spaces)} leave nothing to choose: every '
      'choice has one option'
    )
  return space


def _build_dlrm_space(settings: SearchSettings, outputs, given) -> DlrmSpace:
  config, nets = given['config'], {}
  numbers = len(fields.numeric_features(given['features']))
  for name, last in (('bottom', config.dim), ('top', outputs)):
    if 'mlp' in settings.spaces:
      sizes = tuple(sorted(set(settings.section[name])))
      widths = (sizes,) * settings.section[f'{name}_layers']
      nets[name] = MlpSpace(name, widths, last, settings.skips)
    else:
      widths = tuple((width,) for width in getattr(config, name))
      nets[name] = MlpSpace(name, widths, last, skips=False)
  nets['bottom'] = nets['bottom'] if numbers else None
  space = DlrmSpace(**given, **nets)
  widest = max(max(sizes) for sizes in space.dims.values())
  if space.interaction == 'dot' and widest > config.dim:
    raise ValueError(
      f'search.dims={tuple(settings.dims)} has widths above '
      f"model.dim={config.dim}, to which interaction='dot' fills up narrower "
      f'vectors: set model.dim={widest}'
    )
  return space


def _build_wukong_space(
  settings: SearchSettings, outputs, given
) -> WukongSpace:
  config = given['config']
  if wrong := {'mlp', 'emb_dim'} & set(settings.spaces):
    raise ValueError(
      f'search.spaces={tuple(settings.spaces)}: {sorted(wrong)[0]!r} is for '
      "dlrm; 'wukong' searches the layers of a Wukong, whose vectors have one "
      'width'
    )
  if given['latency']:
    raise ValueError('search.latency_table is for dlrm, and not for wukong')
  hidden = config.fmb_hidden[:1]
  sizes = {
    'layers': config.layers, 'fmb': config.fmb, 'lcb': config.lcb,
    'rank': config.rank, 'hidden': hidden[0] if hidden else 1,
  }  # fmt: skip
  sizes = {name: (size,) for name, size in sizes.items()}
  if 'wukong' in settings.spaces:
    for name in sizes:
      asked = tuple(sorted(set(settings.section[f'wukong_{name}'])))
      if name != 'hidden' or hidden:
        sizes[name] = asked
  elif len(set(config.fmb_hidden)) > 1:
    raise ValueError(
      f'model.fmb_hidden={config.fmb_hidden}: a search of Wukongs has one '
      'width in all of them'
    )
  return WukongSpace(**given, sizes=sizes, outputs=outputs)


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
