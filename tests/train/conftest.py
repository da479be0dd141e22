import jax
import pytest

from genrec_jax.evaluators.retrieval import Evaluator


@pytest.fixture
def optax_promotes():
  """optax mixes dtypes; everything else stays strict."""
  with jax.numpy_dtype_promotion('standard'):
    yield


@pytest.fixture
def said(caplog):
  """What the run tells its user, as one text."""
  with caplog.at_level('INFO', 'genrec_jax'):
    yield lambda: '\n'.join(r.getMessage() for r in caplog.records)


@pytest.fixture
def scripted(monkeypatch):
  """Evaluations whose ndcg@10 is what the test says, in order."""

  def script(*values):
    values = iter(values)
    monkeypatch.setattr(
      Evaluator,
      'run',
      lambda *_: iter([('ndcg@10', next(values)), ('hr@10', 0.5)]),
    )

  return script
