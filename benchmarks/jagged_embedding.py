"""What looking up a table's rows and training them costs.

  python -m benchmarks.jagged_embedding
  python -m benchmarks.jagged_embedding --shapes million_zipf --steps 40
  python -m benchmarks.jagged_embedding --save DIR  # inputs for another program
  python -m benchmarks.jagged_embedding --peer FILE.json

Bags of ids, summed; the gradient of the bags is given. 'forward' is the lookup,
'step' is lookup, backward and exact row-wise AdaGrad. 'naive' is what a program
without these operators does: gather and segment sum, jax.grad with respect to
the table, AdaGrad of the whole table. Programs take turns; tables are donated.

`bytes` are those a perfect program moves: each distinct row once read, and in a
step read again and written, with its accumulator; `of_copy` is their rate as a
share of the rate of a plain copy of 256 MB in the same program run.

`--save DIR` writes ids, gradient, first table and what `--check-steps` steps
make of some rows; a program that reads them can be measured beside this one.
`--peer` takes its figures: a JSON list of rows with the keys of ours (`case`,
`shape`, `program`, `core_ms`, `min_core_ms`, ...) and `versions`.
"""

import functools
import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

import pallas_kernels
from benchmarks import cli, timing
from pallas_kernels.jagged_embedding import api, cpu, shapes

SHAPES = (
  'million_uniform', 'million_zipf', 'ten_million_uniform', 'ten_million_zipf',
)  # fmt: skip
COLUMNS = (
  'case', 'distinct', 'forward_core_ms', 'core_ms', 'min_core_ms', 'wall_ms',
  'min_wall_ms', 'naive_x', 'peer_x', 'peer_min_x', 'of_copy', 'load_1min',
)  # fmt: skip
# What is measured -> how it is computed, on how many threads ('' for all).
PROGRAMS = {
  'cpu': ('cpu', ''),
  'cpu_1_thread': ('cpu', '1'),
  'xla': ('xla', ''),
  'naive': ('naive', ''),
}
RATE, BATCHES, COPY = 0.05, 6, 256_000_000
OPTIONS = dict(optimizer='row_adagrad', learning_rate=RATE, eps=1e-8)


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('jagged_embedding', __doc__)
  parser.add_argument('--shapes', nargs='+', choices=SHAPES, default=SHAPES)
  parser.add_argument('--steps', type=int, default=30, help='measured (30)')
  parser.add_argument('--warmup', type=int, default=6, help='not measured (6)')
  parser.add_argument('--naive-steps', type=int, default=5, help='of them (5)')
  parser.add_argument('--save', help='directory for the inputs', default='')
  parser.add_argument('--check-steps', type=int, default=3, help='of --save')
  parser.add_argument('--peer', help='JSON file of measured rows', default='')
  args = parser.parse_args(argv)
  if args.smoke:
    args.shapes, args.steps, args.warmup = ('narrow',), 2, 1
    args.naive_steps = 1
  if args.save:
    for name in args.shapes:
      save(name, pathlib.Path(args.save), args.check_steps)
    return
  peers = json.loads(pathlib.Path(args.peer).read_text()) if args.peer else []
  rows = []
  for name in args.shapes:
    rows += measure(
      name, args, [peer for peer in peers if peer['shape'] == name]
    )
  notes = [
    'core_ms and wall_ms are medians over the steps, core_ms of all threads; '
    'min_* are the least. naive_x, peer_x: how many times ours their median '
    'core_ms is; peer_min_x: of the least ones. The peer at its best setting.',
    'Cores and caches were shared with other programs (load_1min), for ours '
    'and the peer alike, in turns; the least figures suffer least.',
  ]
  if peers:
    notes.append(
      'Every run of the peer is shown; those with table_max_abs_diff had the '
      'same ids, gradient and table, and differ from ours by so much after '
      '--check-steps steps.'
    )
  cli.finish(args, 'jagged_embedding', rows, COLUMNS, notes)


def batches(shape: shapes.Shape) -> list[jax.Array]:
  return [jnp.asarray(shapes.ids(shape, seed)) for seed in range(BATCHES)]


def bag_gradient(shape: shapes.Shape) -> np.ndarray:
  rng = np.random.default_rng(1)
  return rng.normal(size=(shape.bags, shape.dim)).astype(np.float32)


def first_table(shape: shapes.Shape) -> jax.Array:
  """The same number everywhere would hide rows that are mixed up."""
  key = jax.random.key(0)
  return jax.random.uniform(key, (shape.rows, shape.dim), minval=-0.1)


def fresh(shape: shapes.Shape) -> tuple[jax.Array, dict]:
  table = first_table(shape)
  return table, api.init_slots(table, OPTIONS['optimizer'])


def forward(name, table, ids, lengths):
  if name == 'naive':
    bags = pallas_kernels.segment_ids(lengths, ids.shape[0])
    return jax.ops.segment_sum(table[ids], bags, lengths.shape[0])
  return api.embedding_bag(table, ids, lengths, implementation=name)


def step(name, table, slots, ids, lengths, grads):
  """Lookup, backward and update: `(bags, table, slots)`."""
  if name == 'naive':
    bags, back = jax.vjp(lambda t: forward(name, t, ids, lengths), table)
    (dense,) = back(grads)
    total = slots['sum'] + jnp.mean(jnp.square(dense), axis=1)
    scale = RATE / (jnp.sqrt(total) + OPTIONS['eps'])
    return bags, table - scale[:, None] * dense, {'sum': total}
  bags = forward(name, table, ids, lengths)
  grads += 0 * bags  # as in a loss: the update comes after the lookup
  return bags, *api.embedding_bag_backward_and_update(
    table, slots, ids, lengths, grads, implementation=name, **OPTIONS
  )


def measure(name: str, args, peers: list[dict]) -> list[dict]:
  """Rows of one shape: ours, the naive program, the peer."""
  shape = shapes.SHAPES[name]
  calls, grads = batches(shape), jnp.asarray(bag_gradient(shape))
  lengths = jnp.asarray(shapes.lengths(shape))
  distinct = int(np.mean([len(np.unique(np.asarray(x))) for x in calls]))
  copied = copy_rate()
  rows = {}
  for program, (how, threads) in PROGRAMS.items():
    if how in api.BACKENDS and api.BACKENDS[how].why_not():
      continue
    os.environ[cpu.THREADS] = threads
    table, slots = fresh(shape)
    look = jax.jit(functools.partial(forward, how))
    train = jax.jit(functools.partial(step, how), donate_argnums=(0, 1))
    steps = args.naive_steps if program == 'naive' else args.steps
    warmup = min(args.warmup, 2) if program == 'naive' else args.warmup
    timers = []
    for i in range(warmup + steps):
      ids = calls[i % BATCHES]
      _, looked = timing.measure(look, table, ids, lengths)
      (_, table, slots), trained = timing.measure(
        train, table, slots, ids, lengths, grads
      )
      timers.append((looked, trained))
    looked, trained = zip(*timers[warmup:], strict=True)
    rows[program] = {
      'case': f'{name}/{program}',
      'shape': name,
      'program': program,
      'rows': shape.rows,
      'distinct': distinct,
      'steps': steps,
      **cost(looked, 'forward_'),
      **cost(trained),
      **traffic(shape, distinct, looked, 'forward_', copied),
      **traffic(shape, distinct, trained, '', copied),
      'copy_bytes_per_s': copied,
      'load_1min': os.getloadavg()[0],
    }
    del table, slots
  os.environ.pop(cpu.THREADS)
  naive = rows['naive']
  for row in rows.values():
    if row is naive:
      continue
    row['naive_x'] = naive['core_ms'] / row['core_ms']
    row['naive_wall_x'] = naive['wall_ms'] / row['wall_ms']
    for key, part in (('peer_x', 'core_ms'), ('peer_min_x', 'min_core_ms')):
      if peers:  # at its best
        row[key] = min(peer[part] for peer in peers) / row[part]
  return [*rows.values(), *peers]


def cost(timers, prefix: str = '') -> dict:
  """Median and least milliseconds of a call."""
  return {
    f'{prefix}{name[:-2]}_ms': 1e3 * seconds
    for name, seconds in timing.summary(timers).items()
  }


def traffic(shape, distinct, timers, prefix: str, copied: float) -> dict:
  """Bytes that must move, and their rate (at its best) against a copy's."""
  row = 4 * shape.dim
  size = distinct * row
  if not prefix:
    size += distinct * (2 * row + 2 * 4)
  rate = size / timing.summary(timers)['min_wall_s']
  return {f'{prefix}bytes': size, f'{prefix}of_copy': rate / copied}


def copy_rate() -> float:
  """Bytes a second, read and written, of a copy in memory."""
  x = jnp.zeros(COPY // 4)
  copy = jax.jit(lambda x: x + 1.0, donate_argnums=0)
  timers = []
  for _ in range(6):
    x, timer = timing.measure(copy, x)
    timers.append(timer)
  return 2 * COPY / timing.summary(timers[1:])['min_wall_s']


def save(name: str, folder: pathlib.Path, steps: int) -> None:
  """Writes what another program needs, and what it must arrive at."""
  shape = shapes.SHAPES[name]
  calls, grads = batches(shape), bag_gradient(shape)
  lengths = jnp.asarray(shapes.lengths(shape))
  table, slots = fresh(shape)
  folder.mkdir(parents=True, exist_ok=True)
  np.save(folder / f'{name}.table.npy', np.asarray(table))
  train = jax.jit(functools.partial(step, None), donate_argnums=(0, 1))
  for ids in calls[:steps]:
    bags, table, slots = train(table, slots, ids, lengths, jnp.asarray(grads))
  seen = np.unique(np.stack(calls[:steps]))
  np.savez(
    folder / f'{name}.npz',
    ids=np.stack(calls),
    lengths=np.asarray(lengths),
    grads=grads,
    rows=shape.rows,
    rate=RATE,
    steps=steps,
    seen=seen,
    expected=np.asarray(table)[seen],
    bags=np.asarray(bags),
  )
  print(f'{folder / name}.npz: {len(seen)} rows after {steps} steps')


if __name__ == '__main__':
  main()
