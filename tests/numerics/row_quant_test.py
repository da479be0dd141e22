"""Quantisers of rows against plain statements, figures and promises."""

import concurrent.futures
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from genrec_jax.numerics import formats, row_quant
from genrec_jax.numerics.bit_packing import BITS, unpack_codes
from genrec_jax.numerics.range_tuning import mean_error
from genrec_jax.numerics.row_blocks import TINY
from genrec_jax.numerics.row_quant import dequantize, quantize
from tests.numerics import quant_oracles as oracle
from tests.numerics import quant_rows

CASES = [
  (method, bits)
  for method in formats.list_methods()
  for bits in BITS
  if (method, bits) != ('kmeans', 8)
]
# Of rows of 64, 20 thousand at a time: numerics of Check-N-Run's quantisers.
ERRORS = {
  ('normal', 2): (5.70, 3.56, 2.57),
  ('normal', 3): (1.98, 1.52, 1.32),
  ('normal', 4): (0.850, 0.710, 0.665),
  ('normal', 8): (0.0469, 0.0418, 0.0418),
  ('t3', 2): (9.22, 8.03, 5.50),
  ('t3', 3): (4.69, 3.45, 2.97),
  ('t3', 4): (2.19, 1.61, 1.51),
  ('uniform', 2): (2.25, 1.47, 1.12),
  ('uniform', 3): (0.751, 0.628, 0.551),
  ('uniform', 4): (0.322, 0.293, 0.277),
}
finite = st.floats(
  -(2.0**125), 2.0**125, width=32, allow_subnormal=True, allow_nan=False
)


def same(a, b):
  assert sorted(a) == sorted(b)
  for name in a:
    assert a[name].dtype == b[name].dtype, name
    np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def codes_of(arrays, dim, bits):
  return unpack_codes(arrays['codes'], dim, bits).tolist()


def steps(arrays, rows, bits):
  """Half a step of each row, and what rounding may add to it."""
  largest = np.abs(rows).max(axis=1).astype(np.float64)
  span = np.ptp(rows.astype(np.float64), axis=1)
  if arrays['scale'].dtype == np.float16:
    step = np.abs(arrays['scale'].astype(np.float64))
    step[span == 0] = 0
    return step * (0.5 + 0.125 + 0.01) + (span == 0) * largest * 2**-11
  step = arrays['scale'].astype(np.float64)
  return step * 0.5001 + largest * 2**-22 + 2.0**-116


@pytest.mark.parametrize('bits', [2, 3, 4])
def test_asymmetric_is_fbgemm_with_float16(bits):
  rows = quant_rows.for_half(19)
  found = quantize(rows, bits, 'asymmetric')
  assert found['scale'].dtype == found['bias'].dtype == np.float16
  codes = codes_of(found, 19, bits)
  for i, row in enumerate(rows):
    wanted = oracle.half_row(row, row.min(), row.max(), bits)
    assert (codes[i], found['scale'][i], found['bias'][i]) == wanted, i


def test_asymmetric_is_fbgemm_with_8_bits_but_for_its_epsilon():
  rows = quant_rows.beyond_half(19)
  found = quantize(rows, 8, 'asymmetric')
  codes, decided = codes_of(found, 19, 8), 0
  for i, row in enumerate(rows):
    if np.ptp(row) < 1e-6:  # a thousandth of a step and more
      continue
    wanted, scale, bias, sure = oracle.float_row(row)
    assert (found['scale'][i], found['bias'][i]) == (scale, bias), i
    assert np.array(codes[i])[sure].tolist() == np.array(wanted)[sure].tolist()
    decided += sum(sure)
  assert decided > 0.9 * rows.size * 50 / 60


def test_golden_row_of_fbgemm():
  rows = quant_rows.golden()
  found = {b: quantize(rows, b, 'asymmetric') for b in (2, 4, 8)}
  found = {
    b: [a[n].tobytes().hex() for n in ('codes', 'scale', 'bias')]
    for b, a in found.items()
  }
  assert found == {
    2: ['aaeaaaaaa8aaa6aa', '754d', '58d1'],
    4: ['9aca9afaa9aaabaa90ba9a9a7aa9a9ac', '5e44', '58d1'],
    8: [
      'a695a6d0a79ea6ff9ea7a7a6b3a9a3a3009ea6b7a691a59eaa739da694a6cba7',
      '8483833e',
      '00002bc2',
    ],
  }


@pytest.mark.parametrize('half', [True, False])
@pytest.mark.parametrize('bits', [2, 3, 4])
def test_symmetric_is_its_plain_statement(bits, half):
  rows = (quant_rows.for_half if half else quant_rows.beyond_half)(19)
  rows = rows[np.ptp(rows, axis=1) >= TINY]
  found = quantize(rows, bits, 'symmetric')
  dtype = np.float16 if half else np.float32
  assert sorted(found) == ['codes', 'scale'] and found['scale'].dtype == dtype
  codes = codes_of(found, 19, bits)
  for i, row in enumerate(rows):
    wanted, scale = oracle.symmetric_row(row, bits, dtype)
    assert (codes[i], found['scale'][i]) == (wanted, scale), i


@pytest.mark.parametrize(
  'bits, bins, ratio',
  [(2, 25, 0.5), (3, 30, 0.9), (4, 45, 0.5), (4, 200, 0.16)],
)
def test_adaptive_is_the_greedy_search(bits, bins, ratio):
  rows = quant_rows.for_half(17)[::4]
  found = quantize(rows, bits, bins=bins, ratio=ratio)
  codes = codes_of(found, 17, bits)
  for i, row in enumerate(rows):
    ends = oracle.greedy(row, bits, bins, ratio)
    wanted = oracle.half_row(row, *ends, bits)
    assert (codes[i], found['scale'][i], found['bias'][i]) == wanted, i


@pytest.mark.parametrize('name', ['normal', 'laplace', 'lognormal'])
@pytest.mark.parametrize('bits', [2, 3, 4])
def test_kmeans_is_near_the_optimum(name, bits):
  draw = {'normal': 'standard_normal'}.get(name, name)
  rows = getattr(np.random.default_rng(bits), draw)(size=(60, 64))
  rows = rows.astype(np.float32)
  found = quantize(rows, bits, 'kmeans')
  off = np.linalg.norm(dequantize(found, 64, bits, 'kmeans') - rows, axis=1)
  for row, book, error in zip(rows, found['codebook'], off, strict=True):
    # Each element has the nearest of the numbers that were kept.
    kept = oracle.l2(row, book.astype(float))
    np.testing.assert_allclose(error, kept, rtol=1e-5)
  least = np.array([oracle.least_error(row, 2**bits) for row in rows])
  assert (off >= least * 0.9999).all()
  assert off.mean() <= 1.04 * least.mean() and (off <= 1.3 * least).all()


@pytest.mark.parametrize('dim', [17, 40, 300])
@pytest.mark.parametrize('bits', [2, 3, 4])
def test_no_row_is_worse_with_kmeans_than_with_even_levels(bits, dim):
  rows = quant_rows.draw('normal', 60, dim)
  rows[:20] = np.rint(rows[:20] * 3)
  rows[20:40] = np.rint(rows[20:40] * 2**bits) + 0.01 * rows[:20]
  rows[40:50] **= 5
  kmeans, even = (
    np.linalg.norm(
      dequantize(quantize(rows, bits, m), dim, bits, m) - rows, axis=1
    )
    for m in ('kmeans', 'asymmetric')
  )
  rounding = np.abs(rows).max(axis=1) * 2**-12 * dim**0.5  # of float16
  assert (kmeans <= even + rounding).all()


@pytest.mark.parametrize('bits', BITS)
def test_adaptive_with_8_bits_is_asymmetric_and_else_is_not(bits):
  rows = quant_rows.draw('normal', 20)
  a, b = (quantize(rows, bits, m) for m in ('adaptive', 'asymmetric'))
  assert (dequantize(a, 64, bits) == dequantize(b, 64, bits)).all() == (
    bits == 8
  )


@pytest.mark.parametrize('name, bits', ERRORS)
def test_errors_of_known_distributions(name, bits):
  rows = quant_rows.draw(name, 10_000)
  found = []
  for method in ('symmetric', 'asymmetric', 'adaptive'):
    bins = {'bins': 25} if method == 'adaptive' else {}
    arrays = quantize(rows, bits, method, **bins)
    found.append(mean_error(rows, dequantize(arrays, 64, bits, method)))
  np.testing.assert_allclose(found, ERRORS[name, bits], rtol=0.02)
  assert found[2] <= found[1] <= found[0]


@pytest.mark.parametrize('name', quant_rows.DISTRIBUTIONS)
@pytest.mark.parametrize('bits', [2, 3, 4])
def test_kmeans_errs_less_than_adaptive(name, bits):
  rows = quant_rows.draw(name, 300)
  a, b = (
    mean_error(rows, dequantize(quantize(rows, bits, m), 64, bits, m))
    for m in ('kmeans', 'adaptive')
  )
  assert a < b


@pytest.mark.parametrize('method, bits', CASES)
@pytest.mark.parametrize('rows', ['for_half', 'beyond_half'])
def test_strange_rows_come_back(method, bits, rows):
  rows = getattr(quant_rows, rows)(21)
  arrays = quantize(rows, bits, method)
  found = dequantize(arrays, 21, bits, method)
  assert found.shape == rows.shape and found.dtype == np.float32
  assert np.isfinite(found).all()
  off = np.abs(found.astype(np.float64) - rows)
  if method in ('symmetric', 'asymmetric') or bits == 8:
    assert (off <= steps(arrays, rows, bits)[:, None]).all()
  else:
    plain = dequantize(quantize(rows, bits, 'asymmetric'), 21, bits)
    plain = np.linalg.norm(plain.astype(np.float64) - rows, axis=1)
    slack = np.full(len(rows), TINY)
    if method == 'kmeans':  # a scale adds digits to a float16 bias
      slack += np.abs(rows).max(axis=1) * 2**-11 * 21**0.5
    assert (np.linalg.norm(off, axis=1) <= plain * 1.0001 + slack).all()


@pytest.mark.parametrize('method, bits', CASES)
@settings(max_examples=12, deadline=None)
@given(st.data())
def test_any_finite_rows_come_back(method, bits, data):
  least = 2**bits + 1 if method == 'kmeans' else 1
  shape = data.draw(st.tuples(st.integers(1, 5), st.integers(least, least + 7)))
  rows = data.draw(arrays_of.arrays(np.float32, shape, elements=finite))
  arrays = quantize(rows, bits, method)
  found = dequantize(arrays, shape[1], bits, method)
  assert np.isfinite(found).all()
  off = np.abs(found.astype(np.float64) - rows)
  if method in ('symmetric', 'asymmetric') or bits == 8:
    assert (off <= steps(arrays, rows, bits)[:, None]).all()


@pytest.mark.parametrize('method, bits', CASES)
def test_empty_narrow_and_constant_rows(method, bits):
  dim = 2**bits + 1 if method == 'kmeans' else 1
  empty = quantize(np.zeros((0, dim), np.float32), bits, method)
  assert dequantize(empty, dim, bits, method).shape == (0, dim)
  for value in (0.0, -0.0, 1.0, -0.37, 1e-30, 1e6 + 1, -1e30, 1e-45):
    rows = np.full((3, dim), value, np.float32)
    found = dequantize(quantize(rows, bits, method), dim, bits, method)
    np.testing.assert_allclose(found, rows, rtol=2**-11, atol=TINY)


@pytest.mark.parametrize('method, bits', CASES)
def test_equal_rows_give_equal_arrays_however_they_are_split(method, bits):
  rows = np.tile(quant_rows.for_half(18), (40, 1))  # more than a block
  whole = quantize(rows, bits, method)
  for cuts in ([1, 3, 20], [2048], [700, 1499]):
    parts = [quantize(p, bits, method) for p in np.split(rows, cuts)]
    same(whole, {n: np.concatenate([p[n] for p in parts]) for n in whole})
  order = np.random.default_rng(0).permutation(len(rows))
  same(
    quantize(rows[order], bits, method), {n: v[order] for n, v in whole.items()}
  )
  # Not C-ordered, and not writable.
  strided = np.asfortranarray(rows)
  strided.flags.writeable = False
  same(quantize(strided, bits, method), whole)


def test_threads_may_quantise_at_the_same_time():
  rows = quant_rows.draw('t3', 2500, 18)
  want = quantize(rows, 3)
  with concurrent.futures.ThreadPoolExecutor(4) as pool:
    for found in pool.map(lambda _: quantize(rows, 3), range(8)):
      same(found, want)


@pytest.mark.parametrize(
  'row, half',
  [
    ([0, 1, 2], True),
    ([0, 0, 0], True),
    ([0.1, 0.1, 0.1], True),
    ([65504, -65504, 0], True),
    ([65520, -65504, 0], False),  # rounds to infinity
    ([1e-5, 0, 0], False),  # steps below the normal numbers of float16
    ([1e-5, 1e-5, 1e-5], False),  # a bias below them
    ([1000, 1001, 1002], False),  # a bias rounded by more than an eighth
    ([1000, 0, 1002], True),
  ],
)
def test_which_rows_float16_can_hold(row, half):
  rows = np.array([[0, 1, 2], row], np.float32)
  dtype = np.float16 if half else np.float32
  for bits in (2, 3, 4):
    arrays = quantize(rows, bits)
    assert arrays['scale'].dtype == arrays['bias'].dtype == dtype
  assert quantize(rows, 8)['scale'].dtype == np.float32


@pytest.mark.parametrize('method, bits', CASES)
def test_row_bytes_are_what_the_arrays_hold(method, bits):
  for dim in (2**bits + 1, 64, 300):
    if method == 'kmeans' and dim <= 2**bits:
      continue
    arrays = quantize(quant_rows.draw('normal', 8, dim), bits, method)
    total = sum(a.nbytes for a in arrays.values())
    assert total == 8 * formats.find_quantiser(method, bits).bytes_per_row(dim)
  assert formats.FORMATS['adaptive4'].bytes_per_row(64) == 36
  assert formats.FORMATS['adaptive8'].bytes_per_row(64) == 72


def test_dequantize_needs_no_jax():
  program = (
    'import sys, numpy as np\n'
    'from genrec_jax.numerics import row_quant\n'
    "arrays = {'codes': np.array([[0x21]], np.uint8),"
    " 'scale': np.ones(1, np.float16), 'bias': np.zeros(1, np.float16)}\n"
    'assert row_quant.dequantize(arrays, 2, 4).tolist() == [[1, 2]]\n'
    "assert 'jax' not in sys.modules\n"
  )
  subprocess.run([sys.executable, '-c', program], check=True)


def test_rows_that_are_not_finite_are_named():
  rows = np.ones((5, 3), np.float32)
  rows[3, 1], rows[4, 0] = np.nan, np.inf
  for method in ('symmetric', 'asymmetric', 'adaptive'):
    with pytest.raises(ValueError, match='row 3 of 5 holds nan in column 1'):
      quantize(rows, 4, method)
  with pytest.raises(ValueError, match='row 1 of 2 holds inf in column 0'):
    quantize(rows[[0, 4]], 4)
  with pytest.raises(ValueError, match='row 0 of 1 holds -inf in column 2'):
    quantize(np.array([[0, 1, -np.inf]], np.float32), 4)
  with pytest.raises(ValueError, match='row 0 of 1 holds inf in column 0'):
    quantize(np.full((1, 2), np.inf, np.float32), 4)
  with pytest.raises(ValueError, match=r'row 0 of 1 spans more than 1e\+38'):
    quantize(np.array([[3e38, -3e38]], np.float32), 4)


@pytest.mark.parametrize(
  'change, message',
  [
    ({'bits': 5}, 'bits is 5, must be one of 2, 3, 4, 8'),
    ({'method': 'even'}, "method is 'even', must be one of symmetric"),
    ({'rows': np.zeros(3, np.float32)}, r'these are float32 \[3\]'),
    ({'rows': np.zeros((3, 2))}, r'must be float32 .* these are float64'),
    ({'rows': np.zeros((3, 0), np.float32)}, 'with D > 0'),
    (
      {'method': 'kmeans', 'bits': 8},
      "no format of 8 bits, only of 2, 3, 4; .* or 'adaptive'",
    ),
    ({'method': 'kmeans', 'bits': 3}, '8 numbers a row .* rows of 8 smaller'),
    ({'method': 'symmetric', 'bins': 9}, 'belong to adaptive, not to symm'),
    ({'bins': 0}, 'bins is 0, must be 1 or more'),
    ({'ratio': 1.5}, 'ratio is 1.5, must be above 0 and 1 at most'),
  ],
)
def test_mistakes_are_errors(change, message):
  arguments = {'rows': np.zeros((3, 8), np.float32), 'bits': 4, **change}
  with pytest.raises(ValueError, match=message):
    quantize(**arguments)


def test_few_bits_are_chosen_only_where_they_cost_little():
  expected = row_quant.expected_restores(1e-4, nodes=16, hours=24 * 30)
  assert expected == pytest.approx(1.152)
  found = [row_quant.bits_for(x) for x in (0, 0.01, 1, expected, 3, 20.5)]
  assert found == [8, 4, 4, 8, 8, 8]
  for wrong in (-1, float('nan')):
    with pytest.raises(ValueError, match='must be 0 or more'):
      row_quant.bits_for(wrong)
