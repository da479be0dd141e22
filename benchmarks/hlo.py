"""The collectives and sorts of a compiled program, read from its HLO text.

Counts are per execution of the computation that contains a collective: what is
in the body of a loop happens once in each iteration, and the text does not say
how many there are. `Collective.computation` distinguishes loop bodies from the
entry.
"""

import collections
import dataclasses
import math
import re

import numpy as np

OPS = (
  'all-gather',
  'all-reduce',
  'all-to-all',
  'collective-broadcast',
  'collective-permute',
  'ragged-all-to-all',
  'reduce-scatter',
)
ENTRY = 'ENTRY'

# XLA on the CPU drops optimization barriers early, which merges buckets and
# undoes gathering again, and schedules for concurrency. With these options of
# `lowered.compile(...)` it treats both as accelerators do.
BARRIERS_KEPT = {
  'xla_disable_hlo_passes': 'cse_barrier_expander',
  'xla_cpu_scheduler_type': 'CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED',
}

_BITS = {'pred': 8, 'token': 0}
_COMPUTATION = re.compile(r'^(ENTRY )?%?([\w.\-]+) .*\{$')
_INSTRUCTION = re.compile(
  r'^\s*(?:ROOT )?%?[\w.\-]+ = (.+?) ('
  + '|'.join(sorted(OPS, key=len, reverse=True))
  + r')(-start)?\('
)
_SORT = re.compile(r'^\s*(?:ROOT )?%?[\w.\-]+ = (.+?) sort\(')
_CALLS = re.compile(r'\bcalls=%?([\w.\-]+)')
_CHAIN = re.compile(r'\bchain_id="(\d+)"')
_ARRAY = re.compile(r'([a-z]\w*)\[([\d,<=]*)\]')


@dataclasses.dataclass(frozen=True)
class Collective:
  """A collective of a program.

  Attributes:
    op: 'all-reduce' and the like, without '-start'.
    shapes: (dtype, dimensions) of every array of the result; several in the
      tuple form, which combines collectives or splits an all-to-all.
    groups: device numbers of each group; for a collective-permute the (source,
      target) pairs.
    computation: name of the computation that contains it, `ENTRY` for the main
      one.
    count: how many such instructions that computation holds.
  """

  op: str
  shapes: tuple[tuple[str, tuple[int, ...]], ...]
  groups: tuple[tuple[int, ...], ...]
  computation: str = ENTRY
  count: int = 1

  @property
  def dtype(self) -> str:
    """Of the result, 'f32'; several joined by '+' in a mixed tuple."""
    return '+'.join(sorted({dtype for dtype, _ in self.shapes}))

  @property
  def shape(self) -> tuple:
    """Dimensions of the result; a tuple of them in the tuple form."""
    dims = tuple(dims for _, dims in self.shapes)
    return dims[0] if len(dims) == 1 else dims

  @property
  def bytes_result(self) -> int:
    """Bytes of the result on one device."""
    bits = sum(_bits(d) * math.prod(dims) for d, dims in self.shapes)
    return -(-bits // 8)

  @property
  def group_size(self) -> int:
    """Devices that take part together; 2 in a collective-permute."""
    return len(self.groups[0])


def find_collectives(compiled) -> list[Collective]:
  """The collectives of `jax.jit(f).lower(...).compile()`, or of its text.

  Equal ones of a computation are one entry with a `count`. An asynchronous
  pair of -start and -done is counted once, and so is a collective that runs
  beside several fusions on a TPU, of which each repeats it. What stands in a
  fusion belongs to the computation around it.
  """
  text = _text_of(compiled)
  devices = _devices(text)
  counted, chains = collections.Counter(), set()
  for line, computation in _list_lines(text):
    if match := _INSTRUCTION.match(line):
      result, op, start = match.groups()
      chain = _CHAIN.search(line)
      if chain and (op, chain[1]) in chains:
        continue
      chains |= {(op, chain[1])} if chain else set()
      shapes = _shapes(result, op, bool(start))
      counted[Collective(op, shapes, _groups(line, devices), computation)] += 1
  return [dataclasses.replace(c, count=n) for c, n in counted.items()]


def count_sorted(compiled) -> int:
  """Entries of all lists that a program sorts, but for those in loops."""
  total = 0
  for line, computation in _list_lines(_text_of(compiled)):
    if computation == ENTRY and (match := _SORT.match(line)):
      ((_, dims), *_) = _shapes(match[1], 'sort', False)
      total += math.prod(dims)
  return total


def _text_of(compiled) -> str:
  return compiled if isinstance(compiled, str) else compiled.as_text()


def _list_lines(text: str) -> list[tuple[str, str]]:
  """Lines and the computations that they belong to, around all fusions."""
  lines, callers, computation = [], {}, ENTRY
  for line in text.splitlines():
    if match := _COMPUTATION.match(line):
      computation = ENTRY if match[1] else match[2]
      continue
    for called in _CALLS.findall(line):
      callers[called] = computation
    lines.append((line, computation))
  found = []
  for line, around in lines:
    while around in callers:
      around = callers[around]
    found.append((line, around))
  return found


def sent_bytes(collective: Collective) -> float:
  """Bytes one device sends for all `count`, by the ring or the direct way.

  A ring for all-reduce, all-gather and reduce-scatter, direct messages for
  all-to-all. Of a ragged all-to-all the text knows the room, not what is in it:
  there it is the most that can be sent.
  """
  n, result = collective.group_size, collective.bytes_result
  factor = {
    'all-gather': (n - 1) / n,
    'all-reduce': 2 * (n - 1) / n,
    'all-to-all': (n - 1) / n,
    'collective-broadcast': (n - 1) / n,
    'collective-permute': 1,
    'ragged-all-to-all': (n - 1) / n,
    'reduce-scatter': n - 1,
  }[collective.op]
  return collective.count * factor * result


def _bits(dtype: str) -> int:
  if dtype in _BITS:
    return _BITS[dtype]
  if match := re.match(r'(?:bf|[sufc])(\d+)', dtype):
    return int(match[1])
  raise ValueError(f'HLO dtype {dtype!r} is not known')


def _shapes(text: str, op: str, start: bool):
  """Arrays of the result; of a -start, which also returns its operands, too."""
  parts = _elements(text)
  # The pair of an all-reduce returns the result alone.
  if start and op != 'all-reduce' and len(parts) > 1:
    parts = _elements(parts[1])
  shapes = []
  for part in parts:
    for dtype, dims in _ARRAY.findall(re.sub(r'\{[^}]*\}', '', part)):
      dims = dims.replace('<=', '')
      shapes.append((dtype, tuple(int(d) for d in dims.split(',') if d)))
  return tuple(shapes)


def _elements(text: str) -> list[str]:
  """'(a, (b, c))' -> ['a', '(b, c)']; an array is its own only element."""
  text = re.sub(r'/\*.*?\*/', '', text).strip()
  if not text.startswith('('):
    return [text]
  out, depth, first = [], 0, 1
  for i, char in enumerate(text):
    depth += (char in '([{') - (char in ')]}')
    if (char == ',' and depth == 1) or (char == ')' and depth == 0):
      out.append(text[first:i].strip())
      first = i + 1
  return out


def _devices(text: str) -> int:
  header = text[: text.find('\n')]
  counts = re.findall(r'(?:num_partitions|replica_count)=(\d+)', header)
  return math.prod(int(c) for c in counts)


def _groups(line: str, devices: int) -> tuple[tuple[int, ...], ...]:
  if match := re.search(r'source_target_pairs=\{(\{.*?\})\}', line):
    return _lists(match[1])
  if match := re.search(r'replica_groups=\{(\{.*?\})?\}', line):
    return _lists(match[1]) if match[1] else (tuple(range(devices)),)
  match = re.search(
    r'replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?', line
  )
  if match is None:
    raise ValueError(f'groups of a collective not understood: {line.strip()}')
  shape, dims, order = (_numbers(part) for part in match.groups())
  ids = np.arange(math.prod(dims)).reshape(dims)
  ids = ids.transpose(order) if order else ids
  return tuple(tuple(group) for group in ids.reshape(shape).tolist())


def _lists(text: str) -> tuple[tuple[int, ...], ...]:
  return tuple(_numbers(part) for part in re.findall(r'\{([\d,]*)\}', text))


def _numbers(text: str | None) -> tuple[int, ...]:
  return tuple(int(n) for n in text.split(',') if n) if text else ()
