"""Whole saves to gs://: Orbax's driver and ours, against an emulated store.

The emulator speaks the protocol of Google's store over HTTP.
"""

import importlib.util
import logging
import multiprocessing
import os
import random
import signal
import time

import jax
import numpy as np
import pytest

from genrec_jax.checkpoint import inspect, manifest, storage
from genrec_jax.checkpoint.delta import DeltaOptions, RowSaver, RowTables
from genrec_jax.checkpoint.manager import CheckpointError, CheckpointManager
from tests.checkpoint import checkpoint_content as content
from tests.checkpoint import rows_content

emulator = pytest.importorskip('gcp_storage_emulator.server')
if importlib.util.find_spec('gcsfs') is None:  # its import reads variables
  pytest.skip('gcsfs is not installed', allow_module_level=True)

pytestmark = [
  pytest.mark.slow,
  pytest.mark.filterwarnings('ignore'),  # of gcsfs and the emulator
]

ROWS, TRIALS = 2_000, 4


@pytest.fixture(scope='module')
def bucket():
  """gs://bucket, an empty store in memory."""
  server = emulator.create_server(
    'localhost', 0, in_memory=True, default_bucket='bucket'
  )
  logging.disable()
  server.start()
  port = server._api._httpd.server_address[1]
  variables = {
    'STORAGE_EMULATOR_HOST': f'http://localhost:{port}',
    'TENSORSTORE_GCS_HTTP_URL': f'http://localhost:{port}',
    'GOOGLE_AUTH_TOKEN_FOR_TESTING': 'none',
    'EPATH_USE_TF': 'false',
    'GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT': 'false',  # asks what kind it is
  }
  with pytest.MonkeyPatch.context() as patch:
    for name, value in variables.items():
      patch.setenv(name, value)
    yield 'gs://bucket'
  server.stop()
  logging.disable(logging.NOTSET)


def test_saves_restores_and_removes(bucket, log, capsys):
  with CheckpointManager(f'{bucket}/a/checkpoints', log=log) as checkpoints:
    assert checkpoints.latest() is None
    content.save_all(checkpoints, 1, 2, 3)
    assert manifest.list_steps(checkpoints.directory) == [2, 3]
    content.assert_restores(checkpoints, 3)
    content.assert_restores(checkpoints, 2, by_name=True)
    with pytest.raises(CheckpointError, match='step 3 is already saved in gs:'):
      content.save(checkpoints, 3)
  assert log == []
  assert inspect.main([f'{bucket}/a']) == 0
  assert 'step 3: 5 dense arrays' in capsys.readouterr().out


def test_damage_is_seen(bucket, log):
  with CheckpointManager(f'{bucket}/b', log=log) as checkpoints:
    content.save_all(checkpoints, 1, 2)
    path = checkpoints.directory / '2' / 'state' / '_METADATA'
    path.write_bytes(path.read_bytes()[:-1])
    content.assert_restores(checkpoints, 1)
  assert 'step 2 skipped, damaged: state/_METADATA has' in log.text()


def test_rows(bucket, log):
  stacks = rows_content.stacks()
  with CheckpointManager(f'{bucket}/c', keep=1, log=log) as checkpoints:
    saver = RowSaver(checkpoints, stacks, DeltaOptions(), log=log)
    for step in (1, 2):
      arrays, slots, dirty_rows = rows_content.state(step)
      tables = RowTables(arrays, slots, dirty_rows)
      saver.save(step, {'w': np.zeros(3) + jax.numpy.ones(3)}, tables)
    checkpoints.wait()
    assert manifest.list_steps(checkpoints.directory) == [1, 2]  # a base stays
    found = checkpoints.restore_rows(
      checkpoints.latest(), stacks, arrays, slots
    )
  np.testing.assert_array_equal(found.arrays['s'], arrays['s'])
  assert log == []


def train(directory):
  """Saves every step from where it left, for ever."""
  checkpoints = CheckpointManager(directory, log=lambda message: None)
  step, it = 0, content.iterator()
  if checkpoints.latest() is not None:
    state = content.state(0, ROWS)
    step, state, host = checkpoints.restore(state, data=it)
    content.assert_is_step(step, state, host)
  while True:
    step += 1
    next(it)
    state = content.state(step, ROWS)
    checkpoints.save(step, state, data=it, host=content.host(step))


def test_killed_at_random_moments(bucket, log):
  directory = f'{bucket}/d'
  context = multiprocessing.get_context('spawn')
  rng, reached = random.Random(0), 0
  for trial in range(TRIALS):
    process = context.Process(target=train, args=(directory,), daemon=True)
    process.start()
    place = storage.absolute_path(directory)
    deadline = time.monotonic() + 120
    while max(manifest.list_steps(place), default=0) <= reached + 1:
      assert process.is_alive() and time.monotonic() < deadline, trial
      time.sleep(0.1)
    time.sleep(rng.uniform(0, 1))
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with CheckpointManager(directory, log=log) as checkpoints:
      it = content.iterator()
      step, state, host = checkpoints.restore(content.state(0, ROWS), data=it)
    content.assert_is_step(step, state, host, it)
    assert step >= reached
    reached = step
  assert 'damaged' not in log.text()
