import dataclasses
import itertools
import json
import math

import jax
import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax.data.ranking import datasets, drift
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import loop

SMALL = dict(rows=300, segments=3, fields=4, values=9, pairs=3, width=2)
FIELDS = [field.name for field in dataclasses.fields(drift.DriftWindow)]


def make_log(**changes):
  return drift.DriftLog(**(SMALL | changes))


def assert_equal_windows(a, b):
  for name in FIELDS:
    x, y = getattr(a, name), getattr(b, name)
    assert x.dtype == y.dtype
    np.testing.assert_array_equal(x, y, err_msg=name)


def normalise(effects, frequencies):
  """A value's number -> its effect, centred under the frequencies."""
  mean = sum(f * x for f, x in zip(frequencies, effects, strict=True))
  return [x - mean for x in effects]


def state_logit(log, now, pairs, segment, places):
  """The logit of one row, as the definition has it, one number at a time."""
  weights = [1 / (v + 1) ** log.zipf for v in range(log.values)]
  freq = [w / sum(weights) for w in weights]
  size = math.sqrt(log.common**2 + (1 - log.common) ** 2)
  fields = [
    normalise(
      [
        log.common / size * now.common[f, v]
        + (1 - log.common) / size * now.own[segment, f, v]
        for v in range(log.values)
      ],
      freq,
    )
    for f in range(log.fields)
  ]
  variance = sum(
    freq[v] * fields[f][v] ** 2
    for f in range(log.fields)
    for v in range(log.values)
  )
  wanted = log.signal**2 * (1 - log.pair_share if pairs else 1)
  first = sum(fields[f][places[f]] for f in range(log.fields))
  total = first * math.sqrt(wanted / variance)

  products, variance = 0.0, 0.0
  for i, (a, b) in enumerate(pairs):
    left, right = (
      np.array([normalise(side[i, :, d], freq) for d in range(log.width)]).T
      for side in (now.left, now.right)
    )
    products += np.dot(left[places[a]], right[places[b]])
    for v, w in itertools.product(range(log.values), repeat=2):
      variance += freq[v] * freq[w] * np.dot(left[v], right[w]) ** 2
  if pairs:
    total += products * math.sqrt(log.signal**2 * log.pair_share / variance)
  return total + log.rate_spread * now.base[segment]


@pytest.mark.parametrize(
  'changes',
  [{}, {'pairs': 0}, {'common': 0.0}, {'common': 1.0, 'zipf': 0.0}],
)
def test_probabilities_are_those_of_the_definition(changes):
  log = make_log(rows=20, jumps=0.5, reborn=0.1, **changes)
  stream = drift.DriftStream(log)
  for k in (0, 1, 4):
    window, now = stream.window(k), stream.processes(k)
    places = window.ids % log.values
    wanted = [
      state_logit(log, now, stream.pairs, segment, row)
      for segment, row in zip(window.segment, places, strict=True)
    ]
    logits = np.log(window.probability / (1 - window.probability))
    np.testing.assert_allclose(logits - stream.bias, wanted, atol=1e-9)


def test_a_step_of_the_processes_one_number_at_a_time():
  log = make_log(half_life=3.0, jumps=0.4, reborn=0.2)
  stream, rest = drift.DriftStream(log), 0.5 ** (1 / 3)
  jumps = births = 0
  for k in range(1, 12):
    last, now = stream.processes(k - 1), stream.processes(k)
    rng = np.random.default_rng([log.seed, 1, k])
    fresh = {
      name: rng.standard_normal(getattr(now, name).shape)
      for name in ('base', 'common', 'own', 'left', 'right')
    }
    reborn = rng.random(now.born.shape) < log.reborn
    jump, share = rng.random(2)
    jumped = rng.random(now.born.shape) < share

    def step(name, at, kept, fresh=fresh, last=last):
      then = getattr(last, name)[at]
      return kept * then + math.sqrt(1 - kept**2) * fresh[name][at]

    jumps, births = jumps + (jump < log.jumps), births + reborn.sum()
    for f, v in np.ndindex(now.born.shape):
      new = reborn[f, v] or (jump < log.jumps and jumped[f, v])
      kept = 0.0 if new else rest
      assert now.born[f, v] == (k if reborn[f, v] else last.born[f, v])
      assert now.common[f, v] == pytest.approx(step('common', (f, v), kept))
      for g in range(log.segments):
        assert now.own[g, f, v] == pytest.approx(step('own', (g, f, v), kept))
      for i, pair in enumerate(stream.pairs):
        for side, field in zip(('left', 'right'), pair, strict=True):
          if field == f:
            for d in range(log.width):
              wanted = step(side, (i, v, d), kept)
              assert getattr(now, side)[i, v, d] == pytest.approx(wanted)
    for g in range(log.segments):
      assert now.base[g] == pytest.approx(step('base', g, rest))
  assert 0 < jumps < 11 and births


def test_windows_are_the_same_in_whatever_order():
  log = make_log(jumps=0.3)
  one, other = drift.DriftStream(log), drift.DriftStream(log)
  forward = [one.window(k) for k in range(6)]
  for k in (5, 0, 3, 3, 4, 1):
    assert_equal_windows(other.window(k), forward[k])
  longer = drift.DriftStream(make_log(jumps=0.3, windows=99))
  assert_equal_windows(longer.window(2), forward[2])
  others = drift.DriftStream(make_log(jumps=0.3, seed=1)).window(2)
  assert not np.array_equal(others.ids, forward[2].ids)
  with pytest.raises(ValueError, match='no window -1'):
    one.window(-1)


def test_rows_have_their_own_ids_and_are_in_the_order_of_time():
  log = make_log(window_s=50)
  windows = [drift.DriftStream(log).window(k) for k in range(4)]
  ids = np.concatenate([w.example_id for w in windows])
  assert len(set(ids)) == len(ids) == 4 * log.rows
  time = np.concatenate([w.time for w in windows])
  assert (np.diff(time) >= 0).all() and time.max() < 4 * 50
  for k, window in enumerate(windows):
    assert (window.time // 50 == k).all() and len(window) == log.rows
  assert windows[0].ids.shape == (log.rows, log.fields)


@pytest.mark.parametrize('common', [0.0, 0.6, 1.0])
def test_the_deviation_of_the_signal_is_that_of_the_key(common):
  log = make_log(
    rows=200_000, values=60, common=common, rate_spread=0.0, reborn=0.05,
    jumps=0.3, signal=1.7, pair_share=0.4,
  )  # fmt: skip
  stream = drift.DriftStream(log)
  for k in (0, 7, 40):
    window, effects = stream.window(k), stream.effects(k)
    logits = np.log(window.probability / (1 - window.probability))
    for segment in range(log.segments):
      of_it = logits[window.segment == segment]
      # Where values are common, few draws decide the sample's deviation.
      assert of_it.std() == pytest.approx(log.signal, rel=0.02)
      assert of_it.mean() == pytest.approx(stream.bias, abs=0.05)
    explained = (effects.fields**2 * stream.frequencies).sum((1, 2))
    np.testing.assert_allclose(explained, 1.7**2 * 0.6, rtol=1e-9)


def test_half_of_the_correlation_is_left_after_the_half_life():
  log = make_log(values=4_000, half_life=5.0, reborn=0.0)
  stream = drift.DriftStream(log)
  for name in ('common', 'own', 'left'):
    first = getattr(stream.processes(3), name)
    for later, wanted in ((3, 1.0), (8, 0.5), (13, 0.25)):
      then = getattr(stream.processes(later), name)
      found = np.corrcoef(first.ravel(), then.ravel())[0, 1]
      assert found == pytest.approx(wanted, abs=0.03)
      assert then.std() == pytest.approx(1, abs=0.03)


def test_a_jump_moves_some_effects_at_once():
  log = make_log(values=500, jumps=1.0, half_life=1e9, reborn=0.0)
  stream, shares = drift.DriftStream(log), []
  for k in range(1, 20):
    last = stream.processes(k - 1)
    now = stream.processes(k)
    shares.append(np.mean(np.abs(now.common - last.common) > 1e-3))
    assert (now.born == 0).all()
  assert min(shares) < 0.25 and max(shares) > 0.75
  assert 0.3 < np.mean(shares) < 0.7
  still = drift.DriftStream(dataclasses.replace(log, jumps=0.0))
  np.testing.assert_allclose(
    still.processes(9).common, still.processes(0).common, atol=1e-3
  )


def test_an_id_that_has_gone_never_returns():
  log = make_log(rows=2_000, reborn=0.2)
  stream = drift.DriftStream(log)
  gone, before, born = set(), None, 0
  for k in range(30):
    every = np.arange(log.values) + np.zeros((log.fields, 1), np.int64)
    ids = drift.find_ids(log, stream.processes(k).born, every)
    alive = {(f, i) for f, row in enumerate(ids.tolist()) for i in row}
    assert len(alive) == log.fields * log.values and not alive & gone
    if before is not None:
      gone |= before - alive
      born += len(alive - before)
    before = alive
    shown = {(f, i) for row in stream.window(k).ids for f, i in enumerate(row)}
    assert shown <= alive
  assert born / (29 * log.fields * log.values) == pytest.approx(0.2, abs=0.04)
  never = drift.DriftStream(make_log(reborn=0.0)).window(20)
  assert never.ids.max() < log.values


def test_what_segments_have_in_common():
  def correlate(common):
    stream = drift.DriftStream(make_log(values=2_000, common=common))
    fields = stream.effects(4).fields
    return np.corrcoef(fields.reshape(len(fields), -1))[0, 1]

  assert correlate(0.0) == pytest.approx(0, abs=0.05)
  # Of c : 1 - c as 1 : 1, half of the variance.
  assert correlate(0.5) == pytest.approx(0.5, abs=0.05)
  fields = drift.DriftStream(make_log(common=1.0)).effects(4).fields
  np.testing.assert_array_equal(
    fields, np.broadcast_to(fields[:1], fields.shape)
  )
  base = drift.DriftStream(make_log(common=1.0)).effects(4).base
  assert np.ptp(base) > 0.05


@pytest.mark.parametrize('rate', [0.02, 0.3])
@pytest.mark.parametrize('signal', [0.0, 1.5])
def test_the_share_of_clicks_is_near_the_rate(rate, signal):
  log = drift.DriftLog(rows=50_000, rate=rate, signal=signal, rate_spread=0.0)
  stream = drift.DriftStream(log)
  chances, labels = [], []
  for k in (0, 9, 17):
    window = stream.window(k)
    chances.append(window.probability.mean())
    labels.append(window.label.mean())
  assert np.mean(chances) == pytest.approx(rate, rel=0.05)
  assert np.mean(labels) == pytest.approx(np.mean(chances), rel=0.06)
  spread = drift.DriftStream(dataclasses.replace(log, rate_spread=0.3))
  means = [spread.window(k).probability.mean() for k in (0, 30, 60, 90)]
  assert np.mean(means) == pytest.approx(rate, rel=0.25)


def test_labels_are_drawn_by_the_probabilities():
  log = drift.DriftLog(rows=200_000, rate=0.1)
  window = drift.DriftStream(log).window(2)
  assert set(np.unique(window.label)) == {0, 1}
  for rows in np.array_split(np.argsort(window.probability), 10):
    chance = window.probability[rows].mean()
    error = (chance * (1 - chance) / len(rows)) ** 0.5
    assert abs(window.label[rows].mean() - chance) < 4 * error


def test_labels_arrive_late_or_never():
  log = drift.DriftLog(rows=100_000, rate=0.2, delay=2.0, lost=0.1)
  window = drift.DriftStream(log).window(3)
  clicked, arrives = window.label == 1, window.label_time != drift.NEVER
  assert not arrives[~clicked].any()
  assert arrives[clicked].mean() == pytest.approx(0.9, abs=0.01)
  delay = (window.label_time - window.time)[arrives] / log.window_s
  assert delay.min() >= 0 and delay.max() <= 2 * drift.LONGEST_DELAY
  assert delay.mean() == pytest.approx(2.0, rel=0.03)
  assert np.median(delay) == pytest.approx(2 * math.log(2), rel=0.04)
  at_once = drift.DriftStream(dataclasses.replace(log, delay=0.0, lost=0.0))
  window = at_once.window(3)
  clicked = window.label == 1
  np.testing.assert_array_equal(
    window.label_time, np.where(clicked, window.time, drift.NEVER)
  )


def test_the_floor_is_the_ne_of_the_true_probabilities():
  log = drift.DriftLog(rows=400_000, rate=0.1)
  windows = [drift.DriftStream(log).window(k) for k in range(2)]
  p = np.concatenate([w.probability for w in windows])
  drawn = np.random.default_rng(1).random(p.shape) < p
  loss = -np.where(drawn, np.log(p), np.log1p(-p)).mean()
  rate = drawn.mean()
  entropy = -rate * np.log(rate) - (1 - rate) * np.log(1 - rate)
  floor = drift.find_floor(windows)
  assert floor == pytest.approx(loss / entropy, rel=4e-3)
  assert floor == drift.find_floor(iter(windows)) < 0.9
  flat = drift.DriftStream(drift.DriftLog(signal=0.0, rate_spread=0.0))
  assert drift.find_floor([flat.window(0)]) == pytest.approx(1.0)
  with pytest.raises(ValueError, match='no windows'):
    drift.find_floor([])


@pytest.mark.parametrize(
  'options, wanted',
  [
    ({'rows': 0}, 'data.drift.rows must be at least 1, not 0'),
    ({'values': 1}, 'data.drift.values must be at least 2'),
    ({'half_life': 0.0}, 'data.drift.half_life is 0.0, must be above 0'),
    ({'half_life': math.nan}, 'data.drift.half_life is nan'),
    ({'signal': math.nan}, 'data.drift.signal must be at least 0, not nan'),
    ({'reborn': 1.5}, 'data.drift.reborn is 1.5, must be from 0 to 1'),
    ({'rate': 0.0}, 'data.drift.rate is 0.0, must be above 0 and below 1'),
    ({'fields': 3}, 'data.drift.pairs is 8; 3 fields make 0 to 3 pairs'),
    ({'half_live': 3}, "data.drift.half_live is not an option.*'half_life'"),
  ],
)
def test_impossible_streams_are_refused(tmp_path, options, wanted):
  with pytest.raises(ValueError, match=wanted):
    datasets.load({'name': 'drift', 'drift': options}, tmp_path)


def test_the_keys_of_the_config_are_the_options():
  config = config_lib.ranking()
  assert config.data.drift.to_dict() == dataclasses.asdict(drift.DriftLog())


def test_the_prepared_stream_is_the_drawn_one(tmp_path):
  cfg = {
    'name': 'drift',
    'drift': SMALL | {'windows': 20, 'rate': 0.1},
    'time': 'time',
    'example_id': 'example_id',
    'extras': {'probability': 'float'},
    'split': {'by': 'order', 'valid_fraction': 0.0, 'test_fraction': 0.1},
  }
  ds = datasets.load(cfg, tmp_path, lambda _: None)
  assert [f.name for f in ds.features] == ['segment', 'c0', 'c1', 'c2', 'c3']
  assert {f.kind for f in ds.features} == {'categorical'}
  stream = drift.DriftStream(make_log(windows=20, rate=0.1))
  test = ds.splits['test']
  assert len(ds.splits['train']) == 18 * 300 and len(test) == 2 * 300
  rows = test.rows(0, len(test))
  drawn = [stream.window(k) for k in (18, 19)]

  def join(name):
    return np.concatenate([getattr(w, name) for w in drawn])

  np.testing.assert_array_equal(rows.labels[:, 0], join('label'))
  np.testing.assert_array_equal(rows.time, join('time'))
  np.testing.assert_array_equal(rows.example_id, join('example_id'))
  np.testing.assert_allclose(
    rows.extras['probability'], join('probability'), rtol=1e-6
  )
  # Values born in the test windows are not in the vocabulary.
  decoded = ds.vocabularies['c0'].decode(rows.ids[:, 1])
  known = np.array([str(x).isdigit() for x in decoded])
  assert 0.5 < known.mean() <= 1
  np.testing.assert_array_equal(
    np.asarray(decoded)[known].astype(int), join('ids')[known, 0]
  )


def test_a_run_on_the_stream(tmp_path):
  config = config_lib.load(
    'wukong_synthetic:smoke',
    ['data.name=drift', 'data.time=time', 'data.example_id=example_id'],
  )
  assert config.data.drift.rows == 500
  config.train.eval_every, config.report.importance_rows = 16, 0
  with jax.numpy_dtype_promotion('standard'):  # optax mixes dtypes
    loop.train_and_evaluate(config, tmp_path / 'run', TASK_KINDS)
  report = json.loads((tmp_path / 'run' / 'report.json').read_text())
  assert 0.5 < report['metrics']['test']['ne'] < 3


def test_base_rates_may_drift_at_a_pace_of_their_own():
  """Correlations after four windows, over many segments and values."""
  log = drift.DriftLog(
    segments=400, fields=2, values=200, pairs=0, half_life=100.0,
    rate_half_life=4.0, reborn=0.0,
  )  # fmt: skip
  stream = drift.DriftStream(log)
  before, after = stream.processes(0), stream.processes(4)

  def correlate(a, b):
    return np.corrcoef(a.reshape(-1), b.reshape(-1))[0, 1]

  assert abs(correlate(before.base, after.base) - 0.5) < 0.12
  assert abs(correlate(before.own, after.own) - 0.5 ** (4 / 100)) < 0.01
  # 0 is the half-life of all else.
  alike = drift.DriftLog(half_life=4.0, rate_half_life=4.0)
  usual = drift.DriftLog(half_life=4.0)
  np.testing.assert_array_equal(
    drift.DriftStream(alike).processes(3).base,
    drift.DriftStream(usual).processes(3).base,
  )
