"""What is kept of users: rows, tiers, and who may use them."""

import doctest
import threading

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from genrec_jax.serve import keep_options, kv_cache
from genrec_jax.serve.keep_options import KeepOptions
from genrec_jax.serve.kv_cache import CacheEmptied, PagedCache, Share

WIDTH, PAGE = 4, 2
BYTES = WIDTH * 4 * PAGE  # of a page


def make(pages=6, host=0, **options):
  return PagedCache(
    width=WIDTH,
    most_tokens=6,
    device_bytes=pages * BYTES,
    host_bytes=host * BYTES,
    page_tokens=PAGE,
    **options,
  )


def rows(value, count):
  return (
    np.full((count, WIDTH), value, np.float32)
    + np.arange(count, dtype=np.float32)[:, None]
  )


def put(cache, user, count, value, start=0, stamp=1, padding=1):
  given = np.concatenate([rows(value, count), rows(np.nan, padding)])
  with cache.hold([user]):
    cache.put(jnp.asarray(given), [Share(user, stamp, start, count)])


def get(cache, user, stamp=1):
  with cache.hold([user]):
    entry = cache.find(user, stamp)
    if entry is None:
      return None
    return np.asarray(cache.read(cache.list_slots(entry)))


def test_the_examples():
  assert doctest.testmod(kv_cache).failed == 0


def test_rows_are_added_behind_others():
  cache = make()
  put(cache, 'a', 3, 10)
  put(cache, 'b', 1, 50)
  put(cache, 'a', 3, 20, start=3)
  wanted = np.concatenate([rows(10, 3), rows(20, 3)])
  np.testing.assert_array_equal(get(cache, 'a'), wanted)
  np.testing.assert_array_equal(get(cache, 'b'), rows(50, 1))
  put(cache, 'a', 2, 30)  # in place of what there was
  np.testing.assert_array_equal(get(cache, 'a'), rows(30, 2))
  assert cache.used_bytes == 2 * BYTES
  with pytest.raises(ValueError, match="from 5 on do not follow .* 'a'"):
    put(cache, 'a', 1, 0, start=5)


def test_rows_of_several_users_go_and_come_together():
  cache = make()
  given = np.concatenate([rows(1, 2), rows(7, 3)])
  with cache.hold(['a', 'b']):
    cache.put(jnp.asarray(given), [Share('a', 1, 0, 2), Share('b', 1, 0, 3)])
  np.testing.assert_array_equal(get(cache, 'a'), rows(1, 2))
  np.testing.assert_array_equal(get(cache, 'b'), rows(7, 3))


def test_another_stamp_is_not_found():
  cache = make()
  put(cache, 'a', 2, 1)
  assert get(cache, 'a', stamp=2) is None
  assert get(cache, 'a') is None  # nor is what it had before
  assert (cache.counts.stale, cache.counts.misses) == (1, 1)
  assert cache.used_bytes == 0


def test_who_was_used_longest_ago_goes_first():
  cache = make(pages=6)
  for i, user in enumerate('abc'):
    put(cache, user, 4, 10 * i)
  get(cache, 'a')
  put(cache, 'd', 4, 90)
  assert get(cache, 'b') is None
  for user, value in (('a', 0), ('c', 20), ('d', 90)):
    np.testing.assert_array_equal(get(cache, user), rows(value, 4))
  assert cache.counts.evicted == 1


def test_what_has_no_room_waits_on_the_host():
  cache = make(pages=4, host=4)
  for i, user in enumerate('abcd'):
    put(cache, user, 3, 10 * i)
  assert len(cache) == 4 and cache.counts.moved == 2
  for i, user in enumerate('abcd'):  # each sends another to the host
    np.testing.assert_array_equal(get(cache, user), rows(10 * i, 3))
  put(cache, 'e', 3, 70)
  put(cache, 'f', 3, 80)
  assert cache.counts.evicted and cache.host_used <= cache.host_bytes
  np.testing.assert_array_equal(get(cache, 'f'), rows(80, 3))


def test_pages_of_16_bits():
  cache = make(dtype='bfloat16')
  put(cache, 'a', 2, 1.001)
  found = get(cache, 'a')
  assert found.dtype == ml_dtypes.bfloat16
  assert cache.row_bytes == 2 * WIDTH


@pytest.mark.parametrize(
  'change, message',
  [
    (dict(pages=2), r'user of 6 tokens needs 96 B; give it more'),
    (dict(dtype='float16'), "'float16', must be one of float32, bfloat16"),
  ],
)
def test_what_cannot_be(change, message):
  with pytest.raises(ValueError, match=message):
    make(**change)


def test_users_of_one_call_may_be_too_many():
  cache = make(pages=3)
  with cache.hold(['a', 'b']):
    cache.put(jnp.asarray(rows(1, 4)), [Share('a', 1, 0, 4)])
    with pytest.raises(MemoryError, match='all 3 pages .* fewer users'):
      cache.put(jnp.asarray(rows(2, 4)), [Share('b', 1, 0, 4)])
  np.testing.assert_array_equal(get(cache, 'a'), rows(1, 4))
  put(cache, 'b', 4, 2)
  np.testing.assert_array_equal(get(cache, 'b'), rows(2, 4))


def test_a_write_that_fails_leaves_nothing_behind(monkeypatch):
  cache = make()
  put(cache, 'a', 2, 1)

  def fail(*args):
    raise KeyboardInterrupt

  with monkeypatch.context() as m:
    m.setattr(kv_cache, '_write', fail)
    with pytest.raises(KeyboardInterrupt):
      put(cache, 'b', 2, 2)
  assert get(cache, 'a') is None and get(cache, 'b') is None
  put(cache, 'a', 2, 3)
  np.testing.assert_array_equal(get(cache, 'a'), rows(3, 2))


def test_a_user_is_of_one_call_at_a_time():
  """Threads that replace and add never see each other's rows."""
  cache, wrong = make(pages=9, host=9), []
  users = 'abcdef'

  def work(seed):
    rng = np.random.default_rng(seed)
    for _ in range(60):
      some = list(rng.choice([*users], 2, replace=False))
      with cache.hold(some):
        for user in some:
          value, count = float(rng.integers(100)), int(rng.integers(1, 4))
          cache.put(jnp.asarray(rows(value, count)), [Share(user, 1, 0, count)])
          more = int(rng.integers(1, 3))
          cache.put(
            jnp.asarray(rows(value + count, more)),
            [Share(user, 1, count, more)],
          )
          entry = cache.find(user, 1)
          found = np.asarray(cache.read(cache.list_slots(entry)))
          if not np.array_equal(found, rows(value, count + more)):
            wrong.append(user)

  threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(60)
  assert not any(t.is_alive() for t in threads) and not wrong


def test_what_is_refused_leaves_no_entry():
  cache = PagedCache(
    width=2, most_tokens=4, device_bytes=4 * 2 * 4 * 2, page_tokens=4
  )
  rows = jnp.ones((12, 2))
  with cache.hold(['a', 'b', 'c']):
    with pytest.raises(MemoryError, match='ask for fewer users'):
      cache.put(rows, [Share(u, '', 0, 4) for u in 'abc'])
    assert len(cache) == 0 and cache.used_bytes == 0
    with pytest.raises(ValueError, match='12 rows are fewer than the 13'):
      cache.put(rows, [Share('a', '', 0, 13)])
    cache.put(rows, [Share('a', '', 0, 4)])
    slots = cache.list_slots(cache.peek('a'))
    assert float(cache.read(slots, cache.generation).sum()) == 8
    with pytest.raises(CacheEmptied, match='call again'):
      cache.read(slots, cache.generation - 1)


@pytest.mark.parametrize(
  'options, message',
  [
    (dict(device_bytes=float('nan')), 'device_bytes is nan, must be from 0'),
    (dict(host_bytes=float('inf')), 'host_bytes is inf, must be from 0'),
    (dict(host_bytes=-5), 'host_bytes is -5, must be from 0'),
    (dict(device_bytes='1GB'), "device_bytes is '1GB', must be a number"),
    (dict(extend_by=1.5), 'extend_by is 1.5, must be a whole number'),
    (dict(remembered=True), 'remembered is True, must be a whole number'),
    (dict(drop_at_once=0), 'drop_at_once must be at least 1, not 0'),
  ],
)
def test_options_that_cannot_be(options, message):
  with pytest.raises(ValueError, match=message):
    KeepOptions(**options)


def test_the_examples_of_the_options():
  assert doctest.testmod(keep_options).failed == 0
