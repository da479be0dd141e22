"""What a config asks of a task, and a task from outside may forget."""

import pytest

from genrec_jax import config as config_lib
from genrec_jax.config import ConfigError
from genrec_jax.contracts import Extensions
from genrec_jax.features import TableSpec
from genrec_jax.train import task_checks
from tests.own_parts import EXTENSIONS
from tests.runtime.toy_task import WIDTH, Toy


class Following(Toy):
  """Applies `config.tables`."""

  def __init__(self, config):
    super().__init__()
    spec = TableSpec('items', 40, WIDTH, 0.5, 'row_adagrad')
    self.spec = config_lib.table_settings(config)(spec)


class Deaf(Toy):
  """Does not."""

  def __init__(self, config):
    del config
    super().__init__('row_adagrad')


def configured(*tables, **parallel):
  config = config_lib.ranking()
  config.tables = tables
  config.parallel.update(parallel)
  return config


def check(kind, config, extensions=None):
  task_checks.check_task(config, kind(config), extensions or Extensions())


def test_a_task_that_follows_its_config():
  check(Following, configured())
  check(Following, configured(('items', {'rate': 0.5, 'codec': 'int8'})))
  hashed = {'id_map': 'hash', 'rows': 7, 'optimizer': 'adam', 'b1': 0.5}
  check(Following, configured(('items', hashed)))
  check(Deaf, configured())


@pytest.mark.parametrize(
  'kind, entry, told',
  [
    (Following, ('itms', {}), "'itms' matches no table.*mean 'items'"),
    (Deaf, ('items', {'rate': 0.5}), "'items' does not have these settings"),
    (Deaf, ('items', {'eps': 0.5}), 'does not have these settings'),
    (Following, ('items', {'scheme': 'rowwise'}), "'items'.*'rowwise', must"),
    (Following, ('items', {'codec': 'int7'}), "'items'.*int7"),
    (Following, ('items', {'b1': 2.0}), "'items' .config.tables.: beta1"),
    (Following, ('items', {'weight_decay': -1.0}), 'must not be negative'),
    (Following, ('items', {'bias': 1}), "'items'.*bias"),
  ],
)
def test_what_nothing_would_follow(kind, entry, told):
  config = config_lib.ranking()
  with pytest.raises(ConfigError, match=told):
    config.tables = (entry, ('.*', {}))
    check(kind, config)


def test_optimizers_from_outside_are_among_those_there_are():
  entry = 'items', {'optimizer': 'sign'}
  with pytest.raises(ConfigError, match="'sign'.*of yours.*sign_sgd"):
    check(Following, configured(entry), EXTENSIONS)


def test_products_that_a_task_does_not_apply():
  config = configured()
  config.numerics.policy = (('w', 'bfloat16'),)
  with pytest.raises(ConfigError, match='Deaf does not apply it'):
    check(Deaf, config)


def test_a_scheme_where_no_table_is_updated_by_rows():
  class Dense(Toy):
    def __init__(self, config):
      del config
      super().__init__()

  with pytest.raises(ConfigError, match="parallel.scheme is 'row_wise'"):
    check(Dense, configured(scheme='row_wise'))


def test_a_task_that_reads_one_of_two_rows():
  two = {'id_map': 'double', 'rows': 7, 'optimizer': 'adam'}
  with pytest.raises(ConfigError, match='Following reads the first one alone'):
    check(Following, configured(('items', two)))
