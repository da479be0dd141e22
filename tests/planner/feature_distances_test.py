"""Similarities of features, against plain loops."""

import numpy as np
import pytest

from genrec_jax.planner.feature_distances import (
  Similarity,
  measure_alignment,
  measure_cooccurrence,
)


def test_alignment_is_the_mean_over_samples_that_have_both():
  rng = np.random.default_rng(0)
  vectors = {n: rng.standard_normal((2_500, 5)) for n in 'abc'}
  vectors['c'][7] = 0.0  # a row without a direction counts for nobody
  present = {n: rng.random(2_500) < 0.7 for n in 'abc'}
  found = measure_alignment(vectors, present).matrix
  for i, a in enumerate('abc'):
    for j, b in enumerate('abc'):
      cosines = [
        abs(x @ y) / np.sqrt((x @ x) * (y @ y))
        for x, y, p, q in zip(
          vectors[a], vectors[b], present[a], present[b], strict=True
        )
        if p and q and x.any() and y.any()
      ]
      np.testing.assert_allclose(found[i, j], np.mean(cosines), rtol=1e-5)


def test_few_values_and_pairs_never_seen_get_the_mean_and_a_note():
  rng = np.random.default_rng(1)
  vectors = {n: rng.standard_normal((400, 4)) for n in 'abcd'}
  first = np.arange(400) < 200
  present = dict.fromkeys('abcd', np.ones(400, bool))
  present |= {'a': first, 'b': ~first}
  values = {'a': 9, 'b': 9, 'c': 9, 'd': 2}
  found = measure_alignment(vectors, present, values)
  usual = (found.matrix[0, 2] + found.matrix[1, 2]) / 2
  np.testing.assert_allclose(found.matrix[3, :3], usual)
  np.testing.assert_allclose(found.matrix[0, 1], usual)
  assert len(found.notes) == 2
  assert found.notes[0].startswith('d: 3 values or fewer')
  assert found.notes[1].startswith('a and b: never in one sample')
  assert found.matrix[3, 3] == 1
  changed = vectors | {'d': vectors['a']}
  again = measure_alignment(changed, present, values)
  np.testing.assert_array_equal(found.matrix, again.matrix)


def test_nothing_known_is_all_the_same():
  found = measure_alignment(
    {'a': np.eye(2), 'b': np.eye(2)}, None, dict(a=2, b=2)
  )
  assert found.matrix.tolist() == [[1, 0.5], [0.5, 1]]


def test_rows_of_several_widths_are_refused_with_names():
  vectors = {'user': np.ones((3, 4)), 'item': np.ones((3, 8))}
  with pytest.raises(ValueError, match="'user' have 4 numbers .* 'item' 8"):
    measure_alignment(vectors)
  with pytest.raises(ValueError, match='no features'):
    measure_alignment({})
  with pytest.raises(ValueError, match='no features'):
    measure_cooccurrence({})


def test_cooccurrence_of_independent_values_is_about_zero():
  rng = np.random.default_rng(2)
  codes = {n: rng.integers(40, size=3_000) for n in 'abcdef'}
  found = measure_cooccurrence(codes).matrix[np.triu_indices(6, 1)]
  # Without the correction it would be the root of 39 / 3000: .11.
  assert found.mean() < 0.05 and found.max() < 0.12


def test_cooccurrence_grows_with_the_share_of_equal_values():
  rng = np.random.default_rng(3)
  a, other = rng.integers(10, size=(2, 8_000))
  codes = {'a': a}
  for share in (0.2, 0.5, 0.9):
    codes[str(share)] = np.where(rng.random(8_000) < share, a, other)
  found = measure_cooccurrence(codes).matrix[0]
  # With probability s equal and else independent, V is s.
  np.testing.assert_allclose(found[1:], [0.2, 0.5, 0.9], atol=0.03)


def test_strata_find_what_is_related_given_the_label():
  rng = np.random.default_rng(4)
  a, b, c = rng.integers(2, size=(3, 6_000))
  codes = {'a': a, 'b': b, 'c': c}
  label = a ^ b
  plain = measure_cooccurrence(codes).matrix
  found = measure_cooccurrence(codes, strata=label).matrix
  assert plain[0, 1] < 0.1 and found[0, 1] > 0.99
  assert found[0, 2] < 0.1 and found[1, 2] < 0.1


def test_missing_values_and_rare_ones():
  rng = np.random.default_rng(5)
  a = rng.integers(5, size=4_000)
  there = rng.random(4_000) < 0.5
  b = np.where(there, a, 0)
  codes = {'a': a, 'b': b}
  present = {'a': np.ones(4_000, bool), 'b': there}
  assert measure_cooccurrence(codes, present).matrix[0, 1] > 0.999
  assert measure_cooccurrence(codes).matrix[0, 1] < 0.8
  constant = {'a': a, 'b': np.zeros(4_000, int)}
  assert measure_cooccurrence(constant).matrix[0, 1] == 0
  ids = {'a': np.arange(4_000), 'b': np.arange(4_000)}
  assert 0 <= measure_cooccurrence(ids).matrix[0, 1] <= 1


def test_distances_of_both_kinds():
  similarity = Similarity(np.array([[1, 0.3], [0.3, 1]]), 5)
  assert similarity.to_distances().tolist() == [[0, 0.7], [0.7, 0]]
  assert similarity.to_distances('diverse').tolist() == [[0, 0.3], [0.3, 0]]
  assert similarity.scale().matrix.tolist() == [[1, 1], [1, 1]]
  three = np.array([[1, 0.1, 0.2], [0.1, 1, 0], [0.2, 0, 1]])
  scaled = Similarity(three, 5).scale().matrix
  np.testing.assert_allclose(scaled, [[1, 0.5, 1], [0.5, 1, 0], [1, 0, 1]])
  nothing = Similarity(np.eye(3), 5)
  assert nothing.scale() is nothing
  with pytest.raises(ValueError, match="'near', must be one of coherent"):
    similarity.to_distances('near')
