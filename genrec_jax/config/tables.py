"""Settings by table: `config.tables`.

    tables = (
      ('item', {'optimizer': 'row_adagrad', 'rate': 0.05, 'dtype': 'bfloat16'}),
      ('user|shop', {'optimizer': 'adam', 'scheme': 'table_wise'}),
      ('.*', {'optimizer': 'dense'}),
    )

A regex must match the whole name of a table; the first match counts. What an
entry does not say is what the keys for all tables say (`data.table_update`,
`data.table_dtype`, `data.init_std`, `optimizer.row_learning_rate`,
`optimizer.rows.*`, `parallel.scheme`, `parallel.exchange.*`).
"""

import dataclasses
import difflib
import numbers
import re
from collections.abc import Mapping, Sequence
from typing import Any

from genrec_jax.config.loading import ConfigError, nearest

EXAMPLE = (('.*', {'optimizer': 'row_adagrad'}),)
DENSE = 'dense'

# Key of an entry -> field of `TableSpec`.
FIELDS = {
  'optimizer': 'update',
  'rate': 'rate',
  'dtype': 'dtype',
  'init': 'init_std',
  'l2': 'l2',
  'scheme': 'scheme',
  'codec': 'codec',
  'id_map': 'id_map',
  'rows': 'rows',
}
# Options of row optimizers, by the names of `optimizer.rows`.
OPTIONS = {
  'b1': 'beta1',
  'b2': 'beta2',
  'momentum': 'momentum',
  'eps': 'eps',
  'weight_decay': 'weight_decay',
  'decay': 'decay',
  'max_norm': 'max_norm',
  'stochastic_rounding': 'stochastic_rounding',
}
# Where rows lie and how they travel may change when a run goes on.
PLACEMENT = ('scheme', 'codec')
ONLY_BY_ROWS = ('rate', 'scheme', 'codec', *OPTIONS)


@dataclasses.dataclass(frozen=True)
class TableSettings:
  """Gives each table its settings.

  >>> from genrec_jax.features import TableSpec
  >>> settings = TableSettings((('a', {'rate': 0.1}), ('.*', {})))
  >>> settings(TableSpec('a', 9, 4, update='adam')).rate
  0.1

  Attributes:
    entries: (regex, {key: value}) pairs; () leaves every table as it is.
  """

  entries: Sequence[tuple[str, Mapping[str, Any]]] = ()

  def __post_init__(self):
    for entry in self.entries:
      _check_entry(entry)

  def __call__(self, spec):
    """The `features.TableSpec` with its settings.

    The vocabulary is not imported: a config must not wait for JAX.
    """
    if not self.entries:
      return _checked(spec)
    number = self._number(spec.name)
    if number is None:
      raise ConfigError(
        f'no entry of config.tables matches table {spec.name!r}; there are '
        f'{", ".join(repr(p) for p, _ in self.entries)}. End with '
        "('.*', {}) for all other tables"
      )
    return _checked(_apply(spec, self.entries[number][1]), self.entries[number])

  def check(
    self, tables: Sequence[str], features: Mapping[str, str] | None = None
  ) -> None:
    """Refuses entries that decide nothing.

    Args:
      tables: every table there is.
      features: feature -> the table it reads, for what an error says.
    """
    deciding = {self._number(name) for name in tables}
    for number, (pattern, _) in enumerate(self.entries):
      if number in deciding or (number == len(self.entries) - 1 and
                                pattern == '.*'):  # fmt: skip
        continue
      matched = [name for name in tables if re.fullmatch(pattern, name)]
      if matched:
        raise ConfigError(
          f'config.tables: {pattern!r} matches {", ".join(matched)}, which '
          'earlier patterns match too: the first match counts, so this entry '
          'decides nothing'
        )
      shared = [
        f'feature {name!r} reads table {table!r}'
        for name, table in (features or {}).items()
        if name != table and re.fullmatch(pattern, name)
      ]
      why = f' ({"; ".join(shared)})' if shared else ''
      hint = difflib.get_close_matches(pattern, tables, n=1, cutoff=0.5)
      raise ConfigError(
        f'config.tables: {pattern!r} matches no table{why}; there are '
        f'{", ".join(sorted(tables))}'
        + (f'; did you mean {hint[0]!r}?' if hint and not shared else '')
      )

  def _number(self, name: str) -> int | None:
    """Number of the entry that counts for a table."""
    for number, (pattern, _) in enumerate(self.entries):
      if re.fullmatch(pattern, name):
        return number
    return None


def table_settings(config) -> TableSettings:
  """The settings of a config."""
  return TableSettings(tuple((p, dict(s)) for p, s in _pairs(config.tables)))


def without_placement(tables):
  """Saved `config.tables` without what may change when a run goes on."""
  if not isinstance(tables, (list, tuple)):
    return tables
  return [
    [entry[0], {k: v for k, v in entry[1].items() if k not in PLACEMENT}]
    if _is_pair(entry)
    else entry
    for entry in tables
  ]


def advice(config) -> list[str]:
  """What to write in place of older keys, a sentence for each."""
  lines, data = [], config.data
  for key, entry in (
    # Kinds of tasks from outside may have neither key.
    ('data.table_update', {'optimizer': data.get('table_update', DENSE)}),
    ('data.table_dtype', {'dtype': data.get('table_dtype', 'float32')}),
  ):
    if next(iter(entry.values())) not in (DENSE, 'float32'):
      lines.append(
        f'{key} is for all tables; by table it is '
        f'--config.tables="(({".*"!r}, {entry}),)"'
      )
  return lines


def _pairs(tables):
  for entry in tables:
    _check_entry(entry)
    yield entry


def _is_pair(entry) -> bool:
  return (
    isinstance(entry, (tuple, list))
    and len(entry) == 2
    and isinstance(entry[0], str)
    and isinstance(entry[1], Mapping)
  )


def _check_entry(entry) -> None:
  if not _is_pair(entry):
    raise ConfigError(
      f'config.tables holds {entry!r}, must be pairs of a pattern and '
      f'settings, as in {EXAMPLE}'
    )
  pattern, settings = entry
  try:
    re.compile(pattern)
  except re.error as e:
    raise ConfigError(f'config.tables: {pattern!r} is no regex: {e}') from None
  if 'optimizer' in settings and not isinstance(settings['optimizer'], str):
    raise ConfigError(
      f'config.tables, {pattern!r}: optimizer is {settings["optimizer"]!r}, '
      "must be a name, 'dense' or 'row_adagrad' say"
    )
  known = (*FIELDS, *OPTIONS)
  for key in settings:
    # Optimizers from outside have options of their own, which they check.
    if key not in known and difflib.get_close_matches(key, known, cutoff=0.7):
      raise ConfigError(
        f'config.tables, {pattern!r}: unknown key {key!r}{nearest(key, known)}'
      )


def _apply(spec, settings: Mapping[str, Any]):
  fields, options = {}, dict(spec.options)
  for key, value in settings.items():
    if key == 'codec':
      value = tuple(value) if isinstance(value, (tuple, list)) else (value,) * 2
    if key == 'rows':
      fields['ids'] = spec.rows
    if key in FIELDS:
      fields[FIELDS[key]] = value
    else:
      options[OPTIONS.get(key, key)] = value
  return dataclasses.replace(
    spec, **fields, options=tuple(sorted(options.items()))
  )


def _checked(spec, entry=None):
  where = (
    'data.table_update' if entry is None else f'config.tables, {entry[0]!r}'
  )
  if spec.update == DENSE:
    if spec.dtype != 'float32':
      raise ConfigError(
        f'{where}: the dtype of table {spec.name!r} is {spec.dtype!r}: only '
        'tables that are updated by rows may be narrow, set '
        "data.table_update='row_adagrad' or, by table, 'optimizer'"
      )
    wrong = [k for k in (entry[1] if entry else {}) if k in ONLY_BY_ROWS]
    if wrong:
      raise ConfigError(
        f'{where}: {wrong[0]!r} is for tables that are updated by rows, and '
        f'table {spec.name!r} is updated by optax; set optimizer.groups for '
        f"'tables/{spec.name}', or 'optimizer' to a row optimizer"
      )
  elif spec.l2:
    raise ConfigError(
      f'{where}: l2 (loss.table_l2) moves all of table {spec.name!r}, which '
      "only 'dense' tables do; for tables updated by rows set weight_decay and "
      "decay='l2' (optimizer.rows.weight_decay, optimizer.rows.decay)"
    )
  if spec.ids and spec.id_map == 'identity':
    raise ConfigError(
      f"{where}: 'rows' of table {spec.name!r} needs id_map='hash', which says "
      'which ids share a row'
    )
  for key in ('rate', 'init_std', 'l2'):
    value = getattr(spec, key)
    if value is not None and not (
      isinstance(value, numbers.Real) and value >= 0
    ):
      raise ConfigError(
        f'{where}: {key} of table {spec.name!r} is {value!r}, must be a '
        'number, zero or more'
      )
  if not isinstance(spec.rows, numbers.Integral) or spec.rows < 1:
    raise ConfigError(
      f'{where}: rows of table {spec.name!r} is {spec.rows!r}, must be 1 or '
      'more'
    )
  return spec
