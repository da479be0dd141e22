"""Warns when what a scorer is given is not like what it was trained on."""

import logging
import threading

from genrec_jax.data.ranking import encoder as encoder_lib
from genrec_jax.data.ranking import value_shares, value_tally
from genrec_jax.data.ranking.value_shares import FeatureCounts

LOG = logging.getLogger('genrec_jax')
WINDOW = 1000  # rows that are compared with training; then others begin
# Of smaller calls, the rows are looked at when they have doubled.
LARGE_CALL = 256
FIRST_LOOK = 32


class InputWatch:
  """Counts the values that come in, in windows, and warns once of a feature.

  A window has the rows of a second or of an hour: a service that was given good
  rows for months finds out within `WINDOW` bad ones. Threads may share it.
  """

  def __init__(self, encoder: encoder_lib.Encoder):
    """Starts at zero; `encoder` remembers what training had."""
    self._encoder = encoder
    self._expected = value_shares.expect_shares(encoder, encoder.value_counts)
    self._before = value_tally.Tally(encoder)  # the windows that have ended
    self._window = value_tally.Tally(encoder)
    self._next_look = FIRST_LOOK
    self._told = set()  # kind and feature
    self._lock = threading.Lock()

  def add(self, chunk, rows, absent) -> None:
    """Counts rows; see `value_tally.Tally.add`."""
    with self._lock:
      self._window.add(chunk, rows, absent)
      if len(rows) >= LARGE_CALL or self._window.rows >= self._next_look:
        self._look()

  def _look(self) -> None:
    rows = self._window.rows
    for excess in value_shares.find_excesses(
      self._encoder,
      f'the last {rows:,} rows to be scored',
      self._window.counts(),
      self._expected,
    ):
      if (excess.kind, excess.feature) not in self._told:
        self._told.add((excess.kind, excess.feature))
        if excess.text:
          LOG.warning('%s', excess.text)
    self._next_look = 2 * rows
    if rows >= WINDOW:
      self._before.absorb(self._window)
      self._window = value_tally.Tally(self._encoder)
      self._next_look = FIRST_LOOK

  def counts(self) -> dict[str, FeatureCounts]:
    """Feature -> what was counted so far."""
    with self._lock:
      total = value_tally.Tally(self._encoder)
      total.absorb(self._before)
      total.absorb(self._window)
    return total.counts()
