"""The command that shows a user, its candidates and an event more."""

import pytest

from genrec_jax.serve import mfalcon
from tests.serve import request_runs


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  root = tmp_path_factory.mktemp('demo')
  request_runs.write_ratings(root / 'ratings.csv', request_runs.make_log())
  config = request_runs.make_config(name='movielens', path=str(root))
  config.model.update(counted_from='start', context_mask='causal')
  config.model.min_context_events = 5
  return request_runs.start_run(config, root / 'run')[1]


def test_a_user_is_shown(workdir, capsys):
  words = [f'--workdir={workdir}', '--demo']
  assert mfalcon.main([*words, '--user=13']) == 0
  text = capsys.readouterr().out
  assert text.startswith('user 13: 20 events, the latest last')
  assert 'candidates by liked, and after an event more (movie_id ' in text
  assert 'histories computed: 1, events added: 1' in text
  moved = [line.split()[4] for line in text.splitlines() if '0.' in line[12:22]]
  assert any(x.startswith(('+', '-')) for x in moved)
  mfalcon.main(words)
  assert capsys.readouterr().out.startswith('user 1')


def test_what_is_not_there(workdir, tmp_path):
  with pytest.raises(ValueError, match="no request of user 'nobody'"):
    mfalcon.run_demo(workdir, 'nobody')
  with pytest.raises(FileNotFoundError, match='no config.json'):
    mfalcon.run_demo(tmp_path)
