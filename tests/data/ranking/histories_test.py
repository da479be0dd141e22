"""Histories: every input against a plain encoder, and what is refused."""

import collections
import itertools
import math
import pathlib
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_collections import ConfigDict

from genrec_jax import config as config_lib
from genrec_jax.data.ranking import (
  batches,
  blocks,
  collation,
  datasets,
  growing,
  rows,
  schema,
)
from genrec_jax.data.ranking.encoder import Encoder
from genrec_jax.data.ranking.raw import from_columns, from_records
from genrec_jax.evaluators import importance
from genrec_jax.library import columns as columns_lib
from genrec_jax.library.examples import write_examples

BATCH = 8
EVENTS = ('films', 'places', 'ages')  # columns of an event


def make_features(max_len=0, keep='', transform='as_is', fill=''):
  """Options of the features; what is shared by columns of the history."""
  own = {'history': 'visits', 'max_len': max_len}
  own |= {'keep': keep} if keep else {}
  return {
    'film': {'table': 'film'},
    'films': {'kind': 'sequence', 'table': 'film', **own},
    'places': {'kind': 'sequence', 'fill': fill and 'home', **own},
    'ages': {
      'kind': 'numeric_sequence',
      'transform': transform,
      'fill': fill,
      **own,
    },
  }


def quiet(_):
  pass


def load(directory, name, path, features, **options):
  cfg = {'name': name, 'path': str(path), 'features': features, **options}
  return datasets.load(cfg, pathlib.Path(directory) / 'cache', quiet)


def write_csv(path, table):
  """One cell a list; what is missing is empty."""
  cells = [','.join(('label', 'film', *EVENTS))]
  for label, film, events in table:
    lists = zip(*events, strict=True) if events else ((), (), ())
    texts = ['^'.join('' if x is None else str(x) for x in y) for y in lists]
    cells.append(','.join([str(label), film or '', *texts]))
  path.write_text('\n'.join(cells) + '\n')


def to_columns(table):
  lists = [
    [[event[i] for event in events] for _, _, events in table] for i in range(3)
  ]
  label, film = ([row[i] for row in table] for i in range(2))
  return {'label': label, 'film': film, **dict(zip(EVENTS, lists, strict=True))}


def write_parquet(path, table):
  text, number = pa.list_(pa.string()), pa.list_(pa.float64())
  names = ['label', 'film', *EVENTS]
  types = [pa.int64(), pa.string(), text, text, number]
  columns = to_columns(table)
  pq.write_table(
    pa.table(
      {n: pa.array(columns[n], t) for n, t in zip(names, types, strict=True)}
    ),
    path,
  )


def encode_plainly(table, max_len, keep, transform, fill):
  """Rows of (film, [(film, place, age)]) by dictionaries and loops."""
  kept = []
  for _, film, events in table:
    if max_len:
      events = events[:max_len] if keep == 'first' else events[-max_len:]
    if fill:
      events = [
        (f, p or 'home', float(fill) if a is None else a) for f, p, a in events
      ]
    kept.append((film, events))

  def number_values(values):
    counts = collections.Counter(v for v in values if v)
    order = sorted(counts, key=lambda v: (-counts[v], v))
    return {v: i for i, v in enumerate(order, 1)} | {None: 0, '': 0}

  films = number_values(
    [f for f, _ in kept] + [e[0] for _, events in kept for e in events]
  )
  places = number_values(e[1] for _, events in kept for e in events)
  ages = [e[2] for _, events in kept for e in events if e[2] is not None]
  mean = sum(ages) / len(ages) if ages else 0.0
  deviation = math.sqrt(sum((a - mean) ** 2 for a in ages) / max(1, len(ages)))

  def read_age(age):
    if age is None:
      return 0.0
    if transform == 'log':
      return math.log(1 + max(age, 0))
    return (age - mean) / (deviation or 1) if transform[:1] == 's' else age

  return [
    (films[f], [(films[x], places[p], read_age(a)) for x, p, a in events])
    for f, events in kept
  ]


def check_batch(batch, want, shards):
  """Every array of a batch against the rows of `encode_plainly`."""
  assert set(batch.jagged) == {'visits'}
  jagged = batch.jagged['visits']
  assert jagged.columns.names == ('films', 'places')
  assert jagged.floats.names == ('ages',)
  assert jagged.columns.values.dtype == np.int32
  assert jagged.floats.values.dtype == np.float32
  share, capacity = BATCH // shards, len(jagged['films']) // shards
  assert len(jagged['ages']) == len(jagged['places']) == shards * capacity
  done = 0
  for shard in range(shards):
    own = want[shard * share : (shard + 1) * share]
    lengths = jagged.lengths[shard * share : (shard + 1) * share]
    expected = [len(events) for _, events in own]
    np.testing.assert_array_equal(lengths[: len(own)], expected)
    assert not lengths[len(own) :].any()
    assert jagged.first[shard] == done
    events = list(itertools.chain.from_iterable(e for _, e in own))
    done += len(events)
    a = shard * capacity
    for i, name in enumerate(EVENTS):
      values = jagged[name][a : a + capacity]
      np.testing.assert_allclose(
        values[: len(events)], [e[i] for e in events], rtol=1e-5, atol=1e-5
      )
      assert not values[len(events) :].any()
  np.testing.assert_array_equal(
    batch.ids['film'][: len(want)], [film for film, _ in want]
  )


def maybe(values):
  return st.none() | values


EVENT = st.tuples(
  maybe(st.sampled_from(['f1', 'f2', 'f3'])),
  maybe(st.sampled_from(['home', 'train'])),
  maybe(st.sampled_from([-2.5, 0.0, 3.0, 100.0])),
)
ROW = st.tuples(
  st.sampled_from([0, 1]),
  maybe(st.sampled_from(['f1', 'f2', 'f9'])),
  st.lists(EVENT, max_size=4),
)


@settings(max_examples=40, deadline=None)
@given(
  table=st.lists(ROW, min_size=1, max_size=BATCH),
  max_len=st.sampled_from([0, 1, 2, 3]),
  keep=st.sampled_from(['', 'first', 'last']),
  transform=st.sampled_from(['as_is', 'log', 'standardize']),
  fill=st.sampled_from(['', '7']),
  is_text=st.booleans(),
)
def test_batches_are_those_of_a_plain_encoder(
  table, max_len, keep, transform, fill, is_text
):
  with tempfile.TemporaryDirectory() as directory:
    name = 'csv' if is_text else 'parquet'
    path = pathlib.Path(directory) / f'x.{name}'
    if is_text:
      write_csv(path, table)
      # A text cannot tell one event of which nothing is known from none.
      nothing = [(None, None, None)]
      table = [(y, f, [] if e == nothing else e) for y, f, e in table]
    else:
      write_parquet(path, table)
    features = make_features(max_len, keep, transform, fill)
    data = load(directory, name, path, features)
    want = encode_plainly(table, max_len, keep, transform, fill)
    for shards in (1, 4):
      (batch,) = batches.eval_batches(
        data.splits['train'], batch_size=BATCH, shards=shards
      )
      check_batch(batch, want, shards)


# ---- One table, by every way in ----------------------------------------------

TABLE = [
  (1, 'f1', [('f1', 'home', 3.0), (None, 'train', 0.5), ('f2', None, None)]),
  (0, 'f2', []),
  (0, 'f2', [('f3', None, 2.0)]),
  (1, None, [('f2', 'home', 1.0), ('f2', 'home', 9.0)]),
]


def load_table(tmp_path, **options):
  write_csv(tmp_path / 'x.csv', TABLE)
  return load(tmp_path, 'csv', tmp_path / 'x.csv', make_features(**options))


def assert_same_rows(left: rows.Rows, right: rows.Rows) -> None:
  np.testing.assert_array_equal(left.ids, right.ids)
  assert left.bags.keys() == right.bags.keys()
  for name, bags in left.bags.items():
    for field in ('values', 'lengths'):
      a, b = (getattr(x, field) for x in (bags, right.bags[name]))
      assert a.dtype == b.dtype
      np.testing.assert_array_equal(a, b)


def test_every_way_in_gives_the_same_rows(tmp_path):
  data = load_table(tmp_path, max_len=2, transform='standardize')
  want = data.splits['train'].rows(0, len(TABLE))
  assert_same_rows(blocks.from_bytes(blocks.to_bytes(want)), want)
  data.encoder.save(tmp_path / 'encoder')
  encoder = Encoder.load(tmp_path / 'encoder')
  assert encoder.fingerprint() == data.encoder.fingerprint()
  assert encoder.features == data.encoder.features
  columns = to_columns(TABLE)
  records = [
    {name: column[i] for name, column in columns.items()}
    for i in range(len(TABLE))
  ]
  sources = encoder.schema.sources
  assert_same_rows(encoder.encode(from_records(records, sources)), want)
  assert_same_rows(encoder.encode(from_columns(columns, sources)), want)
  cfg = ConfigDict(config_lib.ranking().data)
  cfg.update(split={'valid_fraction': 0.0, 'test_fraction': 0.0})
  options = make_features(max_len=2, transform='standardize')
  read = columns_lib.read_columns(columns, 'examples')
  out = write_examples(read, cfg, options, tmp_path / 'examples', quiet)
  framed = datasets.load({'name': 'prepared', 'path': str(out)}, tmp_path)
  assert framed.encoder.schema.columns == data.encoder.schema.columns
  assert_same_rows(framed.splits['train'].rows(0, len(TABLE)), want)


def test_specs_and_counts(tmp_path):
  data = load_table(tmp_path)
  film, films, places, ages = data.features
  assert not film.history and film.kind == 'categorical'
  assert [f.history for f in (films, places, ages)] == ['visits'] * 3
  assert films.source == 'film' and films.has_table and not films.pooled
  assert ages.kind == 'numeric_sequence' and not ages.has_table
  assert films.mean_len == ages.mean_len == 1.5
  assert '1 categorical, 2 sequence, 1 numeric_sequence' in data.summary()
  counts = data.encoder.value_counts['train']
  # An empty list counts as one missing value.
  assert (counts['films'].values, counts['films'].missing) == (7, 2)
  assert (counts['places'].values, counts['places'].missing) == (7, 3)
  assert (counts['ages'].values, counts['ages'].missing) == (7, 2)
  assert counts['ages'].unseen is None
  assert "line 2, column 'ages'" in counts['ages'].gap


def test_unseen_values_of_a_history_are_told(tmp_path):
  write_csv(tmp_path / 'train.csv', TABLE)
  new = [(1, 'f1', [('f1', None, 1.0), ('new', 'home', 1.0)])]
  write_csv(tmp_path / 'test.csv', new)
  files = {'train': 'train.csv', 'test': 'test.csv'}
  data = load(tmp_path, 'csv', tmp_path, make_features(), files=files)
  counts = data.encoder.value_counts['test']
  assert counts['films'].unseen == 1 and counts['places'].unseen == 0
  assert counts['films'].example.endswith("line 2, column 'films': 'new'")


def test_all_of_a_history_moves_together(tmp_path):
  data = load_table(tmp_path)
  all_rows = data.splits['train'].rows(0, len(TABLE))
  order = np.array([3, 0, 2, 1])
  moved = importance.permute_feature(all_rows, data.features, 2, order)
  for name in EVENTS:
    np.testing.assert_array_equal(moved.bags[name].lengths, [2, 3, 1, 0])
  np.testing.assert_array_equal(moved.ids, all_rows.ids)
  np.testing.assert_array_equal(moved.bags['ages'].values[:2], [1, 9])
  found = importance.permutation_importance(
    lambda rows: {'auc': 0.5, 'logloss': float(rows.bags['ages'].lengths[0])},
    all_rows,
    data.features,
  )
  assert {(x['feature'], x['kind']) for x in found} == {
    ('film', 'categorical'),
    ('visits', 'history'),
  }


@pytest.mark.parametrize('own', [None, range(1, 3)])
def test_a_saved_state_goes_on_exactly(tmp_path, own):
  data = load_table(tmp_path)

  def start():
    return iter(
      batches.train_batches(
        data.splits['train'],
        batch_size=4,
        seed=1,
        shards=4,
        own=own,
        prefetch=0,
        fixed_lists=True,
      )
    )

  straight = start()
  want = [next(straight) for _ in range(4)]
  before, after = start(), start()
  next(before)
  after.set_state(before.get_state())
  for batch in want[1:]:
    found, wanted = next(after).jagged['visits'], batch.jagged['visits']
    np.testing.assert_array_equal(found.floats.values, wanted.floats.values)
    np.testing.assert_array_equal(found.first, wanted.first)
    assert len(found.lengths) == len(found.first) == (2 if own else 4)
  whole = iter(
    batches.train_batches(
      data.splits['train'], batch_size=4, seed=1, shards=4, prefetch=0
    )
  )
  first = next(whole).jagged['visits'].first
  np.testing.assert_array_equal(
    first[1:3] if own else first, want[0].jagged['visits'].first
  )


def test_capacities_are_of_histories(tmp_path):
  split = load_table(tmp_path).splits['train']
  assert batches.choose_list_capacities(split, 4) == {'visits': 128}
  names = load_table(tmp_path).encoder.schema.names
  batch = collation.collate_rows(
    split.rows(0, 4), names, batch_size=4, capacities={'visits': 9}
  )
  assert len(batch.jagged['visits']['ages']) == 9


def test_parts_of_a_growing_directory_have_them(tmp_path):
  data = load_table(tmp_path)
  parts = tmp_path / 'parts'
  parts.mkdir()
  write_csv(parts / 'part-1.csv', TABLE[:3])
  (parts / 'END').write_text('')
  found = growing.stream_batches(
    parts, encoder=data.encoder, batch_size=BATCH, log=quiet
  )
  want = encode_plainly(TABLE, 0, '', 'as_is', '')[:3]
  check_batch(next(iter(found)), want, 1)


# ---- What is refused ---------------------------------------------------------

HEAD = 'label,film,films,places,ages\n'
GOOD = HEAD + '1,a,a^b,x^y,1^2\n'


def read_text(tmp_path, text, changes=None):
  (tmp_path / 'x.csv').write_text(text)
  features = make_features()
  for name, options in (changes or {}).items():
    features[name] = {**features[name], **options}
  return load(tmp_path, 'csv', tmp_path / 'x.csv', features)


@pytest.mark.parametrize(
  'text, wanted',
  [
    (
      GOOD + '0,a,a^b^c,x^y,1^2^3\n',
      "x.csv, line 3: column 'films' holds 3 values and column 'places' 2; "
      "all columns of history 'visits'",
    ),
    (GOOD + '0,a,a^b,x^y,1\n', "line 3: column 'films' holds 2 .*'ages' 1;"),
    (GOOD + '0,a,a^b,x^y,\n', "line 3: column 'films' holds 2 .*'ages' 0;"),
    (GOOD + '0,a,a,x,old\n', "line 3, column 'ages': 'old', one of the values"),
    (GOOD + '0,a,a^b,x^y,1^1e39\n', "line 3, column 'ages': '1e39'"),
    (HEAD + '0,a,a^b,x^y,"1^2,5"\n', "'2,5', one of .*data.decimal"),
  ],
)
def test_files_that_cannot_be_are_refused(tmp_path, text, wanted):
  with pytest.raises(ValueError, match=wanted):
    read_text(tmp_path, text)


def test_typed_lists_of_unequal_length_are_refused(tmp_path):
  table = to_columns(TABLE) | {'places': [['home'] * 3, [], [], ['home'] * 2]}
  pq.write_table(pa.table(table), tmp_path / 'x.parquet')
  with pytest.raises(ValueError, match="row 3: column 'films' holds 1 .* 0;"):
    load(tmp_path, 'parquet', tmp_path / 'x.parquet', make_features())


@pytest.mark.parametrize(
  'name, options, wanted',
  [
    ('ages', {'history': ''}, "history of feature 'ages' .* must name the his"),
    ('ages', {'history': 3}, "history of feature 'ages' .* is 3, must be the"),
    ('ages', {'transform': 'ln2'}, "transform of feature 'ages' .*'ln2'"),
    ('ages', {'fill': 'old'}, "fill of feature 'ages' .*not a number"),
    ('ages', {'fill': 'nan'}, "fill of feature 'ages' .*not a finite number"),
    ('ages', {'fill': '1e39'}, "fill of feature 'ages' .*not a finite number"),
    ('ages', {'clip': 2.0}, "clip of feature 'ages' .*'standardize'"),
    ('ages', {'max_len': 3}, "'films' and 'ages' .* max_len is 0 of the one"),
    ('ages', {'keep': 'first'}, "keep is 'last' of the one and 'first' of"),
    ('films', {'weights': 'ages'}, "weights of feature 'films' .*not pooled"),
    ('films', {'kind': 'multi_hot'}, "and kind is 'multi_hot'"),
    ('film', {'history': 'visits'}, "and kind is 'categorical'"),
    ('ages', {'history': 'film'}, "history 'film' of .*the name of a feature"),
    ('ages', {'history': 'label'}, "history 'label' of .*name of a label"),
    ('ages', {'table': 'film'}, "table of feature 'ages' .*'numeric_sequence'"),
    ('places', {'table': 'ages'}, "'places' .*'ages', which is a feature of k"),
    (
      'film',
      {'kind': 'numeric', 'transform': 'ln2'},
      "'films' and 'film' share the table 'film' .*'sequence' .*'ln2'",
    ),
  ],
)
def test_options_that_cannot_be_are_refused(tmp_path, name, options, wanted):
  with pytest.raises(ValueError, match=wanted):
    read_text(tmp_path, GOOD, {name: options})


def test_lists_without_a_history_are_described_as_before():
  column = schema.Column('films', kind='sequence')
  assert 'history' not in column.to_json()
  assert schema.Column(**column.to_json()) == column
  numbers = schema.Column('ages', kind='numeric_sequence', history='visits')
  assert numbers.to_json()['history'] == 'visits' and numbers.keeps_last
