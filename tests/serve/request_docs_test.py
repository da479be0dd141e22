"""The examples of docs/generative_ranking*.md run."""

import csv
import json
import pathlib
import re

import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax.data.requests import (
  feature_values,
  kuairand,
  movielens,
  prepared,
  streaming,
  yambda_files,
)
from genrec_jax.serve.request_scorer import RequestScorer
from tests.data.requests import movielens_test
from tests.serve import request_runs
from tests.tolerances import assert_close

DOCS = pathlib.Path(__file__).parents[2] / 'docs'
PAGES = {
  name: (DOCS / f'{name}.md').read_text()
  for name in ('generative_ranking', 'generative_ranking_data')
}
ITEMS, CATEGORIES = 400 * 200, 128  # of gr_streaming


def find_examples(page: str, language: str) -> list[str]:
  fences = rf'```{language}\n(.*?)```'
  return re.findall(fences, PAGES[page], re.DOTALL)


def run(example: str) -> dict:
  """Runs an example, and returns what it has named."""
  names = {}
  exec(compile(example, 'example', 'exec'), names)
  return names


def test_all_examples_are_run_here():
  assert len(find_examples('generative_ranking', 'python')) == 3
  assert len(find_examples('generative_ranking_data', 'python')) == 1


def test_generated_stream():
  example, *_ = find_examples('generative_ranking', 'python')
  assert 'users=400' in example
  names = run(example.replace('users=400', 'users=2, train_steps=4, steps=6'))
  test = names['dataset'].splits['test']
  assert test.candidates > 0 and set(test.step.tolist()) <= {4, 5}
  assert len(names['truth'].rating) == test.candidates


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  """A small run on a stream with the items that gr_streaming has."""
  config = request_runs.make_config(order='stream')
  config.data.streaming.update(items=ITEMS, categories=CATEGORIES)
  return request_runs.start_run(config, tmp_path_factory.mktemp('s') / 'run')[1]


def test_many_candidates_of_a_request(workdir):
  *_, example = find_examples('generative_ranking', 'python')
  source = example.replace("'/tmp/run'", repr(str(workdir)))
  source = source.replace('=4e9', '=4e6').replace('=16e9', '=4e6')
  event = {'item': 12, 'category': 0, 'action': 'rated_5'}
  names = {
    'events': [event] * 5,
    'one': [event],
    'candidates': [{'item': 17, 'category': 0}],
    'others': [{'item': i, 'category': 0} for i in range(3, 9)],
  }
  exec(compile(source, 'example', 'exec'), names)
  assert names['scorer'].work.candidates == 13


def test_scores_of_a_request(workdir, monkeypatch, capsys):
  _, example, _ = find_examples('generative_ranking', 'python')
  assert example.count("'workdir/gr_streaming'") == 1
  unknown, encode = [], feature_values.FeatureValues.encode

  def watch(self, values):
    rows, is_unknown = encode(self, values)
    unknown.extend(np.asarray(values, object)[is_unknown])
    return rows, is_unknown

  monkeypatch.setattr(feature_values.FeatureValues, 'encode', watch)
  source = example.replace("'workdir/gr_streaming'", repr(str(workdir)))
  names = run(source)
  assert unknown == []  # all that the example names there may be
  scores = names['scores']
  assert scores.shape == (2, 1) and scores.dtype == np.float32
  told = [float(line) for line in capsys.readouterr().out.splitlines()]
  assert told == [round(float(score), 3) for score in scores[:, 0]]
  for items, categories in re.findall(
    r"'item': (\[.*?\]), 'category': (\[.*?\])", example
  ):
    wanted = [item // (ITEMS // CATEGORIES) for item in json.loads(items)]
    assert json.loads(categories) == wanted
  # As records, of one candidate alone, by bits: the same answer.
  (alone,) = RequestScorer.load(workdir).score(
    [
      {'item': '12', 'category': 0, 'action': 16},
      {'item': '4001', 'category': 6, 'action': 2},
    ],
    [{'item': 4005, 'category': 6}],
    user='7',
  )
  assert_close(alone, scores[1])


def test_candidates_of_the_page_are_a_file(workdir):
  """The lines that the page shows are what `genrec predict` reads."""
  (lines,) = re.findall(r'\n```\n(user,.*?)```', PAGES['generative_ranking'],
                        re.DOTALL)  # fmt: skip
  header, *rows = csv.reader(lines.splitlines())
  assert header == ['user', 'item', 'category'] and len(rows) == 3
  for _, item, category in rows:
    assert int(category) == int(item) // (ITEMS // CATEGORIES)
  scorer = RequestScorer.load(workdir)
  for name, column in zip(header[1:], list(zip(*rows, strict=True))[1:],
                          strict=True):  # fmt: skip
    _, is_unknown = scorer.values[name].encode(column)
    assert not is_unknown.any()


def test_names_of_histories_are_those_of_the_data_sets():
  """The table of what `RequestScorer` wants, and what readers write."""
  rows = re.findall(r'^\| `(\w+)`(?:, `parquet`)? \| (.*) \| (.*) \| (.*) \|$',
                    PAGES['generative_ranking'], re.MULTILINE)  # fmt: skip
  told = {name: cells for name, *cells in rows if name in prepared.SETS}
  assert {*told, 'parquet'} == set(prepared.SETS)
  for name, items, actions in (
    ('streaming', ['item', 'category'], streaming.ACTIONS),
    ('movielens', [movielens.ITEM], movielens.ACTIONS),
    ('kuairand', [kuairand.ITEM, kuairand.TAB], kuairand.ACTIONS),
    ('yambda', [yambda_files.ITEM], yambda_files.BITS.items()),
  ):
    shown = [re.findall('`([a-z_0-9]+)`', cell) for cell in told[name]]
    assert {*shown[0]} == {*items}
    names = [action for action, _ in actions]
    if name in ('streaming', 'movielens'):  # 'first to last'
      names = [names[0], names[-1]]
    if name == 'yambda':  # all but those that the data are asked for
      names, shown[1] = ['listen_plus', 'skip'], shown[1][:2]
    assert shown[1] == names
    assert shown[2][0] == 'time'
    watched = 'watch_time' in shown[2]
    assert watched == (name in ('kuairand', 'yambda'))


@pytest.mark.parametrize('name', ['streaming', 'ml1m', 'kuairand', 'yambda'])
def test_smoke_is_of_the_generated_stream(name):
  data = config_lib.load(f'gr_{name}:smoke', []).data
  assert (data.name, data.path) == ('streaming', '')
  assert data.streaming.users <= 50


def test_columns_of_yambda_are_told():
  page = PAGES['generative_ranking_data']
  (text,) = re.findall(
    r'The columns that are read are(.*?)\n\n', page, re.DOTALL
  )
  named = re.findall(r'`([a-z_]+)`', text)
  for column in ('USER', 'ITEM', 'TIME', '_TYPE', '_PLAYED', '_LENGTH'):
    assert getattr(yambda_files, column) in named


def test_reading_of_a_published_data_set(tmp_path, monkeypatch, capsys):
  (example,) = find_examples('generative_ranking_data', 'python')
  folder = tmp_path / 'ml-1m'
  folder.mkdir()
  movielens_test.write(folder, 'ml-1m', movielens_test.make_ratings(1))
  monkeypatch.chdir(tmp_path)
  names = run(example)
  wanted = movielens.load(folder, names['options'])
  assert names['dataset'].fingerprint() == wanted.fingerprint()
  assert capsys.readouterr().out.strip() == wanted.summary()
