import pytest

from tests.e2e.commands import Commands


@pytest.fixture(scope='session')
def commands(tmp_path_factory):
  """Starts trainings, as processes."""
  return Commands(tmp_path_factory.mktemp('e2e'))
