"""Files with a line of features for each user, and the columns of files."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from genrec_jax.config.loading import hint_nearest
from genrec_jax.data import fields, text, text_arrays
from genrec_jax.data.quoting import list_names, quote


@dataclasses.dataclass(frozen=True)
class UserTable:
  """What a file says of users.

  Attributes:
    path: of the file.
    lines: user -> number of the line; users in the order of the columns.
    columns: name -> texts, one a user.
  """

  path: object
  lines: dict[int, int]
  columns: dict[str, list[str]]

  def select(
    self,
    users: np.ndarray,
    find_row: Callable[[int], str],
    remedy: str,
  ) -> dict[str, np.ndarray]:
    """Name -> `[U]` texts of the users, '' for what is missing.

    Args:
      users: `[U]` int64.
      find_row: says where a user stands in the log.
      remedy: what to do about a user without a line.
    """
    place = {user: i for i, user in enumerate(self.lines)}
    for user in users.tolist():
      if user not in place:
        raise ValueError(
          f'{find_row(user)}: user {user} has events and no line in '
          f'{self.path}; {remedy}'
        )
    order = [place[user] for user in users.tolist()]
    return {
      name: text_arrays.make_text_array(words)[order]
      for name, words in self.columns.items()
    }


def read_users(
  path,
  blocks: Iterable[text.TextBlock],
  positions: Mapping[str, int],
  user: str,
  check: Callable[[text.TextBlock], None] | None = None,
) -> UserTable:
  """Reads the file of the users.

  Args:
    path: for messages.
    blocks: its rows.
    positions: name of a column -> where it is.
    user: the column with the ids, whole numbers.
    check: called with each block; may raise.
  """
  table = UserTable(path, {}, {x: [] for x in positions if x != user})
  for block in blocks:
    words = block.columns[positions[user]]
    ids, good = fields.parse_ids(words, 'int')
    for i, (one, line) in enumerate(
      zip(ids.tolist(), block.lines, strict=True)
    ):
      if not good[i]:
        raise ValueError(
          f'{path}, line {line}: {quote(words[i])} is not the whole number of '
          'a user; mend or remove the line'
        )
      if one in table.lines:
        raise ValueError(
          f'{path}, line {line}: user {one} already has line '
          f'{table.lines[one]}; remove one of them'
        )
      table.lines[one] = line
    for name, column in table.columns.items():
      cells = block.columns[positions[name]]
      _check_lengths(path, block, ids, name, cells)
      column += cells
    if check:
      check(block)
  return table


def _check_lengths(path, block, ids, name: str, cells: Sequence[str]) -> None:
  lengths = text_arrays.measure(cells)
  if lengths.max(initial=0) > text_arrays.LONGEST_ID:
    bad = int(np.argmax(lengths))
    raise ValueError(
      f'{path}, line {block.lines[bad]}: {name} of user {ids[bad]} has '
      f'{lengths[bad]:,} characters, more than {text_arrays.LONGEST_ID:,}; '
      'mend the line'
    )


def find_columns(
  path, names: Sequence[str], wanted: Iterable[str], layout: str
) -> dict[str, int]:
  """Where the wanted columns are.

  Args:
    path: for messages.
    names: of the columns of the file.
    wanted: columns that must be there.
    layout: what the file should be ('a log of KuaiRand').
  """
  for name in wanted:
    if name not in names:
      raise ValueError(
        f'{path}: no column {name!r}, which {layout} has; the columns are '
        f'{list_names(names)}{hint_nearest(name, names)}; give the published '
        'file'
      )
    if list(names).count(name) > 1:
      raise ValueError(
        f'{path}: the column {name!r} is there twice; remove one of them'
      )
  return {name: list(names).index(name) for name in wanted}
