"""Which weights score a batch before its step."""

import types

import numpy as np
import pytest

from genrec_jax.train.progressive_validation import ProgressiveValidation


class OneDevice:
  """As much of a runtime as scoring needs."""

  def jit(self, function, given, made):
    del given, made
    return function

  def read_rows(self, task, weights, reads):
    del task, reads
    return weights['params'], {}


class Constant:
  """A task whose model says its one parameter of every example."""

  binary_labels = ('like',)

  def reads_for(self, purpose, batch):
    assert purpose == 'predict'
    return ()

  def score_labels(self, params, rows, batch):
    del rows
    labels, weights = batch
    return np.full((len(labels), 1), params), labels[:, None], weights


@pytest.mark.parametrize('averaged', [None, 2.0])
def test_averaged_weights_score_where_a_run_keeps_them(averaged):
  validation = ProgressiveValidation(
    Constant(), OneDevice(), epoch=1, lifetime=False, grouped=False
  )
  state = types.SimpleNamespace(
    params=-1.0, averaged=averaged, tables={}, id_states={}, modules={}
  )
  labels = np.array([1, 0, 0, 1], np.float32)
  validation.observe(0, state, (labels, np.ones(4, np.float32)))
  logit = -1.0 if averaged is None else averaged
  expected = 1 / (1 + np.exp(-logit)) / 0.5
  assert validation.metrics()['calibration'] == pytest.approx(expected)
