"""What the head of a report says of data, split and protocol."""

import pytest

from genrec_jax import config as config_lib
from genrec_jax.report.protocol import (
  describe_protocol,
  describe_size,
  name_data,
)


@pytest.mark.parametrize(
  'name, path, workdir, expected',
  [
    ('csv', '/x/clicks.csv', '', 'clicks.csv'),
    ('parquet', 's3://b/logs/', '', 'logs'),
    ('csv', 'https://h/a.csv?sig=1', '', 'a.csv'),
    ('csv', '', '', 'csv'),
    ('ml1m', '/x/ml-1m', '', 'ml1m'),
    ('histories', '/w/data/events', '/w', 'data in memory'),
    ('histories', '/v/data/events', '/w', 'events'),
  ],
)
def test_data_are_called_by_their_file(name, path, workdir, expected):
  assert name_data({'data': {'name': name, 'path': path}}, workdir) == expected


def retrieval(**split):
  config = config_lib.retrieval()
  config.split.update(split)
  return ' '.join(describe_protocol(config.to_dict()))


def test_splits_of_events_in_words():
  assert 'one before it validates' in retrieval()
  assert 'validates' not in retrieval(holdout=1)
  stream = retrieval(name='stream')
  assert 'last 10%' in stream and '5% before' in stream
  times = retrieval(name='global_time')
  assert 'Events after the first 90% in time test, earlier ones' in times
  assert "each user's last event of a period" in times
  dates = retrieval(name='global_time', test_from=1_700_032_760.0)
  assert '2023-11-15 07:19:20 UTC' in dates and '1700032760' not in dates
  assert 'items that the model reads are never recommended' in times


def ranking(**changes):
  config = config_lib.ranking()
  for key, value in changes.items():
    config_lib.apply_override(config, f'data.{key.replace("__", ".")}={value}')
  return ' '.join(describe_protocol(config.to_dict()))


def test_splits_of_rows_in_words():
  assert ranking().startswith('The last rows test (10%)')
  assert 'by a draw each' in ranking(split__by='random')
  files = ranking(files__test='x/day_9.csv', files__valid='day_8.csv')
  assert files == 'day_9.csv tests and day_8.csv validates.'
  assert 'The last rows' in ranking(files__test='day_9.csv')


@pytest.mark.parametrize('config', [{}, {'split': 3}, {'data': {'split': {}}}])
def test_unknown_protocols_are_left_out(config):
  assert describe_protocol(config) == [] and name_data(config) in ('', 'None')


@pytest.mark.parametrize(
  'splits, text',
  [
    ({}, ''),
    ({'test': {}}, ''),
    ({'test': {'examples': 1200}}, '1,200 test examples'),
    ({'test': {'examples': 9, 'users': 9}}, '9 test users'),
    ({'test': {'examples': 9, 'users': 4}}, '9 targets of 4 test users'),
  ],
)
def test_sizes(splits, text):
  report = {'metrics': {'test': {'mrr': 0.1}}, 'splits': splits}
  assert describe_size(report) == text
  report = {'metrics': {'valid': {'mrr': 0.1}}, 'splits': {
    'train': {'examples': 99}, 'valid': {'examples': 3}
  }}  # fmt: skip
  assert describe_size(report) == '3 validation examples'
