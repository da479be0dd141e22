"""Every exported operation has an example, and the examples are true."""

import doctest
import sys

import pytest

import pallas_kernels
from pallas_kernels import integers, manual_axes
from pallas_kernels.hstu_attention import (
  blocks,
  gpu_plan,
  masks,
  tpu_heads,
  tpu_layout,
  tpu_pairs,
)


@pytest.mark.parametrize('name', pallas_kernels.__all__)
def test_the_example_of_an_exported_name(name):
  item = getattr(pallas_kernels, name)
  module = sys.modules[item.__module__]
  tests = doctest.DocTestFinder(recurse=False).find(
    item, name, module=module, globs=vars(module).copy()
  )
  assert [len(test.examples) > 0 for test in tests] == [True]
  runner = doctest.DocTestRunner()
  runner.run(tests[0])
  assert runner.failures == 0


@pytest.mark.parametrize('name', pallas_kernels.__all__)
def test_a_function_names_its_arguments_and_what_it_returns(name):
  item = getattr(pallas_kernels, name)
  wanted = ['Attributes:'] if isinstance(item, type) else ['Args:', 'Returns:']
  for section in wanted:
    assert section in item.__doc__


@pytest.mark.parametrize(
  'module',
  [
    blocks,
    gpu_plan,
    integers,
    manual_axes,
    masks,
    tpu_heads,
    tpu_layout,
    tpu_pairs,
  ],
)
def test_the_examples_of_a_module(module):
  assert doctest.testmod(module).failed == 0
