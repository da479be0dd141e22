"""`--mode=predict`: files in, files out."""

import csv
import json
import os
import shutil
import subprocess
import sys

import jax
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from genrec_jax.config import ConfigError
from genrec_jax.data import histories, pipeline, splits
from genrec_jax.embedding import lookup
from genrec_jax.serve import predict, prediction_files
from genrec_jax.serve.items import Items
from genrec_jax.serve.predictor import Predictor, load_weights
from genrec_jax.train import experiment, optimizer
from tests.serve.conftest import MAX_LEN
from tests.tolerances import assert_close

T = 1_700_000_000


def read_csv(path):
  with open(path, newline='', encoding='utf-8') as f:
    return list(csv.DictReader(f))


def by_user(path) -> dict[str, list[tuple[str, float]]]:
  """user -> [(item, score), ...] of a CSV of predictions; ranks are 1, 2, .."""
  found = {}
  for row in read_csv(path):
    own = found.setdefault(row['user'], [])
    own.append((row['item'], float(row['score'])))
    assert int(row['rank']) == len(own)
  return found


def write_histories(path, past: dict, times=True):
  """A CSV log of `past`: user -> items; the files' order is not by user."""
  lines = ['user,item,time' if times else 'user,item']
  longest = max(map(len, past.values()))
  for n in range(longest):
    for user, items in past.items():
      if n < len(items):
        lines.append(f'{user},{items[n]}' + (f',{T + n * 60}' if times else ''))
  path.write_text('\n'.join(lines) + '\n')


def oracle(config, workdir, past: dict, times: bool, checkpoint='best'):
  """user -> every unseen item and its score, best first; one by one."""
  items = Items.load(workdir)
  task = experiment.build_task(config, items.corpus, items.counts)
  tx = optimizer.build(config.optimizer)
  w = load_weights(workdir, task, tx, checkpoint)
  rows = {n: lookup.DenseRows(t) for n, t in w.tables.items()}
  ask = jax.jit(lambda batch: task.predict(w.params, rows, batch))
  vectors = np.asarray(task.catalogue(w.tables), np.float64)
  found = {}
  for user, own in past.items():
    h = histories.from_arrays(
      [user] * len(own),
      own,
      [T + n * 60 for n in range(len(own))] if times else None,
      item_vocab=items.vocab,
      unknown='skip',
    )
    if not len(h):
      continue
    batch = pipeline.collate(
      h, splits.to_predict(h), [0], max_len=MAX_LEN, batch_size=1
    )
    scores = vectors @ np.asarray(ask(batch)[0], np.float64)
    seen = set()
    if config.eval.filter_seen != 'none':
      seen = set(h.items.tolist())
    if config.eval.filter_seen == 'window':
      seen = set(h.items[-MAX_LEN:].tolist())
    order = sorted(
      (-s, c) for c, s in enumerate(scores) if int(items.corpus[c]) not in seen
    )
    ids = items.vocab.decode(items.corpus[[c for _, c in order]]).tolist()
    found[user] = [(str(i), -s) for i, (s, _) in zip(ids, order, strict=True)]
  return found


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
    summary = predict.run(config, workdir)
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
  predict.run(config, workdir)
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
  predict.run(config, workdir)
  after = state()
  assert set(after) - set(before) == {'predictions.csv'}
  assert {name: after[name] for name in before} == before
  assert not (workdir / 'predict').exists()


def test_training_users_from_their_whole_histories(own, trained, loaded):
  config, workdir = own(trained, predict__top_k=3)
  summary = predict.run(config, workdir)
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
    predict.run(config, workdir)


NUMBERS = {
  '101': ['4', '5', '6'],
  '9': ['30', '1'],
  '24': ['7', '31', '8'],  # 31 is unknown
}


def test_layouts_of_the_input(own, untimed, tmp_path, caplog, monkeypatch):
  """The same histories in every format give the same answers."""
  once = Predictor.load(own(untimed)[1])  # compiled once for all cases
  monkeypatch.setattr(predict.Predictor, 'load', lambda *_: once)
  events = [
    (u, i, T + n) for u, items in NUMBERS.items() for n, i in enumerate(items)
  ]
  shuffled = events[::-1]  # where there are times, the order does not matter
  dat, text = tmp_path / 'ratings.dat', tmp_path / 'new.txt'
  dat.write_text(''.join(f'{u}::{i}::5::{t}\n' for u, i, t in shuffled))
  (tmp_path / 'u.data').write_text(
    ''.join(f'{u}\t{i}\t5\t{t}\n' for u, i, t in shuffled)
  )
  (tmp_path / 'ratings.csv').write_text(
    'userId,movieId,rating,timestamp\n'
    + ''.join(f'{u},{i},5,{t}\n' for u, i, t in shuffled)
  )
  text.write_text(''.join(f'{u} {i}\n' for u, i, _ in events))
  write_histories(tmp_path / 'timed.tsv', NUMBERS)
  tabs = (tmp_path / 'timed.tsv').read_text().replace(',', '\t')
  (tmp_path / 'timed.tsv').write_text(tabs)
  write_histories(tmp_path / 'untimed.csv', NUMBERS, times=False)
  pq.write_table(
    pa.table(
      {
        'who': [int(u) for u, _, _ in shuffled],
        'what': [int(i) for _, i, _ in shuffled],
        'time': [t for _, _, t in shuffled],
      }
    ),
    tmp_path / 'log.parquet',
  )
  (tmp_path / 'parts').mkdir()
  for n, user in enumerate(NUMBERS):
    write_histories(
      tmp_path / 'parts' / f'{n}.csv', {user: NUMBERS[user]}, times=False
    )
  cases = [
    (dat, {'format': 'ml1m'}),
    (tmp_path, {'format': 'ml1m'}),  # the directory of the official archive
    (tmp_path, {'format': 'ml100k'}),
    (tmp_path / 'ratings.csv', {'format': 'ml_latest'}),
    (text, {'format': 'sasrec_text'}),
    (tmp_path / 'timed.tsv', {'delimiter': '\t'}),
    (tmp_path / 'untimed.csv', {}),
    (tmp_path / 'parts', {'format': 'csv'}),
    (tmp_path / 'log.parquet', {'columns.user': 'who', 'columns.item': 'what'}),
  ]
  expected = None
  for path, options in cases:
    config, workdir = own(
      untimed,
      predict__input=path,
      predict__output=tmp_path / 'out' / 'answers.csv',
      **{f'predict__{k}': v for k, v in options.items()},
    )
    caplog.clear()
    summary = predict.run(config, workdir)
    assert summary['unknown_items'] == ['31'], (path, options)
    found = by_user(tmp_path / 'out' / 'answers.csv')
    # Whole numbers are in order as numbers.
    assert list(found) == ['9', '24', '101']
    if expected is None:
      expected = found
      every = oracle(config, workdir, NUMBERS, times=False)
      for user, own_items in found.items():
        assert [i for i, _ in own_items] == [i for i, _ in every[user][:10]]
    assert found == expected, (path, options)
    absent = "no column 'time'; events are taken in the order" in caplog.text
    assert absent == (path.name in ('untimed.csv', 'parts'))


def test_low_ratings_are_no_history(own, untimed, tmp_path, caplog):
  """An input is filtered as the training log was."""
  directory = own(untimed)[1]
  saved = json.loads((directory / 'config.json').read_text())
  saved['data']['min_rating'] = 4
  (directory / 'config.json').write_text(json.dumps(saved))
  (tmp_path / 'in.dat').write_text(
    f'1::4::5::{T}\n1::5::3::{T + 1}\n2::4::1::{T}\n3::6::4::{T}\n'
  )
  config, workdir = own(
    untimed,
    data__min_rating=4,
    predict__input=tmp_path / 'in.dat',
    predict__format='ml1m',
    predict__top_k=29,
  )
  summary = predict.run(config, workdir)
  assert summary['users'] == 2 and summary['users_without_known_items'] == 1
  found = by_user(workdir / 'predictions.csv')
  assert '5' in dict(found['1']) and '4' not in dict(found['1'])
  assert '2 events are rated below data.min_rating' in caplog.text
  (tmp_path / 'in.csv').write_text('user,item,time\n1,4,7\n')
  config, _ = own(
    untimed,
    data__min_rating=4,
    data__columns__rating='rating',
    predict__input=tmp_path / 'in.csv',
  )
  saved['data']['columns']['rating'] = 'rating'
  (directory / 'config.json').write_text(json.dumps(saved))
  assert predict.run(config, workdir)['users'] == 1
  assert "no column 'rating'; every event counts as liked" in caplog.text


def test_request_time(own, trained, loaded, tmp_path):
  write_histories(tmp_path / 'in.csv', PAST)
  changes = dict(predict__input=tmp_path / 'in.csv')
  config, workdir = own(trained, **changes)

  def scores(**more):
    config, _ = own(trained, **changes, **more)
    predict.run(config, workdir)
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
    predict.run(config, workdir)


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
      predict.run(config, workdir)
    assert not (workdir / 'predictions.csv').exists(), changes
    assert not (workdir / 'predict').exists(), changes
  assert given.read_bytes() == before


def test_a_workdir_of_another_config(own, trained, tmp_path):
  config, workdir = own(trained, model__blocks=2, train__steps=99)
  with pytest.raises(ConfigError, match='model.blocks: saved 1, now 2') as e:
    predict.run(config, workdir)
  assert 'train.steps' not in str(e.value)
  with pytest.raises(FileNotFoundError, match='train first'):
    predict.run(config, tmp_path / 'nothing')
  assert not (tmp_path / 'nothing').exists()


def test_a_workdir_without_a_checkpoint(own, trained):
  config, workdir = own(trained)
  shutil.rmtree(workdir / 'best')
  shutil.rmtree(workdir / 'checkpoints')
  with pytest.raises(ValueError, match='no checkpoint; train first'):
    predict.run(config, workdir)


def test_best_or_latest(own, trained, caplog):
  with pytest.raises(ValueError, match='predict.checkpoint'):
    predict.run(*own(trained, predict__checkpoint='last'))
  config, workdir = own(trained, predict__checkpoint='latest')
  predict.run(config, workdir)
  assert 'weights of step 4' in caplog.text
  shutil.rmtree(workdir / 'best')
  caplog.clear()
  predict.run(own(trained, predict__checkpoint='best')[0], workdir)
  assert 'taking the latest' in caplog.text


def test_a_failure_leaves_the_older_file(own, trained, loaded, monkeypatch):
  config, workdir = own(trained)
  predict.run(config, workdir)
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
    predict.run(config, workdir)
  assert (workdir / 'predictions.csv').read_bytes() == before
  assert not [p for p in os.listdir(workdir) if p.startswith('.pred')]


def test_users_who_have_seen_everything(own, trained, loaded, tmp_path, caplog):
  everything = [f'sku-{n:02d}' for n in range(1, 31)]
  write_histories(tmp_path / 'in.csv', {'ann': everything, 'bob': ['sku-01']})
  config, workdir = own(trained, predict__input=tmp_path / 'in.csv')
  summary = predict.run(config, workdir)
  assert summary['users_without_unseen_items'] == 1
  assert list(by_user(workdir / 'predictions.csv')) == ['bob']
  assert '1 users have seen every item' in caplog.text


def test_without_pyarrow(own, trained, monkeypatch, tmp_path):
  monkeypatch.setitem(sys.modules, 'pyarrow', None)
  config, workdir = own(trained, predict__output=tmp_path / 'out.parquet')
  with pytest.raises(ImportError, match=r'genrec_jax\[parquet\]'):
    predict.run(config, workdir)


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
      f'predict.run(config, "{workdir}")\n'
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
