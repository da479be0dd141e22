"""Scores of candidates: the test split, files, and calls from Python."""

import csv
import json
import shutil

import numpy as np
import pytest
from ml_collections import ConfigDict

from genrec_jax import config as config_lib
from genrec_jax.config import ConfigError
from genrec_jax.serve import request_inputs, score_requests
from genrec_jax.serve.request_scorer import RequestScorer
from tests.serve import request_runs
from tests.tolerances import assert_close

LABELS = ('liked', 'rating')


@pytest.fixture(scope='module')
def rated(tmp_path_factory):
  """(config, workdir, log) of films, with times and two labels."""
  root, log = tmp_path_factory.mktemp('rated'), request_runs.make_log()
  request_runs.write_ratings(root / 'ratings.csv', log)
  config = request_runs.make_config(name='movielens', path=str(root))
  config.data.movielens.update(rating_label=True, min_count=2)
  return (*request_runs.start_run(config, root / 'run'), log)


@pytest.fixture(scope='module')
def streamed(tmp_path_factory):
  """(config, workdir) of the generated stream, without times."""
  config = request_runs.make_config(order='stream')
  return request_runs.start_run(config, tmp_path_factory.mktemp('s') / 'run')


@pytest.fixture(scope='module')
def scorer(rated):
  config, workdir, _ = rated
  return RequestScorer.load(workdir, config)


@pytest.fixture
def loaded(scorer, monkeypatch):
  """Predictions take the scorer of the module: it is compiled already."""
  monkeypatch.setattr(RequestScorer, 'load', lambda *_: scorer)


def predict(run, tmp_path, lines=None, suffix='.csv', **keys):
  """What `--mode=predict` returns, and the rows of the file it writes."""
  config = ConfigDict(run[0].to_dict())
  if lines is not None:
    (tmp_path / 'asked.csv').write_text(
      '\n'.join(lines) + '\n' if lines else ''
    )
    keys.setdefault('input', str(tmp_path / 'asked.csv'))
  keys['output'] = str(tmp_path / f'scores{suffix}')
  for key, value in keys.items():
    config_lib.apply_override(
      config, f'predict.{key.replace("__", ".")}={value}'
    )
  told = score_requests.write_request_scores(config.lock(), run[1])
  with open(told['output'], encoding='utf-8', newline='') as f:
    return told, list(csv.DictReader(f)) if suffix == '.csv' else f.read()


def scores_of(rows) -> np.ndarray:
  return np.array([[r[f'score_{x}'] for x in LABELS] for r in rows], float)


def score_films(scorer, events, films, user, time=None) -> np.ndarray:
  """By the raw log, `[N, L]`."""
  history = {
    'movie_id': [film for _, film, _ in events],
    'action': [f'stars_{stars}' for *_, stars in events],
    'time': [time for time, *_ in events],
  }
  return scorer.score(history, {'movie_id': films}, user=user, time=time)


def score_one(scorer, events, film, user, time=None) -> np.ndarray:
  """Of one candidate alone."""
  (found,) = score_films(scorer, events, [film], user, time)
  return found


def test_test_split_is_scored_whole(rated, scorer, loaded, tmp_path):
  told, rows = predict(rated, tmp_path)
  *_, log = rated
  # The last 10 of each user, asked for at the last event before them.
  wanted = [
    (user, film, events[-11][0], number)
    for number, (user, events) in enumerate(log.items(), 1)
    for _, film, _ in events[-10:]
  ]
  counts = {}
  for events in log.values():
    for _, film, _ in events[:-20]:
      counts[film] = counts.get(film, 0) + 1
  known = {film for film, count in counts.items() if count >= 2}
  assert len(known) < len({film for _, film, *_ in wanted})
  assert list(rows[0]) == [
    'request', 'user', 'time', 'movie_id', 'score_liked', 'score_rating',
  ]  # fmt: skip
  assert [
    (int(r['user']), r['movie_id'], int(r['time']), int(r['request']))
    for r in rows
  ] == [
    (user, str(film) if film in known else '', time, number)
    for user, film, time, number in wanted
  ]
  assert told['rows'] == len(wanted) and told['requests'] == len(log)
  scores = scores_of(rows)
  assert ((scores[:, 0] > 0) & (scores[:, 0] < 1)).all()
  for number, (user, events) in enumerate(log.items()):
    films = [film for _, film, _ in events[-10:]]
    found = score_films(scorer, events[:-10], films, user, events[-11][0])
    assert_close(scores[10 * number : 10 * number + 10], found)


def test_histories_may_be_kept(rated, loaded, tmp_path):
  _, wanted = predict(rated, tmp_path)
  told, found = predict(rated, tmp_path, cache_mb=4)
  assert told['rows'] == len(wanted)
  assert_close(scores_of(found), scores_of(wanted))
  for one, other in zip(found, wanted, strict=True):
    assert one['movie_id'] == other['movie_id']
  *_, log = rated
  lines = ['user,movie_id'] + [
    f'{user},{film}' for user in log for film in (5, 6)
  ]
  _, wanted = predict(rated, tmp_path, lines)
  _, found = predict(rated, tmp_path, lines, cache_mb=4)
  assert_close(scores_of(found), scores_of(wanted))
  with pytest.raises(ConfigError, match='predict.cache_mb=0.001: the cache'):
    predict(rated, tmp_path, cache_mb=0.001)


def test_a_file_with_times_reads_histories_up_to_them(
  rated, scorer, loaded, tmp_path
):
  *_, log = rated
  (user, events), *_, (other, _) = log.items()
  moment = events[17][0]  # and another one between two events
  between = events[4][0] + 1
  asked = [(user, moment, 7), (user, moment, 9), (user, between, 7)]
  asked += [(other, moment, 9), (other, *log[other][9][:2])]  # its own answer
  lines = ['when,who,film', *(f'{t},{u},{film}' for u, t, film in asked)]
  columns = dict(columns__user='who', columns__item='film')
  told, rows = predict(rated, tmp_path, lines, columns__time='when', **columns)
  assert list(rows[0])[:4] == ['request', 'who', 'film', 'when']
  assert [int(r['request']) for r in rows] == [1, 1, 2, 3, 4]
  assert [(int(r['who']), int(r['when'])) for r in rows] == [
    (u, t) for u, t, _ in asked
  ]
  assert told['requests'] == 4
  for row, (u, t, film) in zip(scores_of(rows), asked, strict=True):
    past = [event for event in log[u] if event[0] <= t]
    asked_for = {f for v, s, f in asked if (v, s) == (u, t)}
    if any(event[1] in asked_for for event in past if event[0] == t):
      past = [event for event in past if event[0] < t]  # its own answer
    assert_close(row, score_one(scorer, past, film, u, t))
  # As ISO dates, and without times: then all events count.
  date = str(np.datetime64(moment, 's'))
  lines = ['when,who,film', f'{date},{user},7']
  _, (dated,) = predict(rated, tmp_path, lines, columns__time='when', **columns)
  assert_close(scores_of([dated]), scores_of(rows[:1]))
  _, (last,) = predict(rated, tmp_path, lines, **columns)
  assert_close(scores_of([last])[0], score_one(scorer, events, 7, user))
  assert not np.allclose(scores_of([last]), scores_of(rows[:1]), atol=1e-6)


def test_unknown_items_and_users_are_scored_and_told(
  rated, scorer, loaded, tmp_path, said
):
  *_, log = rated
  user = next(iter(log))
  lines = ['user,item', f'{user},5000', f'{user},what', 'nobody,7', '99,7']
  told, rows = predict(rated, tmp_path, lines)
  assert (told['unknown_items'], told['unknown_users']) == (2, 2)
  assert told['without_history'] == 0
  scores = scores_of(rows)
  assert_close(scores[0], scores[1])
  assert_close(scores[2], scores[3])
  (empty,) = scorer.score(
    {'movie_id': [], 'action': [], 'time': []}, {'movie_id': [7]}, user=None
  )
  assert_close(scores[2], empty)
  assert [int(r['request']) for r in rows] == [1, 1, 2, 3]
  text = said()
  assert '2 of 4 candidates are of an item that training does not know' in text
  assert 'such as 5000 (' in text and 'asked.csv, line 2)' in text
  assert '2 of 4 candidates are of a user who is not in the data' in text
  assert 'nobody (' in text and 'line 4)' in text


def test_a_user_without_history_is_scored_and_told(
  rated, loaded, tmp_path, said
):
  *_, log = rated
  user, events = next(iter(log.items()))
  lines = ['user,item,time', f'{user},7,{events[0][0] - 1}', f'{user},7,5e9']
  with pytest.raises(ValueError, match=f"line 3.*user '{user}' asks.*milli"):
    predict(rated, tmp_path, lines, columns__time='time')
  told, (row,) = predict(rated, tmp_path, lines[:2], columns__time='time')
  assert told['without_history'] == 1 and told['unknown_users'] == 0
  assert np.isfinite(scores_of([row])).all()
  assert f'such as {user} (' in said()


def test_rows_that_are_not_together_are_two_requests(rated, loaded, tmp_path):
  *_, log = rated
  one, two, *_ = log
  lines = ['user,item', f'{one},3', f'{two},3', f'{one},3', f'{one},4']
  told, rows = predict(rated, tmp_path, lines)
  assert [int(r['request']) for r in rows] == [1, 2, 3, 3]
  assert told['requests'] == 3
  scores = scores_of(rows)
  assert_close(scores[0], scores[2])
  assert not np.allclose(scores[0], scores[1], atol=1e-6)


def test_a_request_may_have_any_number_of_candidates(
  rated, scorer, loaded, tmp_path, monkeypatch
):
  monkeypatch.setattr(request_inputs, 'BLOCK', 1024)
  *_, log = rated
  one, two, *_ = log
  films = [1 + i % 39 for i in range(2_500)]
  lines = ['user,item', *[f'{two},1'] * 4]
  lines += [f'{one},{film}' for film in films]
  told, rows = predict(rated, tmp_path, lines)
  assert told['rows'] == len(films) + 4 and told['requests'] == 2
  assert {r['request'] for r in rows[4:]} == {'2'}
  assert [int(r['item']) for r in rows[4:]] == films
  scores, first = scores_of(rows[4:]), {}
  for film, score in zip(films, scores, strict=True):
    assert_close(score, first.setdefault(film, score))
  assert_close(scores[:4], score_films(scorer, log[one], films[:4], one))


BAD = {
  'no user': (['who,item', '11,7'], {}, r"no column 'user'.*columns\.user="),
  'no item': (['user,film', '11,7'], {}, r"no column 'item'.*columns\.item="),
  'no time': (
    ['user,item', '11,7'], {'columns__time': 'when'},
    r"no column 'when'.*columns\.time=",
  ),
  'bad time': (
    ['user,item,t', '11,7,1000000000', '12,7,soon'], {'columns__time': 't'},
    "line 3, column 't': 'soon' is not a time at which '12' asks; give seconds",
  ),
  'no candidate': (
    ['user,item', '11,7', '12,'], {},
    "line 3, column 'item': the cell is empty, but .* of user '12'; fill",
  ),
  'nobody': (
    ['user,item', ',7'], {},
    "line 2, column 'user': the cell is empty, but every .* a user; fill",
  ),
  'header': (['user,item'], {}, 'asked.csv: the file holds no rows'),
  'empty': ([], {}, 'asked.csv: the file is empty'),
  'suffix': (
    ['user,item', '11,7'], {'input': 'asked.txt'}, r'predict\.format=csv',
  ),
  'twice': (
    ['user,item,score_liked', '11,7,1'], {'columns__item': 'score_liked'},
    'rename the one of predict.input',
  ),
}  # fmt: skip


@pytest.mark.parametrize('name', BAD)
def test_bad_files_are_one_sentence(rated, loaded, tmp_path, name):
  lines, keys, message = BAD[name]
  if 'input' in keys:
    (tmp_path / keys['input']).write_text('\n'.join(lines))
    keys = {**keys, 'input': str(tmp_path / keys['input'])}
  with pytest.raises(ValueError, match=message) as error:
    predict(rated, tmp_path, lines, **keys)
  assert '\n' not in str(error.value)
  assert not (tmp_path / 'scores.csv').exists()


def test_other_formats_hold_the_same(rated, loaded, tmp_path):
  pa = pytest.importorskip('pyarrow')
  from pyarrow import parquet

  *_, log = rated
  users, films = list(log)[:3] * 2, [3, 4, 5, 3, 4, 5000]
  lines = ['user,item']
  lines += [f'{u},{f}' for u, f in zip(users, films, strict=True)]
  _, rows = predict(rated, tmp_path, lines)
  table = pa.table({'user': users, 'item': [float(film) for film in films]})
  parquet.write_table(table, tmp_path / 'asked.parquet')
  source = str(tmp_path / 'asked.parquet')
  _, text = predict(rated, tmp_path, suffix='.jsonl', input=source)
  found = [json.loads(line) for line in text.splitlines()]
  assert [(x['user'], x['item']) for x in found] == list(
    zip(users, films, strict=True)
  )
  assert_close(scores_of(found), scores_of(rows))
  config = ConfigDict(rated[0].to_dict())
  config.predict.input, config.predict.output = (
    source,
    str(tmp_path / 'scores.parquet'),
  )
  score_requests.write_request_scores(config, rated[1])
  table = parquet.read_table(tmp_path / 'scores.parquet')
  assert table['user'].to_pylist() == users
  assert_close(
    np.array(table['score_liked']), scores_of(rows)[:, 0].astype(np.float32)
  )


def test_features_of_items_are_those_of_the_file_or_of_the_data(
  streamed, tmp_path
):
  _, whole = predict(streamed, tmp_path)
  assert list(whole[0]) == [
    'request', 'user', 'step', 'item', 'category', 'score'
  ]  # fmt: skip
  asked = whole[:6]
  assert len({row['category'] for row in asked}) > 1
  plain = [f'{r["user"]},{r["item"]}' for r in asked]
  named = [f'{r["user"]},{r["item"]},{r["category"]}' for r in asked]
  others = [f'{r["user"]},{r["item"]},{(int(r["category"]) + 1) % 8}'
            for r in asked]  # fmt: skip
  _, known = predict(streamed, tmp_path, ['user,item', *plain])
  _, given = predict(streamed, tmp_path, ['user,item,category', *named])
  _, wrong = predict(streamed, tmp_path, ['user,item,category', *others])

  def read(rows):
    return np.array([row['score'] for row in rows], float)

  assert_close(read(known), read(given))
  assert not np.allclose(read(wrong), read(given), atol=1e-6)
  assert 'category' in given[0] and 'category' not in known[0]
  with pytest.raises(ValueError, match='have no times; set it to'):
    predict(streamed, tmp_path, ['user,item,t', '1,2,3'], columns__time='t')


def test_other_data_are_refused(streamed, tmp_path):
  config, workdir = streamed
  shutil.copytree(workdir, tmp_path / 'run')
  config = ConfigDict(config.to_dict())
  config.data.streaming.seed = 5
  with pytest.raises(ValueError, match='trained on other data|data.streaming'):
    predict((config, tmp_path / 'run'), tmp_path)


def test_scorer_takes_what_frames_and_records_hold(scorer, rated):
  *_, log = rated
  user, events = next(iter(log.items()))
  past = events[:5]
  whole = scorer.score(
    [
      {'movie_id': film, 'action': [f'stars_{stars}'], 'time': time}
      for time, film, stars in past
    ],
    [{'movie_id': 7}, {'movie_id': '9'}],
    user=str(user),
  )
  assert whole.shape == (2, 2) and scorer.labels == LABELS
  bits = {
    'movie_id': [film for _, film, _ in past],
    'action': [1 << (stars - 1) for *_, stars in past],
    'time': [str(np.datetime64(time, 's')) for time, *_ in past],
  }
  assert_close(
    scorer.score(bits, {'movie_id': [7, 9]}, user=user, time=past[-1][0]),
    whole,
  )
  later = scorer.score(bits, {'movie_id': [7, 9]}, time=past[-1][0] + 10**6)
  assert not np.allclose(later, whole, atol=1e-7)
  assert scorer.score(bits, {'movie_id': []}).shape == (0, 2)


HISTORY = {'movie_id': [3, 4], 'action': [1, 2], 'time': [5, 6]}


@pytest.mark.parametrize(
  ('history', 'candidates', 'time', 'message'),
  [
    ({'movie_id': [3]}, {'movie_id': [7]}, None, "history: no column 'action'"),
    (HISTORY, {'film': [7]}, None, "candidates: no column 'movie_id'"),
    ({**HISTORY, 'action': [1, 64]}, {'movie_id': [7]}, None,
     "row 1: '64' is no action; give stars_1"),
    ({**HISTORY, 'action': [1, 'seen']}, {'movie_id': [7]}, None,
     "'seen' is no action"),
    ({**HISTORY, 'time': [6, 5]}, {'movie_id': [7]}, None,
     'row 1: the event is earlier'),
    ({**HISTORY, 'time': [6, 'then']}, {'movie_id': [7]}, None,
     "'then' is no time"),
    (HISTORY, {'movie_id': [7]}, 5, "time is '5'.*last event.*at 6"),
  ],
)  # fmt: skip
def test_bad_calls_are_one_sentence(scorer, history, candidates, time, message):
  with pytest.raises(ValueError, match=message):
    scorer.score(history, candidates, time=time)
