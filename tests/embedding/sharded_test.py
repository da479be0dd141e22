"""Every scheme reads and writes what one device would."""

import jax
import numpy as np
import pytest

from genrec_jax.embedding.exchange import KINDS, Exchange
from genrec_jax.embedding.plan import SCHEMES
from genrec_jax.features import TableSpec
from tests.embedding.sharded_cases import DIM, ROWS, run_sharded, run_whole

SEQUENCE = dict(mode='sum', weighted=False, reads=('rows',))


def spec(update='row_sgd', dtype='float32'):
  return TableSpec('t', ROWS, DIM, 0.5, update, dtype)


def compare(whole, sharded, rtol=1e-5, exact=()):
  seen, table = whole
  seen_sharded, table_sharded = sharded
  for one, other in zip(seen, seen_sharded, strict=True):
    for name, values in one.items():
      if name in exact:
        np.testing.assert_array_equal(other[name], values)
      else:
        np.testing.assert_allclose(other[name], values, rtol=rtol, atol=rtol)
  np.testing.assert_allclose(table_sharded, table, rtol=rtol, atol=rtol)


@pytest.mark.parametrize('scheme', SCHEMES)
@pytest.mark.parametrize('kind', KINDS)
def test_sequence_features(scheme, kind, key):
  whole = run_whole(spec(), key, steps=1, **SEQUENCE)
  sharded = run_sharded(
    spec(), key, scheme, exchange=Exchange(kind), steps=1, **SEQUENCE
  )
  compare(whole, sharded, exact=('rows',))


@pytest.mark.parametrize('scheme', SCHEMES)
@pytest.mark.parametrize(
  'options',
  [
    dict(mode='sum', weighted=False, reads=('bags',)),
    dict(mode='mean', weighted=True, reads=('rows', 'bags')),
  ],
  ids=['sum', 'weighted mean and rows'],
)
def test_pooled_features(scheme, options, key):
  whole = run_whole(spec(), key, **options)
  compare(whole, run_sharded(spec(), key, scheme, **options))


@pytest.mark.parametrize('scheme', SCHEMES)
@pytest.mark.parametrize('update', ['row_adagrad', 'adam'])
def test_updates_are_exact_whatever_the_scheme(scheme, update, key):
  """Statistics of a row are those of the whole row, also where it is cut."""
  options = dict(mode='sum', weighted=False, reads=('rows', 'bags'), steps=3)
  whole = run_whole(spec(update), key, **options)
  compare(whole, run_sharded(spec(update), key, scheme, **options))
