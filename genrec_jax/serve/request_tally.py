"""Counts what of a file of candidates nobody knows, for the log."""

import dataclasses
import logging

import numpy as np

from genrec_jax.data.quoting import escape

LOG = logging.getLogger('genrec_jax')
EXAMPLES = 5  # of what is unknown


@dataclasses.dataclass
class Tally:
  """What of a file the model or the data do not know.

  Attributes:
    rows: candidates that were read.
    requests: that they are of.
    unknown_items: candidates whose item the model does not know.
    unknown_values: candidates with a value of another feature that the model
      does not know.
    unknown_features: candidates of other items whose further features nobody
      says, neither the file nor the data.
    unknown_users: candidates of users that the data do not have.
    without_history: candidates of other users before whom there is no event.
    examples: the first of each of these, with its line.
  """

  rows: int = 0
  requests: int = 0
  unknown_items: int = 0
  unknown_values: int = 0
  unknown_features: int = 0
  unknown_users: int = 0
  without_history: int = 0
  examples: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)

  def note(self, what: str, chunk, names, which: np.ndarray) -> None:
    """Counts the rows `which`, and keeps some of `names` as examples."""
    setattr(self, what, getattr(self, what) + int(which.sum()))
    some = self.examples.setdefault(what, {})
    for at in np.flatnonzero(which).tolist():
      if len(some) == EXAMPLES:
        break
      some.setdefault(names[at], f'{escape(names[at])} ({chunk.where(at)})')

  def tell(self, path) -> None:
    """Says in the log what was unknown."""
    for what, said in (
      ('unknown_items', 'an item that training does not know, and are scored '
       'as any unknown item'),
      ('unknown_values', 'a feature with a value that training does not know, '
       'and are scored as any unknown value of it'),
      ('unknown_features', 'an item whose other features neither the file nor '
       'the data have, and are scored with unknown ones'),
      ('unknown_users', 'a user who is not in the data, and are scored without '
       'a history'),
      ('without_history', 'a user without an event before the request, and are '
       'scored without a history'),
    ):  # fmt: skip
      if count := getattr(self, what):
        LOG.warning(
          '%s: %s of %s candidates are of %s, such as %s',
          path,
          f'{count:,}',
          f'{self.rows:,}',
          said,
          ', '.join(self.examples[what].values()),
        )
