"""A run on one device."""

import dataclasses

import optax
import pytest

from genrec_jax import config as config_lib
from genrec_jax.config import ConfigError
from genrec_jax.runtime import build, measurements
from genrec_jax.runtime.single_device import SingleDeviceRuntime
from tests.runtime.toy_task import Toy, batch

pytestmark = pytest.mark.usefixtures('optax_promotes')


@pytest.mark.parametrize('update', ['dense', 'row_adagrad'])
def test_a_step_is_compiled_once(update):
  """The line of a log between two steps changes nothing of the program."""
  runtime = SingleDeviceRuntime(
    config_lib.ranking(), Toy(update), optax.adam(0.1)
  )
  state, step = runtime.fresh_state(), runtime.step()
  for number in range(3):
    state, _ = step(state, batch(number))
    cleared = measurements.clear_sums(state.metric_sums)
    state = dataclasses.replace(state, metric_sums=cleared)
  assert step._cache_size() == 1


def test_several_processes_need_a_mesh_of_several_devices(monkeypatch):
  monkeypatch.setattr(build.job, 'process_count', lambda: 2)
  with pytest.raises(ConfigError, match='2 processes have been .*hosts=2'):
    build.build_runtime(config_lib.ranking(), None, None)
