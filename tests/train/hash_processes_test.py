"""`genrec learn_hash` in a job of several processes."""

import json

import jax
import pytest

from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import learn_hash
from tests import processes
from tests.train import hash_phases_test, learn_hash_test

TIMEOUT = 400.0  # of machines that are busy
MESH = {'parallel.hosts': 2, 'parallel.devices': 2}


def learn(workdir, make_config):
  """In a process of a job, twice: the second time, all is there."""
  jax.config.update('jax_numpy_dtype_promotion', 'standard')  # for optax
  config = make_config(**MESH)
  printed = learn_hash.learn_hash(config, workdir, TASK_KINDS)
  again = learn_hash.learn_hash(make_config(**MESH), workdir, TASK_KINDS)
  assert again == printed
  return printed


@pytest.mark.slow
def test_one_process_writes_for_all(tmp_path):
  own = [
    (tmp_path / 'once', learn_hash_test.make_config),
    (tmp_path / 'renewed', hash_phases_test.make_config),
  ]
  for workdir, make_config in own:
    one, other = processes.run(learn, workdir, make_config, timeout=TIMEOUT)
    assert one == other
    found = json.loads((workdir / 'hash.json').read_text())
    assert found['best'] in one
    left = [p for p in workdir.rglob('.*npz*') if p.is_file()]
    assert not left
