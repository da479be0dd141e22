"""A run of a second, and what must be equal when it was interrupted."""

import pathlib

import jax
import numpy as np

from genrec_jax import config as config_lib
from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.report.metric_writers import read_jsonl
from genrec_jax.runtime.state import flatten_state
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import experiment, loop

CONFIG = str(pathlib.Path(__file__).parents[2] / 'configs/quickstart.py:smoke')
STEPS = 20
EVAL_EVERY = CHECKPOINT_EVERY = 4
# 102 records train: seven steps an epoch, the last batch not full.
OVERRIDES = (
  'data.synthetic.records=120',
  'data.synthetic.length=12',
  'model.max_len=12',
  'split.valid_fraction=0.1',
  'split.test_fraction=0.05',
  'eval.splits=valid',
  'eval.batch_tokens=128',
  'train.batch_size=16',
  f'train.steps={STEPS}',
  'train.log_every=2',
  f'train.eval_every={EVAL_EVERY}',
  f'train.checkpoint_every={CHECKPOINT_EVERY}',
  'report.users=0',  # a predictor to compile
)


def config(*overrides):
  return config_lib.load(CONFIG, [*OVERRIDES, *overrides])


def train(workdir, *overrides):
  with jax.numpy_dtype_promotion('standard'):  # for optax
    return loop.train_and_evaluate(config(*overrides), workdir, TASK_KINDS)


def curve(workdir) -> list[dict]:
  """metrics.jsonl without what timings differ in."""
  return [
    {name: value for name, value in row.items() if not name.startswith('perf/')}
    for row in read_jsonl(pathlib.Path(workdir) / 'metrics.jsonl')
  ]


def steps_of(workdir, name: str) -> list[int]:
  """The steps at which a measurement was written."""
  return [row['step'] for row in curve(workdir) if name in row]


def weights(workdir, which='checkpoints', step=None, overrides=()) -> dict:
  """{name: array} of a checkpoint of a tiny run; checkpoints hold it all."""
  state = _describe_state(tuple(overrides), workdir)
  if which == 'best':
    state = {'params': state.params, 'tables': state.tables}
  with CheckpointManager(pathlib.Path(workdir) / which) as checkpoints:
    found, arrays, _ = checkpoints.restore(flatten_state(state), step=step)
  return {'saved at': np.int32(found), **jax.device_get(arrays)}


_STATES = {}  # overrides -> shapes, which all runs with them have


def _describe_state(overrides: tuple, workdir):
  if overrides not in _STATES:
    pieces = experiment.build_experiment(
      config(*overrides), workdir, TASK_KINDS, lambda *_: None
    )
    _STATES[overrides] = pieces.runtime.abstract_state()
  return _STATES[overrides]


def assert_same_bits(found: dict, wanted: dict) -> None:
  assert found.keys() == wanted.keys()
  for name, array in wanted.items():
    assert found[name].tobytes() == array.tobytes(), name


def assert_same_run(workdir, reference) -> None:
  """The same curve and the same weights, to the last bit."""
  assert curve(workdir) == curve(reference)
  for which in ('checkpoints', 'best'):
    assert_same_bits(weights(workdir, which), weights(reference, which))
