"""Requests at the edges of what is possible, and those beyond them."""

import dataclasses
import types

import numpy as np
import pytest
from ml_collections import ConfigDict

from genrec_jax.data.ranking import raw
from genrec_jax.data.requests import prepared
from genrec_jax.data.requests.feature_values import read_values
from genrec_jax.data.requests.requests import Requests
from genrec_jax.report import request_panel, stream_panel
from genrec_jax.serve import left_out, request_scorer, score_requests
from genrec_jax.serve.request_inputs import CandidateFile
from genrec_jax.serve.request_scorer import RequestScorer
from tests.serve import request_runs
from tests.tolerances import assert_close

READ = 6  # events of a history that the model reads


@pytest.fixture(scope='module')
def rated(tmp_path_factory):
  """(config, workdir, log) of films, with times and users as context."""
  root, log = tmp_path_factory.mktemp('rated'), request_runs.make_log()
  request_runs.write_ratings(root / 'ratings.csv', log)
  config = request_runs.make_config(name='movielens', path=str(root))
  config.data.max_history = READ
  config.model.min_context_events = 0
  return (*request_runs.start_run(config, root / 'run'), log)


@pytest.fixture(scope='module')
def scorer(rated):
  return RequestScorer.load(rated[1], rated[0])


@pytest.fixture(scope='module')
def dataset(rated):
  config, workdir, _ = rated
  return prepared.load(config.data, workdir / 'data', log=lambda line: None)


def tell(events, **columns):
  """A history of the raw log."""
  return {
    'movie_id': [film for _, film, _ in events],
    'action': [f'stars_{stars}' for *_, stars in events],
    'time': [time for time, *_ in events],
    **columns,
  }


CANDIDATES = {'movie_id': [7, 9]}


# --- Calls from Python


def test_the_latest_events_of_a_history_are_read(scorer, rated):
  events = rated[2][11]
  whole = scorer.score(tell(events), CANDIDATES, user=11)
  assert_close(scorer.score(tell(events[-READ:]), CANDIDATES, user=11), whole)
  less = scorer.score(tell(events[: -1 - READ]), CANDIDATES, user=11)
  assert not np.allclose(less, whole, atol=1e-7)


def test_the_context_is_that_of_the_user(scorer, dataset):
  (name,) = (f.name for f in dataset.spec.context)
  for user in (11, '11', 18, '18'):
    at = dataset.user_ids.tolist().index(int(user))
    found = scorer.find_context(user)[name]
    assert found.tolist() == dataset.context[name][at : at + 1].tolist()
  unknown = [dataset.spec.context[0].rows - 1]
  for user in (None, 'nobody', 10**6):
    assert scorer.find_context(user)[name].tolist() == unknown


def test_an_event_may_have_several_actions(scorer, rated):
  events = rated[2][11][:5]
  both = tell(events, action=[['stars_1', 'stars_4']] * 5)
  found = scorer.score(both, CANDIDATES)
  assert_close(scorer.score(tell(events, action=[9] * 5), CANDIDATES), found)
  one = scorer.score(tell(events, action=['stars_4'] * 5), CANDIDATES)
  assert not np.allclose(one, found, atol=1e-7)


def test_events_of_one_time_are_in_order(scorer, rated):
  events = rated[2][11][:5]
  found = scorer.score(tell(events, time=[50] * 5), CANDIDATES, time=50)
  assert found.shape == (2, 1) and np.isfinite(found).all()


def test_a_hundred_thousand_candidates(scorer, rated):
  """Of 40 films, each with the score that it has alone."""
  history = tell(rated[2][11])
  films = np.arange(100_000) % 40
  found = scorer.score(history, {'movie_id': films}, user=11)
  assert found.shape == (100_000, 1)
  few = scorer.score(history, {'movie_id': np.arange(40)}, user=11)
  assert_close(found, few[films], axis=None)


def test_scores_that_are_no_numbers_are_refused(scorer, rated, monkeypatch):
  def score_nothing(weights, batch):
    del weights
    count = len(batch.jagged['candidates']['movie_id'])
    return np.full((count, 1), np.nan), np.ones(count, bool)

  monkeypatch.setitem(vars(scorer), '_compiled_scorer', score_nothing)
  with pytest.raises(FloatingPointError, match='NaN'):
    scorer.score(tell(rated[2][11]), CANDIDATES)


def test_watch_times_are_seconds():
  def read(*cells):
    chunk = raw.from_columns({'watch_time': list(cells)}, ['watch_time'])
    return request_scorer._read_seconds(chunk)

  assert read(None, 2.5, '3').tolist() == [0, 2.5, 3]
  assert read(1.5).dtype == np.float32
  for bad in (-0.5, 'long', 'inf'):
    with pytest.raises(ValueError, match="row 1: the watch time is '"):
      read(0, bad)
  with pytest.raises(ValueError, match='holds lists; give one value'):
    read([1, 2])


@pytest.mark.parametrize(
  ('changes', 'candidates', 'time', 'message'),
  [
    ({'movie_id': [[3], [4, 5]]}, [7], None,
     "history: 'movie_id' holds lists; give one value"),
    ({}, [[7, 8]], None, "candidates: 'movie_id' holds lists; give one value"),
    ({'movie_id': [3, None]}, [7], None,
     "history, row 1: there is no 'movie_id'; give one, or leave"),
    ({}, [7, ''], None,
     "candidates, row 1: there is no 'movie_id'; give one, or leave"),
    ({}, [7], 10**12, 'milliseconds. give seconds'),
    ({'time': [5]}, [7], None, 'history: the columns differ in length'),
    ({'action': ['', 2]}, [7], None, "history, row 0: '' is no action"),
  ],
)  # fmt: skip
def test_calls_without_sense_are_one_sentence(
  scorer, changes, candidates, time, message
):
  history = {'movie_id': [3, 4], 'action': [1, 2], 'time': [5, 6], **changes}
  with pytest.raises(ValueError, match=message) as error:
    scorer.score(history, {'movie_id': candidates}, time=time)
  assert '\n' not in str(error.value)


# --- Files of candidates


def open_file(tmp_path, dataset, lines, **columns) -> CandidateFile:
  path = tmp_path / 'asked.csv'
  path.write_text('\n'.join(lines) + '\n')
  named = {'user': 'user', 'item': 'item', 'time': '', **columns}
  predict = ConfigDict({'format': '', 'columns': named})
  values = read_values(dataset.spec, dataset.vocabs)
  return CandidateFile(path, predict, dataset, values, READ)


def list_rows(file: CandidateFile) -> list[tuple]:
  """(number, user, end, time, item) of each candidate."""
  rows = []
  for block in file.read():
    asked = block.requests
    counts = np.diff(asked.offsets)
    assert counts.min() > 0
    spread = [np.repeat(x, counts) for x in (asked.user, asked.end, asked.time)]
    columns = [block.number, *spread, asked.items['movie_id']]
    rows += zip(*(column.tolist() for column in columns), strict=True)
  return rows


def test_blocks_of_a_file_do_not_matter(tmp_path, dataset, monkeypatch):
  users = [11, 11, 11, 12, 12, 'nobody', 11, 13, 13, 13, 13, 13, 14]
  lines = ['user,item', *(f'{u},{i % 9}' for i, u in enumerate(users))]
  whole = list_rows(open_file(tmp_path, dataset, lines))
  assert [row[0] for row in whole] == [
    1, 1, 1, 2, 2, 3, 4, 5, 5, 5, 5, 5, 6,
  ]  # fmt: skip
  for rows in (1, 2, 3):
    monkeypatch.setattr(raw, 'CHUNK_ROWS', rows)
    monkeypatch.setattr('genrec_jax.serve.request_inputs.BLOCK', 5)
    file = open_file(tmp_path, dataset, lines)
    assert list_rows(file) == whole
    assert file.tally.requests == 6 and file.tally.rows == len(users)


def test_ages_are_those_of_the_events_that_are_read(tmp_path, dataset):
  """The first events are too old for whole numbers of 32 bits."""
  times = dataset.events.time[: dataset.events.offsets[1]]
  late = int(times[-READ]) + 2**31 - 1
  assert late - times[0] >= 2**31
  user = dataset.user_ids[0]
  lines = ['user,item,when', f'{user},7,{late}']
  (row,) = list_rows(open_file(tmp_path, dataset, lines, time='when'))
  assert row[2:4] == (len(times), late)
  lines[1] = f'{user},7,{late + 1}'
  with pytest.raises(ValueError, match=f"line 2: user '{user}' asks.*give sec"):
    list_rows(open_file(tmp_path, dataset, lines, time='when'))


def test_who_is_unknown_has_a_context_of_unknown_values(tmp_path, dataset):
  file = open_file(tmp_path, dataset, ['user,item', 'nobody,7'])
  ((_, user, end, *_),) = list_rows(file)
  first, last = file.dataset.events.offsets[user : user + 2]
  assert first == last == end
  (feature,) = dataset.spec.context
  assert file.dataset.context[feature.name][user] == feature.rows - 1


def test_the_log_names_five_examples(tmp_path, dataset):
  lines = ['user,item', *(f'11,{n}' for n in range(900, 909))]
  file = open_file(tmp_path, dataset, lines)
  list_rows(file)
  assert file.tally.unknown_items == 9
  assert list(file.tally.examples['unknown_items']) == [
    '900', '901', '902', '903', '904',
  ]  # fmt: skip


def test_an_item_that_never_occurs_has_features_of_no_item(tmp_path):
  """Of the stream, whose items are all known by number."""
  config = request_runs.make_config(order='stream')
  config.data.streaming.items = 4000
  data = prepared.load(config.data, tmp_path / 'data', log=lambda line: None)
  there = {*data.events.items['item'].tolist()}
  there |= {x for s in data.splits.values() for x in s.items['item'].tolist()}
  row = next(n for n in range(1, 4000) if n not in there)
  other = min(there)
  lines = ['user,item', f'1,{row - 1}', f'1,{other - 1}']
  (block,) = open_file(tmp_path, data, lines).read()
  assert block.requests.items['item'].tolist() == [row, other]
  size = data.spec.items[1].rows
  wanted = 1 + (other - 1) // (4000 // config.data.streaming.categories)
  assert block.requests.items['category'].tolist() == [size - 1, wanted]


def test_the_room_of_batches_only_grows():
  """Each room is a program to compile."""
  rooms, made = iter([(8, 64), (32, 8), (16, 16)]), []

  class Scorer:
    labels = ('liked',)

    def find_room(self, dataset, requests):
      return next(rooms)

    def score_requests(self, dataset, requests, *, room):
      made.append(room)
      yield np.zeros((1, 1))

  block = types.SimpleNamespace(requests=None, number=np.array([1]), named={})
  file = types.SimpleNamespace(dataset=None, read=lambda: [block] * 3)
  scorer, config = Scorer(), ConfigDict({'predict': {'cache_mb': 0.0}})
  score, describe = score_requests._choose_way(config, scorer, None)
  assert not describe()
  assert len(list(score_requests._score_file(scorer, file, score))) == 3
  assert made == [(8, 64), (32, 64), (32, 64)]


def predict(rated, tmp_path, **keys):
  config = ConfigDict(rated[0].to_dict())
  config.predict.output = str(tmp_path / 'scores.csv')
  for key, value in keys.items():
    config.predict[key] = value
  return score_requests.write_request_scores(config.lock(), rated[1])


def test_requests_without_candidates_have_no_row(
  rated, scorer, dataset, tmp_path, monkeypatch, caplog
):
  test = dataset.splits['test']
  asked = dataclasses.replace(
    test,
    offsets=np.array([0, 0, 2, 2]),
    user=test.user[:3],
    end=test.end[:3],
    time=test.time[:3],
    items={name: rows[:2] for name, rows in test.items.items()},
    labels={name: values[:2] for name, values in test.labels.items()},
  )
  holed = dataclasses.replace(dataset, splits={'test': asked})
  monkeypatch.setattr(RequestScorer, 'load', lambda *_: scorer)
  monkeypatch.setattr(score_requests, '_load_data', lambda *_: holed)
  monkeypatch.setattr(score_requests.LOG, 'propagate', True)
  told = predict(rated, tmp_path)
  assert told['rows'] == 2 and told['requests'] == 3
  assert '2 requests of the test split have no candidates' in caplog.text
  lines = (tmp_path / 'scores.csv').read_text().splitlines()[1:]
  assert [line.split(',')[0] for line in lines] == ['2', '2']


def test_predictions_replace_no_input_and_none_of_its_columns(
  rated, scorer, tmp_path, monkeypatch
):
  monkeypatch.setattr(RequestScorer, 'load', lambda *_: scorer)
  path = tmp_path / 'scores.csv'
  path.write_text('user,item\n11,7\n')
  with pytest.raises(ValueError, match='would replace predict.input'):
    predict(rated, tmp_path, input=str(path))
  assert path.read_text() == 'user,item\n11,7\n'
  path = tmp_path / 'asked.csv'
  path.write_text('user,request\n11,7\n')
  columns = ConfigDict({**rated[0].predict.columns, 'item': 'request'})
  with pytest.raises(ValueError, match="column 'request' of their own"):
    predict(rated, tmp_path, input=str(path), columns=columns)


def test_other_files_than_those_of_the_training_are_refused(
  tmp_path, monkeypatch
):
  log = request_runs.make_log()
  request_runs.write_ratings(tmp_path / 'ratings.csv', log)
  config = request_runs.make_config(name='movielens', path=str(tmp_path))
  run = request_runs.start_run(config, tmp_path / 'run')
  log[13] = log[13][1:]
  request_runs.write_ratings(tmp_path / 'ratings.csv', log)
  monkeypatch.setattr(RequestScorer, 'load', lambda *_: None)
  with pytest.raises(ValueError, match='was trained on other data than'):
    predict(run, tmp_path)
  assert not (tmp_path / 'scores.csv').exists()


def test_data_that_no_batch_can_hold_are_named_with_their_files(tmp_path):
  """Two ratings in microseconds, a microsecond apart."""
  log = request_runs.make_log()
  log[12][-5] = (log[12][-5][0] * 10**6, *log[12][-5][1:])
  log[12][-4] = (log[12][-4][0] * 10**6 + 1, *log[12][-4][1:])
  request_runs.write_ratings(tmp_path / 'ratings.csv', log)
  config = request_runs.make_config(name='movielens', path=str(tmp_path))
  config.data.movielens.candidates = 1
  with pytest.raises(ValueError, match="of user 12 is .* give seconds") as e:
    prepared.load(config.data, tmp_path / 'data', log=lambda line: None)
  assert str(e.value).startswith(f'{tmp_path}: test: request')
  assert not list((tmp_path / 'data').glob('*'))


# --- What moved a score


def test_one_event_is_left_out_and_no_older_one_comes_in(dataset):
  class Scorer:
    def score_requests(self, dataset, requests, *, batch_size):
      self.dataset, self.requests, self.size = dataset, requests, batch_size
      yield np.arange(requests.candidates, dtype=np.float32)[:, None]

  seconds = np.arange(len(dataset.events), dtype=np.float32)
  events = dataclasses.replace(dataset.events, watch_time=seconds)
  data = dataclasses.replace(dataset, events=events)
  test, request = data.splits['test'], 3
  user, end = int(test.user[request]), int(test.end[request])
  candidates = np.arange(*test.offsets[request : request + 2])[[4, 1]]
  scorer = Scorer()
  whole, without = left_out.score_without(
    scorer, data, test, request, candidates, np.array([end - 1, end - 3]), 4
  )
  assert whole.tolist() == [[0], [1]]
  assert without.tolist() == [[[2], [3]], [[4], [5]]]
  read = list(range(end - 4, end))
  histories = [read, read[:-1], [read[0], *read[2:]]]
  found = scorer.dataset.events
  assert np.diff(found.offsets).tolist() == [4, 3, 3]
  at = sum(histories, [])
  for column in ('action', 'time', 'watch_time'):
    wanted = getattr(events, column)[at].tolist()
    assert getattr(found, column).tolist() == wanted, column
  assert found.items['movie_id'].tolist() == (
    events.items['movie_id'][at].tolist()
  )
  (feature,) = data.spec.context
  row = data.context[feature.name][user]
  assert data.context[feature.name][0] != row
  assert scorer.dataset.context[feature.name].tolist() == [row] * 3
  asked = scorer.requests
  assert asked.end.tolist() == found.offsets[1:].tolist()
  assert asked.time.tolist() == [test.time[request]] * 3
  assert test.time[request] != test.time[0]
  rows = test.items['movie_id'][candidates].tolist()
  assert asked.items['movie_id'].tolist() == rows * 3


def test_losses_are_means_and_finite():
  labels = (types.SimpleNamespace(name='liked', kind='binary'),)
  scorer = types.SimpleNamespace(spec=types.SimpleNamespace(labels=labels))
  requests = Requests(
    user=np.zeros(2, np.int32),
    end=np.ones(2, int),
    offsets=np.array([0, 3, 4]),
    items={},
    labels={'liked': np.float32([1, 0, 1, 0])},
  )
  scores = np.float32([[0.5], [0.5], [1.0], [1.0]])
  found = request_panel._measure_losses(scorer, requests, scores)
  np.testing.assert_allclose(
    found, [2 / 3 * np.log(2), -np.log(1e-7)], rtol=1e-6
  )
  labels[0].kind = 'regression'
  found = request_panel._measure_losses(scorer, requests, scores)
  np.testing.assert_allclose(found, [0.5 / 3, 1])


def make_arranged(changes, scores=(0.25,)):
  request = {
    'history': [
      {'event': n, 'item': f'i{n}', 'age': None}
      for n in range(1, len(changes) + 1)
    ],
    'candidates': [
      {
        'scores': {'liked': score}, 'labels': {'liked': 1.0},
        'moved': [
          {'event': n, 'change': x} for n, x in enumerate(changes, 1)
        ],
      }
      for score in scores
    ],
  }  # fmt: skip
  return request_panel._arrange(request, max(map(abs, changes)))['candidates']


def test_bars_go_left_of_the_middle_for_what_lowers_a_score():
  (candidate,) = make_arranged([0.2, -0.1, -0.2])
  bars = [(m['left'], m['width'], m['raises']) for m in candidate['moved']]
  assert bars == [(50, 50, True), (25, 25, False), (0, 50, False)]
  assert [m['item'] for m in candidate['moved']] == ['i1', 'i2', 'i3']


def test_bars_of_scores_are_from_0_to_1_or_from_the_lowest():
  widths = [c['width'] for c in make_arranged([0.1], (0.25, 0.75))]
  assert widths == [25, 75]
  widths = [c['width'] for c in make_arranged([0.1], (1.0, 2.0, 5.0))]
  assert widths == [0, 25, 100]


def test_the_line_of_all_steps_so_far():
  steps = [
    {'step': t, 'candidates': n, 'logloss': loss, 'rate': rate, 'auc': auc}
    for t, n, loss, rate, auc in (
      (3, 30, 0.5, 0.5, 0.6), (4, 10, 0.7, 0.9, 0.8), (6, 10, 0.3, 0.1, 0.7),
    )
  ]  # fmt: skip
  (line,) = stream_panel._accumulate(steps, '')

  def measure(some):
    count = sum(s['candidates'] for s in some)
    rate = sum(s['candidates'] * s['rate'] for s in some) / count
    loss = sum(s['candidates'] * s['logloss'] for s in some) / count
    return loss / -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))

  assert [step for step, _ in line.points] == [3, 4, 6]
  np.testing.assert_allclose(
    [ne for _, ne in line.points], [measure(steps[: n + 1]) for n in range(3)]
  )
  assert stream_panel._accumulate(steps[:1], '') == []
  # The AUC of a step counts by its candidates.
  total = stream_panel.total_steps(steps)
  assert total['auc_mean'] == pytest.approx((18 + 8 + 7) / 50)
