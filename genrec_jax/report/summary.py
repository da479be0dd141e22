"""The report of a run: report.json for scripts, report.html to read, a table.

`report` is the dict of report.json:

  config             nested dict
  seed, steps, best_step, wall_s, core_s, examples_per_s, tokens_per_s
  metrics            split ('valid', 'test') -> {'hr@10': ...} of the best step
  last_epoch         the same of the last evaluation
  baselines          name -> split -> {'hr@10': ...}, or name -> {'hr@10': ...}
                     for the split at the head of the table
  run                'command', without secrets, '' where there was none;
                     'set_keys', the config keys that it sets; 'changed', key ->
                     the library's default of each that differs from it;
                     'workdir'; 'started' and 'finished', seconds since 1970;
                     'version', and 'commit' of a checkout, with '+' if files
                     differ from it
  data               one text about the data set
  splits             split -> {'examples': how many; 'users', 'repeats': the
                     share of targets that their users have had before, and
                     'filter_seen', the setting that makes all these misses}
  intervals          split -> metric -> [low, high], 95 % intervals of `metrics`
  below_baseline     what a run is worse in than a baseline, {'metric', 'value',
                     'baseline', 'baseline_value'}
  setup_s, train_s, eval_s, compile_s
                     seconds before the first step, of steps and of evaluations;
                     compilation has its share of each
  peak_memory        bytes: of the 'host', and of a 'device' that says it
  values             split -> feature -> {'values', 'missing', 'unseen'}: how
                     many values there are, missing and unknown to training;
                     'example' and 'gap', where one of those is; 'far_more',
                     which of the two are far more than was to be expected
  versions           package -> version
  ranking            what is drawn of a ranking model, see below
  users              some users, each {'user', 'place' among so many, 'of', by
                     the rank of the next item, which was looked for in the
                     first 'depth', 'history': [{'item', 'title',
                     'time'}, ...] with the latest last, 'target': {'item',
                     'title'} or None, 'target_rank', 'recommendations':
                     [{'item', 'title', 'score', 'hit'}, ...]}; titles, times,
                     scores and ranks may be None
  directions         metric or family -> 'higher', 'lower', the number that it
                     should be near, or 'none'; see `tasks.directions`
  diverged           {'step', 'why'} of a run that diverged
  curve_holes        where a resumed run lacked lines of metrics.jsonl, see
                     `metric_writers.describe_hole`
  notes              what a reader must know

`ranking` is what `evaluators.ranking.RankingEvaluator.details` gives, with the
name of the split that it was measured on:

  part               'test'
  examples           how many
  labels             label -> {'calibration': [{'low', 'high', 'prediction',
                     'rate', 'rate_low', 'rate_high', 'weight'}, ...],
                     'calibration_error', 'histogram': {'edges', 'positive',
                     'negative'}}
  importance         {'examples', 'repeats', 'features': [{'feature', 'kind',
                     'auc_drop', 'auc_drop_std', 'logloss_rise',
                     'logloss_rise_std'}, ...]}

Of requests, 'labels' has the binary ones alone, 'unit' is what the examples are
called, and 'stream' is of `stream_panel.measure_requests`; `requests` is what
`request_panel.explain_requests` gives.

Only `metrics` must be there; what is absent is left out of the page.
"""

import logging
import numbers
import os
import pathlib
from collections.abc import Mapping, Sequence

from genrec_jax import sealed
from genrec_jax.contracts import Panel
from genrec_jax.formatting import format_compact, format_duration
from genrec_jax.report.comparison import Verdict, compare_metrics
from genrec_jax.report.metric_writers import (
  dump_json,
  read_jsonl,
  restore_numbers,
  write_atomically,
)
from genrec_jax.report.pages import render_page
from genrec_jax.report.protocol import describe_size
from genrec_jax.report.shortfall import describe_shortfall, find_shortfalls

LOG = logging.getLogger('genrec_jax')


def write_report(
  workdir: str | os.PathLike,
  report: Mapping,
  curves: Sequence[Mapping],
  sections: Sequence[str] = (),
) -> None:
  """Writes report.json and report.html into `workdir`.

  Args:
    workdir: directory of the run.
    report: see the top of this file; 'below_baseline' is added to the file.
    curves: rows of metrics.jsonl, {'step': 12, 'train/loss': ...}.
    sections: HTML of what the page does not know by name.
  """
  workdir = pathlib.Path(workdir)
  comparison = compare_metrics(report)
  page = render_page(report, comparison, curves, sections)
  below = [
    {
      'metric': s.metric,
      'value': s.value,
      'baseline': s.verdict.baseline,
      'baseline_value': s.verdict.value,
    }
    for s in find_shortfalls(report, comparison)
  ]
  report = {**report, 'below_baseline': below} if below else report
  sealed.write_text(workdir / 'report.json', dump_json(report, indent=2) + '\n')
  write_atomically(workdir / 'report.html', page)


def rebuild_report(
  workdir: str | os.PathLike, panels: Sequence[Panel] = ()
) -> dict:
  """Writes report.html anew, from report.json and metrics.jsonl alone.

  Args:
    workdir: directory of a run.
    panels: of its kind of task, whose sections are drawn anew too.

  Returns:
    What report.json holds.

  Raises:
    FileNotFoundError: there is no report.json.
    ValueError: a file is damaged.
  """
  workdir = pathlib.Path(workdir)
  path = workdir / 'report.json'
  if not path.exists():
    if not (workdir / 'config.json').exists():
      raise FileNotFoundError(
        f'{workdir} is not the workdir of a run (no config.json)'
      )
    raise FileNotFoundError(
      f'{workdir} has no report.json, of which the page is made: its training '
      'has not ended, or evaluated nothing (eval.splits). `genrec train '
      f'--workdir={workdir}` continues it and writes both; `genrec eval '
      f'{workdir}` evaluates what is saved'
    )
  files = sealed.open_file(
    path,
    f'remove it; `genrec train --workdir={workdir}` writes it again and trains '
    'no step twice',
  )
  report = restore_numbers(files.read_json(path.name, metrics=dict))
  curves, lines = [], workdir / 'metrics.jsonl'
  if lines.exists():
    curves = read_jsonl(lines)
  else:
    LOG.warning('%s has no metrics.jsonl: the page has no curves', workdir)
  sections = [
    panel.draw(report[panel.name])
    for panel in panels
    if panel.draw and panel.name in report
  ]
  page = render_page(report, compare_metrics(report), curves, sections)
  write_atomically(workdir / 'report.html', page)
  return report


def format_table(report: Mapping) -> str:
  """Returns metrics beside baselines as plain text for a terminal.

  A run below a baseline says so in the first line.
  """
  c = compare_metrics(report)
  lines = [('', *c.columns)]
  for metric, values in c.rows:
    lines.append((metric, *map(_format_cell, values)))
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  table = [
    '  '.join([line[0].ljust(widths[0])]
              + [v.rjust(w) for v, w in zip(line[1:], widths[1:], strict=True)])
    for line in lines
  ]  # fmt: skip
  said = [*describe_shortfall(report, c), *table, _format_costs(report)]
  return '\n'.join(said).rstrip('\n')


def _format_cell(value: float | Verdict | None) -> str:
  if value is None:
    return '-'
  if isinstance(value, Verdict):
    return str(value)
  return f'{value:,}' if isinstance(value, numbers.Integral) else f'{value:.4f}'


def _format_costs(report: Mapping) -> str:
  said = [size] if (size := describe_size(report)) else []
  if report.get('best_step') is not None:
    said.append(f'step {report["best_step"]:,} of {report.get("steps", 0):,}')
  for key, unit in (('wall_s', 'wall'), ('core_s', 'of processor time')):
    if report.get(key) is not None:
      said.append(f'{format_duration(report[key])} {unit}')
  for unit in ('examples', 'requests'):
    if report.get(f'{unit}_per_s') is not None:
      said.append(f'{format_compact(report[f"{unit}_per_s"])} {unit}/s')
  if report.get('seed') is not None:
    said.append(f'seed {report["seed"]}')
  return ', '.join(said)
