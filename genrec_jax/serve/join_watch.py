"""What a join of labels loses, and whom it waits for: told while it happens."""

import logging
from collections.abc import Mapping

from genrec_jax.distill.label_join import LabelJoin

LOG = logging.getLogger('genrec_jax')
_FEW_LABELS = 100  # say nothing of the share that is lost
_MANY_LOST, _MANY_EARLY = 0.05, 0.05  # shares of labels that are warned of
_SILENT_UNITS = 3  # of a stream, of which a service warns


class JoinWatch:
  """Looks at a join after each unit."""

  def __init__(self, events: str, most_lost: float):
    """Begins to look.

    Args:
      events: directory of the streams, for messages.
      most_lost: share of the labels that may be lost.
    """
    self._events, self._most_lost = events, most_lost
    self._silent: dict[str, int] = {}  # stream -> unit since which it is
    self._told: set[str] = set()

  def look(self, join: LabelJoin, unit: int, tables: Mapping[str, tuple]):
    """Warns of what is lost or waited for.

    Args:
      join: behind the unit.
      unit: its number.
      tables: stream -> (impressions, labels) of the unit.

    Raises:
      ValueError: more labels are lost than may be.
    """
    self._check_lost(join.counts)
    silent = [name for name, (shown, _) in tables.items() if not len(shown)]
    self._silent = {name: self._silent.get(name, unit) for name in silent}
    if len(silent) == len(tables):
      return
    for name, since in self._silent.items():
      if unit - since + 1 == _SILENT_UNITS:
        LOG.warning(
          'stream %s has had no impressions since unit %d: nobody knows '
          'whether its windows are complete, so that those of all streams wait '
          'for it (%d examples)', name, since, len(join),
        )  # fmt: skip

  def _check_lost(self, counts) -> None:
    if counts.joined + counts.lost < _FEW_LABELS:
      return
    if counts.share_lost > self._most_lost:
      raise ValueError(
        f'{self._events}: {counts.describe_lost()}: compare the ids and the '
        'times (whole seconds) of labels and impressions, or raise '
        '--attribution_s; --most_lost=1 goes on all the same'
      )
    if counts.share_lost > _MANY_LOST and 'lost' not in self._told:
      self._told.add('lost')
      LOG.warning('%s', counts.describe_lost())
    share = counts.early / counts.labels
    if share > _MANY_EARLY and 'early' not in self._told:
      self._told.add('early')
      LOG.warning(
        '%.0f%% of labels are from before their impression: are the times of '
        'both of one clock and one time zone?', 100 * share,
      )  # fmt: skip
