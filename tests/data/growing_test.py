"""Growing directories of any parts: their end, and the ends of parts."""

import os

import pytest

from genrec_jax.data import growing
from genrec_jax.data.part_place import PartPlace, locate_part
from tests.data.stream_test import batches, put


def test_a_stream_of_events_ends_too(tmp_path):
  for name in ('a.csv', 'b.csv'):
    put(tmp_path, name, seed=ord(name[0]))
  (tmp_path / growing.END).touch()
  wanted = len(list(batches(tmp_path)))
  assert len(list(batches(tmp_path, idle_s=None))) == wanted > 2


def test_states_of_events_say_where_parts_end_if_they_are_asked(tmp_path):
  put(tmp_path, 'a.csv', 0)
  (state,) = {tuple(iter(batches(tmp_path)).get_state())}
  assert state == ('taken', 'older', 'current', 'used')
  it = iter(batches(tmp_path, tells_ends=True))
  places = [locate_part(it.get_state()) for _ in it]
  assert [p.is_end for p in places] == [*[False] * (len(places) - 1), True]
  assert places[-1] == PartPlace('a.csv', len(places), len(places), 1)
  # A state that does not say it has no end.
  it = iter(batches(tmp_path))
  list(it)
  assert not locate_part(it.get_state()).is_end


def test_a_last_part_that_the_times_of_the_directory_hide(tmp_path):
  """File systems whose times cannot be relied on: END has the names read."""
  put(tmp_path, 'a.csv', 0)
  os.utime(tmp_path, (1e9, 1e9))

  def finish():
    put(tmp_path, 'b.csv', 1)
    (tmp_path / growing.END).touch()
    os.utime(tmp_path, (1e9, 1e9))
    return False

  names = []
  stream = batches(tmp_path, idle_s=None, stop=finish, log=names.append)
  assert list(stream)
  assert [line.split(':')[1] for line in names] == [' a.csv', ' b.csv']


def test_a_place_is_what_json_can_say():
  place = PartPlace('a.csv', 1, 2)
  assert PartPlace(**place.to_json()) == place
  assert not PartPlace('empty.csv', 0, 0).is_end
  with pytest.raises(TypeError):
    PartPlace(rows=3)
