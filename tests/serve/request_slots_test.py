"""A feature of the context with several slots, from data to served scores."""

import csv
import types

import numpy as np
import pytest
from ml_collections import ConfigDict

from genrec_jax import config as config_lib
from genrec_jax.data.requests import batches, prepared
from genrec_jax.features import UNREAD
from genrec_jax.report import request_panel
from genrec_jax.serve import score_requests
from genrec_jax.serve.request_inputs import CandidateFile
from genrec_jax.serve.request_scorer import RequestScorer
from tests.data.requests.random_requests import TAGS, make_dataset
from tests.serve import request_runs
from tests.tolerances import assert_close

DATA = make_dataset(4, devices=True, steps=0)
ITEM = {'item': [101, 105], 'genre': ['a', 'c']}


@pytest.fixture(scope='module', autouse=True)
def made():
  """Data that no reader makes, in place of the generated ones."""
  with pytest.MonkeyPatch.context() as m:
    m.setitem(prepared.SETS, 'streaming', lambda path, options: DATA)
    yield


def make_config(model):
  config = request_runs.make_config(name='streaming', order='shuffled')
  if model == 'dlrm':
    config.model = config_lib.pool_history(config_lib.dlrm())
    config.model.update(dim=8, bottom=(8,), top=(8,))
    config.model.history.min_context_events = 0
  else:
    config.model.min_context_events = 0
  return config


@pytest.fixture(scope='module', params=['stu', 'dlrm'])
def run(request, tmp_path_factory):
  workdir = tmp_path_factory.mktemp(request.param) / 'run'
  return request_runs.start_run(make_config(request.param), workdir)


@pytest.fixture(scope='module')
def scorer(run):
  return RequestScorer.load(run[1], run[0])


def name_row(values, row):
  """What a call says for a row; None for what is missing."""
  return np.ma.asarray(values.decode(np.array([row]))).tolist()[0]


def test_the_test_split_is_scored_by_all_slots(run, scorer, tmp_path):
  config = ConfigDict(run[0].to_dict())
  config.predict.output = str(tmp_path / 'scores.csv')
  told = score_requests.write_request_scores(config, run[1])
  with open(told['output'], newline='') as f:
    rows = list(csv.DictReader(f))
  split = DATA.splits['test']
  assert told['rows'] == split.candidates == len(rows)
  done = 0
  for request in range(len(split)):
    asked = slice(*split.offsets[request : request + 2])
    some = rows[asked]
    done += len(some)
    for name, column in split.context.items():
      shown = name_row(scorer.values[name], column[request])
      shown = '' if shown is None else str(shown)
      assert {row[name] for row in some} <= {shown}, name
  assert done == len(rows)


def ask(scorer, **context):
  nothing = {x: [] for x in ('item', 'genre', 'action', 'time', 'watch_time')}
  given = {'device': 1, 'hour': 2, **dict.fromkeys(TAGS), **context}
  return scorer.score(nothing, ITEM, context=given)[:, 0]


def test_slots_without_a_value_are_as_if_they_were_not_there(run, scorer):
  """Whatever stands in row 0 of the table."""
  none = ask(scorer)
  one = ask(scorer, **{'tag.0': 1})
  both = ask(scorer, **{'tag.0': 1, 'tag.2': 0})
  for a, b in ((none, one), (one, both), (none, both)):
    assert not np.allclose(a, b, atol=1e-8)
  if run[0].model.name == 'dlrm':  # the order of pooled values is nothing
    other = ask(scorer, **{'tag.1': 0, 'tag.2': 1})
    assert_close(other, both)
  tables = scorer.weights['tables']
  table = tables['tag']
  try:
    tables['tag'] = table.at[0].add(100.0)
    assert_close(ask(scorer), none)
    assert_close(ask(scorer, **{'tag.0': 1}), one)
  finally:
    tables['tag'] = table


def test_slots_that_are_not_used_read_no_row(scorer):
  split = DATA.splits['test']
  batch = next(
    batches.eval_batches(
      DATA, split, batch_size=16, max_history=8, max_candidates=9
    )
  )
  reads = scorer.task.reads_for('predict', batch)
  real = batch.row >= 0
  assert 0 < real.sum() < 16
  for name in (*TAGS, 'device'):
    rows = split.context[name][batch.row]
    used = real & ((rows > 0) | (name == 'device'))
    wanted = np.where(used, rows, UNREAD)
    np.testing.assert_array_equal(reads[f'context.{name}'].ids, wanted)


def test_the_page_has_the_slots_that_are_used(run, scorer, monkeypatch):
  config, workdir = run
  monkeypatch.setattr(RequestScorer, 'load', lambda *_: scorer)
  data = types.SimpleNamespace(dataset=DATA, splits=DATA.splits)
  experiment = types.SimpleNamespace(data=data, extensions=None)
  split = DATA.splits['test']
  for request in request_panel.explain_requests(config, workdir, experiment):
    shown = request['context']
    counts = {
      sum(split.context[name][r] > 0 for name in TAGS)
      for r in range(len(split))
      if DATA.user_ids[split.user[r]] == request['user']
    }
    assert sum(name in shown for name in TAGS) in counts
    assert {'device', 'hour'} <= set(shown)


def test_files_and_calls_name_every_slot(scorer, tmp_path):
  path = tmp_path / 'asked.csv'
  lines = ['user,item,genre,device,hour,tag.0,tag.1,tag.2']
  lines += ['u3,101,a,1,2,1,,0', 'u3,105,c,1,2,1,,0', 'u4,101,a,3,,,,9']
  path.write_text('\n'.join(lines) + '\n')
  columns = {'user': 'user', 'item': 'item', 'time': ''}
  predict = ConfigDict({'format': '', 'columns': columns})
  file = CandidateFile(path, predict, DATA, scorer.values, 6)
  (block,) = file.read()
  assert {k: v.tolist() for k, v in block.requests.context.items()} == {
    'device': [2, 4], 'hour': [3, 0],
    'tag.0': [2, 0], 'tag.1': [0, 0], 'tag.2': [1, 3],
  }  # fmt: skip
  path.write_text('\n'.join([line.rpartition(',')[0] for line in lines]))
  with pytest.raises(ValueError, match="no column 'tag.2', which every reques"):
    CandidateFile(path, predict, DATA, scorer.values, 6)
  with pytest.raises(ValueError, match="context has no 'tag.1', which every"):
    scorer.find_context(None, {'device': 1, 'hour': 1, 'tag.0': 1})
  with pytest.raises(ValueError, match="'tag', which is no .* tag.0, tag.1, "):
    scorer.find_context(None, {'tag': 1})
