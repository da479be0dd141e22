"""Settings of `config.optimizer` that the optimizers named there ignore."""

from collections.abc import Iterable, Mapping
from typing import Any

from genrec_jax.embedding.row_optimizers import ROW_OPTIMIZERS
from genrec_jax.runtime import parameter_groups, schedules

# What says nothing: the defaults of all kinds of tasks.
UNSET = {
  'b1': (0.9,),
  'b2': (0.98, 0.999),
  'eps': (1e-8,),
  'weight_decay': (0.0,),
  'momentum': (0.9,),
  'learning_rate': (0.05,),  # of rows
  'schedule': ('',),
  'decay': (None,),
  'max_norm': (None,),
  'packed_as': ('',),
}
MOMENTS = ('b1', 'b2', 'eps')
USED = {
  'adamw': (*MOMENTS, 'weight_decay'),
  'adam': MOMENTS,
  'sgd': (),
  'adagrad': ('eps',),
}
# Of the rows of tables: options of some row optimizers, and of all of them.
OPTIONS = ('b1', 'b2', 'eps', 'momentum')
USED_BY_ROWS = {
  **dict.fromkeys(('adam', 'row_adam', 'lamb', 'row_lamb'), MOMENTS),
  **dict.fromkeys(('adagrad', 'row_adagrad'), ('eps',)),
  **dict.fromkeys(('momentum', 'lars'), ('momentum',)),
  **dict.fromkeys(('sgd', 'row_sgd'), ()),
}


def find_unused(config) -> list[str]:
  """A sentence for each setting that would change nothing.

  >>> from genrec_jax import config as config_lib
  >>> config = config_lib.ranking()
  >>> config.optimizer.weight_decay = 0.1
  >>> find_unused(config)[0][:61]
  'optimizer.weight_decay is 0.1, and adam has no use for it: se'

  Args:
    config: of an experiment, whose groups and tables are as they must be.
  """
  c = config.optimizer
  return [
    *_of_parameters(c),
    *_of_rows(c.rows, config.get('tables', ())),
    *_of_rates(c),
  ]


def _of_parameters(c) -> Iterable[str]:
  groups = [
    (f'optimizer.groups, {entry[0]!r}: ', entry[1])
    for entry in c.groups
    if parameter_groups.is_pair(entry) and not entry[1].get('frozen')
  ]
  names = [c.name, *(own.get('name', c.name) for _, own in groups)]
  if not all(name in USED for name in names):
    return  # refused where it is built
  for key in USED['adamw']:
    heirs = [c.name, *(n for n, (_, own) in zip(names[1:], groups, strict=True)
                       if key not in own)]  # fmt: skip
    if _is_set(key, c[key]) and not any(key in USED[n] for n in heirs):
      yield _explain('optimizer.', key, c[key], c.name, USED)
    for name, (where, own) in zip(names[1:], groups, strict=True):
      value = own.get(key, c[key])
      # What a group inherits need not be meant for it, but for decay: that
      # would be gone without a word.
      is_meant = key in own or key == 'weight_decay'
      is_told = key not in own and name == c.name
      if (
        _is_set(key, value)
        and is_meant
        and not is_told
        and key not in USED[name]
      ):
        yield _explain(where, key, value, name, USED)


def _of_rows(rows, tables) -> Iterable[str]:
  entries = [
    (pattern, own) for pattern, own in tables if isinstance(own, Mapping)
  ]
  names = {rows.name, *(own.get('optimizer', rows.name) for _, own in entries)}
  names.discard('dense')
  own_options = any(n not in ROW_OPTIMIZERS for n in names)
  for key in UNSET:
    value = rows[key]
    if not _is_set(key, value) or key in OPTIONS and own_options:
      continue
    if not names:
      yield (
        f'optimizer.rows.{key} is {value!r}, and no table has a row optimizer: '
        "set optimizer.rows.name (such as 'row_adagrad'), or leave the key out"
      )
    elif key in OPTIONS and not any(key in USED_BY_ROWS[n] for n in names):
      yield _explain(
        'optimizer.rows.', key, value, ', '.join(sorted(names)), USED_BY_ROWS
      )
  for pattern, own in entries:
    name = own.get('optimizer', rows.name)
    for key in OPTIONS:
      if key in own and key not in USED_BY_ROWS.get(name, OPTIONS):
        where = f'config.tables, {pattern!r}: '
        yield _explain(where, key, own[key], name, USED_BY_ROWS)


def _of_rates(c) -> Iterable[str]:
  names = {c.schedule, c.rows.schedule or c.schedule} | {
    entry[1].get('schedule', c.schedule)
    for entry in c.groups
    if parameter_groups.is_pair(entry)
  }
  if names <= {schedules.CONSTANT}:
    for key, unset in (('decay_steps', 0), ('end_factor', 0.0)):
      if c[key] != unset:
        yield (
          f'optimizer.{key} is {c[key]!r}, and a constant rate does not fall: '
          f"set optimizer.schedule (such as 'linear'), or {key} to {unset!r}"
        )
  if c.plateau_factor == 1:
    for key, unset in (('plateau_min', 1e-3), ('plateau_min_rate', 0.0)):
      if c[key] != unset:
        yield (
          f'optimizer.{key} is {c[key]!r}, and with optimizer.plateau_factor=1 '
          f'no plateau lowers the rate: set plateau_factor, or {key} to '
          f'{unset!r}'
        )


def _is_set(key: str, value: Any) -> bool:
  return value not in UNSET[key]


def _explain(where: str, key: str, value, name: str, used: Mapping) -> str:
  users = ', '.join(n for n, keys in used.items() if key in keys)
  return (
    f'{where}{key} is {value!r}, and {name} has no use for it: set the '
    f'optimizer to one that has ({users}), or {key} to {UNSET[key][0]!r}'
  )
