"""`--mode=predict`: files in, files out."""

import csv
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from genrec_jax.config import ConfigError
from genrec_jax.serve import predict, prediction_files
from tests.serve.predictions import (
  T,
  by_user,
  oracle,
  read_csv,
  write_histories,
)
from tests.tolerances import assert_close


def check(found, expected, k):
  assert list(found) == sorted(expected)
  for user, own in found.items():
    best = expected[user][:k]
    assert [item for item, _ in own] == [item for item, _ in best], user
    assert_close([s for _, s in own], [s for _, s in best])


PAST = {
  'u03': ['sku-01', 'sku-05', 'sku-09'],  # known from training, new events
  'ann': ['sku-02'],
  'bob': [f'sku-{n:02d}' for n in range(3, 21)],  # longer than max_len
  'cid': ['sku-99', 'sku-07', 'gone', 'sku-08', 'sku-07'],
  'dan': ['gone', 'sku-99', 'sku-98'],
  'eve': [f'sku-{n:02d}' for n in range(1, 30)],  # all but one item
}


def test_new_users_unknown_items_and_all_formats(
  own, trained, tmp_path, caplog
):
  write_histories(tmp_path / 'in.csv', PAST)
  files = {s: tmp_path / f'out{s}' for s in ('.csv', '.jsonl', '.parquet')}
  for file in files.values():
    config, workdir = own(
      trained, predict__input=tmp_path / 'in.csv', predict__output=file,
      predict__top_k=4,
    )  # fmt: skip
    caplog.clear()
    summary = predict.write_predictions(config, workdir)
  assert summary == {
    'output': str(files['.parquet']),
    'users': 5,
    'rows': 4 * 4 + 1,
    'unknown_events': 5,
    'unknown_items': ['sku-99', 'gone', 'sku-98'],
    'users_without_known_items': 1,
    'users_without_unseen_items': 0,
  }
  told = caplog.text
  assert '5 of 59 events are of items the model does not know' in told
  assert f'sku-99 ({tmp_path}/in.csv, line 5)' in told
  assert '1 users have no known item and are left out, such as dan' in told
  assert "at the time of the user's last event" in told

  found = by_user(files['.csv'])
  check(found, oracle(config, workdir, PAST, times=True), 4)
  assert found['eve'] == [('sku-30', found['eve'][0][1])]
  titles = {r['item']: r['title'] for r in read_csv(files['.csv'])}
  assert titles['sku-30'] == 'Thing, number 30'
  assert titles.get('sku-01', '') == ''

  rows = read_csv(files['.csv'])
  lines = files['.jsonl'].read_text().splitlines()
  lines = [json.loads(line) for line in lines]
  assert [
    (str(line['user']), str(a['item']), a['score'], a['title'])
    for line in lines
    for a in line['items']
  ] == [(r['user'], r['item'], float(r['score']), r['title']) for r in rows]
  table = pq.read_table(files['.parquet'])
  assert table.schema.field('score').type == pa.float32()
  assert table.column_names == ['user', 'rank', 'item', 'score', 'title']
  assert [
    (r['user'], r['rank'], r['item'], r['title']) for r in table.to_pylist()
  ] == [(r['user'], int(r['rank']), r['item'], r['title']) for r in rows]
  scores = np.array([float(r['score']) for r in rows], np.float32)
  np.testing.assert_array_equal(table['score'].to_numpy(), scores)
  assert sorted(os.listdir(tmp_path)) == sorted(
    ['in.csv', 'run', *(f.name for f in files.values())]
  )


@pytest.mark.parametrize('filter_seen', ['window', 'none'])
def test_filters(own, trained, tmp_path, filter_seen):
  write_histories(tmp_path / 'in.csv', PAST)
  config, workdir = own(
    trained, predict__input=tmp_path / 'in.csv', eval__filter_seen=filter_seen
  )
  predict.write_predictions(config, workdir)
  found = by_user(workdir / 'predictions.csv')
  check(found, oracle(config, workdir, PAST, times=True), 10)
  if filter_seen == 'none':
    assert len(found['eve']) == 10


def test_a_workdir_is_enough_and_stays_as_it_is(own, trained, tmp_path):
  config, workdir = own(
    trained, data__path=tmp_path / 'lost.csv', predict__input=tmp_path / 'a.csv'
  )
  write_histories(tmp_path / 'a.csv', PAST)
  shutil.rmtree(workdir / 'data')
  leftover = workdir / 'predict' / f'{os.uname().nodename}-999999999'
  leftover.mkdir(parents=True)  # of a prediction that was killed

  def state():
    return {
      str(p.relative_to(workdir)): p.read_bytes()
      for p in workdir.rglob('*')
      if p.is_file()
    }

  before = state()
  predict.write_predictions(config, workdir)
  after = state()
  assert set(after) - set(before) == {'predictions.csv'}
  assert {name: after[name] for name in before} == before
  assert not (workdir / 'predict').exists()


def test_training_users_from_their_whole_histories(own, trained, loaded):
  config, workdir = own(trained, predict__top_k=3)
  summary = predict.write_predictions(config, workdir)
  assert summary['users'] == 24
  found = by_user(workdir / 'predictions.csv')
  log = {}
  for row in read_csv(config.data.path):
    log.setdefault(row['user'], []).append((int(row['time']), row['item']))
  assert sorted(found) == sorted(log)
  for user, own_items in found.items():
    seen = {item for _, item in log[user]}
    assert not seen & {item for item, _ in own_items}
    assert len(own_items) == min(3, 30 - len(seen))


def test_training_users_need_the_data_of_the_model(own, untimed, tmp_path):
  (tmp_path / 'other.txt').write_text('1 1\n1 2\n2 77\n')
  config, workdir = own(untimed, data__path=tmp_path / 'other.txt')
  with pytest.raises(ValueError, match='other items than the model'):
    predict.write_predictions(config, workdir)


def test_request_time(own, trained, loaded, tmp_path):
  write_histories(tmp_path / 'in.csv', PAST)
  changes = dict(predict__input=tmp_path / 'in.csv')
  config, workdir = own(trained, **changes)

  def scores(**more):
    config, _ = own(trained, **changes, **more)
    predict.write_predictions(config, workdir)
    return by_user(workdir / 'predictions.csv')

  last = T + 28 * 60  # of eve, the latest of all
  with pytest.raises(ValueError, match='before the last event of user eve'):
    scores(predict__request_time=last - 1)
  with pytest.raises(ValueError, match='is it in seconds'):
    scores(predict__request_time=T * 1000)
  now, at_last = scores(), scores(predict__request_time=last)
  assert now['eve'] == at_last['eve']
  assert now['ann'] != at_last['ann']
  assert scores(predict__request_time=last + 86400)['eve'] != now['eve']


def test_request_time_of_a_model_without_times(own, untimed, tmp_path):
  (tmp_path / 'in.txt').write_text('1 1\n')
  config, workdir = own(
    untimed,
    predict__input=tmp_path / 'in.txt',
    predict__format='sasrec_text',
    predict__request_time=T,
  )
  with pytest.raises(ValueError, match='model.time_bias'):
    predict.write_predictions(config, workdir)


def test_refusals(own, trained, loaded, tmp_path):
  write_histories(tmp_path / 'in.csv', PAST)
  write_histories(tmp_path / 'untimed.csv', PAST, times=False)
  write_histories(tmp_path / 'foreign.csv', {'ann': ['x', 'y']})
  shutil.copy(tmp_path / 'in.csv', tmp_path / 'in.log')
  before = (tmp_path / 'in.csv').read_bytes()
  given = tmp_path / 'in.csv'
  for error, message, changes in [
    (ValueError, 'would replace predict.input', {'output': given}),
    (ValueError, 'suffix must be one of .csv, .jsonl, .parquet',
     {'output': tmp_path / 'out.txt'}),
    (ValueError, 'a directory', {'output': tmp_path / 'd.csv'}),
    (FileNotFoundError, 'lost.csv: no such file', {'input': 'lost.csv'}),
    (ValueError, 'format=, one of', {'input': tmp_path / 'in.log'}),
    (ValueError, "predict.format is 'tsv'", {'format': 'tsv'}),
    (ValueError, 'predict.top_k', {'top_k': 0}),
    (ValueError, 'reads times', {'input': tmp_path / 'untimed.csv'}),
    (ValueError, 'none is of an item the model knows.*unknown are x',
     {'input': tmp_path / 'foreign.csv'}),
    (ValueError, "no column 'when'", {'columns.time': 'when'}),
    (FileNotFoundError, 'the directory has no csv files',
     {'input': tmp_path / 'd.csv', 'format': 'csv'}),
  ]:  # fmt: skip
    (tmp_path / 'd.csv').mkdir(exist_ok=True)
    changes = {'input': given, **changes}
    config, workdir = own(
      trained, **{f'predict__{k}': v for k, v in changes.items()}
    )
    with pytest.raises(error, match=message):
      predict.write_predictions(config, workdir)
    assert not (workdir / 'predictions.csv').exists(), changes
    assert not (workdir / 'predict').exists(), changes
  assert given.read_bytes() == before


def test_a_workdir_of_another_config(own, trained, tmp_path):
  config, workdir = own(trained, model__blocks=2, train__steps=99)
  with pytest.raises(ConfigError, match='model.blocks: saved 1, now 2') as e:
    predict.write_predictions(config, workdir)
  assert 'train.steps' not in str(e.value)
  with pytest.raises(FileNotFoundError, match='train first'):
    predict.write_predictions(config, tmp_path / 'nothing')
  assert not (tmp_path / 'nothing').exists()


def test_a_workdir_without_a_checkpoint(own, trained):
  config, workdir = own(trained)
  shutil.rmtree(workdir / 'best')
  shutil.rmtree(workdir / 'checkpoints')
  with pytest.raises(ValueError, match='no checkpoint; train first'):
    predict.write_predictions(config, workdir)


def test_best_or_latest(own, trained, caplog):
  with pytest.raises(ValueError, match='predict.checkpoint'):
    predict.write_predictions(*own(trained, predict__checkpoint='last'))
  config, workdir = own(trained, predict__checkpoint='latest')
  predict.write_predictions(config, workdir)
  assert 'weights of step 4' in caplog.text
  shutil.rmtree(workdir / 'best')
  caplog.clear()
  predict.write_predictions(
    own(trained, predict__checkpoint='best')[0], workdir
  )
  assert 'taking the latest' in caplog.text


def test_a_failure_leaves_the_older_file(own, trained, loaded, monkeypatch):
  config, workdir = own(trained)
  predict.write_predictions(config, workdir)
  before = (workdir / 'predictions.csv').read_bytes()
  written = []

  class Full(prediction_files.FORMATS['.csv']):
    def write(self, rows):
      super().write(rows)
      written.append(rows)
      if len(written) == 2:
        raise OSError(28, 'No space left on device')

  monkeypatch.setitem(prediction_files.FORMATS, '.csv', Full)
  with pytest.raises(OSError, match='predictions.csv could not be written.*No'):
    predict.write_predictions(config, workdir)
  assert (workdir / 'predictions.csv').read_bytes() == before
  assert not [p for p in os.listdir(workdir) if p.startswith('.pred')]


def test_planted_links_are_not_followed(own, trained, loaded, tmp_path):
  """Names that a process would write to may stand there already."""
  victim = tmp_path / 'victim'
  victim.write_text('precious')
  output = tmp_path / 'out.csv'
  config, workdir = own(trained, predict__output=output)
  names = [f'.out.csv.{os.getpid()}', '.out.csv.tmp', 'out.csv']
  for name in names:
    (tmp_path / name).symlink_to(victim)
  predict.write_predictions(config, workdir)
  assert victim.read_text() == 'precious'
  assert not output.is_symlink() and output.read_text().startswith('user,')


def test_texts_that_a_spreadsheet_would_run(tmp_path):
  texts = ['=cmd()', '+1', '-1', '@SUM(1)', '\ta', 'a=b', '']
  rows = prediction_files.Rows(
    user=np.arange(7) - 3,
    rank=np.ones(7, np.int32),
    item=np.array(texts),
    score=np.full(7, -0.5, np.float32),
    title=texts,
  )
  for escape in (False, True):
    path = tmp_path / 'out.csv'
    with prediction_files.create_file(path, escape_formulas=escape) as file:
      file.write(rows)
    with open(path, newline='') as f:
      lines = list(csv.DictReader(f))
    expected = [f"'{x}" for x in texts[:5]] + texts[5:] if escape else texts
    assert [line['item'] for line in lines] == expected
    assert [line['title'] for line in lines] == expected
    assert {line['score'] for line in lines} == {'-0.5'}
    # Numbers are no formulas.
    assert [int(line['user']) for line in lines] == list(range(-3, 4))
    scores = prediction_files.Scores(1, ('=cmd()', 'buy'), np.ones((1, 2)))
    with prediction_files.create_file(path, escape_formulas=escape) as file:
      file.write(scores)
    assert path.read_text() == 'row,score_=cmd(),score_buy\n1,1.0,1.0\n'


def test_users_who_have_seen_everything(own, trained, loaded, tmp_path, caplog):
  everything = [f'sku-{n:02d}' for n in range(1, 31)]
  write_histories(tmp_path / 'in.csv', {'ann': everything, 'bob': ['sku-01']})
  config, workdir = own(trained, predict__input=tmp_path / 'in.csv')
  summary = predict.write_predictions(config, workdir)
  assert summary['users_without_unseen_items'] == 1
  assert list(by_user(workdir / 'predictions.csv')) == ['bob']
  assert '1 users have seen every item' in caplog.text


def test_without_pyarrow(own, trained, monkeypatch, tmp_path):
  monkeypatch.setitem(sys.modules, 'pyarrow', None)
  config, workdir = own(trained, predict__output=tmp_path / 'out.parquet')
  with pytest.raises(ImportError, match=r'genrec_jax\[parquet\]'):
    predict.write_predictions(config, workdir)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_input(own, untimed, tmp_path):
  """Resident memory of 0.2 and 4 million events, in processes of their own."""
  peaks = []
  for users in (10_000, 200_000):
    rng = np.random.default_rng(0)
    with open(tmp_path / 'in.txt', 'w') as f:
      for user in range(users):
        for item in rng.integers(1, 31, 20):
          f.write(f'{user} {item}\n')
    config, workdir = own(untimed)
    program = (
      'import resource, sys\n'
      'from ml_collections import ConfigDict\n'
      'from genrec_jax import config as c\n'
      'from genrec_jax.serve import predict\n'
      f'config = ConfigDict(c.read("{workdir}/config.json"))\n'
      'config.eval.update(batch_size=256, batch_tokens=2048)\n'
      f'config.predict.update(input="{tmp_path}/in.txt", '
      'format="sasrec_text", top_k=5)\n'
      f'predict.write_predictions(config, "{workdir}")\n'
      'usage = resource.getrusage(resource.RUSAGE_SELF)\n'
      'print(usage.ru_maxrss / 1024)\n'
    )
    done = subprocess.run(
      [sys.executable, '-c', program], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    peaks.append(float(done.stdout))
  # 200,000 users hold 2 MB of offsets and ids; a mapped file counts, too.
  assert peaks[1] - peaks[0] < 160, peaks
