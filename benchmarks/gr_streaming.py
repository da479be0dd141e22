"""Models on the generated stream: each step is evaluated, then learned from.

  python -m benchmarks.gr_streaming --runs DIR
  python -m benchmarks.gr_streaming --runs DIR --only stu/seed0 dlrm/seed0
  python -m benchmarks.gr_streaming --runs DIR --finished

400 users and 200 items for each of them, histories of the latest 1,024 events,
all 100 steps. The ranking models see the same features: the vectors of item,
category and user, and histories pooled for each action. A run that has ended is
not repeated, one that was stopped goes on, and each finished row is written at
once. `--finished` reads the runs that have ended and trains nothing. Beside the
rows stand what predictors reach that know the stream (`gr_stream_ceilings`).
"""

import pathlib

from benchmarks import gr_runs, runs

CONFIG = 'configs/gr_streaming.py'
MANY = 'data.streaming.users=2000'
SHORT = 'data.max_history=256'
# Case -> what is otherwise than in the recipe.
PARTS = (
  ('product', 'model.head_inputs=product', 'head of the product alone'),
  ('own_keys', 'model.tied_start=False', 'keys with a start of their own'),
  ('apart', 'model.joint_content=False', 'id and category apart'),
  ('scaled', 'model.token_scale=None', 'tokens times sqrt(dim)'),
  ('latest', 'optimizer.average=0', 'weights of the last step'),
  ('rows', 'optimizer.rows.eps=1e-8', 'rows with eps 1e-8'),
)
CASES = {
  case: gr_runs.Case(f'{CONFIG}:{variant}', (*gr_runs.TEST, *more), seeds, name)
  for case, variant, more, seeds, name in (
    ('stu', 'stu', (), 3, 'STU, actions summed'),
    ('dlrm', 'dlrm', (), 3, 'DLRM, pooled history'),
    ('wukong', 'wukong', (), 3, 'Wukong, pooled history'),
    ('stu_interleaved', 'stu,interleaved', (), 1, 'STU, interleaved'),
    ('stu_no_actions', 'stu,no_actions', (), 1, 'STU, no actions'),
    (
      'stu_stochastic', 'stu,stochastic', (), 1,
      'STU, stochastic length (alpha 1.8)',
    ),
    ('stu_2000', 'stu', (MANY,), 1, 'STU, actions summed, 2,000 users'),
    ('dlrm_2000', 'dlrm', (MANY,), 1, 'DLRM, 2,000 users'),
    ('wukong_2000', 'wukong', (MANY,), 1, 'Wukong, 2,000 users'),
    # What each part of the recipe is worth, at a quarter of the cost.
    ('short', 'stu', (SHORT,), 1, 'STU, 256 events'),
    *(
      (f'short_{case}', 'stu', (SHORT, override), 1, f'STU, 256 events, {name}')
      for case, override, name in PARTS
    ),
  )
}  # fmt: skip
COLUMNS = (
  'case', 'seeds', 'ne', 'ne_std', 'auc', 'auc_std', 'test_ne', 'test_ne_std',
  'test_auc', 'test_auc_std', 'tokens', 'train_core_s',
)  # fmt: skip


def main(argv: list[str] | None = None) -> None:
  args = gr_runs.make_parser('gr_streaming', __doc__).parse_args(argv)
  gr_runs.sweep(
    args,
    'gr_streaming',
    CASES,
    measure=measure_run,
    report=lambda rows: gr_runs.average_seeds(
      rows, same=('name', 'users', 'stream_steps')
    ),
    columns=COLUMNS,
    notes=gr_runs.STREAM_NOTES,
    overrides=gr_runs.SMOKE if args.smoke else (),
  )


def measure_run(case: str, workdir: pathlib.Path) -> dict:
  """What only the rows of this sweep have."""
  del case
  config = runs.read_report(workdir)['config']
  users = config['data']['streaming']['users']
  return {'users': users, **gr_runs.measure_stream(workdir)}


if __name__ == '__main__':
  main()
