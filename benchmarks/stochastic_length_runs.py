"""The trainings of benchmarks/stochastic_length.py: what does a cut cost?

128 users of the generated stream, histories of the latest 2,048 events. The
runs of a seed differ in alpha alone: they see the same requests in the same
order and begin with the same weights, so that they are compared seed by seed.
Evaluation reads whole histories.
"""

import argparse
import pathlib
from collections.abc import Sequence

from benchmarks import gr_runs, runs

NAME = 'stochastic_length_train'  # of the result file
ALPHAS = (0.0, 1.6, 1.8, 2.0)  # 0 is without stochastic length
SETTINGS = (
  *gr_runs.TEST, 'data.streaming.users=128', 'data.max_history=2048',
)  # fmt: skip
CASES = {
  f'alpha_{alpha:g}' if alpha else 'whole': gr_runs.Case(
    'configs/gr_streaming.py:stu',
    (*SETTINGS, f'data.stochastic_length.alpha={alpha}'),
    3,
    f'alpha {alpha}' if alpha else 'whole histories',
  )
  for alpha in ALPHAS
}
WHOLE = 'whole'  # the case that the others are compared with
PAIRED = ('ne', 'auc', 'test_ne', 'test_auc')
# What the paper says: what a cut costs at most, and what it then saves.
PAPER = {
  'case': 'paper',
  'kind': 'published',
  'name': 'the paper, of its own data',
  'ne_gain_text': '.002 at most',
  'saved_text': '64 to 84 %',
}
COLUMNS = (
  'case', 'seeds', 'tokens', 'saved', 'train_core_s', 'ne', 'ne_gain',
  'ne_gain_std', 'auc_gain', 'test_ne_gain', 'test_ne_gain_std',
  'test_auc_gain', 'as_whole',
)  # fmt: skip
NOTES = (
  *gr_runs.STREAM_NOTES,
  '*_gain: of a run minus that of the run with whole histories and the same '
  'seed; mean and deviation (n - 1) of these differences over seeds.',
  'saved: share of the tokens that are not trained on. Context and candidates, '
  'which are never cut, are among the tokens.',
  'as_whole: whether every seed has as many tokens, and in each step the same '
  'NE and AUC to five digits, as with whole histories.',
  'paper: as it says, of its own data, tasks and length of training.',
)


def train(args: argparse.Namespace) -> None:
  """Trains all cases, see `gr_runs.sweep`."""
  gr_runs.sweep(
    args,
    NAME,
    CASES,
    measure=lambda case, workdir: {
      'alpha': runs.read_report(workdir)['config']['data']['stochastic_length'][
        'alpha'
      ],
      **gr_runs.measure_stream(pathlib.Path(workdir)),
    },
    report=lambda rows: [*compare_seeds(rows), PAPER],
    columns=COLUMNS,
    notes=NOTES,
    overrides=gr_runs.SMOKE if args.smoke else (),
  )


def compare_seeds(rows: Sequence[dict]) -> list[dict]:
  """Means over seeds, with the differences from whole histories."""
  whole = {r['seed']: r for r in rows if r['model'] == WHOLE}
  means = gr_runs.average_seeds(rows, same=('name', 'alpha', 'stream_steps'))
  for mean in means:
    pairs = [
      (row, whole[row['seed']])
      for row in rows
      if row['model'] == mean['model'] != WHOLE and row['seed'] in whole
    ]
    if not pairs:
      continue
    mean['pairs'] = len(pairs)
    mean['as_whole'] = (
      'yes'
      if all(a[k] == b[k] for a, b in pairs for k in ('tokens', 'by_step'))
      else 'no'
    )
    for key in PAIRED:
      gains = [row[key] - base[key] for row, base in pairs]
      mean |= runs.over_seeds(f'{key}_gain', gains)
    for key, sign in (('tokens', 'saved'), ('train_core_s', 'saved_core')):
      shares = [1 - row[key] / base[key] for row, base in pairs]
      mean |= runs.over_seeds(sign, shares)
    mean['ne_gain_text'] = f'{mean["ne_gain"]:+.4f}'
    mean['saved_text'] = f'{mean["saved"]:.1%}'
  return means
