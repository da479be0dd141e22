"""What a training step of a ranking model costs, and where the time goes.

  python -m benchmarks.ranking_step
  python -m benchmarks.ranking_step --models wukong --steps 40
  python -m benchmarks.ranking_step --peer FILE.json
  NPROC=1 python -m benchmarks.ranking_step --peer FILE.json   # one thread

Ten categorical fields, 5.4 thousand rows of tables, batches of 4,096, the
settings of configs/frappe.py: the shape of Frappe, on generated clicks. Parts:

  loop      batches as training takes them, each fed to a step
  step      the step alone, on a batch that is there
  model     forward and backward of the model alone, its vectors given
  matmuls   the matrix products of `model` alone, forward and two backward
  input     the making of batches alone

`model_share` is model / loop: what is not input, embedding or optimizer.

`dlrm_plain` has neither batch norm nor dropout, `wukong_fuxictr` is FuxiCTR's
default Wukong. `--peer` takes what its train_step of the same models cost in
the same hour: a JSON list of {'model', 'threads', 'core_s', 'min_core_s',
'wall_s', 'parameters', 'versions'}. The peer with as many threads is compared
with our `step`; neither includes the making of batches.
"""

import dataclasses
import json
import os
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks import cli, flops, timing
from benchmarks.result import CoreTimer
from genrec_jax import config as config_lib
from genrec_jax.embedding import lookup
from genrec_jax.models import RANKERS
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.tasks import losses
from genrec_jax.train import experiment as experiment_lib

MODELS = (
  'dnn', 'deepfm', 'dlrm', 'dlrm_plain', 'dcn', 'finalmlp', 'wukong',
  'wukong_fuxictr',
)  # fmt: skip
# Of FuxiCTR 2.3.10; its lists of widths are tuples here.
FUXICTR = dict(
  dim=64,
  layers=3,
  fmb=40,
  lcb=40,
  rank=8,
  attentive=False,
  fmb_hidden=(32, 32),
  last_relu=True,
  residual_bias=True,
  top=(32, 32),
  top_batch_norm=True,
)
COLUMNS = (
  'case', 'examples_per_s', 'examples_per_core_s', 'core_s', 'wall_s',
  'model_share', 'mflop', 'gflop_per_core_s', 'peer_core_s', 'peer_x',
  'peer_wall_x',
)  # fmt: skip


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('ranking_step', __doc__)
  parser.add_argument('--models', nargs='+', choices=MODELS, default=MODELS)
  parser.add_argument('--steps', type=int, default=20, help='measured (20)')
  parser.add_argument('--warmup', type=int, default=4, help='not measured (4)')
  parser.add_argument('--peer', help='JSON file of measured rows', default='')
  args = parser.parse_args(argv)
  peers = json.loads(pathlib.Path(args.peer).read_text()) if args.peer else []
  if args.smoke:
    args.steps, args.warmup = 2, 1
  rows = []
  with tempfile.TemporaryDirectory() as workdir:
    for name in args.models:
      found = measure(name, pathlib.Path(workdir), args)
      rows += beside(found, [peer for peer in peers if peer['model'] == name])
  notes = [
    'core_s and wall_s of a batch: medians over the steps, of loop and input '
    'their mean.',
    'mflop: 6 x multiply-accumulates of dense layers, per example.',
  ]
  cli.finish(args, 'ranking_step', rows, COLUMNS, notes)


def beside(rows: list[dict], peers: list[dict]) -> list[dict]:
  """Puts the peer's run with as many threads beside ours."""
  if not peers:
    return rows
  step = next(row for row in rows if row['part'] == 'step')
  peers = [peer for peer in peers if peer['threads'] == threads()]
  for peer in peers:
    for row in (rows[0], step):
      row['peer_core_s'] = peer['core_s']
      row['peer_x'] = peer['core_s'] / step['core_s']
      row['peer_wall_x'] = peer['wall_s'] / step['wall_s']
    if peer['parameters'] != rows[0]['parameters']:
      rows[0]['peer_parameters'] = peer['parameters']
  return rows + [
    {'case': f'{rows[0]["case"]}/peer', 'part': 'peer', **peer}
    for peer in peers
  ]


def threads() -> int:
  """That XLA computes with on this machine."""
  return int(os.environ.get('NPROC') or os.cpu_count())


def settings(name: str, smoke: bool):
  """The config of a model at the shape of Frappe."""
  base = name.partition('_')[0]
  file = 'wukong_frappe.py' if base == 'wukong' else f'frappe.py:{base}'
  config = config_lib.load(
    f'{pathlib.Path(__file__).parents[1]}/configs/{file}'
  )
  config.unlock()
  config.data.name = 'clicks'
  config.data.clicks.update(
    rows=8_000 if smoke else 120_000, fields=10, values=538, numbers=0
  )
  if name == 'dlrm_plain':
    config.model.update(batch_norm=False, dropout=0.0)
  if name == 'wukong_fuxictr':
    config.model = config_lib.wukong(**FUXICTR)
  if name == 'finalmlp':
    config.model.context1, config.model.context2 = ('c0',), ('c1',)
  if name == 'wukong':
    config.model.important = {}
  if smoke:
    config.train.batch_size = 512
  return config


def measure(name: str, workdir: pathlib.Path, args) -> list[dict]:
  """Rows of one model, the whole loop first."""
  config = settings(name, args.smoke)
  experiment = experiment_lib.build_experiment(
    config, workdir, TASK_KINDS, log=lambda *_: None
  )
  task, runtime, size = (
    experiment.task,
    experiment.runtime,
    config.train.batch_size,
  )
  shared = {
    'model': name,
    'threads': threads(),
    'batch': size,
    'load_1min': os.getloadavg()[0],
  }
  count = args.steps + args.warmup
  stream = iter(experiment.train_batches(config))
  batches = [next(stream) for _ in range(count)]

  state, step = runtime.fresh_state(), runtime.step()
  timers = []
  for batch in batches:
    (state, _), timer = timing.measure(step, state, batch)
    timers.append(timer)
  parts = {'step': timing.summary(timers[args.warmup :])}

  with CoreTimer() as timer:
    for _ in range(args.steps):
      state, loss = step(state, next(stream))
    jax.block_until_ready(loss)
  parts['loop'] = each(timer, args.steps)
  with CoreTimer() as timer:
    for _ in range(args.steps):
      next(stream)
  parts['input'] = each(timer, args.steps)

  for part, (fn, arguments) in alone(task, state, batches[0]).items():
    call, _ = timing.ahead(fn, [arguments])
    timers = [timing.measure(call, *arguments)[1] for _ in range(count)]
    parts[part] = timing.summary(timers[args.warmup :])

  model = RANKERS[config.model.name], task.model_config, task.features
  macs = flops.count_macs(*model)
  loop = parts['loop']
  case = f'{name}/1_thread' if threads() == 1 else name
  rows = []
  for part in ('loop', 'step', 'model', 'matmuls', 'input'):
    found = parts[part]
    rows.append(
      {
        'case': case if part == 'loop' else f'{case}/{part}',
        'part': part,
        **shared,
        **found,
        'examples_per_s': size / found['wall_s'],
        'examples_per_core_s': size / found['core_s'],
      }
    )
  rows[0] |= {
    'model_share': parts['model']['core_s'] / loop['core_s'],
    'matmul_share': parts['matmuls']['core_s'] / loop['core_s'],
    'parameters': flops.count_parameters(*model),
    'mflop': macs.mflop,
    'gflop_per_core_s': 6e-9 * macs.total * size / loop['core_s'],
  }
  return rows


def each(timer: CoreTimer, count: int) -> dict:
  return {'core_s': timer.core_s / count, 'wall_s': timer.wall_s / count}


def alone(task, state, batch) -> dict:
  """Part -> (function, its arguments)."""
  views = lookup.view_tables(state.tables, task.reads(batch))
  x = jax.tree.map(jnp.array, task.inputs(views, batch))
  params = jax.tree.map(jnp.array, state.params)
  key = jax.random.key(0)

  def loss(params, vectors, linear):
    model = nnx.merge(task.graphdef, nnx.State(jax.tree.map(nnx.Param, params)))
    seen = dataclasses.replace(x, vectors=vectors, linear=linear)
    labels = batch.labels.select(task.labels)
    return jnp.sum(losses.logistic_loss(model(seen, key), labels))

  model = jax.value_and_grad(loss, argnums=(0, 1, 2))
  products = matrix_products(model, (params, x.vectors, x.linear))
  rng = np.random.default_rng(0)
  operands = tuple(
    tuple(
      jnp.asarray(rng.normal(size=v.aval.shape), jnp.float32)
      for v in equation.invars
    )
    for equation in products
  )

  def matmuls(operands):
    found = []
    for equation, pair in zip(products, operands, strict=True):
      y = jax.lax.dot_general(
        *pair, dimension_numbers=equation.params['dimension_numbers']
      )
      found.append(y)
    return found

  return {
    'model': (model, (params, x.vectors, x.linear)),
    'matmuls': (matmuls, (operands,)),
  }


def matrix_products(fn, arguments) -> list:
  """The dot_generals of a function, those of inner functions too."""
  return list(flops.products(jax.make_jaxpr(fn)(*arguments).jaxpr))


if __name__ == '__main__':
  main()
