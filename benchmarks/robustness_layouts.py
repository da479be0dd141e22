"""Layouts of text files: good ones, how the library reads them, oracles."""

import dataclasses
import gzip
import math
import pathlib
import random
from collections.abc import Callable

import numpy as np

from benchmarks import robustness_oracles as oracles
from benchmarks.robustness_oracles import Refusal
from genrec_jax.data import extras as extras_lib
from genrec_jax.data import readers, stream
from genrec_jax.data import vocab as vocab_lib
from genrec_jax.data.ranking import annotations, formats, raw, transform


@dataclasses.dataclass(frozen=True)
class Layout:
  """A kind of file.

  Attributes:
    name: of the file, by which some readers know it.
    make: a good one.
    read: (path, rows of a block) -> its rows, by the library.
    expect: its bytes -> its rows, by the oracle.
    packed: whether it is compressed by gzip.
    binary: whether it is no text.
  """

  name: str
  make: Callable[[random.Random], bytes]
  read: Callable[[pathlib.Path, int], list]
  expect: Callable[[bytes], list]
  packed: bool = False
  binary: bool = False


WORDS = ('a', 'b7', 'Zoë', '漢字', 'x y', "o'neil", '-', '007', '1e5', 'a::b')


def pick_id(rng, as_text: bool) -> str:
  if as_text:
    return rng.choice([*WORDS, str(rng.randrange(50))])
  return str(rng.choice([rng.randrange(9), rng.randrange(10**6), -3, 2**62]))


def pick_time(rng) -> str:
  date = rng.choice(['2023-11-14 22:13:20', '2001-01-01T00:00:00.25'])
  date += rng.choice(['', ' UTC', ' GMT', 'Z', ' +0200', '+02', 'z'])
  return str(rng.choice([0, rng.randrange(2**31), 978300760, date]))


def pick_rating(rng) -> str:
  return rng.choice(['1', '4.5', '5.0', '3', '0', '-1e-3'])


def _quote(field: str, rng) -> str:
  if any(mark in field for mark in ',"\n\r') or rng.random() < 0.05:
    return '"' + field.replace('"', '""') + '"'
  return field


def _join_csv(rng, header: list[str], rows: list[list[str]]) -> bytes:
  end = rng.choice(['\n', '\n', '\r\n'])
  lines = [','.join(_quote(x, rng) for x in row) for row in [header, *rows]]
  return (end.join(lines) + rng.choice(['', end])).encode()


_EXTRAS = (
  extras_lib.ExtraColumn('tag', 'category'),
  extras_lib.ExtraColumn('seen', 'float'),
  extras_lib.ExtraColumn('count', 'int'),
)
COLUMNS = dict(user='u', item='i', time='t', rating='r')


def make_events_csv(as_text: bool, packed: bool = False):
  def make(rng):
    header = ['u', 'i', 't', 'r', 'tag', 'seen', 'count', 'note']
    rng.shuffle(header)
    rows = []
    for _ in range(rng.randrange(1, 12)):
      row = dict(
        u=pick_id(rng, as_text),
        i=pick_id(rng, as_text),
        t=pick_time(rng),
        r=pick_rating(rng),
        tag=rng.choice(WORDS),
        seen=pick_rating(rng),
        count=str(rng.randrange(-5, 99)),
        note=rng.choice(['', 'a, b', 'say "x"', 'two\nlines', ' ']),
      )
      rows.append([row[name] for name in header])
    content = _join_csv(rng, header, rows)
    return gzip.compress(content) if packed else content

  return make


FOUND = dict(user='u', item='i', time='t')
BY_NUMBER = dict(user='1', item='0', time='2')


def make_found(has_header: bool):
  """A log whose delimiter nobody says, maybe without a header."""

  def make(rng):
    mark = rng.choice(',;|\t')
    names = ['u', 'i', 't', 'note']
    words = ['7', 'a b', 'Zoë', '']
    rows = [
      [
        pick_id(rng, False),
        pick_id(rng, False),
        pick_time(rng),
        *words[k : k + 1],
      ]
      for k in (rng.randrange(4) for _ in range(rng.randrange(1, 30)))
    ]
    lines = [mark.join(row) for row in [names] * has_header + rows]
    return ('\n'.join(lines) + '\n').encode()

  return make


def read_found(columns):
  def read(path, rows):
    chunks = readers.read_csv([path], columns, ids='int', chunk_rows=rows)
    return list_events(chunks)

  return read


def expect_found(has_header: bool):
  def expect(content):
    text = oracles.decode(content, 'utf-8-sig', False)
    if has_header:
      mark = oracles.find_mark(text, ['u', 'i', 't'])
      rows = oracles.split_csv(text, mark)
      names = ['u', 'i', 't']
    else:
      mark = oracles.find_regular_mark(text, 3)
      rows = oracles.split_csv(text, mark)
      names = [str(i) for i in range(len(rows[0]))]
      if list(map(str.strip, rows[0])) != names:
        rows = [names, *rows]
      names = ['1', '0', '2']
    return [
      (oracles.whole_id(u), oracles.whole_id(i), oracles.moment(t))
      for u, i, t in oracles.by_names(rows, names)
    ]

  return expect


def make_fixed(mark: str, roles: str):
  def make(rng):
    kinds = dict(u=pick_id, i=pick_id, r=pick_rating, t=pick_time)
    lines = [
      mark.join(
        kinds[r](rng, False) if r in 'ui' else kinds[r](rng) for r in roles
      )
      for _ in range(rng.randrange(1, 12))
    ]
    end = rng.choice(['\n', '\r\n'])
    return (end.join(lines) + rng.choice(['', end])).encode()

  return make


def make_catalogue(mark: str):
  def make(rng):
    ids = rng.sample(range(1, 99), rng.randrange(1, 9))
    rows = [[str(i), rng.choice(WORDS[:3]), 'Drama'] for i in ids]
    if mark == ',':
      return _join_csv(rng, ['movieId', 'title', 'genres'], rows)
    lines = [mark.join(row) for row in rows]
    return ('\n'.join(lines) + '\n').encode('latin-1')

  return make


def make_titles(rng):
  rows = [[pick_id(rng, True), rng.choice(WORDS), 'x'] for _ in range(5)]
  return _join_csv(rng, ['item', 'title', 'more'], rows)


def make_examples(rng):
  labels = rng.choice(['01', ('yes', 'no'), ('True', 'f', '1'), 'YN'])
  rows = [
    [
      rng.choice(labels),
      rng.choice([*WORDS, '']),
      rng.choice(['1.5', '', '-2', '7']),
    ]
    for _ in range(rng.randrange(1, 12))
  ]
  return _join_csv(rng, ['label', 'user', 'price'], rows)


def make_criteo(rng):
  lines = []
  is_labelled = rng.random() < 0.7
  for _ in range(rng.randrange(1, 5)):
    numbers = [rng.choice(['', '0', '-2', '15']) for _ in range(13)]
    words = [rng.choice(['', '68fd1e64', 'a']) for _ in range(26)]
    lines.append('\t'.join([rng.choice('01')] * is_labelled + numbers + words))
  return ('\n'.join(lines) + '\n').encode()


def make_libsvm(rng):
  lines = []
  for _ in range(rng.randrange(1, 9)):
    pairs = [
      f'{rng.randrange(99)}:{rng.choice(["1", "0.5", "-2"])}'
      for _ in range(rng.randrange(0, 4))
    ]
    lines.append(' '.join([rng.choice(['-1', '+1', '0', '1']), *pairs]))
  return ('\n'.join(lines) + '\n').encode()


def list_events(chunks) -> list:
  rows = []
  for chunk in chunks:
    columns = [chunk.user, chunk.item, chunk.time, chunk.rating]
    columns += [chunk.extras[name] for name in chunk.extras]
    there = [column.tolist() for column in columns if column is not None]
    rows += zip(*there, strict=True)
  return rows


def read_csv(ids: str):
  def read(path, rows):
    options = dict(ids=ids, extras=_EXTRAS, chunk_rows=rows, delimiter=',')
    return list_events(readers.read_csv([path], COLUMNS, **options))

  return read


def expect_csv(as_text: bool, packed: bool = False):
  read_id = oracles.text_id if as_text else oracles.whole_id
  names = ['u', 'i', 't', 'r', 'tag', 'seen', 'count']

  def expect(content):
    rows = oracles.split_csv(oracles.decode(content, 'utf-8-sig', packed), ',')
    out = []
    for row in oracles.by_names(rows, names):
      user, item, time, rating, tag, seen, count = row
      whole = oracles.number(count)
      if abs(whole) >= 2**31 or whole != math.floor(whole):
        raise Refusal('count')
      out.append(
        (
          read_id(user),
          read_id(item),
          oracles.moment(time),
          oracles.rating(rating),
          oracles.text_id(tag),
          oracles.rating(seen),
          int(whole),
        )
      )
    return out

  return expect


def read_fixed(reader):
  return lambda path, rows: list_events(reader(path, chunk_rows=rows))


def expect_fixed(mark: str, roles: str):
  kinds = dict(
    u=oracles.whole_id, i=oracles.whole_id, t=oracles.moment, r=oracles.rating
  )

  def expect(content):
    text = oracles.decode(content, 'latin-1', False)
    rows = oracles.check_widths(oracles.split_plain(text, mark), len(roles))
    order = [roles.index(x) for x in 'uitr' if x in roles]
    return [tuple(kinds[roles[i]](row[i]) for i in order) for row in rows]

  return expect


def read_catalogue(path, rows):
  with BlockRows(readers, rows):
    ids, titles = readers.read_catalogue(path)
  return list(zip(ids.tolist(), titles, strict=True))


def expect_catalogue(mark: str):
  def expect(content):
    if mark == ',':
      rows = oracles.split_csv(oracles.decode(content, 'utf-8-sig', False), ',')
      rows = rows[1:]
    else:
      rows = oracles.split_plain(
        oracles.decode(content, 'latin-1', False), mark
      )
    rows = oracles.check_widths(rows, len(rows[0]) if rows else 0)
    if len(rows[0]) < 2:
      raise Refusal('one field')
    out = [(oracles.whole_id(row[0]), row[1]) for row in rows]
    if len({i for i, _ in out}) < len(out):
      raise Refusal('twice')
    return out

  return expect


def read_titles(path, rows):
  with BlockRows(readers, rows):
    return list(zip(*readers.read_titles(path), strict=True))


def expect_titles(content):
  text = oracles.decode(content, 'utf-8-sig', False)
  rows = oracles.split_csv(text, ',')
  if len(rows) == 1:  # a file without a title is fine
    oracles.by_names(rows + [rows[0]], ['item', 'title'])
    return []
  return oracles.by_names(rows, ['item', 'title'])


class BlockRows:
  """Sets the rows of a block where a module says them."""

  def __init__(self, module, rows: int):
    self._module, self._rows = module, rows

  def __enter__(self):
    self._before = self._module.CHUNK_ROWS
    self._set(self._rows)

  def __exit__(self, *error):
    self._set(self._before)

  def _set(self, rows: int) -> None:
    self._module.CHUNK_ROWS = rows
    if self._module is readers:  # where it is the default of an argument
      readers.read_csv.__kwdefaults__['chunk_rows'] = rows


def read_part(path, rows):
  """A growing directory with this part, as sequences of items."""
  with BlockRows(readers, rows):
    batches = stream.stream_batches(
      path.parent,
      path.name,
      columns=dict(user='u', item='i', time='t'),
      delimiter=',',
      item_vocab=vocab_lib.Vocab(np.array(WORDS)),
      batch_size=4,
      max_len=10**6,
      ids='str',
      idle_s=0,
      log=lambda line: None,
    )
    out = []
    for batch in batches:
      events = batch.jagged['events']
      first = 0
      for length in events.lengths[np.asarray(batch.weights) > 0].tolist():
        items = np.asarray(events['item'])[first : first + length]
        last = np.asarray(events['next_item'])[first + length - 1]
        out.append((*items.tolist(), int(last)))
        first += length
  return sorted(out)


def expect_part(content):
  rows = oracles.split_csv(oracles.decode(content, 'utf-8-sig', False), ',')
  known = {word: i for i, word in enumerate(WORDS, 1)}
  if len(rows) == 1:  # an empty part is fine
    oracles.by_names(rows + [rows[0]], ['u', 'i', 't'])
    return []
  events = oracles.named_events(rows)
  sequences = {}
  for user, item, _ in sorted(events, key=lambda event: event[2]):
    if item in known:
      sequences.setdefault(user, []).append(known[item])
  return sorted(tuple(x) for x in sequences.values() if len(x) > 1)


def read_examples(format_: str, names: list[str]):
  """Labels and numbers as an encoder reads them, other columns as texts."""

  def read(path, rows):
    reading = {'format': format_, 'delimiter': ','}
    module = formats.find_format(format_)
    there = [x for x in names if x in module.read_names(path, reading)]
    if format_ == 'csv':
      there = names  # which are asked for
    out = []
    with BlockRows(raw, rows):
      for chunk in formats.read_files([path], there, reading):
        columns = [list_cells(chunk, name) for name in there]
        out += zip(*columns, strict=True)
    return out

  return read


def list_cells(chunk, name: str) -> list:
  if name == 'label':
    return annotations.read_labels(chunk, ['label'], ())[:, 0].tolist()
  if name in ('price', 'I1'):
    try:
      numbers = transform.parse_numbers(chunk.columns[name])
    except transform.NumberError as e:  # as the encoder says it
      raise ValueError(chunk.quote_cell(e.at, name, e.value)) from None
    return transform.transform_numbers(numbers, 'as_is').tolist()
  column = chunk.columns[name]
  if isinstance(column, raw.ListColumn):
    cuts = np.cumsum(column.lengths)[:-1]
    parts = np.split(np.array(column.values, object), cuts)
    return [tuple(part.tolist()) for part in parts]
  return list(column)


def expect_examples(content):
  rows = oracles.split_csv(oracles.decode(content, 'utf-8-sig', False), ',')
  if rows and len(set(map(str.strip, rows[0]))) < len(rows[0]):
    raise Refusal('columns')
  return [
    (oracles.label(a), b, oracles.feature_number(c))
    for a, b, c in oracles.by_names(rows, ['label', 'user', 'price'])
  ]


CRITEO = ['label', 'I1', 'I13', 'C1', 'C26']


def expect_criteo(content):
  text = oracles.decode(content, 'utf-8-sig', False)
  rows = oracles.split_plain(text, '\t')
  width = len(rows[0]) if rows else 0
  if width not in (39, 40):
    raise Refusal('fields')
  out = []
  for row in oracles.check_widths(rows, width):
    head = (oracles.label(row[0]),) if width == 40 else ()
    row = row[width - 39 :]
    numbers = (oracles.feature_number(row[0]), row[12])
    out.append((*head, *numbers, row[13], row[38]))
  return out


def expect_libsvm(content):
  rows = oracles.libsvm(oracles.decode(content, 'utf-8-sig', False))
  return [
    (*([] if head is None else [oracles.label(head)]), tuple(i for i, _ in row))
    for head, row in rows
  ]
