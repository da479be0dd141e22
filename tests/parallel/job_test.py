"""What the processes of a job tell each other, in three of them."""

import jax
import pytest

from genrec_jax.parallel import job
from tests import processes


def outcome(function):
  try:
    return function()
  except Exception as error:
    return type(error).__name__, str(error)


def everything(path):
  """Run in each process; returns what it has met."""
  me = jax.process_index()

  def write_once():
    with job.fail_together('writing', lead_first=True):
      if job.is_leader():
        path.write_text('done')
      return path.read_text()

  def fail(who, lead_first=False):
    began = False
    try:
      with job.fail_together('counting', lead_first=lead_first):
        began = True
        if me == who:
          raise FileNotFoundError(f'none in {me}')
    except Exception as error:
      return type(error).__name__, str(error), began
    return None

  return {
    'count': job.process_count(),
    'leads': job.is_leader(),
    'written': outcome(write_once),
    'lead': job.broadcast_from_leader(f'I am {me}'),
    'one fails': fail(2),
    'lead fails': fail(0),
    'lead fails first': fail(0, lead_first=True),
    'none fails': fail(-1),
  }


def test_three_processes(tmp_path):
  found = processes.run(everything, tmp_path / 'file', processes=3, devices=1)
  assert [f['leads'] for f in found] == [True, False, False]
  for me, f in enumerate(found):
    assert f['count'] == 3 and f['written'] == 'done'
    assert f['lead'] == 'I am 0'
    assert f['none fails'] is None
    heard = ('JobError', 'counting: process 2: none in 2', True)
    own = ('FileNotFoundError', 'none in 2', True)
    assert f['one fails'] == (own if me == 2 else heard)
    heard = ('JobError', 'counting: process 0: none in 0')
    own = ('FileNotFoundError', 'none in 0', True)
    assert f['lead fails'] == ((*heard, True) if me else own)
    assert f['lead fails first'] == ((*heard, False) if me else own)


def test_alone():
  with job.fail_together('this', lead_first=True):
    assert job.is_leader() and job.process_count() == 1
  assert job.broadcast_from_leader('text') == 'text'
  with pytest.raises(KeyError), job.fail_together('that'):
    raise KeyError
