"""A sample of benchmarks/checkpoint_faults.py; the large one is slow."""

import collections
import multiprocessing
import random

import pytest

from benchmarks import checkpoint_faults_disk as disk
from benchmarks import checkpoint_faults_kill as kill
from benchmarks.checkpoint_faults_kill import EARLIER, LAST, REFUSED


@pytest.fixture(scope='module')
def processes():
  context = multiprocessing.get_context('forkserver')
  context.set_forkserver_preload(['grain', 'benchmarks.checkpoint_faults_disk'])
  return context


def check(found, *allowed):
  """All trials ended as they may; how many ended how."""
  wrong = [one for one in found if one.outcome not in allowed]
  assert not wrong, wrong[:3]
  return collections.Counter(one.outcome for one in found)


def sizes(few, many):
  return pytest.mark.parametrize(
    'trials', [few, pytest.param(many, marks=pytest.mark.slow)]
  )


@sizes(1, 10)
def test_killed_processes_leave_the_last_committed_state(
  processes, tmp_path, trials
):
  policies = ['consecutive'] if trials == 1 else kill.POLICIES
  for policy in policies:
    kills = kill.Kills(processes, tmp_path, policy, random.Random(trials))
    found = kills.run(trials)
    assert check(found, LAST) == {LAST: len(kill.AIMS) * trials}
    assert len({one.fault for one in found}) == len(kill.AIMS)


@sizes(4, 60)
def test_a_killed_follower_goes_on_to_the_newest_step(
  processes, tmp_path, trials
):
  rng = random.Random(trials)
  found = kill.follower_trials(processes, tmp_path, trials, rng)
  assert check(found, LAST) == {LAST: trials}


@sizes(1, 20)
def test_two_writers_never_make_a_mixed_checkpoint(processes, tmp_path, trials):
  found, _ = kill.writers_trials(
    processes, tmp_path, 'intermittent', trials, random.Random(trials)
  )
  assert check(found, LAST) == {LAST: trials}


@sizes(3, 30)
def test_no_room_on_the_disk_loses_nothing(processes, tmp_path, trials):
  found, failed = disk.full_trials(
    processes, tmp_path, 'one_shot', trials, random.Random(2)
  )
  assert len(found) >= 2 * trials and failed
  check(found, LAST)


# Orbax drops the coroutines of arrays whose files it cannot read.
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
@pytest.mark.parametrize(
  'share', [0.1, pytest.param(1.0, marks=pytest.mark.slow)]
)
def test_no_damage_to_any_file_is_loaded(tmp_path, share):
  found = disk.damage_trials(
    tmp_path, 'consecutive', random.Random(0), share=share
  )
  found += disk.between_trials(tmp_path, 'consecutive', random.Random(0), 2)
  ends = check(found, LAST, EARLIER, REFUSED)
  assert ends[REFUSED] > ends[EARLIER] > 0
