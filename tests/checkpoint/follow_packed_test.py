"""A copy whose rows are packed in few bits, against packed whole saves."""

import json

import numpy as np
import pytest

from genrec_jax.checkpoint import follow, staged_tables
from genrec_jax.checkpoint.chunks import RowChunk
from genrec_jax.checkpoint.errors import DamagedError
from genrec_jax.checkpoint.follow import Follower
from genrec_jax.checkpoint.manifest import CheckpointError
from genrec_jax.checkpoint.serving_copy import ServingCopy
from genrec_jax.checkpoint.table_file import TableFile
from genrec_jax.numerics import packed_formats
from genrec_jax.numerics.packed_formats import PACKED_FORMATS
from tests.checkpoint import published
from tests.checkpoint.published import change, file_of

pytestmark = pytest.mark.usefixtures('no_power_cut')
# The rows of `item` come in two pieces, those of the others as a whole.
PACKED = {'item': 'tbe_int4', 'user': 'tbe_int8', 'odd name/1': 'fbgemm_int2'}


def pack(rows, name):
  return packed_formats.join_parts(
    PACKED_FORMATS[name], rows.astype(np.float32)
  )


def assert_packed(found, whole, packed=PACKED):
  assert set(found.tables) == set(whole)
  for name, rows in whole.items():
    table = np.asarray(found.table(name))
    if name in packed:
      rows = pack(rows, packed[name])
      assert found.tables[name]['packed'] == packed[name]
    assert table.tobytes() == rows.tobytes(), name


def test_each_step_is_packed_as_its_whole_save(run, copy, log):
  run.line(1, 2)
  with Follower(run.directory, copy, packed=PACKED, log=log) as follower:
    assert follower.update() == [1, 2]  # built at once
    assert_packed(follower, run.whole[2])
    for step in (3, 4):
      run.delta(step)
      assert follower.update() == [step]  # changed in place
      assert_packed(follower, run.whole[step])
    run.base(9)
    run.delta(10)
    assert follower.update() == [9, 10]
    assert_packed(follower, run.whole[10])
    size = (copy / follower.tables['item']['file']).stat().st_size
    assert size == 128 + 40 * PACKED_FORMATS['tbe_int4'].bytes_per_row(6)
  assert not list(copy.rglob('*numbers*'))


def test_a_table_that_is_cut_anew_between_base_and_delta(
  run, copy, log, monkeypatch
):
  for cuts in ({}, {'item': 2, 'user': 3}, {'item': 4}):
    monkeypatch.setattr(published, 'CUT', cuts)
    run.delta(len(run.whole) + 1) if run.whole else run.base(1)
  with Follower(run.directory, copy, packed=PACKED, log=log) as follower:
    assert follower.update() == [1, 2, 3]
    assert_packed(follower, run.whole[3])


def test_rows_are_read_as_numbers(run, copy, log):
  run.line(1, 2)
  ids = np.array([7, 0, 7, 39])
  with Follower(run.directory, copy, packed=PACKED, log=log) as follower:
    follower.update()
    mine = follower.rows('item', ids)
  rows, step = ServingCopy(copy, verify=True).read('item', ids)
  bits = pack(run.whole[2]['item'], 'tbe_int4')
  wanted = packed_formats.split_parts(PACKED_FORMATS['tbe_int4'], bits, 6)[ids]
  assert step == 2 and rows.dtype == np.float32 and rows.shape == (4, 6)
  np.testing.assert_array_equal(rows, wanted)
  np.testing.assert_array_equal(mine, wanted)


def test_some_tables_packed_and_others_not(run, copy, log):
  run.line(1, 2)
  packed = {'user': 'tbe_int2'}
  with Follower(run.directory, copy, packed=packed, log=log) as follower:
    follower.update()
    assert_packed(follower, run.whole[2], packed)
  # Another format is another copy, and so is none.
  for other in (PACKED, None, {'user': 'tbe_int8'}):
    with Follower(run.directory, copy, packed=other, log=log) as follower:
      assert follower.update() == [1, 2]
      assert_packed(follower, run.whole[2], other or {})
      assert follower.update() == []


def test_a_killed_delta_is_applied_to_its_end(run, copy, log, monkeypatch):
  run.line(1)
  with Follower(run.directory, copy, packed=PACKED, log=log) as follower:
    follower.update()
    run.delta(2)
    write = TableFile.write_rows

    def die(self, ids, rows):
      write(self, ids, rows)
      if not run.killed:
        run.killed = True
        raise KeyboardInterrupt

    run.killed = False
    monkeypatch.setattr(TableFile, 'write_rows', die)
    with pytest.raises(KeyboardInterrupt):
      follower.update()
  monkeypatch.undo()
  with Follower(run.directory, copy, packed=PACKED, log=log) as follower:
    assert follower.step == 2
    assert_packed(follower, run.whole[2])
    assert 'applied to its end' in log.text()


def test_columns_that_are_missing_are_damage(run, copy, log):
  run.line(1)
  with Follower(run.directory, copy, packed=PACKED, log=log) as follower:
    follower.update()
    chunk = RowChunk('item', 0, np.arange(3), np.ones((3, 4)), {})
    with pytest.raises(DamagedError, match="'item' lack columns"):
      staged_tables.join_columns([chunk], 6)
    run.delta(2)
    change(file_of(run, 2, 'rows'))
    assert follower.update() == [] and 2 in follower.refused
    assert_packed(follower, run.whole[1])


def test_damage_of_a_packed_copy_is_found(run, copy, log):
  run.line(1)
  with Follower(run.directory, copy, packed=PACKED, log=log) as follower:
    follower.update()
    change(copy / follower.tables['user']['file'])
  with pytest.raises(CheckpointError, match='damaged in block 0'):
    ServingCopy(copy)
  with Follower(run.directory, copy, packed=PACKED, log=log) as follower:
    follower.update()
    assert_packed(follower, run.whole[1])
  path = copy / 'POSITION.json'
  body = json.loads(path.read_text())
  del body['crc32']
  body['tables']['user']['packed'] = 'tbe_int3'
  path.write_text(json.dumps(body))
  with pytest.raises(CheckpointError, match='damaged'):
    ServingCopy(copy)


@pytest.mark.parametrize(
  'packed, words',
  [
    ({'item': 'int5'}, "'item' cannot be packed as 'int5'; there are: fbgemm"),
    ({'itm': 'tbe_int4'}, 'to be packed, and not copied'),
  ],
)
def test_what_cannot_be_packed(run, copy, log, packed, words):
  with pytest.raises(ValueError, match=words):
    Follower(run.directory, copy, tables=['item'], packed=packed, log=log)


def test_the_command(run, copy, capsys):
  run.line(1, 2)
  words = [str(run.directory), str(copy), '--once']
  assert follow.main([*words, '--packed', 'item=tbe_int4,user=tbe_int8']) == 0
  packed = {'item': 'tbe_int4', 'user': 'tbe_int8'}
  assert_packed(ServingCopy(copy), run.whole[2], packed)
  assert follow.main([*words, '--packed', 'itm=tbe_int4']) == 2
  assert "no table 'itm'; there are: item" in capsys.readouterr().err
  for wrong in ('item', 'item=', 'item=x'):
    with pytest.raises(SystemExit):
      follow.main([*words, '--packed', wrong])
  assert 'cannot be packed' in capsys.readouterr().err


def test_a_table_is_packed_in_one_way():
  with pytest.raises(ValueError, match="names the table 'a' twice"):
    follow._parse_packed('a=tbe_int4,b=tbe_int8,a=tbe_int2')
  with pytest.raises(ValueError, match='a list of TABLE=FORMAT'):
    follow._parse_packed('')
