"""Which order of interactions can a stack of l layers of Wukong express?

  python -m benchmarks.interaction_order
  python -m benchmarks.interaction_order --orders 2 4 --layers 1 2 --seeds 0

The label is the sign of a product of `order` hidden signs, one of each field;
fewer fields say nothing about it. The model is Wukong with nothing else that
could make products: the MLPs of its blocks and the top are linear, and layer
norms have an epsilon so large that they centre alone. Layer i then holds orders
up to 2^i: order 2 wants one layer, order 4 two and order 8 three. Every step
sees all combinations of values, 2^order rows, and so does the test: nothing is
estimated, .5 is what too few layers must give. Norms as they are used divide by
what they see and are not polynomials; `--norms usual` shows what they add. A
row is the best AUC of the seeds, and their mean.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import cli, dense_ranking
from benchmarks.result import CoreTimer
from genrec_jax import config as config_lib
from genrec_jax import features
from genrec_jax.tasks import ranking_metrics
from genrec_jax.tasks.ranking import Ranking

ENOUGH = 0.999  # stop: it has been found
# Epsilon of the layer norms; the large one leaves a polynomial.
NORMS = {'centring': 1e4, 'usual': 1e-5}
COLUMNS = (
  'case', 'enough', 'auc', 'auc_mean', 'auc_least', 'steps', 'core_s'
)  # fmt: skip


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('interaction_order', __doc__)
  parser.add_argument('--orders', nargs='+', type=int, default=[2, 4, 8])
  parser.add_argument('--layers', nargs='+', type=int, default=[1, 2, 3])
  parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2])
  parser.add_argument('--norms', nargs='+', choices=NORMS, default=list(NORMS))
  parser.add_argument('--steps', type=int, default=4000, help='at most (4000)')
  parser.add_argument('--rate', type=float, default=3e-3, help='of Adam (3e-3)')
  args = parser.parse_args(argv)
  if args.smoke:
    args.orders, args.layers, args.seeds, args.steps = [2], [1], [0], 40
  rows = []
  for norms, order, layers in itertools.product(
    args.norms, args.orders, args.layers
  ):
    with CoreTimer() as timer:
      found = [
        train(order, layers, seed, NORMS[norms], args.steps, args.rate)
        for seed in args.seeds
      ]
    aucs = [auc for auc, _ in found]
    rows.append(
      {
        'case': f'{norms}/order{order}/layers{layers}',
        'norms': norms,
        'order': order,
        'layers': layers,
        'enough': 'yes' if 2**layers >= order else 'no',
        'auc': max(aucs),
        'auc_mean': float(np.mean(aucs)),
        'auc_least': min(aucs),
        'seeds': len(aucs),
        'steps': max(steps for _, steps in found),
        'core_s': timer.core_s,
      }
    )
    print(cli.table(rows[-1:], COLUMNS), flush=True)
  cli.finish(args, 'interaction_order', rows, COLUMNS)


def population(order: int) -> features.Examples:
  """Every combination of two values a field, one positive, one negative."""
  negative = np.indices((2,) * order, np.int32).reshape(order, -1).T
  labels = (1.0 - negative.sum(axis=1) % 2).astype(np.float32)
  return make_examples(negative + np.int32(1), labels)


def order_task(
  rows: int, order: int, *, values: int = 10, seed: int = 0
) -> tuple[tuple[features.FeatureSpec, ...], features.Examples]:
  """Data that hold one interaction of `order` fields, and nothing below.

  Half of the values of each field are positive, the others negative; the label
  is 1 where the product of the signs is positive. Any `order` - 1 fields say
  nothing about it.

  Args:
    rows: B.
    order: fields, all of them needed.
    values: of each field, an even number.
    seed: of the rows; the signs of the values are the same for any.

  Returns:
    The features, and all rows as one batch of NumPy arrays.
  """
  if values < 2 or values % 2:
    raise ValueError(f'values must be an even number, not {values}')
  drawn = np.random.default_rng([seed, order]).integers(
    values, size=(rows, order), dtype=np.int32
  )
  negative = (drawn % 2).sum(axis=1)
  specs = tuple(
    features.FeatureSpec(f'c{i}', rows=values + 2) for i in range(order)
  )
  labels = (1.0 - negative % 2).astype(np.float32)
  return specs, make_examples(drawn + np.int32(1), labels)


def make_examples(ids: np.ndarray, labels: np.ndarray) -> features.Examples:
  """Rows `[B, fields]` of features c0, c1, ... and labels `[B]` as a batch."""
  rows, fields = ids.shape
  return features.Examples(
    weights=np.ones(rows, np.float32),
    dense=features.Columns(np.zeros((rows, 0), np.float32), ()),
    ids=features.Columns(ids, tuple(f'c{i}' for i in range(fields))),
    labels=features.Columns(labels[:, None], ('y',)),
    first=np.zeros(1, np.int32),
  )


def task_of(order: int, layers: int, eps: float) -> Ranking:
  """Wukong whose only products are those of its factorisation machines."""
  specs = [features.FeatureSpec(f'c{i}', rows=4) for i in range(order)]
  model = config_lib.wukong(
    dim=8,
    layers=layers,
    fmb=8,
    lcb=8,
    rank=8,
    attentive=False,
    fmb_hidden=(),
    norm_eps=eps,
    top=(),
  ).to_dict()
  return Ranking(
    model.pop('name'),
    model,
    {},
    features=tuple(specs),
    labels=('y',),
    init_std=0.3,
  )


def train(
  order: int, layers: int, seed: int, eps: float, steps: int, rate: float
) -> tuple[float, int]:
  """(AUC, steps taken)."""
  task = task_of(order, layers, eps)
  batch = jax.tree.map(jnp.asarray, population(order))
  keys = jax.random.split(jax.random.key(seed), 2)
  weights = dense_ranking.fresh(task, keys[1], keys[0])
  if eps > 1:
    weights['params'] = jax.tree_util.tree_map_with_path(
      functools.partial(_unscaled, eps), weights['params']
    )
  tx = optax.adam(optax.cosine_decay_schedule(rate, steps))

  @functools.partial(jax.jit, donate_argnums=(0, 1))
  def step(weights, state):
    grads = dense_ranking.gradient(task, weights, batch)
    updates, state = tx.update(grads, state, weights)
    return optax.apply_updates(weights, updates), state

  @jax.jit
  def logits(weights):
    return dense_ranking.logits(task, weights, batch)

  def auc():
    found = np.asarray(logits(weights))[:, None]
    labels = np.asarray(batch.labels.values)
    return ranking_metrics.measure_labels(found, labels, names=('y',))['auc']

  state = tx.init(weights)
  for i in range(steps):
    weights, state = step(weights, state)
    if i % 200 == 199 and auc() > ENOUGH:
      return auc(), i + 1
  return auc(), steps


def _unscaled(eps, path, leaf):
  """Scales of layer norms, so that what they do is to centre."""
  name = jax.tree_util.keystr(path, simple=True, separator='/')
  return leaf * eps**0.5 if name.endswith('norm/scale') else leaf


if __name__ == '__main__':
  main()
