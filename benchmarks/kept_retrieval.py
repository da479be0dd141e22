"""What a question of a user costs whose history was encoded before.

  python -m benchmarks.kept_retrieval
  python -m benchmarks.kept_retrieval --histories 512 2048

HSTU (eight layers, two heads of 32 numbers, both biases) with fresh weights
ranks 50,000 items for one user, in the ways

  anew      `Predictor.recommend`, which encodes the whole history
  first     `CachedPredictor`, of a user of whom nothing is known
  appended  the same with one event more than it knows
  again     the same question at another time
  search    ranking the items alone, which all of them contain

`core_ms` is processor time of a question, `of_anew_x` how many times longer
encoding anew takes, and `encoding_of_anew_x` the same without the search. The
least of some repeats is taken: other work on the machine only adds.
"""

import functools

import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks import cli, mfalcon
from genrec_jax import config as config_lib
from genrec_jax.data.items import ItemCatalogue
from genrec_jax.data.vocab import Vocab
from genrec_jax.serve.cached_predictor import CachedPredictor
from genrec_jax.serve.keep_options import KeepOptions
from genrec_jax.serve.predictor import Predictor
from genrec_jax.serve.weights import Weights
from genrec_jax.tasks.retrieval import Retrieval

COLUMNS = (
  'case', 'core_ms', 'of_anew_x', 'encoding_of_anew_x', 'kept_mb',
  'users_per_gb',
)  # fmt: skip
HISTORIES = (200, 512, 2048)
ITEMS = 50_000
MODEL = dict(dim=64, blocks=8, heads=2, dqk=32, dv=32)
SMOKE = dict(dim=8, blocks=2, heads=1, dqk=4, dv=4)
NOTES = (
  'Fresh weights: what is measured depends on sizes alone.',
  'kept_mb: keys and values of the user in float32.',
)


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('kept_retrieval', __doc__)
  parser.add_argument('--histories', nargs='+', type=int, default=HISTORIES)
  args = parser.parse_args(argv)
  if args.smoke:
    args.histories = (24,)
  rows = []
  for history in args.histories:
    rows += measure_history(history, args)
    cli.finish(args, 'kept_retrieval', rows, COLUMNS, NOTES)


def make_predictor(history: int, args) -> Predictor:
  """A model for so many events, with fresh weights."""
  count = 100 if args.smoke else ITEMS
  config = config_lib.retrieval()
  config.model = config_lib.hstu(
    **(SMOKE if args.smoke else MODEL), max_len=history + 8
  )
  config.eval.filter_seen = 'window'
  vocab = Vocab(np.arange(1, count + 1))
  items = ItemCatalogue(
    vocab,
    np.arange(1, count + 1, dtype=np.int32),
    np.ones(count + 1, np.int64),
    None,
    True,
    '',
  )
  task = Retrieval.from_config(config, items.corpus, items.counts)
  keys = jax.random.split(jax.random.key(0))
  tables = {
    name: jax.random.normal(keys[1], (spec.rows, spec.dim))
    for name, spec in task.tables().items()
  }
  weights = Weights(task.init(keys[0]), tables, 1)
  return Predictor(task, weights, items, ConfigDict(config.to_dict()))


def measure_history(history: int, args) -> list[dict]:
  """Rows of one length of histories."""
  rng = np.random.default_rng(0)
  predictor = make_predictor(history, args)
  most = len(predictor.items.vocab)
  items = rng.integers(1, most + 1, history).tolist()
  times = (1_700_000_000 + np.cumsum(rng.integers(1, 9_000, history))).tolist()
  cached = CachedPredictor(predictor, KeepOptions(device_bytes=1 << 30))
  ask = functools.partial(cached.recommend, 'ann')

  def forget():
    cached.forget('ann')

  def know():
    forget()
    ask(history=items[:-1], times=times[:-1])

  def search():
    cached._search(predictor, query, cached._events.get('ann'), 10)

  ask(history=items, times=times)
  query = jax.random.normal(jax.random.key(1), (1, predictor.task.table.dim))
  cases = {
    'anew': (lambda: predictor.recommend([items], times=[times]), None),
    'first': (lambda: ask(history=items, times=times), forget),
    'appended': (
      lambda: ask(new_events=items[-1:], times=times[-1:]), know,
    ),
    'again': (lambda: ask(request_time=times[-1] + 60), None),
    'search': (search, None),
  }  # fmt: skip
  spent = {}
  for way, (function, before) in cases.items():
    function() if before is None else (before(), function())
    spent[way] = mfalcon.measure(function, before)[0]
  bytes_ = cached.cache.row_bytes * history
  rows = []
  for way, seconds in spent.items():
    row = {
      'case': f'{way}/{history}', 'way': way, 'history': history,
      'core_ms': 1e3 * seconds,
    }  # fmt: skip
    if way not in ('anew', 'search'):
      row['of_anew_x'] = spent['anew'] / seconds
      encoding = [spent[x] - spent['search'] for x in ('anew', way)]
      row['encoding_of_anew_x'] = encoding[0] / max(encoding[1], 1e-9)
      row |= {'kept_mb': bytes_ / 1e6, 'users_per_gb': 1e9 / bytes_}
    rows.append(row)
  return rows


if __name__ == '__main__':
  main()
