"""Settings that an optimizer ignores are refused, and no others."""

import doctest
import json
import pathlib

import pytest

from genrec_jax import config as config_lib
from genrec_jax.config import ConfigError
from genrec_jax.embedding.row_optimizers import ROW_OPTIMIZERS
from genrec_jax.runtime import optimizer, unused_settings
from genrec_jax.runtime.unused_settings import find_unused
from tests.train import tiny_run

CONFIGS = pathlib.Path(__file__).parents[2] / 'configs'


def changed(rows=None, tables=(), **settings):
  config = config_lib.retrieval()
  config.optimizer.update(settings)
  config.optimizer.rows.update(rows or {})
  config.tables = tables
  return config


@pytest.mark.parametrize(
  'settings, key',
  [
    (dict(name='adam', weight_decay=0.1), 'optimizer.weight_decay is 0.1, and'),
    (dict(name='sgd', weight_decay=0.1), 'sgd has no use'),
    (dict(name='sgd', b1=0.5), 'optimizer.b1 is 0.5'),
    (dict(name='sgd', b2=0.5), 'that has (adamw, adam), or b2 to 0.98'),
    (dict(name='sgd', eps=1e-6), 'optimizer.eps is 1e-06'),
    (
      dict(name='adam', groups=(('a', {'weight_decay': 0.1}),)),
      "optimizer.groups, 'a': weight_decay is 0.1, and adam has no use for it",
    ),
    (dict(groups=(('a', {'name': 'sgd', 'b1': 0.5}),)), "groups, 'a': b1"),
    (
      dict(weight_decay=0.1, groups=(('a', {'name': 'adam'}),)),
      "optimizer.groups, 'a': weight_decay is 0.1",
    ),
    (
      dict(rows=dict(weight_decay=0.1)),
      'optimizer.rows.weight_decay is 0.1, and no table has a row optimizer',
    ),
    (dict(rows=dict(learning_rate=0.1)), 'set optimizer.rows.name (such as'),
    (dict(rows=dict(name='row_adagrad', b1=0.5)), 'optimizer.rows.b1 is 0.5'),
    (dict(rows=dict(name='sgd', eps=1e-6)), 'optimizer.rows.eps'),
    (dict(rows=dict(name='adam', momentum=0.5)), '(momentum, lars)'),
    (
      dict(tables=(('a', {'optimizer': 'row_adagrad', 'b1': 0.5}),)),
      "config.tables, 'a': b1 is 0.5, and row_adagrad has no use for it",
    ),
    (dict(decay_steps=9), 'optimizer.decay_steps is 9, and a constant rate'),
    (dict(end_factor=0.1), 'optimizer.end_factor is 0.1, and a constant rate'),
    (dict(plateau_min_rate=1e-6), 'optimizer.plateau_min_rate is 1e-06, and'),
    (dict(plateau_min=1e-6), 'set plateau_factor, or plateau_min to 0.001'),
  ],
)
def test_what_would_change_nothing(settings, key):
  [said] = find_unused(changed(**settings))
  assert key in said


@pytest.mark.parametrize(
  'settings',
  [
    {},
    dict(name='sgd'),
    dict(name='sgd', b2=0.999),
    dict(weight_decay=0.1),
    dict(weight_decay=0.1, groups=(('a', {'weight_decay': 0.0}),)),
    dict(weight_decay=0.1, groups=(('a', {'frozen': True}),)),
    dict(weight_decay=0.1, groups=(('a', {'name': 'sgd', 'weight_decay': 0}),)),
    # Of the groups alone.
    dict(
      name='sgd', weight_decay=0.1, b1=0.5, groups=(('a', {'name': 'adamw'}),)
    ),
    dict(b1=0.5, groups=(('a', {'name': 'sgd'}),)),
    dict(rows=dict(name='row_adam', b1=0.5, b2=0.5, eps=1e-6)),
    dict(
      rows=dict(name='momentum', momentum=0.5, weight_decay=1.0, decay='l2')
    ),
    dict(
      rows=dict(name='adagrad', b1=0.5),
      tables=(('a', {'optimizer': 'adam'}), ('.*', {})),
    ),
    dict(rows=dict(learning_rate=0.1), tables=(('a', {'optimizer': 'adam'}),)),
    dict(schedule='linear', decay_steps=9, end_factor=0.1),
    dict(rows=dict(name='sgd', schedule='linear'), decay_steps=9),
    dict(groups=(('a', {'schedule': 'cosine'}),), end_factor=0.1),
    dict(plateau_factor=0.5, plateau_min=0.1, plateau_min_rate=1e-6),
    # Options of an optimizer from outside are its own.
    dict(rows=dict(name='mine', b1=0.5)),
  ],
)
def test_what_is_used(settings):
  assert find_unused(changed(**settings)) == []


def test_every_optimizer_is_known():
  assert unused_settings.USED.keys() == optimizer.OPTIMIZERS.keys()
  assert unused_settings.USED_BY_ROWS.keys() == ROW_OPTIMIZERS.keys()
  defaults = [config_lib.retrieval(), config_lib.ranking()]
  for key, values in unused_settings.UNSET.items():
    for c in (x.optimizer for x in defaults):
      assert key not in c.rows or c.rows[key] in values
      assert (
        key in ('learning_rate', 'schedule')
        or key not in c
        or (c[key] in values)
      )


@pytest.mark.parametrize(
  'path', sorted(CONFIGS.glob('*.py')), ids=lambda p: p.stem
)
def test_configs_have_no_unused_settings(path):
  assert find_unused(config_lib.load(str(path))) == []


def test_a_run_is_refused_and_one_that_has_begun_is_warned(tmp_path, said):
  key = 'optimizer.rows.weight_decay=0.1'
  with pytest.raises(ConfigError, match='no table has a row optimizer'):
    tiny_run.train(tmp_path / 'run', key)
  assert not (tmp_path / 'run').exists()
  tiny_run.train(tmp_path / 'run', 'train.steps=2')
  path = tmp_path / 'run/config.json'
  saved = json.loads(path.read_text())
  saved['optimizer']['rows']['weight_decay'] = 0.1  # of an earlier version
  path.write_text(json.dumps(saved))
  (tmp_path / 'run/.config.json.seal').unlink()
  tiny_run.train(tmp_path / 'run', 'train.steps=4', key)
  assert 'This run goes on without it, as it began' in said()


def test_the_examples_of_the_module():
  assert doctest.testmod(unused_settings).failed == 0
