"""Does a generative ranker get better by more compute, and how fast?

  python -m benchmarks.gr_scaling --runs DIR
  python -m benchmarks.gr_scaling --runs DIR --budget 2.5

STU in four sizes learns from one pass over the generated stream, 400 users with
histories of the latest 256 events. All sizes have the same requests, batches
and rates. The compute C of a run is counted (`gr_flops`); NE = a - b ln C is
fitted to all runs by least squares. `--budget` bounds the core-hours of all
runs together: a run that would exceed it is not begun.
`python -m benchmarks.pictures` draws the rows.
"""

import math
import pathlib
from collections.abc import Sequence

from scipy import stats

from benchmarks import gr_flops, gr_runs, runs
from genrec_jax import config as config_lib
from genrec_jax.data.requests import prepared
from genrec_jax.report import chart_files, charts
from genrec_jax.report.axes import linear_axis

# Width, layers, heads.
SIZES = ((16, 1, 1), (32, 2, 2), (64, 2, 2), (128, 3, 4))
BUDGET = 4.0  # core-hours
SETTINGS = (*gr_runs.TEST, 'data.max_history=256')
PAPER_A, PAPER_B = 0.549, 0.0053  # NE = a - b ln C, C in PetaFLOP a day
COLUMNS = (
  'case', 'seeds', 'pflop', 'ne', 'ne_std', 'auc', 'auc_std', 'test_ne',
  'test_ne_std', 'test_auc', 'dense', 'train_core_s', 'b', 'b_error', 'a',
  'r2', 'decades',
)  # fmt: skip
NOTES = (
  *gr_runs.STREAM_NOTES,
  'pflop: 6e-15 x multiply-accumulates of the training steps, attention by '
  'pairs of tokens that see each other, no padding, no evaluation.',
  'dense: parameters without those of tables.',
  'b, a: of NE = a - b ln C, C in PFLOP of a run, by least squares over all '
  'runs; b_error is the standard error of b. The a of the paper is of another '
  'unit of C, which b does not depend on.',
)


def _case(size: tuple[int, int, int]) -> gr_runs.Case:
  dim, blocks, heads = size
  head = dim // heads
  sizes = dict(dim=dim, blocks=blocks, heads=heads, dqk=head, dv=head)
  sizes |= dict(token_hidden=2 * dim, head_hidden=2 * dim)
  overrides = (f'model.{key}={value}' for key, value in sizes.items())
  layers = f'{blocks} layer{"s" * (blocks > 1)}'
  return gr_runs.Case(
    'configs/gr_streaming.py:stu',
    (*SETTINGS, *overrides),
    3,
    f'width {dim}, {layers}, {heads} head{"s" * (heads > 1)}',
  )


CASES = {f'dim{size[0]}': _case(size) for size in SIZES}


def main(argv: list[str] | None = None) -> None:
  parser = gr_runs.make_parser('gr_scaling', __doc__)
  parser.add_argument(
    '--budget', type=float, default=BUDGET, help='core-hours of all runs'
  )
  args = parser.parse_args(argv)
  cache = pathlib.Path(args.runs).resolve() / 'requests'
  overrides = [f'data.cache={cache}', *(gr_runs.SMOKE if args.smoke else ())]
  cost = count_compute(overrides, cache)

  def may_start(case: str, rows: list[dict]) -> bool:
    spent = sum(row['core_s'] for row in rows)
    needed = expect_cost(case, rows, cost)
    if fits := spent + needed <= 3600 * args.budget:
      return True
    print(
      f'{case}: not begun, {spent:,.0f} core-seconds are spent, it may need '
      f'{needed:,.0f}, and the budget has {3600 * args.budget:,.0f}'
    )
    return fits

  gr_runs.sweep(
    args,
    'gr_scaling',
    CASES,
    measure=lambda case, workdir: {
      'pflop': cost[case],
      'dense': runs.read_report(workdir)['parameters']['model'],
      **gr_runs.measure_stream(workdir),
    },
    report=report,
    columns=COLUMNS,
    notes=NOTES,
    overrides=overrides,
    may_start=may_start,
  )


def count_compute(
  overrides: Sequence[str], cache: pathlib.Path
) -> dict[str, float]:
  """PFLOP of a run of each size."""
  found = {}
  for name, case in CASES.items():
    config = config_lib.load(case.config, [*case.overrides, *overrides])
    dataset = prepared.load(config.data, cache)
    found[name] = 1e-15 * gr_flops.count_training(config, dataset)
  return found


def expect_cost(case: str, rows: list[dict], cost: dict[str, float]) -> float:
  """Core-seconds of a run: those of another seed, or by its operations.

  Operations of small models are dearer, so that a larger one is expected to
  need rather more than it will.
  """
  if same := [row['core_s'] for row in rows if row['model'] == case]:
    return max(same)
  if not rows:
    return 0.0
  nearest = max(rows, key=lambda row: row['pflop'])
  return nearest['core_s'] * max(1.0, cost[case] / nearest['pflop'])


def report(rows: list[dict]) -> list[dict]:
  """Means over seeds, the fits, and the paper's."""
  means = gr_runs.average_seeds(
    rows, same=('name', 'stream_steps', 'pflop', 'dense')
  )
  means.sort(key=lambda mean: mean['pflop'])
  if len(means) < 3:
    return means
  fits = [
    fit(rows, 'ne', 'last 16 steps of training'),
    fit(rows, 'test_ne', 'test'),
  ]
  published = {
    'case': 'fit/paper', 'kind': 'fit', 'name': 'the paper, of its own data',
    'a': PAPER_A, 'b': PAPER_B,
  }  # fmt: skip
  return [*means, *fits, published]


def fit(rows: Sequence[dict], key: str, name: str) -> dict:
  """NE = a - b ln C of all runs, with the standard error of b."""
  x = [math.log(row['pflop']) for row in rows]
  found = stats.linregress(x, [row[key] for row in rows])
  return {
    'case': f'fit/{key}',
    'kind': 'fit',
    'name': name,
    'runs': len(rows),
    'a': float(found.intercept),
    'b': -float(found.slope),
    'b_error': float(found.stderr),
    'r2': float(found.rvalue) ** 2,
    'decades': (max(x) - min(x)) / math.log(10),
  }


def draw(rows: list[dict]) -> str:
  """Returns the picture: NE against compute, with the fit and its slope."""
  means = [row for row in rows if row['kind'] == 'mean']
  fits = {row['case']: row for row in rows if row['kind'] == 'fit'}
  panels = []
  for key, title in (
    ('ne', 'NE, last 16 steps of training'),
    ('test_ne', 'NE, test'),
  ):
    color = chart_files.pick_color(0)
    points = [(row['pflop'], row[key]) for row in means]
    band = [
      (row['pflop'], row[key] - s, row[key] + s)
      for row in means
      for s in [row.get(f'{key}_std', 0.0)]
    ]
    series = [charts.Series('mean of seeds', points, color, band=band)]
    ends = [min(x for x, _ in points), max(x for x, _ in points)]
    heights = [y for _, low, high in band for y in (low, high)]
    if found := fits.get(f'fit/{key}'):
      line = [(x, found['a'] - found['b'] * math.log(x)) for x in ends]
      name = f'a − {found["b"]:.4f} ln C'
      series.append(
        charts.Series(name, line, chart_files.pick_color(1), 'dashes')
      )
      # The paper's slope through the middle of the fit.
      middle = math.log(ends[0] * ends[1]) / 2
      level = found['a'] - found['b'] * middle
      paper = [(x, level - PAPER_B * (math.log(x) - middle)) for x in ends]
      name = f"the paper's slope, {PAPER_B}"
      series.append(charts.Series(name, paper, 'muted', 'dashes'))
      heights += [y for _, y in [*line, *paper]]
    room = 0.05 * (max(heights) - min(heights))
    x = chart_files.log_axis(ends, 'PFLOP of the training, C')
    y = linear_axis(min(heights) - room, max(heights) + room)
    panels.append(charts.Chart(title, x, y, series))
  return chart_files.draw_file(panels)


if __name__ == '__main__':
  main()
