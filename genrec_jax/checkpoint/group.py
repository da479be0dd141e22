"""Agreement among the processes of a job: process 0 decides for all.

Messages go through the key-value store of JAX's distributed runtime and not
through the devices. A background thread can thus communicate while the main
thread trains; collectives of both would get mixed up.
"""

import concurrent.futures
import json
import threading
import time
from collections.abc import Callable

import jax

from genrec_jax.checkpoint.errors import CheckpointError, UnrestorableError
from genrec_jax.parallel import jax_internals

_FOREVER_S = 7 * 24 * 3600  # process 0's death ends the wait, not a clock
_LISTEN_S = 0.2  # between two looks whether another process has failed
_RAISED = {  # others: CheckpointError
  'FileNotFoundError': FileNotFoundError,
  'UnrestorableError': UnrestorableError,
}
_opened: dict[str, int] = {}


class ProcessGroup:
  """All processes, meeting in turn; every process makes every turn."""

  def __init__(self, name: str, timeout_s: float):
    """Names a group; the nth of one name belongs to the others' nth.

    Args:
      name: the same on all processes.
      timeout_s: how long to wait for the last process to come.
    """
    self.size, self.me = jax.process_count(), jax.process_index()
    self._timeout_s = timeout_s
    self._turn = 0
    _opened[name] = _opened.get(name, 0) + 1
    self._name = f'genrec_jax/{name.strip("/")}/{_opened[name]}'
    self._client = jax_internals.find_store() if self.size > 1 else None
    if self.size > 1 and self._client is None:
      raise CheckpointError(
        f'this is one of {self.size} processes, and they cannot speak with '
        'each other; call jax.distributed.initialize() first'
      )

  def decide_together(
    self, what: str, action: Callable[[list], object], report: object = None
  ):
    """Once all processes are here, process 0 acts; all get what comes of it.

    Args:
      what: what is being done, for messages.
      action: called in process 0 with the reports of all; the others raise what
        it raises.
      report: what this process has to say, of what JSON can hold.

    Returns:
      What `action` returned, of what JSON can hold.
    """
    if self.size == 1:
      return action([report])
    turn, self._turn = f'{self._name}/{self._turn}', self._turn + 1
    if self.me:
      return self._follow_leader(what, turn, report)
    answer = {'error': ['', f'{what}: process 0 was interrupted']}
    try:
      try:
        reports = [report, *self._gather_reports(what, turn)]
      finally:
        self._client.key_value_set(f'{turn}/here', '')
      if self._turn > 1:  # all are here, so nobody reads the former turn now
        self._client.key_value_delete(f'{self._name}/{self._turn - 2}')
      answer = {'result': action(reports)}
    except Exception as e:
      answer = {'error': [type(e).__name__, str(e)]}
      raise
    finally:
      self._client.key_value_set(f'{turn}/answer', json.dumps(answer))
    return answer['result']

  def run_in_each_process(self, work: Callable[[], object]) -> None:
    """Does this process's part of a job; ends it when another process fails.

    The processes wait for each other inside the job (Orbax does so for
    minutes), and one that has failed will not come. Their next turn is a
    `decide_together`.
    """
    if self.size == 1:
      work()
      return
    outcome = concurrent.futures.Future()

    def run_work():
      try:
        outcome.set_result(work())
      except Exception as e:
        outcome.set_exception(e)

    # A daemon: nothing waits for a part that was given up.
    threading.Thread(target=run_work, daemon=True).start()
    alarm = f'{self._name}/{self._turn}/failed'
    while not concurrent.futures.wait([outcome], _LISTEN_S).done:
      if reason := self._try_get(alarm):
        raise CheckpointError(reason)
    if error := outcome.exception():
      self._client.key_value_set(
        alarm, f'process {self.me}: {error}', allow_overwrite=True
      )
      raise error

  def _try_get(self, key: str) -> str | None:
    try:
      return self._client.key_value_try_get(key)
    except jax.errors.JaxRuntimeError as e:
      if 'NOT_FOUND' in str(e):
        return None
      raise

  def _gather_reports(self, what: str, turn: str) -> list:
    deadline = time.monotonic() + self._timeout_s
    return [
      json.loads(
        self._await_key(what, f'{turn}/{p}', p, deadline - time.monotonic())
      )
      for p in range(1, self.size)
    ]

  def _follow_leader(self, what: str, turn: str, report):
    self._client.key_value_set(f'{turn}/{self.me}', json.dumps(report))
    # Twice: process 0 may come late itself and then still wait for another.
    self._await_key(what, f'{turn}/here', 0, 2 * self._timeout_s)
    answer = json.loads(self._await_key(what, f'{turn}/answer', 0, _FOREVER_S))
    if 'error' in answer:
      kind, message = answer['error']
      raise _RAISED.get(kind, CheckpointError)(message)
    return answer['result']

  def _await_key(
    self, what: str, key: str, process: int, seconds: float
  ) -> str:
    try:
      return self._client.blocking_key_value_get(
        key, max(1, int(1000 * seconds))
      )
    except jax.errors.JaxRuntimeError as e:
      if 'DEADLINE_EXCEEDED' in str(e):
        trouble = f'did not come within {self._timeout_s:g} s'
      else:
        trouble = f'cannot be reached ({str(e).splitlines()[0]})'
      raise CheckpointError(
        f'{what}: process {process} of {self.size} {trouble}; has it ended, or '
        'does it not save and restore in step with the others, in the same '
        'directory?'
      ) from e
