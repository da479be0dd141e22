"""How rows travel between the devices that hold them and those that need them.

There are three kinds of exchange, with the same results:

| kind       | forward                             | backward               |
|------------|-------------------------------------|------------------------|
| gather     | all_gather ids, all_to_all rows     | all_gather grads       |
| all_to_all | all_to_all ids, all_to_all rows     | all_to_all grads       |
| ragged     | as all_to_all, but without padding, on TPUs and GPUs    |

With W devices, `gather` has every device answer for all addresses of all W, so
that its cost grows with W. The other two reserve room for `capacity` times an
even share of the rows for each peer. If some device needs more in a step, what
finds no room travels in further rounds through the same buffers
(overflow='rounds'), or the rows become NaN (overflow='raise').
"""

import dataclasses
from collections.abc import Mapping

from genrec_jax.embedding.scheme import ALL
from genrec_jax.numerics.formats import FORMATS, Formats
from genrec_jax.parallel import codecs

KINDS = ('gather', 'all_to_all', 'ragged')
OVERFLOWS = ('rounds', 'raise')


@dataclasses.dataclass(frozen=True)
class Exchange:
  """How rows travel; defaults in `config.parallel`.

  Attributes:
    kind: 'gather', 'all_to_all' or 'ragged'.
    capacity: room for the rows of one peer, as a multiple of an even share.
    overflow: what happens if the room is too small: 'rounds' or 'raise'.
    forward: name of the number format of the rows, see `codecs.names`.
    backward: name of the number format of their gradients.
    near_forward: that of sums within a host, on their way to the towers; '' is
      `forward`.
    near_backward: that of their gradients; '' is `backward`.
    gradient_scale: power of two by which gradients in float16 are multiplied
      before they travel, and divided afterwards. Formats with more range, or
      with a scale for each row, do not need it.
    formats: the available number formats, see
      `numerics.formats.extend_formats`.
  """

  kind: str = 'all_to_all'
  capacity: float = 2.0
  overflow: str = 'rounds'
  forward: str = 'float32'
  backward: str = 'float32'
  near_forward: str = ''
  near_backward: str = ''
  gradient_scale: float = 4096.0
  # A mapping has no hash; programs kept by their exchange still compare it.
  formats: Formats = dataclasses.field(
    default_factory=lambda: FORMATS, hash=False, repr=False
  )

  def __post_init__(self):
    for field, allowed in {
      'kind': KINDS,
      'overflow': OVERFLOWS,
      'forward': codecs.names(self.formats),
      'backward': codecs.names(self.formats),
      'near_forward': ('', *codecs.names(self.formats)),
      'near_backward': ('', *codecs.names(self.formats)),
    }.items():
      if getattr(self, field) not in allowed:
        raise ValueError(
          f'exchange.{field} is {getattr(self, field)!r}, must be one of '
          f'{allowed}'
        )
    if not self.capacity > 0:
      raise ValueError(
        f'exchange.capacity is {self.capacity}, must be positive'
      )
    powers = [2.0**power for power in range(-24, 25)]
    if self.gradient_scale not in powers:
      raise ValueError(
        f'exchange.gradient_scale is {self.gradient_scale}, must be a power of '
        'two from 2**-24 to 2**24, such as 1024, so that scaling rounds nothing'
      )

  @property
  def row_codec(self) -> codecs.Codec:
    """How rows travel."""
    return codecs.find_codec(self.forward, formats=self.formats)

  @property
  def gradient_codec(self) -> codecs.Codec:
    """How gradients of rows travel."""
    return self._find_gradient_codec(self.backward)

  @property
  def near_row_codec(self) -> codecs.Codec:
    """How sums travel within a host, on their way to towers."""
    name = self.near_forward or self.forward
    return codecs.find_codec(name, formats=self.formats)

  @property
  def near_gradient_codec(self) -> codecs.Codec:
    """How their gradients travel."""
    return self._find_gradient_codec(self.near_backward or self.backward)

  def _find_gradient_codec(self, name: str) -> codecs.Codec:
    codec = codecs.find_codec(name, backward=True, formats=self.formats)
    if name != 'float16':
      return codec
    return dataclasses.replace(codec, scale=self.gradient_scale)

  @property
  def codec_names(self) -> str:
    """What rows and gradients look like on the wire, in a word."""
    return f'{self.forward}/{self.backward}'

  def with_codecs(self, codecs: tuple[str, str] | None) -> 'Exchange':
    """The exchange with other codecs (of rows, of gradients); None: as it is.

    >>> Exchange().with_codecs(("int8", "bfloat16")).codec_names
    'int8/bfloat16'
    """
    if codecs is None:
      return self
    forward, backward = codecs
    return dataclasses.replace(self, forward=forward, backward=backward)

  def count_codecs(
    self, plan, codecs: Mapping[str, tuple[str, str] | None]
  ) -> dict[str, int]:
    """'rows/gradients', the formats that travel -> how many tables.

    Args:
      plan: a `ShardingPlan`. Tables that are on every device do not travel.
      codecs: table -> its own codecs; None for those of the exchange.
    """
    found = {}
    for table, own in codecs.items():
      held = plan.tables.get(table)
      if held is not None and held.spread is not None:
        name = self.with_codecs(own).codec_names
        found[name] = found.get(name, 0) + 1
    return found

  def room(self, needed: int, devices: int, repeats: int = 1) -> int:
    """How many rows one peer can be asked for, of `needed` in all.

    >>> Exchange(capacity=2.0).room(1000, devices=8)
    250

    Args:
      needed: rows that a device asks for.
      devices: that there are to ask.
      repeats: how often a device may ask for one row.
    """
    share = int(-(-needed * self.capacity // devices))
    # At least 8, since few rows are rarely even, and as many as one row may be
    # asked for: else no round would be done with it.
    return min(needed, max(8, repeats, share))

  def total_room(self, needed: int, devices: int, repeats: int = 1) -> int:
    """How many rows all peers of a 'ragged' exchange can ask for together.

    >>> Exchange(capacity=2.0).total_room(1000, devices=8)
    2000

    Args:
      needed: rows that a device asks for.
      devices: that there are.
      repeats: how often a device may ask for one row.
    """
    return max(8, repeats * devices, int(needed * self.capacity))

  def sums_give_way(
    self, spread: str | None, bags: float, ids: float, devices: int
  ) -> bool:
    """Whether rows travel in place of the sums of a feature, come what may.

    If the rows of a table are spread over all devices, each of them makes a sum
    for each bag of all of them, mostly of nothing once there are more devices
    than ids in a bag. Rows then cost less, and no more on more devices.

    >>> Exchange(capacity=2.0).sums_give_way('all', 100, 100 * 4, devices=8)
    True
    >>> Exchange(capacity=2.0).sums_give_way('all', 100, 100 * 5, devices=8)
    False

    Args:
      spread: which devices hold the rows of a piece.
      bags: of a device.
      ids: for which they have room.
      devices: that there are.
    """
    return spread == ALL and bags * devices >= self.capacity * ids
