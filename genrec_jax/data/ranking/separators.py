"""Lists in cells of text whose separator is not the one of the feature."""

import logging

from genrec_jax.data.quoting import quote
from genrec_jax.data.ranking import raw
from genrec_jax.data.ranking import schema as schema_lib

LOG = logging.getLogger('genrec_jax')
USUAL = (',', ';', '|', '^', ' ')


class SeparatorCheck:
  """Counts the separators of a column, to warn of the wrong one."""

  def __init__(self, column: schema_lib.Column):
    """For a multi_hot or sequence feature."""
    self._column = column
    self._counts = {mark: 0 for mark in USUAL if mark != column.separator}
    self._first: dict[str, tuple[str, str]] = {}  # mark -> (place, cell)
    self._cells = 0
    self._occurs = False

  def add(self, chunk: raw.RawChunk) -> None:
    """Looks at more cells, until one has the separator of the feature."""
    cells = chunk.columns[self._column.source]
    if self._occurs or isinstance(cells, raw.NumberColumn | raw.ListColumn):
      return
    self._occurs = any(self._column.separator in cell for cell in cells)
    self._cells += len(cells) - cells.count('')
    for mark in self._counts:
      at = [i for i, cell in enumerate(cells) if mark in cell]
      if at:
        self._counts[mark] += len(at)
        self._first.setdefault(mark, (chunk.where(at[0]), cells[at[0]]))

  def warn(self) -> None:
    """Warns if most cells have another separator, and none the feature's."""
    mark = max(self._counts, key=self._counts.__getitem__)
    if self._occurs or 2 * self._counts[mark] <= self._cells:
      return
    where, cell = self._first[mark]
    option = f'data.features.{self._column.name}.separator'
    LOG.warning(
      '%s, column %r: %s is read as one value, for no cell of the training '
      'rows has the separator %r; most have %r: set %s=%r if they are lists%s',
      where,
      self._column.source,
      quote(cell),
      self._column.separator,
      mark,
      option,
      mark,
      ', and leave out the brackets' if cell[:1] in '[(' else '',
    )
