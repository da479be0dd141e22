"""TBSM beside the public torch code: equal outputs, and what a step costs.

  python -m benchmarks.tbsm_parity --peer_python PATH --tbsm DIR --dlrm DIR

PATH is a Python with torch, the directories are checkouts of
facebookresearch/tbsm and facebookresearch/dlrm. Sizes are those of their
bench: vectors of 16, m = 15, T = 20, one head. Parity is of the formula: with
weights copied, a ReLU behind the tower, no epsilon and full histories,
`difference` is the largest one of the probabilities. `core_ms` is the median of
a training step of both with 256 examples and Adagrad, on one core, theirs with
the allocator that `MALLOC_` variables below tune.
"""

import os
import pathlib
import subprocess
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from benchmarks import cli
from genrec_jax.config.event_models import TBSM as Config
from genrec_jax.features import FeatureSpec, History, Inputs
from genrec_jax.models.tbsm import TBSM
from genrec_jax.tasks import losses

COLUMNS = ('case', 'difference', 'core_ms', 'peer_core_ms', 'peer_x', 'peer')
MOST, BATCH = 20, 256
ROWS = {'user': 2_000, 'item': 5_000, 'category': 500}
STEPS, WARM = 30, 5
ALLOCATOR = {'MALLOC_TRIM_THRESHOLD_': '-1', 'MALLOC_MMAP_MAX_': '0'}
SEEN = dict(kind='sequence', history='seen', max_len=MOST)
FEATURES = (
  *(FeatureSpec(name, rows=rows) for name, rows in ROWS.items()),
  *(
    FeatureSpec(f'seen_{name}', rows=ROWS[name], table=name, **SEEN)
    for name in ('item', 'category')
  ),
)
NOTES = (
  'difference: of probabilities, weights copied; histories are full.',
  'core_ms: the median of a step on one core, rows and dense parameters moved.',
)


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('tbsm_parity', __doc__)
  parser.add_argument('--peer_python', required=True, help='one with torch')
  parser.add_argument('--tbsm', required=True, help='checkout')
  parser.add_argument('--dlrm', required=True, help='checkout')
  args = parser.parse_args(argv)
  batch = draw_batch(8 if args.smoke else BATCH)
  models = {inner: draw_model(inner) for inner in ('dot', 'ind', 'def')}
  answers = ask_peer(args, batch, models)
  rows = []
  for inner, (graphdef, params, tables) in models.items():
    logits = score(graphdef, params, tables, batch)
    own = np.asarray(jax.nn.sigmoid(logits))
    row = {'case': f'forward/{inner}'}
    row['difference'] = float(np.abs(own - answers[inner]).max())
    rows.append(row)
  own, theirs = time_steps(*models['def'], batch), answers['core_s']
  rows.append(
    {
      'case': 'step/def',
      'core_ms': 1000 * float(np.median(own)),
      'peer_core_ms': 1000 * float(np.median(theirs)),
      'peer_x': float(np.median(theirs) / np.median(own)),
      'peer': f'torch {answers["version"]}',
    }
  )
  cli.finish(args, 'tbsm_parity', rows, COLUMNS, NOTES)


def draw_batch(size: int) -> dict[str, np.ndarray]:
  """Ids `[T + 1, 3, B]`, the candidate last; numbers; labels."""
  rng = np.random.default_rng(0)
  ids = np.stack([rng.integers(0, n, (MOST + 1, size)) for n in ROWS.values()])
  ids = ids.swapaxes(0, 1)
  ids[:, 0] = ids[0, 0]  # a user is the same in all events
  place = (np.arange(MOST + 1, dtype=np.float32) + 1) / (MOST + 1)
  return {
    'ids': ids.astype(np.int64),
    'numbers': np.repeat(place[:, None], size, axis=1),
    'labels': rng.integers(0, 2, size).astype(np.float32),
    'length': np.array(MOST),
  }


def draw_model(inner: str):
  """(graphdef, parameters, tables), as the published code would begin."""
  config = Config(mechanism=inner, relu_end=True, projection_eps=0.0)
  model = TBSM(config, FEATURES, 1, nnx.Rngs(1))
  graphdef, state = nnx.split(model, nnx.Param)
  rng = np.random.default_rng(2)
  tables = {
    name: jnp.asarray(rng.normal(size=(rows, 16)) / 4, jnp.float32)
    for name, rows in ROWS.items()
  }
  return graphdef, nnx.to_pure_dict(state), tables


def make_inputs(tables, batch) -> Inputs:
  """What the model sees: events packed, example behind example."""
  ids, size = jnp.asarray(batch['ids']), batch['ids'].shape[2]

  def read(name, at):
    return tables[name][at]

  events = {
    f'seen_{name}': read(name, ids[:-1, i].T.reshape(-1))
    for i, name in ((1, 'item'), (2, 'category'))
  }
  return Inputs(
    vectors=tuple(read(name, ids[-1, i]) for i, name in enumerate(ROWS)),
    numbers=jnp.zeros((size, 0)),
    linear=jnp.zeros(size),
    weights=jnp.ones(size),
    histories={
      'seen': History(
        events, jnp.zeros((size * MOST, 0)), jnp.full(size, MOST, jnp.int32)
      )
    },
  )


def score(graphdef, params, tables, batch) -> jax.Array:
  """Logits `[B]`."""
  model = nnx.merge(graphdef, nnx.State(jax.tree.map(nnx.Param, params)))
  return model(make_inputs(tables, batch))[:, 0]


def time_steps(graphdef, params, tables, batch) -> np.ndarray:
  """Core-seconds of steps that move all that is trained, by Adagrad."""
  adagrad = optax.adagrad(0.05, initial_accumulator_value=0.0, eps=1e-10)
  labels = jnp.asarray(batch['labels'])

  @jax.jit
  def step(trained, state):
    def loss(trained):
      logits = score(graphdef, *trained, batch)
      return losses.logistic_loss(logits, labels).mean()

    grads = jax.grad(loss)(trained)
    updates, state = adagrad.update(grads, state, trained)
    return optax.apply_updates(trained, updates), state

  trained = params, tables
  state = adagrad.init(trained)
  spent = []
  for _ in range(WARM + STEPS):
    begun = time.process_time()
    trained, state = jax.block_until_ready(step(trained, state))
    spent.append(time.process_time() - begun)
  return np.array(spent[WARM:])


def ask_peer(args, batch, models) -> dict[str, np.ndarray]:
  """The answers of the public code."""
  question = dict(batch)
  for inner, (_, params, tables) in models.items():
    for name, values in name_weights(params, tables).items():
      question[f'{inner}/{name}'] = np.asarray(values, np.float32)
  with tempfile.TemporaryDirectory() as folder:
    paths = [pathlib.Path(folder, name) for name in ('q.npz', 'a.npz')]
    np.savez(paths[0], **question)
    subprocess.run(
      [
        args.peer_python,
        str(pathlib.Path(__file__).with_name('peer_tbsm.py')),
        args.tbsm, args.dlrm, *map(str, paths),
      ],
      check=True,
      env={**os.environ, **ALLOCATOR, 'PYTHONPATH': ''},
    )  # fmt: skip
    return dict(np.load(paths[1]))


def name_weights(params, tables) -> dict[str, np.ndarray]:
  """Our parameters by the names that torch has for them."""
  found = {
    f'dlrm.emb_l.{i}.weight': table for i, table in enumerate(tables.values())
  }

  def add(prefix, layers, *names):
    for number, name in enumerate(names):
      # Between linear layers torch counts activations.
      found[f'{prefix}.{2 * number}.weight'] = layers[name]['kernel'].T
      found[f'{prefix}.{2 * number}.bias'] = layers[name]['bias']

  tower = params['encoder']['dlrm']
  add('dlrm.bot_l', tower['bottom'], 'out')
  add('dlrm.top_l', tower['top'], 'linear_0', 'out')
  head = params['head_0']
  if 'matrix' in head:
    found['ams.0.A'] = head['matrix'][None]
  add('ams.0.mlp', head['attention'], 'linear_0', 'linear_1', 'out')
  add('mlps.0', params['output_0'], 'linear_0', 'out')
  return found


if __name__ == '__main__':
  main()
