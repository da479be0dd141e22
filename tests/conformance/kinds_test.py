"""What `contracts.TaskKind` promises of its data, evaluators and panels.

Every kind of the library is under test; one of the tests below trains each for
two steps, and all others look at what it has left.
"""

import dataclasses
import json
import pathlib
from typing import Any

import jax
import pytest

from genrec_jax import config as config_lib
from genrec_jax import contracts
from genrec_jax.embedding.local_tables import SingleDeviceEvalRuntime
from genrec_jax.serve.weights import load_weights
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import experiment as experiment_lib
from genrec_jax.train import loop
from tests.train import tiny_run

ROOT = pathlib.Path(__file__).parents[2]
STEPS = 2
TRAINING = (
  f'train.steps={STEPS}',
  'train.log_every=1',
  f'train.eval_every={STEPS}',
  f'train.checkpoint_every={STEPS}',
)
# Kind -> (config, overrides that make it tiny).
CONFIGS = {
  'retrieval': (
    tiny_run.CONFIG,
    (*tiny_run.OVERRIDES, *TRAINING, 'report.users=2'),
  ),
  'ranking': (
    f'{ROOT}/configs/wukong_synthetic.py:smoke',
    (
      *TRAINING,
      'data.clicks.rows=400',
      'model.layers=1',
      'report.importance_rows=50',
      'report.importance_repeats=1',
    ),
  ),
  # Shuffled, as other kinds; tests/train/request_ranking_test.py streams.
  'request_ranking': (
    f'{ROOT}/configs/gr_streaming.py:smoke',
    (*TRAINING, 'data.order=shuffled', 'model.blocks=1', 'report.users=2'),
  ),
}


@dataclasses.dataclass(frozen=True)
class Trained:
  """A kind of task and a run of it."""

  name: str
  config: Any
  workdir: pathlib.Path
  pieces: experiment_lib.Experiment
  report: dict

  @property
  def kind(self) -> contracts.TaskKind:
    return TASK_KINDS[self.name]


@pytest.fixture(scope='module', params=TASK_KINDS)
def trained(request, tmp_path_factory) -> Trained:
  name, workdir = request.param, tmp_path_factory.mktemp(request.param)
  config = config_lib.load(CONFIGS[name][0], list(CONFIGS[name][1]))
  with jax.numpy_dtype_promotion('standard'):  # for optax
    report = loop.train_and_evaluate(config, workdir, TASK_KINDS)
  pieces = experiment_lib.build_experiment(
    config, workdir, TASK_KINDS, lambda *_: None
  )
  return Trained(name, config, workdir, pieces, report)


def test_the_defaults_name_their_kind(trained):
  defaults = trained.kind.defaults()
  assert defaults.task == trained.name
  assert contracts.kind_of(defaults, TASK_KINDS) is trained.kind
  assert set(trained.config) == set(defaults), 'a section is missing'


def test_another_kind_is_an_error():
  config = TASK_KINDS['ranking'].defaults()
  config.task = 'weather'
  with pytest.raises(ValueError, match="is 'weather', must be one of ranking"):
    contracts.kind_of(config, TASK_KINDS)


def test_the_data_are_of_the_protocol(trained):
  data = trained.pieces.data
  assert isinstance(data, contracts.RunData)
  assert isinstance(data, trained.kind.data)
  assert data.splits and set(data.splits) <= {'train', 'valid', 'test'}
  assert '\n' not in data.summary()
  assert isinstance(data.task(trained.config), contracts.Task)


def test_loading_again_finds_the_same_data(trained):
  data, told = trained.pieces.data, []
  again = trained.kind.data.load(trained.config, trained.workdir, told.append)
  assert told and all(isinstance(line, str) for line in told)
  assert again.fingerprint() == data.fingerprint()
  assert again.summary() == data.summary()
  assert {p: len(x) for p, x in again.splits.items()} == {
    p: len(x) for p, x in data.splits.items()
  }


def test_an_epoch_has_every_example_once(trained):
  data, config = trained.pieces.data, trained.config
  batches = iter(trained.pieces.train_batches(config))
  steps = data.steps_per_epoch(config.train.batch_size)
  examples = 0
  for _ in range(steps):
    _, count = trained.pieces.task.count(next(batches))
    examples += int(count)
  assert examples == len(data.splits['train'])
  assert steps == -(-examples // config.train.batch_size)


def test_batches_go_on_where_they_stood(trained):
  batches = iter(trained.pieces.train_batches(trained.config))
  next(batches)
  state, wanted = batches.get_state(), next(batches)
  other = iter(trained.pieces.train_batches(trained.config))
  other.set_state(state)
  jax.tree.map(assert_equal, next(other), wanted)


def assert_equal(one, other):
  assert one.tobytes() == other.tobytes()


def test_a_workdir_keeps_what_predicting_needs(trained, tmp_path):
  data = trained.pieces.data
  assert (
    data.read_fingerprint(trained.workdir) == data.fingerprint()
  )  # the run's own
  with pytest.raises(FileNotFoundError):
    data.read_fingerprint(tmp_path)
  data.save_for_predicting(tmp_path)
  assert data.read_fingerprint(tmp_path) == data.fingerprint()
  data.save_for_predicting(tmp_path)  # again, as a run that continues does
  assert data.read_fingerprint(tmp_path) == data.fingerprint()


def test_evaluators_yield_what_they_name(trained):
  weights = load_weights(trained.workdir, trained.pieces.task, 'latest')
  pieces = dataclasses.replace(
    trained.pieces, runtime=SingleDeviceEvalRuntime()
  )
  evaluators = pieces.evaluators(trained.config)
  assert evaluators and set(evaluators) <= set(pieces.data.splits)
  for part, evaluator in evaluators.items():
    assert isinstance(evaluator, contracts.Evaluator)
    found = list(evaluator.run(weights))
    assert [name for name, _ in found] == evaluator.names()
    assert all(isinstance(value, float) for _, value in found)
    assert dict(found) == trained.report['last_epoch'][part]


def test_the_baseline_is_measured_like_a_model(trained):
  evaluators = trained.pieces.evaluators(trained.config)
  name, measure = trained.pieces.data.baseline()
  assert set(trained.report['baselines']) == {name}
  for part, evaluator in evaluators.items():
    found = measure(evaluator)
    assert list(found) == evaluator.names()
    assert trained.report['baselines'][name][part] == found


def test_panels_are_measured_at_the_end_of_a_run(trained):
  saved = json.loads((trained.workdir / 'report.json').read_text())
  assert trained.kind.panels
  for panel in trained.kind.panels:
    assert panel.name in trained.report and saved[panel.name]
    again = panel.measure(trained.config, trained.workdir, trained.pieces)
    assert json.loads(json.dumps(again)) == saved[panel.name]
    drawn = panel.draw and panel.draw(again)
    assert not drawn or '<section' in drawn


def test_every_kind_has_a_config():
  assert set(CONFIGS) == set(TASK_KINDS)
