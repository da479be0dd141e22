"""Predict-then-train metrics: windows, lifetime, and resuming."""

import functools
import json
import math

import numpy as np
import pytest

from genrec_jax.evaluators import progressive as progressive_lib
from genrec_jax.evaluators.progressive import Progressive
from genrec_jax.tasks import ranking_metrics as rm
from genrec_jax.tasks.ranking_metrics import auc

B, BATCHES, LABELS = 32, 12, ('click', 'buy')


@functools.cache
def stream(labels=2, seed=0):
  """Batches of (logits, labels, weights, group), the last row padding."""
  rng = np.random.default_rng(seed)
  found = []
  for _ in range(BATCHES):
    logits = rng.normal(-1, 2, (B, labels)).astype(np.float32)
    happened = rng.random((B, labels)) < 1 / (1 + np.exp(-logits))
    weights = rng.uniform(0.1, 2, B).astype(np.float32)
    group = rng.integers(0, 6, B).astype(np.int32)
    logits[-1], weights[-1], group[-1] = np.nan, 0, -1
    found.append((logits, happened.astype(np.float32), weights, group))
  return found


def run(progressive, batches, every=4):
  """The log lines of some batches."""
  lines = []
  for number, batch in enumerate(batches, 1):
    progressive.update(*batch)
    if number % every == 0:
      lines.append(progressive.metrics())
  return lines


def whole(batches):
  return [np.concatenate(x)[np.arange(len(batches) * B) % B < B - 1]
          for x in zip(*batches, strict=True)]  # fmt: skip


def check(line, expected, prefix=''):
  for name, value in expected.items():
    assert line[prefix + name] == pytest.approx(value, abs=1e-12), name
    bound = name.replace('auc', 'auc_max_error')
    if name.startswith('auc'):  # few examples have a bin each
      assert line[prefix + bound] == 0


def test_windows_and_lifetime():
  batches = stream()
  lines = run(Progressive(LABELS, lifetime=True), batches)
  gauc = np.zeros(2)
  for i, line in enumerate(lines):
    window = whole(batches[4 * i : 4 * i + 4])
    check(line, rm.measure_labels(*window, LABELS))
    grouped = rm.GroupedAuc().update(
      window[0][:, 0], window[1][:, 0], *window[2:]
    )
    gauc += grouped.sums()
    so_far = rm.measure_labels(*whole(batches[: 4 * i + 4])[:3], None, LABELS)
    check(line, so_far, 'lifetime_')
    assert line['lifetime_gauc/click'] == pytest.approx(gauc[0] / gauc[1])
    assert len(line) == 2 * 3 * (len(rm.NAMES) + 1)
  assert 'lifetime_auc' not in run(Progressive(LABELS), batches)[0]


def test_one_label_and_no_groups():
  batches = [b[:3] for b in stream(labels=1)]
  lines = run(Progressive(('click',)), batches)
  assert set(lines[0]) == {
    'auc', 'auc_max_error', 'logloss', 'ne', 'calibration'
  }  # fmt: skip


@pytest.mark.parametrize(
  'grouped, waiting', [(True, 1), (True, 100), (False, 1 << 16)]
)
def test_a_resumed_run_goes_on_with_the_same_bits(
  monkeypatch, grouped, waiting
):
  batches = [b if grouped else b[:3] for b in stream()]
  expected = run(Progressive(LABELS, lifetime=True), batches)
  monkeypatch.setattr(progressive_lib, 'WAITING', waiting)
  for kill_at in (1, 4, 11):
    first = Progressive(LABELS, lifetime=True)
    lines = run(first, batches[:kill_at])
    saved = json.loads(json.dumps(first.state(), allow_nan=False))
    second = Progressive(LABELS, lifetime=True)
    second.restore(saved)
    for number, batch in enumerate(batches[kill_at:], kill_at + 1):
      second.update(*batch)
      if number % 4 == 0:
        lines.append(second.metrics())
    assert lines == expected
    assert second.state() == json.loads(json.dumps(second.state()))


def test_asking_for_the_state_changes_nothing():
  batches = stream()
  asked, expected = Progressive(LABELS), run(Progressive(LABELS), batches)
  lines = []
  for number, batch in enumerate(batches, 1):
    asked.update(*batch)
    asked.state()
    if number % 4 == 0:
      lines.append(asked.metrics())
  assert lines == expected


def test_nothing_seen_says_nothing():
  found = Progressive(LABELS, lifetime=True)
  assert found.metrics() == {}
  logits, labels, weights, group = stream()[0]
  found.update(logits, labels, 0 * weights, group)
  assert found.metrics() == {}
  found.update(logits, 0 * labels, weights, group)
  line = found.metrics()
  assert math.isnan(line['auc']) and math.isnan(line['lifetime_gauc'])
  assert line['logloss'] > 0


def test_the_state_stays_small(monkeypatch):
  monkeypatch.setattr(auc, 'LEAST_BINS', 1 << 11)
  rng = np.random.default_rng(0)
  found, sizes = Progressive(('click',), lifetime=True), []
  for _ in range(4):
    for _ in range(20):
      logits = rng.normal(-1, 2, (1000, 1)).astype(np.float32)
      found.update(logits, rng.random((1000, 1)) < 0.2, np.ones(1000))
    found.metrics()
    sizes.append(len(json.dumps(found.state())))
  assert max(sizes) < 60_000


def test_states_of_earlier_versions_go_on():
  """Their bins were a 2,048th of 1 + |logit| wide, whatever the scores."""
  rng = np.random.default_rng(0)
  logits = rng.normal(-1, 2, (4000, 1)).astype(np.float32)
  labels = rng.random((4000, 1)) < 1 / (1 + np.exp(-logits))
  size = np.float32(1) + np.abs(logits[:2000, 0])
  number = (size.view(np.int32) - np.float32(1).view(np.int32)) >> 12
  number = np.where(
    logits[:2000, 0] < 0, (1 << 15) - 1 - number, (1 << 15) + number
  )
  bins, which = np.unique(number, return_inverse=True)
  found = Progressive(('click',), lifetime=True)
  found.update(logits[:2000], labels[:2000], np.ones(2000))
  state = found.state()
  [window] = state['window']
  for name in ('start', 'level'):
    del window[name]
  window['bins'] = progressive_lib._text_of(bins.astype(np.int32))
  for name, of in (('positive', labels), ('negative', ~labels)):
    sums = np.bincount(which, of[:2000, 0], len(bins))
    window[name] = progressive_lib._text_of(sums)
  nothing = progressive_lib._text_of(np.zeros(0))
  state['lifetime'] = [
    {
      'means': vars(rm.WeightedMeans()),
      'bins': progressive_lib._text_of(np.zeros(0, np.int32)),
      'positive': nothing,
      'negative': nothing,
    }
  ]
  later = Progressive(('click',), lifetime=True)
  later.restore(json.loads(json.dumps(state)))
  later.update(logits[2000:], labels[2000:], np.ones(2000))
  line = later.metrics()
  exact = rm.ExactAuc().update(logits[:, 0], labels[:, 0]).result()
  assert line['lifetime_auc'] == line['auc']
  assert 0 < abs(line['auc'] - exact) <= line['auc_max_error'] < 3e-4


def test_refusals():
  found = Progressive(LABELS)
  with pytest.raises(ValueError, match='labels .*click.*not of .*like'):
    Progressive(('like',)).restore(found.state())
  logits, *rest = stream()[0]
  with pytest.raises(FloatingPointError, match='NaN or infinite'):
    found.update(np.full_like(logits, np.nan), *rest)
