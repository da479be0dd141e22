"""Evaluators: a state -> named numbers."""

from genrec_jax.evaluators import ranking, retrieval

EVALUATORS = {'ranking': ranking.Evaluator, 'retrieval': retrieval.Evaluator}
