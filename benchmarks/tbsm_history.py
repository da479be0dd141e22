"""What TBSM looks at: the history of a user, and the space of each head.

  python -m benchmarks.tbsm_history --runs DIR

Trains `tbsm_synthetic` with four heads, and reads of the first test user with a
full history what weight each head gives to each event, for one candidate that
was clicked. `of_kind` is the mean weight over all events of the test split with
a property, over that of those without it: events of the candidate's category,
and of these the ones of the last day and those whose age is near whole days,
which is what the stream rewards. `share` are eigenvalues of A^t A over their
sum. What has been trained stays in DIR.
"""

import json
import pathlib
from collections.abc import Mapping

import numpy as np

from benchmarks import cli, runs
from genrec_jax.data.ranking import interests, raw
from genrec_jax.report import chart_files, charts
from genrec_jax.report.axes import linear_axis
from genrec_jax.serve.scorer import Scorer

COLUMNS = (
  'case', 'head', 'same_category_x', 'last_day_x', 'whole_days_x', 'logloss',
  'auc', 'core_s',
)  # fmt: skip
HEADS = 4
MOST_ROWS = 20_000  # of the test split
NOTES = (
  'Weights are those of the MLP over products, between 0 and 1.',
  'x: mean weight of events with a property over that of those without it.',
)


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('tbsm_history', __doc__)
  parser.add_argument('--runs', required=True, help='directory of the run')
  args = parser.parse_args(argv)
  config = 'configs/tbsm_synthetic.py' + ':smoke' * args.smoke
  workdir = pathlib.Path(args.runs) / f'tbsm_history{"_smoke" * args.smoke}'
  report = runs.train_once(config, workdir, [f'model.heads={HEADS}'])
  log = read_log(workdir)
  events = read_events(log, 500 if args.smoke else MOST_ROWS)
  weights = Scorer.load(workdir).weigh_events(events)
  rows = [
    {
      'case': f'head {i}',
      'kind': 'head',
      'head': i,
      **measure_head(weights[:, i], events, log),
      'share': find_spectrum(workdir, i),
    }
    for i in range(HEADS)
  ]
  rows.append(show_history(weights, events))
  found = report['metrics']['test']
  about = {key: found[key] for key in ('logloss', 'auc')}
  about['core_s'] = report['train_core_s']
  rows.append({'case': 'run', 'kind': 'run', **about})
  cli.finish(args, 'tbsm_history', rows, COLUMNS, NOTES)


def read_log(workdir: pathlib.Path) -> interests.InterestLog:
  """The stream of a run."""
  config = json.loads((workdir / 'config.json').read_text())
  return interests.InterestLog(**config['data']['interests'])


def read_events(log: interests.InterestLog, most: int) -> dict[str, list]:
  """Rows of the test split as columns, `most` of them."""
  wanted = [
    'user', 'item', 'category', 'history_item', 'history_category',
    'history_age', 'label',
  ]  # fmt: skip
  columns: dict[str, list] = {name: [] for name in wanted}
  for chunk in interests.read_chunks(log, wanted, 'test'):
    for name in wanted:
      columns[name] += list_cells(chunk.columns[name])
    if len(columns['label']) >= most:
      break
  return {name: cells[:most] for name, cells in columns.items()}


def list_cells(column: raw.Column) -> list:
  """The cells of a column; lists of those that hold lists."""
  if isinstance(column, raw.ListColumn):
    values = list_cells(column.values)
    ends = np.cumsum(column.lengths)
    return [
      values[end - size : end]
      for end, size in zip(ends.tolist(), column.lengths.tolist(), strict=True)
    ]
  if isinstance(column, raw.NumberColumn):
    return column.values.tolist()
  return list(column)


def measure_head(
  weights: np.ndarray, events: Mapping[str, list], log: interests.InterestLog
) -> dict[str, float]:
  """What kinds of events a head weighs more than others.

  Args:
    weights: `[N, T]` of the head.
    events: columns of the rows.
    log: of the stream.
  """
  most = weights.shape[1]
  same, ages, there = (np.zeros((len(weights), most)) for _ in range(3))
  for i, categories in enumerate(events['history_category']):
    size = min(len(categories), most)
    if size:
      own = np.array(categories[-size:]) == events['category'][i]
      same[i, -size:], there[i, -size:] = own, 1
      ages[i, -size:] = events['history_age'][i][-size:]
  turns = ages / log.period_s
  near = np.abs(turns - np.rint(turns)) <= log.period_width
  kinds = {
    'same_category_x': (same > 0, there > 0),
    'last_day_x': ((same > 0) & (ages < 86_400), same > 0),
    'whole_days_x': ((same > 0) & near & (np.rint(turns) > 0), same > 0),
  }
  found = {}
  for name, (kind, among) in kinds.items():
    others = weights[among & ~kind]
    if kind.any() and len(others) and others.mean():
      found[name] = float(weights[kind].mean() / others.mean())
  return found


def find_spectrum(workdir: pathlib.Path, head: int) -> list[float]:
  """Eigenvalues of A^t A, the largest first, over their sum."""
  params = Scorer.load(workdir)._weights['params']
  a = np.asarray(params[f'head_{head}']['matrix'], np.float64)
  values = np.linalg.eigvalsh(a.T @ a)[::-1]
  return [float(x) for x in values / values.sum()]


def show_history(weights: np.ndarray, events: Mapping[str, list]) -> dict:
  """The first clicked row with a full history, event by event."""
  most = weights.shape[2]
  at = next(
    i
    for i, categories in enumerate(events['history_category'])
    if len(categories) == most and int(events['label'][i]) == 1
    and 1 < sum(c == events['category'][i] for c in categories) < most
  )  # fmt: skip
  return {
    'case': 'history',
    'kind': 'history',
    'category': events['category'][at],
    'categories': list(events['history_category'][at]),
    'days': [float(x) / 86_400 for x in events['history_age'][at]],
    'weights': weights[at].tolist(),
  }


def draw(rows: list[Mapping]) -> str:
  """Returns the picture: one history, and the spectra of all heads."""
  shown = next(row for row in rows if row['kind'] == 'history')
  heads = [row for row in rows if row['kind'] == 'head']
  most = len(shown['categories'])
  places = range(-most + 1, 1)
  series = [
    charts.Series(
      f'head {i}', [*zip(places, own, strict=True)], chart_files.pick_color(i)
    )
    for i, own in enumerate(shown['weights'])
  ]
  marks = [
    charts.reference_mark('' if n else 'of its category', place, 'muted')
    for n, place in enumerate(
      p
      for p, category in zip(places, shown['categories'], strict=True)
      if category == shown['category']
    )
  ]
  top = max(max(own) for own in shown['weights'])
  spectra = [
    charts.Series(
      f'head {row["head"]}',
      [(i + 1, x) for i, x in enumerate(row['share'])],
      chart_files.pick_color(row['head']),
    )
    for row in heads
  ]
  return chart_files.draw_file(
    [
      charts.Chart(
        'Weights of the events of one history, for one candidate',
        linear_axis(-most + 0.5, 0.5, 'event, 0 is the latest', whole=True),
        linear_axis(0, 1.05 * top),
        [*marks, *series],
      ),
      charts.Chart(
        'Eigenvalues of AᵀA of each head, shares',
        linear_axis(0.5, len(heads[0]['share']) + 0.5, 'number', whole=True),
        linear_axis(0, 1.05 * max(row['share'][0] for row in heads)),
        spectra,
      ),
    ]
  )


if __name__ == '__main__':
  main()
