"""What histories of up to 16,384 events cost, all of them seen or a part.

  python -m benchmarks.long_histories
  python -m benchmarks.long_histories --histories 1024 4096

A generative ranker of three layers (four heads of 32 numbers) with fresh
weights and one user with 256 candidates:

  full         every token sees all that is before it, as published
  semi-local   it sees the 512 tokens before it and the 128 oldest
               (`model.window`, `model.prefix`)
  truncated    the last two of three layers see the latest 1,024 tokens alone
               (`model.truncated_layers`)
  both         the two together

and of each `pass_core_ms`, the scores of a request, `step_core_ms`, the scores
and the gradients of all weights, and `kept_core_ms`, the scores of a user whose
keys and values are kept (`serve.cached_scorer`). `of_full_x` is how many times
longer the pass of the full model takes. The least of some repeats is taken.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from benchmarks import cli, mfalcon
from genrec_jax.embedding.local_tables import SingleDeviceEvalRuntime
from genrec_jax.report import chart_files, charts
from genrec_jax.serve.cached_scorer import CachedScorer, CacheOptions

COLUMNS = (
  'case', 'pass_core_ms', 'step_core_ms', 'kept_core_ms', 'of_full_x',
  'step_of_full_x',
)  # fmt: skip
HISTORIES = (1024, 2048, 4096, 8192, 16384)
CANDIDATES = 256
WINDOW, PREFIX, LATEST = 512, 128, 1024
NOTES = (
  'The same sizes and fresh weights for all ways: what a model learns through '
  'a window is not measured here.',
)


def list_ways(scale: int = 1) -> dict[str, dict]:
  """Way -> fields of the model.

  >>> list_ways()['semi-local']
  {'window': 512, 'prefix': 128}

  Args:
    scale: by which the sizes are divided.
  """
  near = dict(window=WINDOW // scale, prefix=PREFIX // scale)
  latest = dict(truncated_layers=2, truncated_to=LATEST // scale)
  return {
    'full': {}, 'semi-local': near, 'truncated': latest, 'both': near | latest,
  }  # fmt: skip


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('long_histories', __doc__)
  parser.add_argument('--histories', nargs='+', type=int, default=HISTORIES)
  parser.add_argument('--ways', nargs='+', default=list(list_ways()))
  args = parser.parse_args(argv)
  if args.smoke:
    args.histories = (96,)
  rows = []
  for history in args.histories:
    for way in args.ways:
      rows.append(measure_way(way, history, args))
      print(cli.table(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
    cli.finish(args, 'long_histories', add_ratios(rows), COLUMNS, NOTES)


def measure_way(way: str, history: int, args) -> dict:
  """The row of one way and length."""
  fields = mfalcon.MODEL | list_ways(16 if args.smoke else 1)[way]
  fields |= mfalcon.SMOKE if args.smoke else {}
  if args.smoke:
    fields |= dict(blocks=3)
  count = 8 if args.smoke else CANDIDATES
  events, asked = mfalcon.draw_user(history, count)
  task, weights = mfalcon.make_task(history, count, args, 'stu', fields)
  runtime = SingleDeviceEvalRuntime()
  batch = mfalcon.make_batch(task, events, asked, count)

  def predict(params, weights, batch):
    reads = task.reads_for('predict', batch)
    _, rows = runtime.read_rows(task, weights, reads)
    return jax.nn.sigmoid(task.predict(params, rows, batch))

  score = jax.jit(predict)

  @jax.jit
  def step(params, weights, batch):
    return jax.grad(lambda p: jnp.sum(predict(p, weights, batch)))(params)

  arguments = weights['params'], weights, jax.tree.map(jnp.asarray, batch)
  row = {'case': f'{way}/{history}', 'way': way, 'history': history}
  for name, program in (('pass', score), ('step', step)):
    spent, _ = mfalcon.measure(
      lambda program=program: jax.block_until_ready(program(*arguments))
    )
    row[f'{name}_core_ms'] = 1e3 * spent
  row['kept_core_ms'] = 1e3 * measure_kept(task, weights, events, asked)
  return row


def measure_kept(task, weights, events, asked) -> float:
  """Core seconds of a request of a user whose history is kept."""
  scorer = mfalcon.make_scorer(task, weights)
  options = CacheOptions(device_bytes=1 << 30, micro_batch=CANDIDATES)
  cached = CachedScorer(scorer, options)
  request = mfalcon.make_request(events, asked)
  return mfalcon.measure(lambda: list(cached.score_requests(*request)))[0]


def add_ratios(rows: Sequence[Mapping]) -> list[dict]:
  """With what the full model costs over what each costs."""
  full = {row['history']: row for row in rows if row['way'] == 'full'}
  found = []
  for row in rows:
    base = full.get(row['history'])
    more = {}
    if base is not None and row is not base:
      more = {
        'of_full_x': base['pass_core_ms'] / row['pass_core_ms'],
        'step_of_full_x': base['step_core_ms'] / row['step_core_ms'],
      }
    found.append(dict(row) | more)
  return found


def draw(rows: Sequence[Mapping]) -> str:
  """The picture of docs/: cost against length."""
  panels = []
  for key, title in (
    ('pass_core_ms', 'core-ms of 256 scores'),
    ('step_core_ms', 'core-ms with gradients'),
    ('kept_core_ms', 'core-ms of 256 scores, history kept'),
  ):
    series = []
    for way in list_ways():
      points = sorted((r['history'], r[key]) for r in rows if r['way'] == way)
      if points:
        color = chart_files.pick_color(len(series))
        series.append(charts.Series(way, points, color))
    every = [point for one in series for point in one.points]
    panels.append(
      charts.Chart(
        title,
        chart_files.log_axis((x for x, _ in every), 'events of the history'),
        chart_files.log_axis(y for _, y in every),
        series,
      )
    )
  return chart_files.draw_file(panels)


if __name__ == '__main__':
  main()
