"""Parts from outside the library, named in a config and handed down a run."""

import jax
import pytest

from genrec_jax import config as config_lib
from genrec_jax import extensions
from genrec_jax.config import ConfigError
from genrec_jax.contracts import Extensions
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import experiment, loop
from tests.marks import slow
from tests.own_parts import CLASHING, EXTENSIONS

NAMES = 'tests.own_parts:EXTENSIONS'
TABLES = (
  ('c0', {'optimizer': 'sign_sgd', 'scheme': 'last_device', 'size': 0.5}),
  ('c1', {'optimizer': 'row_adagrad', 'rate': 0.5, 'codec': 'my_int8'}),
  ('c[23]', {'optimizer': 'row_adagrad', 'rate': 0.1, 'eps': 1e-3}),
  ('.*', {'optimizer': 'dense'}),
)


def config(**parallel):
  c = config_lib.ranking_smoke(config_lib.ranking())
  c.extensions, c.tables = NAMES, TABLES
  c.train.update(steps=4, eval_every=4, checkpoint_every=2, log_every=1)
  c.report.importance_rows = 0
  c.parallel.update(parallel)
  return c.lock()


def test_a_config_names_them():
  assert extensions.load_extensions('') == Extensions()
  assert extensions.load_extensions(NAMES) is not EXTENSIONS
  assert extensions.load_extensions(NAMES) == EXTENSIONS


@pytest.mark.parametrize(
  'names, told',
  [
    ('tests.own_parts', "must be 'module:NAME'"),
    ('no.such.module:X', "no module 'no'"),
    ('tests.own_parts:NOTHING', "tests.own_parts has no 'NOTHING'"),
    ('tests.own_parts:place_on_last', 'is a function, must be'),
    (f'{NAMES},{NAMES}', "row_optimizers 'sign_sgd', which one named before"),
  ],
)
def test_what_is_no_extension(names, told):
  with pytest.raises(ConfigError, match=told):
    extensions.load_extensions(names)


def test_a_name_that_exists_is_an_error(tmp_path):
  c = config_lib.ranking_smoke(config_lib.ranking())
  c.optimizer.rows.name = 'adam'
  with pytest.raises(ValueError, match="a row optimizer 'adam' already"):
    experiment.build_experiment(
      c, tmp_path, TASK_KINDS, lambda *_: None, CLASHING
    ).runtime.fresh_state()


@pytest.mark.parametrize(
  'parallel', [slow({}), {'hosts': 2, 'devices': 4}], ids=['1 device', '2x4']
)
def test_a_run_uses_all_of_them(parallel, tmp_path):
  with jax.numpy_dtype_promotion('standard'):  # for optax
    report = loop.train_and_evaluate(
      config(**parallel),
      tmp_path,
      TASK_KINDS,
      extensions.load_extensions(NAMES),
    )
  assert report['steps'] == 4 and 0 < report['metrics']['test']['auc'] < 1
  pieces = experiment.build_experiment(
    config(**parallel), tmp_path, TASK_KINDS, lambda *_: None, EXTENSIONS
  )
  specs = pieces.task.tables()
  assert specs['c0'].update == 'sign_sgd' and specs['c4'].update == 'dense'
  if parallel:
    # A plan opens without the extension: it says what the scheme does.
    assert pieces.runtime.plan.tables['c0'].at == (7,)
    assert pieces.runtime.plan.tables['c0'].scheme == 'last_device'


def test_without_the_extension_the_error_says_what_there_is(tmp_path):
  with pytest.raises(ValueError, match="no row optimizer 'sign_sgd'"):
    experiment.build_experiment(config(), tmp_path, TASK_KINDS, lambda *_: None)
