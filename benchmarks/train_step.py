"""What one training step costs at the ML-1M shape, and where the time goes.

  python -m benchmarks.train_step
  python -m benchmarks.train_step --models hstu --steps 40

Batches of 128 users as training takes them; full forward, loss, backward and
AdamW on a batch that is ready. Every program is compiled beforehand. Prints the
step beside the peer (the published PyTorch code) at its best, where a file
benchmarks/results/<machine>/peer_generative_recommenders.json has one.
"""

import copy
import json
import os
import pathlib
import tempfile
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np

import pallas_kernels
from benchmarks import cli, ml1m_shape, result, timing
from genrec_jax.embedding import lookup
from genrec_jax.features import EVENTS
from genrec_jax.runtime.step import make_step

MODELS = ('hstu', 'sasrec', 'hstu_large')
PEER = 'peer_generative_recommenders'
COLUMNS = (
  'case', 'tokens', 'core_s', 'min_core_s', 'wall_s', 'compile_core_s',
  'compile_wall_s', 'shapes', 'peer_core_s', 'peer_x',
)  # fmt: skip


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('train_step', __doc__)
  parser.add_argument('--models', nargs='+', choices=MODELS, default=MODELS)
  parser.add_argument('--steps', type=int, default=25, help='measured (25)')
  parser.add_argument('--warmup', type=int, default=5, help='not measured (5)')
  args = parser.parse_args(argv)
  if args.smoke:
    args.steps, args.warmup = 2, 1
  rows = []
  with tempfile.TemporaryDirectory() as workdir:
    for name in args.models:
      rows += measure(
        name, pathlib.Path(workdir), args.steps, args.warmup, args.smoke
      )
  notes = [
    'core_s and wall_s are medians over the measured steps, min_* the least.',
    'peer_core_s is the least median of the published PyTorch code, allocator '
    'tuned, on the same machine; peer_x is how many times ours it is.',
    'Attention is one layer; the encoder is all of them, with its embedding.',
  ]
  cli.finish(args, 'train_step', rows, COLUMNS, notes)


def measure(name, workdir, steps: int, warmup: int, smoke: bool) -> list[dict]:
  """Rows of one model: the step, then its parts."""
  config, experiment, source = ml1m_shape.experiment(name, workdir, smoke=smoke)
  task, seed = experiment.task, config.seed
  state = experiment.runtime.fresh_state()
  stream = iter(experiment.train_batches(config))
  batches = [next(stream) for _ in range(warmup + steps)]
  shared = {
    'model': name,
    'data': source,
    'batch': config.train.batch_size,
    'load_1min': os.getloadavg()[0],
  }

  params, tables = jax.tree.map(np.asarray, (state.params, state.tables))
  step, cost = timing.ahead(
    make_step(task, experiment.tx, seed=seed),
    [(state, batch) for batch in batches],
    donate_argnums=0,
  )
  timers = []
  for batch in batches:
    (state, _), timer = timing.measure(step, state, batch)
    timers.append(timer)
  row = {
    'case': name,
    'part': 'step',
    **shared,
    **_tokens(batches[warmup:]),
    'steps': steps,
    **timing.summary(timers[warmup:]),
    **cost,
  }
  peer = peer_best('train_step', name)
  if peer and not smoke:
    row['peer_core_s'], row['peer_x'] = peer, peer / row['core_s']
  rows = [row]

  # The parts, on batches of the commonest shape alone.
  sizes = Counter(map(_capacity, batches))
  size = sizes.most_common(1)[0][0]
  usual = [b for b in batches if _capacity(b) == size]
  usual = [usual[i % len(usual)] for i in range(warmup + steps)]
  for part, (fn, arguments) in parts(config, task, params, tables).items():
    calls = [arguments(batch) for batch in usual]
    call, cost = timing.ahead(fn, calls)
    timers = [timing.measure(call, *c)[1] for c in calls]
    rows.append(
      {
        'case': f'{name}/{part}',
        'part': part,
        **shared,
        **_tokens(usual[warmup:]),
        'steps': steps,
        **timing.summary(timers[warmup:]),
        **cost,
      }
    )
  return rows


def parts(config, task, params, tables) -> dict:
  """Part -> (function, batch -> its arguments)."""
  model, key = config.model, jax.random.key(config.seed)
  params, tables = jax.device_put((params, tables))
  keys = jax.random.split(key, 4)

  def encode(params, tables, batch):
    reads = task.reads_for('predict', batch)
    rows = lookup.view_tables(tables, reads)
    return task.encode(params, rows, batch, key)

  def loss(queries, tables, batch):
    # The task's own loss, for representations that are there already.
    alone = copy.copy(task)
    alone.encode = lambda *args: queries
    rows = lookup.view_tables(tables, task.reads(batch, key))
    total, count = alone.loss({}, rows, batch, key)['loss']
    return total / jnp.maximum(count, 1.0)

  def attention(q, k, v, layer, batch):
    events = batch.jagged[EVENTS]
    options = _options(model, layer, events, key)
    return pallas_kernels.hstu_attention(q, k, v, events.lengths, **options)

  def random(key, batch, *shape):
    return jax.random.normal(key, (_capacity(batch), *shape))

  def qkv(batch):
    head = model.dim // model.heads
    dqk, dv = model.get('dqk', head), model.get('dv', head)
    q, k, v = (
      random(key, batch, model.heads, width)
      for key, width in zip(keys[1:], (dqk, dqk, dv), strict=True)
    )
    return q, k, v, params['layer_0'], batch

  def whole(batch):
    return params, tables, batch

  def both(fn, trained):
    """Forward and backward, through the first `trained` arguments."""
    return jax.value_and_grad(
      lambda *args: fn(*args).sum(), argnums=tuple(range(trained))
    )

  return {
    'encoder_forward': (encode, whole),
    'encoder_forward_backward': (both(encode, 2), whole),
    'loss_forward_backward': (
      both(loss, 2),
      lambda b: (random(keys[0], b, model.dim), tables, b),
    ),
    'attention_forward': (attention, qkv),
    'attention_forward_backward': (both(attention, 4), qkv),
  }


def _options(model, layer, events, key) -> dict:
  """The attention arguments of the model's first layer."""
  options = {'max_len': model.max_len}
  if model.name == 'sasrec':
    return options | {
      'mode': 'softmax',
      'alpha': (model.dim // model.heads) ** -0.5,
      'dropout': model.dropout,
      'dropout_seed': jax.random.bits(key),
    }
  return options | {
    'mode': model.attention,
    'normaliser': model.max_len + model.extra_positions,
    'position_bias': layer['position_bias'],
    'time_bias': layer['time_bias'],
    'query_time': events['next_time'],
    'time': events['time'],
  }


def peer_best(what: str, model: str) -> float | None:
  """Least core-seconds the peer was measured with on this kind of machine."""
  path = result.RESULTS / result.machine_kind() / f'{PEER}.json'
  if not path.exists():
    return None
  found = [
    row['core_s']
    for row in json.loads(path.read_text())['rows']
    if row['what'] == what and row['model'] == model
  ]
  return min(found, default=None)


def _capacity(batch) -> int:
  return batch.jagged[EVENTS]['item'].shape[0]


def _tokens(batches) -> dict:
  tokens = [int(b.jagged[EVENTS].lengths.sum()) for b in batches]
  return {'tokens': int(np.median(tokens)), 'least_tokens': min(tokens),
          'most_tokens': max(tokens)}  # fmt: skip


if __name__ == '__main__':
  main()
