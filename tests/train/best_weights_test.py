"""The best weights and the checkpoints that know of them."""

import shutil
import time

import jax.numpy as jnp
import pytest

from genrec_jax.checkpoint import manifest
from genrec_jax.train import loop
from genrec_jax.train.best_weights import BestWeights
from tests.train import tiny_run
from tests.train.tiny_run import assert_same_run, curve, train


def about(step: int, value: float) -> dict:
  return {'step': step, 'value': value, 'metrics': {'valid': {'auc': value}}}


def save(best: BestWeights, step: int, value: float) -> None:
  best.save(step, {'w': jnp.full(2, value)}, about(step, value))
  best.wait()


def steps(directory) -> list[int]:
  return manifest.list_steps(directory)


def test_what_the_last_complete_checkpoint_knows_of_stays(tmp_path):
  with BestWeights(tmp_path) as best:
    assert best.resume_from(None) is None
    save(best, 2, 0.2)
    best.begin_checkpoint(about(2, 0.2))
    save(best, 3, 0.3)
    save(best, 4, 0.4)
    assert steps(tmp_path) == [2, 3, 4]
    best.begin_checkpoint(about(4, 0.4))  # it may never be complete
    assert steps(tmp_path) == [2, 4]
    best.begin_checkpoint(about(4, 0.4))
    assert steps(tmp_path) == [4]
    save(best, 9, 0.9)
    best.begin_checkpoint(about(9, 0.9))
    best.complete_checkpoint()
  assert steps(tmp_path) == [9]


def test_a_lost_curve_goes_when_the_run_continues(tmp_path):
  with BestWeights(tmp_path) as best:
    save(best, 2, 0.2)
    best.begin_checkpoint(about(2, 0.2))
    save(best, 5, 0.5)
  with BestWeights(tmp_path) as best:
    assert best.resume_from(about(2, 0.2)) == about(2, 0.2)
    assert steps(tmp_path) == [2]
    save(best, 5, 0.25)
    assert manifest.read(tmp_path / '5')['host'] == about(5, 0.25)
    save(best, 5, 0.25)  # the same curve once more


def test_a_save_under_way_is_left_alone(tmp_path, monkeypatch):
  """Its directory appears while the next one makes room for itself."""
  looks, steps_there = [], manifest.list_steps

  def appear(directory):
    if not looks:
      (tmp_path / '3').mkdir()
      (tmp_path / '3' / 'half').touch()
    looks.append(1)
    return [s for s in steps_there(directory) if s != 3 or len(looks) > 1]

  with BestWeights(tmp_path) as best:
    save(best, 2, 0.2)
    monkeypatch.setattr(manifest, 'list_steps', appear)
    best.save(4, {'w': jnp.ones(2)}, about(4, 0.4))
    assert (tmp_path / '3' / 'half').exists()


def test_weights_that_are_gone_are_said_to_be(tmp_path, caplog):
  with BestWeights(tmp_path) as best:
    save(best, 2, 0.2)
    (tmp_path / '2' / manifest.NAME).write_text('{}')
    assert best.resume_from(about(2, 0.2)) is None
    assert 'step 2, are missing or damaged' in caplog.text
    save(best, 2, 0.2)  # in its place
  assert manifest.verify(tmp_path / '2')['host'] == about(2, 0.2)


@pytest.fixture
def interrupt(monkeypatch):
  """Interrupts a run after some step, once."""

  def at(step):
    update = loop.Progress.update

    def raising(progress, now, **shown):
      if now == step:
        monkeypatch.setattr(loop.Progress, 'update', update)
        raise KeyboardInterrupt
      return update(progress, now, **shown)

    monkeypatch.setattr(loop.Progress, 'update', raising)

  return at


def test_a_run_reports_the_weights_it_keeps(tmp_path, interrupt):
  """Interrupted behind an evaluation, and continued to an earlier end."""
  keys = ('train.eval_every=1', 'train.checkpoint_every=6')
  interrupt(11)
  with pytest.raises(KeyboardInterrupt):
    train(tmp_path / 'lost', *keys)
  report = train(tmp_path / 'lost', *keys, 'train.steps=7')
  train(tmp_path / 'whole', *keys, 'train.steps=7')
  assert steps(tmp_path / 'lost' / 'best') == [report['best_step']]
  assert curve(tmp_path / 'lost') == curve(tmp_path / 'whole')
  assert_same_run(tmp_path / 'lost', tmp_path / 'whole')
  assert tiny_run.STEPS > 11


def test_the_best_weights_are_whole_before_a_checkpoint_names_them(
  scripted, tmp_path, monkeypatch
):
  written, write = [], manifest.write

  def slow_for_the_best(path, *args, **kwargs):
    time.sleep(0.2 if path.parent.name == 'best' else 0.0)
    write(path, *args, **kwargs)
    written.append(f'{path.parent.name}/{path.name}')

  monkeypatch.setattr(manifest, 'write', slow_for_the_best)
  scripted(0.1, 0.2)
  train(tmp_path, 'train.steps=8')
  assert written == ['best/4', 'checkpoints/4', 'best/8', 'checkpoints/8']


def test_the_best_of_a_lost_future_is_made_again(
  scripted, tmp_path, monkeypatch
):
  """All checkpoints are lost, and this time step 8 is not better."""
  scripted(0.1, 0.3)
  train(tmp_path, 'train.steps=8')
  assert steps(tmp_path / 'best') == [8]
  shutil.rmtree(tmp_path / 'checkpoints')
  scripted(0.1, 0.05)
  report = train(tmp_path, 'train.steps=8')
  assert report['best_step'] == 4
  assert steps(tmp_path / 'best') == [4]
