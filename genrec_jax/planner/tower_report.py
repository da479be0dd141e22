"""What towers change of a step: numbers for programs, text for people."""

import dataclasses

from genrec_jax.formatting import format_bytes
from genrec_jax.planner.report_text import format_time
from genrec_jax.planner.workload import TowerLoad

FLAT = 'flat'  # begins the names of ways without towers


@dataclasses.dataclass(frozen=True)
class TowerLine:
  """One tower of a report.

  Attributes:
    host: on which it is.
    features: under it.
    vectors: that go in.
    kept: that come out.
    bytes: of the rows and slots of its tables.
  """

  host: int
  features: tuple[str, ...]
  vectors: int
  kept: int
  bytes: int


@dataclasses.dataclass(frozen=True)
class Way:
  """What a device sends for all tables in a step, and how long that takes.

  Attributes:
    name: of the way, in words.
    near_bytes: to devices of the same host.
    far_bytes: to those of other hosts.
    near_messages: to the former.
    far_messages: to the latter.
    exchange_s: predicted seconds of what travels.
    step_s: those of the whole step of the tables.
  """

  name: str
  near_bytes: float
  far_bytes: float
  near_messages: float
  far_messages: float
  exchange_s: float
  step_s: float


@dataclasses.dataclass(frozen=True)
class Stage:
  """A part of the exchange of towers, of all tables together.

  Attributes:
    name: what travels, in words.
    far: whether between hosts, or within them.
    bytes: that a device sends.
    messages: in which.
  """

  name: str
  far: bool
  bytes: float
  messages: float


@dataclasses.dataclass(frozen=True)
class TowerReport:
  """The towers of a plan, beside the same tables without them.

  Attributes:
    load: the towers.
    hosts: on which they are.
    towers: one by one.
    stages: what travels for features under them.
    ways: what a step sends flat, by SPTT alone and by the towers.
  """

  load: TowerLoad
  hosts: int
  towers: tuple[TowerLine, ...]
  stages: tuple[Stage, ...]
  ways: tuple[Way, ...]

  def to_dict(self) -> dict:
    """Everything as JSON can hold it."""
    return {
      **dataclasses.asdict(self),
      'compression': self.load.compression,
      'padding': self.load.padding,
    }

  def lines(self, top: int) -> list[str]:
    """The text, with the `top` first towers."""
    load = self.load
    found = [
      f'{load.count} towers on {self.hosts} hosts: {sum(load.vectors)} vectors '
      f'of {load.width} go in and {sum(load.kept)} of {load.dim} come out, '
      f'{load.compression:.3g} times fewer numbers; {load.padding:.1%} of what '
      'they send is padding',
      f'{"tower":>8} {"host":>5} {"in":>5} {"out":>5} {"bytes":>10}  features',
    ]
    for number, line in enumerate(self.towers[:top]):
      names = ', '.join(line.features[:top])
      more = len(line.features) - top
      found.append(
        f'{number:>8} {line.host:>5} {line.vectors:>5} {line.kept:>5} '
        f'{format_bytes(line.bytes):>10}  {names}'
        + (f' and {more:,} more' if more > 0 else '')
      )
    if len(self.towers) > top:
      found.append(f'{"":>8} and {len(self.towers) - top:,} more')
    return [
      *(*found, '', *self._list_stages(), '', *self._list_ways()),
      self._conclude(),
    ]

  def _conclude(self) -> str:
    """Whether the prediction speaks for the towers."""
    *others, towers = self.ways
    flat = min(
      (way for way in others if way.name.startswith(FLAT)),
      key=lambda way: way.step_s,
    )
    times = f'{format_time(towers.step_s)}, and {format_time(flat.step_s)} flat'
    ratio = flat.step_s / towers.step_s
    if ratio > 1:
      return (
        f'these towers pay: a step of the tables takes {times}, {ratio:.2f} '
        'times as long'
      )
    return (
      f'these towers do not pay here: a step of the tables takes {times}, '
      f'where it is {1 / ratio:.2f} times as fast'
    )

  def _list_stages(self) -> list[str]:
    lines = [
      'in a step, a device sends for features under towers:',
      f'{"":42} {"":>8} {"bytes":>10} {"messages":>9} {"of each":>10}',
    ]
    for stage in self.stages:
      each = stage.bytes / stage.messages if stage.messages else 0.0
      where = 'between' if stage.far else 'within'
      lines.append(
        f'{stage.name:42} {where:>8} {format_bytes(stage.bytes):>10} '
        f'{stage.messages:>9,.0f} {format_bytes(each):>10}'
      )
    return lines

  def _list_ways(self) -> list[str]:
    lines = [
      'with and without towers, a device sends for all tables:',
      f'{"":42} {"within hosts":>21} {"between hosts":>21} {"predicted":>21}',
      f'{"":42} {"bytes":>10} {"messages":>10} {"bytes":>10} {"messages":>10} '
      f'{"exchange":>10} {"step":>10}',
    ]
    for way in self.ways:
      lines.append(
        f'{way.name:42} {format_bytes(way.near_bytes):>10} '
        f'{way.near_messages:>10,.0f} {format_bytes(way.far_bytes):>10} '
        f'{way.far_messages:>10,.0f} {format_time(way.exchange_s):>10} '
        f'{format_time(way.step_s):>10}'
      )
    return lines
