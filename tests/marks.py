"""Cases that wait for `pytest -m slow`, where others show the same quickly."""

import pytest


def slow(*values, id=None):
  """A case of `pytest.mark.parametrize` that is slow."""
  return pytest.param(*values, marks=pytest.mark.slow, id=id)


def slow_but(cases, quick):
  """The cases, of which all but the quick ones are slow."""
  return [case if case in quick else slow(case) for case in cases]
