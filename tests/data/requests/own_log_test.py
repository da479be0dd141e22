"""The reader of a log of one's own against a plain one, in both formats."""

import dataclasses
import functools
import random

import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax.config.request_sets import LogOptions
from genrec_jax.data.ranking import raw
from genrec_jax.data.requests import datasets, own_log, prepared
from tests.data.requests import plain_log
from tests.data.requests import plain_requests as plain

OWN = dict(user='user_id', time='at', time_unit='ms')
CLICK = dict(OWN, labels=('click',), actions=('click',))
OPTIONS = {
  'usual': LogOptions(**CLICK),
  'features': LogOptions(
    **OWN,
    labels=('liked: stars >= 4', 'buy: event == buy'),
    actions=('click', 'liked: stars >= 4', 'event == buy'),
    regression=('seen',),
    features=('genre', 'size'),
    candidate_features=('kept',),
    watch_time='secs',
    weight='weight',
    candidate_if='stars >= 0',  # others have no label
    min_count=3,
    history='order',
    candidates=3,
    pause_s=0,
  ),
  'tables': LogOptions(
    **CLICK,
    items='items',
    items_id='sku',
    item_features=('year', 'maker'),
    users='users',
    user_features=('town',),
    unlisted='missing',
    asked_at='first_candidate',
    min_history=2,
  ),
  'requests': LogOptions(
    **CLICK, request='page', valid_from='', test_from='.7',
    request_features=('device',),
  ),
  'requests_order': LogOptions(
    **CLICK, request='page', history='order', step_s=86_400,
  ),
  'shown_alone': LogOptions(
    **CLICK, event_if='click', candidate_if='shown', min_history=2,
  ),
  'events_alone': LogOptions(
    **CLICK, candidate_if='event == view', candidates=4, pause_s=60,
    weight='weight', request_features=('device', 'size'),
  ),
  'steps': LogOptions(
    **CLICK, step_s=3_600, duplicates='drop', candidates=1,
    valid_from='2023-11-17', test_from=str(plain_log.START + 400_000),
  ),
  'no_times': LogOptions(
    user='user_id', time='', labels=('click',), actions=('click',),
  ),
}  # fmt: skip


def make_tables(seed):
  """Some items and users are missing."""
  draw = random.Random(seed)
  items = [
    {'sku': str(i), 'year': draw.choice(['1999', '2004', '']),
     'maker': draw.choice(['acme', 'x y'])}
    for i in range(30) if i != 3
  ]  # fmt: skip
  users = [{'user_id': f'u{i}', 'town': f'{i % 3}00'} for i in range(6)]
  draw.shuffle(items)
  return items, users


def write(folder, seed, kind, options):
  """Writes two parts and the tables; (path, options with paths)."""
  folder.mkdir(parents=True)
  make = plain_log.write_csv if kind == 'csv' else plain_log.write_parquet
  rows = plain_log.make_rows(seed)
  items, users = make_tables(seed)
  (folder / 'log').mkdir()
  half = len(rows) // 2
  for number, some in enumerate([rows[:half], rows[half:]]):
    make(folder / 'log' / f'part-{number}.{kind}', plain_log.NAMES, some)
  make(folder / f'items.{kind}', ['sku', 'year', 'maker'], items)
  make(folder / f'users.{kind}', ['user_id', 'town'], users)
  paths = {
    key: str(folder / f'{key}.{kind}')
    for key in ('items', 'users')
    if getattr(options, key)
  }
  options = dataclasses.replace(options, **paths)
  return folder / 'log', options, (rows, items, users)


def load(path, options, kind='csv'):
  return datasets.DATASETS[kind](path, options)


def with_times(dataset):
  """The data with zeros for times, where it has none."""
  if dataset.events.time is not None:
    return dataset
  count = len(dataset.events)
  return dataclasses.replace(
    dataset,
    events=dataclasses.replace(dataset.events, time=np.zeros(count, np.int64)),
    splits={
      name: dataclasses.replace(x, time=np.zeros(len(x), np.int64))
      for name, x in dataset.splits.items()
    },
  )


@pytest.mark.parametrize('name', OPTIONS)
@pytest.mark.parametrize('chunk', [5, 1 << 10])
def test_requests_are_those_of_the_plain_reader(
  tmp_path, monkeypatch, name, chunk
):
  monkeypatch.setattr(raw, 'CHUNK_ROWS', chunk)
  for seed in (1, 2):
    path, options, tables = write(
      tmp_path / str(seed), seed, 'csv', OPTIONS[name]
    )
    got = load(path, options)
    plain.check_shapes(with_times(got))
    expected = plain_log.describe(*tables[:1], options, *tables[1:])
    for split, requests in expected.items():
      if split == 'valid' and not options.valid_from:
        assert split not in got.splits
        continue
      made, part = plain.expand(with_times(got), split), got.splits[split]
      weight = part.weight
      weight = np.ones(part.candidates) if weight is None else weight
      pieces = np.split(weight, part.offsets[1:-1])
      for one, some in zip(made, pieces, strict=True):
        one['weights'] = some.tolist()
      if not options.time:
        for one in requests:
          one['time'] = 0
          for event in one['history']:
            event['time'] = 0
      assert requests and made == requests
    assert [x for x, _ in got.spec.actions] == [
      plain_log.name_of(x) for x in options.actions
    ]
    assert [(x.name, x.kind) for x in got.spec.labels] == [
      *((plain_log.name_of(x), 'binary') for x in options.labels),
      *((x, 'regression') for x in options.regression),
    ]


@pytest.mark.parametrize('name', OPTIONS)
def test_both_formats_give_the_same_data(tmp_path, name):
  found = []
  for kind in ('csv', 'parquet'):
    path, options, _ = write(tmp_path / kind, 1, kind, OPTIONS[name])
    found.append(load(path, options, kind).fingerprint())
  assert found[0] == found[1]


def test_a_history_has_nothing_of_later_rows(tmp_path):
  """Whatever comes after a request does not change it."""
  path, options, (rows, *_) = write(tmp_path / 'a', 1, 'csv', OPTIONS['usual'])
  border = sorted(int(x['at']) for x in rows)[len(rows) // 2]
  options = dataclasses.replace(
    options, valid_from='', test_from=str(border // 1000)
  )
  whole = load(path, options)
  changed = [dict(x) for x in rows]
  for row in changed:
    if int(row['at']) >= border // 1000 * 1000:
      row['click'], row['item'] = str(1 - int(row['click'])), '99'
  other = tmp_path / 'other.csv'
  plain_log.write_csv(other, plain_log.NAMES, changed)
  assert plain.expand(load(other, options), 'train') == plain.expand(
    whole, 'train'
  )


def test_times_are_read_in_their_unit_and_as_dates(tmp_path):
  rows = plain_log.make_rows(4)
  options = LogOptions(**CLICK)
  plain_log.write_csv(tmp_path / 'ms.csv', plain_log.NAMES, rows)
  expected = load(tmp_path / 'ms.csv', options).fingerprint()
  for unit, factor in (('us', 1000), ('ns', 1_000_000)):
    scaled = [x | {'at': str(int(x['at']) * factor)} for x in rows]
    plain_log.write_csv(tmp_path / f'{unit}.csv', plain_log.NAMES, scaled)
    found = load(
      tmp_path / f'{unit}.csv', dataclasses.replace(options, time_unit=unit)
    )
    assert found.fingerprint() == expected
  dates = [
    x | {'at': str(np.datetime64(int(x['at']), 'ms')) + 'Z'} for x in rows
  ]
  plain_log.write_csv(tmp_path / 'dates.csv', plain_log.NAMES, dates)
  assert load(tmp_path / 'dates.csv', options).fingerprint() == expected


def test_the_layout_of_a_csv_file_is_found(tmp_path):
  """Semicolons, decimal commas and no header say the same."""
  rows, options = plain_log.make_rows(5), OPTIONS['features']
  plain_log.write_csv(tmp_path / 'log.csv', plain_log.NAMES, rows)
  expected = load(tmp_path / 'log.csv', options).fingerprint()
  lines = (tmp_path / 'log.csv').read_text().splitlines()
  german = [x.replace(',', ';').replace('.', ',') for x in lines]
  (tmp_path / 'german.csv').write_text('\n'.join(german))
  found = load(
    tmp_path / 'german.csv', dataclasses.replace(options, decimal=',')
  )
  assert found.fingerprint() == expected
  (tmp_path / 'bare.csv').write_text('\n'.join(lines[1:]))
  at = {name: str(i) for i, name in enumerate(plain_log.NAMES)}
  bare = LogOptions(
    user=at['user_id'], item=at['item'], time=at['at'], time_unit='ms',
    labels=(f'click: {at["click"]}',), actions=(f'click: {at["click"]}',),
  )  # fmt: skip
  named = LogOptions(**CLICK)
  one = load(tmp_path / 'bare.csv', bare)
  other = load(tmp_path / 'log.csv', named)
  for name, array in one.arrays().items():
    name = name.replace(f'.{at["item"]}', '.item')
    name = name.replace(f'.{at["user_id"]}', '.user_id')
    np.testing.assert_array_equal(array, other.arrays()[name])


def test_what_was_made_is_found_until_a_file_changes(tmp_path):
  path, _, _ = write(tmp_path / 'a', 1, 'csv', OPTIONS['usual'])
  items = tmp_path / 'a' / 'items.csv'
  config = config_lib.load(
    'own_requests',
    [
      f'data.path={path}', 'data.log.user=user_id', 'data.log.time=at',
      'data.log.time_unit=ms', 'data.log.labels=click',
      f'data.log.items={items}', 'data.log.items_id=sku',
      'data.log.item_features=maker', 'data.log.unlisted=missing',
    ],
  )  # fmt: skip
  told = []
  load_it = functools.partial(prepared.load, config.data, tmp_path, told.append)
  one, other = load_it(), load_it()
  assert len(told) == 1 and one.fingerprint() == other.fingerprint()
  items.write_text(items.read_text() + '77,,new\n')
  load_it()
  assert len(told) == 3 and 'has 1 more of csv (' in told[2]
  assert prepared.find_time_unit(config.data) == 'ms'


def test_a_border_may_lie_within_a_second(tmp_path):
  """The row of its very moment is of the later split."""
  lines = ['user,item,time,label']
  for tenth in range(40):
    lines.append(f'a,{tenth},{1000 + tenth / 10:.1f},1')
  (tmp_path / 'log.csv').write_text('\n'.join(lines))
  for border in ('1003.2', '1970-01-01T00:16:43.2'):
    data = own_log.load(
      tmp_path / 'log.csv',
      LogOptions(candidates=1, valid_from='', test_from=border),
    )
    counts = [data.splits[x].candidates for x in ('train', 'test')]
    assert counts == [31, 8]  # the first one is history alone


def test_words_are_flags_and_7_0_is_7(tmp_path):
  lines = ['user,item,time,label']
  for user in ('1', '2.0'):
    for time in range(1, 9):
      lines.append(f'{user},{time}.0,{time * 100},{"Yes" if time > 4 else "f"}')
  (tmp_path / 'log.csv').write_text('\n'.join(lines))
  options = LogOptions(candidates=1, valid_from='0.7', test_from='0.8')
  data = own_log.load(tmp_path / 'log.csv', options)
  assert data.user_ids.tolist() == [1, 2]
  assert data.vocabs['item'].ids.tolist() == [1, 2, 3, 4, 5]
  assert data.splits['train'].labels['label'].tolist() == [0, 0, 0, 1] * 2
