import pytest

from genrec_jax.checkpoint.full import Checkpoints


class Log(list):
  __call__ = list.append

  def text(self):
    return '\n'.join(self)


@pytest.fixture
def log():
  return Log()


@pytest.fixture
def checkpoints(tmp_path, log):
  with Checkpoints(tmp_path / 'checkpoints', log=log) as c:
    yield c
