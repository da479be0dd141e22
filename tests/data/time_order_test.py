"""Events are sorted by their full times, in every form that these have."""

import datetime
import random

import numpy as np
import pytest
from ml_collections import ConfigDict

from genrec_jax.data import convert, fields, histories, readers, vocab
from genrec_jax.library import columns as columns_lib
from genrec_jax.library import events as events_lib

BASE = 1_700_000_000  # seconds since 1970
SECOND, DAY = 10**9, 86_400 * 10**9
STEPS = {'s': SECOND, 'ms': 10**6, 'us': 10**3, 'ns': 1}
COLUMNS = {'user': 'user', 'item': 'item', 'time': 'time', 'rating': 'stars'}


def quiet(_):
  pass


def utc(moment):
  """The date of so many nanoseconds, and those that it cannot have."""
  epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
  return epoch + datetime.timedelta(microseconds=moment // 1000), moment % 1000


def iso(moment, hours=None, finer=False):
  date, rest = utc(moment)
  date = date.replace(tzinfo=None)
  if hours is not None:
    date += datetime.timedelta(hours=hours)
  text = date.isoformat(timespec='microseconds')
  text += f'{rest:03d}' if finer else ''
  return text if hours is None else f'{text}{hours:+03d}:00'


def decimal(moment, step):
  """In units of `step` nanoseconds, with nine digits behind the point."""
  return f'{moment // step}.{moment % step * SECOND // step:09d}'


# Form of the texts of a CSV file -> its unit, its resolution in ns, its texts.
CSV = {unit: (unit, n, lambda t, n=n: t // n) for unit, n in STEPS.items()}
CSV |= {
  'floats': ('s', 1000, lambda t: t / SECOND),
  'floats-ms': ('ms', 10**5, lambda t: t / 10**6),
  'decimals': ('s', 1, lambda t: decimal(t, SECOND)),
  'decimals-ms': ('ms', 1, lambda t: decimal(t, 10**6)),
  'many-digits': ('s', 1, lambda t: decimal(t, SECOND) + '9' * (t % 5)),
  'iso': ('ms', 1000, iso),
  'iso-zones': ('s', 1, lambda t: iso(t, hours=t % 7 - 3, finer=True)),
  'year-3000': ('s', 1000, lambda t: iso(t + 400_000 * DAY)),
  'mixed': ('s', 1, lambda t: decimal(t, SECOND) if t % 2 else t // SECOND),
}
PARQUET = {
  'int-s': ('s', SECOND, 'int64'),
  'int-ms': ('ms', 10**6, 'int64'),
  'int-ns': ('ns', 1, 'uint64'),
  'double': ('s', 1000, 'double'),
  'texts': ('s', 1, 'string'),
  'date32': ('s', DAY, 'date32'),
  'date64': ('s', DAY, 'date64'),
  **{f'timestamp-{unit}': ('s', n, unit) for unit, n in STEPS.items()},
}


def make_log(step, seed):
  """Rows of (user, item, nanoseconds, stars); each item has one row."""
  rng = random.Random(seed)
  span = max(2 * SECOND, 3 * step)
  rows = []
  for item in range(150):
    # Anywhere, or at most a few of the smallest steps apart.
    moment = BASE * SECOND + rng.choice([rng.randrange(span), 30 * step + span])
    moment -= rng.randrange(30) * step
    if rows and item % 10 == 0:  # a tie, of the same user or another
      moment = rows[-1][2]
    if item % 7 == 0:
      moment -= moment % SECOND
    rows.append((rng.randrange(4), item, moment - moment % step, 1 + item % 5))
  return rows


def check(h, rows, shift=0):
  """Users' items and seconds are those of a plain stable sort."""
  for user in range(4):
    own = sorted((r for r in rows if r[0] == user), key=lambda r: r[2])
    a, b = h.offsets[user : user + 2]
    got = h.vocab.decode(h.items[a:b]).tolist()
    assert got == [item for _, item, _, _ in own]
    seconds = [moment // SECOND + shift for _, _, moment, _ in own]
    assert h.times[a:b].tolist() == seconds


def convert_files(chunks, tmp_path):
  """In several passes, without the least stars and one item."""
  return convert.convert_log(
    chunks,
    tmp_path / 'h',
    item_vocab=vocab.Vocab(np.arange(149)),
    unknown='skip',
    min_rating=2,
    partition_events=40,
    log=quiet,
  )


def keep(rows):
  return [row for row in rows if row[3] >= 2 and row[1] < 149]


@pytest.mark.parametrize('form', CSV)
def test_csv(tmp_path, monkeypatch, form):
  monkeypatch.setattr(convert, 'SPILL_CHUNK', 64)
  unit, step, write = CSV[form]
  rows = make_log(step, seed=form)
  paths = []
  for i, (first, end) in enumerate([(0, 50), (50, 90), (90, 150)]):
    lines = [f'{u},{i},{write(t)},{x}' for u, i, t, x in rows[first:end]]
    paths.append(tmp_path / f'{i}.csv')
    paths[-1].write_text('\n'.join(['user,item,time,stars', *lines]))
  chunks = readers.read_csv(paths, COLUMNS, time_unit=unit, chunk_rows=17)
  shift = 400_000 * DAY // SECOND if form == 'year-3000' else 0
  if form == 'mixed':
    rows = [(u, i, t if t % 2 else t - t % SECOND, x) for u, i, t, x in rows]
  check(convert_files(chunks, tmp_path), keep(rows), shift)


@pytest.mark.parametrize('form', PARQUET)
def test_parquet(tmp_path, form):
  pa = pytest.importorskip('pyarrow')
  import pyarrow.parquet as pq

  unit, step, kind = PARQUET[form]
  rows = make_log(step, seed=form)
  types = {x: pa.timestamp(x, 'Europe/Berlin') for x in STEPS}
  types['string'] = pa.string()
  if form == 'texts':
    values = [iso(t, finer=True) for _, _, t, _ in rows]
  elif form == 'double':
    values = [t / SECOND for _, _, t, _ in rows]
  elif form.startswith('date'):
    values = [utc(t)[0].date() for _, _, t, _ in rows]
  else:
    values = [t // step for _, _, t, _ in rows]
  kind = types.get(kind) or getattr(pa, kind.replace('double', 'float64'))()
  paths = []
  for i, part in enumerate([slice(0, 70), slice(70, 150)]):
    users, items, _, stars = (list(x) for x in zip(*rows[part], strict=True))
    table = dict(user=users, item=items, stars=stars)
    table['time'] = pa.array(values[part], kind)
    paths.append(tmp_path / f'{i}.parquet')
    pq.write_table(pa.table(table), paths[-1], row_group_size=33)
  chunks = readers.read_parquet(paths, COLUMNS, time_unit=unit, chunk_rows=17)
  check(convert_files(chunks, tmp_path), keep(rows))


def stamps(moments, unit='ns'):
  return np.array([t // STEPS[unit] for t in moments], f'datetime64[{unit}]')


def pandas_frame(columns, zone):
  pd = pytest.importorskip('pandas')
  when = pd.Series(stamps(columns['time']))
  if zone:
    when = when.dt.tz_localize('UTC').dt.tz_convert('Asia/Tokyo')
  return pd.DataFrame(columns | {'time': when})


def polars_frame(columns):
  pl = pytest.importorskip('polars')
  return pl.DataFrame(columns | {'time': stamps(columns['time'])})


def records(columns):
  columns = columns | {'time': [utc(t)[0] for t in columns['time']]}
  names, rows = columns, zip(*columns.values(), strict=True)
  return [dict(zip(names, row, strict=True)) for row in rows]


def with_times(write):
  return lambda columns: columns | {'time': write(columns['time'])}


FRAMES = {
  'arrays': ('s', 1, with_times(stamps)),
  'arrays-ms': ('s', 10**6, with_times(lambda t: stamps(t, 'ms'))),
  'stamps': ('s', 1, with_times(lambda t: list(stamps(t)))),
  'floats': ('s', 1000, with_times(lambda t: [x / SECOND for x in t])),
  'integers': ('us', 1000, with_times(lambda t: [x // 1000 for x in t])),
  'texts': ('s', 1, with_times(lambda t: [iso(x, finer=True) for x in t])),
  'records': ('s', 1000, records),
  'pandas': ('s', 1, lambda columns: pandas_frame(columns, zone=False)),
  'pandas-zone': ('s', 1, lambda columns: pandas_frame(columns, zone=True)),
  'polars': ('s', 1, polars_frame),
}


@pytest.mark.parametrize('form', FRAMES)
def test_frames(tmp_path, form):
  unit, step, make = FRAMES[form]
  rows = make_log(step, seed=form)
  users, items, times, _ = (list(x) for x in zip(*rows, strict=True))
  data = make(dict(user=users, item=items, time=times))
  cfg = ConfigDict(
    dict(
      columns=COLUMNS | {'rating': ''},
      time_unit=unit,
      id_type='auto',
      extras={},
      item_vocab='',
      min_rating=None,
      min_item_events=0,
      min_user_events=0,
      unknown_items='error',
    )
  )
  columns = columns_lib.read_columns(data)
  path = events_lib.write_events(columns, cfg, tmp_path, quiet)
  check(histories.Histories.open(path), rows)
  # Other fractions are other events.
  if step < SECOND:
    rows[3] = (*rows[3][:2], rows[3][2] ^ (1024 * step), rows[3][3])
    times = [t for _, _, t, _ in rows]
    other = make(dict(user=users, item=items, time=times))
    columns = columns_lib.read_columns(other)
    assert events_lib.write_events(columns, cfg, tmp_path, quiet) != path


@pytest.mark.parametrize('step', STEPS.values())
def test_histories_in_memory(step):
  rows = make_log(step, seed=step)
  users, items, times, _ = zip(*rows, strict=True)
  exact, good = fields.from_integers(np.array(times), 'ns')
  assert good.all() and (exact.fraction is None) == (step == SECOND)
  check(histories.from_arrays(users, items, exact), rows)
  if step >= 1000:
    floats = [t / SECOND for t in times]
    check(histories.from_arrays(users, items, floats), rows)


def test_times_that_are_none_are_refused_in_memory():
  with pytest.raises(ValueError, match='event 1: nan is not a time'):
    histories.from_arrays([1, 1], [2, 3], [0.5, np.nan])
