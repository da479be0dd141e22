"""Rows of a log -> the events of each user, in order of time."""

from collections.abc import Mapping

import numpy as np

from genrec_jax.data import equal_events


def sort_events(
  user: np.ndarray,
  moment: np.ndarray,
  columns: Mapping[str, np.ndarray],
  duplicates: str = 'keep',
  item: str = '',
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
  """Events by user and time; those of one moment stay in the order of rows.

  >>> users, offsets, columns = sort_events(
  ...   np.array([8, 3, 8]), np.array([5, 1, 2]), {'n': np.array([0, 1, 2])}
  ... )
  >>> users.tolist(), offsets.tolist(), columns['n'].tolist()
  ([3, 8], [0, 1, 3], [1, 2, 0])

  Args:
    user: `[N]` int64 ids.
    moment: `[N]` times.
    columns: name -> `[N]` values.
    duplicates: 'keep', or 'drop' for all but the first of events with equal
      users, times and items.
    item: the column with the items, for 'drop'.

  Returns:
    Ids of the users `[U]`, ascending; `[U + 1]` where the events of each lie;
    and the columns in that order.
  """
  users, code = np.unique(user, return_inverse=True)
  order = np.lexsort((moment, code))
  if duplicates == 'drop':
    records = {
      'user': code,
      'item': columns[item],
      'time': moment,
      'fraction': np.zeros(len(code), np.int8),
    }
    equal = np.zeros(len(code), bool)
    equal[equal_events.find_equal_events(records, order)] = True
    order = order[~equal[order]]
  counts = np.bincount(code[order], minlength=len(users))
  offsets = np.concatenate([[0], np.cumsum(counts)])
  return users, offsets, {name: x[order] for name, x in columns.items()}
