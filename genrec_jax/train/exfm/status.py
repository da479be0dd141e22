"""How far the processes of a system are, by what lies in its directory."""

import pathlib
import time

from genrec_jax import formatting
from genrec_jax.data.growing import END
from genrec_jax.train.exfm.commands import Layout, name_run

# Each window leaves a line that has it.
PROGRESSIVE = 'train/logloss'


class Status:
  """Counts windows; a line about all is `describe`."""

  def __init__(self, layout: Layout):
    """Begins to count the seconds.

    Args:
      layout: of the system.
    """
    self._layout, self._began = layout, time.monotonic()

  def describe(self) -> str:
    """One line: the windows that each part has done.

    Of the students with other methods than that of all, only the slowest one
    is told.
    """
    layout, settings = self._layout, self._layout.settings
    total = self._count_events()
    is_whole = (layout.events / END).is_file()
    if settings.stream is not None:
      total_text = f'{settings.stream.windows}'
    else:
      total_text = f'{total}' if is_whole else '?'
    first = settings.students[0].name
    annotated = len(list((layout.annotated / first).glob('window-*.parquet')))
    words = [
      formatting.format_duration(time.monotonic() - self._began),
      f'events {total}/{total_text}',
      f'service {annotated}',
      f'teacher {count_windows(layout.teacher)}',
    ]
    others = []
    for student, method in settings.runs():
      done = count_windows(layout.student(student, method))
      if method == settings.method:
        words.append(f'{student.name} {done}')
      else:
        others.append((done, name_run(student, method)))
    if others:
      done, name = min(others)
      words.append(f'{len(others)} compared, slowest {name} {done}')
    return ' · '.join(words)

  def _count_events(self) -> int:
    """Windows of which all streams have both files."""
    counts = []
    for student in self._layout.settings.students:
      folder = self._layout.events / student.name
      for kind in ('impressions', 'labels'):
        counts.append(len(list(folder.glob(f'{kind}-*.parquet'))))
    return min(counts)


def count_windows(workdir: pathlib.Path) -> int:
  """The windows whose metrics a run has written."""
  try:
    text = (workdir / 'metrics.jsonl').read_text()
  except OSError:
    return 0
  return sum(f'"{PROGRESSIVE}"' in line for line in text.splitlines())
