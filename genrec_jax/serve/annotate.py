"""Annotates the examples of several students with the scores of one teacher.

    python -m genrec_jax.serve.annotate EVENTS OUT --teacher WORKDIR \\
        --window_s 3600 --attribution_s 1800 [--streams feed video] [--lag 0]

EVENTS has a directory for each stream, with impressions-00000k.parquet
(example_id, time, features) and labels-00000k.parquet (example_id, time, one
column for each label) for k = 0, 1, ...; a file EVENTS/END says that no more
will come. The service joins impressions with the labels that come within
--attribution_s seconds, window by window of --window_s seconds, and writes

    OUT/teacher/window-W.parquet  all examples of window W, each once
    OUT/STREAM/window-W.parquet   those of a stream, with the teacher's scores
                                  and their weight
    OUT/scores/                   the scores by example id

The teacher is a run on OUT/teacher (data.stream.directory) that leaves a
checkpoint behind each window (checkpoint.at_part_ends). Window W is scored by
the teacher as it was behind the window before it, or --lag windows earlier: it
has never been trained on an example that it scores, which is compared for every
window by times and ids. Each example is scored once, whatever the number of
streams that have it; where the teacher is not old enough, the weight is 0.

Memory holds the windows that wait for labels, and one unit of input: where the
teacher is slow, nothing is read. The service may be killed at any time and
started again with the same command; every example then is in its part exactly
once, and the parts are the same.
"""

from genrec_jax import interruption

if __name__ == '__main__':  # other imports take the time of a Ctrl-C
  interruption.install()
  interruption.keep(lambda: 'to go on, start it again')

import argparse
from collections.abc import Sequence

from genrec_jax import last_resort
from genrec_jax.serve.annotate_options import AnnotateOptions
from genrec_jax.serve.annotator import Annotator, describe_facts


def parse_options(argv: Sequence[str] | None = None) -> AnnotateOptions:
  """The options of a command line."""
  parser = argparse.ArgumentParser(
    prog='python -m genrec_jax.serve.annotate',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add('events', help='directory of the streams')
  add('out', help='directory of what is written')
  add('--teacher', required=True, help="workdir of the teacher's run")
  add('--window_s', type=int, required=True, help='seconds of a window')
  add(
    '--attribution_s', type=int, required=True,
    help='how many seconds after its impression a label counts',
  )  # fmt: skip
  add(
    '--streams', nargs='+', default=(), metavar='NAME',
    help='which directories of EVENTS are streams (all of them)',
  )  # fmt: skip
  add(
    '--labels', nargs='+', default=('label',), metavar='COLUMN',
    help='columns of the label events, 0 or 1 each (label)',
  )  # fmt: skip
  add(
    '--lag', type=int, default=0,
    help='windows that the teacher is older than it could be (0)',
  )  # fmt: skip
  add(
    '--column', default='teacher',
    help="what the column of the scores is called in students' parts; their "
    'weight is COLUMN_weight (teacher)',
  )  # fmt: skip
  add(
    '--late', choices=('wait', 'skip'), default='wait',
    help='what a window does whose teacher is late: wait for it, or go without '
    'scores, so that what comes out depends on how fast it was (wait)',
  )  # fmt: skip
  add('--poll', type=float, default=1.0, help='seconds between two looks (1)')
  add(
    '--most_lost', type=float, default=0.5, metavar='SHARE',
    help='of the labels that may be lost; with more the service ends (0.5)',
  )  # fmt: skip
  args = parser.parse_args(argv)
  return AnnotateOptions(
    args.events, args.out, args.teacher, args.window_s, args.attribution_s,
    tuple(args.streams), tuple(args.labels), args.lag, args.column,
    args.late == 'wait', args.poll, args.most_lost,
  )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the service; returns the exit status."""
  # A kill loses nothing, so that signals need not wait.
  service = Annotator(parse_options(argv), log=last_resort.print_result)
  last_resort.print_result(describe_facts(service.run()))
  return 0


if __name__ == '__main__':
  last_resort.run_command(main)
