"""What an annotation service is asked for."""

import dataclasses
import re

from genrec_jax.data.growing import END
from genrec_jax.distill import part_manifest

TEACHER, SCORES = 'teacher', 'scores'  # directories beside those of streams
_RESERVED = (TEACHER, SCORES, 'join', END, part_manifest.NAME)
_STREAM_NAME = re.compile(r'[A-Za-z0-9_-][A-Za-z0-9_.-]*')
_MOST_S = (1 << 31) - 1


@dataclasses.dataclass(frozen=True)
class AnnotateOptions:
  """What a service is asked for.

  Attributes:
    events: directory of the streams.
    out: directory of what is written.
    teacher: workdir of the teacher's run.
    window_s: seconds of a window.
    attribution_s: how long after its impression a label counts.
    streams: names of the streams; () is every directory of `events`.
    labels: columns of the label events.
    lag: windows that the teacher is older than it could be.
    column: of the scores in the students' parts; of several labels
      COLUMN_LABEL. COLUMN_weight is their weight.
    is_patient: whether a window waits for its teacher. If not, it is written
      without scores where the teacher is late, and what comes out depends on
      how fast it was.
    poll_s: seconds between two looks.
    most_lost: share of the labels that may be lost; a service ends where there
      are more, for students would learn that nothing happens.
  """

  events: str
  out: str
  teacher: str
  window_s: int
  attribution_s: int
  streams: tuple[str, ...] = ()
  labels: tuple[str, ...] = ('label',)
  lag: int = 0
  column: str = 'teacher'
  is_patient: bool = True
  poll_s: float = 1.0
  most_lost: float = 0.5

  def __post_init__(self):
    if not 0 <= self.most_lost <= 1:
      raise ValueError(
        f'--most_lost is {self.most_lost}: it is a share, from 0 to 1'
      )
    if self.lag < 0:
      raise ValueError(
        f'the lag is {self.lag}: it must be 0 or more, for a teacher scores '
        'what it has not been trained on'
      )
    if not 0 < self.poll_s <= _MOST_S:
      raise ValueError(f'--poll is {self.poll_s}: it must be above 0 seconds')
    for key in ('window_s', 'attribution_s'):
      if getattr(self, key) > _MOST_S:
        raise ValueError(
          f'{key} is {getattr(self, key)}: give at most {_MOST_S:,} seconds'
        )
    for name in self.streams:
      if name in _RESERVED:
        raise ValueError(
          f'a stream cannot be called {name!r}: so is what {self.out} has '
          'beside the streams'
        )
      if not _STREAM_NAME.fullmatch(name):
        raise ValueError(
          f'a stream is called {name!r}, and so are directories: give letters, '
          'digits, _, - and .'
        )
