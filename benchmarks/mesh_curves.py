"""Do models learn the same wherever their tables and layers lie?

  NPROC=32 JAX_NUM_CPU_DEVICES=8 python -m benchmarks.mesh_curves
  NPROC=32 JAX_NUM_CPU_DEVICES=8 python -m benchmarks.mesh_curves --models dcn

Four models take 12 steps on one device, and again under every scheme on 2, 4
and 8 fake devices, with every way of dense parameters and of exchange in turn;
on 8 also in an order of sums that does not depend on the mesh, beside one
device with that order and scheme. What is compared is the loss of each step and
the norm of its gradient. In an order of its own, each step of the mesh is also
taken by one device from the weights of the mesh, and what becomes of them is
compared: two runs may part where a ReLU turns, and a step has no time for it.
Ids, bags and labels are drawn; HSTU has sequences of its own data set,
generated.
"""

import dataclasses
import functools
import itertools
import os
import pathlib
import tempfile
from collections.abc import Iterable, Iterator

import jax
import numpy as np
import optax
from jax.sharding import PartitionSpec

from benchmarks import cli
from benchmarks.result import CoreTimer
from genrec_jax import config as config_lib
from genrec_jax.embedding import relayout
from genrec_jax.embedding.exchange import KINDS
from genrec_jax.embedding.scheme import SCHEMES
from genrec_jax.features import (
  Columns,
  Examples,
  FeatureSpec,
  Jagged,
  stack_columns,
)
from genrec_jax.report.metric_writers import read_jsonl
from genrec_jax.runtime import measurements
from genrec_jax.runtime.build import build_runtime
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.tasks.ranking import Ranking
from genrec_jax.train import loop

STEPS, BATCH = 12, 64
MEASURED = 'loss', 'grad_norm'
ORDERS = 'per_mesh', 'mesh_invariant'
MESHES = {2: (1, 2), 4: (2, 2), 8: (2, 4)}  # devices -> hosts, of a host
MESH_KEYS = 'hosts', 'devices', 'dense', 'exchange.kind'
DENSE = 'ddp', 'fsdp', 'hybrid', 'grad_op'
SIZES = 40, 300, 2_000, 60  # rows of tables; the last two are read by bags
BAG, NUMBERS = 6, 3
RANKERS = {
  'dlrm': (
    'DLRM, bags as sums',
    dict(dim=16, bottom=(32,), top=(32,), batch_norm=False),
  ),
  'wukong': ('Wukong', dict(dim=16)),
  'dcn': ('DCN-V2 with batch norm', dict(dim=16, batch_norm=True)),
}
SEQUENCES = {'hstu': 'HSTU'}
MODELS = (*RANKERS, *SEQUENCES)
COLUMNS = (
  'case', 'scheme', 'devices', 'dense', 'exchange', 'loss_x', 'norm_x',
  'weight_x', 'core_s',
)  # fmt: skip
NOTES = (
  f'{STEPS} steps of {BATCH} examples, row_adagrad and adam; loss_x, norm_x: '
  'the largest difference from one device of a step, over the value there.',
  'invariant: parallel.determinism=mesh_invariant with 8 blocks, beside one '
  'device with the same and the same scheme; its norm is summed in the order '
  'of the mesh.',
  'weight_x: the largest difference of a weight after a step that one device '
  'begins with the weights of the mesh, over the largest weight of its array.',
)
# Adam's first steps are signs, and where a gradient is rounding, its sign is
# chance. With this eps steps are smooth in gradients.
EPS = 1e-3


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('mesh_curves', __doc__)
  parser.add_argument('--models', nargs='+', choices=MODELS, default=MODELS)
  parser.add_argument(
    '--orders', nargs='*', choices=ORDERS, default=ORDERS,
    help='none: sums up what was measured before',
  )  # fmt: skip
  args = parser.parse_args(argv)
  if jax.device_count() < max(MESHES):
    cli.fail('needs 8 devices: set JAX_NUM_CPU_DEVICES=8 and NPROC=32')
  for model in args.models:
    of_model = []
    for row in compare(model, args.orders, args.smoke):
      of_model.append(row)
      print(cli.table([row], COLUMNS), flush=True)
    # What is not measured again stays.
    rows = cli.read_rows(args, 'mesh_curves')
    rows |= {row['case']: row for row in of_model}
    last = summarise(model, rows.values())
    cli.finish(args, 'mesh_curves', [*of_model, last], COLUMNS, NOTES)


def summarise(model: str, rows: Iterable[dict]) -> dict:
  """The largest differences of a model."""
  own = [r for r in rows if r['case'].startswith(f'{model}/')]
  most = {}
  for row in own:
    end = ''
    if row['order'] == 'mesh_invariant':
      # One device cuts no rows, and bits depend on how they are cut.
      end = '_cut' if SCHEMES[row['scheme']].many_pieces else '_invariant'
    for key in ('loss_x', 'norm_x', 'weight_x'):
      if key in row:
        most[key + end] = max(most.get(key + end, 0.0), row[key])
  name = SEQUENCES.get(model) or RANKERS[model][0]
  return {
    'case': model, 'kind': 'model', 'name': name, 'runs': len(own), **most
  }  # fmt: skip


def compare(model: str, orders, smoke: bool) -> Iterator[dict]:
  """A row for each placement of a model."""
  alone = {}
  for place in list_places(orders, smoke):
    order = place.pop('order')
    # The scheme says whether rows or sums travel, which round in other places.
    same = {'scheme': place['scheme']} if order == 'mesh_invariant' else {}
    key = order, *same.values()
    if key not in alone:
      alone[key] = take_steps(model, {'order': order, **same})[0]
    with CoreTimer() as timer:
      found, weights = take_steps(model, place | {'order': order})
    differences = np.abs(found - alone[key]) / np.abs(alone[key])
    loss, norm = differences.max(axis=0).tolist()
    words = place['scheme'], place['devices'], place['dense'], place['exchange']
    yield {
      'case': '/'.join(map(str, (model, *words, order))),
      'kind': 'run',
      'order': order,
      **place,
      'loss_x': loss,
      'norm_x': norm,
      **({} if weights is None else {'weight_x': weights}),
      'core_s': timer.core_s,
    }


def list_places(orders, smoke: bool) -> Iterator[dict]:
  """Where tables and layers lie, and how rows travel."""
  turns = zip(
    itertools.cycle(DENSE), itertools.cycle(KINDS), strict=False
  )  # fmt: skip
  for devices, scheme in itertools.product(MESHES, SCHEMES):
    dense, exchange = next(turns)
    if smoke and (devices, scheme) != (8, 'row_wise'):
      continue
    if 'per_mesh' in orders:
      yield dict(
        scheme=scheme, devices=devices, dense=dense, exchange=exchange,
        order='per_mesh',
      )  # fmt: skip
    if devices == 8 and 'mesh_invariant' in orders:
      yield dict(
        scheme=scheme, devices=devices, dense='ddp', exchange='all_to_all',
        order='mesh_invariant',
      )  # fmt: skip


def take_steps(model: str, place: dict) -> tuple[np.ndarray, float | None]:
  """`[STEPS, 2]`: loss and norm of the gradient of each step; `weight_x`."""
  overrides = {'determinism': place['order']}
  if place['order'] == 'mesh_invariant':
    overrides['reduction_blocks'] = 8
  if 'devices' in place:
    hosts, devices = MESHES[place['devices']]
    overrides |= {'hosts': hosts, 'devices': devices}
    overrides['dense'] = place['dense']
    overrides['exchange.kind'] = place['exchange']
  if 'scheme' in place:
    overrides['scheme'] = place['scheme']
  take = _train_sequences if model in SEQUENCES else _train_ranker
  return take(model, overrides)


def _train_sequences(model: str, overrides: dict) -> tuple[np.ndarray, None]:
  """Of a config of the library, which makes its data."""
  del model
  given = [f'parallel.{key}={value}' for key, value in overrides.items()]
  given += [
    f'train.steps={STEPS}', 'train.log_every=1', f'train.eval_every={STEPS}',
    f'train.checkpoint_every={STEPS}', 'train.batch_size=16', 'eval.splits=()',
    'optimizer.rows.name=row_adagrad', f'optimizer.eps={EPS}',
    'data.synthetic.records=120', 'data.synthetic.length=12',
    'model.max_len=12', 'report.users=0',
  ]  # fmt: skip
  config = config_lib.load('configs/quickstart.py:smoke', given)
  with tempfile.TemporaryDirectory() as folder:
    workdir = pathlib.Path(folder) / 'run'
    with jax.numpy_dtype_promotion('standard'):  # for optax
      loop.train_and_evaluate(config, workdir, TASK_KINDS)
    lines = read_jsonl(workdir / 'metrics.jsonl')
  found = [
    [r['train/loss'], r['train/grad_norm']] for r in lines if 'train/loss' in r
  ]
  return np.array(found), None


def _train_ranker(
  model: str, overrides: dict
) -> tuple[np.ndarray, float | None]:
  """Of drawn examples with single ids, bags and numbers."""
  runtime = _build_ranker(model, overrides)
  one = None
  if 'reduction_blocks' in overrides and 'devices' in overrides:
    alone = {k: x for k, x in overrides.items() if k not in MESH_KEYS}
    one = _build_ranker(model, alone)
    its_state, its_step = one.fresh_state(), one.step()
    copy_weights = _make_copier(runtime, one)
  state, step = runtime.fresh_state(), runtime.step()
  found, differences = [], []
  for number in range(STEPS):
    batch = draw_batch(number, runtime.shards)
    if one is not None:
      its_state = copy_weights(state, its_state)
      its_state, _ = its_step(its_state, one.put_on_devices(batch))
    state, _ = step(state, runtime.put_on_devices(batch))
    if one is not None:
      wanted = copy_weights(state, its_state)
      differences.append(_compare_weights(its_state, wanted))
    sums = jax.device_get(state.metric_sums)
    found.append([sums[name][0] / sums[name][1] for name in MEASURED])
    cleared = measurements.clear_sums(state.metric_sums)
    state = dataclasses.replace(state, metric_sums=cleared)
  return np.array(found), max(differences, default=None)


def _make_copier(runtime, one):
  """(state of a mesh, state of one device) -> the latter with its weights."""
  move = jax.shard_map(
    functools.partial(relayout.move_arrays, runtime.layout, one.layout),
    mesh=one.mesh,
    in_specs=PartitionSpec(),
    out_specs=PartitionSpec(),
    check_vma=False,
  )
  move = jax.jit(move)  # once

  def copy_weights(state, its_state):
    arrays, slots, params, opt_state = jax.device_get(
      (state.tables, state.row_opt_state, state.params, state.opt_state)
    )
    tables, slots = move(arrays, slots)
    copied = dataclasses.replace(
      its_state,
      tables=tables,
      row_opt_state=slots,
      params=params,
      opt_state=opt_state,
    )
    return jax.tree.map(
      lambda x, like: jax.device_put(x, like.sharding), copied, its_state
    )

  return copy_weights


def _compare_weights(a, b) -> float:
  """The largest difference, over the largest weight of each array."""
  pairs = zip(
    jax.tree.leaves((a.tables, a.params)),
    jax.tree.leaves((b.tables, b.params)),
    strict=True,
  )
  return max(
    float(np.abs(x - y).max() / max(np.abs(y).max(), 1e-30))
    for x, y in jax.device_get(list(pairs))
  )


def _build_ranker(model: str, overrides: dict):
  """The runtime of a model, on the devices that `overrides` name."""
  config = config_lib.ranking()
  config.train.batch_size = BATCH
  config.optimizer.rows.learning_rate = 0.1
  # In an order of its own, sums come from tables that one device has.
  config.parallel.pool = 'auto' if 'reduction_blocks' in overrides else 'sums'
  config.parallel.update_from_flattened_dict(overrides)
  fields = getattr(config_lib, model)(**RANKERS[model][1]).to_dict()
  kinds = ['categorical', 'categorical', 'multi_hot', 'multi_hot']
  features = [
    FeatureSpec(f'f{i}', kind, rows=rows, max_len=BAG * (kind == 'multi_hot'))
    for i, (kind, rows) in enumerate(zip(kinds, SIZES, strict=True))
  ] + [FeatureSpec(f'n{i}', 'numeric') for i in range(NUMBERS)]
  task = Ranking(
    fields.pop('name'), fields, {}, features=features, labels=('label',),
    table_update='row_adagrad', init_std=0.1,
  )  # fmt: skip
  tx = optax.adam(1e-3, eps=EPS)
  return build_runtime(config, task, tx)


def draw_batch(seed: int, shards: int) -> Examples:
  """Examples whose label goes by the parity of their ids."""
  rng = np.random.default_rng(seed)
  ids = [rng.integers(1, rows, BATCH) for rows in SIZES[:2]]
  labels = (sum(ids) % 2 == 0).astype(np.float32)
  return Examples(
    labels=stack_columns({'label': labels}, np.float32),
    weights=np.ones(BATCH, np.float32),
    ids=stack_columns({f'f{i}': x for i, x in enumerate(ids)}, np.int32),
    dense=Columns(
      rng.normal(size=(BATCH, NUMBERS)).astype(np.float32),
      tuple(f'n{i}' for i in range(NUMBERS)),
    ),
    jagged={
      f'f{i}': Jagged(
        stack_columns(
          {f'f{i}': rng.integers(1, SIZES[i], BATCH * BAG)}, np.int32
        ),
        np.full(BATCH, BAG, np.int32),
      )
      for i in (2, 3)
    },
    group=np.full(BATCH, -1, np.int32),
    first=np.arange(0, BATCH, BATCH // shards, dtype=np.int32),
  )


if __name__ == '__main__':
  os.environ.setdefault('NPROC', '32')  # fewer threads than devices would wait
  main()
