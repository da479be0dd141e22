"""What inner products in learned spaces can tell, and what attention can.

  python -m benchmarks.tbsm_study
  python -m benchmarks.tbsm_study --only planted

Nets of benchmarks/tbsm_nets.py learn from events H and a candidate w alone, as
in the synthetic study of TBSM (arXiv 2008.11922): 50,000 examples, 10 events of
width 5, one epoch of Adagrad at .05 in batches of 128; AUC on 5,000 more.

paper      y = 1 where the mean of H_t u is above 0, u = product of (I + P_j) w
           over K random permutations P_j. For large K u is the sum of w in all
           places, so that there is one direction to learn.
published  the same by the nets of the published code, which are not trained in
           all parts: A stays as it was drawn, the projections of the attention
           are drawn anew at each call, and labels are 0 and 2. A comparison,
           and nothing that a model does.
planted    labels are drawn with the probability sigmoid(3 s), where s has mean
           0 and deviation 1: `rank r` is the mean of e_t H_t M w for a random M
           of rank r, and e_t all 1 (`same signs`) or half of them -1 (`signs by
           place`); `recall` is the first number of the event that is most alike
           w. All nets have as many parameters as TBSM with four heads, within a
           tenth; `ceiling` is the AUC of the true probabilities.

A row is the mean over seeds, each with data of its own; none is left out.
"""

import argparse
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import cli, tbsm_nets
from benchmarks.first_hour_logs import count_auc
from benchmarks.result import CoreTimer
from benchmarks.runs import over_seeds
from benchmarks.tbsm_nets import Net

COLUMNS = (
  'case', 'seeds', 'auc', 'auc_std', 'auc_least', 'ceiling', 'parameters',
  'core_s',
)  # fmt: skip
EVENTS, WIDTH = 10, 5
TRAINED, TESTED, BATCH = 50_000, 5_000, 128
RATE = 0.05
SEEDS = range(1, 6)
KS = (0, 10, 20, 30)
SIGNAL = 3.0  # of planted labels
PAPER = {
  'dot': Net('dot'),
  'ind, 1 head': Net('ind'),
  'def, 1 head': Net('def'),
  'def, 4 heads': Net('def', 4),
  'def, 8 heads': Net('def', 8),
  'attention, 8 heads': Net('attention', 8),
  'concat MLP': Net('concat'),
}
PUBLISHED = {
  'def, 1 head': Net('def', frozen=True),
  'def, 4 heads': Net('def', 4, frozen=True),
  'def, 8 heads': Net('def', 8, frozen=True),
  'attention, 8 heads': Net('attention', 8, redrawn=True),
}
MATCHED = {  # hidden layers are as wide as 'def, 4 heads' asks for
  'dot': Net('dot'),
  'ind, 4 heads': Net('ind', 4),
  'def, 1 head': Net('def'),
  'attention, 4 heads': Net('attention', 4),
  'concat MLP': Net('concat'),
}
TARGETS = {
  **{
    f'rank {rank}, {signs}': (rank, signs)
    for rank in (1, 2, 5)
    for signs in ('same signs', 'signs by place')
  },
  'recall': (0, ''),
}
NOTES = (
  'AUC in per cent, the mean over seeds; auc_least is that of the worst seed.',
  'published: behaviour of the published code, for comparison alone.',
)


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('tbsm_study', __doc__)
  parser.add_argument(
    '--only', nargs='+', default=[''], metavar='NAME',
    help='cases whose names begin so, such as paper or planted/recall',
  )  # fmt: skip
  args = parser.parse_args(argv)
  rows = []
  for name, target, net, published in list_cases():
    if name.startswith(tuple(args.only)):
      rows.append(measure(args, name, target, net, published))
  cli.finish(args, 'tbsm_study', rows, COLUMNS, NOTES)


def list_cases() -> list[tuple]:
  """(name, target, net, whether it is as published)."""
  found = []
  for kind, nets in (('paper', PAPER), ('published', PUBLISHED)):
    for name, net in nets.items():
      found += [(f'{kind}/K={k}/{name}', k, net, kind != 'paper') for k in KS]
  planted = match_sizes()
  for target in TARGETS:
    for name, net in planted.items():
      found.append((f'planted/{target}/{name}', target, net, False))
  return found


@functools.cache
def match_sizes() -> dict[str, Net]:
  """The nets of planted labels, all of about one size."""
  wanted = Net('def', 4)
  size = count(wanted)
  found = {'def, 4 heads': wanted}
  for name, net in MATCHED.items():
    found[name] = tbsm_nets.choose_hidden(net, size, EVENTS, WIDTH)
  return found


def count(net: Net) -> int:
  """Parameters of a net."""
  return tbsm_nets.count_parameters(net, EVENTS, WIDTH)


def measure(
  args: argparse.Namespace, name: str, target, net: Net, published: bool
) -> dict:
  """The row of a case, all seeds trained side by side."""
  seeds = SEEDS[:2] if args.smoke else SEEDS
  sizes = (BATCH * 8, 500) if args.smoke else (TRAINED, TESTED)
  data = [make_data(target, seed, *sizes) for seed in seeds]
  labels = np.stack([d['train_y'] for d in data]) * (2 if published else 1)
  with CoreTimer() as timer:
    logits = train(
      net,
      np.array(seeds),
      np.stack([d['train_h'] for d in data]),
      np.stack([d['train_w'] for d in data]),
      labels,
      np.stack([d['test_h'] for d in data]),
      np.stack([d['test_w'] for d in data]),
    )
    logits = np.asarray(logits)
  aucs = [
    100 * count_auc(d['test_y'], x) for d, x in zip(data, logits, strict=True)
  ]
  row = {'case': name, 'kind': name.split('/')[0], 'seeds': len(aucs)}
  parts = name.split('/')
  row |= {'target': parts[1], 'net': parts[2]}
  row |= over_seeds('auc', aucs) | {'auc_least': min(aucs), 'aucs': aucs}
  if 'test_p' in data[0]:
    row['ceiling'] = float(
      np.mean([100 * count_auc(d['test_y'], d['test_p']) for d in data])
    )
  row |= {'parameters': count(net), 'core_s': timer.core_s}
  print(cli.table([row], COLUMNS), flush=True)
  return row


def make_data(target, seed: int, trained: int, tested: int) -> dict:
  """Examples of a target: a K of the paper, or a name of TARGETS."""
  rng = np.random.default_rng([seed, len(str(target))])
  rows = trained + tested
  h = rng.uniform(-1, 1, (rows, EVENTS, WIDTH)).astype(np.float32)
  w = rng.uniform(-1, 1, (rows, WIDTH)).astype(np.float32)
  found = {}
  if isinstance(target, int):
    u = w.astype(np.float64)
    for _ in range(target):
      u = u + u[:, rng.permutation(WIDTH)]
      u /= np.abs(u).max()  # of which the sign alone counts
    y = np.einsum('btd,bd->b', h, u) > 0
  else:
    score = plant(target, rng, h, w)
    score = (score - score.mean()) / score.std()
    p = 1 / (1 + np.exp(-SIGNAL * score))
    y = rng.random(rows) < p
    found['test_p'] = p[trained:]
  parts = {'h': h, 'w': w, 'y': y.astype(np.float32)}
  for name, values in parts.items():
    found[f'train_{name}'] = values[:trained]
    found[f'test_{name}'] = values[trained:]
  return found


def plant(target: str, rng: np.random.Generator, h, w) -> np.ndarray:
  """The score of each example."""
  if target == 'recall':
    place = np.einsum('btd,bd->bt', h, w).argmax(1)
    return h[np.arange(len(h)), place, 0].astype(np.float64)
  rank, signs = TARGETS[target]
  left, right = rng.standard_normal((2, WIDTH, rank))
  own = np.ones(EVENTS)
  if signs != 'same signs':
    own[rng.permutation(EVENTS)[: EVENTS // 2]] = -1
  return np.einsum('t,btd,de,be->b', own, h, left @ right.T, w)


@functools.partial(jax.jit, static_argnums=0)
def train(net: Net, seeds, h, w, y, test_h, test_w) -> jax.Array:
  """Logits of the tested examples of each seed, `[seeds, N]`."""
  return jax.vmap(functools.partial(_train_one, net))(
    seeds, h, w, y, test_h, test_w
  )


def _train_one(net: Net, seed, h, w, y, test_h, test_w):
  key = jax.random.key(seed)
  params = net.init(jax.random.fold_in(key, 0), EVENTS, WIDTH)
  # As torch has it.
  adagrad = optax.adagrad(RATE, initial_accumulator_value=0.0, eps=1e-10)
  steps = len(h) // BATCH
  order = jax.random.permutation(jax.random.fold_in(key, 1), len(h))

  def move(carry, step):
    params, state = carry
    rows = jax.lax.dynamic_slice_in_dim(order, step * BATCH, BATCH)

    def loss(params):
      own = jax.random.fold_in(key, step + 2)
      logits = net.apply(params, h[rows], w[rows], own)
      # The gradient of torch's loss of probabilities in float32, which is p - y
      # until p is rounded to 1: with labels of 2, it must end somewhere.
      p = jax.nn.sigmoid(logits)
      slope = (p - y[rows]) * jnp.minimum(1.0, p * (1 - p) / 1e-12)
      return jnp.mean(logits * jax.lax.stop_gradient(slope))

    grads = jax.grad(loss)(params)
    updates, state = adagrad.update(grads, state, params)
    return (optax.apply_updates(params, updates), state), None

  carry = params, adagrad.init(params)
  (params, _), _ = jax.lax.scan(move, carry, jnp.arange(steps))
  return net.apply(params, test_h, test_w, jax.random.fold_in(key, 10**6))


if __name__ == '__main__':
  main()
