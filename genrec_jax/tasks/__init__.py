"""Tasks: representations -> loss and predictions."""

from genrec_jax.tasks import ranking, retrieval

TASKS = {'retrieval': retrieval.Retrieval, 'ranking': ranking.Ranking}
