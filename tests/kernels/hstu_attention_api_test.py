"""What `hstu_attention` refuses, and what its dropout does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels
from pallas_kernels import hashing
from pallas_kernels.hstu_attention import api, shapes
from tests.kernels import attention_cases as cases
from tests.tolerances import assert_close

BACKENDS = [*cases.FAST_BACKENDS, 'reference']


@pytest.fixture(scope='module')
def arguments():
  return shapes.inputs(shapes.SHAPES['tiny'], sizes=[5, 0, 12])


REFUSED = {
  'mode': (dict(mode='relu'), "mode is 'relu'.*silu.*softmax"),
  'q': (dict(q=np.zeros((128, 8), 'float32')), r'q, k, v must be .*\(128, 8\)'),
  'k': (dict(k=np.zeros((128, 2, 5), 'float32')), 'q, k, v must be'),
  'v': (dict(v=np.zeros((128, 3, 8), 'float32')), 'q, k, v must be'),
  'lengths': (dict(lengths=np.zeros((3, 1), 'int32')), r'lengths must be \[B'),
  'position_bias': (
    dict(position_bias=np.zeros(21, 'float32')),
    'position_bias has 21 entries; max_len=12 needs at least 23',
  ),
  'position_bias_even': (
    dict(position_bias=np.zeros(24, 'float32')),
    r'position_bias must be \[2n - 1\], not \(24,\)',
  ),
  'no_time': (dict(time=None), 'time_bias needs query_time and time'),
  'time': (dict(time=np.zeros(3, 'int32')), r'query_time and time .*\(3,\)'),
  'dropout': (
    dict(dropout=1.5, dropout_seed=np.uint32(0)),
    r'dropout is 1.5, must be in \[0, 1\)',
  ),
  'tokens': (
    dict(q=np.zeros((64, 2, 4), 'float32')),
    'q, k, v have 64, 128, 128 tokens: give query_lengths',
  ),
  'dtype': (dict(v=np.zeros((128, 2, 8), 'float16')), 'is float.*float32, bfl'),
  'mixed_dtype': (dict(k=jnp.zeros((128, 2, 4), 'bfloat16')), 'k is bfloat16'),
  'head_dim': (
    dict(v=np.zeros((128, 2, 257), 'float32')),
    'v has heads of 257 numbers; 1 to 256 work',
  ),
  'max_len': (dict(max_len=0), 'max_len is 0, must be at least 1'),
  'contextual': (dict(contextual=-1), 'contextual is -1, must be at least 0'),
  'window': (dict(window=0), 'window is 0, must be at least 1'),
  'targets': (
    dict(targets=np.zeros(2, 'int32')),
    r'targets must be \[B\] = \(3,\), not \(2,\)',
  ),
  'query_lengths': (
    dict(query_lengths=np.zeros(3, 'float32')),
    'query_lengths must be integers, not float32',
  ),
  'normaliser': (
    dict(normaliser=np.ones(3, 'float32')),
    r'normaliser must be a number or \[Tq\] = \(128,\), not \(3,\)',
  ),
  'normaliser_0': (dict(normaliser=0), 'normaliser is 0, must be above 0'),
  'normaliser_nan': (dict(normaliser=float('nan')), 'normaliser is nan, must'),
  'float_time': (
    dict(time=np.zeros(128, 'float32')),
    'time must be integers, not float32',
  ),
  'milliseconds': (
    dict(query_time=np.full(128, 1_700_000_000_000)),
    'query_time holds a number above 2147483647',
  ),
  'time_bias': (dict(time_bias=np.ones((3, 2))), r'time_bias must be \[bucket'),
  'dropout_seed': (dict(dropout=0.5), 'dropout needs dropout_seed'),
  'full_tail_alone': (
    dict(full_tail=4),
    'full_tail is 4, and changes nothing without window: give window, or leave',
  ),
  'prefix_alone': (
    dict(prefix=3),
    'prefix is 3, and changes nothing without window',
  ),
  'max_queries_alone': (
    dict(max_queries=12),
    'max_queries is 12, and changes nothing without query_lengths',
  ),
}


@pytest.mark.parametrize('case', REFUSED)
def test_wrong_arguments_are_named(case, arguments):
  change, message = REFUSED[case]
  with pytest.raises(ValueError, match=message):
    pallas_kernels.hstu_attention(**{**arguments, **change})


# What code that serves all calls passes along: it changes nothing.
PASSED_ALONG = {
  'the bound of targets of a model': dict(max_targets=7),
  'the tail and prefix of no window': dict(full_tail=0, prefix=0),
  'a seed in evaluation': dict(dropout_seed=np.uint32(3)),
  'times beside no table': dict(time_bias=None),
  'a divisor of softmax': dict(mode='softmax', normaliser=3.0),
}


@pytest.mark.parametrize('case', PASSED_ALONG)
def test_what_is_passed_along_changes_nothing(case, arguments):
  change = PASSED_ALONG[case]
  left_out = {
    'max_targets', 'full_tail', 'prefix', 'dropout_seed', 'normaliser'
  } & change.keys()  # fmt: skip
  if 'time_bias' in change:
    left_out |= {'time', 'query_time'}
  given = {**arguments, **change}
  plain = {n: v for n, v in given.items() if n not in left_out}
  np.testing.assert_array_equal(
    pallas_kernels.hstu_attention(**given),
    pallas_kernels.hstu_attention(**plain),
  )


def ints(*values):
  return np.array(values, np.int32)


# What only the numbers tell: an error where they are known, else NaN.
CONTRADICTIONS = {
  'negative': (dict(lengths=ints(5, -1, 12)), 'lengths holds a negative'),
  'long': (dict(lengths=ints(5, 0, 13)), 'lengths holds .* above max_len=12'),
  'many': (
    dict(lengths=ints(*[12] * 11)),
    'lengths add up to more than the 128 tokens of k and v',
  ),
  'wraps': (
    dict(lengths=ints(2**31 - 1, 2**31 - 1, 2)),
    'lengths holds .* above max_len=12',
  ),
  'targets': (
    dict(targets=ints(6, 0, 0)),
    'shorter than its contextual tokens and targets together',
  ),
  'negative_targets': (
    dict(targets=ints(0, -1, 0)),
    'targets holds a negative',
  ),
  'contextual': (dict(contextual=6), 'shorter than its contextual tokens'),
  'queries': (
    dict(query_lengths=ints(5, 1, 12)),
    'query_lengths must lie between 0 and lengths',
  ),
  'many_queries': (
    dict(
      query_lengths=ints(5, 0, 12),
      q=np.zeros((16, 2, 4), 'float32'),
      query_time=np.zeros(16, 'int32'),
    ),
    'query_lengths add up to more than the 16 tokens of q',
  ),
  'long_queries': (
    dict(query_lengths=ints(5, 0, 12), max_queries=11),
    'query_lengths holds a number above max_queries=11',
  ),
}


@pytest.mark.parametrize('case', CONTRADICTIONS)
def test_lengths_that_contradict_raise_or_give_nan(case, arguments):
  change, message = CONTRADICTIONS[case]
  wrong = {**arguments, **change}
  with pytest.raises(ValueError, match=message):
    pallas_kernels.hstu_attention(**wrong)
  out = cases.results(
    {n: jnp.asarray(v) if hasattr(v, 'shape') else v for n, v in wrong.items()},
    'reference',
  )['out']
  assert np.all(np.isnan(out))


@pytest.mark.parametrize('backend', BACKENDS)
def test_nothing_is_attended(backend):
  for tokens, sequences in ((0, 0), (0, 3), (7, 0)):
    x = jnp.ones((tokens, 2, 4))
    lengths = jnp.zeros(sequences, jnp.int32)
    out = pallas_kernels.hstu_attention(
      x, x, x, lengths, max_len=5, implementation=backend
    )
    assert out.shape == x.shape and not out.any()


def test_lists_are_welcome(arguments):
  lists = {
    name: np.asarray(arguments[name]).tolist()
    for name in ('lengths', 'time', 'query_time')
  }
  out = pallas_kernels.hstu_attention(**arguments | lists)
  np.testing.assert_array_equal(out, pallas_kernels.hstu_attention(**arguments))


@pytest.mark.parametrize('backend', BACKENDS)
def test_a_normaliser_may_be_traced(backend, arguments):
  def attend(normaliser):
    return pallas_kernels.hstu_attention(
      **arguments | dict(normaliser=normaliser, implementation=backend)
    )

  assert_close(jax.jit(attend)(5.0), attend(5.0))


@pytest.mark.parametrize('backend', cases.FAST_BACKENDS)
def test_nan_stays_in_its_sequence(backend):
  """Of the last token there is, and of padding: both stand in for others."""
  arguments = shapes.inputs(
    shapes.SHAPES['tiny'], sizes=[5, 0, 12], capacity=32
  )
  clean = cases.results(arguments, backend)
  for first in (5, 17):  # the second sequence with the padding, or that alone
    spoiled = {
      name: arguments[name].at[first:].set(jnp.nan) for name in ('q', 'k', 'v')
    }
    found = cases.results(arguments | spoiled, backend)
    for name in ('out', 'q', 'k', 'v'):
      np.testing.assert_array_equal(
        found[name][:first], clean[name][:first], err_msg=name
      )


def test_an_unknown_implementation_is_refused_and_the_known_are_listed(
  arguments,
):
  with pytest.raises(NotImplementedError) as error:
    pallas_kernels.hstu_attention(**arguments, implementation='cuda')
  message = str(error.value)
  assert "hstu_attention has no implementation 'cuda'" in message
  for name in api.BACKENDS:
    assert name in message


def test_none_means_the_best_backend_here(arguments):
  chosen = pallas_kernels.hstu_attention(**arguments)
  named = pallas_kernels.hstu_attention(**arguments, implementation='xla')
  np.testing.assert_array_equal(chosen, named)


def test_numpy_arguments_are_welcome_inside_jit(arguments):
  plain = {
    n: np.asarray(v) if hasattr(v, 'shape') else v for n, v in arguments.items()
  }
  out = jax.jit(lambda: pallas_kernels.hstu_attention(**plain))()
  assert_close(out, pallas_kernels.hstu_attention(**arguments))


@pytest.mark.parametrize('mode', api.MODES)
@pytest.mark.parametrize('backend', BACKENDS)
def test_dropout_keeps_the_mean(backend, mode, arguments):
  rate, draws = 0.25, 2000

  def attend(seed):
    return pallas_kernels.hstu_attention(
      **arguments,
      mode=mode,
      dropout=rate,
      dropout_seed=seed,
      implementation=backend,
    )

  seeds = jnp.arange(draws, dtype=jnp.uint32)
  samples = np.asarray(jax.jit(lambda s: jax.lax.map(attend, s))(seeds))
  expected = pallas_kernels.hstu_attention(
    **arguments, mode=mode, implementation=backend
  )
  deviation = samples.std(0) / np.sqrt(draws)
  error = np.abs(samples.mean(0) - np.asarray(expected))
  assert np.all(deviation[:17] > 0)  # every real token is touched
  assert np.all(error <= 6 * deviation + 1e-6)


def test_the_mask_drops_its_share_without_pattern():
  rate, size = 0.2, 400
  place = jnp.arange(size)
  kept = hashing.keep_mask(
    jnp.uint32(5),
    jnp.arange(4)[:, None, None],
    place[None, :, None],
    place[None, None, :],
    rate,
  )
  dropped = ~np.asarray(kept)
  noise = np.sqrt(rate * (1 - rate))
  # By head, row and column: the rate; next to each other: independent.
  assert abs(dropped.mean() - rate) < 6 * noise / np.sqrt(dropped.size)
  for axes in ((1, 2), (0, 2), (0, 1)):
    shares = dropped.mean(axes)
    allowed = 6 * noise / np.sqrt(dropped.size / shares.size)
    assert np.max(np.abs(shares - rate)) < allowed, axes
  centred = (dropped - rate) / noise
  for axis in range(3):
    product = np.roll(centred, 1, axis) * centred
    assert abs(product.mean()) < 6 / np.sqrt(product.size), axis


def test_another_seed_drops_other_weights(arguments):
  first, second = (
    cases.results(
      arguments, BACKENDS[0], dropout=0.5, dropout_seed=jnp.uint32(seed)
    )['out']
    for seed in (1, 2)
  )
  assert np.any(first != second)


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('padding', [0.0, float('nan')])
def test_a_divisor_in_padding_reaches_nothing(backend, padding):
  """0 is what a count of the tokens seen has there: 0 * inf would be NaN."""
  sizes = [1, 3, 2]
  v = jnp.arange(1.0, 9.0).reshape(8, 1, 1)

  def attend(v, normaliser):
    return pallas_kernels.hstu_attention(
      v, v, v, jnp.array(sizes), max_len=3, normaliser=normaliser,
      implementation=backend,
    ).sum()  # fmt: skip

  run = jax.jit(jax.value_and_grad(attend))
  plain = jnp.array([1.0, 2, 3, 4, 5, 6, 1, 1])
  for found, expected in zip(
    run(v, plain.at[6:].set(padding)), run(v, plain), strict=True
  ):
    np.testing.assert_array_equal(found, expected)


def test_the_divisor_of_another_sequence_reaches_nothing():
  v = jnp.ones((4, 1, 1))
  normaliser = jnp.array([1.0, 1.0, 1.0, 0.0])

  def attend(v, normaliser):
    out = pallas_kernels.hstu_attention(
      v, v, v, jnp.array([1, 3]), max_len=3, normaliser=normaliser,
      implementation='xla',
    )  # fmt: skip
    return out[0].sum()

  grad = jax.jit(jax.grad(attend))(v, normaliser)
  assert np.isfinite(grad[0]).all() and grad[0] > 0
  with pytest.raises(ValueError, match='holds a number that is not above 0'):
    attend(v, normaliser)


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('traced', [False, True])
@pytest.mark.parametrize(
  'dtype', ['int8', 'uint8', 'int16', 'uint32', 'int64', 'uint64']
)
def test_times_of_any_integers(backend, dtype, traced):
  z, v = jnp.zeros((2, 1, 1)), jnp.ones((2, 1, 1))

  def attend(time, asked):
    return pallas_kernels.hstu_attention(
      z, z, v, jnp.array([2]), max_len=2, normaliser=1.0, time=time,
      query_time=asked, time_bias=jnp.arange(129.0), implementation=backend,
    )  # fmt: skip

  with jax.enable_x64(True), jax.numpy_dtype_promotion('standard'):
    times = np.array([10, 100], dtype), np.array([9, 90], dtype)
    found = (jax.jit(attend) if traced else attend)(*times)
  expected = attend(*(x.astype('int32') for x in times))
  np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_lengths_of_any_integers():
  a = jnp.ones((200, 1, 2))

  def attend(lengths):
    return pallas_kernels.hstu_attention(a, a, a, lengths, max_len=256)

  for dtype in ('int8', 'uint8', 'int64'):
    np.testing.assert_array_equal(
      attend(np.array([3, 4], dtype)), attend(jnp.array([3, 4]))
    )
  with pytest.raises(ValueError, match='lengths holds a number above'):
    attend(np.array([2**32 + 3, 2]))
  assert attend([]).shape == (200, 1, 2)
