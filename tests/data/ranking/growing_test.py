"""Part files of labelled rows: batches, states, refusals."""

import json
import threading
import time

import jax
import numpy as np
import pytest

from genrec_jax.data import growing as growing_lib
from genrec_jax.data.part_place import PartPlace, locate_part
from genrec_jax.data.ranking import batches as batches_lib
from genrec_jax.data.ranking import growing, id_words, raw
from genrec_jax.data.ranking.collation import collate_rows
from genrec_jax.data.ranking.unseen_draws import UnseenDraws
from tests.data.ranking.growing_parts import load, make_rows, put, quiet

SIZES = (11, 4, 8, 1)  # of the parts; batches have 4 examples
EXTENSIONS = ('csv', 'parquet')


@pytest.fixture(scope='module')
def base(tmp_path_factory):
  return load(tmp_path_factory.mktemp('base'))


def put_parts(directory, extension='csv', sizes=SIZES):
  """Writes parts; returns the rows of each."""
  parts = [make_rows(seed, size) for seed, size in enumerate(sizes)]
  for number, rows in enumerate(parts):
    put(directory, f'part-{number}.{extension}', rows)
  return parts


def stream(directory, base, extension='csv', **changed):
  options = dict(batch_size=4, poll_s=0.01, idle_s=0.0, log=quiet)
  return growing.stream_batches(
    directory, f'*.{extension}', encoder=base.encoder, **(options | changed)
  )


def encode_at_once(base, parts, batch_size=4, **more):
  """The oracle: all rows encoded as one table, cut by part into batches."""
  names = list(parts[0][0])
  rows = [row for part in parts for row in part]
  chunk = raw.from_records(rows, names)
  groups = {}
  encoded = base.encoder.encode(chunk, groups)
  out, first = [], 0
  for part in parts:
    for start in range(0, len(part), batch_size):
      stop = min(start + batch_size, len(part))
      piece = encoded.slice_rows(first + start, first + stop)
      out.append(
        collate_rows(
          piece, base.encoder.schema.names, batch_size=batch_size, **more
        )
      )
    first += len(part)
  return out


def assert_same(found, wanted, *, but=()):
  assert len(found) == len(wanted)
  for a, b in zip(found, wanted, strict=True):
    for name in vars(a):
      if name not in but:
        jax.tree.map(
          np.testing.assert_array_equal, getattr(a, name), getattr(b, name)
        )


@pytest.mark.parametrize('extension', EXTENSIONS)
def test_batches_are_those_of_all_rows_encoded_at_once(
  tmp_path, base, extension
):
  parts = put_parts(tmp_path, extension)
  found = list(stream(tmp_path, base, extension))
  assert_same(found, encode_at_once(base, parts), but=('group',))
  assert [int((b.weights > 0).sum()) for b in found] == [4, 4, 3, 4, 4, 4, 1]


def test_batches_tell_of_the_rows_in_their_order(tmp_path, base):
  """Against the rows themselves, without an encoder of ours."""
  parts = put_parts(tmp_path)
  found = list(stream(tmp_path, base))
  rows = [row for part in parts for row in part]
  real = [b.weights > 0 for b in found]

  def read(columns):
    return np.concatenate(
      [c[r] for c, r in zip(columns, real, strict=True)]
    ).tolist()

  assert read([b.time for b in found]) == [row['when'] for row in rows]
  ids = [id_words.join_words(b.example_id) for b in found]
  assert read(ids) == [row['number'] for row in rows]
  labels = [b.labels['click'] for b in found]
  assert read(labels) == [row['click'] for row in rows]
  weights = [b.weights for b in found]
  assert read(weights) == [row['importance'] for row in rows]
  scores = [b.extra('score') for b in found]
  assert read(scores) == [row['teacher'] for row in rows]
  lengths = [b.jagged['tags'].lengths for b in found]
  assert read(lengths) == [len(row['tags']) for row in rows]
  users = base.vocabularies['user'].decode(read([b.ids['user'] for b in found]))
  known = {f'u{i}' for i in range(6)}
  wanted = [x if x in known else '?' for x in (row['user'] for row in rows)]
  assert users == wanted and '?' in users
  # A group has the same number wherever it is met.
  groups = read([b.group for b in found])
  pairs = set(zip(groups, (row['user'] for row in rows), strict=True))
  assert len(pairs) == len(set(groups)) == len({row['user'] for row in rows})


def test_groups_of_a_part_never_share_a_number(monkeypatch):
  monkeypatch.setattr(growing, '_GROUPS', 8)
  assert len(set(growing.number_groups([f'u{i}' for i in range(8)]))) == 8


@pytest.mark.parametrize('extension', EXTENSIONS)
@pytest.mark.parametrize('share', (0.0, 0.4))
def test_resume_is_exact_at_every_batch(tmp_path, base, extension, share):
  put_parts(tmp_path, extension)
  unseen = UnseenDraws(base.encoder, share, seed=3)
  it = iter(stream(tmp_path, base, extension, unseen=unseen))
  states, found = [it.get_state()], []
  for batch in it:
    found.append(batch)
    states.append(json.loads(json.dumps(it.get_state())))
  for done, state in enumerate(states):
    again = iter(stream(tmp_path, base, extension, unseen=unseen))
    again.set_state(state)
    assert again.get_state() == state
    assert_same(list(again), found[done:])


def test_a_share_of_the_known_values_is_read_as_unseen(tmp_path, base):
  parts = [make_rows(seed, 400, users=6) for seed in range(2)]
  for number, rows in enumerate(parts):
    put(tmp_path, f'{number}.csv', rows)
  unseen = UnseenDraws(base.encoder, 0.1, seed=3)
  plain = list(stream(tmp_path, base, batch_size=100))
  drawn = list(stream(tmp_path, base, batch_size=100, unseen=unseen))
  hits = [
    a.ids['user'] != b.ids['user'] for a, b in zip(plain, drawn, strict=True)
  ]
  assert 40 < sum(h.sum() for h in hits) < 120
  # Batches of one number in two parts have draws of their own.
  assert any((hits[i] != hits[4 + i]).any() for i in range(4))
  row = base.vocabularies['user'].rows - 1
  for batch, hit in zip(drawn, hits, strict=True):
    assert set(batch.ids['user'][hit].tolist()) <= {row}


def test_states_say_where_parts_end(tmp_path, base):
  put_parts(tmp_path)
  it = iter(stream(tmp_path, base))
  assert locate_part(it.get_state()) == PartPlace()
  places = [locate_part(it.get_state()) for _ in it]
  assert [(p.name, p.used, p.batches) for p in places] == [
    ('part-0.csv', 1, 3),
    ('part-0.csv', 2, 3),
    ('part-0.csv', 3, 3),
    ('part-1.csv', 1, 1),
    ('part-2.csv', 1, 2),
    ('part-2.csv', 2, 2),
    ('part-3.csv', 1, 1),
  ]
  assert [p.is_end for p in places] == [0, 0, 1, 1, 0, 1, 1]
  assert [p.number for p in places] == [1, 1, 1, 2, 3, 3, 4]


def test_a_part_is_met_that_is_written_while_the_stream_waits(tmp_path, base):
  parts = put_parts(tmp_path, sizes=(5,))
  it = iter(stream(tmp_path, base, idle_s=None))
  found = [next(it), next(it)]
  later = make_rows(7, 3)

  def write():
    time.sleep(0.05)
    put(tmp_path, 'part-7.csv', later)
    (tmp_path / growing_lib.END).touch()

  thread = threading.Thread(target=write)
  thread.start()
  found += list(it)  # which ends, without `idle_s`
  thread.join()
  wanted = encode_at_once(base, [*parts, later])
  assert_same(found, wanted, but=('group',))


def test_the_end_comes_behind_all_parts(tmp_path, base):
  (tmp_path / growing_lib.END).touch()
  put_parts(tmp_path)
  assert len(list(stream(tmp_path, base, idle_s=None))) == 7
  # Also where every name is one of a part.
  options = dict(encoder=base.encoder, batch_size=4, log=quiet)
  assert len(list(growing.stream_batches(tmp_path, '*', **options))) == 7


def test_parts_in_shards_are_the_same_parts(tmp_path, base):
  parts = put_parts(tmp_path)
  found = list(stream(tmp_path, base, shards=2))
  wanted = encode_at_once(base, parts, shards=2)
  assert_same(found, wanted, but=('group',))


def test_lists_have_the_capacity_of_the_base_data(tmp_path, base):
  parts = put_parts(tmp_path)
  train = base.splits['train']
  capacities = batches_lib.choose_list_capacities(train, 4)
  found = list(stream(tmp_path, base, capacities=capacities))
  assert {b.jagged['tags']['tags'].shape for b in found} == {
    (capacities['tags'],)
  }
  wanted = encode_at_once(base, parts, capacities=capacities)
  assert_same(found, wanted, but=('group',))


def test_negatives_are_left_out_as_of_the_base_data(tmp_path):
  (tmp_path / 'parts').mkdir()
  base = load(tmp_path, negatives_kept=0.5)
  rows = make_rows(1, 400)
  put(tmp_path / 'parts', 'a.csv', rows)
  put(tmp_path / 'parts', 'b.csv', rows)
  said = []
  found = list(
    stream(tmp_path / 'parts', base, batch_size=1000, log=said.append)
  )
  clicks = sum(row['click'] for row in rows)
  kept = []
  for batch in found:
    real = batch.weights > 0
    assert batch.labels['click'][real].sum() == clicks
    kept.append(batch.time[real].tolist())
    assert kept[-1] == sorted(kept[-1])
    assert 0.35 < (real.sum() - clicks) / (400 - clicks) < 0.65
  assert kept[0] != kept[1]  # each part has draws of its own
  left = 400 - len(kept[0])
  assert said[
    0
  ] == f'stream: a.csv: {400 - left} examples, {left} negatives' + (' left out')


def test_the_log_tells_of_a_part(tmp_path, base):
  put(tmp_path, 'a.csv', make_rows(1, 20, users=6))
  put(tmp_path, 'b.csv', [])
  put(tmp_path, 'c.csv', [{**row, 'user': 'new'} for row in make_rows(2, 4)])
  said = []
  assert len(list(stream(tmp_path, base, log=said.append))) == 6
  assert said[0] == 'stream: a.csv: 20 examples'
  lines = [line for line in said if 'examples' in line]
  assert lines[1:] == [
    'stream: b.csv: 0 examples',
    'stream: c.csv: 4 examples',
  ]
  assert any('c.csv: unseen: user 100%' in line for line in said)


def test_a_feature_of_strangers_is_warned_of_once(tmp_path, base, caplog):
  rows = make_rows(1, 120)
  put(tmp_path, 'a.csv', [{**row, 'user': row['user'].upper()} for row in rows])
  put(tmp_path, 'b.csv', [{**row, 'user': 'new'} for row in rows])
  list(stream(tmp_path, base))
  (record,) = caplog.records
  assert "a.csv: 100% of the values of 'user' are unseen" in record.message


def test_waiting_is_told_with_what_is_there(tmp_path, base, monkeypatch):
  monkeypatch.setattr(growing_lib, '_WAITS_S', 0.01)
  said, waits = [], dict(idle_s=0.1)
  list(stream(tmp_path, base, log=said.append, **waits))
  assert said == [f'stream: waiting: {tmp_path} is empty']
  put(tmp_path, 'part-0.parquet', make_rows(1, 4))
  said.clear()
  list(stream(tmp_path, base, log=said.append, **waits))
  (line,) = said
  assert "matches '*.csv' (data.stream.pattern); it has part-0.parquet" in line
  put(tmp_path, 'part-0.csv', make_rows(1, 4))
  said.clear()
  list(stream(tmp_path, base, log=said.append, **waits))
  assert said[-1].endswith('has no part behind part-0.csv, and no END')


# --- Refusals


def test_what_a_check_refuses_ends_the_stream_with_the_file(tmp_path, base):
  put_parts(tmp_path)

  def check(columns, where):
    assert columns['score'].shape == (11,)
    raise ValueError(f'{where}: no')

  with pytest.raises(ValueError, match='part-0.csv: no'):
    next(iter(stream(tmp_path, base, check=check)))


def resumed(directory, base, state):
  it = iter(stream(directory, base))
  it.set_state(state)
  return list(it)


def test_parts_that_are_not_as_they_were_are_refused(tmp_path, base):
  parts = put_parts(tmp_path)
  it = iter(stream(tmp_path, base))
  while it.get_state()['current'] != 'part-2.csv':
    next(it)
  state = it.get_state()
  put(tmp_path, 'part-0.csv', make_rows(50, 11))
  with pytest.raises(ValueError, match='part-0.csv is not the file that was'):
    resumed(tmp_path, base, state)
  put(tmp_path, 'part-0.csv', parts[0])
  put(tmp_path, 'part-11.csv', parts[0])
  with pytest.raises(ValueError, match='part-11.csv sorts before part-2.csv'):
    resumed(tmp_path, base, state)
  (tmp_path / 'part-11.csv').unlink()
  assert len(resumed(tmp_path, base, state)) == 2
  (tmp_path / 'part-2.csv').unlink()
  with pytest.raises(FileNotFoundError, match='part-2.csv: the stream stopped'):
    resumed(tmp_path, base, state)


def test_a_part_must_have_every_column(tmp_path, base):
  (tmp_path / 'a.csv').write_text('user,item\nu1,2\n')
  with pytest.raises(ValueError, match="a.csv: no column 'price'"):
    list(stream(tmp_path, base))
  (tmp_path / 'a.csv').write_text('')
  with pytest.raises(ValueError, match='a.csv.*empty'):
    list(stream(tmp_path, base))


def test_unseen_values_may_be_an_error(tmp_path):
  (tmp_path / 'parts').mkdir()
  base = load(tmp_path, oov='error')
  rows = make_rows(1, 3, users=6)
  put(tmp_path / 'parts', 'a.csv', [*rows, {**rows[0], 'user': 'new'}])
  with pytest.raises(ValueError, match="a.csv, line 5, column 'user'.*'new'"):
    list(stream(tmp_path / 'parts', base))


def test_several_processes_and_numbers_of_rows_are_refused(tmp_path, base):
  with pytest.raises(ValueError, match='read by one process.* 1 of 2 shards'):
    stream(tmp_path, base, shards=2, own=range(1))
  numbered = load(tmp_path, example_id='row')
  with pytest.raises(ValueError, match="example_id='row' numbers the rows"):
    stream(tmp_path, numbered)
