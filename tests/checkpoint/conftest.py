import os

import pytest

from genrec_jax.checkpoint.follow import Follower
from genrec_jax.checkpoint.manager import CheckpointManager
from tests.checkpoint.published import Published


class Log(list):
  __call__ = list.append

  def text(self):
    return '\n'.join(self)


@pytest.fixture
def log():
  return Log()


@pytest.fixture
def checkpoints(tmp_path, log):
  with CheckpointManager(tmp_path / 'checkpoints', log=log) as c:
    yield c


@pytest.fixture
def no_power_cut(monkeypatch):
  """Nothing here is about what the disk has; waiting for it takes long."""
  monkeypatch.setattr(os, 'fsync', lambda file: None)


@pytest.fixture
def run(tmp_path):
  return Published(tmp_path / 'run' / 'published')


@pytest.fixture
def copy(tmp_path):
  return tmp_path / 'copy'


@pytest.fixture
def follower(tmp_path, copy, log, run):
  with Follower(tmp_path / 'run', copy, log=log) as f:
    yield f
