"""What a step needs, by the compiler: as many bytes as real arrays take."""

import jax
import pytest

from genrec_jax.config import ConfigError
from genrec_jax.parallel import slices
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import compile_ahead, experiment
from tests.train import tiny_run

pytestmark = pytest.mark.usefixtures('optax_promotes')
MESH = (
  'parallel.hosts=2',
  'parallel.devices=4',
  'optimizer.rows.name=row_adagrad',
)


def compile_tiny(workdir, name, *overrides):
  config = tiny_run.config(*overrides)
  both = experiment.load_data_and_task(
    config, workdir, TASK_KINDS, lambda *_: None
  )
  return compile_ahead.compile_step(config, *both, name)


def bytes_on_first_device(tree) -> int:
  device = jax.devices()[0]
  return sum(
    shard.data.nbytes
    for x in jax.tree.leaves(tree)
    for shard in x.addressable_shards
    if shard.device == device
  )


def test_arguments_are_the_state_and_the_batch_of_a_run(tmp_path):
  found = compile_tiny(tmp_path, 'here', *MESH)
  config = tiny_run.config(*MESH)
  pieces = experiment.build_experiment(
    config, tmp_path, TASK_KINDS, lambda *_: None
  )
  runtime = pieces.runtime
  state = runtime.fresh_state()
  source = iter(pieces.train_batches(config))
  batches = [next(source) for _ in range(8)]
  largest = max(
    bytes_on_first_device(runtime.put_on_devices(batch)) for batch in batches
  )
  assert found.devices == 8
  wanted = bytes_on_first_device(state) + largest
  # A number that no step reads is no argument of the program.
  assert wanted - 32 <= found.arguments <= wanted
  assert 0 < found.temporary


def test_the_text_says_what_does_not_fit(tmp_path):
  found = compile_tiny(
    tmp_path, 'here', *MESH, 'parallel.memory_gb=0.01', 'train.batch_size=64'
  )
  text = str(found)
  assert found.memory == 10_000_000
  assert '8 x' in text and '64 examples' in text
  assert ('which does not fit' in text) == (
    found.arguments + found.temporary > found.memory
  )
  assert 'does not fit' in str(
    compile_ahead.CompiledStep('x', 'y', 1, 1, 600, 500, 1_000, 0.0)
  )


@pytest.mark.parametrize(
  'name, overrides, message',
  [
    ('here', ('parallel.hosts=3', 'parallel.devices=4'), 'make 12; take'),
    ('here', ('parallel.pipeline=exact',), 'set parallel.pipeline=none'),
    ('v5p:2x2x2', MESH, 'pip install --no-deps libtpu'),
  ],
)
def test_what_cannot_be_compiled_for(
  name, overrides, message, tmp_path, monkeypatch
):
  monkeypatch.setattr(slices.importlib.util, 'find_spec', lambda _: None)
  with pytest.raises(ConfigError, match=message):
    compile_tiny(tmp_path, name, *overrides)


def test_a_slice_has_as_many_chips_as_the_mesh(tmp_path, monkeypatch):
  monkeypatch.setattr(slices, 'why_not', lambda: None)
  monkeypatch.setattr(slices, 'find_chips', lambda name: (None,) * 16)
  with pytest.raises(ConfigError, match='has 16 devices, .* make 8; take'):
    compile_tiny(tmp_path, 'v5p:2x2x4', *MESH)
