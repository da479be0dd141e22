"""What a GPU kernel's inner loop consists of, read from its machine code.

NVIDIA's disassembler, which the wheel of Triton holds, says for each
instruction which line of the source it comes from. So an instruction is told
to stand in a branch or loop of the source, and counts as often as that runs.
"""

import ast
import collections
import dataclasses
import functools
import pathlib
import re
import subprocess
import tempfile

LINE = re.compile(r'/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)(.*);')
NEVER = '@!PT'  # written so, an instruction does nothing
LABEL = re.compile(r'^(\.L_x_\d+):')
TARGET = re.compile(r'\((\.L_x_\d+)\)')
PLACE = re.compile(r'//## File "([^"]+)", line (\d+)(?: inlined at)?')
MATRIX = re.compile(r'HGMMA\.64x(\d+)x(\d+)(?!.*TF32)')

# Lanes of a multiprocessor that take such an instruction at each clock: of a
# warp's 32 threads each has one.
LANES = {'fma': 128, 'alu': 64, 'xu': 16, 'lsu': 32}
# What the matrix units of a multiprocessor multiply and add in a clock, bf16.
PRODUCTS = 2048
SHARED_BYTES = 128  # that shared memory gives in a clock
UNITS = ('issue', 'fma', 'alu', 'xu', 'lsu', 'tensor')

_FMA = ('FFMA', 'FMUL', 'FADD', 'HFMA2', 'HMUL2', 'HADD2', 'FSWZADD')
_XU = ('MUFU', 'F2I', 'I2F', 'POPC', 'FLO', 'BREV', 'F2F')
_LSU = (
  'LDS', 'LDSM', 'STS', 'STSM', 'LDG', 'STG', 'LDGSTS', 'LDL', 'STL', 'LD',
  'ST', 'SHFL', 'ATOM', 'ATOMG', 'ATOMS', 'RED',
)  # fmt: skip
# They take a scheduler's turn, and no time of a unit that matters.
_CONTROL = (
  'BRA', 'BSSY', 'BSYNC', 'EXIT', 'NOP', 'BAR', 'WARPSYNC', 'DEPBAR', 'CALL',
  'LDGDEPBAR', 'WARPGROUP', 'MEMBAR', 'FENCE', 'ERRBAR', 'CCTL', 'S2R', 'RET',
  'YIELD', 'WARPGROUPSET', 'S2UR', 'R2UR', 'BREAK', 'ELECT', 'SYNCS', 'LDC',
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One instruction of a warp.

  Attributes:
    address: where it stands.
    opcode: name with its suffixes.
    operands: the rest of the line.
    places: (file, line) of the source, the innermost first.
  """

  address: int
  opcode: str
  operands: str
  places: tuple[tuple[str, int], ...]

  @property
  def name(self) -> str:
    return self.opcode.partition('.')[0]


@dataclasses.dataclass(frozen=True)
class Loop:
  """A loop: its instructions and how they run one after another.

  Attributes:
    runs: pieces of code without a jump in or out.
  """

  runs: tuple[tuple[Instruction, ...], ...]

  @property
  def instructions(self):
    return [one for run in self.runs for one in run]


def tool(name: str) -> pathlib.Path:
  """One of the programs of NVIDIA's that the wheel of Triton holds."""
  import triton

  return pathlib.Path(triton.__file__).parent / 'backends/nvidia/bin' / name


def disassemble(cubin: bytes, function: str = '') -> str:
  """The listing of compiled kernels, with the lines of their source.

  Args:
    cubin: machine code.
    function: pattern of the name of the kernel that is wanted.
  """
  with tempfile.NamedTemporaryFile(suffix='.cubin') as file:
    file.write(cubin)
    file.flush()
    done = subprocess.run(
      [tool('nvdisasm'), '-c', '-gi', file.name],
      capture_output=True,
      text=True,
      check=True,
    )
  sections = re.split(r'(?m)^(?=\.text\.\S+:)', done.stdout)
  wanted = [
    text for text in sections if re.match(rf'\.text\.\S*{function}\S*:', text)
  ]
  return wanted[0] if function else done.stdout


def read(listing: str) -> tuple[list[Instruction], dict[str, int]]:
  """Instructions of a listing, and the address of each label."""
  found, labels, waiting, places = [], {}, [], []
  begun = False  # whether the lines of a place are being read
  for line in listing.splitlines():
    if place := PLACE.search(line):
      places = [*places, place] if begun else [place]
      begun = True
      continue
    begun = False
    if label := LABEL.match(line.strip()):
      waiting.append(label[1])
    elif code := LINE.search(line):
      address = int(code[1], 16)
      labels.update(dict.fromkeys(waiting, address))
      waiting = []
      where = tuple((one[1], int(one[2])) for one in places)
      opcode = 'NOP' if (code[2] or '').strip() == NEVER else code[3]
      found.append(Instruction(address, opcode, code[4], where))
  return found, labels


def find_loops(
  instructions: list[Instruction], labels: dict[str, int]
) -> list[Loop]:
  """The innermost loops that multiply matrices, in the order of the code.

  Args:
    instructions: from `read`.
    labels: likewise.
  """
  spans = {}
  targets = set()
  for one in instructions:
    if one.name == 'BRA' and (target := TARGET.search(one.operands)):
      begin = labels[target[1]]
      targets.add(begin)
      if begin < one.address:
        spans[begin] = max(spans.get(begin, 0), one.address)
  matrices = [i.address for i in instructions if i.name in ('HGMMA', 'HMMA')]
  spans = {
    (begin, end)
    for begin, end in spans.items()
    if any(begin <= address <= end for address in matrices)
  }
  found = []
  for begin, end in sorted(spans):
    if any(
      begin <= b and e <= end and (b, e) != (begin, end) for b, e in spans
    ):
      continue
    body = [one for one in instructions if begin <= one.address <= end]
    found.append(Loop(tuple(_runs(body, targets))))
  return found


def _runs(body, targets):
  run = []
  for one in body:
    if one.address in targets and run:
      yield tuple(run)
      run = []
    run.append(one)
    if one.name in ('BRA', 'EXIT'):
      yield tuple(run)
      run = []
  if run:
    yield tuple(run)


def clocks_of(one: Instruction) -> dict[str, float]:
  """Clocks of a multiprocessor's units that a warp's instruction takes.

  A product of matrices is of four warps: it counts as a fourth in each.
  """
  clocks = {'issue': 0.25}
  name, opcode = one.name, one.opcode
  if name == 'HGMMA':
    columns, depth = map(int, MATRIX.match(opcode).groups())
    product = 64 * columns * depth / PRODUCTS
    # The factors that come from shared memory: the second, and the first if
    # no register holds it.
    first = one.operands.split(',')[1].strip().startswith('gdesc')
    read = (columns + 64 * first) * depth * 2 / SHARED_BYTES
    clocks['tensor'] = max(product, read) / 4
    clocks['lsu'] = read / 4
  elif name == 'HMMA':
    # 16 x 8 x 16, or x 8; reported at three fifths of the full rate.
    depth = 16 if '16816' in opcode else 8
    clocks['tensor'] = 16 * 8 * depth / PRODUCTS / 0.6
  elif name in _FMA:
    clocks['fma'] = 32 / LANES['fma']
  elif name == 'IMAD':
    clocks['fma'] = 32 / LANES['fma']
    clocks['imad'] = 64 / LANES['fma']  # half of the lanes multiply integers
  elif name in _XU:
    clocks['xu'] = 32 / LANES['xu']
  elif name in _LSU:
    clocks['lsu'] = _memory_clocks(opcode)
  elif not (name in _CONTROL or name.startswith('U')):
    # Packing to bfloat16 (F2FP) too: its rate is not published.
    clocks['alu'] = 32 / LANES['alu']
  return clocks


def _memory_clocks(opcode: str) -> float:
  # 128 bytes a clock for a warp: four for each thread.
  parts = opcode.split('.')
  if '128' in parts or (parts[0] in ('LDSM', 'STSM') and '4' in parts):
    return 4.0
  if '64' in parts or (parts[0] in ('LDSM', 'STSM') and '2' in parts):
    return 2.0
  return 1.0


def count(loop: Loop, rates: dict, warps: int) -> dict[str, float]:
  """Clocks a turn of a program's loop takes on each unit.

  Args:
    loop: the loop.
    rates: how often a turn passes parts of the source: (function, test of an
      `if` or header of a `for`, arm) -> a mean number. Others run once.
    warps: of a program.
  """
  total = collections.Counter()
  for clocks in count_by_line(loop, rates, warps).values():
    total.update(clocks)
  total['fma'] = max(total['fma'], total['imad'])
  return {unit: total[unit] for unit in UNITS}


def count_by_line(
  loop: Loop, rates: dict, warps: int
) -> dict[tuple[str, int] | None, collections.Counter]:
  """Clocks a turn takes on each unit, by (file, line) of the source.

  Args:
    loop: the loop.
    rates: as `count` takes them.
    warps: of a program.
  """
  total = collections.defaultdict(collections.Counter)
  for run in loop.runs:
    rate = _rate_of(run, rates)
    for one in run:
      where = one.places[0] if one.places else None
      for unit, clocks in clocks_of(one).items():
        total[where][unit] += rate * clocks * warps
  return total


def _rate_of(run, rates) -> float:
  # The compiler moves instructions into branches and out of them: what most of
  # a run's instructions agree on, or a third of them on being in a branch.
  found = collections.Counter(
    _rate(one.places, tuple(rates.items())) for one in run
  )
  seldom = [rate for rate in found if rate != 1.0]
  for rate in sorted(seldom, key=found.__getitem__, reverse=True):
    if found[rate] * 3 >= len(run):
      return rate
  return max(found, key=found.__getitem__)


@functools.lru_cache(maxsize=1 << 14)
def _rate(places, rates) -> float:
  known = dict(rates)
  rate = 1.0
  for file, line in places:
    for arm in arms_of(file, line):
      rate *= known.get(arm, 1.0)
  return rate


def arms_of(file: str, line: int) -> list[tuple[str, str, str]]:
  """The branches and loops of the source around a line.

  Returns:
    (function, test or header, 'if' or 'else' or 'for') of each.
  """
  return _arms(file).get(line, [])


@functools.lru_cache(maxsize=64)
def _arms(file: str) -> dict[int, list]:
  path = pathlib.Path(file)
  if not path.exists():
    return {}
  found = collections.defaultdict(list)

  def mark(nodes, arm):
    for node in nodes:
      for line in range(node.lineno, node.end_lineno + 1):
        found[line].append(arm)

  for function in ast.walk(ast.parse(path.read_text())):
    if not isinstance(function, ast.FunctionDef):
      continue
    for node in ast.walk(function):
      if isinstance(node, ast.If):
        test = ast.unparse(node.test)
        mark(node.body, (function.name, test, 'if'))
        mark(node.orelse, (function.name, test, 'else'))
      elif isinstance(node, ast.For):
        header = f'{ast.unparse(node.target)} in {ast.unparse(node.iter)}'
        mark(node.body, (function.name, header, 'for'))
  return found
