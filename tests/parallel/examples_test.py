"""The examples in the docstrings of dense parallelism are true."""

import doctest

import pytest

from genrec_jax.parallel import buckets, clipping, dense, processes, rules


@pytest.mark.parametrize('module', [buckets, clipping, dense, processes, rules])
def test_examples(module):
  results = doctest.testmod(module)
  assert results.attempted and not results.failed
