"""The saves of this process that are being written, of all managers."""

import concurrent.futures

_futures = set()


def note_save(future: concurrent.futures.Future) -> None:
  """Says that a save is under way until this future is done."""
  _futures.add(future)
  future.add_done_callback(_futures.discard)


def await_saves() -> None:
  """Returns when none is under way; how they ended is for their managers."""
  concurrent.futures.wait(tuple(_futures))
