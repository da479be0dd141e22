"""What a sharding scheme can do; its name is a label and decides nothing.

A table is cut into equal column pieces, mostly one; the rows of a piece lie on
one device, on the devices of one host, or on all devices of a replica group.
Layouts, checks and the planner read the fields of a `Scheme`. Those built in:

| scheme             | pieces | rows of a piece lie on | `at` names, a piece   |
|--------------------|--------|------------------------|-----------------------|
| data_parallel      | 1      | every device, whole    | nothing               |
| table_wise         | 1      | one device             | the device            |
| column_wise        | n      | one device             | the device            |
| table_column_wise  | n      | one device             | devices of one host   |
| table_row_wise     | 1      | devices of one host    | the host              |
| grid               | n      | devices of one host    | the host              |
| row_wise           | 1      | all devices of a group | nothing               |

A scheme from outside the library is handed in by name, wherever plans are made
or read (`schemes={'mine': Scheme(...)}`).
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

# How far the rows of a piece are spread.
ONE, HOST, ALL = 'one', 'host', 'all'

# (turn, spec, hosts, devices) -> device or host of each piece. `turn` counts
# the tables in the order of their names; `spec` has `name`, `rows` and `dim`.
Places = Callable[[int, object, int, int], Sequence[int]]


class PlanError(ValueError):
  """A plan that cannot be; the message names the table and what to change."""


@dataclasses.dataclass(frozen=True)
class Scheme:
  """A way to cut a table.

  >>> Scheme(HOST).at_names
  'host'
  >>> Scheme(ONE, many_pieces=True).owners(hosts=2, devices=4)
  1

  Attributes:
    spread: over what the rows of a piece are spread: `ONE` device, the devices
      of one `HOST`, or `ALL` of a replica group; None where every device holds
      the table whole.
    many_pieces: whether columns may be cut into several pieces.
    one_host: whether the pieces must lie on devices of the same host.
    proposed: whether a planner considers it without being asked.
    places: where the pieces go, if that is what makes the scheme; a planner
      keeps to it. None: tables take turns, and a planner chooses.
  """

  spread: str | None
  many_pieces: bool = False
  one_host: bool = False
  # Not part of where rows lie: a plan that was read from a file has neither.
  proposed: bool = dataclasses.field(default=True, compare=False)
  places: Places | None = dataclasses.field(default=None, compare=False)

  def __post_init__(self):
    if self.spread not in (None, ONE, HOST, ALL):
      raise PlanError(
        f'spread is {self.spread!r}, must be one of {(ONE, HOST, ALL)}, or '
        'None for whole tables on every device'
      )
    if self.many_pieces and self.at_names is None:
      raise PlanError(
        f'many_pieces needs spread={ONE!r} or {HOST!r}: pieces are counted by '
        'the places that a plan names for them'
      )
    if self.one_host and not (self.many_pieces and self.spread == ONE):
      raise PlanError(
        f'one_host is about pieces on single devices: it needs spread={ONE!r} '
        'and many_pieces=True'
      )

  @property
  def at_names(self) -> str | None:
    """What `at` of a table names for each piece: 'device', 'host' or None."""
    return {ONE: 'device', HOST: 'host'}.get(self.spread)

  def owners(self, hosts: int, devices: int) -> int:
    """Over how many devices the rows of a piece go."""
    return {HOST: devices, ALL: hosts * devices}.get(self.spread, 1)

  def in_pieces(self) -> 'Scheme':
    """The scheme of column pieces that lie as the whole columns do here."""
    return dataclasses.replace(self, many_pieces=True)

  def most_pieces(self, hosts: int, devices: int) -> int:
    """Into how many pieces a table may be cut, if its width allows."""
    if not self.many_pieces:
      return 1
    if self.spread == HOST:
      return hosts
    return devices if self.one_host else hosts * devices

  def place(self, turn: int, spec, hosts: int, devices: int) -> tuple[int, ...]:
    """Device or host of each piece of a table, for plans of one scheme.

    Args:
      turn: number of the table in the order of names.
      spec: the table, with `name`, `rows` and `dim`.
      hosts: of a replica group.
      devices: of a host.
    """
    if self.places is not None:
      return tuple(self.places(turn, spec, hosts, devices))
    if self.at_names is None:
      return ()
    if not self.many_pieces:
      return (turn % (hosts if self.spread == HOST else hosts * devices),)
    count = find_most_pieces(spec.dim, self.most_pieces(hosts, devices))
    first = turn % hosts * devices if self.one_host else 0
    return tuple(range(first, first + count))


SCHEMES: dict[str, Scheme] = {
  'data_parallel': Scheme(None),
  'table_wise': Scheme(ONE),
  'column_wise': Scheme(ONE, many_pieces=True),
  'table_column_wise': Scheme(ONE, many_pieces=True, one_host=True),
  'table_row_wise': Scheme(HOST),
  'grid': Scheme(HOST, many_pieces=True, proposed=False),
  'row_wise': Scheme(ALL),
}


def add_to_schemes(outside: Mapping[str, Scheme] | None) -> dict[str, Scheme]:
  """The built-in schemes and those handed in, by name.

  >>> list(add_to_schemes({'mine': Scheme(ONE)}))[-2:]
  ['row_wise', 'mine']
  """
  outside = outside or {}
  if clashes := sorted(set(outside) & set(SCHEMES)):
    raise PlanError(
      f'schemes={clashes} are names of built-in schemes: choose other names'
    )
  return {**SCHEMES, **outside}


def find_scheme(name: str, schemes: Mapping[str, Scheme]) -> Scheme:
  """The scheme of that name; an error says which there are."""
  if name not in schemes:
    raise PlanError(describe_unknown(name, schemes))
  return schemes[name]


def describe_unknown(name: str, schemes: Mapping[str, Scheme]) -> str:
  """What an error says of a name that is none of the schemes."""
  return (
    f'scheme is {name!r}, must be one of {tuple(schemes)}, or be handed in '
    'with schemes={...}'
  )


def find_most_pieces(dim: int, most: int) -> int:
  """The most equal pieces, up to `most`, that a width can be cut into."""
  return max(n for n in range(1, most + 1) if dim % n == 0)
