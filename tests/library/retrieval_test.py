"""fit, recommend, save and load of models that recommend."""

import gc
import json
import logging
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

import genrec_jax
from genrec_jax import config as config_lib
from genrec_jax import progress
from genrec_jax.data import datasets
from genrec_jax.data.histories import Histories
from genrec_jax.library import columns as columns_lib
from genrec_jax.library import fitting
from genrec_jax.library.events import read_events, write_events
from genrec_jax.report.metric_writers import read_jsonl
from genrec_jax.serve import predict
from tests.library.frames import Frame

ROOT = pathlib.Path(genrec_jax.__file__).parent.parent
SETTINGS = {
  'model.dim': 8,
  'model.ffn_dim': 8,
  'model.blocks': 1,
  'model.max_len': 8,
  'loss.negatives': 4,
  'train.batch_size': 8,
  'train.log_every': 1,
  'train.monitor': 'ndcg@5',
  'eval': {'ks': (1, 5), 'batch_size': 8, 'batch_tokens': 32},
  'report.users': 1,
}


def make_events(seed: int = 0) -> dict:
  """A log of 12 customers and 15 products, in no order."""
  rng = np.random.default_rng(seed)
  customer = np.repeat(np.arange(12), 7)
  return {
    'customer': np.array([f'c{n:02d}' for n in customer]),
    'product': rng.integers(100, 115, len(customer)),
    'when': rng.permutation(len(customer)) + 1_700_000_000,
  }


NAMES = dict(user='customer', item='product', time='when')


def fit(events, workdir=None, **more):
  with jax.numpy_dtype_promotion('standard'):  # for optax
    return genrec_jax.fit(
      events,
      'sasrec',
      **{**NAMES, 'settings': SETTINGS, 'steps': 3, 'progress': False, **more},
      workdir=workdir,
    )


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  return fit(make_events(), tmp_path_factory.mktemp('fit') / 'run')


def test_metrics_and_report(run):
  assert set(run.metrics) == {'valid', 'test'}
  assert 0 <= run.metrics['test']['hr@5'] <= 1
  assert set(run.baselines) == {'popularity'}
  page = run.report()
  assert page.name == 'report.html' and '<svg' in page.read_text()
  assert repr(run).startswith('RetrievalRun(sasrec; valid: ')
  table = run._repr_html_()
  assert '<th>test, popularity</th>' in table and '<th>hr@5</th>' in table


def test_the_same_call_continues_and_other_events_do_not(run, tmp_path):
  workdir = tmp_path / 'run'
  shutil.copytree(run.workdir, workdir)
  again = fit(make_events(), workdir, steps=4)
  steps = [line['step'] for line in read_jsonl(workdir / 'metrics.jsonl')]
  assert sorted(set(steps)) == [1, 2, 3, 4] and again.metrics
  with pytest.raises(ValueError, match='was trained on other data'):
    fit(make_events(1), workdir, steps=4)


def test_recommends_what_the_command_line_does(run, tmp_path):
  events = make_events(2)
  order = np.argsort(events['when'])
  (tmp_path / 'new.csv').write_text(
    'customer,product,when\n'
    + ''.join(
      ','.join(str(column[i]) for column in events.values()) + '\n'
      for i in order
    )
  )
  config = ConfigDict(config_lib.read_config(run.workdir / 'config.json'))
  config.predict.update(
    input=str(tmp_path / 'new.csv'), output=str(tmp_path / 'out.jsonl'), top_k=4
  )
  predict.write_predictions(config, run.workdir)
  lines = (tmp_path / 'out.jsonl').read_text().splitlines()
  wanted = {
    line['user']: [(x['item'], x['score']) for x in line['items']]
    for line in map(json.loads, lines)
  }
  histories = {user: [] for user in wanted}
  for i in order:
    histories[str(events['customer'][i])].append(int(events['product'][i]))
  answers = run.recommend(histories, k=4)
  assert answers.keys() == wanted.keys()
  for user, pairs in answers.items():
    assert [item for item, _ in pairs] == [item for item, _ in wanted[user]]
    np.testing.assert_allclose(
      [x for _, x in pairs], [x for _, x in wanted[user]], rtol=1e-6
    )
  assert run.recommend([[101], ['none of ours']], 2)[1] == []


def test_a_saved_run_recommends_in_a_fresh_process(run, tmp_path):
  saved = run.save(tmp_path / 'kept')
  assert not (saved / 'data').exists()
  assert not (saved / 'checkpoints').exists()
  code = (
    'import json, sys, genrec_jax; run = genrec_jax.load(sys.argv[1]);'
    'print(json.dumps([run.metrics, run.recommend([[101, 104]], k=3)]))'
  )
  text = subprocess.run(
    [sys.executable, '-c', code, str(saved)],
    check=True,
    capture_output=True,
    text=True,
    cwd=ROOT,
    env={**os.environ, 'JAX_DEFAULT_MATMUL_PRECISION': 'highest'},
  ).stdout
  metrics, answers = json.loads(text)
  assert metrics == run.metrics
  wanted = run.recommend([[101, 104]], k=3)
  assert answers == [[list(pair) for pair in user] for user in wanted]
  with pytest.raises(FileExistsError, match='exists already'):
    run.save(saved)


def test_a_temporary_directory_goes_with_its_run(run, tmp_path):
  kept = run.save(tmp_path / 'kept')
  short = genrec_jax.RetrievalRun(kept, temporary=True)
  assert kept.exists() and short.metrics == run.metrics
  del short
  gc.collect()
  assert not kept.exists()


def test_a_failure_leaves_no_temporary_directory(tmp_path, monkeypatch):
  monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
  with pytest.raises(ValueError, match="no column 'shop'"):
    fit(make_events(), user='shop')
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('frame', [dict, Frame])
def test_events_of_any_origin_are_the_same_histories(frame, tmp_path):
  events = make_events()
  cfg = config_lib.retrieval().data
  cfg.columns.update(**NAMES)
  columns = columns_lib.read_columns(frame(events))
  path = write_events(columns, cfg, tmp_path, lambda *_: None)
  assert path == write_events(columns, cfg, tmp_path, lambda *_: None)
  found = Histories.open(path)
  assert found.users.ids.tolist() == sorted(set(events['customer']))
  for row, user in enumerate(found.users.ids):
    own = events['customer'] == user
    order = np.argsort(events['when'][own])
    at = slice(found.offsets[row], found.offsets[row + 1])
    items = found.vocab.decode(found.items[at])
    np.testing.assert_array_equal(items, events['product'][own][order])
    np.testing.assert_array_equal(found.times[at], events['when'][own][order])


def test_a_file_gives_the_same_histories(tmp_path):
  events = make_events()
  lines = zip(*events.values(), strict=True)
  text = [','.join(events), *(','.join(map(str, x)) for x in lines)]
  (tmp_path / 'log.csv').write_text('\n'.join(text))
  cfg = config_lib.retrieval().data
  cfg.update(name='csv', path=str(tmp_path / 'log.csv'))
  cfg.columns.update(**NAMES)
  wanted = datasets.load(cfg, tmp_path / 'cache', lambda *_: None).histories
  columns = columns_lib.read_columns(events)
  path = write_events(columns, cfg, tmp_path / 'data', lambda *_: None)
  found = Histories.open(path)
  assert found.vocab == wanted.vocab and found.users == wanted.users
  for column in ('offsets', 'items', 'times'):
    np.testing.assert_array_equal(
      getattr(found, column), getattr(wanted, column)
    )


def test_more_events_than_a_chunk_and_what_settings_leave_out(
  tmp_path, monkeypatch
):
  monkeypatch.setattr('genrec_jax.data.readers.CHUNK_ROWS', 10)
  cfg = config_lib.retrieval().data
  cfg.update(min_rating=3.0, min_item_events=2)
  cfg.columns.update(time='', rating='stars')
  events = {
    'user': [1] * 12 + [2] * 12,
    'item': [7, 8] * 12,
    'stars': [5.0, 2.0] * 12,
  }
  columns = columns_lib.read_columns(events)
  path = write_events(columns, cfg, tmp_path, lambda *_: None)
  found = Histories.open(path)
  assert found.vocab.ids.tolist() == [7] and len(found.items) == 12
  assert not found.has_times


@pytest.mark.parametrize(
  'times, unit, seconds',
  [
    (
      np.array(['1970-01-01T00:00:05.9', '1970-01-02'], 'M8[ms]'),
      's',
      [5, 86400],
    ),
    ([5.9, 7.0], 's', [5, 7]),
    ([5900, 7000], 'ms', [5, 7]),
    (['1970-01-01 00:00:05', '1970-01-01 00:00:07'], 's', [5, 7]),
  ],
)
def test_times_of_any_kind(times, unit, seconds):
  cfg = config_lib.retrieval().data
  cfg.time_unit = unit
  events = read_events(
    columns_lib.read_columns(
      {'user': [1, 2], 'item': [3.0, 4.0], 'time': times}
    ),
    cfg,
  )
  assert events.time.tolist() == seconds
  assert events.item.tolist() == [3, 4]


NAN = float('nan')
GOOD = {'user': [1, 2], 'item': ['a', 'b'], 'time': [0, 1]}


@pytest.mark.parametrize(
  'changed, words',
  [
    ({'time': None}, "no column 'time' for the times; the columns are user"),
    ({'item': ['a', None]}, "'item', row 1: the id is missing .1 of 2 are"),
    ({'item': ['a', '']}, "'item', row 1: the id is missing"),
    ({'user': [1.0, NAN]}, "'user', row 1: the id is missing"),
    ({'user': [1.0, 1.5]}, "'user', row 1: 1.5 is not an id"),
    ({'user': [[1], [2]]}, "'user' holds lists; give one row for each event"),
    ({'user': np.zeros(2, 'M8[s]')}, "'user' holds dates, which are not ids"),
    ({'time': [1, -1]}, "'time', row 1: '-1' is not a time"),
    ({'time': [1.0, NAN]}, "'time', row 1: the time is missing"),
    ({'time': ['1970-01-01', 'soon']}, "'time', row 1: 'soon' is not a time"),
    ({'time': [0, 3 * 10**12]}, "'time', row 1: .*'data.time_unit'. to 'ms'"),
    ({'user': [], 'item': [], 'time': []}, 'events is empty'),
    ({'item': [True, False]}, "'item' holds True or False, which are not ids"),
    ({'item': [1, True]}, "'item' holds True or False, which are not ids"),
    ({'user': [[1]] * 2, 'users': [1, 2]}, "'user' holds lists"),
    ({}, 'needs at least 4 events, and the longest history has 1$'),
  ],
)
def test_events_that_cannot_be_used(changed, words):
  events = {k: v for k, v in {**GOOD, **changed}.items() if v is not None}
  with pytest.raises(ValueError, match=words):
    genrec_jax.fit(events, progress=False, steps=1)


@pytest.mark.parametrize(
  'more, words',
  [
    ({'model': 'bert'}, "model is 'bert'; those that recommend are hstu, sas"),
    ({'label': 'click'}, "label='click' is for models such as 'dcn', and"),
    ({'model': 'lr', 'user': 'u'}, "user='u' is for models such as 'hstu'"),
    ({'steps': 1, 'epochs': 1}, 'steps and epochs are both given'),
    ({'steps': 1, 'settings': {'train.steps': 2}}, 'steps= and settings'),
    ({'settings': {'model.dims': 2}}, "'model.dims' is not a .*'model.dim'"),
    ({'settings': {'model.dim': 'big'}}, 'must be of type int, as the default'),
    ({'settings': {'model': 'hstu'}}, "'model' is not a .*, but a section"),
    ({'settings': {'data': {'path': 'x'}}}, 'is set by the first argument'),
    ({'settings': ['model.dim']}, 'settings is a list, must be a mapping'),
    ({'model': 'hstu', 'time': None}, 'reads times, and time is None'),
    ({'settings': {'data.extras.stars': 'float'}}, 'read from files alone'),
    ({'epochs': 0}, 'epochs is 0, must be a whole number, 1 or more'),
    ({'steps': 2.5}, 'steps is 2.5, must be a whole number'),
    ({'seed': 'x'}, "seed is 'x', must be a whole number, 0 or more"),
    ({'model': 'SASRec'}, "model is 'SASRec'; .* did you mean 'sasrec'"),
    ({'model': ['hstu']}, r"model is \['hstu'\]; those that"),
    ({'user': 0}, 'user is 0, must be the name of a column'),
    ({'item': None}, 'item is None, must be the name of a column'),
    ({'model': 'lr', 'label': 3}, 'label is 3, must be the name'),
    ({'model': 'lr', 'features': 3}, 'features is 3, must be the name'),
    ({'user': 'usr'}, "no column 'usr' .* did you mean 'user'. Say what it is"),
    (
      {'settings': {'data.ids': 'str', 'data.id_type': 'int'}},
      "settings={'data.ids': 'str'} and settings={'data.id_type': 'int'} set",
    ),
    ({'workdir': ''}, "workdir is '', must be the path of a directory"),
    (
      {'settings': {'optimizer.learning_rate': NAN}},
      'is nan, must be a finite',
    ),
    ({'settings': {'model.dim': 0}}, 'model.dim is 0, must be at least 1'),
    ({'settings': {'model.max_len': 0}}, 'max_len is 0, must be at least 1'),
    (
      {'settings': {'eval.ks': (5, -1)}},
      r'eval.ks is \(5, -1\), must be at le',
    ),
    ({'seed': 2**32}, 'seed is 4294967296, must be below 2.32'),
    ({'workdir': __file__}, 'retrieval_test.py. is a file, not a directory'),
  ],
)
def test_arguments_that_cannot_be_used(more, words):
  with pytest.raises(ValueError, match=words):
    genrec_jax.fit(GOOD, progress=False, **more)


def test_paths_that_cannot_be_used(tmp_path):
  with pytest.raises(FileNotFoundError, match='no such file'):
    genrec_jax.fit(tmp_path / 'none.csv')
  (tmp_path / 'LOG.CSV').write_text('user;item;time\n1;2;3\n')
  with pytest.raises(ValueError, match="settings={'data.delimiter': ';'}"):
    genrec_jax.fit(tmp_path / 'LOG.CSV', settings={'data.delimiter': ','})
  with pytest.raises(
    ValueError, match="no column 'label'.*are user, item, tim"
  ):
    genrec_jax.fit(tmp_path / 'LOG.CSV', 'lr')
  (tmp_path / 'log.xlsx').touch()
  with pytest.raises(ValueError, match='not a table that can be read; those'):
    genrec_jax.fit(tmp_path / 'log.xlsx')
  with pytest.raises(FileNotFoundError, match='holds no run'):
    genrec_jax.load(tmp_path)
  (tmp_path / 'config.json').write_text('{"task": "mine", "parallel": {}}')
  message = "task='mine'; load opens those of retrieval and ranking$"
  with pytest.raises(ValueError, match=message):
    genrec_jax.load(tmp_path)


@pytest.mark.parametrize(
  'histories, more, words',
  [
    (['lamp'], {}, "history 0 is 'lamp', must be a list of items"),
    ([[101], 5], {}, 'history 1 is 5'),
    ([{101, 102}], {}, 'history 0 is {101, 102}, must be a list of items'),
    ({(101,), (102,)}, {}, 'histories is .*, must be a list of histories'),
    ([[101, None]], {}, r'history 0 holds \[101, None\]'),
    ([[1.5]], {}, "'history 0', row 0: 1.5 is not an id"),
    ([[True]], {}, r'history 0 holds \[True\], must be ids'),
    ([[b'\xff']], {}, 'history 0.*row 0: .* is neither a number nor text'),
    ([np.array([1j])], {}, 'history 0.*row 0: .* is neither a number'),
    (5, {}, 'histories is 5, must be a list of histories'),
    (np.array(5), {}, r'histories is array\(5\), must be'),
    ([[101]], {'k': 2.5}, 'k is 2.5, must be a whole number'),
    ([[101]], {'k': None}, 'k is None, must be a whole number'),
    ([[101]], {'k': 0}, 'k is 0, must be a whole number, 1 or more'),
    ([[101]], {'times': 5}, 'times is 5, must be a list'),
    ([[101]], {'times': [5]}, 'times 0 is 5, must be a list of times'),
    ([[101]], {'times': [[[5]]]}, r'times 0 holds \[\[5\]\], must be times'),
    ([[101]], {'request_time': 'soon'}, "row 0: 'soon' is not a time"),
    ({'ann': [101]}, {'times': [[1]]}, 'times must be one too'),
    ({'ann': [101]}, {'times': {'bob': [1]}}, "times has none for user 'ann'"),
  ],
)
def test_histories_that_cannot_be_used(run, histories, more, words):
  with pytest.raises(ValueError, match=words):
    run.recommend(histories, **more)


def test_more_items_than_there_are(run):
  [items] = run.recommend([[101, 102]], k=10**9)
  assert len(items) == len(run._predictor.items.corpus) - 2
  assert run.recommend([], k=2) == [] and run.recommend([[]]) == [[]]


def test_items_that_are_all_unknown_are_told_once(run, caplog):
  for _ in range(2):
    assert run.recommend([['lamp'], []]) == [[], []]
  [line] = [record.getMessage() for record in caplog.records]
  assert "none of the items, such as 'lamp'; its ids are whole numbers" in line


def test_warnings_and_no_progress(tmp_path, capsys, caplog, monkeypatch):
  def warn(*_):
    logging.getLogger('genrec_jax').warning('set %s=0', '--config.seed')
    print('a table')
    with progress.Progress(1) as shown:
      shown.update(1)
    raise ValueError('set --config.train.shuffle=false')

  monkeypatch.setattr(fitting, '_train_in', warn)
  with pytest.raises(ValueError, match="settings={'train.shuffle': False}"):
    fit(make_events(), tmp_path)
  lines = [record.getMessage() for record in caplog.records]
  assert lines == ["set settings={'seed': 0}"]
  told = capsys.readouterr()
  assert 'table' not in told.out and 'step' not in told.err


def damage(path, old: str, new: str) -> None:
  path.write_text(path.read_text().replace(old, new, 1))


@pytest.mark.parametrize(
  'change, words',
  [
    (lambda p: damage(p / 'config.json', '}', ''), 'config.json is damaged'),
    (lambda p: damage(p / 'config.json', '"model": {', '"model": 5, "m": {'),
     'config.json is damaged .model is 5, must be a section'),
    (lambda p: (p / 'report.json').write_text('{"a'), 'report.json is damaged'),
    (lambda p: (p / 'report.json').write_text('5'), 'it has no metrics'),
    (lambda p: shutil.rmtree(p / 'best'), 'holds no checkpoint'),
    (lambda p: next((p / 'best').glob('*/state/**/*_METADATA')).unlink(),
     'is damaged: .* is missing'),
    (lambda p: shutil.rmtree(p / 'items'), 'meta.json: no such file'),
  ],
)  # fmt: skip
def test_a_damaged_run_is_not_opened(run, tmp_path, change, words):
  workdir = run.save(tmp_path / 'kept')
  for seal in workdir.glob('.*.seal'):
    seal.unlink()  # as in earlier versions
  genrec_jax.load(workdir)
  change(workdir)
  with pytest.raises((ValueError, FileNotFoundError), match=words):
    genrec_jax.load(workdir)


def test_a_run_without_a_report_has_no_metrics(run, tmp_path):
  saved = run.save(tmp_path / 'kept')
  (saved / 'report.json').unlink()
  again = genrec_jax.load(saved)
  with pytest.raises(FileNotFoundError, match='the metrics are not known'):
    again.metrics  # noqa: B018
  assert repr(again).startswith('RetrievalRun(sasrec; ') and again._repr_html_()


def test_times_of_histories(run, monkeypatch):
  asked = []
  monkeypatch.setattr(
    run._predictor, 'recommend', lambda *args, **more: asked.append(more)
  )
  run.recommend([[101], []], times=[[np.datetime64(5, 's')], []])
  run.recommend([[101, 102]], times=[[3.5, 4]], request_time=9)
  assert [
    [own.seconds.tolist() for own in more['times']] for more in asked
  ] == [[[5], []], [[3, 4]]]
  assert asked[1]['times'][0].fraction.tolist() == [500_000_000, 0]
  assert asked[1]['request_time'] == 9


def test_a_model_that_reads_times_says_so(run, monkeypatch):
  monkeypatch.setitem(run.config.model, 'time_bias', True)
  with pytest.raises(ValueError, match='give those of the events as times='):
    run.recommend([[101]])
