"""The examples in the docstrings of the tables are true."""

import doctest

import pytest

from genrec_jax.embedding import exchange, layout, lookup, row_optimizers


@pytest.mark.parametrize('module', [exchange, layout, lookup, row_optimizers])
def test_examples(module):
  results = doctest.testmod(module)
  assert results.attempted and not results.failed
