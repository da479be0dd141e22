"""The processes of a job: which one speaks for all, and what they agree on."""

import jax
import numpy as np
from jax.experimental import multihost_utils


def leads() -> bool:
  """Whether this process writes what is written once: logs, reports, plans."""
  return jax.process_index() == 0


def count() -> int:
  """How many processes there are."""
  return jax.process_count()


def any_of(flag: bool) -> bool:
  """Whether it is set in some process; all of them must ask."""
  if count() == 1:
    return flag
  return bool(np.any(multihost_utils.process_allgather(np.asarray(flag))))
