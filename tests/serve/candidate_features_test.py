"""Scores of candidates with a feature that events do not have."""

import csv

import numpy as np
import pytest
from ml_collections import ConfigDict

from genrec_jax.serve import score_requests
from genrec_jax.serve.request_scorer import RequestScorer
from tests.data.requests import kuairand_test
from tests.serve import request_runs
from tests.tolerances import assert_close

LABEL = 'is_click'


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """(config, workdir) of KuaiRand, whose candidates have a tab."""
  root = tmp_path_factory.mktemp('kuairand')
  kuairand_test.write(root / 'data')
  config = request_runs.make_config(name='kuairand', path=str(root / 'data'))
  config.data.kuairand.update(candidate_tab=True, labels=(LABEL,))
  return request_runs.start_run(config, root / 'run')


@pytest.fixture(scope='module')
def scorer(run):
  return RequestScorer.load(run[1], run[0])


@pytest.fixture
def predict(run, scorer, monkeypatch, tmp_path):
  """lines of a file, or None -> the rows of the predictions."""
  # It is compiled already.
  monkeypatch.setattr(RequestScorer, 'load', lambda *_: scorer)

  def score(lines=None):
    config = ConfigDict(run[0].to_dict())
    config.predict.output = str(tmp_path / 'scores.csv')
    config.predict.columns.item = 'video_id'
    config.predict.columns.user = 'user'
    if lines:
      config.predict.input = str(tmp_path / 'asked.csv')
      (tmp_path / 'asked.csv').write_text('\n'.join(lines) + '\n')
    told = score_requests.write_request_scores(config.lock(), run[1])
    with open(told['output'], newline='') as f:
      return list(csv.DictReader(f))

  return score


def read_scores(rows) -> np.ndarray:
  return np.array([row['score'] for row in rows], float)


def test_a_file_says_what_its_candidates_alone_have(predict, scorer):
  split = predict()
  assert list(split[0]) == [
    'request', 'user', 'time', 'video_id', 'tab', 'score'
  ]  # fmt: skip
  one, other, *_ = sorted({row['tab'] for row in split} - {''})
  user, video = next((r['user'], r['video_id']) for r in split if r['video_id'])
  lines = ['user,video_id,tab']
  lines += [f'{user},{video},{tab}' for tab in (one, other, '', 77, one)]
  scores = read_scores(predict(lines))
  assert_close(scores[0], scores[4])
  assert len(set(scores.round(7).tolist())) == 4
  lines[2:] = [f'{user},{video},{tab}' for tab in (78, 77)]
  others = read_scores(predict(lines))
  assert_close(others, np.array([scores[0], scores[3], scores[3]]))


def test_a_file_without_that_column_is_refused(predict):
  with pytest.raises(ValueError, match="no column 'tab', which every candidat"):
    predict(['user,video_id', '1,2'])


def test_a_call_has_it_in_the_candidates_alone(scorer, predict):
  one, other, *_ = sorted({row['tab'] for row in predict()} - {''})
  history = {
    'video_id': [3, 4], 'action': [1, 0], 'time': [100, 200],
    'watch_time': [3.5, 0],
  }  # fmt: skip
  asked = {'video_id': [5, 5, 5], 'tab': [one, other, one]}
  scores = scorer.score(history, asked)
  assert scores[0] == scores[2] != scores[1]
  with pytest.raises(ValueError, match='tab'):
    scorer.score(history, {'video_id': [5]})
