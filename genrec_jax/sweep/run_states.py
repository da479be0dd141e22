"""What became of the runs of a sweep, by their notes and their files.

What a run has reached is decided by its files: a run is done when it has a
`report.json`, whatever its note in `logs/NAME.json` says.
"""

import os
import pathlib

from genrec_jax.checkpoint.workdir_files import list_traces
from genrec_jax.processes.notes import (
  BAD,
  DONE,
  FAILED,
  RUNNING,
  STOPPED,
  WAITING,
  Note,
  is_alive,
  read_note,
)
from genrec_jax.sweep.record import Sweep
from genrec_jax.sweep.variants import Variant


def find_state(sweep: Sweep, variant: Variant) -> tuple[str, Note]:
  """What became of a run so far, and its note."""
  note = read_note(sweep.note(variant))
  workdir = sweep.workdir(variant)
  if is_alive(note, sweep.log(variant)):
    return RUNNING, note
  if is_whole(workdir / 'report.json'):
    return DONE, note
  if note.state in (FAILED, BAD, STOPPED):
    return note.state, note
  if note.state == RUNNING or list_traces(workdir):
    return STOPPED, note
  return WAITING, note


def is_whole(report: pathlib.Path) -> bool:
  """Whether a report is there to its end; it is written at once."""
  try:
    with open(report, 'rb') as file:
      size = file.seek(0, os.SEEK_END)
      file.seek(max(size - 16, 0))
      return file.read().rstrip().endswith(b'}')
  except OSError:
    return False
