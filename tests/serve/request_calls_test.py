"""What `RequestScorer.score` cannot read is refused in one sentence."""

import datetime

import numpy as np
import pytest

import genrec_jax
from genrec_jax.serve.request_scorer import RequestScorer
from tests.serve import request_runs
from tests.tolerances import assert_close

HISTORY = {'movie_id': [3, 4], 'action': [1, 2], 'time': [5, 6]}
NOTHING = {'movie_id': [], 'action': [], 'time': []}
CANDIDATES = {'movie_id': [7, 9]}


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  """Of films, with times, for whom users are context."""
  root = tmp_path_factory.mktemp('rated')
  request_runs.write_ratings(root / 'ratings.csv', request_runs.make_log())
  config = request_runs.make_config(name='movielens', path=str(root))
  config.model.min_context_events = 0
  return request_runs.start_run(config, root / 'run')[1]


@pytest.fixture(scope='module')
def scorer(workdir):
  return RequestScorer.load(workdir)


def refuse(scorer, message, history=HISTORY, candidates=CANDIDATES, **keys):
  with pytest.raises(ValueError, match=message) as error:
    scorer.score(history, candidates, **keys)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize(
  'user',
  [[3], {}, (3,), np.array([3]), np.arange(400), b'11', True, 1.5, np.nan,
   np.inf, object()],
)  # fmt: skip
def test_a_user_is_one_text_or_number(scorer, user):
  refuse(scorer, '^user is .*; give one user as the data name', user=user)
  # Even where nothing is asked.
  refuse(scorer, '^user is ', candidates={'movie_id': []}, user=user)


@pytest.mark.parametrize('user', [11, '11', np.int64(11), np.str_('11'), 11.0])
def test_a_user_in_any_form_is_the_same(scorer, user):
  (name,) = (f.name for f in scorer.spec.context)
  known = scorer.find_context(11)[name]
  assert scorer.find_context(user)[name].tolist() == known.tolist()
  for other in (12, '1', 10**30, '', None):
    assert scorer.find_context(other)[name].tolist() != known.tolist()


class Series:
  """One column of pandas: it has no columns, and its rows are values."""

  def __iter__(self):
    return iter([3, 4])


@pytest.mark.parametrize('what', ['history', 'candidates'])
@pytest.mark.parametrize(
  'table, message',
  [
    (None, 'what is given is a NoneType; give columns by name, a DataFrame'),
    (3, 'what is given is a int; give columns'),
    ('ab', 'what is given is a str; give columns'),
    (np.array(3), 'what is given is a ndarray; give columns'),
    ([3], 'row 0 is a int, not a mapping of names to values; give'),
    (Series(), 'row 0 is a int, not a mapping'),
    ([{'movie_id': 3, 'action': 1, 'time': 5}, None], 'row 1 is a NoneType'),
    (['movie_id'], 'row 0 is a str, not a mapping'),
  ],
)
def test_tables_of_no_kind(scorer, what, table, message):
  refuse(scorer, f'^{what}: {message}', **{what: table})


@pytest.mark.parametrize(
  'column', [3, 'abc', b'abc', None, np.array(3), {3: 4}, {3}, object()]
)
def test_columns_that_are_no_lists(scorer, column):
  message = "column 'movie_id' is .*; give a list with a value for each row"
  refuse(scorer, f'^candidates: {message}', candidates={'movie_id': column})
  history = {**HISTORY, 'movie_id': column}
  refuse(scorer, f'^history: {message}', history)


def test_columns_of_any_kind_of_list(scorer):
  wanted = scorer.score(HISTORY, CANDIDATES)
  for column in ((7, 9), np.array([7, 9]), (x for x in '79'), range(7, 10, 2)):
    found = scorer.score(HISTORY, {'movie_id': column})
    assert_close(found, wanted)


@pytest.mark.parametrize(
  'time, shown',
  [
    ('rubbish', "'rubbish'"), (np.nan, "'nan'"), ([9], 'a list'),
    (np.array([9]), 'a ndarray'), (True, 'a bool'), ({}, 'a dict'),
    (datetime.datetime(2020, 1, 1), 'a datetime'),
  ],
)  # fmt: skip
def test_times_of_a_request(scorer, time, shown):
  message = f'^time is {shown}; give seconds since 1970 or a text with an ISO'
  refuse(scorer, f'{message} date, at or after the last .*at 6$', time=time)
  # There is no last event whose time could be named.
  refuse(scorer, f'{message} date$', NOTHING, time=time)


def test_a_request_without_history_may_be_at_any_time(scorer):
  wanted = scorer.score(NOTHING, CANDIDATES)
  for time in (0, 5, '2020-01-01', 1e9):
    assert_close(scorer.score(NOTHING, CANDIDATES, time=time), wanted)
  refuse(scorer, "^time is '5'.* at 6$", time=5)


def test_the_library_names_what_opens_a_run_of_requests(workdir):
  with pytest.raises(ValueError, match='load opens those of') as error:
    genrec_jax.load(workdir)
  scorer = f'{RequestScorer.__module__}.{RequestScorer.load.__qualname__}'
  assert f'{scorer} opens it, and `genrec predict {workdir} FILE`' in str(
    error.value
  )


def test_a_run_without_what_it_predicts_with_is_told_the_remedy(tmp_path):
  (tmp_path / 'config.json').write_text('{}')
  message = (
    rf'{tmp_path}/requests: not a directory of saved requests \(no meta.json\)'
    f'; `genrec train --workdir={tmp_path}` writes it again from the data'
  )
  with pytest.raises(FileNotFoundError, match=message):
    RequestScorer.load(tmp_path, config={})


def test_a_time_is_refused_where_data_have_none(tmp_path):
  config = request_runs.make_config(order='stream')
  _, workdir = request_runs.start_run(config, tmp_path / 'run')
  scorer = RequestScorer.load(workdir)
  history = {'item': [1], 'category': [0], 'action': [1]}
  candidates = {'item': [], 'category': []}
  assert not scorer.score(history, candidates).size
  for time in (5, 'rubbish'):
    refuse(
      scorer, f"^time is '{time}', and the data .* no times .*; leave time out",
      history, candidates, time=time,
    )  # fmt: skip
