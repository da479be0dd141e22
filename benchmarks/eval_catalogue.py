"""What ranking the whole catalogue costs, beside a training epoch.

  python -m benchmarks.eval_catalogue
  python -m benchmarks.eval_catalogue --models hstu --repeats 5

6,040 users x 3,883 items of the ML-1M shape, items of the history filtered
out. `history` filters all earlier items of a user, `window` those among the 200
tokens, as the HSTU protocol does. Fresh weights: weights do not change the
cost. The epoch is measured in the same run; compilation is apart for both.
"""

import os
import pathlib
import tempfile

import jax
import numpy as np

from benchmarks import cli, ml1m_shape, timing
from benchmarks.train_step import peer_best
from genrec_jax.data import pipeline
from genrec_jax.embedding import lookup
from genrec_jax.embedding.local_tables import SingleDeviceEvalRuntime
from genrec_jax.features import EVENTS
from genrec_jax.runtime.step import make_step
from genrec_jax.tasks import catalogue

MODELS = ('hstu', 'sasrec')
FILTERS = ('window', 'history')
COLUMNS = (
  'case', 'users', 'items', 'core_s', 'min_core_s', 'wall_s', 'encode_core_s',
  'rank_core_s', 'batches_core_s', 'compile_core_s', 'epoch_core_s',
  'eval_of_epoch_x', 'rank_bytes', 'users_x_items_bytes', 'peer_core_s',
  'peer_x',
)  # fmt: skip
TARGET = 6.0  # core-seconds


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('eval_catalogue', __doc__)
  parser.add_argument('--models', nargs='+', choices=MODELS, default=MODELS)
  parser.add_argument('--filters', nargs='+', choices=FILTERS, default=FILTERS)
  parser.add_argument('--repeats', type=int, default=3, help='evaluations (3)')
  args = parser.parse_args(argv)
  if args.smoke:
    args.repeats = 1
  rows = []
  with tempfile.TemporaryDirectory() as workdir:
    for name in args.models:
      config, experiment, source = ml1m_shape.experiment(
        name, pathlib.Path(workdir), smoke=args.smoke
      )
      state = experiment.runtime.fresh_state()
      epoch = train_epoch(config, experiment)
      for filter_seen in args.filters:
        with config.unlocked():
          config.eval.filter_seen = filter_seen
        row = {
          'case': f'{name}/{filter_seen}',
          'model': name,
          'filter': filter_seen,
          'data': source,
          'load_1min': os.getloadavg()[0],
          **evaluation(config, experiment, state, args.repeats),
          **epoch,
        }
        row['eval_of_epoch_x'] = row['core_s'] / row['epoch_core_s']
        peer = peer_best('evaluation', name)
        if peer and not args.smoke:
          row['peer_core_s'], row['peer_x'] = peer, peer / row['core_s']
        rows.append(row)
  notes = [
    f'Target: below {TARGET:g} core-seconds, and below the training epoch.',
    'core_s is the median of whole evaluations (batches, encoding, ranking, '
    'metrics); encode, rank and batches were measured one by one.',
    'rank_bytes is what the compiled ranking of one batch holds at its peak, '
    'by the compiler; users_x_items_bytes is what it never holds.',
    'peer_core_s is the least evaluation of the published PyTorch code, '
    'allocator tuned, on the same machine (for its load see the rows there).',
  ]
  cli.finish(args, 'eval_catalogue', rows, COLUMNS, notes)


def evaluation(config, experiment, state, repeats: int) -> dict:
  """Costs of evaluating the test split, whole and by what is done."""
  task, examples = experiment.task, experiment.data.splits['test']
  evaluator = experiment.data.evaluator(
    task, 'test', config.eval, SingleDeviceEvalRuntime()
  )

  def run():
    return dict(evaluator.run(state))

  _, first = timing.measure(run)
  whole = timing.summary([timing.measure(run)[1] for _ in range(repeats)])
  history = config.eval.filter_seen == 'history'
  batches, making = timing.measure(
    lambda: list(
      pipeline.eval_batches(
        experiment.data.dataset.histories,
        examples,
        batch_size=config.eval.batch_size,
        capacity=max(config.eval.batch_tokens, config.model.max_len),
        max_len=config.model.max_len,
        seen='history' if history else 'window',
      )
    )
  )

  def encode(params, tables, batch):
    rows = lookup.view_tables(tables, task.reads_for('predict', batch))
    return task.predict(params, rows, batch)

  def rank(queries, vectors, corpus, batch):
    return catalogue.target_ranks(
      queries,
      vectors,
      corpus,
      batch,
      filter_seen=config.eval.filter_seen,
      item_chunk=config.eval.item_chunk,
    )

  calls = [(state.params, state.tables, batch) for batch in batches]
  call, _ = timing.ahead(encode, calls)
  queries, encoding = timing.measure(lambda: [call(*c) for c in calls])
  corpus = jax.device_put(task.corpus)

  @jax.jit
  def item_vectors(tables):
    reads = task.reads_for('items', corpus)
    return task.vectors(lookup.view_tables(tables, reads))

  fixed = item_vectors(state.tables), corpus
  calls = [(q, *fixed, b) for q, b in zip(queries, batches, strict=True)]
  call, _ = timing.ahead(rank, calls)
  _, ranking = timing.measure(lambda: [call(*c) for c in calls])
  memory = jax.jit(rank).lower(*calls[0]).compile().memory_analysis()
  users, items = len(examples), len(task.corpus)
  return {
    'users': users,
    'items': items,
    'tokens': sum(int(b.jagged[EVENTS].lengths.sum()) for b in batches),
    **whole,
    'encode_core_s': encoding.core_s,
    'rank_core_s': ranking.core_s,
    'batches_core_s': making.core_s,
    'compile_core_s': max(0.0, first.core_s - whole['core_s']),
    'compile_wall_s': max(0.0, first.wall_s - whole['wall_s']),
    'rank_bytes': memory.temp_size_in_bytes,
    'users_x_items_bytes': users * items * 4,
  }


def train_epoch(config, experiment) -> dict:
  """Cost of one training epoch, its batches included, compiled beforehand."""
  steps = pipeline.steps_per_epoch(
    experiment.data.splits['train'], config.train.batch_size
  )
  stream = iter(experiment.train_batches(config))
  batches, making = timing.measure(lambda: [next(stream) for _ in range(steps)])
  state = experiment.runtime.fresh_state()
  call, _ = timing.ahead(
    make_step(experiment.task, experiment.tx, seed=config.seed),
    [(state, batch) for batch in batches],
    donate_argnums=0,
  )
  timers = []
  for batch in batches:
    (state, _), timer = timing.measure(call, state, batch)
    timers.append(timer)
  return {
    'epoch_steps': steps,
    'epoch_core_s': float(making.core_s + np.sum([t.core_s for t in timers])),
    'epoch_wall_s': float(making.wall_s + np.sum([t.wall_s for t in timers])),
  }


if __name__ == '__main__':
  main()
