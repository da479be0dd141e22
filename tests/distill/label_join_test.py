"""Labels of several streams: against dictionaries, saved anywhere, refused."""

import dataclasses
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec_jax import sealed
from genrec_jax.distill.label_join import LabelJoin
from tests.distill import naive_join

EMPTY = pa.table({'example_id': [], 'time': [], 'click': []})


def shown(*rows, **columns) -> pa.Table:
  """Impressions of (id, time)."""
  ids, times = zip(*rows, strict=True) if rows else ((), ())
  return pa.table({'example_id': ids, 'time': times} | columns)


def clicked(*rows) -> pa.Table:
  """Label events of (id, time)."""
  ids, times = zip(*rows, strict=True) if rows else ((), ())
  return pa.table({'example_id': ids, 'time': times, 'click': [1] * len(ids)})


def make_units(draw: random.Random, streams, labels) -> list[naive_join.Unit]:
  """A log of some units, with everything that may go wrong in it."""
  spread = draw.choice([5, 30, 120])  # seconds by which impressions are late
  delay = draw.choice([5, 40, 200])
  units, known, id_ = [], [], 0
  waiting = []  # (unit in which it is read, stream, event)
  for k in range(draw.randint(1, 7)):
    unit = naive_join.Unit(
      {stream: [] for stream in streams}, {stream: [] for stream in streams}
    )
    for stream in streams:
      for _ in range(draw.choice([0, 1, 4, 9])):
        time = 50 * k + draw.randint(-spread, 49)
        row = (id_, time, draw.randint(0, 3))
        unit.shown[stream].append(row)
        known.append(row)
        id_ += 1
        for _ in range(draw.choice([0, 0, 1, 1, 2])):
          values = [draw.choice([None, 0, 1, 2]) for _ in labels]
          event = (row[0], time + draw.randint(-3, delay), values)
          for _ in range(draw.choice([1, 1, 2])):  # some come twice
            lag = draw.choice([-1, 0, 0, 1, 2, 5])
            waiting.append((k + lag, draw.choice(streams), event))
    for row in draw.sample(known, min(3, len(known))):
      # In another stream, or again, in its unit or later.
      unit.shown[draw.choice(streams)].append(row)
    units.append(unit)
  for k, stream, event in waiting:
    if 0 <= k < len(units):
      units[k].events[stream].append(event)
  stranger = (10**15, 3, [1] * len(labels))
  units[-1].events[streams[0]].append(stranger)
  for unit in units:
    for rows in (*unit.shown.values(), *unit.events.values()):
      draw.shuffle(rows)
  return units


def make_tables(unit: naive_join.Unit, labels) -> dict:
  out = {}
  for stream, rows in unit.shown.items():
    events = unit.events[stream]
    # NaN and nothing are equal to themselves.
    scores = [(None, np.nan, 1.0, 2.0)[feature] for _, _, feature in rows]
    seen = {
      'color': pa.array([str(feature) for _, _, feature in rows], pa.string()),
      'example_id': pa.array([id_ for id_, _, _ in rows], pa.int64()),
      'time': pa.array([time for _, time, _ in rows], pa.int64()),
      'score': pa.array(scores, pa.float64()),
    }
    came = {
      'example_id': pa.array([id_ for id_, _, _ in events], pa.int64()),
      'time': pa.array([time for _, time, _ in events], pa.int64()),
    }
    for number, label in enumerate(labels):
      column = [values[number] for _, _, values in events]
      came[label] = pa.array(column, pa.int32())
    out[stream] = (pa.table(seen) if rows else shown()), pa.table(came)
  return out


def read_rows(window, labels) -> list[tuple]:
  columns = window.table.to_pydict()
  values = zip(*(columns[label] for label in labels), strict=True)
  features = [int(x) for x in columns['color']]
  return list(
    zip(columns['example_id'], columns['time'], features, values, strict=True)
  )


def compare(given, expected, labels) -> None:
  assert [window.number for window in given] == [x[0] for x in expected]
  for window, (_, rows, own) in zip(given, expected, strict=True):
    assert read_rows(window, labels) == rows
    assert {x: y.tolist() for x, y in window.rows.items()} == own


def check_bytes(one, other) -> None:
  """Windows are equal to the bit, chunks of their tables too."""
  assert [x.number for x in one] == [x.number for x in other]
  for a, b in zip(one, other, strict=True):
    assert a.table.schema == b.table.schema
    sinks = []
    for window in (a, b):
      sink = pa.BufferOutputStream()
      with pa.ipc.new_stream(sink, window.table.schema) as writer:
        writer.write_table(window.table)
      sinks.append(sink.getvalue().to_pybytes())
    assert sinks[0] == sinks[1]
    for stream, rows in a.rows.items():
      np.testing.assert_array_equal(rows, b.rows[stream])


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_join_is_that_of_dictionaries(seed):
  draw = random.Random(seed)
  streams = ['feed', 'video', 'ads'][: draw.randint(1, 3)]
  labels = ['click', 'like'][: draw.randint(1, 2)]
  units = make_units(draw, streams, labels)
  options = dict(
    window_s=draw.choice([1, 20, 60]),
    attribution_s=draw.choice([0, 10, 60, 150]),
    remembered=draw.choice([0, 1, 8]),
  )
  expected, counts = naive_join.join(units, streams, labels, **options)
  join = LabelJoin(streams, labels, **options)
  for k, unit in enumerate(units):
    windows = join.add_unit(k, make_tables(unit, labels))
    compare(windows, expected[k], labels)
    # Where it is saved does not matter.
    join = LabelJoin.from_bytes(join.to_bytes())
  compare(join.finish(), expected[len(units)], labels)
  found = dataclasses.asdict(join.counts)
  assert found == {key: counts[key] for key in found}
  assert len(join) == 0
  assert found['labels'] == (
    found['joined'] + join.counts.lost + found['duplicates']
  )


@pytest.mark.parametrize('seed', range(6))
def test_restored_anywhere_it_goes_on_to_the_bit(seed, tmp_path):
  draw = random.Random(seed)
  streams, labels = ['feed', 'video'], ['click', 'like']
  units = [make_tables(x, labels) for x in make_units(draw, streams, labels)]
  join = LabelJoin(streams, labels, 60, 30, remembered=1)
  whole = []
  for k, tables in enumerate(units):
    join.save(tmp_path / str(k))
    whole.append(join.add_unit(k, tables))
  whole.append(join.finish())
  for first in range(len(units)):
    again = LabelJoin.restore(tmp_path / str(first))
    assert again.next_unit == (first or None)
    for k in range(first, len(units)):
      check_bytes(again.add_unit(k, units[k]), whole[k])
    check_bytes(again.finish(), whole[-1])
    assert again.counts == join.counts
    assert again.to_bytes() == join.to_bytes()
  assert sorted(x.name for x in tmp_path.iterdir()) == [
    str(k) for k in range(len(units))
  ]


def test_labels_that_come_too_late_are_counted_by_reason():
  join = LabelJoin(['feed'], ['click'], window_s=60, attribution_s=60)
  first = shown((1, 0), (2, 5), (3, 10), (4, 20))
  # In time; behind its window of attribution; of nobody.
  labels = clicked((1, 60), (2, 66), (9, 3))
  assert join.add_unit(0, {'feed': (first, labels)}) == []
  # The clock passes the window; a label of this unit still counts.
  (window,) = join.add_unit(1, {'feed': (shown((5, 120)), clicked((4, 80)))})
  assert window.table['click'].to_pylist() == [1, 0, 0, 1]
  join.add_unit(2, {'feed': (shown(), clicked((3, 11), (3, 11), (1, 60)))})
  counts = join.counts
  assert (counts.joined, counts.behind_attribution) == (2, 1)
  assert (counts.after_emission, counts.unknown, counts.duplicates) == (1, 1, 2)
  assert counts.labels == 7 and counts.share_lost == 3 / 5
  assert counts.examples == 4 and counts.unlabelled == 2


def test_a_short_wait_loses_what_a_long_one_keeps():
  rng = np.random.default_rng(0)
  times = np.arange(0, 4000)
  delays = rng.exponential(100, len(times)).astype(np.int64)
  shares = []
  for attribution in (0, 100, 1000):
    join = LabelJoin(['feed'], ['click'], 50, attribution, remembered=100)
    for k in range(80):
      now = (times + delays) // 50 == k
      seen = times[times // 50 == k]
      labels = pa.table(
        {
          'example_id': times[now],
          'time': (times + delays)[now],
          'click': np.ones(now.sum()),
        }
      )
      join.add_unit(k, {'feed': (shown(*zip(seen, seen)), labels)})
    shares.append(join.counts.share_lost)
  expected = [1, np.exp(-1), 0]
  np.testing.assert_allclose(shares, expected, atol=0.03)


def test_late_impressions_are_dropped_and_said(caplog):
  join = LabelJoin(['feed', 'ads'], ['click'], 60, 0)
  empty = shown(), EMPTY
  assert join.add_unit(4, {'feed': (shown((1, 9)), EMPTY), 'ads': empty}) == []
  # Nothing is given out before all streams have said where they are.
  unit = {'feed': (shown((2, 130)), EMPTY), 'ads': (shown((3, 70)), EMPTY)}
  assert [x.number for x in join.add_unit(5, unit)] == [0]
  unit = {'feed': (shown((4, 50), (1, 9)), EMPTY), 'ads': empty}
  assert join.add_unit(6, unit) == []
  assert 'unit 6 has 2 impressions of windows that were given' in caplog.text
  assert join.counts.late_impressions == 2 and len(join) == 2
  windows = join.finish()
  assert [x.number for x in windows] == [1, 2]
  assert windows[0].select('ads')['example_id'].to_pylist() == [3]
  assert windows[0].select('feed').num_rows == 0
  with pytest.raises(ValueError, match='unit 7 comes after the join was fin'):
    join.add_unit(7, unit)


@pytest.mark.parametrize(
  'options, message',
  [
    (dict(attribution_s=-1), 'attribution_s is -1: a label counts for so many'),
    (dict(window_s=0), 'window_s is 0: a window has a second or more'),
    (dict(window_s=1.5), 'window_s is 1.5: give whole seconds'),
    (dict(streams=[]), r'streams is \[\]: give names, each once'),
    (dict(streams='feed'), "streams is 'feed': give names"),
    (dict(labels=['a', 'a']), r"labels is \['a', 'a'\]: give names, each"),
    (dict(labels=['time']), "a label cannot be called 'time'"),
    (dict(remembered=-1), 'remembered is -1: give 0 windows or more'),
  ],
)
def test_settings_that_make_no_sense(options, message):
  whole = dict(streams=['feed'], labels=['click'], window_s=60, attribution_s=0)
  with pytest.raises(ValueError, match=message):
    LabelJoin(**(whole | options))


OTHER_UNITS = [
  (
    3,
    dict(feed=(shown((7, 3), c=[1]), EMPTY), ads=(shown(), EMPTY)),
    'unit 3 comes where unit 1 should: units are read in their order',
  ),
  (
    1,
    dict(feed=(shown((7, 3), c=[1]), EMPTY)),
    'unit 1 is of the streams feed, and the join of ads, feed: give an empty',
  ),
  (
    1,
    dict(feed=(pa.table({'time': [3]}), EMPTY), ads=(shown(), EMPTY)),
    "impressions of stream 'feed' in unit 1 have no column 'example_id', but",
  ),
  (
    1,
    dict(feed=(shown(), EMPTY.drop_columns('click')), ads=(shown(), EMPTY)),
    "the labels of stream 'feed' in unit 1 have no column 'click', but exam",
  ),
  (
    1,
    dict(feed=(shown((7, 3), click=[1]), EMPTY), ads=(shown(), EMPTY)),
    "have a column 'click', as a label is called: labels come in a table of",
  ),
  (
    1,
    dict(feed=(shown((7, 3)), EMPTY), ads=(shown(), EMPTY)),
    r"have other columns than those before: missing \['c'\], additional \[\]",
  ),
  (
    1,
    dict(feed=(shown((7, 3), c=['x']), EMPTY), ads=(shown(), EMPTY)),
    "have 'c' of type string, and those before int64",
  ),
  (
    1,
    dict(feed=(shown((7, None), c=[1]), EMPTY), ads=(shown(), EMPTY)),
    "the column 'time' has empty rows",
  ),
  (
    1,
    dict(feed=(shown((7, 0.5), c=[1]), EMPTY), ads=(shown(), EMPTY)),
    "the column 'time' is of type double, not of whole numbers",
  ),
  (
    1,
    dict(feed=(shown(), EMPTY), ads=(shown((6, 80), c=[2]), EMPTY)),
    "the example 6 of stream 'ads' in unit 1 has 80 as 'time', and had 70 bef",
  ),
  (
    1,
    dict(feed=(shown(), EMPTY), ads=(shown((6, 70), c=[3]), EMPTY)),
    "the example 6 of stream 'ads' in unit 1 has 3 as 'c', and had 2 before",
  ),
  (
    1,
    dict(
      feed=(shown((7, 90), c=[1]), EMPTY), ads=(shown((7, 90), c=[2]), EMPTY)
    ),
    "the example 7 of stream 'ads' in unit 1 has 2 as 'c', and had 1 before",
  ),
  (
    1,
    dict(feed=(shown((5, 99), c=[1]), EMPTY), ads=(shown(), EMPTY)),
    "the example 5 of stream 'feed' in unit 1 has time 99, and was given out",
  ),
  (
    1,
    dict(
      feed=(shown((7, 90), c=[1]), EMPTY),
      ads=(
        shown(),
        pa.table({'example_id': [6], 'time': [70], 'click': [np.nan]}),
      ),
    ),
    "'click' of the example 6 is not finite; leave it empty if the event says",
  ),
  (
    1,
    dict(
      feed=(shown((7, 90), c=[1]), EMPTY),
      ads=(
        shown(),
        pa.table({'example_id': [6], 'time': [70], 'click': [[1]]}),
      ),
    ),
    "the column 'click' is of type list<.*>, not of numbers",
  ),
]


@pytest.mark.parametrize('unit, tables, message', OTHER_UNITS)
def test_a_unit_that_is_refused_changes_nothing(unit, tables, message):
  join = LabelJoin(['feed', 'ads'], ['click'], 60, 0)
  first = {
    'feed': (shown((5, 3), (6, 70), c=[1, 2]), EMPTY),
    'ads': (shown((8, 70), c=[4]), EMPTY),
  }
  assert [x.number for x in join.add_unit(0, first)] == [0]
  before = join.to_bytes()
  with pytest.raises(ValueError, match=message):
    join.add_unit(unit, tables)
  assert join.to_bytes() == before


def test_dictionaries_and_chunks_do_not_matter():
  words = pa.array(['a', 'b', 'a']).dictionary_encode()
  times = [3, 2, 1]
  plain = pa.table({'example_id': [1, 2, 3], 'time': times, 'w': list('aba')})
  coded = plain.set_column(2, 'w', words)
  pieces = pa.concat_tables([coded.slice(0, 1), coded.slice(1)])
  outs = []
  for table in (plain, coded, pieces):
    join = LabelJoin(['feed'], ['click'], 60, 0)
    join.add_unit(0, {'feed': (table, EMPTY)})
    outs.append(join.finish())
  check_bytes(outs[0], outs[1])
  check_bytes(outs[0], outs[2])


def test_a_damaged_state_is_refused(tmp_path):
  join = LabelJoin(['feed'], ['click'], 60, 0)
  join.add_unit(0, {'feed': (shown((1, 2)), clicked((1, 2)))})
  path = tmp_path / 'join'
  join.save(path)
  content = path.read_bytes()
  for at in range(0, len(content), 7):
    path.write_bytes(
      content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
    )
    with pytest.raises(sealed.DamagedError, match=f'{path} is no state of a'):
      LabelJoin.restore(path)
  for size in (0, 5, 16, len(content) - 1):
    path.write_bytes(content[:size])
    with pytest.raises(sealed.DamagedError, match=f'{path} is no state of a'):
      LabelJoin.restore(path)
