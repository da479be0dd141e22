"""Tests of the train-step benchmark and of the ML-1M shape it uses."""

import math

import numpy as np
import pytest

from benchmarks import ml1m_shape, result, train_step
from genrec_jax.data import histories


def test_smoke_measures_the_step_and_its_parts(tmp_path, rows, capsys):
  train_step.main(['--smoke', '--models', 'hstu', '--results', str(tmp_path)])
  found = rows('train_step')
  assert list(found) == [
    'hstu',
    'hstu/encoder_forward',
    'hstu/encoder_forward_backward',
    'hstu/loss_forward_backward',
    'hstu/attention_forward',
    'hstu/attention_forward_backward',
  ]
  for row in found.values():
    assert row['data'] == ml1m_shape.GENERATED
    assert 0 < row['min_core_s'] <= row['core_s']
    assert 0 < row['least_tokens'] <= row['tokens'] <= row['most_tokens']
    assert row['compile_core_s'] > 0
    assert 'peer_x' not in row  # tiny sizes do not compare
  assert 'hstu/attention_forward' in capsys.readouterr().out


def test_smoke_alone_writes_nothing(monkeypatch, capsys):
  monkeypatch.setattr(train_step, 'measure', lambda *args: [{'case': 'x'}])
  monkeypatch.setattr(result, 'write', lambda *args, **kwargs: 1 / 0)
  train_step.main(['--smoke', '--models', 'hstu'])
  assert 'nothing is written' in capsys.readouterr().out


@pytest.mark.parametrize('model', ['hstu', 'sasrec'])
def test_the_peer_is_taken_at_its_best(monkeypatch, model):
  monkeypatch.setattr(result, 'machine_kind', lambda: 'cpu2')
  for what in ('train_step', 'evaluation'):
    best = train_step.peer_best(what, model)
    assert best and math.isfinite(best)
  # Never slower than the tuned figure the project set out to beat.
  assert train_step.peer_best('train_step', model) <= 2.17
  assert train_step.peer_best('train_step', 'hstu_large') is None


def test_without_a_peer_on_this_machine_there_is_no_ratio(monkeypatch):
  monkeypatch.setattr(result, 'machine_kind', lambda: 'cpu3')
  assert train_step.peer_best('train_step', 'hstu') is None


def test_generated_lengths_are_those_of_ml1m(tmp_path):
  ml1m_shape.generate(tmp_path / 'log', users=755, items=500)
  log = histories.Histories.open(tmp_path / 'log')
  lengths = np.diff(log.offsets)
  assert len(log) == 755 and len(log.vocab) == 500
  assert lengths.mean() == pytest.approx(165.6, rel=0.03)
  assert np.median(lengths) == pytest.approx(96, abs=2)
  # Tokens of a batch of 128 when one item is held out.
  tokens = 128 * np.minimum(lengths - 2, 200).mean()
  assert tokens == pytest.approx(13_819, rel=0.01)


def test_real_data_is_looked_for_where_genrec_data_says(tmp_path, monkeypatch):
  monkeypatch.setenv('GENREC_DATA', str(tmp_path))
  assert ml1m_shape.find() is None
  (tmp_path / 'ml-1m').mkdir()
  for name in ('ratings.dat', 'movies.dat'):
    (tmp_path / 'ml-1m' / name).write_text('')
  assert ml1m_shape.find() == tmp_path / 'ml-1m'
