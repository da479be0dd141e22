"""Running averages of the dense parameters, `optimizer.average`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax.contracts import weights_of
from genrec_jax.runtime.state import average_params
from genrec_jax.serve import weights as weights_lib
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import experiment
from genrec_jax.weights import export, safetensors
from tests.marks import slow
from tests.train import tiny_run
from tests.train.tiny_run import assert_same_bits, curve, train

AVERAGE = 'optimizer.average=0.6'
# Rows by themselves, a rate at which an average is not the parameter, and a
# checkpoint at each step.
SETTINGS = (
  'optimizer.rows.name=row_adagrad',
  'optimizer.learning_rate=0.05',
  'train.steps=6',
  'train.eval_every=3',
  'train.checkpoint_every=1',
  'train.keep_checkpoints=10',
)


@pytest.fixture(scope='module')
def averaged(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('averaged')
  train(workdir, *SETTINGS, AVERAGE)
  return workdir


@pytest.fixture(scope='module')
def plain(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('plain')
  train(workdir, *SETTINGS)
  return workdir


def read_steps(workdir) -> list[dict]:
  """All arrays of the checkpoints of the steps 0 to 6; step 0 is none."""
  own = (*SETTINGS, AVERAGE)
  return [
    tiny_run.weights(workdir, step=step, overrides=own) for step in range(1, 7)
  ]


def load(workdir, which, *overrides):
  pieces = experiment.build_experiment(
    tiny_run.config(*SETTINGS, *overrides), workdir, TASK_KINDS, lambda *_: None
  )
  return weights_lib.load_weights(workdir, pieces.task, which)


def test_an_average_follows_the_parameters(averaged):
  """By its definition, in float64, over the checkpoints of a run."""
  steps = read_steps(averaged)
  names = [n for n in steps[0] if n.startswith('averaged/')]
  assert names
  moved = 0
  for name in names:
    own = name.replace('averaged/', 'params/', 1)
    wanted = np.float64(steps[0][name])
    for step, arrays in enumerate(steps[1:], start=1):
      keep = min(0.6, (1 + step) / (4 + step))
      wanted = keep * wanted + (1 - keep) * np.float64(arrays[own])
      np.testing.assert_allclose(arrays[name], wanted, rtol=2e-6, atol=1e-7)
    moved += not np.array_equal(arrays[name], arrays[own])
  assert moved


def test_the_training_is_the_same_with_averages(averaged, plain):
  last = tiny_run.weights(plain, overrides=SETTINGS)
  kept = read_steps(averaged)[-1]
  assert_same_bits({name: kept[name] for name in last}, last)


def test_evaluations_have_the_averages(averaged, plain):
  def list_metrics(workdir):
    rows = curve(workdir)
    return [
      {name: value for name, value in row.items() if name.startswith('valid/')}
      for row in rows
    ]

  assert list_metrics(averaged) != list_metrics(plain)


def test_weights_for_predictions_are_the_averages(averaged):
  last = read_steps(averaged)[-1]
  for which in ('latest', 'best'):
    found = load(averaged, which, AVERAGE)
    kept = read_steps(averaged)[found.step - 1]
    for path, leaf in jax.tree_util.tree_leaves_with_path(found.params):
      name = jax.tree_util.keystr(path, simple=True, separator='/')
      np.testing.assert_array_equal(leaf, kept[f'averaged/{name}'])
  assert found.step <= last['saved at']


@pytest.mark.parametrize('which', ['latest', 'best'])
def test_exports_are_what_predicts(averaged, tmp_path, which):
  file = tmp_path / 'weights.safetensors'
  export.export_weights(averaged, file, which)
  written = safetensors.open_file(file)
  found = load(averaged, which, AVERAGE)
  for path, leaf in jax.tree_util.tree_leaves_with_path(found.params):
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    np.testing.assert_array_equal(written[f'params/{name}'], leaf)
  assert not [name for name in written.specs if name.startswith('averaged')]


def test_averages_begin_with_weights_from_a_file(averaged, tmp_path):
  file = tmp_path / 'weights.safetensors'
  export.export_weights(averaged, file, 'latest')
  more = (*SETTINGS, AVERAGE, f'train.init_from={file}', 'train.steps=1')
  train(tmp_path / 'run', *more)
  found = tiny_run.weights(tmp_path / 'run', overrides=(*SETTINGS, AVERAGE))
  written = safetensors.open_file(file)
  for name in [n for n in found if n.startswith('params/')]:
    # In the first step the share is a quarter.
    wanted = 0.25 * written[name] + 0.75 * found[name]
    kept = found[name.replace('params/', 'averaged/', 1)]
    np.testing.assert_allclose(kept, wanted, rtol=1e-5, atol=1e-6)


def test_a_run_that_goes_on_has_the_same_bits(averaged, tmp_path):
  train(tmp_path, *SETTINGS, AVERAGE, 'train.steps=4')
  train(tmp_path, *SETTINGS, AVERAGE)
  assert_same_bits(
    tiny_run.weights(tmp_path, overrides=(*SETTINGS, AVERAGE)),
    read_steps(averaged)[-1],
  )


@pytest.mark.parametrize('policy', ['', slow('consecutive')])
def test_a_mesh_averages_alike(averaged, tmp_path, policy):
  """Eight devices, parameters in shards; then on from one device's."""
  mesh = ('parallel.hosts=2', 'parallel.devices=4', 'parallel.dense=fsdp')
  saved = f'checkpoint.policy={policy}'
  train(tmp_path, *SETTINGS, AVERAGE, *mesh, saved, 'train.steps=3')
  train(tmp_path, *SETTINGS, AVERAGE, saved)
  found = load(tmp_path, 'latest', AVERAGE).params
  wanted = load(averaged, 'latest', AVERAGE).params
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-2, atol=1e-3),
    found,
    wanted,
  )


def test_statistics_are_averages_already():
  params = {'norm': {'running_mean': jnp.ones(2), 'scale': jnp.ones(2)}}
  zeros = jax.tree.map(jnp.zeros_like, params)
  found = average_params(zeros, params, 0.5, jnp.int32(100))['norm']
  np.testing.assert_array_equal(found['running_mean'], 1)
  np.testing.assert_array_equal(found['scale'], 0.5)


def test_evaluations_of_states_without_averages_have_the_parameters():
  class State:
    params, tables, id_states, modules = {'a': 1}, {}, {}, {}

  assert weights_of(State)['params'] == {'a': 1}
