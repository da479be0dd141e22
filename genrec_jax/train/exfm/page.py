"""Writes exfm.html: one file to send to a colleague, without any request.

The markup is in report/templates/exfm.html.j2, which escapes all names. This
module prepares its variables.
"""

import datetime
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from genrec_jax.processes.whole_files import replace_file
from genrec_jax.report.feeding_diagram import draw_flow
from genrec_jax.report.pages import load_template
from genrec_jax.train.exfm import charts, results
from genrec_jax.train.exfm.commands import SERVICE, Layout
from genrec_jax.train.exfm.settings import NONE

PAGE, NUMBERS = 'exfm.html', 'exfm_results.json'
_FEW_WINDOWS = 4  # say nothing of a gain
_MANY_LOST = 0.05  # of the labels
# Count of the join -> what it means.
_COUNTS = {
  'impressions': 'rows of all streams',
  'shared_impressions': 'of these, of examples that another stream had before',
  'repeated_impressions': 'of these, of examples that the stream had before',
  'late_impressions': 'of these, dropped: their window had been given out',
  'examples': 'given out, each once',
  'unlabelled': 'of these, without any label, which stands for 0',
  'labels': 'read; an event of two labels counts twice',
  'joined': 'of these, those of examples',
  'behind_attribution': 'lost: later than --attribution_s',
  'after_emission': 'lost: in time, but read after their window was given out',
  'unknown': 'lost: of examples that are not known, or not any more',
  'duplicates': 'of labels that are counted already',
  'early': 'from before their impression; they count',
}
_METHODS = {
  NONE: 'labels alone',
  'one_head': 'scores and labels by the head that serves',
  'head': 'a head of its own for the scores',
  'adapter': 'a head for the scores, one for what an adapter makes of them',
  'teacher_alone': 'scores alone, by the head that serves',
}


def write_page(layout: Layout) -> str:
  """Writes the page and its numbers; returns where they are, in words.

  Args:
    layout: of a system whose processes are all done.
  """
  numbers = results.measure_system(layout)
  replace_file(layout.root / NUMBERS, json.dumps(numbers, indent=1))
  replace_file(layout.root / PAGE, render_page(numbers, str(layout.root)))
  lost = numbers['service']['labels_lost']
  return (
    f'wrote {layout.root / PAGE} and {layout.root / NUMBERS}; {lost:.2%} of '
    'labels lost'
  )


def render_page(numbers: Mapping, root: str) -> str:
  """Returns the page.

  Args:
    numbers: of `results.measure_system`.
    root: directory of the system.
  """
  settings, students = numbers['settings'], numbers['students']
  methods = settings['methods']
  return load_template('exfm.html.j2').render(
    numbers=numbers,
    settings=settings,
    root=root,
    now=datetime.datetime.now(datetime.UTC).strftime('%Y-%m-%d %H:%M UTC'),
    methods=[(method, _METHODS[method]) for method in methods],
    colors=charts.COLORS,
    beginning=charts.count_beginning(numbers['windows']),
    has_none=NONE in methods,
    late=numbers['windows'][-1] - numbers['measured_windows'][-1],
    gains=list(list_gains(numbers)),
    flow=draw_flow(numbers),
    ne=[charts.chart_ne(numbers, student) for student in students],
    gain=[
      charts.chart_gain(numbers, student)
      for student in students
      if NONE in methods and len(methods) > 1
    ],
    calibration=[
      charts.chart_calibration(numbers, student) for student in students
    ],
    teacher=charts.chart_teacher(numbers),
    windows=list(list_windows(numbers)),
    costs=list(_list_costs(numbers)),
    score_us=cost_score(numbers),
    many_lost=numbers['service']['labels_lost'] > _MANY_LOST,
    counts=_COUNTS,
    origin=charts.find_origin(numbers),
    total_core_s=sum(cost['core_s'] for cost in numbers['costs']),
    stream=list((settings['stream'] or {}).items()),
  )


def list_gains(numbers: Mapping) -> Iterator[dict]:
  """What each method gains in the mean of the students.

  Args:
    numbers: of `results.measure_system`.
  """
  for method in numbers['settings']['methods']:
    runs = [student['methods'][method] for student in numbers['students']]
    gains = [run.get('gain') for run in runs]
    if method == NONE or not gains or None in gains:
      continue
    gain = statistics.fmean(gains)
    yield {
      'method': method,
      'gain': gain,
      'least': min(gains),
      'most': max(gains),
      'verdict': judge_gain(gain, runs, len(numbers['measured_windows'])),
    }


def judge_gain(gain: float, runs: Sequence[Mapping], windows: int) -> str:
  """What one run of each student allows to say of a mean gain.

  Nothing is said of a gain that is within two standard errors of 0, as the
  windows tell them. Other seeds would differ by more.

  >>> runs = [{'gain_spread': 0.4}, {'gain_spread': 0.4}]
  >>> [judge_gain(gain, runs, 8) for gain in (0.5, 0.1, -2.0)]
  ['better', 'no difference', 'worse']

  Args:
    gain: the mean of the students, in per cent.
    runs: of the students, with the spread of the gains over windows.
    windows: how many were measured.
  """
  spreads = [run.get('gain_spread') for run in runs]
  if windows < _FEW_WINDOWS or None in spreads:
    return 'too few windows'
  error = math.sqrt(sum(x * x for x in spreads) / windows) / len(spreads)
  if abs(gain) <= 2 * error:
    return 'no difference'
  return 'better' if gain > 0 else 'worse'


def cost_score(numbers: Mapping) -> float | None:
  """Core-microseconds of the service for each example that it has scored.

  All of the service: reading, joining, scoring and writing.

  Args:
    numbers: of `results.measure_system`.
  """
  (cost,) = (x for x in numbers['costs'] if x['process'] == SERVICE)
  scored = numbers['service']['scored']
  return 1e6 * cost['core_s'] / scored if scored else None


def list_windows(numbers: Mapping) -> Iterator[dict]:
  """Who has scored each window, and what it holds.

  Args:
    numbers: of `results.measure_system`.
  """
  by_student = [
    {row['window']: row for row in student['windows']}
    for student in numbers['students']
  ]
  for row in numbers['teacher']['windows']:
    rows = [windows.get(row['window'], {}) for windows in by_student]
    yield row | {'streams': [x.get('examples', 0) for x in rows]}


def _list_costs(numbers: Mapping) -> Iterator[dict]:
  for cost in numbers['costs']:
    core_s = cost['core_s']
    yield cost | {
      'per_core_s': cost['examples'] / core_s if core_s else None,
    }
