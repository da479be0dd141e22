"""A model of the oldest events is asked by files, calls and the page.

Its weights are those of a model of the latest events, which is given the oldest
ones alone.
"""

import csv
import types

import numpy as np
import pytest
from ml_collections import ConfigDict

from genrec_jax.data.requests import prepared
from genrec_jax.report import request_panel
from genrec_jax.serve import score_requests
from genrec_jax.serve.request_scorer import RequestScorer
from genrec_jax.train.request_data import RequestData
from tests.serve import request_runs
from tests.tolerances import assert_close

READ = 6  # events of a history that the model reads
FILMS = [7, 9, 11]


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
  """Quirk or '' -> (config, workdir), and the log."""
  root, log = tmp_path_factory.mktemp('rated'), request_runs.make_log()
  request_runs.write_ratings(root / 'ratings.csv', log)
  made = {}
  for quirk in ('', 'oldest_events'):
    config = request_runs.make_config(name='movielens', path=str(root))
    config.data.max_history = READ
    config.model.min_context_events = 0
    config.model.reference_compat = (quirk,) if quirk else ()
    made[quirk] = request_runs.start_run(config, root / f'run{quirk}')
  return made, log


@pytest.fixture(scope='module')
def scorers(runs):
  return {
    quirk: RequestScorer.load(workdir, config)
    for quirk, (config, workdir) in runs[0].items()
  }


def tell(events):
  return {
    'movie_id': [film for _, film, _ in events],
    'action': [f'stars_{stars}' for *_, stars in events],
    'time': [time for time, *_ in events],
  }


def score_plainly(scorers, events, user, films, time):
  """By the model that reads the latest, of which there are no others."""
  asked = {'movie_id': films}
  kept = tell(events[:READ])
  return scorers[''].score(kept, asked, user=user, time=time)[:, 0]


def test_a_call_reads_the_oldest(scorers, runs):
  asked = {'movie_id': FILMS}
  for user, events in runs[1].items():
    last = events[-1][0]
    found = scorers['oldest_events'].score(tell(events), asked, user=user)
    wanted = score_plainly(scorers, events, user, FILMS, last)
    assert_close(found[:, 0], wanted)
    latest = scorers[''].score(tell(events), asked, user=user)
    assert not np.allclose(found, latest, atol=1e-7)
  # The ages of what is read must fit into 32 bits, and of nothing else.
  late, events = events[0][0] + 2**31, events
  for quirk, scorer in scorers.items():
    history = tell(events[: READ + 1])
    history['time'][1:] = [late] * READ
    if quirk:
      with pytest.raises(ValueError, match='time in milliseconds'):
        scorer.score(history, asked)
    else:
      assert np.isfinite(scorer.score(history, asked)).all()


def test_a_file_and_the_test_split_read_the_oldest(
  scorers, runs, tmp_path, monkeypatch
):
  made, log = runs
  config, workdir = made['oldest_events']
  config = ConfigDict(config.to_dict())
  scorer = scorers['oldest_events']
  monkeypatch.setattr(RequestScorer, 'load', lambda *_: scorer)

  def predict():
    told = score_requests.write_request_scores(config, workdir)
    with open(told['output'], newline='') as f:
      return list(csv.DictReader(f))

  config.predict.output = str(tmp_path / 'scores.csv')
  rows = predict()
  for user, events in log.items():
    own = [row for row in rows if int(row['user']) == user]
    assert len(own) == 10
    films = [film for _, film, _ in events[-10:]]
    wanted = score_plainly(
      scorers, events[:-10], user, films, events[-11][0]
    )  # fmt: skip
    assert_close(np.array([float(row['score']) for row in own]), wanted)
  asked = [
    (user, events[n][0]) for n in (2, 9, 20) for user, events in log.items()
  ]
  lines = ['user,item,time', *(f'{user},7,{time}' for user, time in asked)]
  (tmp_path / 'asked.csv').write_text('\n'.join(lines))
  config.predict.input = str(tmp_path / 'asked.csv')
  config.predict.columns.time = 'time'
  rows = predict()
  for row, (user, time) in zip(rows, asked, strict=True):
    past = [event for event in log[user] if event[0] <= time]
    (wanted,) = score_plainly(scorers, past, user, [7], time)
    assert_close(np.float64(row['score']), wanted)
  # Without times a request is at the last event, which is not read.
  config.predict.columns.time = ''
  for row, (user, _) in zip(predict(), asked, strict=True):
    events = log[user]
    (wanted,) = score_plainly(scorers, events, user, [7], events[-1][0])
    assert_close(np.float64(row['score']), wanted)
  late = log[asked[0][0]][0][0] + 2**31
  (tmp_path / 'asked.csv').write_text(
    f'user,item,time\n{asked[0][0]},7,{late}\n'
  )
  config.predict.columns.time = 'time'
  with pytest.raises(ValueError, match='line 2.*time in milliseconds'):
    predict()


def test_the_page_shows_the_oldest(scorers, runs, monkeypatch):
  made, log = runs
  config, workdir = made['oldest_events']
  scorer = scorers['oldest_events']
  monkeypatch.setattr(RequestScorer, 'load', lambda *_: scorer)
  dataset = prepared.load(config.data, workdir / 'data', log=lambda line: None)
  data = RequestData(dataset, config)
  experiment = types.SimpleNamespace(data=data, extensions=None)
  config = ConfigDict(config.to_dict())
  config.report.update(users=2, history=3, candidates=3)
  for request in request_panel.explain_requests(config, workdir, experiment):
    events = log[request['user']]
    assert request['events'] == READ
    kept, asked_at = events[READ - 3 : READ], events[-11][0]
    assert [x['age'] for x in request['history']] == [
      asked_at - time for time, *_ in kept
    ]
    # One of the row of unknown ones may be any that nobody knows.
    films = [c['item'] for c in request['candidates']]
    wanted = score_plainly(scorers, events, request['user'], films, asked_at)
    found = [c['scores']['liked'] for c in request['candidates']]
    assert_close(np.array(found), wanted)
    # Without the last event that is read, and no other one in its place.
    less = scorers[''].score(
      tell(events[: READ - 1]), {'movie_id': films},
      user=request['user'], time=asked_at,
    )[:, 0]  # fmt: skip
    moved = [
      next(m['change'] for m in c['moved'] if m['event'] == 1)
      for c in request['candidates']
    ]
    np.testing.assert_allclose(moved, wanted - less, atol=2e-7)
