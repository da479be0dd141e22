"""Levels the arrays of a placement, so that hardly any memory is padding.

Pieces of one width, dtype and optimizer share an array, which is equally deep
on all devices (embedding/layout.py). A large piece on one device is padding on
all others. Such pieces are cut by rows, over a host or over all devices, the
largest ones first, until the others can be laid so that no array is much deeper
on one device than in the mean.
"""

from collections.abc import Sequence

from genrec_jax.planner.hardware import Topology
from genrec_jax.planner.options import Option
from genrec_jax.planner.partition import Placement, partition_lpt

# What a plan may have of padding, of the bytes of its arrays, unless they are
# less than the second share of a device's memory.
MOST_PADDING, SMALL = 0.1, 0.1
# How far a device may be above the mean of an array; and what all arrays may
# have beside, of all bytes: few and small tables cannot be levelled.
SLACKS, SPARE = (0.05, 0.08), 0.02
# A piece that is larger than such a share of the mean of its array is cut.
SHARES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05, 0.02, 0.01)


def level_arrays(
  items: Sequence[Sequence[Option]],
  options: Sequence[Option],
  topology: Topology,
  cap: int,
) -> list[Placement]:
  """Placements whose arrays are about as deep on all devices, fastest first.

  Args:
    items: every option of each table.
    options: those of each table to begin with.
    topology: the machine.
    cap: bytes that a device may hold.
  """
  found = []
  for share in SHARES:
    chosen = _cut_large(items, options, topology, share)
    for slack in SLACKS:
      caps = _find_caps(chosen, topology, 1 + slack)
      found += [
        partition_lpt(chosen, topology, cap, by=by, array_caps=caps)
        for by in ('time', 'bytes')
      ]
  return sorted(filter(None, found), key=lambda placement: placement.rate)


def measure_padding(placement: Placement, allocated: int) -> float:
  """The share of the arrays' bytes that holds no row of a table.

  Args:
    placement: of all tables.
    allocated: bytes of the arrays of its plan on a device.
  """
  rows = sum(used - own for used, own in zip(placement.used, placement.buffers))
  return 1 - rows / len(placement.used) / max(1, allocated)


def _cut_large(items, options, topology, share: float) -> list[Option]:
  """The options, with others where a piece is too large for its array."""
  chosen = list(options)
  # What leaves an array makes its mean smaller, which makes other pieces too
  # large: once more, until nothing changes.
  for _ in range(len(SHARES)):
    limits = _find_caps(chosen, topology, share)
    smaller = [
      _find_smaller(own, option, limits) for own, option in zip(
        items, chosen, strict=True
      )
    ]  # fmt: skip
    if smaller == chosen:
      break
    chosen = smaller
  return chosen


def _find_smaller(own, option: Option, limits) -> Option:
  """The fastest option of a table that fits its array."""

  def fits(o: Option) -> bool:
    # What lies on all devices is as deep on each of them.
    alike = o.kind.at_names is None
    return alike or o.row_bytes <= limits.get(o.array, 0.0)

  fitting = [o for o in own if fits(o)]
  if fits(option) or not fitting:
    return option
  return min(fitting, key=lambda o: o.time * o.shards)


def _find_caps(
  options: Sequence[Option], topology: Topology, share: float
) -> dict[str, float]:
  """Array -> a share of its mean bytes on a device, and a little to spare."""
  total: dict[str, float] = {}
  for option in options:
    if option.array:
      total.setdefault(option.array, 0.0)
      total[option.array] += option.row_bytes * option.shards
  devices = topology.group_size
  spare = SPARE * sum(total.values()) / devices / max(1, len(total))
  return {name: share * x / devices + spare for name, x in total.items()}
