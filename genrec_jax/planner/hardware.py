"""Machines as the planner sees them: sizes, rates and the model's constants.

Rates are bytes a second in one direction, of one device unless said otherwise.
Nothing here needs the machine it describes. `find_topology` takes a name, or
the file that a calibration (calibrate.py) has written, and changes single
numbers:

    find_topology('h100', hosts=4)
    find_topology('machine.json', devices=2)

Numbers of a preset come from where its `source` says; those 'from memory' were
not checked against a document.
"""

import dataclasses
import difflib
import json
import pathlib

GIB = 2**30
PLATFORMS = ('cpu', 'gpu', 'tpu')


@dataclasses.dataclass(frozen=True)
class Topology:
  """`replicas` groups of `hosts` hosts of `devices` devices.

  Attributes:
    name: what the report calls it.
    hosts: of a replica group, which holds one copy of the tables.
    devices: of a host.
    replicas: groups.
    memory: bytes of a device.
    memory_bandwidth: of a device.
    host_memory: bytes of a host.
    host_bandwidth: of a host's memory.
    intra: what a device can send to others of its host.
    inter: what a device can send to other hosts.
    link: between a device and the memory of its host.
    flops: peak of a device, in the format of the dense part.
    torus: dimensions of the torus that connects all devices; 0 where hosts
      meet in a network of full bisection.
    utilisation: share of `flops` that the dense part reaches.
    reserve: share of `memory` that is left alone.
    input_buffers: batches of ids that are on a device at once.
    id_bytes: of an id on the wire and in memory.
    full_block: row width from which a lookup uses the memory's full rate.
    half_penalty: time factor from half of that width on.
    quarter_penalty: time factor below half.
    penalise_rows: whether row-wise schemes have these factors too. The model
      that the formulas come from leaves them out; rows are as narrow there.
    least_width: columns that a lookup reads at least.
    backward: time of a lookup's way back, in lookups.
    weighted: more of it for the gradient of weights, in lookups.
    batched_copy: time factor of spreading gathered gradients.
    elementwise: time factor of a dense optimizer.
    dense_share: share of the memory's rate that dense updates reach.
    ordering: seconds for an entry of a list that is put in order, such as an
      address that is sorted by its owner; 0 leaves it out, as presets do whose
      machines nobody has measured.
    near_latency: seconds that each peer of the same host adds to a collective,
      beside its bytes; 0 leaves it out, as all presets do. This field and the
      next three enter the time of a whole plan and of an exchange
      (exchange_time.py), but not the price of a single table, which shares its
      collectives with others.
    far_latency: the same for a peer of another host.
    near_half_message: bytes of a message within a host at which half of `intra`
      is reached: m bytes travel at intra m / (m + near_half_message). 0 is the
      full rate for every message.
    far_half_message: the same for `inter`.
    platform: 'cpu', 'gpu' or 'tpu', on which a ragged exchange depends.
    source: where the numbers come from.
  """

  name: str
  memory: int
  memory_bandwidth: float
  host_memory: int
  host_bandwidth: float
  intra: float
  inter: float
  link: float
  flops: float
  hosts: int = 1
  devices: int = 8
  replicas: int = 1
  torus: int = 0
  utilisation: float = 0.4
  reserve: float = 0.15
  input_buffers: int = 1
  id_bytes: int = 4
  full_block: int = 128
  half_penalty: float = 1.15
  quarter_penalty: float = 1.75
  penalise_rows: bool = False
  least_width: int = 32
  backward: float = 2.0
  weighted: float = 1.1
  batched_copy: float = 2.455
  elementwise: float = 9.22
  dense_share: float = 0.5
  ordering: float = 0.0
  near_latency: float = 0.0
  far_latency: float = 0.0
  near_half_message: float = 0.0
  far_half_message: float = 0.0
  platform: str = 'gpu'
  source: str = 'given by hand'

  def __post_init__(self):
    if self.platform not in PLATFORMS:
      raise ValueError(
        f'topology {self.name!r}: platform is {self.platform!r}, must be one '
        f'of {PLATFORMS}'
      )
    for name in ('hosts', 'devices', 'replicas', 'input_buffers', 'id_bytes'):
      value = getattr(self, name)
      if value < 1 or value != int(value):
        raise ValueError(
          f'topology {self.name!r}: {name} is {value}, must be a whole number, '
          'at least 1'
        )
    for name in ('memory', 'memory_bandwidth', 'intra', 'inter', 'flops'):
      if not getattr(self, name) > 0:
        raise ValueError(
          f'topology {self.name!r}: {name} is {getattr(self, name)}, must be '
          'positive'
        )
    for name, unit in (
      ('ordering', 'seconds'),
      ('near_latency', 'seconds'),
      ('far_latency', 'seconds'),
      ('near_half_message', 'bytes'),
      ('far_half_message', 'bytes'),
    ):
      if not getattr(self, name) >= 0:
        raise ValueError(
          f'topology {self.name!r}: {name} is {getattr(self, name)}, must be '
          f'a number of {unit}, 0 or more'
        )
    if not 0 <= self.reserve < 1:
      raise ValueError(
        f'topology {self.name!r}: reserve is {self.reserve}, must be a share '
        'of the memory, 0 <= reserve < 1'
      )

  @property
  def group_size(self) -> int:
    """Devices that hold one copy of the tables together."""
    return self.hosts * self.devices

  @property
  def total(self) -> int:
    """Devices that share a batch."""
    return self.replicas * self.group_size

  @property
  def exchange_rate(self) -> float:
    """Of an all-to-all, all-gather or reduce-scatter of the whole group."""
    return self.intra if self.hosts == 1 else self.inter

  @property
  def bisection(self) -> float:
    """What one half of a group can send to the other."""
    if not self.torus:
      return self.group_size / 2 * self.exchange_rate
    links = 2 * self.torus  # of a device, and a cut meets a ring twice
    side = self.group_size ** (1 / self.torus)
    return 2 * self.group_size / side * self.intra / links

  def penalty(self, columns: int) -> float:
    """Time factor of reading rows that are narrow."""
    if columns >= self.full_block:
      return 1.0
    if columns >= self.full_block // 2:
      return self.half_penalty
    return self.quarter_penalty

  def to_json(self) -> str:
    """The topology as text; `from_json` is the inverse."""
    return json.dumps(dataclasses.asdict(self), indent=2)


def from_json(text: str) -> Topology:
  """The topology that `Topology.to_json` wrote, or somebody by hand."""
  try:
    fields = json.loads(text)
  except RecursionError:
    raise ValueError('not a topology: it is nested too deeply') from None
  if not isinstance(fields, dict):
    raise ValueError(
      f'not a topology: it is a {type(fields).__name__}, not an object that '
      'names memory, flops, ...'
    )
  known = [f.name for f in dataclasses.fields(Topology)]
  if unknown := sorted(set(fields) - set(known)):
    raise ValueError(f'a topology has no {unknown}; it has {known}')
  try:
    return Topology(**fields)
  except (TypeError, OverflowError) as e:  # a text, Infinity
    raise ValueError(f'not a topology: {e}') from None


def find_topology(name: str, **overrides) -> Topology:
  """A preset or a topology file, with some of its numbers changed."""
  if name in PRESETS:
    topology = PRESETS[name]
  elif name.endswith('.json'):
    if not pathlib.Path(name).is_file():  # of a pipe, it would wait
      raise FileNotFoundError(
        f'there is no topology file {name}; `python -m '
        f'genrec_jax.planner.calibrate --out {name}` measures this machine'
      )
    try:
      topology = from_json(pathlib.Path(name).read_text())
    except ValueError as e:
      raise ValueError(f'{name}: {e}') from None
  else:
    near = difflib.get_close_matches(name, PRESETS, n=1)
    hint = f' Did you mean {near[0]!r}?' if near else ''
    raise ValueError(
      f'there is no topology {name!r}: give one of {", ".join(PRESETS)} or a '
      f'.json file.{hint}'
    )
  return replace_numbers(topology, **overrides)


def replace_numbers(topology: Topology, **overrides) -> Topology:
  """The topology with some of its numbers changed."""
  known = {f.name for f in dataclasses.fields(Topology)}
  if unknown := sorted(set(overrides) - known):
    near = difflib.get_close_matches(unknown[0], known, n=1)
    hint = f' Did you mean {near[0]!r}?' if near else ''
    raise ValueError(f'a topology has no {unknown[0]!r}.{hint}')
  return dataclasses.replace(topology, **overrides)


_TPU = 'Cloud TPU documentation; link to the host from memory'
_HOPPER = dict(
  host_memory=2_000_000_000_000, host_bandwidth=614e9,
  intra=450e9, inter=50e9, link=64e9, flops=989e12,
  source='data sheets as remembered: NVLink 450 GB/s a way, one 400 Gb/s '
  'adapter a GPU, bfloat16 without sparsity',
)  # fmt: skip

PRESETS = {
  'h100': Topology(
    'h100', memory=80_000_000_000, memory_bandwidth=3.35e12, **_HOPPER
  ),
  'h200': Topology(
    'h200', memory=141_000_000_000, memory_bandwidth=4.8e12, **_HOPPER
  ),
  'v100': Topology(
    'v100', memory=32_000_000_000, memory_bandwidth=900e9,
    host_memory=1_500_000_000_000, host_bandwidth=200e9, intra=150e9,
    inter=6.25e9, link=16e9, flops=125e12,
    source='data sheets as remembered: NVLink 150 GB/s a way, four adapters of '
    '100 Gb/s a host of 8 (there are hosts with one), float16',
  ),
  'a100_80gb': Topology(
    'a100_80gb', memory=80_000_000_000, memory_bandwidth=2.039e12,
    host_memory=2_000_000_000_000, host_bandwidth=400e9, intra=300e9,
    inter=25e9, link=32e9, flops=312e12,
    source='data sheets as remembered: NVLink 300 GB/s a way, one 200 Gb/s '
    "adapter a GPU, bfloat16 without sparsity; 'zionex' has those of 40 GB",
  ),
  'zionex': Topology(
    'zionex', hosts=16, memory=40_000_000_000, memory_bandwidth=1.55e12,
    host_memory=1_500_000_000_000, host_bandwidth=200e9, intra=300e9,
    inter=25e9, link=32e9, flops=312e12,
    source='from memory: 16 nodes of 8 A100-40GB; a node has 12.4 TB/s of '
    'memory, 2.4 TB/s to scale up, 8 x 200 Gb/s to scale out',
  ),
  'v5e': Topology(
    'v5e', hosts=4, devices=4, memory=16_000_000_000, memory_bandwidth=819e9,
    host_memory=512 * GIB // 2, host_bandwidth=100e9, intra=200e9, inter=200e9,
    link=16e9, flops=197e12, torus=2, platform='tpu', source=_TPU,
  ),
  'v5p': Topology(
    'v5p', hosts=4, devices=4, memory=95_000_000_000, memory_bandwidth=2765e9,
    host_memory=448 * GIB, host_bandwidth=100e9, intra=600e9, inter=600e9,
    link=16e9, flops=459e12, torus=3, platform='tpu',
    source='from memory: 4,800 Gb/s of links a chip, 448 GiB a host',
  ),
  'v6e': Topology(
    'v6e', hosts=4, devices=4, memory=32_000_000_000, memory_bandwidth=1640e9,
    host_memory=1536 * GIB // 2, host_bandwidth=200e9, intra=400e9,
    inter=400e9, link=32e9, flops=918e12, torus=2, platform='tpu',
    source=_TPU,
  ),
  'cpu': Topology(
    'cpu', memory=2 * GIB, memory_bandwidth=1e9, host_memory=16 * GIB,
    host_bandwidth=10e9, intra=0.2e9, inter=0.2e9, link=1e9, flops=5e9,
    utilisation=1.0, half_penalty=1.0, quarter_penalty=1.0, least_width=1,
    ordering=0.6e-6, platform='cpu',
    source='eight fake devices of two busy cores, from a calibration, rounded',
  ),
  'torchrec': Topology(
    'torchrec', memory=32 * GIB, memory_bandwidth=897 * GIB,
    host_memory=128 * GIB, host_bandwidth=51 * GIB, intra=600 * GIB,
    inter=12.5 * GIB, link=32 * GIB, flops=125e12, id_bytes=8,
    source="the defaults of torchrec's planner; flops from memory (V100)",
  ),
}  # fmt: skip
