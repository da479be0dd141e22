"""The layouts of the histories to predict for."""

import json
import logging

import numpy as np
import pyarrow as pa
from pyarrow import parquet as pq

from genrec_jax import sealed
from genrec_jax.data.readers import Events
from genrec_jax.data.vocab import Vocab
from genrec_jax.serve import predict
from genrec_jax.serve.inputs import SkippedEvents
from genrec_jax.serve.predictor import Predictor
from tests.serve.predictions import T, by_user, oracle, write_histories

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
  moments = [t for _, _, t in shuffled]
  table = {
    'who': [int(u) for u, _, _ in shuffled],
    'what': [int(i) for _, i, _ in shuffled],
    'time': moments,
  }
  pq.write_table(pa.table(table), tmp_path / 'log.parquet')
  # All of them in one second.
  table['time'] = pa.array([t % T for t in moments], pa.timestamp('ms'))
  pq.write_table(pa.table(table), tmp_path / 'burst.parquet')
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
    *(
      (tmp_path / name, {'columns.user': 'who', 'columns.item': 'what'})
      for name in ('log.parquet', 'burst.parquet')
    ),
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
    summary = predict.write_predictions(config, workdir)
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
  sealed.write_text(directory / 'config.json', json.dumps(saved))
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
  summary = predict.write_predictions(config, workdir)
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
  sealed.write_text(directory / 'config.json', json.dumps(saved))
  assert predict.write_predictions(config, workdir)['users'] == 1
  assert "no column 'rating'; every event counts as liked" in caplog.text


def test_ids_do_not_command_a_terminal(caplog):
  skipped, known = SkippedEvents(), Vocab(np.array(['', 'a']))
  hostile = '\x1b]0;title\x07\x1b[2J'
  events = Events(np.array([f'u{hostile}']), np.array([f'i{hostile}']))
  list(skipped.count_skipped(iter([events]), known, None))
  skipped.settle_users(known)
  with caplog.at_level(logging.INFO):
    skipped.log_skipped('in.csv')
  assert len(caplog.messages) == 2
  for line, id_ in zip(caplog.messages, ('i', 'u'), strict=True):
    assert f'{id_}\\x1b]0;title\\x07\\x1b[2J' in line and line.isprintable()
