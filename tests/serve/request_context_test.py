"""Scores of requests with a context of their own: files, calls, the test split.

The data are KuaiRand's with the scenario as context of a request.
"""

import csv
import dataclasses
import types

import numpy as np
import pytest
from ml_collections import ConfigDict

from genrec_jax.data.ranking import raw as raw_rows
from genrec_jax.data.requests import prepared
from genrec_jax.data.requests.kuairand import KuairandOptions
from genrec_jax.report import request_panel
from genrec_jax.serve import left_out, score_requests
from genrec_jax.serve.request_inputs import CandidateFile
from genrec_jax.serve.request_scorer import RequestScorer
from tests.data.requests import kuairand_test
from tests.data.requests import plain_requests as plain
from tests.serve import request_runs
from tests.tolerances import assert_close

LABEL = 'is_click'
UNKNOWN_TAB = 77


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """(config, workdir); the context counts for every history."""
  root = tmp_path_factory.mktemp('kuairand')
  kuairand_test.write(root / 'data')
  config = request_runs.make_config(name='kuairand', path=str(root / 'data'))
  config.data.kuairand.update(request_tab=True, labels=(LABEL,))
  config.model.min_context_events = 0
  return request_runs.start_run(config, root / 'run')


@pytest.fixture(scope='module')
def scorer(run):
  return RequestScorer.load(run[1], run[0])


@pytest.fixture(scope='module')
def dataset(run):
  config, workdir = run
  return prepared.load(config.data, workdir / 'data', log=lambda line: None)


@pytest.fixture(scope='module')
def raw(run):
  """Split -> requests, of a reader that shares no line with the package."""
  root = run[1].parent / 'data'
  return kuairand_test.describe_plainly(
    root, KuairandOptions(request_tab=True, labels=(LABEL,))
  )


@pytest.fixture
def predict(run, scorer, monkeypatch, tmp_path):
  """lines of a file, or None -> the rows of the predictions."""
  # It is compiled already.
  monkeypatch.setattr(RequestScorer, 'load', lambda *_: scorer)

  def score(lines=None, **columns):
    config = ConfigDict(run[0].to_dict())
    config.predict.output = str(tmp_path / 'scores.csv')
    config.predict.columns.update(columns)
    if lines:
      config.predict.input = str(tmp_path / 'asked.csv')
      (tmp_path / 'asked.csv').write_text('\n'.join(lines) + '\n')
    told = score_requests.write_request_scores(config.lock(), run[1])
    with open(told['output'], newline='') as f:
      return told, list(csv.DictReader(f))

  return score


def read_scores(rows) -> np.ndarray:
  return np.array([row['score'] for row in rows], float)


def tell(request):
  """History of a plain request, as a call has it."""
  past = request['history']
  return {
    'video_id': [
      '' if x['video_id'] == plain.MISSING else str(x['video_id']) for x in past
    ],
    **{name: [x[name] for x in past] for name in ('action', 'time')},
    'watch_time': [x['watch_time'] for x in past],
  }


def say(value) -> str:
  """A plain value, in the words of predictions."""
  return '' if value in (plain.UNKNOWN, plain.MISSING) else str(value)


def test_the_test_split_is_scored_with_the_context_of_its_requests(
  predict, scorer, raw
):
  _, rows = predict()
  assert list(rows[0]) == [
    'request', 'user', 'time', 'tab', 'video_id', 'score'
  ]  # fmt: skip
  asked = [(r, c) for r in raw['test'] for c in r['candidates']]
  assert [(int(x['user']), x['tab'], x['video_id']) for x in rows] == [
    (r['user'], say(r['context']['tab']), say(c['video_id'])) for r, c in asked
  ]
  assert len({row['tab'] for row in rows}) > 3
  scores, done = read_scores(rows), 0
  for request in raw['test'][:20]:
    films = [c['video_id'] for c in request['candidates']]
    found = scorer.score(
      tell(request), {'video_id': films}, user=request['user'],
      time=request['time'], context={'tab': request['context']['tab']},
    )  # fmt: skip
    assert_close(scores[done : done + len(films)], found[:, 0])
    done += len(films)


def test_predictions_are_candidates_again(predict):
  _, rows = predict()
  # A user may have two requests of one time, such as a page of two scenarios.
  apart = [
    row
    for last, row, following in zip(
      [{}, *rows[:-1]], rows, [*rows[1:], {}], strict=True
    )
    if row['video_id']
    and row['tab']
    and all(
      not other
      or (other['user'], other['time']) != (row['user'], row['time'])
      or other['request'] == row['request']
      for other in (last, following)
    )
  ]
  assert len(apart) > 5
  lines = ['request,user,time,tab,video_id,score']
  lines += [','.join(row.values()) for row in apart]
  told, again = predict(lines, time='time')
  assert told['unknown_values'] == 0
  # A history ends here with the last event up to the time, and may be longer.
  assert [(x['user'], x['tab']) for x in again] == [
    (x['user'], x['tab']) for x in apart
  ]


@pytest.fixture(scope='module')
def known(dataset):
  """(user, video, two tabs that training knows)."""
  tabs = dataset.vocabs['tab'].ids.tolist()
  video = dataset.vocabs['video_id'].ids.tolist()[0]
  return dataset.user_ids.tolist()[0], video, tabs[0], tabs[-1]


def test_a_file_says_the_context_of_each_request(predict, known):
  user, video, one, other = known
  tabs = (one, other, '', UNKNOWN_TAB, 78, one)
  # Of one user, told apart by another one between them.
  lines = ['user,video_id,tab']
  for tab in tabs:
    lines += [f'{user},{video},{tab}', f'nobody,{video},{tab}']
  told, rows = predict(lines)
  scores = read_scores(rows)[::2]
  assert_close(scores[0], scores[5])
  assert_close(scores[3], scores[4])
  assert len(set(scores[:4].round(7).tolist())) == 4
  assert told['requests'] == 12 and told['unknown_values'] == 4
  nobody = read_scores(rows)[1::2]
  assert len(set(nobody[:4].round(7).tolist())) == 4


def test_a_call_says_it_too_and_the_same(predict, scorer, raw, known):
  user, video, one, other = known
  lines = ['user,video_id,tab', f'nobody,{video},{one}', f'x,{video},{other}']
  scores = read_scores(predict(lines)[1])
  nothing = {'video_id': [], 'action': [], 'time': [], 'watch_time': []}
  for tab, score in ((one, scores[0]), (str(other), scores[1])):
    for given in ({'tab': tab}, {'tab': float(tab)}):
      found = scorer.score(nothing, {'video_id': [video]}, context=given)
      assert_close(found[0, 0], score)
  missing = [
    scorer.score(nothing, {'video_id': [video]}, context={'tab': tab})[0, 0]
    for tab in (None, '', float('nan'))
  ]
  assert len(set(missing)) == 1 and abs(missing[0] - scores[0]) > 1e-7


def test_a_new_user_may_have_a_context(scorer, dataset):
  """That of a known one, told in words, gives the rows of the known one."""
  unknown = scorer.values['user_id'].unknown_row
  at = int(np.flatnonzero(dataset.context['user_id'] != unknown)[1])
  user = dataset.user_ids.tolist()[at]
  told = {'tab': None}
  for feature in dataset.spec.context:
    if feature.name != 'tab':
      rows = dataset.context[feature.name][[at]]
      told[feature.name] = np.ma.asarray(
        scorer.values[feature.name].decode(rows)
      ).tolist()[0]
  known = scorer.find_context(user, {'tab': None})
  found = scorer.find_context('nobody', told)
  assert [x.dtype for x in found.values()] == ['int32'] * 7
  for some in (known, found):
    assert {k: v.tolist() for k, v in some.items()} == {
      **{name: [rows[at]] for name, rows in dataset.context.items()},
      'tab': [0],
    }
  # What is said counts more than what the data know.
  other = scorer.find_context(user, {'tab': 1, 'user_active_degree': 'what'})
  unknown = scorer.values['user_active_degree'].unknown_row
  assert other['user_active_degree'].tolist() == [unknown]
  assert other['user_id'].tolist() == known['user_id'].tolist()


@pytest.mark.parametrize(
  'context, message',
  [
    ({}, "^context has no 'tab', which every request has; give context="),
    (None, "^context has no 'tab', which every request has"),
    ({'tab': 1, 'page': 2}, "^context has 'page', which is no feature of it; "
     'those are user_id, .*, tab$'),
    ({'tab': [1, 2]}, "^context: 'tab' holds lists; give one value"),
    ([1], '^context is a list; give a mapping of names to values$'),
  ],
)  # fmt: skip
def test_bad_contexts_are_one_sentence(scorer, context, message):
  nothing = {'video_id': [], 'action': [], 'time': [], 'watch_time': []}
  with pytest.raises(ValueError, match=message):
    scorer.score(nothing, {'video_id': [1]}, context=context)


def open_file(path, lines, dataset, scorer, **columns):
  path.write_text('\n'.join(lines) + '\n')
  named = {'user': 'user', 'item': 'item', 'time': '', **columns}
  predict = ConfigDict({'format': '', 'columns': named})
  return CandidateFile(path, predict, dataset, scorer.values, 6)


def test_a_file_without_the_column_is_refused(tmp_path, dataset, scorer):
  with pytest.raises(ValueError, match="no column 'tab', which every request"):
    open_file(tmp_path / 'a.csv', ['user,item', '1,2'], dataset, scorer)


@pytest.mark.parametrize('chunk', [2, 3, 1 << 20])
def test_requests_of_a_file_have_rows_of_their_own(
  tmp_path, dataset, scorer, known, monkeypatch, chunk
):
  monkeypatch.setattr(raw_rows, 'CHUNK_ROWS', chunk)
  user, video, one, other = known
  other_user = dataset.user_ids.tolist()[1]
  asked = [(user, one, 3), (other_user, other, 2), (user, '', 1), ('?', 5e3, 2)]
  lines = ['user,item,tab']
  for who, tab, count in asked:
    lines += [f'{who},{video},{tab}'] * count
  file = open_file(tmp_path / 'a.csv', lines, dataset, scorer)
  vocab = dataset.vocabs['tab'].ids.tolist()
  rows = {one: vocab.index(one) + 1, other: vocab.index(other) + 1, '': 0}
  found = []
  for block in file.read():
    lengths = np.diff(block.requests.offsets)
    found += np.repeat(block.requests.context['tab'], lengths).tolist()
    assert 'tab' not in block.requests.items
  assert found == [
    rows.get(tab, len(vocab) + 1)
    for _, tab, count in asked
    for _ in range(count)
  ]
  # Two in one request, at any place of a chunk.
  for bad in range(2, 4):
    spoiled = list(lines)
    spoiled[bad] = f'{user},{video},{other}'
    file = open_file(tmp_path / 'a.csv', spoiled, dataset, scorer)
    message = (
      f"a.csv, line {bad + 1}, column 'tab': '{other}' is not the '{one}' of "
      f"the row before, which is of the same request of user '{user}'"
    )
    with pytest.raises(ValueError, match=message):
      list(file.read())
  # Times tell requests apart.
  times = ['user,item,tab,t', f'{user},{video},{one},1651000000']
  times += [f'{user},{video},{other},1651000001']
  file = open_file(tmp_path / 'a.csv', times, dataset, scorer, time='t')
  found = [block.requests.context['tab'].tolist() for block in file.read()]
  assert sum(found, []) == [rows[one], rows[other]]


def test_scores_without_an_event_have_the_same_context(dataset):
  class Scorer:
    def score_requests(self, dataset, requests, *, batch_size):
      self.requests = requests
      yield np.zeros((requests.candidates, 1), np.float32)

  test, scorer = dataset.splits['test'], Scorer()
  request = int(np.argmax(test.context['tab'] != test.context['tab'][0]))
  candidates = np.arange(*test.offsets[request : request + 2])
  end = test.end[request]
  left_out.score_without(
    scorer, dataset, test, request, candidates, np.array([end - 1]), 4
  )
  row = test.context['tab'][request]
  assert scorer.requests.context['tab'].tolist() == [row] * 2


def test_the_page_shows_the_context_of_a_request(run, dataset, scorer, raw):
  config, workdir = run
  experiment = types.SimpleNamespace(
    data=types.SimpleNamespace(dataset=dataset, splits=dataset.splits),
    extensions=None,
    runtime=None,
  )
  explained = request_panel.explain_requests(config, workdir, experiment)
  assert explained
  for request in explained:
    times = {
      (r['user'], say(r['context']['tab']) or 'unknown') for r in raw['test']
    }
    assert list(request['context']) == ['tab']
    assert (request['user'], request['context']['tab']) in times
  page = request_panel.draw_explained(explained)
  assert f'tab {explained[0]["context"]["tab"]}, ' in page
  # Scores are those with the context that is shown.
  split = dataset.splits['test']
  which = np.array([3, 0])
  asked = [np.arange(*split.offsets[r : r + 2]) for r in which]
  taken = request_panel._take_requests(split, which, asked)
  assert taken.context['tab'].tolist() == split.context['tab'][which].tolist()


def test_other_contexts_are_other_data(dataset):
  test = dataset.splits['test']
  context = {'tab': test.context['tab'] + 0}
  context['tab'][1] += 1
  changed = dataclasses.replace(test, context=context)
  splits = {**dataset.splits, 'test': changed}
  again = dataclasses.replace(dataset, splits=splits)
  assert again.fingerprint() != dataset.fingerprint()
