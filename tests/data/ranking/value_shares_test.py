"""Shares of unseen and missing values against plain counts of the rows."""

import collections
import csv
import dataclasses
import io
import json
import logging

import numpy as np
import pytest

from genrec_jax.data.ranking import collation, datasets, formats, raw
from genrec_jax.data.ranking import value_shares as shares_lib
from genrec_jax.data.ranking.encoder import Encoder
from genrec_jax.data.ranking.value_tally import Tally
from genrec_jax.serve.input_watch import WINDOW, InputWatch
from tests.data.ranking.oracle_test import FEATURES, quiet, values, write

FEATURES = {**FEATURES, 'hashed': {}}
HASHED = {'column': 'user', 'vocabulary': 'hashed', 'hash_rows': 8}


def load(path, min_count=2, by='order', **more):
  return datasets.load(
    {
      'name': 'csv',
      'path': str(path),
      'features': {**FEATURES, 'hashed': HASHED},
      'min_count': min_count,
      'block_rows': 64,
      'split': {'by': by, 'valid_fraction': 0.2, 'test_fraction': 0.2},
      **more,
    },
    path.parent / f'cache-{by}-{min_count}',
    quiet,
  )


def read(path):
  return list(csv.DictReader(io.StringIO(path.read_text(), newline='')))


def count(rows, train, name, min_count):
  """(values, missing, unseen, the first unseen row) by going through them."""
  if name in ('price', 'age'):
    return len(rows), sum(not row[name] for row in rows), None, None
  if name == 'hashed':
    return len(rows), sum(not row['user'] for row in rows), None, None
  readers = ['tags', 'path'] if name in ('tags', 'path') else [name]
  known = collections.Counter(
    v for row in train for reader in readers for v in values(row, reader)
  )
  # An empty list is one missing value.
  lists = [values(row, name) or [''] for row in rows]
  unseen = [
    i for i, own in enumerate(lists) for v in own if v and known[v] < min_count
  ]
  missing = sum(not v for own in lists for v in own)
  return sum(map(len, lists)), missing, len(unseen), [*unseen, None][0]


@pytest.mark.parametrize('by', ['order', 'random'])
@pytest.mark.parametrize('min_count', [1, 3])
def test_counts_of_the_splits(tmp_path, by, min_count):
  path = tmp_path / 'log.csv'
  write(path, 3, 3000)
  ds = load(path, min_count, by, example_id='row')
  rows = read(path)
  numbers = {
    name: np.concatenate([block.example_id for block in split])
    for name, split in ds.splits.items()
  }
  train = [rows[i] for i in numbers['train']]
  assert list(ds.encoder.value_counts) == ['train', 'valid', 'test']
  for split, found in ds.encoder.value_counts.items():
    own = [rows[i] for i in numbers[split]]
    assert list(found) == [c.name for c in ds.encoder.schema.columns]
    for name, counts in found.items():
      *wanted, first = count(own, train, name, min_count)
      assert [counts.values, counts.missing, counts.unseen] == wanted
      if first is not None:
        line = numbers[split][first] + 2
        assert counts.example.startswith(f'{path}, line {line}, column')
      gap = next(i for i, row in enumerate(own) if not row[name.replace(
        'hashed', 'user')])  # fmt: skip
      assert f'{path}, line {numbers[split][gap] + 2}, ' in counts.gap
  # The fingerprint is that of data whose values nobody counted.
  bare = dataclasses.replace(ds.encoder, value_counts={})
  assert bare.fingerprint() == ds.encoder.fingerprint()
  bare.save(tmp_path / 'bare')
  assert Encoder.load(tmp_path / 'bare').value_counts == {}
  assert 'value_counts' not in (tmp_path / 'bare/encoder.json').read_text()
  again = load(path, min_count, by, example_id='row')
  assert again.encoder.value_counts == ds.encoder.value_counts


def test_counts_of_raw_rows(tmp_path):
  """Of files and of records with lists, in batches of any size."""
  write(tmp_path / 'train.csv', 0, 300)
  write(tmp_path / 'new.csv', 7, 90)
  encoder = load(tmp_path / 'train.csv', 1).encoder
  rows = read(tmp_path / 'train.csv')
  train = rows[:180]
  new = read(tmp_path / 'new.csv')
  new = [
    {**row, 'user': f'new{i % 3}' if i % 2 else row['user']}
    for i, row in enumerate(new)
  ]
  new[5]['path'] = 't1^other^t2'
  as_lists = {name: [] for name in ('tags', 'path')}
  records = [
    {n: row[n].split('^') if row[n] else [] for n in as_lists}
    | {n: float(row[n]) if row[n] else None for n in ('price', 'age', 'clicks')}
    | {'user': row['user'] or None}
    for row in new
  ]
  texts = {n: [row[n] for row in new] for n in encoder.schema.sources}
  found = []
  for chunk in (
    raw.from_records(records, encoder.schema.sources),
    raw.RawChunk(texts, len(new)),
  ):
    tally = Tally(encoder)
    for _ in collation.raw_batches(
      encoder, [chunk], batch_size=16, tally=tally
    ):
      pass
    assert tally.rows == 90
    found.append(tally.counts())
    for name, counts in found[-1].items():
      wanted = count(new, train, name, 1)[:3]
      assert (counts.values, counts.missing, counts.unseen) == wanted
  assert found[0]['path'] == found[1]['path']
  assert found[0]['user'].distinct >= 3
  assert found[0]['user'].example == "row 1, column 'user': 'new1'"
  chunks = formats.read_examples(encoder, tmp_path / 'new.csv')
  tally = Tally(encoder)
  list(collation.raw_batches(encoder, chunks, batch_size=64, tally=tally))
  assert 'new.csv, line ' in tally.counts()['age'].gap


@pytest.fixture(scope='module')
def shop(tmp_path_factory):
  """An encoder of 4,000 training rows; a tenth of its users come once."""
  path = tmp_path_factory.mktemp('shop') / 'shop.csv'
  rng = np.random.default_rng(0)
  lines = ['user,country,age,label']
  for row in range(5000):
    user = f'once{row}' if rng.random() < 0.1 else f'u{rng.integers(100)}'
    country = ['de', 'fr', ''][rng.integers(3)]
    lines.append(f'{user},{country},{rng.integers(80)},{row % 2}')
  path.write_text('\n'.join(lines) + '\n')
  cfg = {
    'name': 'csv',
    'path': str(path),
    'features': {'user': {}, 'country': {}, 'age': {'kind': 'numeric'}},
    'split': {'by': 'order', 'valid_fraction': 0.1, 'test_fraction': 0.1},
  }
  return datasets.load(cfg, path.parent / 'cache', quiet)


def test_what_training_and_validation_let_expect(shop):
  counts = shop.encoder.value_counts
  assert counts['train']['user'].unseen == 0
  expected = shares_lib.expect_shares
  from_train = expected(shop.encoder, {'train': counts['train']})
  # A tenth of new users is new: training rows tell without any unseen one.
  # Three deviations of 4,000 values more, .014.
  assert from_train['unseen', 'user'][0] == pytest.approx(0.114, abs=0.01)
  assert counts['valid']['user'].share('unseen') == pytest.approx(0.1, abs=0.05)
  assert from_train['missing', 'country'][0] == pytest.approx(0.356, abs=0.02)
  both = expected(shop.encoder, counts)
  own = counts['valid']['user']
  share = (own.unseen + 1) / (own.values + 4)
  share += 3 * (share * (1 - share) / (own.values + 5)) ** 0.5
  assert both['unseen', 'user'] == (pytest.approx(share), 'valid')
  # A split of few values says little, and nothing of what is all unseen there.
  few = {'valid': {'user': shares_lib.FeatureCounts(30, 0, 30)}}
  assert expected(shop.encoder, few)['unseen', 'user'] == (1.0, 'valid')
  assert expected(shop.encoder, {})['unseen', 'user'] == (0.25, '')
  assert shares_lib.check_splits(shop.encoder) == {
    'train': [], 'valid': [], 'test': [],
  }  # fmt: skip


@pytest.mark.parametrize('min_count', [1, 2, 4])
def test_training_lets_expect_what_new_rows_show(tmp_path, min_count):
  rng = np.random.default_rng(min_count)
  users = rng.zipf(1.3, 24_000) % 100_000
  lines = [f'{user},{i % 2}' for i, user in enumerate(users)]
  (tmp_path / 'log.csv').write_text('\n'.join(['user,label', *lines]) + '\n')
  encoder = datasets.load(
    {
      'name': 'csv',
      'path': str(tmp_path / 'log.csv'),
      'features': {'user': {}},
      'min_count': min_count,
      'split': {'by': 'order', 'valid_fraction': 0.0, 'test_fraction': 0.5},
    },
    tmp_path / 'cache',
    quiet,
  ).encoder
  known = {'train': encoder.value_counts['train']}
  share, source = shares_lib.expect_shares(encoder, known)['unseen', 'user']
  shown = encoder.value_counts['test']['user'].share('unseen')
  deviation = (shown * (1 - shown) / 12_000) ** 0.5
  # What is expected is three deviations above the mean.
  assert source == 'train'
  assert share == pytest.approx(shown + 3 * deviation, abs=4 * deviation)


def test_little_evidence_is_no_warning(shop):
  """Of half unseen values, 40 must be seen before one can be sure."""
  known = {'valid': {'user': shares_lib.FeatureCounts(4000, 0, 400)}}
  expected = shares_lib.expect_shares(shop.encoder, known)['unseen', 'user'][0]

  def is_told(count, total):
    counts = {'user': shares_lib.FeatureCounts(total, 0, count, count)}
    return bool(
      shares_lib.find_excesses(
        shop.encoder, 'new.csv', counts,
        shares_lib.expect_shares(shop.encoder, known),
      )
    )  # fmt: skip

  def nats(total):
    return total * (
      0.5 * np.log(0.5 / expected) + 0.5 * np.log(0.5 / (1 - expected))
    )

  totals = range(20, 80, 2)
  wanted = [nats(total) >= shares_lib.LEAST_EVIDENCE for total in totals]
  assert [is_told(total // 2, total) for total in totals] == wanted
  # By Chernoff, then, chance shows so many less than once in 1e8 looks.
  least = next(t for t, enough in zip(totals, wanted, strict=True) if enough)
  draws = np.random.default_rng(0).binomial(least, expected, 1_000_000)
  assert draws.max() < least / 2


def told(encoder, users, known=None, **more):
  """Texts of the excesses of some users in one chunk."""
  columns = {
    'user': list(users),
    'country': ['de'] * len(users),
    'age': ['7'] * len(users),
    **more,
  }
  chunk = raw.RawChunk(columns, len(users))
  tally = Tally(encoder)
  list(collation.raw_batches(encoder, [chunk], batch_size=1000, tally=tally))
  known = encoder.value_counts if known is None else known
  expected = shares_lib.expect_shares(encoder, known)
  return [
    excess.text
    for excess in shares_lib.find_excesses(
      encoder, 'new.csv', tally.counts(), expected
    )
  ]


def test_far_more_is_said_with_its_cause(shop):
  encoder = shop.encoder
  (text,) = told(encoder, [f'user_{i % 40}' for i in range(100)])
  share = shares_lib.expect_shares(encoder, encoder.value_counts)
  share = shares_lib.format_share(share['unseen', 'user'][0])
  assert text == (
    "new.csv: 100% of the values of 'user' are unseen (100 of 100), "
    f'at most {share} are expected from the valid split. One is at '
    "row 0, column 'user': 'user_0'; training knows values such as "
    f'{encoder.vocabularies["user"].values[0]!r}. Are they written as in '
    'training, and is it the right file?'
  )
  (text,) = told(encoder, ['u1'] * 100, age=[''] * 100)
  assert "100% of the values of 'age' are missing (100 of 100)" in text
  assert "One is at row 0, column 'age'. Is the column filled" in text
  # A vocabulary of two values: one that is neither is enough.
  (text,) = told(encoder, ['u1'] * 100, country=['DE'] * 100)
  assert "'country' are unseen" in text and "'DE'" in text


def test_what_may_happen_by_chance_or_by_one_user_is_not_said(shop):
  encoder = shop.encoder
  assert not told(encoder, ['nobody'])
  assert not told(encoder, ['nobody'] * 1000)  # candidates for a new user
  assert not told(encoder, ['a', 'b', 'c'])
  some = [f'n{i}' if i % 7 == 0 else 'u1' for i in range(1000)]
  assert not told(encoder, some)  # 14 % instead of 10 %
  assert told(encoder, [f'n{i}' if i % 2 else 'u1' for i in range(1000)])
  # Nothing to compare with: above one half.
  assert not told(encoder, some, {})
  assert not told(encoder, [f'n{i}' if i % 2 else 'u1' for i in range(999)], {})
  (text,) = told(encoder, [f'n{i}' if i % 4 else 'u1' for i in range(1000)], {})
  assert 'how many were in training is not known' in text


def test_the_watch_warns_once_and_forgets_what_was_good(shop, caplog):
  encoder = shop.encoder
  watch = InputWatch(encoder)

  def give(users):
    chunk = raw.RawChunk(
      {'user': users, 'country': [''] * len(users), 'age': ['1'] * len(users)},
      len(users),
    )
    for _ in collation.raw_batches(encoder, [chunk], batch_size=9, tally=watch):
      pass

  give(['nobody'])
  give([f'u{i % 100}' for i in range(20 * WINDOW)])
  said = [
    r.getMessage() for r in caplog.records if 'to be scored' in r.msg % r.args
  ]
  assert len(said) == 1 and "'country' are missing" in said[0]
  caplog.clear()
  for i in range(2 * WINDOW):
    give([f'user_{i}'])
  (record,) = caplog.records
  assert record.levelno == logging.WARNING
  assert "of the values of 'user' are unseen" in record.getMessage()
  counts = watch.counts()['user']
  assert (counts.values, counts.unseen) == (22 * WINDOW + 1, 2 * WINDOW + 1)
  assert "'nobody'" in counts.example


def test_values_that_repeat_regularly_are_told_apart(shop):
  users = [f'new{i % 16}' for i in range(1024)]
  assert told(shop.encoder, users)


def test_a_split_by_a_column_has_no_value_in_common(tmp_path, caplog):
  path = tmp_path / 'x.csv'
  lines = [f'u{i % 200},{i % 3},{i % 2}' for i in range(4000)]
  path.write_text('\n'.join(['user,shop,label', *lines]) + '\n')
  split = {'by': 'group', 'column': 'user', 'valid_fraction': 0.2}
  cfg = {'name': 'csv', 'path': str(path), 'features': {'user': {}, 'shop': {}}}
  data = datasets.load({**cfg, 'split': split}, tmp_path / 'c', quiet)
  assert data.encoder.value_counts['valid']['user'].unseen
  data.tell_values(quiet)
  assert not caplog.messages and not any(data.find_excesses().values())


def test_lines_are_short(shop):
  line = shares_lib.describe_part('test', shop.encoder.value_counts['test'])
  assert line.startswith('test: unseen: user ')
  assert '; missing: country 3' in line
  many = {f'f{i}': shares_lib.FeatureCounts(10, 10 - i) for i in range(9)}
  assert shares_lib.describe_part('x', many) == (
    'x: missing: f0 100%, f1 90.0%, f2 80.0%, f3 70.0%, f4 60.0%, and 4 more'
  )
  assert not shares_lib.describe_part('x', {'a': shares_lib.FeatureCounts(3)})


def test_counts_of_another_version_are_read(shop, tmp_path):
  """Further keys are left alone; what makes no sense is a damaged file."""
  shop.encoder.save(tmp_path)
  path = tmp_path / 'encoder.json'
  meta = json.loads(path.read_text())
  meta['value_counts']['valid']['user']['of a later version'] = 1
  path.write_text(json.dumps(meta))
  assert Encoder.load(tmp_path).value_counts == shop.encoder.value_counts
  meta['value_counts']['valid'] = 7
  path.write_text(json.dumps(meta))
  with pytest.raises(ValueError, match=r'encoder.json is damaged'):
    Encoder.load(tmp_path)


def test_empty_histories_are_told_once_by_rows(tmp_path):
  own = {'history': 'past', 'max_len': 8}
  features = {
    'user': {},
    'seen': {'kind': 'sequence', 'table': 'user', **own},
    'ages': {'kind': 'numeric_sequence', **own},
  }
  full, empty = '1,u,a^b^c,3^2^1\n0,v,b,1\n', '1,u,,\n'
  for name, text in (
    ('train', full * 50 + empty), ('valid', full * 50 + empty),
    ('test', full * 10 + empty * 60),
  ):  # fmt: skip
    (tmp_path / f'{name}.csv').write_text(f'label,user,seen,ages\n{text}')
  data = datasets.load(
    {'name': 'csv', 'path': str(tmp_path), 'features': features},
    tmp_path / 'cache',
    quiet,
  )
  counts = data.encoder.value_counts
  for feature in ('seen', 'ages'):
    assert (counts['test'][feature].lists, counts['test'][feature].empty) == (
      80, 60,
    )  # fmt: skip
  assert counts['test']['user'].lists is None
  assert shares_lib.from_json(shares_lib.to_json(counts)) == counts
  found = data.find_excesses()
  assert not found['valid']
  assert [(x.feature, x.kind) for x in found['test']] == [
    ('seen', 'missing'), ('ages', 'missing'),
  ]  # fmt: skip
  text, other = (x.text for x in found['test'])
  assert other == ''
  assert text.startswith(
    "test split: 60 of 80 rows (75.0%) have no event in history 'past', at "
    'most '
  )
  assert "test.csv, line 22, column 'seen'. A model predicts such" in text
  assert "('seen', 'ages')" in text
  # What an earlier version has counted says nothing of lists.
  old = {
    part: {
      name: dataclasses.replace(own, lists=None, empty=None, empty_at='')
      for name, own in own_features.items()
    }
    for part, own_features in counts.items()
  }
  expected = shares_lib.expect_shares(data.encoder, old)
  (first, _) = shares_lib.find_excesses(
    data.encoder, 'x', counts['test'], expected
  )
  assert '(75.0%)' in first.text and 'in training is not known' in first.text
