"""Evaluations and predictions on a mesh: the same, no table in one place."""

import collections
import gc
import pathlib

import jax
import pytest

import genrec_jax
from genrec_jax import config as config_lib
from genrec_jax.checkpoint import workdir as workdir_lib
from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.config import rankers
from genrec_jax.contracts import kind_of
from genrec_jax.runtime.build import plan_eval_runtime
from genrec_jax.runtime.state import flatten_state
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import experiment, loop, results
from tests.marks import slow_but

WIDTH, DEVICES, SHARE = 64, 8, 1.2
ITEMS = 24_000  # so many that batches are small beside a share of the table


def configure_retrieval():
  config = config_lib.retrieval()
  config.model.update(dim=WIDTH, dqk=8, dv=8, blocks=1, max_len=8)
  config.model.time_bias = False
  config.data.synthetic.update(records=60, length=10, items=ITEMS)
  config.split.name = 'stream'
  config.loss.negatives = 4
  config.eval.update(ks=(1, 5), batch_size=16, batch_tokens=128)
  config.eval.item_chunk = 300
  config.predict.top_k = 7
  config.train.monitor = 'ndcg@5'
  return config


def configure_ranking():
  config = config_lib.ranking()
  config.model = rankers.dnn()
  config.model.update(dim=WIDTH, hidden=(8,))
  config.data.clicks.update(rows=600, fields=3, values=100)
  config.data.update(oov='hash', hash_rows=ITEMS // 3)
  config.eval.batch_size = 20  # no multiple of the devices
  return config


def configure_requests():
  config = config_lib.request_smoke(config_lib.request_ranking())
  config.model.update(
    dim=WIDTH, blocks=1, dqk=4, dv=4, token_hidden=8, head_hidden=8
  )
  config.data.streaming.update(users=24, items=ITEMS)
  config.eval.batch_size = 6
  return config


def configure_reading():
  """Items are scored from the table."""
  config = configure_retrieval()
  # Wide, so that the ids of all items, which every evaluation keeps on one
  # device, are little beside a share of the table.
  config.model.dim = 4 * WIDTH
  config.eval.keep_vectors = False
  return config


CONFIGS = {
  'retrieval': configure_retrieval,
  'vectors are read': configure_reading,
  'ranking': configure_ranking,
  'request_ranking': configure_requests,
}
SHOWN = {
  'retrieval': {'users': 2},
  'ranking': {'importance_rows': 50, 'importance_repeats': 1},
  'request_ranking': {'users': 2},
}
MESHES = {
  'one host, row_wise': dict(hosts=1, devices=8, scheme='row_wise'),
  'two hosts, row_wise': dict(hosts=2, devices=4, scheme='row_wise'),
}


def spread(config, **parallel):
  config = config.copy_and_resolve_references()
  config.parallel.update(parallel)
  return config


@pytest.fixture(scope='module', params=CONFIGS)
def run(request, tmp_path_factory):
  """(config, workdir, weights): of eight devices, before the first step."""
  root = tmp_path_factory.mktemp(request.param)
  config = CONFIGS[request.param]()
  config.optimizer.rows.name = 'row_adagrad'
  config.train.batch_size, config.seed = 16, 3
  config.report.users = 0
  config = config.lock()
  trained = spread(config, **MESHES['one host, row_wise'])
  workdir = root / 'run'
  workdir_lib.claim_workdir(workdir, trained.lock())
  found = experiment.build_experiment(
    trained, workdir, TASK_KINDS, log=lambda *_: None
  )
  found.data.save_for_predicting(workdir)
  with CheckpointManager(workdir / 'checkpoints', log=lambda *_: None) as saved:
    host = {
      'plan': found.runtime.plan.to_json(),
      'data': found.fingerprint(),
    }
    saved.save(1, flatten_state(found.runtime.fresh_state()), host=host)
  return config, workdir, found.parameters()


def evaluate(config, workdir):
  return results.evaluate_run(config, workdir, TASK_KINDS)


def predict(config, workdir, name) -> list[str]:
  config = config.copy_and_resolve_references()
  config.predict.output = str(pathlib.Path(workdir).parent / name)
  kind_of(config, TASK_KINDS).predict(
    config, workdir, None, make_runtime=plan_eval_runtime(config)
  )
  return pathlib.Path(config.predict.output).read_text().splitlines()


def predict_by_library(run):
  """What a program calls, on the mesh of the training."""
  if run.config.task == 'retrieval':
    assert len(run.recommend([[1, 2, 3]], k=3)[0]) == 3
    tables = run._predictor.weights['tables']
  else:
    one = {name: [1] for name in run.features}
    assert run.score(one).shape == (1,)
    tables = run._scorer._weights['tables']
  for array in tables.values():
    assert len(array.sharding.device_set) == DEVICES


def count_copies(config) -> float:
  """Copies of the tables that an evaluation may hold, over all devices."""
  keeps = config.task != 'retrieval' or config.eval.keep_vectors
  return 2.2 if keeps else 1.3


class LargestShare:
  """The most bytes of arrays that one device has held, beyond those before.

  Arrays are looked at whenever something is fetched from the devices, programs
  at the end.
  """

  def __init__(self, monkeypatch):
    gc.collect()  # what an earlier use has left
    self._before, self._known = self._count(), {*self._list_programs()}
    self.largest, self.total = 0, 0
    real = jax.device_get

    def watch(x):
      self.look()
      return real(x)

    monkeypatch.setattr(jax, 'device_get', watch)

  def look(self):
    held = self._count()
    own = {d: n - self._before[d] for d, n in held.items()}
    self.largest = max(self.largest, *own.values(), 0)
    self.total = max(self.total, sum(own.values()))

  def check(self, weights: dict, copies: float) -> None:
    """Fails where a device has held more than its share.

    Args:
      weights: how many there are, of the 'model' and in 'tables'.
      copies: of the tables, over all devices, that there may be at once; and
        that a program may make beside what it is given.
    """
    share, model = 4 * weights['tables'] / DEVICES, 4 * weights['model']
    made = self._list_programs()
    assert self.largest > share  # or nothing was looked at
    assert self.largest <= SHARE * self.total / DEVICES
    assert self.largest <= 4 * model + copies * SHARE * share
    for name in made.keys() - self._known:
      assert made[name] <= copies * share, (name, made[name] / share)

  def _list_programs(self) -> dict:
    """Program on all devices -> bytes that it takes on one."""
    found = {}
    for program in jax.devices()[0].client.live_executables():
      if len(program.local_devices()) == DEVICES:
        stats = program.get_compiled_memory_stats()
        outputs = stats.output_size_in_bytes - stats.alias_size_in_bytes
        name = program.hlo_modules()[0].name, program.fingerprint
        found[name] = stats.temp_size_in_bytes + outputs
    return found

  def _count(self):
    held, buffers = collections.Counter(), set()
    for array in jax.live_arrays():
      for shard in array.addressable_shards:
        # What one device has of an array is an array, too.
        buffer = shard.device, shard.data.unsafe_buffer_pointer()
        if buffer not in buffers:
          held[shard.device] += shard.data.nbytes
        buffers.add(buffer)
    return held


def choose_meshes(config) -> list[dict]:
  """Meshes of evaluations: of one host only where no other test has it.

  Requests are trained and evaluated on one host in
  `tests/train/request_ranking_test.py`; whether vectors are kept or read is
  decided before anyone asks for the hosts.
  """
  keeps = config.task != 'retrieval' or config.eval.keep_vectors
  if config.task == 'request_ranking' or not keeps:
    return [MESHES['two hosts, row_wise']]
  return [*MESHES.values()]


def test_evaluation(run, monkeypatch):
  config, workdir, weights = run
  one = evaluate(config, workdir)['metrics']
  for mesh in choose_meshes(config):
    held = LargestShare(monkeypatch)
    many = evaluate(spread(config, **mesh), workdir)['metrics']
    for split, metrics in one.items():
      for name, value in metrics.items():
        assert many[split][name] == pytest.approx(value, rel=1e-5), name
    held.check(weights, count_copies(config))


def test_predictions(run, monkeypatch):
  config, workdir, weights = run
  one = predict(config, workdir, 'one.csv')
  assert len(one) > 20
  # Evaluations are on one host, too.
  mesh = MESHES['two hosts, row_wise']
  held = LargestShare(monkeypatch)
  many = predict(spread(config, **mesh), workdir, 'many.csv')
  assert len(many) == len(one) and many[0] == one[0]
  for line, other in zip(one[1:], many[1:], strict=True):
    for value, another in zip(line.split(','), other.split(','), strict=True):
      if value != another:  # a score, rounded elsewhere
        assert float(another) == pytest.approx(float(value), rel=1e-5)
  held.check(weights, count_copies(config))


# Reports read vectors by what predictions do.
@pytest.mark.parametrize(
  'run',
  slow_but(CONFIGS, ['retrieval', 'ranking']),
  indirect=True,
)
def test_training_and_report(run, monkeypatch, tmp_path):
  """The state of the training is gone when the report loads its weights."""
  config, _, weights = run
  config = spread(config, **MESHES['two hosts, row_wise'])
  config.train.update(steps=2, eval_every=2, checkpoint_every=2)
  config.report.update(SHOWN[config.task])
  config.checkpoint.policy, config.checkpoint.publish.every = 'consecutive', 2
  held = LargestShare(monkeypatch)
  with jax.numpy_dtype_promotion('standard'):  # for optax
    report = loop.train_and_evaluate(config.lock(), tmp_path, TASK_KINDS)
  assert all(report[panel.name] for panel in TASK_KINDS[config.task].panels)
  if config.task != 'request_ranking':  # which `load` does not open
    predict_by_library(genrec_jax.load(tmp_path))
  held.check(weights, 2.2)
