"""What is wrong with a log of one's own is said in a sentence with the line."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from genrec_jax.config.request_sets import LogOptions
from genrec_jax.data.requests import own_log
from genrec_jax.data.requests.conditions import parse_conditions

NAMES = ['user', 'item', 'time', 'click', 'stars', 'secs', 'page']
OPTIONS = dict(
  labels=('click',),
  actions=('liked: stars >= 4',),
  regression=('seconds: secs',),
  watch_time='secs',
  weight='stars',
  request='page',
)


def make_lines():
  """Three users, forty rows each."""
  lines = []
  for number in range(120):
    user, time = number % 3, 1_700_000_000 + number * 1000
    lines.append(
      [f'u{user}', f'i{number % 7}', str(time), str(number % 2), '4', '2.5',
       f'p{number // 3}']
    )  # fmt: skip
  return lines


def write(path, lines, names=NAMES):
  rows = [names, *lines]
  path.write_text('\n'.join(','.join(row) for row in rows) + '\n')
  return path


def refuse(path, message, format_='csv', **options):
  with pytest.raises((ValueError, FileNotFoundError), match=message) as error:
    own_log.load(path, LogOptions(**OPTIONS | options), format_)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize(
  'name, value, message',
  [
    ('user', '', "column 'user': the cell is empty, but every row has a user"),
    ('item', '', "column 'item': the cell is empty, but every row has an item"),
    ('item', 'x' * 5000, "column 'item': 5,000 characters, more than 4,096"),
    ('time', '', r"column 'time': '' \(data.log.time\) is not a time .*mend"),
    ('time', '-3', r"column 'time': '-3' \(data.log.time\) is not a time"),
    ('time', '31.12.2023', "column 'time': '31.12.2023' is a date in another"),
    ('time', '1700000000123', ".* after the year 2254 if times are in 's'; say "
     'their unit with --config.data.log.time_unit=ms'),
    ('click', '2', "column 'click': '2' is neither 0 nor 1; write .*click >= "),
    ('click', 'x', r"column 'click': 'x' \(data.log.labels\) is neither 0 nor"),
    ('click', '', "column 'click': the cell is empty, but every candidate has "
     r"the label 'click' \(data.log.labels\); fill it in, or leave the row ou"),
    ('stars', 'many', r"column 'stars': 'many' \(data.log.actions\) is no fin"),
    ('stars', '', "column 'stars': the cell is empty, but every row has a wei"),
    ('stars', 'nan', "column 'stars': the cell is empty, but every row has a "),
    ('stars', '-1', r"column 'stars': '-1' \(data.log.weight\) is below 0; m"),
    ('secs', 'inf', r"column 'secs': 'inf' \(data.log.regression\) is no fini"),
    ('secs', 'yes', r"column 'secs': 'yes' \(data.log.regression\) is no fin"),
    ('time', '9000000000', '.*lies after the year 2254'),
    ('secs', '-0.5', r"column 'secs': '-0.5' \(data.log.watch_time\) is below"),
    ('secs', '', "column 'secs': .* every candidate has the label 'seconds'"),
    ('page', '', "column 'page': the cell is empty, but every row is of a req"),
  ],
)  # fmt: skip
def test_a_bad_cell_is_named(tmp_path, name, value, message):
  lines = make_lines()
  lines[41][NAMES.index(name)] = value
  path = write(tmp_path / 'log.csv', lines)
  refuse(path, f'log.csv, line 43, {message}')


@pytest.mark.parametrize(
  'options, message',
  [
    ({'user': 'users'}, r"no column 'users', which data.log.user names; the "
     "columns are user, item, .*; did you mean 'user'"),
    ({'labels': ('like',)}, "no column 'like', which data.log.labels names"),
    ({'actions': ('a >= b',)}, "data.log.actions: 'b' in 'a >= b' is not a nu"),
    ({'actions': ('a == ',)}, "data.log.actions: 'a == ' is no condition; giv"),
    ({'actions': ('a = 1',)}, "data.log.actions: 'a = 1' is no condition"),
    ({'actions': ('click', 'click: stars >= 3')}, "two are called 'click'; gi"),
    ({'actions': [f'a{i}: stars >= {i}' for i in range(32)]}, '31 are possibl'),
    ({'labels': (), 'regression': ()}, 'data.log.labels and data.log.regressi'),
    ({'regression': ('secs >= 3',)}, "data.log.regression: 'secs' is a condit"),
    ({'regression': ('click',)}, "'click' is the name of something else"),
    ({'regression': ('watch_time: secs',)}, "'watch_time' is the name of some"),
    ({'features': ('page', 'page')}, "'page' is two features in data.log"),
    ({'items': 'x.csv'}, 'data.log.items is set and data.log.item_features is'),
    ({'user_features': ('a',)}, 'data.log.user_features is set and data.log.u'),
    ({'time': '', 'step_s': 60}, 'data.log.step_s makes a stream of steps of '),
    ({'time': '', 'test_from': '2024-01-01'}, 'data.log.test_from is .*, and '),
    ({'valid_from': '0.9'}, "data.log.test_from '0.9' does not lie after vali"),
    ({'valid_from': '1.5x'}, "data.log.valid_from is '1.5x'; give a share of "),
    ({'test_from': '2030-01-01'}, 'has candidates with a history .* the split '
     "'test'; change data.log.valid_from"),
    ({'candidate_if': 'click == no'}, 'no row is a candidate; change data.log'),
    ({'candidate_if': 'click == no', 'event_if': 'click == no'}, 'no row is a '
     'candidate or an event; change'),
    ({'time_unit': 'us'}, '=.us. all times are before 1980, the earliest '
     '1,700 seconds after 1970 began; if times are in seconds, set'),
    ({'asked_at': 'noon'}, "asked_at is 'noon', must be one of"),
    ({'duplicates': 'all'}, "duplicates is 'all', must be one of"),
    ({'history': 'all'}, "history is 'all', must be one of"),
    ({'pause_s': -1}, 'pause_s is -1, must be at least 0'),
    ({'pause_s': '60'}, "pause_s is '60', must be a whole number"),
    ({'labels': 'click'}, "labels is 'click', must be several values"),
    ({'request_features': ('click', 'click')}, "'click' is two features in"),
    ({'request_features': ('click',)}, "'click' is predicted .* be known as"),
    ({'request': 'user', 'request_features': ('click',),
      'labels': ('liked: stars >= 4',)}, "'user'. of "
     "user '.*' has rows with several values of 'click', which data.log.req"),
    ({'header': 'perhaps'}, "data.log.header is 'perhaps', must be one of"),
  ],
)  # fmt: skip
def test_options_that_cannot_be_are_refused(tmp_path, options, message):
  refuse(write(tmp_path / 'log.csv', make_lines()), message, **options)


def test_files_that_are_no_log_are_refused(tmp_path):
  refuse(tmp_path / 'none.csv', r'none.csv: no such file \(data.path\)')
  (tmp_path / 'empty').mkdir()
  refuse(tmp_path / 'empty', 'the directory has no .csv files')
  (tmp_path / 'empty' / 'sheet.xlsx').write_text('x')
  refuse(tmp_path / 'empty', 'save sheet.xlsx as CSV or Parquet')
  (tmp_path / 'nothing.csv').write_text('')
  refuse(tmp_path / 'nothing.csv', 'nothing.csv: the file is empty')
  refuse(write(tmp_path / 'bare.csv', []), 'bare.csv: the file holds no rows')
  twice = write(tmp_path / 'twice.csv', make_lines(), NAMES[:-1] + ['user'])
  refuse(
    twice, "twice.csv: column 'user' stands twice in the header", request=''
  )
  short = make_lines()
  del short[7][3:]
  refuse(write(tmp_path / 'short.csv', short), 'line 9: 3 fields instead of 7')


def test_a_column_of_lists_is_refused(tmp_path):
  table = pa.table(
    {'user': [1, 2], 'item': [[1], [2, 3]], 'time': [3, 4], 'label': [0, 1]}
  )
  pq.write_table(table, tmp_path / 'log.parquet')
  refuse(
    tmp_path / 'log.parquet',
    "row 1, column 'item': holds lists; write each value into a row",
    'parquet',
    labels=('label',),
    actions=(),
    regression=(),
    watch_time='',
    weight='',
    request='',
  )


def write_items(path, rows):
  path.write_text('\n'.join(['item,genre', *rows]) + '\n')
  return dict(items=str(path), item_features=('genre',))


def test_the_file_of_the_items_must_have_all_of_them_once(tmp_path):
  log = write(tmp_path / 'log.csv', make_lines())
  rows = [f'i{i},g' for i in range(7)]
  items = write_items(tmp_path / 'items.csv', rows[:3] + rows[4:])
  refuse(
    log,
    "log.csv, line 5: item 'i3' has no row in .*items.csv, like 1 of 7 "
    'items in all; add it, or set --config.data.log.unlisted=missing',
    **items,
  )
  data = own_log.load(log, LogOptions(**OPTIONS, **items, unlisted='missing'))
  genre, item = data.events.items['genre'], data.events.items['item']
  missing = data.vocabs['item'].ids.tolist().index('i3') + 1
  assert ((genre == 0) == (item == missing)).all() and (genre == 0).any()
  items = write_items(tmp_path / 'items.csv', [*rows, 'i2,h'])
  refuse(
    log, "items.csv, line 9: 'i2' already stands in .*, line 4; rem", **items
  )
  items = write_items(tmp_path / 'items.csv', [*rows, ',h'])
  refuse(log, "items.csv, line 9, column 'item': the cell is empty", **items)
  items = write_items(tmp_path / 'items.csv', rows)
  refuse(
    log,
    "items.csv: no column 'sku', which data.log.items_id names",
    **items,
    items_id='sku',
  )
  refuse(
    log,
    r'items.txt \(data.log.items\): neither .csv nor .parquet',
    **items | {'items': str(tmp_path / 'items.txt')},
  )


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
  log = write(tmp_path / 'log.csv', make_lines())
  read = own_log.log_rows.read_rows

  def change(*args):
    rows = read(*args)
    write(log, make_lines()[:-1])
    return rows

  monkeypatch.setattr(own_log.log_rows, 'read_rows', change)
  refuse(log, 'the raw files changed while they were read')


def test_parts_with_numbers_and_with_texts_name_the_same_ids(tmp_path):
  """Of a Parquet log whose ids were numbers once, and texts later."""
  count = 60
  times = [1_700_000_000 + 4000 * i for i in range(count)]
  found = []
  for kinds in ((int, str), (str, str), (float, int)):
    folder = tmp_path / '-'.join(x.__name__ for x in kinds)
    folder.mkdir()
    for part, kind in enumerate(kinds):
      some = range(part * 30, part * 30 + 30)
      columns = {
        'user': [kind(i % 3) for i in some],
        'item': [kind(i % 5) for i in some],
        'time': [times[i] for i in some],
        'label': [i % 2 == 0 for i in some],
      }
      pq.write_table(pa.table(columns), folder / f'{part}.parquet')
    found.append(own_log.load(folder, LogOptions(), 'parquet'))
  assert found[0].user_ids.tolist() == [0, 1, 2]
  assert len({data.fingerprint() for data in found}) == 1


@pytest.mark.parametrize(
  'text, expected',
  [
    ('click', ('click', 'click', '', '')),
    ('x y: stars of it >=4', ('x y', 'stars of it', '>=', '4.0')),
    ('event==add to cart', ('add to cart', 'event', '==', 'add to cart')),
  ],
)
def test_conditions_are_taken_apart(text, expected):
  (found,) = parse_conditions('key', [text])
  assert (found.name, found.column, found.sign, found.value) == expected
