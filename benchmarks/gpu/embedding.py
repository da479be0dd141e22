"""How near is the embedding to the memory's speed, and to torch's?

2,097,152 ids in 65,536 bags over 1,000,000 rows. 'bag' is the pooled lookup,
the others its backward pass with the update of the table, in place. gbs is the
least traffic (each input read once, each output written once) over the time;
row 'copy' says what the memory can do. Of 'triton', distance is that from what
XLA computes, ||a - b|| / ||b||; of an update in float32 it is that of the
steps. Of 'bag', walked_gbs counts a row for each id, as if no cache held any.
sorts is how many radix sorts of CUB the program has.
"""

import functools
import time

from benchmarks.gpu import kit, measure

ROWS, BAGS, IDS = 1_000_000, 65_536, 32
WHAT = ('bag', 'sgd', 'adagrad', 'row_adagrad')
# Of a step: rows of about one move by thousandths, and are rounded after it.
TOLERANCE = {'float32': 1e-3, 'bfloat16': 1e-2}


def cases(args) -> list[dict]:
  del args
  found = [dict(case='copy')]
  for program in ('triton', 'xla', 'torch'):  # torch may not go with JAX
    for width in (128, 64):
      for draw in ('uniform', 'zipf'):
        for what in WHAT:
          if (program, what) != ('torch', 'row_adagrad'):
            found.append(case_of(program, what, width, draw))
    if program != 'torch':
      for what in ('bag', 'row_adagrad'):
        found.append(case_of(program, what, 128, 'uniform', 'bfloat16'))
  return found


def case_of(program, what, width, draw, dtype='float32') -> dict:
  name = f'{program}: {what}, width {width}, {draw}'
  if dtype != 'float32':
    name += f', {dtype}'
  row = dict(program=program, width=width, draw=draw, what=what, dtype=dtype)
  return dict(case=name, **row)


def work(case: dict, args) -> dict:
  if case['case'] == 'copy':
    return copy(1 << (12 if args.rehearse else 28))
  table, grads = draw_rows(case['width'], args.rehearse)
  ids, distinct = draw_ids(case['draw'], args.rehearse)
  count = ids.size
  run = of_torch if case['program'] == 'torch' else of_jax
  row = run(case, table, ids, grads, args.rehearse)
  least = least_bytes(case, distinct, count, grads.size)
  if case['what'] == 'bag':
    walked = least_bytes(case, count, count, grads.size)
    row['walked_gbs'] = walked / row['ms'] / 1e6
  return row | dict(
    distinct=distinct, least_mb=least / 1e6, gbs=least / row['ms'] / 1e6
  )


# A process has many cases, and a table of 512 MB takes longer than they do. The
# arrays of a width serve all of its cases, and the ids of a draw those of both
# widths.
@functools.cache
def draw_rows(width: int, tiny: bool):
  """Table and gradients of bags, of NumPy."""
  import numpy as np

  rows, bags = sizes(tiny)
  rng = np.random.default_rng(0)
  found = []
  for count in (rows, bags):
    x = rng.random((count, width), np.float32)
    x -= 0.5  # in place, as the next line
    x *= 4
    found.append(x)
  return tuple(found)


@functools.cache
def draw_ids(draw: str, tiny: bool):
  """The ids of all bags, and how many rows they name."""
  import numpy as np

  rows, bags = sizes(tiny)
  rng = np.random.default_rng(1)
  count = bags * IDS
  if draw == 'uniform':
    ids = rng.integers(0, rows, count, np.int32)
  else:
    places = np.minimum(rng.zipf(1.2, count), rows) - 1
    ids = rng.permutation(rows).astype(np.int32)[places]
  return ids, int(np.count_nonzero(np.bincount(ids)))


def sizes(tiny: bool) -> tuple[int, int]:
  """How many rows the table has, and how many bags there are."""
  return (500, 64) if tiny else (ROWS, BAGS)


def least_bytes(case, distinct, count, bag_numbers) -> float:
  what, width = case['what'], case['width']
  row = width * {'float32': 4, 'bfloat16': 2}[case['dtype']]
  if what == 'bag':  # a row that repeats may come from the cache
    out = bag_numbers // width * row
    return 4 * count + distinct * row + out
  slots = {'sgd': 0, 'adagrad': width, 'row_adagrad': 1}[what]
  return 4 * (count + bag_numbers) + 2 * distinct * (row + 4 * slots)


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


def of_jax(case, table, ids, grads, rehearse) -> dict:
  """`pallas_kernels.jagged_embedding` by one of its implementations."""
  import jax
  import jax.numpy as jnp

  import pallas_kernels

  what, program = case['what'], case['program']
  table, ids, grads = map(jnp.asarray, (table, ids, grads))
  table = table.astype(case['dtype'])
  lengths = jnp.full(grads.shape[0], IDS, jnp.int32)
  options = dict(implementation=program)
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
      # Never above it; else XLA would sort once for all turns of the loop.
      shift = (state[0][0, 0].astype(jnp.float32) > 1e30).astype(jnp.int32)
      return pallas_kernels.embedding_bag_backward_and_update(
        *state,
        ids + shift,
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

  def measure_it():
    same = bool(jnp.all(result() == result()))
    row = dict(same_twice=same)
    if program != 'xla' and case.get('checked', True):
      row |= compare(case, result(), table, ids, lengths, grads)
    seconds = measure.time_calls(
      lambda turns: jax.block_until_ready(run(turns, start, *given)),
      0.0 if rehearse else 0.3,
    )
    return row | dict(ms=1e3 * seconds)

  row = kit.locked(measure_it)()
  memory = run.memory_analysis()
  temp = memory.temp_size_in_bytes / 2**20 if memory else None
  return row | dict(
    temp_mb=temp,
    compile_s=compile_s,
    sorts=run.as_text().count('DeviceRadixSort'),
  )


def compare(case, result, table, ids, lengths, grads) -> dict:
  """How far bags, or the rows after a step, are from those of XLA."""
  import jax
  import jax.numpy as jnp

  import pallas_kernels

  options = dict(implementation='xla')
  if case['what'] == 'bag':
    wanted = pallas_kernels.embedding_bag(table, ids, lengths, **options)
  else:
    slots = pallas_kernels.init_slots(table, case['what'])
    options |= dict(learning_rate=1e-3, optimizer=case['what'])
    wanted, _ = jax.jit(
      lambda *state: pallas_kernels.embedding_bag_backward_and_update(
        *state, ids, lengths, grads, **options
      )
    )(table, slots)
    if case['dtype'] == 'float32':
      result, wanted = result - table, wanted - table
  result, wanted = (x.astype(jnp.float32) for x in (result, wanted))
  distance = float(jnp.linalg.norm(result - wanted) / jnp.linalg.norm(wanted))
  return dict(distance=distance, ok=distance <= TOLERANCE[case['dtype']])


def of_torch(case, table, ids, grads, rehearse) -> dict:
  """torch's EmbeddingBag; sparse gradients and torch.optim for the update."""
  import torch

  what = case['what']
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
