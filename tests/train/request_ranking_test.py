"""What the project promises of every run, of runs with requests.

A stream of three steps, whose histories are cut at random, is trained once on
one device, watched; what follows is compared with it.
"""

import dataclasses
import math
import pathlib
from typing import Any

import jax
import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax.checkpoint import manifest
from genrec_jax.config.request_sets import StreamOptions
from genrec_jax.data.requests import batches
from genrec_jax.data.requests.streaming import LABEL, generate_requests
from genrec_jax.evaluators.requests import RequestEvaluator
from genrec_jax.progress import Progress
from genrec_jax.runtime.saving import Saver
from genrec_jax.runtime.state import flatten_state
from genrec_jax.serve.weights import load_weights
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import experiment, loop, results
from genrec_jax.train.progressive_validation import NoProgressiveValidation
from genrec_jax.train.request_data import PRIOR, RequestData
from tests.tolerances import assert_close
from tests.train import tiny_run

CONFIG = f'{pathlib.Path(__file__).parents[2]}/configs/gr_streaming.py:smoke'
OVERRIDES = (
  'model.blocks=1',
  'model.layout=interleaved',
  'data.streaming.users=22',
  'data.streaming.activity=0.8',  # the last batch of a step is not full
  'data.streaming.steps=4',
  'data.streaming.train_steps=3',
  # A history of more than eight events may be cut to eight.
  'data.stochastic_length.alpha=1.2',
  # Adam's first steps are the signs of gradients, and where a gradient is the
  # noise of rounding, so is its sign. With this, steps are smooth in gradients.
  'optimizer.eps=1e-3',
  'optimizer.rows.eps=1e-3',
  'train.eval_first=true',
  'train.log_every=1',
  'train.checkpoint_every=2',
  'report.users=0',
  'seed=0',
)
SHUFFLED = ('data.order=shuffled', 'train.steps=5', 'train.eval_every=3')


@dataclasses.dataclass(frozen=True)
class Run:
  """A run to its end.

  Attributes:
    config: of it.
    workdir: what it left.
    report: what it returned.
    events: what it did, in order: ('score', step, rows of requests, split) and
      ('learn', step, rows); `step` is that of the weights.
  """

  config: Any
  workdir: pathlib.Path
  report: dict
  events: list


def load(*overrides):
  return config_lib.load(CONFIG, [*OVERRIDES, *overrides])


def train(workdir, *overrides):
  with jax.numpy_dtype_promotion('standard'):  # for optax
    return loop.train_and_evaluate(load(*overrides), workdir, TASK_KINDS)


def real_rows(batch) -> list[int]:
  row = np.asarray(batch.row)
  return row[row >= 0].tolist()


@pytest.fixture(scope='module')
def whole(tmp_path_factory) -> Run:
  workdir, events = tmp_path_factory.mktemp('whole') / 'run', []
  evaluate, make = RequestEvaluator.run, batches.eval_batches
  weights = []

  def run(self, state):
    weights.append(int(state.step))
    yield from evaluate(self, state)
    weights.pop()

  def eval_batches(dataset, split, **options):
    name = next(n for n, x in dataset.splits.items() if x is split)
    for batch in make(dataset, split, **options):
      if weights:  # and not the baseline
        events.append(('score', weights[-1], real_rows(batch), name))
      yield batch

  def observe(self, step, state, batch):
    assert int(state.step) == step
    events.append(('learn', step, real_rows(batch)))

  with pytest.MonkeyPatch.context() as m:
    m.setattr(RequestEvaluator, 'run', run)
    m.setattr(batches, 'eval_batches', eval_batches)
    m.setattr(NoProgressiveValidation, 'observe', observe)
    report = train(workdir)
  return Run(load(), workdir, report, events)


@pytest.fixture(scope='module')
def stream(whole):
  """The stream once more, from its options alone."""
  options = whole.config.data.streaming.to_dict()
  return generate_requests(StreamOptions(**options))


def crash_at(step, monkeypatch):
  """As `kill -9` between two checkpoints: nothing is saved on the way out."""
  update = Progress.update

  def crashing(self, now, **shown):
    update(self, now, **shown)
    if now == step:
      raise ZeroDivisionError('crashed')

  monkeypatch.setattr(Progress, 'update', crashing)


def train_with_a_crash(workdir, step, monkeypatch, before=(), after=()):
  with monkeypatch.context() as m:
    crash_at(step, m)
    with pytest.raises(ZeroDivisionError):
      train(workdir, *before)
  steps = manifest.list_steps(workdir / 'checkpoints')
  assert max(steps) < step
  return train(workdir, *after)


def assert_same_weights(workdir, reference, config):
  task = experiment.build_experiment(
    config, reference, TASK_KINDS, lambda *_: None
  ).task
  found, wanted = (
    load_weights(w, task, 'latest') for w in (workdir, reference)
  )
  assert found.step == wanted.step
  for one, other in (
    (found.params, wanted.params),
    (found.tables, wanted.tables),
  ):
    jax.tree.map(
      lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)),
      one,
      other,
    )


def watch_states(monkeypatch) -> tuple[dict, dict]:
  """Step -> what is saved, and what is restored, filled in by trainings."""
  save, restore, saved, restored = Saver.save, Saver.restore, {}, {}

  def save_and_keep(self, step, state, **more):
    saved[step] = name_arrays(state, self._runtime.stacks)
    return save(self, step, state, **more)

  def restore_and_keep(self, batches):
    point = restore(self, batches)
    restored[point.step] = name_arrays(point.state, self._runtime.stacks)
    return point

  monkeypatch.setattr(Saver, 'save', save_and_keep)
  monkeypatch.setattr(Saver, 'restore', restore_and_keep)
  return saved, restored


def name_arrays(state, stacks) -> dict[str, np.ndarray]:
  """A state by names that do not depend on where rows lie."""
  named = {
    name: np.asarray(array)
    for name, array in flatten_state(state).items()
    # A mesh alone counts those, and rows are told below by their ids.
    if name != 'sums/exchange_overflow'
    and not name.startswith(('tables/', 'slots/'))
  }
  for name, stack in stacks.items():
    arrays = {'rows': state.tables[name], **state.row_opt_state[name]}
    for piece in stack.pieces:
      at = stack.index(piece, np.arange(piece.rows, dtype=np.int32))
      for what, array in arrays.items():
        key = f'{piece.table}/{piece.first_column}/{what}'
        named[key] = np.asarray(array)[at]
  return named


# --- What is learned, and what is measured when


def test_a_step_is_measured_whole_before_anything_of_it_is_learned(
  whole, stream
):
  requests = stream.splits['train']
  steps = sorted(set(requests.step.tolist()))
  assert len(steps) == 3
  learned, measured, events = set(), [], list(whole.events)
  while events:
    kind, weights, *_ = events[0]
    assert weights == len([e for e in whole.events[: -len(events)]
                           if e[0] == 'learn'])  # fmt: skip
    if kind == 'learn':
      rows = events.pop(0)[2]
      assert len({requests.step[row] for row in rows}) == 1
      assert learned.isdisjoint(rows)
      learned.update(rows)
      continue
    scored, parts = [], {}
    while events and events[0][0] == 'score':
      *_, rows, split = events.pop(0)
      scored += rows
      parts.setdefault(split, []).extend(rows)
    measured += parts
    if split == 'train':  # as 'next'
      now = steps[len(measured) - 1]
      assert set(scored) == set(np.flatnonzero(requests.step == now).tolist())
      assert learned == set(np.flatnonzero(requests.step < now).tolist())
  assert measured == ['train'] * 3 + ['valid', 'test']
  assert learned == set(range(len(requests)))
  for split in ('valid', 'test'):
    assert set(parts[split]) == set(range(len(stream.splits[split])))


def test_the_curve_has_each_step_and_the_end_alone_the_test(whole):
  ends = sorted({e[1] for e in whole.events if e[0] == 'score'})
  assert tiny_run.steps_of(whole.workdir, 'next/ne') == ends[:-1]
  assert tiny_run.steps_of(whole.workdir, 'test/ne') == ends[-1:]
  assert tiny_run.steps_of(whole.workdir, 'valid/ne') == ends[-1:]
  assert ends[-1] == whole.report['steps']


def test_the_validation_split_of_a_stream_chooses_nothing(whole):
  (note,) = [n for n in whole.report['notes'] if 'validation split' in n]
  assert 'once' in note and 'No validation split' not in note
  assert whole.report['best_step'] == whole.report['steps']
  assert not manifest.list_steps(whole.workdir / 'best')


@pytest.mark.parametrize(
  'splits, said', [(('valid', 'test'), 'once, at the end'), (('test',), 'nor')]
)
def test_the_log_says_what_becomes_of_validation(whole, splits, said):
  config, told = whole.config.copy_and_resolve_references(), []
  with config.unlocked():
    config.eval.splits = splits
  RequestData.load(config, whole.workdir, told.append)
  (line,) = [line for line in told if 'not learned from' in line]
  assert said in line


def test_the_popularity_of_items_by_hand(whole, stream):
  train, test = stream.splits['train'], stream.splits['test']
  liked, shown = {}, {}
  for item, label in zip(
    train.items['item'].tolist(), train.labels[LABEL].tolist(), strict=True
  ):
    liked[item] = liked.get(item, 0) + label
    shown[item] = shown.get(item, 0) + 1
  mean = sum(liked.values()) / sum(shown.values())
  rates = [
    (liked.get(item, 0) + PRIOR * mean) / (shown.get(item, 0) + PRIOR)
    for item in test.items['item'].tolist()
  ]
  labels = test.labels[LABEL].tolist()
  loss = -sum(
    math.log(rate if label else 1 - rate)
    for rate, label in zip(rates, labels, strict=True)
  ) / len(labels)
  up = [r for r, label in zip(rates, labels, strict=True) if label]
  down = [r for r, label in zip(rates, labels, strict=True) if not label]
  wins = sum((a > b) + (a == b) / 2 for a in up for b in down)
  share = len(up) / len(labels)
  entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
  found = whole.report['baselines']['popularity']['test']
  assert found['logloss'] == pytest.approx(loss, rel=1e-5)
  assert found['ne'] == pytest.approx(loss / entropy, rel=1e-5)
  assert found['auc'] == pytest.approx(wins / len(up) / len(down), rel=1e-5)


def test_a_finished_stream_is_evaluated_again(whole):
  again = results.evaluate_run(whole.config, whole.workdir, TASK_KINDS)
  assert set(again['metrics']) == {'valid', 'test'}
  assert again['step'] == whole.report['steps']
  for split in ('valid', 'test'):
    assert again['metrics'][split] == whole.report['metrics'][split]
  baseline = whole.report['baselines']['popularity']['test']
  assert again['baselines']['popularity']['test'] == baseline


# --- Runs that are interrupted, and spread over devices


def test_a_stream_that_is_killed_goes_on_to_the_last_bit(
  whole, tmp_path, monkeypatch
):
  found = train_with_a_crash(tmp_path, 5, monkeypatch)
  assert tiny_run.curve(tmp_path) == tiny_run.curve(whole.workdir)
  assert found['metrics'] == whole.report['metrics']
  assert_same_weights(tmp_path, whole.workdir, whole.config)


@pytest.mark.slow
def test_shuffled_requests_that_are_killed(tmp_path, monkeypatch):
  report = train(tmp_path / 'whole', *SHUFFLED)
  found = train_with_a_crash(
    tmp_path / 'killed', 3, monkeypatch, SHUFFLED, SHUFFLED
  )
  curves = [tiny_run.curve(tmp_path / name) for name in ('killed', 'whole')]
  assert curves[0] == curves[1]
  assert found['metrics'] == report['metrics']
  assert 'valid' in found['metrics'] and 'next' not in found['metrics']


def test_eight_devices_and_deltas_that_one_device_goes_on_with(
  whole, tmp_path, monkeypatch
):
  many = ('parallel.devices=8', 'checkpoint.policy=consecutive')
  saved, restored = watch_states(monkeypatch)
  train_with_a_crash(tmp_path, 5, monkeypatch, many, many[1:])
  kinds = [
    manifest.read(tmp_path / 'checkpoints' / str(step))['rows']['kind']
    for step in manifest.list_steps(tmp_path / 'checkpoints')
  ]
  assert 'delta' in kinds
  # Nothing is lost on the way: every row, slot and parameter has its bits. What
  # is different from then on is therefore what is different between one device
  # and eight without a restart: the order of sums, which 'curve' allows for.
  (step,) = restored
  assert 'item/0/rows' in restored[step] and 'item/0/sum' in restored[step]
  tiny_run.assert_same_bits(restored[step], saved[step])
  found, wanted = tiny_run.curve(tmp_path), tiny_run.curve(whole.workdir)
  assert [r['step'] for r in found] == [r['step'] for r in wanted]
  for row, other in zip(found, wanted, strict=True):
    for name in row.keys() & other.keys():
      near = 'curve' if name.startswith('train/') else 'float32'
      where = f'{name} of step {other["step"]}'
      assert_close(row[name], other[name], near, where)


@pytest.mark.parametrize('steps', [1, 100])
def test_a_run_that_ends_within_a_step_of_the_stream(steps, tmp_path):
  message = rf'train.steps is {steps}, and the steps of the stream end after \d'
  with pytest.raises(config_lib.ConfigError, match=message):
    train(tmp_path, f'train.steps={steps}')
