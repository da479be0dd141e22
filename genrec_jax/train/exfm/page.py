"""Writes exfm.html: one file to send to a colleague, without any request.

The markup is in report/templates/exfm.html.j2, which escapes all names. This
module prepares its variables.
"""

import datetime
import json
import statistics
from collections.abc import Iterator, Mapping

from genrec_jax.processes.whole_files import replace_file
from genrec_jax.report.feeding_diagram import draw_flow
from genrec_jax.report.pages import load_template
from genrec_jax.train.exfm import charts, results
from genrec_jax.train.exfm.commands import SERVICE, Layout
from genrec_jax.train.exfm.settings import NONE

PAGE, NUMBERS = 'exfm.html', 'exfm_results.json'
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
  return f'wrote {layout.root / PAGE} and {layout.root / NUMBERS}'


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
      if len(methods) > 1
    ],
    calibration=[
      charts.chart_calibration(numbers, student) for student in students
    ],
    teacher=charts.chart_teacher(numbers),
    windows=list(list_windows(numbers)),
    costs=list(_list_costs(numbers)),
    score_us=cost_score(numbers),
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
    yield {
      'method': method,
      'gain': statistics.fmean(gains),
      'least': min(gains),
      'most': max(gains),
    }


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
