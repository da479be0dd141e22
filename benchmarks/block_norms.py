"""What does a batch norm lose by the statistics of blocks?

  python -m benchmarks.block_norms --data DIR/frappe --runs DIR

With `parallel.determinism=mesh_invariant` the batch is processed in blocks, so
that losses and weights do not depend on the mesh, and a batch norm normalises
each block by its own statistics. DCN-V2 and DNN, which have batch norms, learn
Frappe from batches of 4,096 examples as a whole, in 8 blocks of 512 and in 64
blocks of 64. The epoch is chosen by validation AUC alone.
"""

import pathlib

from benchmarks import gr_runs, runs
from benchmarks.frappe import NAMES, REBUILT

BLOCKS = 1, 8, 64
MEASURED = 'auc', 'logloss', 'train_core_s'
COLUMNS = (
  'case', 'seeds', 'auc', 'auc_std', 'logloss', 'logloss_std', 'train_core_s'
)  # fmt: skip
NOTES = (REBUILT, 'std is over seeds, with n - 1.')
SMOKE = ('data.clicks.rows=1100', 'train.steps=8')


def _case(model: str, blocks: int, more: tuple[str, ...]) -> gr_runs.Case:
  overrides = ()
  name = f'{NAMES[model]}, whole batches'
  if blocks > 1:
    overrides = (
      'parallel.determinism=mesh_invariant',
      f'parallel.reduction_blocks={blocks}',
    )
    name = f'{NAMES[model]}, {blocks} blocks of {4096 // blocks}'
  config = f'configs/frappe.py:{model}'
  return gr_runs.Case(config, (*more, *overrides), 3, name)


def main(argv: list[str] | None = None) -> None:
  parser = gr_runs.make_parser('block_norms', __doc__)
  parser.add_argument('--data', help='directory of the CSVs')
  parser.add_argument('--train-file', help='of --data, if not the usual one')
  args = parser.parse_args(argv)
  more = ()
  if args.data:
    more += (f'data.path={pathlib.Path(args.data).resolve()}',)
  elif not args.smoke:
    parser.error('--data DIR is needed, with the files of Frappe')
  if args.train_file:
    more += (f'data.files.train={args.train_file}',)
  cases = {
    f'{model}/{blocks}': _case(model, blocks, more)
    for model in ('dcn', 'dnn')
    for blocks in BLOCKS
  }
  if args.smoke:
    cases = {
      name: case._replace(config=f'{case.config},smoke')
      for name, case in cases.items()
    }
  gr_runs.sweep(
    args,
    'block_norms',
    cases,
    measure=lambda case, workdir: {
      'blocks': int(case.rpartition('/')[2]),
      **measure_test(workdir),
    },
    report=lambda rows: gr_runs.average_seeds(
      rows, MEASURED, ('name', 'blocks')
    ),
    columns=COLUMNS,
    notes=NOTES,
    overrides=SMOKE if args.smoke else (),
  )


def measure_test(workdir: pathlib.Path) -> dict:
  """The metrics of the epoch that validation chose."""
  test = runs.read_report(workdir)['metrics']['test']
  return {key: test[key] for key in ('auc', 'logloss')}


if __name__ == '__main__':
  main()
