"""Settings by table: `config.tables`.

    tables = (
      ('item', {'optimizer': 'row_adagrad', 'rate': 0.05, 'dtype': 'bfloat16'}),
      ('user|shop', {'optimizer': 'adam', 'scheme': 'table_wise'}),
      ('.*', {'optimizer': 'dense'}),
    )

A regex must match the whole name of a table; the first match counts. For
settings that an entry lacks, the keys for all tables apply
(`optimizer.rows.name`, `optimizer.rows.dtype`, `data.init_std`,
`optimizer.rows.learning_rate`, `optimizer.rows.*`, `parallel.scheme`,
`parallel.exchange.*`).
"""

import dataclasses
import difflib
import numbers
import re
from collections.abc import Mapping, Sequence
from typing import Any

from genrec_jax.config.errors import ConfigError
from genrec_jax.config.loading import hint_nearest, quote_value

EXAMPLE = (('.*', {'optimizer': 'row_adagrad'}),)
DENSE = 'dense'
MOST_ROWS = 2**31 - 1
DISTRIBUTIONS = ('truncated_normal', 'normal', 'uniform_rows')

# Key of an entry -> field of `TableSpec`.
FIELDS = {
  'optimizer': 'update',
  'rate': 'rate',
  'dtype': 'dtype',
  'init': 'init_std',
  'distribution': 'distribution',
  'l2': 'l2',
  'scheme': 'scheme',
  'codec': 'codec',
  'id_map': 'id_map',
  'rows': 'rows',
  'private': 'private',
  'map': 'map_file',
  'combine': 'combine',
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
  'packed_as': 'packed_as',
}
# Where rows lie and how they travel may change when a run goes on, and so may
# the map of ids: the checkpoint has its own, and rows move to another one.
PLACEMENT = ('scheme', 'codec', 'map')
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
      return _check_spec(spec)
    number = self._find_entry(spec.name)
    if number is None:
      raise ConfigError(
        f'no entry of config.tables matches table {spec.name!r}; there are '
        f'{", ".join(repr(p) for p, _ in self.entries)}. End with '
        "('.*', {}) for all other tables"
      )
    return _check_spec(
      _apply_settings(spec, self.entries[number][1]), self.entries[number]
    )

  def check(
    self, tables: Sequence[str], features: Mapping[str, str] | None = None
  ) -> None:
    """Refuses entries that decide nothing.

    Args:
      tables: every table there is.
      features: feature -> the table it reads, for what an error says.
    """
    deciding = {self._find_entry(name) for name in tables}
    for number, (pattern, _) in enumerate(self.entries):
      # What stands for all other tables may stand for none.
      last = number == len(self.entries) - 1 and pattern == '.*'
      if number in deciding or (last and not self._repeats_pattern(number)):
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

  def check_applied(self, specs: Mapping[str, Any]) -> None:
    """Refuses specs of tables that were made without these settings.

    Args:
      specs: table -> its `features.TableSpec`.
    """
    for name, spec in specs.items():
      number = self._find_entry(name)
      if number is None:
        continue
      pattern, settings = self.entries[number]
      wanted = _apply_settings(
        spec, {k: v for k, v in settings.items() if k != 'rows'}
      )
      if wanted != spec or settings.get('rows', spec.rows) != spec.rows:
        raise ConfigError(
          f'config.tables, {pattern!r}: table {name!r} does not have these '
          'settings; a task of your own makes each TableSpec with '
          'config.table_settings(config)(TableSpec(...))'
        )

  def _repeats_pattern(self, number: int) -> bool:
    """Whether an earlier entry has the pattern of this one."""
    earlier = [pattern for pattern, _ in self.entries[:number]]
    return self.entries[number][0] in earlier

  def _find_entry(self, name: str) -> int | None:
    """Number of the entry that counts for a table."""
    for number, (pattern, _) in enumerate(self.entries):
      if re.fullmatch(pattern, name):
        return number
    return None


def table_settings(config) -> TableSettings:
  """The settings of a config."""
  return TableSettings(
    tuple((p, dict(s)) for p, s in _check_pairs(config.tables))
  )


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


def _check_pairs(tables):
  if not isinstance(tables, (tuple, list)):
    raise ConfigError(
      f'config.tables is {quote_value(tables)}, must be pairs of a pattern and '
      f'settings, as in {EXAMPLE}'
    )
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
      f'config.tables holds {quote_value(entry)}, must be pairs of a pattern '
      f'and settings, as in {EXAMPLE}'
    )
  pattern, settings = entry
  quoted = quote_value(pattern)
  try:
    re.compile(pattern)
  except re.error as e:
    raise ConfigError(f'config.tables: {quoted} is not a regex: {e}') from None
  optimizer = settings.get('optimizer', '')
  if not isinstance(optimizer, str):
    raise ConfigError(
      f'config.tables, {quoted}: optimizer is {quote_value(optimizer)}, must '
      "be a name, 'dense' or 'row_adagrad' say"
    )
  known = (*FIELDS, *OPTIONS)
  for key in settings:
    # Optimizers from outside have options of their own, which they check.
    if key not in known and difflib.get_close_matches(key, known, cutoff=0.7):
      raise ConfigError(
        f'config.tables, {quoted}: unknown key '
        f'{key!r}{hint_nearest(key, known)}'
      )
  for key, value in settings.items():
    type_text, accept = TYPES.get(key, ('', None))
    if accept and not accept(value):
      raise ConfigError(
        f'config.tables, {quoted}: {key} is {quote_value(value)}, must be '
        f'{type_text}'
      )


def _is_number(value) -> bool:
  return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_codec(value) -> bool:
  if isinstance(value, (tuple, list)):
    return len(value) == 2 and all(isinstance(v, str) for v in value)
  return isinstance(value, str)


def _is_count(value) -> bool:
  return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_NUMBER = 'a number', _is_number
# Key of an entry -> (what its value must be, whether it is that).
TYPES = {
  'scheme': ('the name of a scheme', lambda x: isinstance(x, str)),
  'codec': ('a name, or a pair of names for rows and gradients', _is_codec),
  'id_map': ('the name of an id map', lambda x: isinstance(x, str)),
  'private': ('a whole number, zero or more', _is_count),
  'map': ('the file of a learned map', lambda x: isinstance(x, str)),
  'combine': ("'sum' or 'product'", lambda x: x in ('sum', 'product')),
  'dtype': ('the name of a dtype', lambda x: isinstance(x, str)),
  'decay': ("'l2', 'decoupled' or None", lambda x: x is None
            or isinstance(x, str)),
  'max_norm': ('a number or None', lambda x: x is None or _is_number(x)),
  'stochastic_rounding': ('True or False', lambda x: isinstance(x, bool)),
  'packed_as': ('the name of a format', lambda x: isinstance(x, str)),
  **dict.fromkeys(('b1', 'b2', 'momentum', 'eps', 'weight_decay'), _NUMBER),
}  # fmt: skip


def _apply_settings(spec, settings: Mapping[str, Any]):
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


def _check_spec(spec, entry=None):
  where = (
    'optimizer.rows.name' if entry is None else f'config.tables, {entry[0]!r}'
  )
  if spec.update == DENSE:
    if spec.dtype != 'float32':
      raise ConfigError(
        f'{where}: the dtype of table {spec.name!r} is {spec.dtype!r}: only '
        'tables that are updated by rows may be narrow, set '
        "optimizer.rows.name='row_adagrad' or, by table, 'optimizer'"
      )
    given = entry[1] if entry else {}
    unknown = [k for k in given if k not in FIELDS and k not in OPTIONS]
    if unknown:
      raise ConfigError(
        f'{where}: unknown key {unknown[0]!r}; tables that are updated by '
        f'optax have {", ".join(k for k in FIELDS if k not in ONLY_BY_ROWS)}, '
        f"and optimizer.groups for 'tables/{spec.name}'"
      )
    wrong = [k for k in given if k in ONLY_BY_ROWS]
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
      f"{where}: 'rows' of table {spec.name!r} needs an id_map ('hash', "
      "'ordered', 'frequency' or 'learned' say), which says which ids share a "
      'row'
    )
  for key in ('rate', 'init_std', 'l2'):
    value = getattr(spec, key)
    if value is not None and not (_is_number(value) and value >= 0):
      raise ConfigError(
        f'{where}: {key} of table {spec.name!r} is {value!r}, must be a '
        'number, zero or more'
      )
  if spec.distribution not in DISTRIBUTIONS:
    raise ConfigError(
      f'{where}: distribution of table {spec.name!r} is '
      f'{spec.distribution!r}, must be one of {", ".join(DISTRIBUTIONS)}'
    )
  if spec.distribution == 'uniform_rows' and entry and 'init' in entry[1]:
    raise ConfigError(
      f"{where}: distribution='uniform_rows' has the rows of table "
      f"{spec.name!r} for its width; leave out 'init'"
    )
  if not isinstance(spec.rows, numbers.Integral) or spec.rows < 1:
    raise ConfigError(
      f'{where}: rows of table {spec.name!r} is {spec.rows!r}, must be 1 or '
      'more'
    )
  if spec.rows >= MOST_ROWS:
    raise ConfigError(
      f'{where}: table {spec.name!r} has {spec.rows:,} rows, and ids have 32 '
      f'bits: at most {MOST_ROWS - 1:,}'
    )
  return spec
