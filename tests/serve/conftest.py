"""Two small runs to predict with: trained once, copied where a test writes."""

import pathlib
import shutil

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from genrec_jax import config as config_lib
from genrec_jax.checkpoint import workdir
from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.data import items
from genrec_jax.runtime.state import flatten_state
from genrec_jax.serve.predictor import Predictor
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import experiment, loop
from tests.serve import taught_events

USERS, ITEMS, MAX_LEN = 24, 30, 6


def write_log(path: pathlib.Path, seed: int, users, known=ITEMS, rows=220):
  """A CSV log with text ids, out of order and with ties in time."""
  rng = np.random.default_rng(seed)
  lines = ['user,time,item,stars']
  for n in range(rows):
    # Every user and every item occurs.
    user = users[
      n % len(users) if n < 4 * len(users) else rng.integers(0, len(users))
    ]
    item = n % known + 1 if n < 2 * known else rng.integers(1, known + 1)
    time = 1_700_000_000 + rng.integers(0, 40) * 3600
    lines.append(f'{user},{time},sku-{item:02d},{rng.integers(1, 6)}')
  path.write_text('\n'.join(lines) + '\n')


def tiny(config: ConfigDict) -> ConfigDict:
  config.model.update(dim=8, blocks=1, max_len=MAX_LEN)
  config.loss.negatives = 4
  config.train.update(
    batch_size=8, steps=4, eval_every=2, log_every=2, monitor='ndcg@5'
  )
  config.eval.update(ks=(1, 5), batch_size=8, batch_tokens=32, item_chunk=7)
  config.report.users = 1
  return config


@pytest.fixture(scope='session')
def trained(tmp_path_factory):
  """(config, workdir): HSTU with times on a CSV log with titles, trained."""
  root = tmp_path_factory.mktemp('trained')
  write_log(root / 'log.csv', 0, [f'u{n:02d}' for n in range(USERS)])
  (root / 'titles.csv').write_text(
    'item,title\n'
    + ''.join(f'sku-{n:02d},"Thing, number {n}"\n' for n in range(2, ITEMS + 1))
  )
  config = tiny(config_lib.retrieval())
  config.model.update(dqk=8, dv=8)
  config.data.update(
    name='csv', path=str(root / 'log.csv'), titles=str(root / 'titles.csv')
  )
  config.eval.filter_seen = 'history'
  with jax.numpy_dtype_promotion('standard'):  # optax is not strict
    loop.train_and_evaluate(config.lock(), root / 'run', TASK_KINDS)
  return config, root / 'run'


@pytest.fixture(scope='session')
def untimed(tmp_path_factory):
  """(config, workdir): SASRec on text with numbers as ids, not trained."""
  root = tmp_path_factory.mktemp('untimed')
  rng = np.random.default_rng(1)
  lines = [
    f'{user} {item}'
    for user in range(1, USERS + 1)
    for item in rng.integers(1, ITEMS + 1, 12)
  ]
  (root / 'sasrec.txt').write_text('\n'.join(lines) + '\n')
  config = tiny(config_lib.retrieval())
  config.model = config_lib.sasrec(dim=8, ffn_dim=8, blocks=1, max_len=MAX_LEN)
  config.data.update(name='sasrec_text', path=str(root / 'sasrec.txt'))
  directory = root / 'run'
  workdir.claim_workdir(directory, config.lock())
  found = experiment.build_experiment(
    config, directory, TASK_KINDS, log=lambda *_: None
  )
  items.keep_items(directory, found.data)
  with CheckpointManager(
    directory / 'checkpoints', log=lambda *_: None
  ) as saved:
    saved.save(1, flatten_state(found.runtime.fresh_state()))
  return config, directory


@pytest.fixture
def own(tmp_path, caplog):
  """own(run, **changes): a copy of a run's workdir, and its config changed."""

  caplog.set_level('INFO', 'genrec_jax')

  def make(run, **changes):
    config, source = run
    target = tmp_path / 'run'
    if not target.exists():
      shutil.copytree(source, target)
    config = ConfigDict(config.to_dict())
    for key, value in changes.items():
      config_lib.apply_override(config, f'{key.replace("__", ".")}={value}')
    return config.lock(), target

  return make


@pytest.fixture(scope='session')
def predictor(trained):
  """Of the trained run, compiled once."""
  config, directory = trained
  return Predictor.load(directory, config)


@pytest.fixture
def loaded(predictor, monkeypatch):
  """Predictions take the predictor of the session instead of loading one."""
  monkeypatch.setattr(Predictor, 'load', lambda *_: predictor)


@pytest.fixture(scope='session')
def done(tmp_path_factory):
  """A directory with events, teacher and parts, and what the service said."""
  folder = tmp_path_factory.mktemp('exfm')
  taught_events.make_events(folder / 'events')
  return folder, taught_events.run_both(
    folder, taught_events.options_of(folder)
  )
