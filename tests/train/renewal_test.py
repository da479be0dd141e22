"""Evaluations of an earlier version are not compared with those of now."""

from genrec_jax.evaluators.retrieval import RetrievalEvaluator
from tests.train.tiny_run import train

MONITOR = 'train.monitor=mrr'


def test_a_best_step_of_other_rules_is_measured_anew(
  tmp_path, monkeypatch, said
):
  whole = train(tmp_path / 'whole', MONITOR)
  measure = RetrievalEvaluator._measure_ranks

  def flatter(self, ranks):
    for name, value in measure(self, ranks):
      yield name, value + 1.0 if name == 'mrr' else value

  with monkeypatch.context() as m:
    m.setattr(RetrievalEvaluator, '_measure_ranks', flatter)
    m.setattr(RetrievalEvaluator, 'rules', 1)
    before = train(tmp_path / 'run', MONITOR, 'train.steps=6')
  assert before['metrics']['valid']['mrr'] > 1
  assert 'measured anew' not in said()
  report = train(tmp_path / 'run', MONITOR)
  assert 'counted ties and misses otherwise; measured anew' in said()
  for key in ('metrics', 'best_step', 'last_epoch'):
    assert report[key] == whole[key], key
  # A run that had ended is reported by the rules of now, and told once.
  ended = train(tmp_path / 'ended', MONITOR, 'train.steps=6')
  with monkeypatch.context() as m:
    m.setattr(RetrievalEvaluator, '_measure_ranks', flatter)
    m.setattr(RetrievalEvaluator, 'rules', 1)
    train(tmp_path / 'old', MONITOR, 'train.steps=6')
  again = train(tmp_path / 'old', MONITOR, 'train.steps=6')
  assert again['metrics'] == ended['metrics']
  assert again['last_epoch'] == ended['last_epoch']
