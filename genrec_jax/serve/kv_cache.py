"""What is kept of users between calls: rows of keys and values, in pages.

A `PagedCache` has one array on the device, `[pages * page_tokens, W]`, in which
a user has as many pages as its tokens need, and a second tier on the host. Both
have a budget of bytes. Where the device is full, the users that were used
longest ago move to the host; where that is full, they are forgotten. Nothing
here knows of models: rows are what `models.kept_requests` makes.

An entry has a stamp, of whatever the rows depend on beside the events: weights
above all. An entry with another stamp is not found. A user is one call's at a
time: `hold` keeps other threads from it between the look at its entry and the
last use of its rows.

Programs see few shapes, so that nothing is compiled while users wait: what goes
to the host and comes back has the size of the largest user.
"""

import collections
import contextlib
import dataclasses
import threading
from collections.abc import Hashable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from genrec_jax.formatting import format_bytes

DTYPES = ('float32', 'bfloat16')
NOBODY = ('nobody',)  # holds what is moved before anybody asks


@dataclasses.dataclass
class Entry:
  """What is kept of a user.

  Attributes:
    stamp: of what the rows were made by.
    tokens: rows there are.
    pages: of the device, in the order of the tokens; () of one on the host.
    rows: `[tokens, W]` on the host; None of one on the device.
  """

  stamp: Hashable
  tokens: int
  pages: tuple[int, ...] = ()
  rows: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Share:
  """Whose some packed rows are.

  Attributes:
    user: the user.
    stamp: of the rows.
    start: number of the first of them among the user's tokens.
    count: how many.
  """

  user: Hashable
  stamp: Hashable
  start: int
  count: int


@dataclasses.dataclass
class Counts:
  """What has happened in a cache.

  Attributes:
    hits: lookups that found their entry on the device.
    host_hits: lookups that found it on the host.
    misses: lookups of users of whom nothing is kept.
    stale: lookups that found an entry with another stamp.
    moved: entries that went from the device to the host.
    evicted: entries that were forgotten for want of room.
  """

  hits: int = 0
  host_hits: int = 0
  misses: int = 0
  stale: int = 0
  moved: int = 0
  evicted: int = 0


class CacheEmptied(RuntimeError):
  """What a call had kept is gone: a write of another call has failed."""


class PagedCache:
  """Rows of tokens by user, on the device and on the host.

  >>> cache = PagedCache(width=4, most_tokens=4, device_bytes=1 << 12,
  ...                    page_tokens=2)
  >>> cache.pages
  128
  >>> with cache.hold(['ann']):
  ...   cache.put(jnp.ones((3, 4)), [Share('ann', 'step 7', 0, 3)])
  ...   entry = cache.find('ann', 'step 7')
  ...   float(cache.read(cache.list_slots(entry)).sum())
  12.0

  Args:
    width: numbers of a row.
    most_tokens: of a user.
    device_bytes: budget of the device.
    host_bytes: budget of the host; 0 for none.
    dtype: 'float32' or 'bfloat16', of what is kept.
    page_tokens: tokens of a page.

  Raises:
    ValueError: the device would not hold a single user.
  """

  def __init__(
    self,
    *,
    width: int,
    most_tokens: int,
    device_bytes: int,
    host_bytes: int = 0,
    dtype: str = 'float32',
    page_tokens: int = 64,
  ):
    if dtype not in DTYPES:
      raise ValueError(
        f'dtype of a cache is {dtype!r}, must be one of {", ".join(DTYPES)}'
      )
    for what, value in dict(width=width, page_tokens=page_tokens).items():
      if value < 1:
        raise ValueError(f'{what} must be at least 1, not {value}')
    self.width, self.page_tokens = width, page_tokens
    self.dtype = jnp.dtype(dtype)
    self.row_bytes = width * self.dtype.itemsize
    page_bytes = page_tokens * self.row_bytes
    self.pages = int(device_bytes // page_bytes)
    wanted = -(-most_tokens // page_tokens)
    if self.pages < wanted:
      raise ValueError(
        f'the cache may have {format_bytes(device_bytes)} on the device, and a '
        f'user of {most_tokens:,} tokens needs '
        f'{format_bytes(wanted * page_bytes)}; give it more, keep bfloat16, or '
        'keep shorter histories'
      )
    self._user_slots = wanted * page_tokens
    self.host_bytes, self.host_used = int(host_bytes), 0
    self.counts = Counts()
    self.generation = 0
    self._lock = threading.RLock()
    self._held: set[Hashable] = set()
    self._returned = threading.Condition(self._lock)
    self._start_empty()

  def _start_empty(self) -> None:
    self.generation += 1
    self._array = jnp.zeros(
      (self.pages * self.page_tokens, self.width), self.dtype
    )
    self._free = list(range(self.pages - 1, -1, -1))
    # In the order of their last use.
    self._device: collections.OrderedDict = collections.OrderedDict()
    self._host: collections.OrderedDict = collections.OrderedDict()
    self.host_used = 0

  def __len__(self) -> int:
    return len(self._device) + len(self._host)

  @property
  def used_bytes(self) -> int:
    """Of the pages that users have on the device."""
    used = self.pages - len(self._free)
    return used * self.page_tokens * self.row_bytes

  @contextlib.contextmanager
  def hold(self, users: Sequence[Hashable]) -> Iterator[None]:
    """Keeps others from users, and these users where they are.

    Args:
      users: waited for until nobody holds any of them, and until there are
        pages for all that are held, however long their histories.
    """
    users = set(users)

    def is_free():
      if not self._held:
        return True  # what one call may hold is seen when it asks for pages
      wanted = (len(users) + len(self._held)) * self._user_slots
      return not users & self._held and wanted <= self.no_slot

    with self._returned:
      # All at once: two calls that each have one of two would wait for ever.
      self._returned.wait_for(is_free)
      self._held |= users
    try:
      yield
    finally:
      with self._returned:
        self._held -= users
        self._returned.notify_all()

  @contextlib.contextmanager
  def serve(self, users: Sequence[Hashable]) -> Iterator[None]:
    """Holds users, and drops them if what is done for them fails.

    Rows may then be kept of events that nobody remembers, and other events may
    follow.

    Args:
      users: as in `hold`.
    """
    with self.hold(users):
      try:
        yield
      except BaseException:
        for user in users:
          self.drop(user)
        raise

  def warm_up(self) -> None:
    """Compiles what moves users between the device and the host."""
    rows = self.read(np.full(self._user_slots, self.no_slot, np.int32))
    self.put(rows, [])

  def peek(self, user: Hashable) -> Entry | None:
    """The entry of a user, wherever it is; nothing is counted or moved."""
    with self._lock:
      return self._device.get(user) or self._host.get(user)

  def find(self, user: Hashable, stamp: Hashable) -> Entry | None:
    """The entry of a user, on the device by now; None if there is none.

    Args:
      user: held.
      stamp: that it must have. An entry with another one is dropped.
    """
    with self._lock:
      entry = self._device.get(user) or self._host.get(user)
      if entry is None:
        self.counts.misses += 1
        return None
      if entry.stamp != stamp:
        self.counts.stale += 1
        self.drop(user)
        return None
      if entry.rows is None:
        self._device.move_to_end(user)
        self.counts.hits += 1
        return entry
      self.counts.host_hits += 1
      self.drop(user)
      rows = np.zeros((self._user_slots, self.width), self.dtype)
      rows[: entry.tokens] = entry.rows
      self.put(jnp.asarray(rows), [Share(user, stamp, 0, entry.tokens)])
      return self._device[user]

  def put(self, rows: jax.Array, shares: Sequence[Share]) -> None:
    """Keeps rows behind those that their users have already.

    Args:
      rows: `[N, W]`, those of each share one behind the other; what is left is
        padding.
      shares: of users that are held. One that starts at 0 takes the place of
        what was kept; any other must start where the rows of the user end.

    Raises:
      MemoryError: users that are held fill the device.
      ValueError: a share does not follow what there is.
    """
    wanted = sum(share.count for share in shares)
    if wanted > len(rows):
      raise ValueError(f'{len(rows):,} rows are fewer than the {wanted:,} told')
    with self._lock:
      try:
        self._put(rows, shares)
      except (MemoryError, ValueError):
        # Nobody may find pages in which nothing was written.
        for share in shares:
          if share.start == 0:
            self.drop(share.user)
        raise

  def _put(self, rows: jax.Array, shares: Sequence[Share]) -> None:
    slots, entries = [], []
    for share in shares:
      entry = self._device.get(share.user)
      if share.start == 0:
        self.drop(share.user)
        entry = Entry(share.stamp, 0)
      if entry is None or (entry.stamp, entry.tokens) != (
        share.stamp,
        share.start,
      ):
        raise ValueError(
          f'rows from {share.start:,} on do not follow what is kept of '
          f'{share.user!r}'
        )
      self._add_pages(share, entry)
      end = share.start + share.count
      slots.append(self._place(entry.pages)[share.start : end])
      entries.append((entry, end))
    where = np.full(len(rows), self._array.shape[0], np.int32)
    found = np.concatenate(slots) if slots else where[:0]
    where[: len(found)] = found
    try:
      self._array = _write(self._array, rows, jnp.asarray(where))
    except BaseException:
      # The array was given away: nothing in it can be trusted any more.
      self._start_empty()
      raise
    for entry, end in entries:
      entry.tokens = end

  def read(self, slots: np.ndarray, generation: int | None = None) -> jax.Array:
    """`[N, W]` rows of slots; zeros of those beyond the array.

    Args:
      slots: of entries.
      generation: of the cache when the entries were found or put.

    Raises:
      CacheEmptied: the cache has been emptied since.
    """
    with self._lock:  # as long as the array is being changed
      if generation not in (None, self.generation):
        raise CacheEmptied(
          'the cache was emptied because a write of another call failed; call '
          'again'
        )
      return _gather(self._array, jnp.asarray(slots, jnp.int32))

  def list_slots(self, entry: Entry) -> np.ndarray:
    """`[tokens]` int32 slots of an entry of the device."""
    return self._place(entry.pages)[: entry.tokens]

  @property
  def no_slot(self) -> int:
    """A slot beyond the array, for padding."""
    return self.pages * self.page_tokens

  def drop(self, user: Hashable) -> None:
    """Forgets a user."""
    with self._lock:
      if (entry := self._device.pop(user, None)) is not None:
        self._free.extend(reversed(entry.pages))
      if (entry := self._host.pop(user, None)) is not None:
        self.host_used -= entry.rows.nbytes

  def clear(self) -> None:
    """Forgets everybody whom nobody holds."""
    with self._lock:
      for user in [*self._device, *self._host]:
        if user not in self._held:
          self.drop(user)

  def _place(self, pages: Sequence[int]) -> np.ndarray:
    first = np.asarray(pages, np.int32) * self.page_tokens
    inside = np.arange(self.page_tokens, dtype=np.int32)
    return (first[:, None] + inside).reshape(-1)

  def _add_pages(self, share: Share, entry: Entry) -> None:
    wanted = -(-(share.start + share.count) // self.page_tokens)
    more = max(wanted - len(entry.pages), 0)
    # Registered first, so that its pages are found again if this fails.
    self._device[share.user] = entry
    self._device.move_to_end(share.user)
    while more > len(self._free):
      self._make_room(share.user)
    entry.pages += tuple(self._free.pop() for _ in range(more))

  def _make_room(self, wanting: Hashable) -> None:
    """Takes the pages of the user that was used longest ago."""
    user = next(
      (u for u in self._device if u not in self._held and u != wanting), None
    )
    if user is None:
      self.drop(wanting)
      raise MemoryError(
        f'users of calls that are running have all {self.pages} pages of the '
        'cache; ask for fewer users at a time, or give the cache more bytes'
      )
    entry = self._device[user]
    size = entry.tokens * self.row_bytes
    if not size or size > self.host_bytes:
      self.drop(user)
      self.counts.evicted += 1
      return
    slots = np.full(self._user_slots, self.no_slot, np.int32)
    slots[: entry.tokens] = self.list_slots(entry)
    rows = np.asarray(self.read(slots))[: entry.tokens].copy()
    self.drop(user)
    while self.host_used + size > self.host_bytes:
      self.drop(next(iter(self._host)))
      self.counts.evicted += 1
    self._host[user] = Entry(entry.stamp, entry.tokens, rows=rows)
    self.host_used += size
    self.counts.moved += 1


@jax.jit
def _gather(array, slots):
  return array.at[slots].get(mode='fill', fill_value=0)


def _write_rows(array, rows, slots):
  return array.at[slots].set(rows.astype(array.dtype), mode='drop')


_write = jax.jit(_write_rows, donate_argnums=0)
