"""What a server reads: histories to predict for, and records.

Records are written as a text of Python's.
"""

import dataclasses
import functools
import logging
import shutil
import warnings

import numpy as np
from ml_collections import ConfigDict

from benchmarks import robustness_oracles as oracles
from benchmarks.robustness_layouts import WORDS, BlockRows, list_cells
from benchmarks.robustness_oracles import Refusal
from genrec_jax.data import items, readers
from genrec_jax.data import vocab as vocab_lib
from genrec_jax.data.ranking import raw
from genrec_jax.serve import inputs

_DEEP = functools.reduce(lambda inner, _: [inner], range(10**5), [])
_YEAR_9999 = 253_402_300_799
_CONFIG = {
  'predict': {
    'format': '',
    'columns': {'user': '', 'item': '', 'time': 't', 'rating': ''},
    'id_type': '',
    'time_unit': '',
    'delimiter': '',
    'header': '',
  },
  'data': {
    'columns': {'user': 'u', 'item': 'i', 'time': 't', 'rating': ''},
    'id_type': 'str',
    'time_unit': 's',
    'delimiter': ',',
    'header': 'yes',
    'min_rating': None,
  },
  'model': {},
}


def read_histories(path, rows):
  """(user, its items, their times) of each user with a known item."""
  config = ConfigDict(_CONFIG)
  config.predict.input = str(path)
  vocab = vocab_lib.Vocab(np.array(WORDS))
  corpus = np.arange(1, vocab.rows, dtype=np.int32)
  counts = np.ones(vocab.rows, np.int64)
  known = items.ItemCatalogue(vocab, corpus, counts, None, True, '')
  scratch = path.parent / 'scratch'
  logger = logging.getLogger('genrec_jax')
  before = logger.level
  logger.setLevel(logging.ERROR)  # what is left out of each of very many files
  try:
    with BlockRows(readers, rows):
      histories, _ = inputs.read_input(config, known, scratch)
    cuts = histories.offsets[1:-1]
    columns = [
      [tuple(part.tolist()) for part in np.split(column, cuts)]
      for column in (histories.items, histories.times)
    ]
    return list(zip(histories.users.ids.tolist(), *columns, strict=True))
  finally:
    logger.setLevel(before)
    shutil.rmtree(scratch, ignore_errors=True)


def expect_histories(content):
  text = oracles.decode(content, 'utf-8-sig', False)
  known = {word: i for i, word in enumerate(WORDS, 1)}
  rows = oracles.split_csv(text, ',')
  events = oracles.named_events(rows)
  users = {}
  for user, item, time in sorted(events, key=lambda event: event[2]):
    if item in known:
      users.setdefault(user, []).append((known[item], time))
  times = [time for pairs in users.values() for _, time in pairs]
  if not users or max(times) > _YEAR_9999:
    raise Refusal('no known item, or a time beyond all calendars')
  return [
    (user, *map(tuple, zip(*users[user], strict=True)))
    for user in sorted(users)
  ]


_NAMES = ('user', 'price', 'tags')


def make_records(rng):
  def value():
    return rng.choice(
      [1, 2.5, 'x', '', None, True, -(2**70), 'ü', float('nan')]
    )

  return repr(
    [
      {'user': value(), 'price': value(), 'tags': [value() for _ in range(2)]}
      for _ in range(rng.randrange(1, 5))
    ]
  ).encode()


def _parse_records(content: bytes) -> list:
  """The records, odd ones too; `deep` stands for a list of many levels."""
  names = dict(nan=float('nan'), deep=_DEEP, huge=10**5000, __builtins__={})
  try:
    with warnings.catch_warnings(action='ignore'):
      records = eval(content.decode('latin-1'), names)
  except Exception as e:
    raise Refusal(str(e)) from None
  if not isinstance(records, list):
    raise Refusal('no list')
  if not all(isinstance(record, dict) for record in records):
    raise Refusal('no records')
  return records


def read_records(path, rows):
  try:
    records = _parse_records(path.read_bytes())
  except Refusal as e:  # which is Python's matter, not the reader's
    raise ValueError(f'{path}: {str(e)[:200]}') from None
  try:
    chunk = raw.from_records(records, _NAMES)
  except ValueError as e:
    if not str(e).startswith('row '):
      raise
    raise ValueError(f'{path}: {e}') from None
  columns = []
  for name in _NAMES:
    is_list = isinstance(chunk.columns[name], raw.ListColumn)
    cells = list_cells(dataclasses.replace(chunk), name) if is_list else None
    columns.append(cells or list(chunk.columns[name]))
  return list(zip(*columns, strict=True))


def expect_records(content):
  records = _parse_records(content)
  if any(name not in record for record in records for name in _NAMES):
    raise Refusal('names')
  columns = []
  for name in _NAMES:
    try:
      column = oracles.record_column([record[name] for record in records])
    except ValueError as e:  # numbers that Python does not write
      raise Refusal(str(e)) from None
    columns.append([tuple(x) if isinstance(x, list) else x for x in column])
  return list(zip(*columns, strict=True))
