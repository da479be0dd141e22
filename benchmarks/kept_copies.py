"""What copying kept rows costs of a call, and what reading in place would save.

  python -m benchmarks.kept_copies

Keys and values of users lie in pages (`serve.kv_cache`), and the attention
wants those of a sequence in one run. So a call of `serve.cached_scorer` gathers
them, and each layer puts the new tokens behind the known ones. An attention
that read pages in place would need neither. Of users with so many events, and
256 candidates each:

  gather_ms   the pages of the users, brought together
  layers_ms   in all layers, the new keys and values put behind the others
  call_ms     the whole call

`share_%` is the share of the first two of the whole call: what an attention
with pages could save at most, if reading pages cost nothing. Processor time,
the least of some repeats.
"""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import cli, mfalcon
from genrec_jax.serve.cached_scorer import CachedScorer, CacheOptions
from genrec_jax.serve.kv_cache import Share

COLUMNS = (
  'case', 'gather_ms', 'layers_ms', 'call_ms', 'share_%', 'kept_mb',
)  # fmt: skip
USERS, HISTORIES, CANDIDATES = (1, 4), (512, 2048, 4096), 256


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('kept_copies', __doc__)
  parser.add_argument('--users', nargs='+', type=int, default=USERS)
  parser.add_argument('--histories', nargs='+', type=int, default=HISTORIES)
  args = parser.parse_args(argv)
  if args.smoke:
    args.users, args.histories = (1, 2), (24,)
  rows = [
    measure_users(users, history, args)
    for history in args.histories
    for users in args.users
  ]
  cli.finish(args, 'kept_copies', rows, COLUMNS)


def measure_users(users: int, history: int, args) -> dict:
  """The row of so many users a call."""
  size = 8 if args.smoke else CANDIDATES
  task, weights = mfalcon.make_task(history, size, args)
  scorer = mfalcon.make_scorer(task, weights)
  options = CacheOptions(micro_batch=size, users=users)
  cached = CachedScorer(scorer, options)
  programs, cache = cached._programs, cached.cache
  events, asked = mfalcon.draw_user(history, size)
  rows = programs.keep(weights, events, asked)
  tokens = programs.count_tokens(history)
  names = [f'user {n}' for n in range(users)]
  slots, ages = [], []
  with cache.hold(names):
    for name in names:
      cache.put(rows, [Share(name, '', 0, tokens)])
      own = cache.list_slots(cache.peek(name))
      slots += [own, np.full(size, cache.no_slot, np.int32)]
      ages += [np.zeros(tokens + size, np.int64)]
  slots, ages = np.concatenate(slots), np.concatenate(ages)
  kept = cache.read(slots)

  def call():
    return programs.score(
      weights, [asked] * users, 0, [tokens] * users, ages, cache.read(slots),
      history,
    )  # fmt: skip

  layers = make_layers(task.model_config, tokens, users, size)
  new = jnp.zeros((users * size, cache.width))
  times = {
    name: mfalcon.measure(lambda f=f: jax.block_until_ready(f()))[0]
    for name, f in (
      ('gather', lambda: cache.read(slots)),
      ('layers', lambda: layers(kept, new)),
      ('call', call),
    )
  }
  copied = times['gather'] + times['layers']
  return {
    'case': f'{users} x {history}',
    'users': users,
    'history': history,
    'share_%': 100 * copied / times['call'],
    'kept_mb': users * tokens * cache.row_bytes / 1e6,
    **{f'{name}_ms': 1e3 * spent for name, spent in times.items()},
  }


def make_layers(config, tokens: int, users: int, size: int):
  """What all layers copy: `models.kept_layers.run_layer` without the rest."""
  width = config.heads * (config.dqk + config.dv)
  first = np.arange(users)[:, None] * (tokens + size) + tokens
  at = jnp.asarray((first + np.arange(size)).reshape(-1))

  @jax.jit
  def layers(kept, new):
    found = []
    for i in range(config.blocks):
      some = slice(i * width, (i + 1) * width)
      part = kept[:, some].at[at].set(new[:, some])
      found += jnp.split(part, [config.heads * config.dqk], axis=1)
    return found

  return layers


if __name__ == '__main__':
  main()
