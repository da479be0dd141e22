"""A model, not a measurement: a training step of DLRM, flat and by towers.

Time = compute + memory + exposed exchange + exposed sum of gradients, from
`dmt_assumptions.json`, which was committed before anything was computed, and
the exchange times of `genrec_jax/planner/exchange_time.py`. benchmarks/
dmt_speedup.py prints what comes out.
"""

import dataclasses
import itertools
import json
import math
import pathlib
from collections.abc import Mapping

from genrec_jax.embedding.exchange import Exchange
from genrec_jax.planner import hardware
from genrec_jax.planner.exchange_time import (
  ExchangeTime,
  list_flat,
  list_towers,
  time_exchange,
)
from genrec_jax.planner.hardware import Topology
from genrec_jax.planner.traffic import Wire

FILE = pathlib.Path(__file__).with_name('dmt_assumptions.json')
ASSUMED = json.loads(FILE.read_text())
LEVELS = ('low', 'middle', 'high')
GUESSES = {
  name: {level: entry[level] for level in LEVELS}
  for group in ('step', 'exchange')
  for name, entry in ASSUMED[group].items()
  if 'low' in entry
}
MODELS = ('small', 'large', 'cross')
COMPRESSIONS = ASSUMED['towers']['compression']['value']
_SIZES = {k: v['value'] for k, v in ASSUMED['model'].items()}
EXAMPLES, FEATURES = _SIZES['examples'], _SIZES['features']
COLUMNS = _SIZES['columns']
WIRE = Wire(Exchange(forward=_SIZES['format'], backward=_SIZES['format']))
ELEMENT = WIRE.row_bytes(1)[0]  # bytes


def choose(level: str = 'middle', **levels: str) -> dict[str, float]:
  """Values of all guesses at a level, some of them at another one.

  >>> choose(mfu='low')['mfu'], choose()['mfu']
  (0.15, 0.3)
  """
  if unknown := set(levels) - set(GUESSES):
    raise ValueError(f'no guesses {sorted(unknown)}; there are {[*GUESSES]}')
  return {k: v[levels.get(k, level)] for k, v in GUESSES.items()}


def make_machine(name: str, devices: int, guess: Mapping) -> Topology:
  """A preset with the latencies and rates that are assumed."""
  preset = hardware.find_topology(name)
  # On a torus all links are alike.
  far = 'near' if preset.torus else 'far'
  return hardware.replace_numbers(
    preset,
    hosts=devices // preset.devices,
    intra=preset.intra * guess['near_rate_reached'],
    inter=preset.inter * guess[f'{far}_rate_reached'],
    near_latency=1e-6 * guess['near_latency_us'],
    far_latency=1e-6 * guess[f'{far}_latency_us'],
    near_half_message=1e3 * guess['near_half_message_kb'],
    far_half_message=1e3 * guess[f'{far}_half_message_kb'],
  )


@dataclasses.dataclass(frozen=True)
class Work:
  """What an example costs beside the exchange.

  Attributes:
    layers: multiply-adds of layers above the towers, as many as parameters.
    dots: multiply-adds of pairwise products.
    module: multiply-adds of the tower modules.
    elements: that interactions and tower modules read and write in a pass.
  """

  layers: float
  dots: float
  module: float
  elements: float

  @property
  def macs(self) -> float:
    return self.layers + self.dots + self.module


def count_pairs(vectors: int) -> int:
  """Dot products of different vectors.

  >>> count_pairs(FEATURES + 1), count_pairs(14)
  (351, 91)
  """
  return vectors * (vectors - 1) // 2


def count_work(model: str, compression: int, towers: int) -> Work:
  """Counts what an example costs; without tower modules at compression 1.

  Args:
    model: one of MODELS.
    compression: of the towers.
    towers: how many there are.
  """
  vectors = math.ceil(FEATURES / compression) + 1
  inputs = FEATURES * COLUMNS
  width = inputs / towers  # of a tower
  module = towers * width**2 / compression if compression > 1 else 0.0
  elements = inputs * (1 + 1 / compression) if compression > 1 else 0.0
  if model == 'cross':
    c = _SIZES['cross']
    whole = vectors * COLUMNS
    layers = 2 * c['layers'] * whole * c['rank']
    layers += _count_mlp(c['bottom']) + _count_mlp([whole, *c['top']])
    if compression > 1:
      rank = min(c['rank'], width / 2)
      module += towers * 2 * c['layers'] * width * rank
    elements += (c['layers'] + 1) * whole
    return Work(layers, 0.0, module, elements)
  macs, first = _SIZES['mlp'][model]
  pairs = count_pairs(vectors)
  layers = macs - first * (count_pairs(FEATURES + 1) - pairs)
  elements += vectors * COLUMNS + pairs
  return Work(layers, pairs * COLUMNS, module, elements)


def _count_mlp(widths: list[int]) -> int:
  return sum(a * b for a, b in itertools.pairwise(widths))


@dataclasses.dataclass(frozen=True)
class Step:
  """Seconds of a step.

  Attributes:
    rest: compute, memory and the exposed sum of gradients.
    exchange: of vectors and their gradients, hidden or not.
    exposed: share of it that nothing hides.
  """

  rest: float
  exchange: ExchangeTime
  exposed: float

  @property
  def total(self) -> float:
    return self.rest + self.exposed * self.exchange.total

  @property
  def exposed_share(self) -> float:
    """Of the step."""
    return self.exposed * self.exchange.total / self.total


def time_rest(model: str, compression: int, machine: Topology, guess) -> float:
  """Seconds of what is no exchange of vectors; `compression` 0 is flat."""
  work = count_work(model, max(1, compression), min(machine.hosts, FEATURES))
  passes = ASSUMED['step']['passes']['value']
  compute = 2 * passes * work.macs * EXAMPLES / (guess['mfu'] * machine.flops)
  tables = 4 * FEATURES * COLUMNS * ASSUMED['step']['table_passes']['value']
  moved = EXAMPLES * (tables + passes * ELEMENT * work.elements)
  # All adapters of a host together; on one host, its own links.
  rate = machine.intra
  if machine.hosts > 1:
    rate = min(rate, machine.inter * machine.devices)
  n = machine.group_size
  summed = 2 * 4 * work.layers * (n - 1) / n / rate
  return (
    compute + moved / machine.memory_bandwidth + guess['sync_exposed'] * summed
  )


def time_vectors(
  compression: int, machine: Topology, rows_in_host: bool = False
) -> ExchangeTime:
  """Seconds of vectors and gradients; `compression` 0 is flat."""
  sizes = WIRE, FEATURES, COLUMNS, EXAMPLES
  if not compression:
    return time_exchange(list_flat(machine, *sizes), machine)
  sent = list_towers(machine, *sizes, compression, rows_in_host)
  return time_exchange(sent, machine)


def time_step(
  name: str,
  devices: int,
  model: str,
  compression: int,
  guess: Mapping,
  rows_in_host: bool = False,
) -> Step:
  """A step of a machine; `compression` 0 is flat, 1 SPTT alone."""
  machine = make_machine(name, devices, guess)
  return Step(
    time_rest(model, compression, machine, guess),
    time_vectors(compression, machine, rows_in_host),
    guess['exposed'],
  )


def split_gain(
  name: str, devices: int, model: str, compression: int, guess: Mapping
) -> dict[str, float]:
  """Factors whose product is the speed-up of towers over a flat step.

  One change after another: latencies of fewer peers, larger messages, more
  bytes within hosts, compression of bytes between them, the rest of the step.
  """
  flat = time_step(name, devices, model, 0, guess)
  towers = time_step(name, devices, model, compression, guess)
  alone = time_step(name, devices, model, 1, guess)
  exchange, times = flat.exchange, [flat.total]
  changes = {
    'peers_x': {'peers': towers.exchange.peers},
    'messages_x': {'messages': towers.exchange.messages},
    'near_x': {'near': towers.exchange.near, 'far': alone.exchange.far},
    'compression_x': {'far': towers.exchange.far},
  }
  for change in changes.values():
    exchange = dataclasses.replace(exchange, **change)
    times.append(dataclasses.replace(flat, exchange=exchange).total)
  times.append(towers.total)
  names = [*changes, 'rest_x']
  return {
    key: before / after
    for key, (before, after) in zip(
      names, itertools.pairwise(times), strict=True
    )
  }
