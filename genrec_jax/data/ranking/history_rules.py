"""What columns of histories, and tables that features share, may be.

See `event_lists` for what histories are.
"""

from collections.abc import Callable, Mapping, Sequence

KINDS = ('sequence', 'numeric_sequence')


def check_column(column, quote_key: Callable[[str], str]) -> None:
  """Refuses options that a column of a history cannot have.

  Args:
    column: a `schema.Column`, of a history or of none.
    quote_key: names one of its options in messages.
  """
  history, kind = column.history, column.kind
  if not isinstance(history, str):
    raise ValueError(
      f'{quote_key("history")} is {history!r}, must be the name of a history, '
      "or '' for none"
    )
  if kind == 'numeric_sequence' and not history:
    raise ValueError(
      f'{quote_key("history")} must name the history that a numeric_sequence '
      'is a column of; nothing pools numbers'
    )
  if kind == 'numeric_sequence' and column.transform == 'ln2':
    raise ValueError(
      f"{quote_key('transform')} is 'ln2', which makes categories of numbers; "
      "set it to 'log', 'standardize' or 'as_is', or write the categories as "
      'a sequence'
    )
  if history and kind not in KINDS:
    raise ValueError(
      f'{quote_key("history")} is {history!r}, and kind is {kind!r}; columns '
      f'of a history have the kind {" or ".join(map(repr, KINDS))}'
    )
  if history and column.weights:
    raise ValueError(
      f'{quote_key("weights")} is {column.weights!r}, and the values of '
      f'history {history!r} are not pooled; make it a numeric_sequence of the '
      'history, or leave it out'
    )


def check_histories(
  histories: Mapping[str, Sequence], names: Mapping[str, str]
) -> None:
  """Refuses names that are taken, and columns that leave different events.

  Args:
    histories: name -> its columns, each a `schema.Column`.
    names: of features and labels -> 'feature' or 'label'.
  """
  for history, columns in histories.items():
    first = columns[0]
    if history in names:
      raise ValueError(
        f'history {history!r} of feature {first.name!r} (data.features) has '
        f'the name of a {names[history]}; give the history another one'
      )
    for other in columns[1:]:
      ends = ['last' if c.keeps_last else 'first' for c in (first, other)]
      for option, a, b in (
        ('max_len', first.max_len, other.max_len),
        ('keep', *ends),
      ):
        if a != b:
          raise ValueError(
            f'features {first.name!r} and {other.name!r} (data.features) are '
            f'columns of history {history!r}, but {option} is {a!r} of the one '
            f'and {b!r} of the other; give both the same'
          )


def check_tables(columns: Sequence) -> None:
  """Refuses tables that are named together and could not be one.

  Encoders that are saved do not come by here: they mean what they always did.

  Args:
    columns: of all features, each a `schema.Column`.
  """
  numbers = {c.name: c for c in columns if not c.coded}
  kinds = {}  # name of a table -> a feature of it
  for column in columns:
    if not column.coded and column.table:
      raise ValueError(
        f'table of feature {column.name!r} (data.features) is '
        f'{column.table!r}, and kind is {column.kind!r}: its numbers are '
        'multiplied and have no rows in a table; leave table out, or make it '
        f'{"a sequence" if column.is_list else "categorical"}'
      )
    if column.coded and column.table in numbers:
      raise ValueError(
        f'table of feature {column.name!r} (data.features) is '
        f'{column.table!r}, which is a feature of kind '
        f'{numbers[column.table].kind!r}: numbers have no table to share; name '
        'a feature of categories, or leave table out'
      )
    if not column.coded:
      continue
    other = kinds.setdefault(column.table_name, column)
    if column.has_numbers != other.has_numbers:
      number, category = sorted(
        (column, other), key=lambda c: c.has_numbers, reverse=True
      )
      raise ValueError(
        f'features {category.name!r} and {number.name!r} share the table '
        f'{column.table_name!r} (data.features), but the one is of kind '
        f'{category.kind!r} and the other of kind {number.kind!r} with '
        f'transform={number.transform!r}, whose rows are of other values; give '
        'one of them another table'
      )
