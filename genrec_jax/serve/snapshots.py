"""The snapshots of a run on a growing directory: its weights behind each part.

Parts are windows of a stream, and their names end with the numbers of these. A
run with `checkpoint.at_part_ends` leaves a checkpoint behind each, which says
in its manifest which part it has been trained to the end of. Snapshots are
chosen by these numbers and never by the clock.
"""

import os
import pathlib
import re
from collections.abc import Mapping

from genrec_jax.checkpoint import manifest as manifest_lib
from genrec_jax.checkpoint.manifest import CheckpointError
from genrec_jax.data.part_place import PartPlace

_NUMBER = re.compile(r'(\d+)$')


def number_window(name: str) -> int:
  """The window of a part.

  >>> number_window('window-000012.parquet')
  12

  Args:
    name: of its file.

  Raises:
    ValueError: the name says none.
  """
  found = _NUMBER.search(name.partition('.')[0])
  if not found:
    raise ValueError(
      f'the part {name!r} does not say which window it is: names end with its '
      'number, as in window-000012.parquet'
    )
  return int(found[1])


class Snapshots:
  """Those of a workdir, as they appear and go."""

  def __init__(self, workdir: str | os.PathLike):
    """The run need not have begun.

    Args:
      workdir: of the run.
    """
    self.workdir = pathlib.Path(workdir)
    self._known: dict[int, int | None] = {}  # step -> window

  def list_windows(self) -> dict[int, int]:
    """Window -> the step that has been trained to its end, ascending."""
    folder = self.workdir / 'checkpoints'
    steps = manifest_lib.list_steps(folder)
    known = {step: self._known[step] for step in steps if step in self._known}
    for step in steps:
      if step not in known:
        try:
          manifest_lib.verify(folder / str(step), quick=True)
          body = manifest_lib.read(folder / str(step))
        except CheckpointError:
          continue  # being written, or removed
        known[step] = _find_window(body)
    self._known = known
    found = {w: step for step, w in known.items() if w is not None}
    return dict(sorted(found.items()))

  def find_step(self, window: int) -> int | None:
    """The step that has been trained to the end of a window; None for none yet.

    Args:
      window: its number.

    Raises:
      ValueError: there are later ones, and this one is gone.
    """
    windows = self.list_windows()
    if window in windows:
      return windows[window]
    later = [w for w in windows if w > window]
    if later:
      raise ValueError(
        f'{self.workdir} has no checkpoint of window {window} any more, but '
        f'has one of window {later[0]}: let the run keep more of them '
        '(train.keep_checkpoints), and set checkpoint.at_part_ends'
      )
    return None


def _find_window(body: Mapping) -> int | None:
  said = (body.get('host') or {}).get('part')
  if not said:
    return None
  place = PartPlace(**said)
  return number_window(place.name) if place.is_end else None
