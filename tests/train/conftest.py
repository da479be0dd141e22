import pytest

from genrec_jax.evaluators.retrieval import RetrievalEvaluator


@pytest.fixture
def scripted(monkeypatch):
  """Evaluations whose ndcg@10 is what the test says, in order."""

  def script(*values):
    values = iter(values)
    monkeypatch.setattr(
      RetrievalEvaluator,
      'run',
      lambda *_: iter([('ndcg@10', next(values)), ('hr@10', 0.5)]),
    )

  return script
