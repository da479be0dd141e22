"""From a training to a file, to a published checkpoint, to another training."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import genrec_jax
from genrec_jax import config as config_lib
from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import loop
from genrec_jax.weights import convert, safetensors
from genrec_jax.weights.__main__ import main
from tests.train import tiny_run
from tests.weights.recorded import state_dict

MADE = pathlib.Path(__file__).parent / 'trainer.pt'
SHORT = (
  'optimizer.rows.name=row_adagrad',
  'train.steps=2',
  'train.eval_every=2',
  'train.checkpoint_every=2',
)


def train(workdir, *overrides):
  config = tiny_run.config(*SHORT, *overrides)
  with jax.numpy_dtype_promotion('standard'):  # for optax
    return loop.train_and_evaluate(config, workdir, TASK_KINDS)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """A workdir, and the file of its weights."""
  root = tmp_path_factory.mktemp('weights')
  train(root / 'run')
  main(['export', str(root / 'run'), str(root / 'own.safetensors')])
  return root


def test_a_run_that_begins_with_a_file(trained, tmp_path, caplog):
  """On a mesh; with rates of zero its weights stay what the file says."""
  file = safetensors.open_file(trained / 'own.safetensors')
  still = ['optimizer.learning_rate=0', 'optimizer.rows.learning_rate=0']
  still.append('parallel.devices=2')
  start = f'train.init_from={trained / "own.safetensors"}'
  with caplog.at_level('INFO', 'genrec_jax'):
    train(tmp_path / 'run', start, 'seed=5', *still)
  assert 'starting from ' + str(file.path) in caplog.text
  assert 'other data' not in caplog.text
  main(['export', str(tmp_path / 'run'), str(tmp_path / 'again')])
  again = safetensors.open_file(tmp_path / 'again')
  assert again.keys() == file.keys()
  for name in file:
    np.testing.assert_array_equal(again[name], file[name], err_msg=name)
  saved = json.loads(again.metadata['config'])
  assert saved['train']['init_from'] == str(file.path)


def test_a_continued_run_does_not_read_the_file_again(trained, tmp_path):
  file = tmp_path / 'moving.safetensors'
  file.write_bytes((trained / 'own.safetensors').read_bytes())
  start = f'train.init_from={file}'
  train(tmp_path / 'run', start)
  file.unlink()
  train(tmp_path / 'run', start, 'train.steps=3')
  with pytest.raises(config_lib.ConfigError, match='train.init_from'):
    train(tmp_path / 'run', 'train.steps=4')


def test_another_model_is_refused(trained, tmp_path):
  with pytest.raises(safetensors.WeightsError) as e:
    train(
      tmp_path / 'run',
      f'train.init_from={trained / "own.safetensors"}',
      'model.blocks=2',
    )
  assert 'missing in the file: params/layer_1/' in str(e.value)


def test_published_names_and_back(tmp_path, capsys):
  own = convert.from_published(state_dict('sasrec'), 'sasrec')
  (tmp_path / 'run').mkdir()
  (tmp_path / 'run' / 'config.json').write_text(
    '{"task": "retrieval", "model": {"name": "sasrec"}}'
  )
  with CheckpointManager(tmp_path / 'run' / 'checkpoints') as checkpoints:
    checkpoints.save(1, {n: jnp.asarray(x) for n, x in own.items()})
  there, here = tmp_path / 'there.safetensors', tmp_path / 'here.safetensors'
  main(['export', str(tmp_path / 'run'), str(there), '--names=sasrec'])
  assert 'with the names of sasrec' in capsys.readouterr().out
  file = safetensors.open_file(there)
  for name, array in state_dict('sasrec').items():
    np.testing.assert_array_equal(file[name], array, err_msg=name)
  main(['import', str(there), str(here), '--names=sasrec'])
  assert "They fit model.name='sasrec', dim=50" in capsys.readouterr().out
  again = safetensors.open_file(here)
  assert again.keys() == own.keys()
  for name in own:
    np.testing.assert_array_equal(again[name], own[name], err_msg=name)


def test_what_cannot_be_exported(trained, tmp_path):
  run = str(trained / 'run')
  with pytest.raises(SystemExit, match='is a directory; give the path of a fi'):
    main(['export', run, str(tmp_path)])
  saved = str(genrec_jax.load(run).save(tmp_path / 'saved'))
  with pytest.raises(SystemExit, match='holds the best weights only'):
    main(['export', saved, str(tmp_path / 'a'), '--checkpoint=latest'])
  own = convert.from_published(state_dict('sasrec'), 'sasrec')
  ids = np.array(['i1'] * (len(own['tables/items']) - 1))
  with pytest.raises(ValueError, match='must be integers; these are <U2'):
    convert.to_published(own, 'sasrec', ids)
  assert [x.name for x in tmp_path.iterdir()] == ['saved']


def test_what_nobody_has_published_keeps_the_older_file(trained, tmp_path):
  """The published HSTU has a time bias, and this run has none."""
  (tmp_path / 'a').write_text('old')
  with pytest.raises(SystemExit, match='missing .*params/layer_0/time_bias'):
    main(['export', str(trained / 'run'), str(tmp_path / 'a'), '--names=hstu'])
  assert (tmp_path / 'a').read_text() == 'old'
  assert len(list(tmp_path.iterdir())) == 1


def test_show(trained, capsys):
  main(['show', str(trained / 'own.safetensors')])
  text = capsys.readouterr().out
  assert 'tables/items  float32[' in text
  assert '"name": "row_adagrad"' in text


def test_what_a_file_says_cannot_command_a_terminal(tmp_path, capsys):
  path = str(tmp_path / 'a')
  arrays = {'\x1b[2Jname\n': np.ones(2)}
  safetensors.write_file(path, arrays, {'k\x9b': 'two\nlines\x07'})
  main(['show', path])
  shown = capsys.readouterr().out
  assert shown == '\\x1b[2Jname\\n  float64[2]\nk\\x9b: two\nlines\\x07\n'
  with pytest.raises(SystemExit) as e:
    main(['import', path, str(tmp_path / 'b'), '--names=hstu'])
  assert 'It holds \\x1b[2Jname\\n' in str(e.value.code)


@pytest.mark.parametrize(
  'contents', [b'', b'PK', b'\x93NUMPY\1\0v\0{' + b' ' * 200]
)
def test_ids_that_are_no_npy_file(contents, tmp_path):
  np.save(tmp_path / 'a.npy', np.arange(3))
  safetensors.write_file(tmp_path / 'a', state_dict('sasrec'))
  (tmp_path / 'ids').write_bytes(contents)
  with pytest.raises(SystemExit, match='ids is not an .npy file of integers: '):
    main(
      ['import', f'{tmp_path}/a', f'{tmp_path}/b', '--names=sasrec']
      + [f'--ids={tmp_path}/ids']
    )


@pytest.mark.parametrize(
  'arguments, message',
  [
    (['export', 'nowhere', 'a'], 'nowhere is not the workdir of a run'),
    (['export', 'nowhere', 'a', '--ids=b.npy'], '--ids is for the names of'),
    (['import', str(MADE), 'a', '--names=hstu'], '_item_emb.weight is missing'),
    (['import', 'none.pt', 'a', '--names=hstu'], 'No such file'),
    (['show', str(MADE)], 'is not a safetensors file: its header would have'),
  ],
)
def test_errors_are_words(arguments, message, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(SystemExit, match=message):
    main(arguments)
  assert not list(tmp_path.iterdir())
