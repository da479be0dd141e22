"""Columns beside scores, where files hold one in several types."""

import numpy as np

from genrec_jax.data.ranking import raw
from genrec_jax.serve.kept_columns import KeptColumns


def keep_pieces(*pieces) -> dict:
  kept = KeptColumns(('user',), {}, set())
  kept.choose(['user'], {'user': None})
  chunks = [raw.RawChunk({'user': x}, len(x)) for x in pieces]
  return kept.take(sum(len(chunk) for chunk in kept.watch(chunks)))


def test_texts_and_numbers_are_texts_together():
  numbers = raw.NumberColumn(np.array([7, 9]))
  for pieces in ((['u1'], numbers), (numbers, ['u1'])):
    got = keep_pieces(*pieces)['user']
    assert sorted(got) == ['7', '9', 'u1']


def test_whole_numbers_beside_floats_keep_their_digits():
  whole = raw.NumberColumn(np.array([9_007_199_254_740_993]))
  floats = raw.make_numbers(np.array([12.0, np.nan]))
  got = keep_pieces(whole, floats)['user']
  assert got == ['9007199254740993', '12', '']


def test_pieces_of_one_type_stay_numbers():
  piece = raw.NumberColumn(np.array([7]))
  got = keep_pieces(piece, piece)['user']
  assert got.tolist() == [7, 7] and got.dtype == np.int64
