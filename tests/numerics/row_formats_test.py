"""Tables read in few bits: the rules, and the tables against packed bytes."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from genrec_jax.numerics import packed_formats, row_formats
from genrec_jax.numerics.packed_formats import PACKED_FORMATS

TABLES = ['items', 'user', 'user_tag']


def test_the_first_rule_counts():
  rules = [('user', 'tbe_int8'), ('user.*', 'tbe_int2')]
  chosen = row_formats.choose_formats(rules, TABLES)
  assert chosen == {'user': 'tbe_int8', 'user_tag': 'tbe_int2'}
  assert row_formats.choose_formats([], TABLES) == {}


@pytest.mark.parametrize(
  'rules, words',
  [
    ([('item', 'tbe_int8')], 'matches no table as a whole; tables are items'),
    ([('.*', 'tbe_int8'), ('user', 'tbe_int4')], 'patterns in front of it'),
    ([('.*', 'int4')], "the format 'int4'; formats are fbgemm_int8"),
    ([('.*', 4)], 'has the format 4'),
    ([('(', 'tbe_int8')], 'is not a regex'),
    (['.*'], 'must hold pairs'),
  ],
)
def test_rules_that_say_nothing(rules, words):
  with pytest.raises(ValueError, match=words):
    row_formats.choose_formats(rules, TABLES)


@pytest.mark.parametrize('name', ['tbe_int4', 'fbgemm_int8', 'fbgemm_mx4'])
@pytest.mark.parametrize('dtype', [np.float32, ml_dtypes.bfloat16])
def test_a_table_is_that_of_its_bytes(name, dtype, monkeypatch):
  monkeypatch.setattr(row_formats, '_AT_A_TIME', 7)
  table = np.random.default_rng(0).normal(size=(20, 6)).astype(dtype)
  found = row_formats.round_table(jnp.asarray(table), name)
  packed = packed_formats.join_parts(
    PACKED_FORMATS[name], table.astype(np.float32)
  )
  wanted = packed_formats.split_parts(PACKED_FORMATS[name], packed, 6).astype(
    dtype
  )
  assert found.dtype == dtype
  np.testing.assert_array_equal(np.asarray(found), wanted)
  assert np.any(wanted != table)
