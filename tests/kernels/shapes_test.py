"""The named shapes are what they say."""

import numpy as np
import pytest

from pallas_kernels.hstu_attention import shapes


@pytest.mark.parametrize('name', shapes.SHAPES)
def test_inputs_fit_their_shape(name):
  shape = shapes.SHAPES[name]
  arguments = shapes.inputs(shape, dtype='bfloat16')
  lengths = np.asarray(arguments['lengths'])
  tokens = arguments['k'].shape[0]
  assert lengths.shape == (shape.batch,)
  assert shape.min_len <= lengths.min() and lengths.max() <= shape.max_len
  assert lengths.sum() <= tokens < lengths.sum() + shapes.CAPACITY_STEP
  assert arguments['k'].shape == (tokens, shape.heads, shape.dqk)
  assert arguments['v'].shape == (tokens, shape.heads, shape.dv)
  assert arguments['v'].dtype == 'bfloat16'
  assert arguments['normaliser'] == shape.max_len + 11
  assert ('time_bias' in arguments) == shape.time_bias


def test_clocks_start_at_zero_and_the_query_waits_for_the_next_event():
  arguments = shapes.inputs(shapes.SHAPES['tiny'], sizes=[4, 0, 3])
  time, query = (
    np.asarray(arguments['time']),
    np.asarray(arguments['query_time']),
  )
  for part in (slice(0, 4), slice(4, 7)):
    assert time[part][0] == 0
    assert np.all(np.diff(time[part]) >= 0)
    np.testing.assert_array_equal(query[part][:-1], time[part][1:])
    assert query[part][-1] >= time[part][-1]


def test_lengths_depend_on_the_seed_alone():
  shape = shapes.SHAPES['ml1m_hstu']
  np.testing.assert_array_equal(shapes.lengths(shape), shapes.lengths(shape))
  assert np.any(shapes.lengths(shape, 1) != shapes.lengths(shape, 2))
  # MovieLens-1M: the mean of the lengths, cut at 200, is 108.
  assert abs(np.mean(shapes.lengths(shape)) - 108) < 15
