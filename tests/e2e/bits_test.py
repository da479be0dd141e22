"""What must agree to the last bit, on any number of devices."""

import numpy as np
import pytest

from genrec_jax.runtime.state import flatten_state
from genrec_jax.serve.weights import load_weights
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import experiment
from tests.e2e import spread_runs
from tests.e2e.spread_runs import MESH, ROWS
from tests.train import tiny_run

ORDER = ('parallel.determinism=mesh_invariant', 'train.eval_every=12')


def trained(directory, *overrides):
  """(losses, {name: weight}) of a run, tables put together."""
  overrides = (ROWS, *overrides)
  spread_runs.train(directory, 'hstu', *overrides)
  config = spread_runs.config('hstu', *overrides)
  task = experiment.load_task(config, directory, TASK_KINDS, log=lambda _: None)
  found = load_weights(directory, task, 'latest')
  losses = [
    row['train/loss']
    for row in tiny_run.curve(directory)
    if 'train/loss' in row
  ]
  return losses, flatten_state({'params': found.params, 'tables': found.tables})


def assert_same_bits(found, wanted):
  assert found[0] == wanted[0]
  assert found[1].keys() == wanted[1].keys()
  for name, weight in wanted[1].items():
    np.testing.assert_array_equal(found[1][name], weight, err_msg=name)


@pytest.fixture(scope='module')
def on_one_device(tmp_path_factory):
  return trained(tmp_path_factory.mktemp('one'), *ORDER)


@pytest.mark.parametrize(
  'mesh',
  [
    ('parallel.devices=2',),
    pytest.param(('parallel.devices=4',), marks=pytest.mark.slow),
    pytest.param(
      ('parallel.devices=8', 'parallel.scheme=table_wise'),
      marks=pytest.mark.slow,
    ),
    pytest.param(
      (*MESH, 'parallel.scheme=table_row_wise'),
      marks=pytest.mark.slow,
    ),
  ],
  ids=' '.join,
)
def test_order_does_not_see_devices(on_one_device, tmp_path, mesh):
  """Eight blocks of a batch, whoever has them."""
  assert_same_bits(trained(tmp_path, *ORDER, *mesh), on_one_device)


def test_exact_pipelining_changes_nothing(tmp_path):
  plain = trained(tmp_path / 'plain', *MESH)
  ahead = trained(tmp_path / 'ahead', *MESH, 'parallel.pipeline=exact')
  assert_same_bits(ahead, plain)
