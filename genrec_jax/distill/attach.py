"""Puts a teacher's scores beside the examples of a Parquet file.

    python -m genrec_jax.distill.attach EXAMPLES OUT --scores DIR \\
        [--missing error|unannotated|wait]

EXAMPLES has a column example_id; OUT gets the columns of EXAMPLES, the scores
of the store DIR (teacher, of several labels teacher_LABEL) and teacher_weight,
as `distill` of a ranking config reads them. An example that the store lacks is
refused with `error`; with `unannotated` its weight is 0; `wait` looks again
until the store has it, for another process that is still writing.
"""

from genrec_jax import interruption

if __name__ == '__main__':  # other imports take the time of a Ctrl-C
  interruption.install()

import argparse
import logging
import pathlib
import time
from collections.abc import Callable, Sequence

import numpy as np

from genrec_jax import last_resort
from genrec_jax.data import scratch
from genrec_jax.data.parquet import pa, pq, read_whole
from genrec_jax.distill import score_columns
from genrec_jax.distill.teacher_store import TeacherStore

LOG = logging.getLogger('genrec_jax')
MISSING = ('error', 'unannotated', 'wait')
_POLL_S = 1.0


def attach_scores(
  table: pa.Table,
  store: TeacherStore,
  missing: str = 'error',
  column: str = 'teacher',
  wait: Callable[[], object] = lambda: time.sleep(_POLL_S),
) -> tuple[pa.Table, int]:
  """The examples with their scores, and how many have none.

  Args:
    table: with a column example_id.
    store: of the scores.
    missing: of `MISSING`, what is done about examples that the store lacks.
    column: name of the scores; of several labels COLUMN_LABEL. COLUMN_weight is
      1 where there are scores.
    wait: called between two looks into the store.

  Raises:
    ValueError: the store lacks an example, and that is an error; or the
      examples have no ids, or a column of one of these names.
  """
  if missing not in MISSING:
    raise ValueError(f'missing is {missing!r}, must be one of {MISSING}')
  if 'example_id' not in table.column_names:
    raise ValueError(
      'the examples have no column example_id; they have '
      f'{", ".join(table.column_names)}'
    )
  ids = table['example_id'].to_numpy()
  told = False
  while not (found := store.lookup(ids)).found.all() and missing == 'wait':
    if not told:
      LOG.warning(
        'waiting for the scores of %d of %d examples, as of example %d',
        np.sum(~found.found), len(ids), ids[np.argmin(found.found)],
      )  # fmt: skip
    told = True
    wait()
    store.refresh()
  lacking = int(np.sum(~found.found))
  if lacking and missing == 'error':
    first = ids[np.argmin(found.found)]
    raise ValueError(
      f'{lacking:,} of {len(ids):,} examples have no score, as example '
      f'{first}; with --missing unannotated they count as such, and with '
      '--missing wait it is waited for them'
    )
  labels = store.labels
  return append_scores(
    table, labels, found.values, found.found, column
  ), lacking


def append_scores(
  table: pa.Table,
  labels: Sequence[str],
  values: np.ndarray,
  known: np.ndarray,
  column: str = 'teacher',
) -> pa.Table:
  """The examples with scores at hand, and their weights.

  Args:
    table: of N examples.
    labels: names of the labels.
    values: `[N, L]` scores.
    known: `[N]` bool, which examples have some.
    column: as in `attach_scores`.
  """
  # The weight says that there is none; NaN would say it to every reader.
  values = np.where(known[:, None], values, 0.0).astype(np.float32)
  names = score_columns.name_columns(labels, column)
  columns = dict(zip(names, values.T, strict=True))
  columns[score_columns.name_weight(column)] = known.astype(np.float32)
  for name, content in columns.items():
    if name in table.column_names:
      raise ValueError(
        f'the examples have a column {name!r} already; choose another --column'
      )
    table = table.append_column(name, pa.array(content))
  return table


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  parser = argparse.ArgumentParser(
    prog='python -m genrec_jax.distill.attach',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('examples', help='a Parquet file')
  parser.add_argument('out', help='the Parquet file to write')
  parser.add_argument('--scores', required=True, help='directory of the store')
  parser.add_argument(
    '--missing', choices=MISSING, default='error',
    help='what is done about examples that the store lacks (error)',
  )  # fmt: skip
  parser.add_argument(
    '--column', default='teacher',
    help='of the scores in OUT; their weight is COLUMN_weight (teacher)',
  )  # fmt: skip
  args = parser.parse_args(argv)
  store = TeacherStore.open_existing(args.scores)
  table = read_whole(args.examples)
  table, lacking = attach_scores(table, store, args.missing, args.column)
  with scratch.replaced_file(pathlib.Path(args.out)) as partial:
    pq.write_table(table, partial)
  last_resort.print_result(
    f'{args.out}: {len(table):,} examples, {lacking:,} of them without a score'
  )
  return 0


if __name__ == '__main__':
  last_resort.run_command(main)
