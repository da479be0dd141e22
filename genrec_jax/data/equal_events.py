"""Events that were written twice: equal users, items and times."""

import pathlib
from collections.abc import Iterable

import numpy as np

CHOICES = ('keep', 'drop')  # of `data.duplicates`


def find_equal_events(records: np.ndarray, order: np.ndarray) -> np.ndarray:
  """Rows with the user, item, time and fraction of an earlier row.

  >>> kind = [(n, '<i4') for n in ('user', 'item', 'time', 'fraction')]
  >>> rows = [(0, 7, 5, 0), (0, 8, 5, 0), (0, 7, 5, 0), (0, 7, 6, 0)]
  >>> find_equal_events(np.array(rows, kind), np.arange(4)).tolist()
  [2]

  Args:
    records: events of some users, all of each.
    order: of the rows by (user, time, fraction, row).
  """
  ties = np.ones(max(len(order) - 1, 0), bool)
  for name in ('user', 'time', 'fraction'):
    column = records[name][order]
    ties &= column[1:] == column[:-1]
  # Only what is not alone in its moment is looked at any further.
  moment = np.concatenate([[0], np.cumsum(~ties)])[: len(order)]
  is_tied = np.zeros(len(order), bool)
  is_tied[1:] |= ties
  is_tied[:-1] |= ties
  rows, moment = order[is_tied], moment[is_tied]
  items = records['item'][rows]
  by_item = np.lexsort((items, moment))  # stable: the first row stays first
  rows, moment, items = rows[by_item], moment[by_item], items[by_item]
  equal = (moment[1:] == moment[:-1]) & (items[1:] == items[:-1])
  return np.sort(rows[1:][equal])


def drop_equal_events(
  files: Iterable[pathlib.Path], record: np.dtype, order_of, counts: np.ndarray
) -> int:
  """Removes all but the first of equal events from files of records.

  Args:
    files: of events, all of a user in one file.
    record: of an event.
    order_of: records -> their order.
    counts: `[U]` events of each user, lowered in place.

  Returns:
    How many were removed.
  """
  dropped = 0
  for path in files:
    records = np.fromfile(path, record)
    rows = find_equal_events(records, order_of(records))
    counts -= np.bincount(records['user'][rows], minlength=len(counts))
    np.delete(records, rows).tofile(path)
    dropped += len(rows)
  return dropped
