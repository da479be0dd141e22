"""Workdirs to files: whatever a checkpoint is like, tables come out whole."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.checkpoint.manifest import CheckpointError
from genrec_jax.embedding import relayout
from genrec_jax.weights import export, safetensors
from genrec_jax.weights.export import export_weights
from genrec_jax.weights.safetensors import WeightsError
from tests.checkpoint.laid_out import Setting
from tests.checkpoint.training import Training
from tests.embedding.plans import PLANS


@pytest.fixture
def workdir(tmp_path):
  """Of a run that nobody has made: a config, and what a test saves there."""
  text = json.dumps({'task': 'retrieval', 'seed': 7})
  (tmp_path / 'run').mkdir()
  (tmp_path / 'run' / 'config.json').write_text(text + '\n')
  return tmp_path / 'run'


def save(workdir, step, which='checkpoints', plan=None, **more):
  """A small state, whose numbers are those of its step."""
  state = {
    'step': jnp.int32(step),
    'params/a/kernel': jnp.full((2, 3), step, jnp.float32),
    'modules/m': jnp.arange(3, dtype=jnp.float32),
    'id_states/t/seen': jnp.arange(4, dtype=jnp.int32),
    'opt_state/0/mu/params/a/kernel': jnp.zeros((2, 3)),
    'sums/loss': jnp.zeros(2),
    **more,
  }
  host = {'data': 'of-monday', 'plan': plan}
  with CheckpointManager(workdir / which) as checkpoints:
    checkpoints.save(step, state, host=host)


def test_weights_and_nothing_else(workdir, tmp_path):
  items = jnp.arange(8, dtype=jnp.bfloat16).reshape(4, 2)
  save(workdir, 4, **{'tables/items': items, 'slots/items/sum': jnp.ones(4)})
  done = export_weights(workdir, tmp_path / 'new' / 'a.safetensors')
  file = safetensors.open_file(done.path)
  assert {n: str(s) for n, s in file.specs.items()} == {
    'params/a/kernel': 'float32[2,3]',
    'modules/m': 'float32[3]',
    'id_states/t/seen': 'int32[4]',
    'tables/items': 'bfloat16[4,2]',
  }
  np.testing.assert_array_equal(file['tables/items'], np.asarray(items))
  np.testing.assert_array_equal(file['params/a/kernel'], np.full((2, 3), 4))
  about = file.metadata
  assert json.loads(about['config']) == {'task': 'retrieval', 'seed': 7}
  assert (about['task'], about['step']) == ('retrieval', '4')
  assert about['data'] == 'of-monday' and about['format'] == 'genrec_jax 1'
  assert about['version']
  assert str(done).endswith('4 arrays with 21 numbers, of step 4')


@pytest.mark.parametrize(
  'checkpoint, step', [('best', 2), ('latest', 6), (4, 4)]
)
def test_which_checkpoint(workdir, tmp_path, checkpoint, step):
  for number in (4, 6):
    save(workdir, number)
  save(workdir, 2, 'best')
  done = export_weights(workdir, tmp_path / 'a', checkpoint)
  assert done.step == step
  assert (
    safetensors.open_file(tmp_path / 'a')['params/a/kernel'] == step
  ).all()


def test_refusals(workdir, tmp_path, caplog):
  with pytest.raises(CheckpointError, match='holds no checkpoint'):
    export_weights(workdir, tmp_path / 'a')
  with pytest.raises(FileNotFoundError, match='is not the workdir of a run'):
    export_weights(tmp_path / 'elsewhere', tmp_path / 'a')
  with pytest.raises(WeightsError, match="checkpoint is 'last', must be"):
    export_weights(workdir, tmp_path / 'a', 'last')
  save(workdir, 4)
  with pytest.raises(FileNotFoundError, match='no checkpoint of step 5'):
    export_weights(workdir, tmp_path / 'a', 5)
  with caplog.at_level('INFO', 'genrec_jax'):
    assert export_weights(workdir, tmp_path / 'a').step == 4
  assert 'no best checkpoint' in caplog.text
  assert not list(tmp_path.glob('.a.*'))


@pytest.mark.parametrize(
  'which, replicas', [*((which, 1) for which in PLANS), ('columns', 2)]
)
def test_tables_that_a_plan_has_cut(
  workdir, tmp_path, which, replicas, monkeypatch
):
  monkeypatch.setattr(export, 'RUN', 5)
  setting = Setting(which, replicas)
  plan = setting.layout.plan
  arrays = {f'tables/{n}': x for n, x in setting.arrays.items()}
  save(workdir, 1, plan=plan.to_json(), **arrays)
  export_weights(workdir, tmp_path / 'a')
  file = safetensors.open_file(tmp_path / 'a')
  tables = {n.removeprefix('tables/') for n in file if n.startswith('tables/')}
  assert tables == set(plan.tables)
  for name in tables:
    wanted = relayout.gather_table(setting.layout, setting.host[0], name)
    np.testing.assert_array_equal(file[f'tables/{name}'], wanted)


@pytest.mark.parametrize('bits', [32, 8])
def test_tables_that_were_saved_by_rows(workdir, tmp_path, bits):
  """A base and its deltas, as a restore would have them."""
  options = dict(policy='consecutive', bits=bits, chunk_rows=16)
  training = Training(workdir / 'checkpoints', keep=4, **options)
  training.train().save()
  training.train(2).save()
  training.train().save()
  training.checkpoints.wait()
  export_weights(workdir, tmp_path / 'a', 'latest')
  restored = Training(workdir / 'checkpoints', keep=4, **options).restore()
  file = safetensors.open_file(tmp_path / 'a')
  assert set(file) == {'tables/user', 'tables/item'}
  for name, array in restored.arrays.items():
    np.testing.assert_array_equal(file[f'tables/{name}'], array)
