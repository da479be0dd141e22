"""Evaluators: a state -> named numbers."""

from genrec_jax.evaluators import retrieval

EVALUATORS = {'retrieval': retrieval.Evaluator}
