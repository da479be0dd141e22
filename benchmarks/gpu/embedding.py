"""How near is the embedding to the memory's speed, and to torch's?

2,097,152 ids in 65,536 bags over 1,000,000 rows of float32. 'bag' is the pooled
lookup, the others its backward pass with the update of the table, in place. gbs
is the least traffic (each input read once, each output written once) over the
time; row 'copy' says what the memory can do.
"""

import time

from benchmarks.gpu import kit, measure

ROWS, BAGS, IDS = 1_000_000, 65_536, 32


def cases(args) -> list[dict]:
  del args
  found = [dict(case='copy')]
  for program in ('xla', 'torch'):  # torch last: it may not go with JAX
    for width in (128, 64):
      for draw in ('uniform', 'zipf'):
        for what in ('bag', 'sgd', 'adagrad', 'row_adagrad'):
          if (program, what) != ('torch', 'row_adagrad'):
            name = f'{program}: {what}, width {width}, {draw}'
            row = dict(program=program, width=width, draw=draw, what=what)
            found.append(dict(case=name, **row))
  return found


def work(case: dict, args) -> dict:
  if case['case'] == 'copy':
    return copy(1 << (12 if args.rehearse else 28))
  import numpy as np

  rows, bags = (500, 64) if args.rehearse else (ROWS, BAGS)
  rng = np.random.default_rng(0)
  count = bags * IDS
  if case['draw'] == 'uniform':
    ids = rng.integers(0, rows, count)
  else:
    ids = rng.permutation(rows)[np.minimum(rng.zipf(1.2, count), rows) - 1]
  ids = ids.astype(np.int32)
  table = rng.normal(size=(rows, case['width'])).astype(np.float32)
  grads = rng.normal(size=(bags, case['width'])).astype(np.float32)
  run = {'xla': of_jax, 'torch': of_torch}[case['program']]
  row = run(case['what'], table, ids, grads, args.rehearse)
  distinct = len(np.unique(ids))
  least = least_bytes(case['what'], distinct, count, grads.size, case['width'])
  return row | dict(
    distinct=distinct, least_mb=least / 1e6, gbs=least / row['ms'] / 1e6
  )


def least_bytes(what, distinct, count, bag_numbers, width) -> float:
  if what == 'bag':  # a row that repeats may come from the cache
    return 4 * (count + distinct * width + bag_numbers)
  slots = {'sgd': 0, 'adagrad': width, 'row_adagrad': 1}[what]
  return 4 * (count + bag_numbers + 2 * distinct * (width + slots))


def copy(numbers: int) -> dict:
  import jax

  x = jax.random.normal(jax.random.key(0), (numbers,))
  run = jax.jit(
    lambda turns, x: jax.lax.fori_loop(0, turns, lambda _, x: x * 1.0001, x)
  )
  seconds = measure.time_calls(
    lambda turns: jax.block_until_ready(run(turns, x))
  )
  kind = jax.devices()[0].device_kind
  return dict(ms=1e3 * seconds, gbs=8 * numbers / seconds / 1e9, device=kind)


def of_jax(what, table, ids, grads, rehearse) -> dict:
  """`pallas_kernels.jagged_embedding`, as XLA computes it everywhere."""
  import jax
  import jax.numpy as jnp

  import pallas_kernels

  table, ids, grads = map(jnp.asarray, (table, ids, grads))
  lengths = jnp.full(grads.shape[0], IDS, jnp.int32)
  options = dict(implementation='xla')
  begin = time.perf_counter()
  if what == 'bag':

    def turn(lengths, arrays):
      return pallas_kernels.embedding_bag(*arrays, lengths, **options)

    run = (
      jax.jit(measure.looped(turn)).lower(1, lengths, (table, ids)).compile()
    )
    start, once = lengths, jax.jit(turn)

    def result():
      return once(lengths, (table, ids))

    given = ((table, ids),)
  else:
    slots = pallas_kernels.init_slots(table, what)

    def step(_, state):
      return pallas_kernels.embedding_bag_backward_and_update(
        *state,
        ids,
        lengths,
        grads,
        learning_rate=1e-3,
        optimizer=what,
        **options,
      )

    def steps(turns, state):
      return jax.lax.fori_loop(0, turns, step, state)

    start, given = (table, slots), ()
    run = jax.jit(steps).lower(1, start).compile()

    def result():
      return run(1, start)[0]

  compile_s = time.perf_counter() - begin
  same = bool(jnp.all(result() == result()))
  seconds = measure.time_calls(
    lambda turns: jax.block_until_ready(run(turns, start, *given)),
    0.0 if rehearse else 0.3,
  )
  memory = run.memory_analysis()
  temp = memory.temp_size_in_bytes / 2**20 if memory else None
  return dict(
    ms=1e3 * seconds, same_twice=same, temp_mb=temp, compile_s=compile_s
  )


def of_torch(what, table, ids, grads, rehearse) -> dict:
  """torch's EmbeddingBag; sparse gradients and torch.optim for the update."""
  import torch

  device = 'cpu' if rehearse else 'cuda'
  table, ids, grads = (
    torch.from_numpy(x).to(device) for x in (table, ids, grads)
  )
  starts = torch.arange(0, len(ids), IDS, device=device, dtype=ids.dtype)
  module = torch.nn.EmbeddingBag.from_pretrained(
    table, freeze=what == 'bag', mode='sum', sparse=True
  )
  if what != 'bag':
    make = {'sgd': torch.optim.SGD, 'adagrad': torch.optim.Adagrad}[what]
    optimizer = make(module.parameters(), lr=1e-3)
  out = module(ids, starts)

  def turn():
    if what == 'bag':
      module(ids, starts)
      return
    optimizer.zero_grad()
    out.backward(grads, retain_graph=True)  # the lookup is not in the time
    optimizer.step()

  def run(turns):
    for _ in range(turns):
      turn()
    if device == 'cuda':
      torch.cuda.synchronize()

  seconds = measure.time_calls(run, 0.0 if rehearse else 0.3)
  return dict(ms=1e3 * seconds, torch=torch.__version__)


if __name__ == '__main__':
  kit.main('benchmarks.gpu.embedding', __doc__, cases, work, minutes=6)
