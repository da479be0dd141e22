"""What a service that keeps users between calls may use."""

import dataclasses
import json
import numbers

from genrec_jax.serve.kv_cache import PagedCache


@dataclasses.dataclass(frozen=True)
class KeepOptions:
  """Memory, and when what is kept grows or shrinks.

  Attributes:
    device_bytes: of keys and values on the device.
    host_bytes: of those that have no room there.
    dtype: 'float32' or 'bfloat16', of what is kept.
    page_tokens: tokens of a page of the device.
    extend_by: events that are added at once, at most; more are added in turns.
    remembered: users whose events are remembered; of others, those that were
      used longest ago, the whole history must be given again.
    drop_at_once: how many of the oldest events leave a history that is longer
      than the model reads, at once. Each time, the history is computed anew:
      with 1, as published, at every event of a user with a long history. With
      n, at every n-th; up to n - 1 events fewer are read meanwhile.
  """

  device_bytes: float = 1 << 30
  host_bytes: float = 0
  dtype: str = 'float32'
  page_tokens: int = 64
  extend_by: int = 16
  remembered: int = 100_000
  drop_at_once: int = 1

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      is_bytes = field.name.endswith('_bytes')
      kind = numbers.Real if is_bytes else numbers.Integral
      if field.name == 'dtype':
        continue
      if isinstance(value, bool) or not isinstance(value, kind):
        what = 'a number' if is_bytes else 'a whole number'
        raise ValueError(f'{field.name} is {value!r}, must be {what}')
      if is_bytes and not 0 <= value < 2**63:
        raise ValueError(
          f'{field.name} is {value!r}, must be from 0 to 2^63 bytes'
        )
      if not is_bytes and value < 1:
        raise ValueError(f'{field.name} must be at least 1, not {value}')

  def check_length(self, most: int) -> None:
    """Refuses to drop more events than the longest history has."""
    if self.drop_at_once > most:
      raise ValueError(
        f'drop_at_once is {self.drop_at_once:,}, and the model reads at most '
        f'{most:,} events of a history'
      )

  def make_cache(self, width: int, most_tokens: int) -> PagedCache:
    """An empty cache for rows of so many numbers, and users of such lengths."""
    return PagedCache(
      width=width,
      most_tokens=most_tokens,
      device_bytes=self.device_bytes,
      host_bytes=self.host_bytes,
      dtype=self.dtype,
      page_tokens=self.page_tokens,
    )


def are_same_settings(one, other) -> bool:
  """Whether settings are equal; a file knows no tuples.

  >>> are_same_settings({'ks': (1, 10)}, {'ks': [1, 10]})
  True
  """
  texts = [json.dumps(x, sort_keys=True, default=str) for x in (one, other)]
  return texts[0] == texts[1]


def list_rungs(most: int) -> tuple[int, ...]:
  """Lengths of histories that programs have room for, ascending.

  >>> list_rungs(200)
  (64, 96, 144, 200)
  """
  found = [most]
  while found[-1] > 64:
    # Two thirds, and not a half: a call pays for the room it does not use.
    found.append(-(-found[-1] * 2 // 3 // 16) * 16)
  return tuple(reversed(found))
