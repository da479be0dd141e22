"""`--mode=report`: the page of a run, made anew of what its workdir holds."""

import logging
import os
import pathlib
from collections.abc import Sequence

from genrec_jax.contracts import Panel
from genrec_jax.last_resort import print_result
from genrec_jax.parallel import job
from genrec_jax.report import summary

LOG = logging.getLogger('genrec_jax')


def rewrite_page(
  workdir: str | os.PathLike, panels: Sequence[Panel] = ()
) -> None:
  """Writes report.html as `summary.rebuild_report` does; prints the table.

  Nothing is trained or evaluated, and the data are not read.
  """
  with job.fail_together('writing the report'):
    if job.is_leader():
      report = summary.rebuild_report(workdir, panels)
      print_result(summary.format_table(report))
      LOG.info('report: %s', pathlib.Path(workdir) / 'report.html')
