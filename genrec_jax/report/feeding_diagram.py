"""A picture of a teacher and its students: who is fed by whom."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from genrec_jax.formatting import format_compact

_WIDTH, _ROW, _GAP = 960, 66, 14
_LEFT, _MIDDLE, _RIGHT = (8, 250), (340, 620), (710, 952)  # of the columns
_LINE = 17  # between two lines of text
_TEACHER_ROOM = 96
_SVG = Markup(
  '<svg class="chart flow" viewBox="0 0 {0} {1}" role="img" '
  'aria-label="who is fed by whom">{2}</svg>'
)
_BOX = Markup(
  '<rect class="box {}" x="{}" y="{:.0f}" width="{}" height="{:.0f}" rx="9"/>'
)
_TEXT = Markup('<text class="{}" x="{:.0f}" y="{:.0f}">{}</text>')
_ARROW = Markup('<path class="arrow" d="{}"/><path class="tip" d="{}"/>')
# Heads of arrows, from their tips on.
_HEADS = {'right': 'l-9 -4.5v9Z', 'down': 'l-4.5 -9h9Z', 'up': 'l-4.5 9h9Z'}


def draw_flow(numbers: Mapping) -> Markup:
  """Streams, service and teacher, and students, from left to right.

  Args:
    numbers: of `train.exfm.results.measure_system`.
  """
  students = numbers['students']
  tall = max(len(students) * (_ROW + _GAP) - _GAP, 2 * _TEACHER_ROOM + 70)
  rows = (tall + _GAP) / len(students) - _GAP
  drawn = []
  top, below = 8, 8 + tall - _TEACHER_ROOM
  drawn += _draw_box(
    _MIDDLE, top, tall - _TEACHER_ROOM - 46, 'green', 'Annotation service',
    _describe_service(numbers),
  )  # fmt: skip
  teacher = numbers['teacher']
  drawn += _draw_box(
    _MIDDLE, below, _TEACHER_ROOM, 'purple', f'Teacher: {teacher["model"]}',
    [
      f'learns all {_count(teacher["examples"])} examples',
      'leaves its weights behind each window',
    ],
  )  # fmt: skip
  left = _MIDDLE[0] + 80
  right = _MIDDLE[1] - 80
  end = top + tall - _TEACHER_ROOM - 46
  drawn += [
    _draw_arrow(f'M{left} {end}V{below - 2}', left, below - 2, 'down'),
    _TEXT.format('said', left + 10, (end + below) / 2 + 4, 'labels'),
    _draw_arrow(f'M{right} {below}V{end + 2}', right, end + 2, 'up'),
    _TEXT.format('said', right + 10, (end + below) / 2 + 4, 'weights'),
  ]
  middle = (top + end) / 2
  for number, student in enumerate(students):
    y = 8 + number * (rows + _GAP)
    at = y + min(rows, _ROW) / 2
    segments = ', '.join(map(str, student['segments']))
    about = [f'{_count(student["examples"])} examples']
    if student['segments']:
      plural = 's' if len(student['segments']) > 1 else ''
      about.append(f'segment{plural} {segments}')
    shared = student['shared'] / max(1, student['examples'])
    if student['shared']:
      about[0] += f', {shared:.0%} shared'
    drawn += _draw_box(
      _LEFT, y, min(rows, _ROW), 'muted', f'Stream {student["name"]}', about
    )
    methods = ', '.join(student['methods'])
    drawn += _draw_box(
      _RIGHT, y, min(rows, _ROW), 'blue',
      f'{student["name"]}: {student["model"]}', _wrap_words(methods),
    )  # fmt: skip
    drawn.append(_bend(_LEFT[1], at, _MIDDLE[0] - 2, middle))
    drawn.append(_bend(_MIDDLE[1], middle, _RIGHT[0] - 2, at))
  return _SVG.format(_WIDTH, round(tall + 16), Markup('').join(drawn))


def _describe_service(numbers: Mapping) -> list[str]:
  settings, service = numbers['settings'], numbers['service']
  older = settings['lag'] + 1
  plural = 's' if older > 1 else ''
  return [
    f'joins labels of {settings["attribution_s"]:,} s, '
    f'{service["labels_lost"]:.1%} lost',
    f'scores {_count(service["scored"])} examples, each once',
    f'saves {_count(service["calls_saved"])} calls of the teacher',
    f'teacher of {older} window{plural} before',
  ]


def _draw_box(
  column: tuple[int, int],
  y: float,
  height: float,
  color: str,
  title: str,
  lines: Sequence[str],
) -> list[Markup]:
  x, end = column
  drawn = [_BOX.format(color, x, y, end - x, height)]
  block = _LINE * (len(lines) + 1)
  first = y + (height - block) / 2 + 13
  drawn.append(_TEXT.format('head', x + 14, first, title))
  for number, line in enumerate(lines, 1):
    drawn.append(_TEXT.format('', x + 14, first + number * _LINE, line))
  return drawn


def _bend(x: float, y: float, to_x: float, to_y: float) -> Markup:
  """An arrow to the right, level at both ends."""
  middle = (x + to_x) / 2
  path = (
    f'M{x:.0f} {y:.0f}C{middle:.0f} {y:.0f} {middle:.0f} {to_y:.0f} '
    f'{to_x:.0f} {to_y:.0f}'
  )
  return _draw_arrow(path, to_x, to_y, 'right')


def _draw_arrow(path: str, x: float, y: float, to: str) -> Markup:
  return _ARROW.format(path, f'M{x:.0f} {y:.0f}{_HEADS[to]}')


def _wrap_words(text: str, width: int = 34) -> list[str]:
  """Lines of words that fit."""
  words, lines = text.split(' '), ['']
  for word in words:
    if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
      lines.append('')
    lines[-1] = f'{lines[-1]} {word}'.strip()
  return lines[:2]


def _count(number: float) -> str:
  return f'{number:,}' if number < 10_000 else format_compact(number)
