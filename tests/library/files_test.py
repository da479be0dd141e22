"""Files as people have them: delimiters, no header, stores, what predicts."""

import csv
import gzip
import json
import logging

import fsspec
import jax
import numpy as np
import pandas as pd
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from ml_collections import ConfigDict

import genrec_jax
from genrec_jax import config as config_lib
from genrec_jax.data import datasets as retrieval
from genrec_jax.data import remote_files
from genrec_jax.data.ranking import datasets, raw
from genrec_jax.serve import score

ROWS = 60


def make_clicks() -> dict[str, list]:
  rng = np.random.default_rng(0)
  return {
    'click': rng.choice(['yes', 'no'], ROWS).tolist(),
    'user_id': [f'u{i % 5}' for i in range(ROWS)],
    'item': rng.integers(0, 9, ROWS).tolist(),
    'price': (rng.integers(1, 99, ROWS) / 4).tolist(),
    'at': [f'2024-03-{1 + i % 28:02d} 09:30:00.5 UTC' for i in range(ROWS)],
  }


def format_rows(columns, delimiter: str, header: bool = True) -> str:
  rows = [list(columns)] * header + list(zip(*columns.values(), strict=True))
  return ''.join(delimiter.join(map(str, row)) + '\n' for row in rows)


def put(url: str, content: bytes) -> str:
  with fsspec.open(url, 'wb') as f:
    f.write(content)
  return url


def fit(path, workdir, **more):
  settings = {'train.batch_size': 32, 'data.time': 'at'}
  options = dict(label='click', steps=1, progress=False, settings=settings)
  options |= dict(features={'at': None}, workdir=workdir) | more
  with jax.numpy_dtype_promotion('standard'):  # for optax
    return genrec_jax.fit(path, 'lr', **options)


def read_config(run, **predict) -> ConfigDict:
  config = ConfigDict(config_lib.read_config(run.workdir / 'config.json'))
  config.predict.update(predict)
  return config


@pytest.fixture(scope='module')
def clicks(tmp_path_factory):
  """A run on a file between semicolons, and that file."""
  path = tmp_path_factory.mktemp('clicks') / 'clicks.csv'
  path.write_text(format_rows(make_clicks(), ';'))
  return fit(path, path.parent / 'run'), path


def test_the_delimiter_and_the_words_of_labels_are_told(tmp_path, caplog):
  path = tmp_path / 'clicks.csv'
  path.write_text(format_rows(make_clicks(), ';'))
  with caplog.at_level(logging.INFO, 'genrec_jax'):
    cfg = {'name': 'csv', 'path': str(path), 'labels': 'click'}
    cfg['features'] = {'user_id': {}, 'item': {}}
    log = logging.getLogger('genrec_jax').info
    data = datasets.load(cfg, tmp_path, log)
  assert f"{path}: fields are separated by ';'" in caplog.text
  assert f"{path}: label 'click': 'no' is 0, 'yes' is 1" in caplog.text
  assert len(data.splits['train']) == ROWS
  assert data.encoder.reading['delimiter'] == ';'


def test_predictions_say_whose_they_are(clicks, tmp_path):
  run, path = clicks
  frame = make_clicks() | {'user_id': [7, 8, 9] * 20}
  new = tmp_path / 'new.parquet'
  pd.DataFrame(frame).to_parquet(new)
  tables = {}
  for suffix in ('csv', 'jsonl', 'parquet'):
    out = tmp_path / f'out.{suffix}'
    config = read_config(run, input=str(new), output=str(out))
    assert score.write_scores(config, run.workdir)['rows'] == ROWS
    lines = suffix == 'jsonl'
    read = getattr(pd, f'read_{"json" if lines else suffix}')
    tables[suffix] = read(out, **({'lines': True} if lines else {}))
  for table in tables.values():
    assert list(table) == ['row', 'user_id', 'item', 'at', 'score']
    assert table['user_id'].tolist() == frame['user_id']
    assert table['row'].tolist() == list(range(1, ROWS + 1))
    np.testing.assert_allclose(table['score'], run.score(new), rtol=1e-6)
  (tmp_path / 'tabs.csv').write_text(format_rows(make_clicks(), '\t'))
  scores = run.score(tmp_path / 'tabs.csv')
  np.testing.assert_array_equal(scores, run.score(path))


def test_what_is_kept_can_be_chosen(clicks, tmp_path):
  run, path = clicks
  out = tmp_path / 'out.csv'

  def predict(*keep, source=path):
    config = read_config(run, output=str(out), input=str(source or ''))
    config.predict.keep = keep
    score.write_scores(config, run.workdir)
    with open(out, newline='') as f:
      return next(csv.reader(f))

  assert predict() == ['row', 'score']
  assert predict('price', 'auto')[1:] == [
    'user_id', 'item', 'price', 'at', 'score'
  ]  # fmt: skip
  with pytest.raises(ValueError, match="'User ID'.*did you mean 'user_id'"):
    predict('User ID')
  with pytest.raises(ValueError, match="'pric'.*did you mean 'price'"):
    predict('pric', source='')


@pytest.fixture(scope='module')
def cut(tmp_path_factory):
  """A run with a test split that is cut off by draws, and its examples."""
  path = tmp_path_factory.mktemp('cut') / 'clicks.csv'
  columns = make_clicks() | {'note': [f'n{i}' for i in range(ROWS)]}
  path.write_text(format_rows(columns, ','))
  split = {'data.split.by': 'random', 'data.split.test_fraction': 0.4}
  settings = {'train.batch_size': 32, 'eval.batch_size': 8, **split}
  features = {'note': None, 'at': None}
  run = fit(path, path.parent / 'run', settings=settings, features=features)
  return run, columns


def test_predictions_of_the_test_split_say_whose_they_are(
  cut, tmp_path, caplog, monkeypatch
):
  monkeypatch.setattr(raw, 'CHUNK_ROWS', 7)  # no multiple of a batch
  run, columns = cut
  out = tmp_path / 'out.csv'
  config = read_config(run, output=str(out))
  config.predict.keep = ('auto', 'note', 'price')
  caplog.set_level(logging.INFO, 'genrec_jax')
  score.write_scores(config, run.workdir)
  table = pd.read_csv(out)
  names = ['user_id', 'item', 'price', 'note']
  assert list(table) == ['row', *names, 'score']
  assert 0 < len(table) < ROWS
  # Each row is one of the file, whose probability is what the model says of it.
  frame = pd.DataFrame(columns).set_index('note')
  rows = frame.loc[table['note']]
  for name in ('user_id', 'item', 'price'):
    assert table[name].tolist() == rows[name].tolist()
  scores = run.score(rows.reset_index()[['user_id', 'item', 'price']])
  np.testing.assert_allclose(table['score'], scores, rtol=1e-6)
  told = 'that are the test split, in their order, from 1; with their columns '
  assert told + ', '.join(names) in caplog.text
  config.predict.keep = ()
  score.write_scores(config, run.workdir)
  assert list(pd.read_csv(out)) == ['row', 'score']
  assert 'from 1; --config.predict.keep=NAME,... adds columns' in caplog.text


def test_numbers_that_are_missing_and_dates_are_kept(clicks, tmp_path):
  run, _ = clicks
  texts = ['2024-03-01 09:30:00.25', None, '2024-03-02 00:00:00.0']
  times = pd.to_datetime(texts)
  frame = {'user_id': ['a', 'b', 'c'], 'item': [1, 2, 3], 'price': [1, 2, 3.5]}
  frame |= {'at': times, 'order': pd.array([2**60, None, 3], 'Int64')}
  pd.DataFrame(frame).to_parquet(tmp_path / 'new.parquet')
  tables = {}
  for suffix in ('parquet', 'jsonl'):
    out = tmp_path / f'out.{suffix}'
    paths = dict(input=str(tmp_path / 'new.parquet'), output=str(out))
    score.write_scores(read_config(run, **paths), run.workdir)
    tables[suffix] = out
  lines = list(map(json.loads, tables['jsonl'].read_text().splitlines()))
  assert [x['order'] for x in lines] == [2**60, None, 3]
  assert [x['at'] for x in lines] == [
    '2024-03-01T09:30:00.25', '', '2024-03-02T00:00:00'
  ]  # fmt: skip
  table = pd.read_parquet(tables['parquet'], dtype_backend='pyarrow')
  assert table['order'].isna().tolist() == [False, True, False]


def test_examples_without_a_header(tmp_path):
  """Columns are numbers, a label's too; predictions leave its cells empty."""
  path = tmp_path / 'log.tsv'
  columns = make_clicks()
  path.write_text(format_rows(columns, '\t', header=False))
  options = dict(label='0', features={'4': None}, group='1')
  run = fit(path, tmp_path / 'run', settings={'data.time': '4'}, **options)
  assert run.features == ('1', '2', '3')
  unknown = tmp_path / 'new.tsv'
  rows = format_rows(columns | {'click': [''] * ROWS}, '\t', header=False)
  unknown.write_text(rows)
  np.testing.assert_array_equal(run.score(unknown), run.score(path))
  config = read_config(run, input=str(unknown), output=str(tmp_path / 'x.csv'))
  score.write_scores(config, run.workdir)
  assert list(pd.read_csv(tmp_path / 'x.csv')) == ['row', '1', '4', 'score']
  del columns['click']
  unknown.write_text(format_rows(columns, '\t', header=False))
  with pytest.raises(ValueError, match='has 4 fields, those of the .* have 5'):
    run.score(unknown)


def test_names_for_a_file_without_a_header(tmp_path):
  path = tmp_path / 'log.csv'
  path.write_text(format_rows(make_clicks(), ',', header=False))
  with pytest.raises(ValueError, match='first line looks like data.*by number'):
    fit(path, tmp_path / 'run', features=None)


def test_a_store(clicks, tmp_path):
  """Everything that is read, and what is written."""
  run, path = clicks
  text = format_rows(make_clicks(), ';').encode()
  url = put('memory://shop/new/log.csv.gz', gzip.compress(text))
  np.testing.assert_array_equal(run.score(url), run.score(path))
  for suffix in ('csv', 'parquet'):
    out = f'memory://shop/out.{suffix}'
    score.write_scores(read_config(run, input=url, output=out), run.workdir)
    with fsspec.open(out, 'rb') as f:
      table = getattr(pd, f'read_{suffix}')(f)
    np.testing.assert_allclose(table['score'], run.score(path), rtol=1e-6)
  pd.DataFrame(make_clicks()).to_parquet(tmp_path / 'x.parquet')
  put('memory://shop/days/1.parquet', (tmp_path / 'x.parquet').read_bytes())
  again = fit('memory://shop/days', tmp_path / 'run')
  assert again.features == run.features
  with pytest.raises(ValueError, match='would replace predict.input'):
    score.write_scores(read_config(run, input=out, output=out), run.workdir)


def test_a_change_on_a_store_is_seen(tmp_path):
  url = 'memory://logs/log.csv'
  rows = [(u, i, 10 * u + i) for u in range(9) for i in range(5)]
  log = 'user,item,time\n' + ''.join(f'{u},{i},{t}\n' for u, i, t in rows)
  stats, cfg = [], ConfigDict(config_lib.retrieval().data)
  cfg.update(name='csv', path=url)
  for content in (log, log.replace('8,4,84', '8,3,84'), log + '9,1,90\n'):
    put(url, content.encode())
    stats.append(remote_files.locate(url).stat())
    data = retrieval.load(cfg, tmp_path)
    assert len(data.histories.items) == content.count('\n') - 1
  assert len(set(stats)) == len(list(tmp_path.iterdir())) == 3


def test_paths_that_no_store_has():
  assert remote_files.locate('file:///tmp/x') == remote_files.locate('/tmp/x')
  with pytest.raises(ValueError, match='nowhere://x: Protocol not known'):
    remote_files.locate('nowhere://x')
  with pytest.raises(
    FileNotFoundError, match='memory://shop/none.csv: no such'
  ):
    genrec_jax.fit('memory://shop/none.csv')


def test_a_missing_package_is_named(monkeypatch):
  def refuse(*args, **options):
    raise ImportError('Install s3fs to access S3')

  monkeypatch.setattr(fsspec.core, 'url_to_fs', refuse)
  with pytest.raises(ImportError, match=r'pip install s3fs.*genrec_jax\[s3\]'):
    remote_files.locate('s3://bucket/log.csv')


class Unstamped(MemoryFileSystem):
  """A store that says no more of a file than its size."""

  protocol = 'unstamped'
  beside = {}

  @classmethod
  def _strip_protocol(cls, path):
    return super()._strip_protocol(path.removeprefix('unstamped://'))

  def info(self, path, **options):
    info = super().info(path, **options)
    return {k: info[k] for k in ('name', 'size', 'type')} | self.beside


def test_files_whose_changes_nobody_tells_are_refused(tmp_path, monkeypatch):
  fsspec.register_implementation('unstamped', Unstamped, clobber=True)
  put('memory://shop/log.csv', b'user,item,time\na,b,1\na,c,2\n')
  cfg = config_lib.retrieval().data
  cfg.update(name='csv', path='unstamped://shop/log.csv')
  told = 'unstamped://shop/log.csv: its store tells neither when .* copy it'
  with pytest.raises(ValueError, match=told):
    retrieval.load(cfg, tmp_path, print)
  clicks = {'name': 'csv', 'path': 'unstamped://shop/log.csv', 'labels': 'time'}
  with pytest.raises(ValueError, match=told):
    datasets.load(clicks, tmp_path, print)
  assert not any(tmp_path.iterdir())
  # What a rarer store calls it is a stamp, too, unless there are usual ones.
  monkeypatch.setattr(Unstamped, 'beside', {'sha': 'a1'})
  stat = remote_files.locate(cfg.path).stat
  assert stat().st_mtime_ns == 'sha=a1'
  assert len(retrieval.load(cfg, tmp_path, print).histories) == 1
  monkeypatch.setattr(Unstamped, 'beside', {'sha': 'a1', 'mtime': 5})
  assert stat().st_mtime_ns == 'mtime=5'
