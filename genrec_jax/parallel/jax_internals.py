"""What JAX has but does not publish; no other file imports `jax._src`.

The processes of a job agree through the key-value store of JAX's distributed
runtime, which has no public name. It is looked up where several processes need
it, so that a JAX that keeps it elsewhere still trains in one process.
"""

import jax


def _find_job():
  try:
    from jax._src import distributed

    job = distributed.global_state
    _ = job.client, job.coordinator_address
  except (ImportError, AttributeError) as error:
    raise RuntimeError(
      f'jax {jax.__version__} keeps the store of a job of several processes '
      f'elsewhere than earlier versions ({error}); use an earlier JAX, or '
      'change genrec_jax/parallel/jax_internals.py'
    ) from error
  return job


def find_store():
  """The store of this job, or None where the process belongs to none.

  Raises:
    RuntimeError: this version of JAX has no such store, or elsewhere.
  """
  return _find_job().client


def find_coordinator() -> str:
  """Host and port of process 0; raises what `find_store` raises."""
  return _find_job().coordinator_address
