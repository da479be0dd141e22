"""What the first line of a run says of its formats."""

import types

import pytest

from genrec_jax import config as config_lib
from genrec_jax.config import overrides as overrides_lib
from genrec_jax.contracts import Extensions
from genrec_jax.embedding.single_scheme import plan_with_scheme
from genrec_jax.features import TableSpec
from genrec_jax.train.run_facts import describe_formats

SPECS = {name: TableSpec(name, 64, 32) for name in 'ab'}


def describe(plan, *overrides, specs=SPECS, **task):
  config = config_lib.ranking()
  overrides_lib.apply_overrides(config, overrides)
  task = types.SimpleNamespace(tables=lambda: specs, **task)
  runtime = types.SimpleNamespace(plan=plan)
  experiment = types.SimpleNamespace(
    task=task, runtime=runtime, extensions=Extensions()
  )
  return describe_formats(config, experiment)


def test_products_and_rows():
  plan = plan_with_scheme(SPECS, 'row_wise', devices=4)
  assert describe(plan) == ''
  chosen = 'parallel.exchange.forward=mx6', 'parallel.exchange.backward=mx9'
  sites = {'x': types.SimpleNamespace(product='mx9')}
  assert describe(plan, *chosen, policy=(('.*', 'mx9'),), sites=sites) == (
    '; 1 product in mx9; rows/gradients of tables travel as mx6/mx9 (2)'
  )


@pytest.mark.parametrize('spread', [False, True])
def test_formats_for_nothing_are_told(spread):
  plan = plan_with_scheme(SPECS, 'data_parallel', devices=4)
  text = describe(plan if spread else None, 'parallel.exchange.forward=mx6')
  assert 'here none do' in text
