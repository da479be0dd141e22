"""What the pages say of training on data of one's own.

The commands and the code of docs/generative_ranking.md and docs/extending.md
are what runs here, with smaller models.
"""

import csv
import dataclasses
import json
import pathlib
import re
import shlex
import sys

import jax
import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax import extensions as extensions_lib
from genrec_jax.contracts import Extensions
from genrec_jax.data.requests import prepared
from genrec_jax.serve import score_requests
from genrec_jax.serve.request_scorer import RequestScorer
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import loop
from tests import planted_log

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / 'docs' / 'generative_ranking.md').read_text()
CONFIG = f'{ROOT}/configs/own_requests.py'
SMALL = (
  'model.dim=16', 'model.blocks=1', 'model.heads=2', 'model.dqk=8',
  'model.dv=8', 'model.token_hidden=16', 'model.head_hidden=16',
  'data.max_history=32', 'data.max_candidates=5', 'data.token_capacities=1',
)  # fmt: skip


def read_command(text, config):
  """The overrides of the command that trains a config, as a page shows it."""
  (command,) = re.findall(
    rf'```sh\n(genrec train {config} --workdir=\S+ .*?)```', text, re.DOTALL
  )
  words = shlex.split(command.replace('\\\n', ' '))
  return [x.removeprefix('--config.') for x in words if '--config.' in x]


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """(config, workdir, metrics) of the command of the page."""
  folder = tmp_path_factory.mktemp('own')
  planted_log.write_log(folder)
  overrides = read_command(PAGE, 'own_requests')
  overrides = [
    re.sub(r'=(\w+\.csv)$', lambda x: f'={folder}/{x[1]}', one)
    for one in overrides
  ]
  more = (*SMALL, 'train.epochs=8', 'optimizer.average=0', 'report.users=1')
  config = config_lib.load(CONFIG, [*overrides, *more])
  workdir = folder / 'run'
  with jax.numpy_dtype_promotion('standard'):  # for optax
    loop.train_and_evaluate(config, workdir, TASK_KINDS)
  report = json.loads((workdir / 'report.json').read_text())
  return config, workdir, report


def test_the_page_shows_the_first_lines(tmp_path):
  planted_log.write_log(tmp_path)
  lines = (tmp_path / 'shown.csv').read_text().splitlines()
  assert f'```\n{chr(10).join(lines[:10])}\n```' in PAGE
  films = (tmp_path / 'films.csv').read_text().splitlines()
  assert films[0] == 'film,genre' and f'f24,{planted_log.GENRES[0]}' in films


def test_a_model_of_a_log_beats_the_popularity_of_its_items(run):
  """And comes near to the .857 of whoever knows the taste of each user."""
  _, _, report = run
  test, popularity = report['metrics']['test'], report['baselines']
  assert 0.4 < popularity['popularity']['test']['auc'] < 0.6
  assert test['auc'] > 0.8 and test['ne'] < 0.7


def test_candidates_are_named_as_in_the_log(run, tmp_path):
  """The taste of users 1 and 2 decides; ids and asked columns come along."""
  config, workdir, _ = run
  taste = {u: planted_log.GENRES[(u - 1) * 7 % 4] for u in (1, 2)}
  rows = [
    [user, f'f{film}', 'tv', f'p{user}', 'x']
    for user in (1, 2)
    for film in range(8)
  ]
  path = tmp_path / 'candidates.csv'
  with open(path, 'w', newline='') as f:
    csv.writer(f).writerows(
      [['user_id', 'film', 'device', 'page_id', 'shelf'], *rows]
    )
  config = config.copy_and_resolve_references()
  with config.unlocked():
    config.predict.input = str(path)
    config.predict.output = str(tmp_path / 'scores.csv')
    config.predict.keep = ('auto', 'shelf')
  written = score_requests.write_request_scores(config, workdir)
  assert written['requests'] == 2 and not written['unknown_items']
  with open(tmp_path / 'scores.csv', newline='') as f:
    found = list(csv.DictReader(f))
  assert list(found[0]) == [
    'request', 'user_id', 'film', 'device', 'page_id', 'shelf', 'score',
  ]  # fmt: skip
  assert [x['page_id'] for x in found] == [row[3] for row in rows]
  scores = {True: [], False: []}
  for row in found:
    genre = planted_log.GENRES[int(row['film'][1:]) % 4]
    liked = genre == taste[int(row['user_id'])]
    scores[liked].append(float(row['score']))
  assert np.mean(scores[True]) > np.mean(scores[False]) + 0.3
  scorer = RequestScorer.load(workdir)
  assert scorer.labels == ('click',)
  score = scorer.score(
    history={
      'film': ['f1'], 'genre': ['crime'], 'action': [['click', 'liked']],
      'time': ['2024-03-20'], 'watch_time': [60],
    },
    candidates={'film': ['f5'], 'genre': ['crime'], 'device': ['tv']},
    user=1,
  )  # fmt: skip
  assert score.shape == (1, 1) and 0 < score[0, 0] < 1


def test_unknown_items_of_the_test_split_are_told(run, caplog):
  """Nobody has to wonder why their ids are empty."""
  config, workdir, _ = run
  scorer = RequestScorer.load(workdir)
  dataset = prepared.load(config.data, workdir / 'data')
  split = dataset.splits['test']
  score_requests._warn_of_unknown(scorer, split)
  assert not caplog.records
  rows = np.array(split.items['film'])
  rows[:3] = scorer.values['film'].unknown_row
  odd = dataclasses.replace(split, items={**split.items, 'film': rows})
  score_requests._warn_of_unknown(scorer, odd)
  assert "3 of 600 candidates of the test split" in caplog.text


@pytest.fixture
def plays(tmp_path, monkeypatch):
  """The module of docs/extending.md."""
  page = (ROOT / 'docs' / 'extending.md').read_text()
  (code,) = re.findall(r'```python\n# my_package/plays.py\n(.*?)```', page,
                       re.DOTALL)  # fmt: skip
  (tmp_path / 'my_package').mkdir()
  (tmp_path / 'my_package' / 'plays.py').write_text(code)
  monkeypatch.syspath_prepend(tmp_path)
  yield page
  for name in [x for x in sys.modules if x.startswith('my_package')]:
    del sys.modules[name]


def test_a_data_set_comes_from_an_extension(plays, tmp_path):
  overrides = read_command(plays, 'own_requests')
  more = (*SMALL, 'train.steps=2', 'report.users=1')
  config = config_lib.load(CONFIG, [*overrides, *more])
  extensions = extensions_lib.load_extensions(config.extensions)
  workdir = tmp_path / 'run'
  with jax.numpy_dtype_promotion('standard'):  # for optax
    loop.train_and_evaluate(config, workdir, TASK_KINDS, extensions)
  with config.unlocked():
    config.predict.output = str(tmp_path / 'scores.csv')
  written = score_requests.write_request_scores(config, workdir, extensions)
  assert written['rows'] == 20 * 5
  assert RequestScorer.load(workdir).spec.items[0].name == 'song'
  with pytest.raises(ValueError, match="data set of requests 'csv' already"):
    prepared.load(config.data, tmp_path, own_sets={'csv': print})
  with pytest.raises(
    ValueError, match="data.name is 'plays', must be one of s"
  ):
    loop.train_and_evaluate(config, tmp_path / 'no', TASK_KINDS, Extensions())
