"""What counts as a good end of a command, and what only looks like one."""

import pytest

from benchmarks.robustness_verdicts import End, Life, judge, judge_missed

STOPPED = 'stopped by SIGTERM at step 8 of 24; the same command continues\n'
KEPT = 'stopped by Ctrl-C; continues from the checkpoint of step 8\n'
GONE = 'error: process 1 of 2 (host x) is gone: it died or was killed\n'


def end(workdir, *processes, in_time=True, is_complete=False) -> End:
  """Each process as (status, words); a checkpoint of step 8 is there."""
  step = workdir / 'checkpoints' / '8'
  step.mkdir(parents=True, exist_ok=True)
  (step / 'MANIFEST.json').touch()
  statuses, said = zip(*processes, strict=True)
  return End(statuses, said, in_time, is_complete, workdir)


def outcome(name, ended: End, whom=(0,), follows=False) -> str:
  life = Life('step', name, met='step')
  judge(life, ended, whom, follows)
  return life.outcome


@pytest.mark.parametrize(
  'name, status, words, expected',
  [
    ('TERM', 75, STOPPED, 'saved and told'),
    ('INT', 130, KEPT, 'saved and told'),
    ('INT INT', 130, 'Ctrl-C again: ended at once\n', 'saved and told'),
    ('TERM', 75, STOPPED.replace('8', '9'), 'silent'),  # not saved
    (
      'TERM',
      75,
      f'continuing from the checkpoint of step 4\n{STOPPED}',
      'saved and told',
    ),
    ('TERM', 75, '20 items recommended\n', 'silent'),
    ('TERM', 0, '', 'silent'),  # which is how a run ends that is done
    ('TERM', 1, 'error: no such file\n', 'silent'),
    ('TERM', -11, STOPPED, 'crash'),
    ('TERM', 75, 'Traceback (most recent call last)\n' + STOPPED, 'traceback'),
    ('TERM', 70, 'this looks like a bug in genrec_jax\n', 'last resort'),
    ('KILL', -9, '', 'killed'),
    ('KILL', -11, '', 'crash'),
    ('STOP CONT', 0, '', 'silent'),
  ],
)
def test_one_process(tmp_path, name, status, words, expected):
  assert outcome(name, end(tmp_path, (status, words))) == expected


def test_a_command_that_was_done_when_the_signal_came(tmp_path):
  done = end(tmp_path, (0, ''), is_complete=True)
  assert outcome('TERM', done) == outcome('KILL', done) == 'ended before'
  assert outcome('STOP CONT', done) == 'went on'


def test_a_follower_ends_by_sigterm(tmp_path):
  said = 'stopped by SIGTERM; to go on, start it again\n'
  assert outcome('TERM', end(tmp_path, (0, said)), follows=True) == (
    'saved and told'
  )


@pytest.mark.parametrize(
  'name, first, second, expected',
  [
    ('KILL', (1, GONE), (-9, ''), 'killed'),
    ('KILL', (1, ''), (-9, ''), 'silent'),
    ('KILL', (-6, ''), (-9, ''), 'crash'),
    ('KILL', (0, ''), (-9, ''), 'silent'),
    ('TERM', (75, STOPPED), (75, ''), 'saved and told'),
    ('TERM', (75, STOPPED), (1, ''), 'silent'),
    (
      'TERM',
      (1, 'error: process 1 did not come within 30 s\n'),
      (75, STOPPED),
      'saved and told',
    ),
  ],
)
def test_one_of_two_processes(tmp_path, name, first, second, expected):
  assert outcome(name, end(tmp_path, first, second), whom=[1]) == expected


def test_who_does_not_end_hangs(tmp_path):
  ended = end(tmp_path, (-9, STOPPED), in_time=False)
  assert outcome('TERM', ended) == 'hang'


@pytest.mark.parametrize(
  'status, words, is_complete, expected',
  [
    (0, '', True, 'ended before'),
    (0, '', False, 'silent'),
    (1, 'error: x\n', False, 'silent'),
    (1, 'Traceback\n', True, 'traceback'),
  ],
)
def test_a_life_whose_phase_never_came(
  tmp_path, status, words, is_complete, expected
):
  life = Life('save', 'TERM')
  judge_missed(life, end(tmp_path, (status, words), is_complete=is_complete))
  assert life.outcome == expected
