"""Splits by time and by group, against plain statements."""

import doctest
import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from genrec_jax.data.ranking import datasets, mixing, raw, split_rules
from genrec_jax.data.ranking.annotations import Annotations, read_moments
from genrec_jax.data.ranking.split_rules import SplitRule, TrainingCut


def test_the_examples_of_the_pages_hold():
  for module in (split_rules, mixing):
    assert doctest.testmod(module).failed == 0


def cut(rule, columns, lines=None, **options):
  """The split of each row, by chunks of seven rows."""
  size = len(next(iter(columns.values())))

  def read(names):
    for a in range(0, size, 7):
      chosen = {n: columns[n][a : a + 7] for n in names}
      yield raw.RawChunk(chosen, min(7, size - a))

  training_cut = TrainingCut(rule, ['label'], **options)
  training_cut.measure(read, 'x.csv', [].append if lines is None else lines)
  starts = range(0, size, 7)
  chunks = zip(starts, read(training_cut.columns), strict=True)
  return np.concatenate([training_cut.assign(c, a) for a, c in chunks])


def state_cut_by_time(times, valid, test):
  """The same said plainly: the latest rows, whole times at once."""
  places, end = np.zeros(len(times), int), len(times)
  for place, share in ((2, test), (1, valid)):
    count = round(len(times) * share)
    if count:
      first = np.sort(times)[max(end - count, 0)]
      places[(times >= first) & (places == 0)] = place
      end = int((times < first).sum())
  return places


@pytest.mark.parametrize('most', [1 << 20, 16])
@pytest.mark.parametrize('many', [5, 40, 10**15])
@pytest.mark.parametrize('kind', ['texts', 'ints', 'floats'])
def test_the_latest_rows_are_held_out(monkeypatch, most, many, kind):
  monkeypatch.setattr(split_rules, 'MOST_KEYS', most)  # read again below 16
  times = np.random.default_rng(many).integers(0, many, 200)
  if kind == 'floats':
    times = times / 4 if many < 10**15 else times // 10**6 + times % 4 / 4
  column = raw.NumberColumn(times)
  if kind == 'texts':
    column = [str(t) for t in times]

  class Sliced:
    def __getitem__(self, at):
      if kind == 'texts':
        return column[at]
      return raw.NumberColumn(times[at])

    def __len__(self):
      return len(times)

  rule = SplitRule('time', 0.2, 0.1, column='when')
  lines = []
  got = cut(rule, {'when': Sliced(), 'label': Sliced()}, lines.append)
  np.testing.assert_array_equal(got, state_cut_by_time(times, 0.2, 0.1))
  assert set(got) == {0, 1, 2}
  assert 'valid from ' in lines[0] and 'test from ' in lines[0]


def test_negatives_are_dropped_from_training_by_a_draw_of_their_own():
  labels = ['1' if i % 3 == 0 else '0' for i in range(2_000)]
  some = Annotations(negatives_kept=0.25)
  rule = SplitRule('random', 0.2, 0.1)
  whole = cut(rule, {'label': labels})
  assert (cut(None, {'label': labels}) == 0).all()
  for got, of_rule in (
    (cut(rule, {'label': labels}, annotations=some), whole),
    (cut(None, {'label': labels}, annotations=some), 0 * whole),
  ):
    dropped = got == -1
    np.testing.assert_array_equal(got[~dropped], of_rule[~dropped])
    negative = (np.array(labels) == '0') & (of_rule == 0)
    assert not (dropped & ~negative).any()
    assert dropped.sum() / negative.sum() == pytest.approx(0.75, abs=0.05)


def test_moments_are_in_the_order_of_times_with_their_fractions():
  words = [
    '5', '5.5', '6', '1970-01-01T00:00:06.000001', '1970-01-01 00:00:07',
    '1700000000', '1700000000.000002', '4398046511103', '4398046511104',
    '1700000000123456789', '1700000000123456790',
  ]  # fmt: skip
  keys = np.concatenate(
    [read_moments(raw.RawChunk({'t': [w]}, 1), 't') for w in words]
  )
  assert (np.diff(keys.astype(object)) > 0).all()
  together = read_moments(raw.RawChunk({'t': words}, len(words)), 't')
  np.testing.assert_array_equal(keys, together)
  never = read_moments(raw.RawChunk({'t': [f'{2**63 - 1}']}, 1), 't')
  assert never[0] < 2**64 - 1  # which is the end of all times
  floats = raw.NumberColumn(np.array([5.0, 5.5]))
  numbers = read_moments(raw.RawChunk({'t': floats}, 2), 't')
  assert numbers.tolist() == keys[:2].tolist()


def test_one_time_alone_is_refused():
  rule = SplitRule('time', 0.2, 0.1, column='when')
  with pytest.raises(ValueError, match="by='time' leaves.*1700000000 .2023-11"):
    cut(rule, {'when': ['1700000000'] * 30, 'label': ['0'] * 30})


def test_all_rows_of_a_value_are_in_one_split():
  users = [f'u{i % 90}' for i in range(900)]
  rule = SplitRule('group', 0.2, 0.1, seed=3, column='user')
  got = cut(rule, {'user': users, 'label': users})
  by_user = {}
  for user, place in zip(users, got, strict=True):
    by_user.setdefault(user, set()).add(int(place))
  assert all(len(places) == 1 for places in by_user.values())
  share = np.bincount(got, minlength=3) / 900
  np.testing.assert_allclose(share, [0.7, 0.2, 0.1], atol=0.1)
  # As numbers, in another order and with another seed.
  numbers = raw.NumberColumn(np.array([4, 4, 5]))
  floats = raw.NumberColumn(np.array([4.0, 4.0, 5.0]))
  for rows in (numbers, floats, ['4', '4', '5']):
    chunk = raw.RawChunk({'user': rows}, 3)
    draws = split_rules._draw_by_value(3, chunk, 'user')
    assert draws.tolist() == [*draws[:1], *draws[:1], draws[2]]
    assert draws[0] == split_rules._draw_by_value(
      3, raw.RawChunk({'user': ['4']}, 1), 'user'
    )
  assert (cut(SplitRule('group', 0.2, 0.1, 4, 'user'), {'user': users,
          'label': users}) != got).any()  # fmt: skip


@pytest.mark.parametrize(
  'changes, words',
  [
    ({'by': 'hour'}, "by must be 'order', 'time', 'random' or 'group', not"),
    ({'by': 'time'}, "by='time' reads a column that is not named; set data.ti"),
    ({'by': 'group'}, 'set data.split.column or data.group'),
    ({'by': 'group', 'column': 'usr'}, "no column 'usr' .data.split.column."),
    (
      {'column': 'user'},
      "column='user' is for data.split.by='group",
    ),
  ],
)
def test_what_makes_no_rule_is_refused(changes, words):
  cfg = {'split': {'test_fraction': 0.5, **changes}}
  with pytest.raises(ValueError, match=words):
    split_rules.build_rule(cfg, ['label', 'user'])


ROWS = [
  (i % 2, f'u{i % 20}', 1_700_000_000 + i * 37 % 200 / 8) for i in range(200)
]


def write(path, suffix):
  if suffix == 'csv':
    lines = ['label,user,when', *(','.join(map(str, r)) for r in ROWS)]
    path.write_text('\n'.join(lines) + '\n')
  else:
    label, user, when = zip(*ROWS, strict=True)
    moments = (np.array(when) * 1000).astype('datetime64[ms]')
    pq.write_table(pa.table(dict(label=label, user=user, when=moments)), path)


def load(path, tmp_path, **cfg):
  cfg = {
    'name': path.suffix[1:],
    'path': str(path),
    'features': {'user': 'categorical'},
    'time': 'when',
    'example_id': 'row',
    **cfg,
  }
  data = datasets.load(cfg, tmp_path / 'cache', lambda line: None)
  return {
    name: split.rows(0, len(split)) for name, split in data.splits.items()
  }


@pytest.mark.parametrize('suffix', ['csv', 'parquet'])
@pytest.mark.parametrize('by', ['time', 'group'])
def test_prepared_splits_are_those_of_the_rule(tmp_path, suffix, by):
  path = tmp_path / f'x.{suffix}'
  write(path, suffix)
  split = {'by': by, 'valid_fraction': 0.2, 'test_fraction': 0.2}
  if by == 'group':
    split['column'] = 'user'
  splits = load(path, tmp_path, split=split)
  ids = {name: rows.example_id.tolist() for name, rows in splits.items()}
  assert sorted(itertools.chain(*ids.values())) == list(range(200))
  if by == 'time':
    when = {name: [ROWS[i][2] for i in part] for name, part in ids.items()}
    assert max(when['train']) < min(when['valid'])
    assert max(when['valid']) < min(when['test'])
    assert len(ids['test']) == 40  # eighths of a second were told apart
  else:
    users = [{ROWS[i][1] for i in part} for part in ids.values()]
    assert sum(map(len, users)) == 20
  # The vocabulary is that of the training rows alone.
  assert splits['train'].ids.min() == 1


def test_a_missing_user_is_refused_with_its_line(tmp_path):
  (tmp_path / 'x.csv').write_text('label,user,when\n0,a,1\n1,,2\n')
  split = {'by': 'group', 'test_fraction': 0.5, 'column': 'user'}
  with pytest.raises(ValueError, match="line 3, column 'user': '' is not a gr"):
    load(tmp_path / 'x.csv', tmp_path, split=split)
