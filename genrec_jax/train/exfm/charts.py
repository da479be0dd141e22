"""The charts of the page: windows from left to right."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from genrec_jax.formatting import format_number
from genrec_jax.report import charts
from genrec_jax.report.axes import linear_axis
from genrec_jax.report.charts import Chart, Readout, Series
from genrec_jax.train.exfm.settings import NONE

# A method has its colour everywhere.
COLORS = {
  NONE: 'muted',
  'one_head': 'orange',
  'head': 'green',
  'adapter': 'blue',
  'teacher_alone': 'purple',
}
TEACHER_NAME = 'teacher, as it annotates'
_BEGINNING = 8  # a first of so many windows, in which models begin
_MOST_READOUTS = 60
_LARGE = 1000  # a window's number that no axis shall have
Points = list[tuple[float, float]]


def count_beginning(windows: Sequence[int]) -> int:
  """How many windows are left out of the charts, which would flatten them.

  >>> count_beginning(range(40)), count_beginning(range(4))
  (5, 1)
  """
  return math.ceil(len(windows) / _BEGINNING) if len(windows) > 2 else 0


def chart_ne(numbers: Mapping, student: Mapping) -> Chart:
  """NE of each window, of all methods and the teacher.

  The truth is left out: it is so far below that the others would be one line.

  Args:
    numbers: of `results.measure_system`.
    student: one of them.
  """
  first = _first_window(numbers)
  methods = student['methods']
  series = [
    Series(
      method,
      list_points(run['windows'], 'ne', first),
      COLORS[method],
      'dashes' if method == NONE else 'curve',
    )
    for method, run in _by_rank(methods)
  ]
  references = []
  if teacher := list_points(student['windows'], 'ne', first):
    references.append(Series(TEACHER_NAME, teacher, 'ink', 'dashes'))
  title = f'{student["name"]}: NE of each window'
  return chart_windows(title, [*references, *series], numbers)


def chart_gain(numbers: Mapping, student: Mapping) -> Chart:
  """What each method gains over none; a band is the spread over windows.

  Args:
    numbers: of `results.measure_system`.
    student: one of them.
  """
  first, measured = _first_window(numbers), numbers['measured_windows']
  series = []
  for method, run in _by_rank(student['methods']):
    if method == NONE:
      continue
    gain, spread, band = run.get('gain'), run.get('gain_spread'), []
    if gain is not None and spread is not None:
      band = [
        (window, gain - spread, gain + spread)
        for window in (measured[0], measured[-1])
      ]
    points = list_points(run['windows'], 'gain', first)
    series.append(Series(method, points, COLORS[method], band=band))
  zero = charts.reference_level('no teacher', 0.0)
  title = f'{student["name"]}: gain over no teacher, in % of the log loss'
  return chart_windows(title, [zero, *series], numbers, is_signed=True)


def chart_calibration(numbers: Mapping, student: Mapping) -> Chart:
  """Predicted clicks over clicks, of the heads of the first method.

  Args:
    numbers: of `results.measure_system`.
    student: one of them.
  """
  first = _first_window(numbers)
  method = numbers['settings']['methods'][0]
  windows = student['methods'][method]['windows']
  named = (
    ('serving head', windows, 'calibration', 'blue', 'curve'),
    ('distillation head', windows, 'head_calibration', 'orange', 'curve'),
    ("adapter's output", windows, 'adapter_calibration', 'green', 'curve'),
    (TEACHER_NAME, student['windows'], 'calibration', 'ink', 'dashes'),
  )
  series = [
    Series(name, points, color, shape)
    for name, rows, key, color, shape in reversed(named)
    if (points := list_points(rows, key, first))
  ]
  one = charts.reference_level('as many as there are', 1.0)
  title = f'{student["name"]} ({method}): predicted over actual'
  return chart_windows(title, [one, *series], numbers)


def chart_teacher(numbers: Mapping) -> Chart:
  """The teacher on all examples: as it learns, and as it annotates.

  Args:
    numbers: of `results.measure_system`.
  """
  first, windows = _first_window(numbers), numbers['teacher']['windows']
  series = [
    Series(name, list_points(windows, key, first), color, shape)
    for name, key, color, shape in (
      (TEACHER_NAME, 'annotating_ne', 'ink', 'dashes'),
      ('teacher, each batch before its step', 'ne', 'purple', 'curve'),
    )
  ]
  return chart_windows('The teacher: NE of each window', series, numbers)


def find_origin(numbers: Mapping) -> int:
  """The window that charts call 0: the first, where numbers are large.

  Args:
    numbers: of `results.measure_system`.
  """
  windows = numbers['windows']
  return windows[0] if windows and windows[0] >= _LARGE else 0


def list_points(rows: Sequence[Mapping], key: str, first: int) -> Points:
  """(window, value) from a window on, where there is a value.

  >>> rows = [{'window': 3, 'ne': 0.5}, {'window': 4, 'ne': None}]
  >>> list_points(rows, 'ne', 0)
  [(3, 0.5)]
  """
  return [
    (row['window'], row[key])
    for row in rows
    if row['window'] >= first and row[key] is not None
  ]


def chart_windows(
  title: str,
  series: Sequence[Series],
  numbers: Mapping,
  is_signed: bool = False,
) -> Chart:
  """A chart whose horizontal axis has the windows.

  Args:
    title: its heading.
    series: what is drawn, the last one on top.
    numbers: of `results.measure_system`.
    is_signed: whether values are told with their sign.
  """
  origin = find_origin(numbers)
  series = [_shift(s, origin) for s in series]
  finite = [
    y
    for s in series
    for y in (*(y for _, y in s.points), *(y for _, *b in s.band for y in b))
    if math.isfinite(y)
  ]
  windows = [w for s in series for w, _ in s.points if math.isfinite(w)]
  if not windows:
    nothing = linear_axis(0, 1)
    return Chart(title, nothing, nothing, [])
  low, high = min(windows), max(windows)
  if low == high:
    low, high = low - 1, high + 1
  bottom, top = min(finite), max(finite)
  room = (top - bottom) / 20 or abs(bottom) / 10 or 1.0
  measured = numbers['measured_windows']
  drawn = list(series)
  for mark in (measured[0] - 0.5, measured[-1] + 0.5):
    if low < mark - origin < high:
      drawn.insert(0, charts.reference_mark('', mark - origin))
  name = f'window, from {origin:,} on' if origin else 'window'
  return Chart(
    title,
    linear_axis(low, high, name, whole=True),
    linear_axis(bottom - room, top + room),
    drawn,
    list(_read_out(series, is_signed, origin)),
  )


def _shift(series: Series, origin: int) -> Series:
  return dataclasses.replace(
    series,
    points=[(x - origin, y) for x, y in series.points],
    band=[(x - origin, low, high) for x, low, high in series.band],
  )


def _first_window(numbers: Mapping) -> int:
  windows = numbers['windows']
  return windows[count_beginning(windows)] if windows else 0


def _by_rank(methods: Mapping[str, Mapping]) -> list[tuple[str, Mapping]]:
  """By what they have of the teacher; the method of all students on top."""
  first = next(iter(methods))
  # Dashes of no teacher do not hide what they lie on.
  order = sorted(
    methods, key=lambda m: (m == NONE, m == first, list(COLORS).index(m))
  )
  return [(method, methods[method]) for method in order]


def _read_out(
  series: Sequence[Series], is_signed: bool, origin: int
) -> Iterator[Readout]:
  """The values of all curves at each window, or at every few."""
  curves = [s for s in series if s.name and s.points and len(s.points) > 0]
  curves = [s for s in curves if all(math.isfinite(x) for x, _ in s.points)]
  windows = sorted({x for s in curves for x, _ in s.points})
  step = max(math.ceil(len(windows) / _MOST_READOUTS), 1)
  for window in windows[::step]:
    texts, dots = [f'window {window + origin:,}'], []
    for s in reversed(curves):
      value = dict(s.points).get(window)
      if value is None:
        continue
      text = f'{value:+.2f}' if is_signed else format_number(value)
      texts.append(f'{s.name.partition(",")[0]} {text}')
      dots.append((window, value, s.color))
    yield Readout(window, ' · '.join(texts), dots)
