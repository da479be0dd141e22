"""`--mode=report`: the page of a run, made anew of what its workdir holds."""

import logging
import os
import pathlib
from collections.abc import Sequence

from genrec_jax import sealed
from genrec_jax.config.loading import restore_tuples
from genrec_jax.contracts import Panel
from genrec_jax.last_resort import print_result
from genrec_jax.parallel import job
from genrec_jax.report import summary
from genrec_jax.report.metric_writers import NON_FINITE, read_jsonl

LOG = logging.getLogger('genrec_jax')


def rewrite_page(
  workdir: str | os.PathLike, panels: Sequence[Panel] = ()
) -> dict:
  """Writes report.html from report.json and metrics.jsonl; prints the table.

  Nothing is trained or evaluated, and the data are not read.

  Args:
    workdir: of a run whose training has ended.
    panels: those of its kind of task.

  Returns:
    What report.json holds.

  Raises:
    FileNotFoundError: there is no report.json.
    ValueError: a file is damaged.
  """
  workdir = pathlib.Path(workdir)
  if not (workdir / 'report.json').exists():
    raise FileNotFoundError(
      f'{workdir} has no report.json, of which the page is made: its training '
      'has not ended, or evaluated nothing (eval.splits). `genrec train '
      f'--workdir={workdir}` continues it and writes both; `genrec eval '
      f'{workdir}` evaluates what is saved'
    )
  files = sealed.open_file(
    workdir / 'report.json',
    f'remove it; `genrec train --workdir={workdir}` writes it again and trains '
    'no step twice',
  )
  report = files.read_json('report.json', metrics=dict)
  for name in {'metrics', 'last_epoch', 'baselines'} & report.keys():
    report[name] = _restore_numbers(report[name])
  if 'config' in report:  # shown as the training has shown it
    report['config'] = restore_tuples(report['config'])
  curves = []
  if (workdir / 'metrics.jsonl').exists():
    curves = read_jsonl(workdir / 'metrics.jsonl')
  else:
    LOG.warning('%s has no metrics.jsonl: the page has no curves', workdir)
  with job.fail_together('writing the report'):
    if job.is_leader():
      sections = [
        panel.draw(report[panel.name])
        for panel in panels
        if panel.draw and panel.name in report
      ]
      summary.write_report(workdir, report, curves, sections)
      print_result(summary.format_table(report))
      LOG.info('report: %s', workdir / 'report.html')
  return report


def _restore_numbers(tree):
  if isinstance(tree, dict):
    return {key: _restore_numbers(value) for key, value in tree.items()}
  return NON_FINITE.get(tree, tree) if isinstance(tree, str) else tree
