"""Lets the processes of a job agree: on a leader, on values, on failures.

Messages go through the key-value store of JAX's distributed runtime, which
needs no devices, so that a process that failed can still say so.
"""

import contextlib
import itertools
from collections.abc import Iterator

import jax

from genrec_jax.parallel import jax_internals, peers

_FOREVER_MS = 7 * 24 * 3600 * 1000  # a death ends the wait, not a clock
_turns = itertools.count()  # every process takes part in every turn


class JobError(ValueError):
  """What failed in another process; the message says in which one and how."""


def is_leader() -> bool:
  """Whether this process writes what is written once: logs, reports, plans."""
  return jax.process_index() == 0


def process_count() -> int:
  """How many processes there are."""
  return jax.process_count()


@contextlib.contextmanager
def fail_together(what: str, *, lead_first: bool = False) -> Iterator[None]:
  """Makes a block succeed in all processes or fail in all of them.

  A process that fails raises its own error. The others, which would wait for it
  in the next collective, raise a `JobError` after the block.

  Args:
    what: what is being done, for that message.
    lead_first: whether the others begin only when process 0 is through the
      block, so that they find what it has made.
  """
  if process_count() == 1:
    yield
    return
  turn, me = f'genrec_jax/job/{next(_turns)}', jax.process_index()
  if lead_first and me:
    # An error of process 0 is raised here, and the block does not begin.
    _raise_if_failed(_await_words(f'{turn}/lead'))
  try:
    yield
  except BaseException as error:
    words = f'{what}: process {me}: {error or type(error).__name__}'
    # All others wait for process 0, under either name; it waits for theirs.
    for name in ('lead', 'all') if is_leader() else (me,):
      _publish_words(f'{turn}/{name}', words)
    raise
  if is_leader():
    _publish_words(f'{turn}/lead', '')
    # Also when process 0 has succeeded: nobody may go on before all have.
    others = [_await_words(f'{turn}/{p}') for p in range(1, process_count())]
    failed = next(filter(None, others), '')
    _publish_words(f'{turn}/all', failed)
  else:
    _publish_words(f'{turn}/{me}', '')
    failed = _await_words(f'{turn}/all')
  _raise_if_failed(failed)


@contextlib.contextmanager
def all_or_none(
  what: str, heartbeat_s: float = peers.HEARTBEAT_S
) -> Iterator[None]:
  """Ends all processes if one fails in a block of collectives, or is killed.

  The others hang in a collective that this one will never enter, so each has
  threads that listen, say what happened and end the process; see `peers`.

  Args:
    what: what is being done, for that message.
    heartbeat_s: seconds without a sign of life after which a process is gone,
      unless `processes.join_processes` was told another time.
  """
  if process_count() == 1:
    yield
    return
  begins_here = peers.start(heartbeat_s)
  try:
    yield
  except BaseException as error:
    # A collective breaks where another process is gone, and its name is on the
    # way. (All have to wait for a device without memory.)
    if isinstance(
      error, jax.errors.JaxRuntimeError
    ) and 'RESOURCE_EXHAUSTED' not in str(error):
      peers.await_news()
    me, name = jax.process_index(), type(error).__name__
    peers.fail(f'{what}: process {me}: {error or name}')
    raise
  if begins_here:
    peers.stop()


def broadcast_from_leader(text: str) -> str:
  """The text of process 0; all processes must call this together."""
  if process_count() == 1:
    return text
  key = f'genrec_jax/job/{next(_turns)}'
  if is_leader():
    _publish_words(key, text)
    return text
  return _await_words(key)


def _raise_if_failed(words: str) -> None:
  if words:
    raise JobError(words)


def _publish_words(key: str, words: str) -> None:
  client = jax_internals.find_store()
  # The sign in front makes an empty message a value that can be waited for.
  client.key_value_set(key, f'={words}', allow_overwrite=True)


def _await_words(key: str) -> str:
  client = jax_internals.find_store()
  return client.blocking_key_value_get(key, _FOREVER_MS)[1:]
