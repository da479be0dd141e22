"""Tasks: representations -> loss and predictions."""

from genrec_jax.tasks import retrieval

TASKS = {'retrieval': retrieval.Retrieval}
