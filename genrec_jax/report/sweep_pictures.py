"""Pictures of a sweep as SVG: parallel coordinates, scatter plots, curves.

Every line and dot of a run has the class `run` and its number in `data-run`, by
which the page shows it everywhere at once; `--t` is its place among all runs,
from 0 for the worst to 1 for the best, from which its colour follows.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup

from genrec_jax.formatting import format_number, is_finite
from genrec_jax.report.axes import Axis, linear_axis
from genrec_jax.report.charts import PATH, TEXT, Frame

_LINE = Markup(
  '<path class="run" data-run="{}" style="--t:{:.3f}" d="{}"><title>{}</title>'
  '</path>'
)
_DOT = Markup(
  '<circle class="run" data-run="{}" style="--t:{:.3f}" cx="{:.1f}" '
  'cy="{:.1f}" r="4"><title>{}</title></circle>'
)
# As wide as it is drawn at most, so that its letters are those of the page.
_SVG = Markup(
  '<svg class="chart runs" viewBox="0 0 {0} {1}" style="max-width:{0}px" '
  'role="img" aria-label="{2}">{3}</svg>'
)
_MOST_LABELS = 12  # of an axis without numbers
_APART = 0.06  # between two labels
_RATIO = 20.0  # between the ends of an axis that becomes logarithmic


@dataclasses.dataclass(frozen=True)
class Dot:
  """A run in a picture.

  Attributes:
    number: of the run.
    place: among all runs, 0 to 1.
    title: what it says under the pointer.
  """

  number: int
  place: float
  title: str


@dataclasses.dataclass(frozen=True)
class Scale:
  """Where the values of one key lie.

  Attributes:
    name: of the key.
    at: value -> 0 to 1.
    ticks: (0 to 1, label).
  """

  name: str
  at: Callable[[object], float]
  ticks: Sequence[tuple[float, str]]


def make_scale(name: str, values: Sequence[object]) -> Scale:
  """Numbers on a line, logarithmic where they span much; words in a row.

  >>> scale = make_scale('seed', [0, 1, 2])
  >>> scale.at(1), [label for _, label in scale.ticks]
  (0.5, ['0', '1', '2'])
  """
  known = list(dict.fromkeys(v for v in values if v is not None))
  if not known or not all(is_finite(v) for v in known):
    words = sorted(known, key=lambda v: (not is_finite(v), str(v)))
    places = {v: _middle(i, len(words)) for i, v in enumerate(words)}
    step = max(math.ceil(len(words) / _MOST_LABELS), 1)
    ticks = [(places[v], str(v)) for v in words[::step]]
    return Scale(name, lambda v: places.get(v, 0.5), ticks)
  low, high = min(known), max(known)
  if low == high:
    return Scale(name, lambda v: 0.5, [(0.5, format_number(low))])
  if low > 0 and high / low >= _RATIO:
    axis = Axis(low, high, (), name, logarithmic=True)
  else:
    axis = Axis(low, high, (), name)
  places = sorted(axis.place(v) for v in known)
  apart = min(b - a for a, b in itertools.pairwise(places))
  if len(known) <= 6 and apart > _APART:
    ticks = [(axis.place(v), format_number(v)) for v in sorted(known)]
  elif axis.logarithmic:
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    values = [10.0**p for p in powers] or [low, high]
    ticks = [(axis.place(v), f'{v:g}') for v in values]
  else:
    ticks = [(axis.place(v), t) for v, t in linear_axis(low, high).ticks]
  return Scale(name, axis.place, ticks)


def draw_parallel(
  scales: Sequence[Scale],
  rows: Sequence[tuple[Dot, Sequence[object]]],
) -> Markup:
  """One line a run, through its value on every scale.

  Args:
    scales: from left to right.
    rows: of each run, and its values in the order of the scales; the best
      last, so that it lies on top.
  """
  frame = Frame(
    width=max(170 * len(scales), 900), height=330, left=70, right=70, top=34,
    bottom=18,
  )  # fmt: skip
  gap = (frame.end - frame.left) / max(len(scales) - 1, 1)
  drawn = []
  for dot, values in rows:
    places = [
      (frame.left + gap * i, _rise(frame, scale.at(value)))
      for i, (scale, value) in enumerate(zip(scales, values, strict=True))
      if value is not None
    ]
    drawn.append(
      _LINE.format(dot.number, dot.place, _smooth_path(places), dot.title)
    )
  for i, scale in enumerate(scales):
    x = frame.left + gap * i
    drawn.append(PATH.format('axis', '', f'M{x:.1f} {frame.top}V{frame.base}'))
    last = i == len(scales) - 1
    for place, label in scale.ticks:
      y = _rise(frame, place)
      side = 7 if last else -7
      drawn.append(PATH.format('axis', '', f'M{x - 3:.1f} {y:.1f}h6'))
      drawn.append(
        TEXT.format(x + side, y + 4, 'start' if last else 'end', label)
      )
    drawn.append(TEXT.format(x, 16, 'middle', scale.name))
  return _wrap(frame, 'parallel coordinates', drawn)


def draw_scatter(
  scale: Scale,
  metric: str,
  points: Sequence[tuple[Dot, object, float]],
) -> Markup:
  """One dot a run: a metric against a key.

  Args:
    scale: of the key.
    metric: its name.
    points: of each run its value of the key, and of the metric.
  """
  frame = Frame(height=220)
  axis = _span([value for _, _, value in points], metric)
  drawn = [*_draw_frame(frame, scale, axis)]
  for dot, key, value in points:
    x = frame.left + _pad(scale.at(key)) * (frame.end - frame.left)
    y = _rise(frame, axis.place(value))
    drawn.append(_DOT.format(dot.number, dot.place, x, y, dot.title))
  return _wrap(frame, f'{metric} against {scale.name}', drawn)


def draw_curves(
  metric: str, curves: Sequence[tuple[Dot, Sequence[tuple[int, float]]]]
) -> Markup:
  """The learning curves of all runs, laid over each other.

  Args:
    metric: its name.
    curves: of each run, (step, value); the best last.
  """
  frame = Frame(width=900, height=330)
  steps = [step for _, points in curves for step, _ in points]
  values = [v for _, points in curves for _, v in points if is_finite(v)]
  # The first values of a training lie far away from all that matter.
  axis = _span(_without_outliers(values), metric)
  low, high = min(steps, default=0), max(steps, default=1)
  across = linear_axis(low, high if high > low else low + 1, 'step')
  scale = Scale(
    'step', across.place, [(across.place(v), t) for v, t in across.ticks]
  )
  drawn = [*_draw_frame(frame, scale, axis, padded=False)]
  for dot, points in curves:
    places = [
      (
        frame.left + across.place(step) * (frame.end - frame.left),
        _rise(frame, axis.place(value)),
      )
      for step, value in points
      if is_finite(value)
    ]
    if places:
      path = 'M' + 'L'.join(f'{x:.1f} {y:.1f}' for x, y in places)
      path += 'h0' * (len(places) == 1)
      drawn.append(_LINE.format(dot.number, dot.place, path, dot.title))
  return _wrap(frame, f'{metric} by step', drawn)


def place_runs(order: Sequence[int]) -> Mapping[int, float]:
  """Number of a run -> its place, by a list with the best run first.

  >>> place_runs([7, 3, 5])
  {7: 1.0, 3: 0.5, 5: 0.0}
  """
  last = max(len(order) - 1, 1)
  return {number: 1 - at / last for at, number in enumerate(order)}


def _draw_frame(
  frame: Frame, scale: Scale, axis: Axis, padded: bool = True
) -> list[Markup]:
  drawn = []
  for value, label in axis.ticks:
    y = _rise(frame, axis.place(value))
    drawn.append(PATH.format('grid', '', f'M{frame.left} {y:.1f}H{frame.end}'))
    drawn.append(TEXT.format(frame.left - 7, y + 4, 'end', label))
  line = f'M{frame.left} {frame.base}H{frame.end}'
  for place, label in scale.ticks:
    place = _pad(place) if padded else place
    x = frame.left + place * (frame.end - frame.left)
    line += f'M{x:.1f} {frame.base}v4'
    drawn.append(TEXT.format(x, frame.base + 17, 'middle', label[:16]))
  drawn.append(PATH.format('axis', '', line))
  middle = (frame.left + frame.end) / 2
  drawn.append(TEXT.format(middle, frame.height - 4, 'middle', scale.name))
  return drawn


def _wrap(frame: Frame, label: str, drawn: Sequence[Markup]) -> Markup:
  return _SVG.format(frame.width, frame.height, label, Markup('').join(drawn))


def _rise(frame: Frame, place: float) -> float:
  return frame.base - place * (frame.base - frame.top)


def _pad(place: float) -> float:
  """Keeps dots off the ends of an axis."""
  return 0.04 + 0.92 * place


def _middle(at: int, count: int) -> float:
  return 0.5 if count == 1 else at / (count - 1)


def _smooth_path(places: Sequence[tuple[float, float]]) -> str:
  """A curve that is level where it meets an axis."""
  if not places:
    return 'M0 0'
  (x, y), *others = places
  path = f'M{x:.1f} {y:.1f}'
  for next_x, next_y in others:
    middle = (x + next_x) / 2
    path += (
      f'C{middle:.1f} {y:.1f} {middle:.1f} {next_y:.1f} '
      f'{next_x:.1f} {next_y:.1f}'
    )
    x, y = next_x, next_y
  return path


def _span(values: Sequence[float], name: str) -> Axis:
  """An axis with all values, and a little more."""
  low, high = min(values, default=0.0), max(values, default=1.0)
  room = (high - low) * 0.05 or abs(high) * 0.01 or 1.0
  return linear_axis(low - room, high + room, name)


def _without_outliers(values: Sequence[float]) -> list[float]:
  """Values within three times the middle half, beyond which curves are cut."""
  ordered = sorted(values)
  if len(ordered) < 8:
    return ordered
  low, high = ordered[len(ordered) // 4], ordered[3 * len(ordered) // 4]
  room = 3 * (high - low)
  return [v for v in ordered if low - room <= v <= high + room] or ordered
