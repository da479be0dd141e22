"""What a device must send for its tables, by arithmetic alone.

Nothing of the library is asked here: a step is known by its numbers. There are
b examples on each of the W = H x G devices of a replica group (H hosts of G),
T tables of width D, in n column pieces, room for L ids of each table in an
example. A piece of a row, or of a sum of rows, has s bytes on the wire.

What a collective of n devices sends is counted as `hlo.sent_bytes` counts it.
The published formulas are those for pooled features in the literature; where
they say nothing of ids or of sequences, the even share of what is wanted
stands for them: nothing padded, ids of 8 bytes.
"""

import dataclasses
import math

PASSES = ('ids', 'forward', 'backward')
CAPACITY = 2  # room of a peer, in even shares
ROWS = 1000  # of a table; only what is copied depends on it
UNIT = 512  # a row of a TPU's registers: where parts are ragged, it sends these

GROUP, HOST, DEV = ('host', 'dev'), ('host',), ('dev',)
ALL = ('rep', 'host', 'dev')
A2A, GATHER = 'all-to-all', 'all-gather'
REDUCE, RAGGED = 'all-reduce', 'ragged-all-to-all'
ELEMENT = {'float32': 4, 'float16': 2, 'bfloat16': 2, 'fp8': 1, 'int8': 1}
BESIDES = {'fp8': 4, 'int8': 8}  # bytes of a row: its scale, its least value


@dataclasses.dataclass(frozen=True)
class Case:
  """A step over tables, in numbers.

  Attributes:
    target: 'cpu' or 'tpu'.
    scheme: of every table.
    kind: 'pooled', or how rows of a sequence feature travel.
    hosts: H, of a replica group.
    devices: G, of a host.
    replicas: groups.
    tables: T.
    batch: b.
    length: L.
    width: D.
    codec: of rows and of their gradients.
  """

  target: str
  scheme: str
  kind: str = 'pooled'
  hosts: int = 2
  devices: int = 4
  replicas: int = 1
  tables: int = 8
  batch: int = 32
  length: int = 4
  width: int = 64
  codec: str = 'float32'

  @property
  def group(self) -> int:
    """W."""
    return self.hosts * self.devices

  @property
  def pieces(self) -> int:
    """n."""
    return {
      'column_wise': self.group,
      'table_column_wise': self.devices,
      'grid': self.hosts,
    }.get(self.scheme, 1)

  @property
  def piece_bytes(self) -> int:
    """s."""
    columns = self.width // self.pieces
    return ELEMENT[self.codec] * columns + BESIDES.get(self.codec, 0)

  @property
  def ids(self) -> int:
    """b L."""
    return self.batch * self.length


@dataclasses.dataclass(frozen=True)
class Sent:
  """What a device sends.

  Attributes:
    step: part of the step, one of `PASSES`.
    what: 'ids', 'rows' (their sums, their gradients), 'copies' or 'scalars'.
    op: the collective, as HLO names it.
    over: axes of the mesh.
    bytes: the number.
    formula: how it came about.
    published: the number by the published formula, if there is one.
    note: why that one differs.
  """

  step: str
  what: str
  op: str
  over: tuple[str, ...]
  bytes: float
  formula: str
  published: float | None = None
  note: str = ''


def predicted(c: Case) -> list[Sent]:
  """Everything that a device sends in a step."""
  if c.scheme == 'data_parallel':
    return data_parallel(c)
  if c.kind == 'pooled':
    found = {
      'row_wise': pooled_rows if too_many_sums(c) else pooled_on_all,
      'table_row_wise': pooled_on_hosts,
      'grid': pooled_on_hosts,
    }.get(c.scheme, pooled_on_one)(c)
  else:
    found = {
      'gather': gather,
      'all_to_all': all_to_all,
      'ragged': ragged if c.target == 'tpu' else emulated,
    }[c.kind](c)
  found.append(scalar(c, 'backward', ALL))  # the norm of all gradients
  return found if c.replicas == 1 else [*found, copies(c)]


# --- Collectives of n devices.


def exchanged(held: float, n: int) -> float:
  """All-to-all of what a device holds for all n."""
  return held * (n - 1) / n


def gathered(own: float, n: int) -> float:
  """All-gather of what is a device's own."""
  return own * (n - 1)


def reduced(held: float, n: int) -> float:
  """All-reduce of what a device holds."""
  return 2 * held * (n - 1) / n


def summed(c, over, kept, n, formula, published=None, note='') -> Sent:
  """Sums over n devices, of which each keeps its part."""
  note = f'{note}; decoded before it is added'.strip('; ')
  size = exchanged(n * kept, n)
  return Sent('forward', 'rows', A2A, over, size, formula, published, note)


def scalar(c, step, over) -> Sent:
  n = c.group * (c.replicas if over == ALL else 1)
  return Sent(step, 'scalars', REDUCE, over, reduced(4, n), '2 4 (n-1)/n')


# --- Pooled features: bags of ids, whose sums travel.


def lists(c: Case) -> int:
  """Bytes of a bag's ids and lengths, with one length for the padding."""
  return 4 * c.ids + 4 * (c.batch + 1)


def padded(c: Case, places: int) -> tuple[int, str, str]:
  """Pieces sent to `places` that must get equally many; as text; a note."""
  pieces = c.tables * c.pieces
  slots = places * math.ceil(pieces / places)
  text = 'T' if c.pieces == 1 else 'T n'
  if slots == pieces:
    return slots, text, ''
  note = f'{pieces} pieces, the fullest of {places} has {slots // places}'
  return slots, f'pad({text})', note


def even(c: Case) -> float:
  """b times the widths of all tables in bytes: the published b ΣD s."""
  return c.batch * c.tables * c.width * ELEMENT[c.codec]


def pooled_on_one(c: Case) -> list[Sent]:
  """table_wise, column_wise, table_column_wise: a piece has one device."""
  slots, tn, note = padded(c, c.group)
  sums = exchanged(slots * c.batch * c.piece_bytes, c.group)
  # For columns the published formula counts what stays at home, too.
  published = exchanged(even(c), c.group) if c.pieces == 1 else even(c)
  of_ids = 'ids of 4 bytes, not 8; b+1 lengths; what stays at home is not sent'
  of_ids = '; '.join(filter(None, (of_ids, note)))
  if c.codec in BESIDES:
    note = f'{BESIDES[c.codec]} bytes beside each piece'
  elif c.pieces > 1:
    note = 'what stays at home is not sent'
  back = [
    Sent(step, 'rows', A2A, GROUP, sums, f'{tn} b s (W-1)/W', published, note)
    for step in ('forward', 'backward')
  ]
  ids = exchanged(slots * lists(c), c.group)
  return [
    Sent(
      'ids', 'ids', A2A, GROUP, ids, f'{tn} (b L + b+1) 4 (W-1)/W',
      8 * c.tables * c.pieces * c.ids, of_ids,
    ),
    *back,
  ]  # fmt: skip


def too_many_sums(c: Case) -> bool:
  """Whether sums over all devices are more than there is room for rows."""
  return c.group * c.batch >= CAPACITY * c.ids


def pooled_rows(c: Case) -> list[Sent]:
  """row_wise: rows travel in place of the sums of all devices."""
  note = 'rows, since W >= 2 L'
  return [
    dataclasses.replace(sent, note=f'{note}; {sent.note}')
    if sent.note
    else sent
    for sent in all_to_all(c)
  ]


def pooled_on_all(c: Case) -> list[Sent]:
  """row_wise: each device sums what it has."""
  w, kept = c.group, c.tables * c.batch * c.piece_bytes
  published, formula = gathered(even(c), w), 'T b s (W-1)'
  return [
    Sent(
      'ids', 'ids', GATHER, GROUP, gathered(c.tables * lists(c), w),
      'T (b L + b+1) 4 (W-1)', exchanged(8 * c.tables * c.ids, w),
      'all ids go to all devices, not to their owners',
    ),
    summed(c, GROUP, kept, w, formula, published),
    Sent(
      'backward', 'rows', GATHER, GROUP, gathered(kept, w), formula, published
    ),
  ]  # fmt: skip


def pooled_on_hosts(c: Case) -> list[Sent]:
  """table_row_wise, grid: a piece has a host, each device there a part."""
  h, g = c.hosts, c.devices
  slots, tn, note = padded(c, h)
  kept = slots * c.batch * c.piece_bytes
  between = [
    Sent(
      step, 'rows', A2A, HOST, exchanged(kept, h), f'{tn} b s (H-1)/H',
      exchanged(even(c), h), note,
    )
    for step in ('forward', 'backward')
  ]  # fmt: skip
  ids, within = f'{tn} (b L + b+1) 4', f'{tn} b s (G-1)'
  size = slots * lists(c)
  return [
    Sent('ids', 'ids', A2A, HOST, exchanged(size, h), f'{ids} (H-1)/H'),
    Sent('ids', 'ids', GATHER, DEV, gathered(size, g), f'{ids} (G-1)'),
    summed(c, DEV, kept, g, within),
    *between,
    Sent('backward', 'rows', GATHER, DEV, gathered(kept, g), within),
  ]


# --- Sequence features: rows travel one by one, whatever the scheme.


def wanted(c: Case) -> tuple[int, str]:
  """Pieces of rows that a device asks for."""
  text = 'T b L' if c.pieces == 1 else 'T n b L'
  return c.tables * c.pieces * c.ids, text


def gather(c: Case) -> list[Sent]:
  m, text = wanted(c)
  w, rows, formula = c.group, m * c.piece_bytes, f'{text} s (W-1)'
  least, note = exchanged(rows, w), 'everything goes to all devices'
  return [
    Sent(
      'ids', 'ids', GATHER, GROUP, gathered(4 * m, w), f'{text} 4 (W-1)',
      exchanged(8 * m, w), note,
    ),
    summed(c, GROUP, rows, w, formula, least, note),
    Sent(
      'backward', 'rows', GATHER, GROUP, gathered(rows, w), formula, least,
      note,
    ),
  ]  # fmt: skip


def all_to_all(c: Case) -> list[Sent]:
  m, text = wanted(c)
  room = c.group * math.ceil(CAPACITY * m / c.group)
  note = f'room for {CAPACITY} even shares'
  return [
    scalar(c, 'ids', GROUP),  # how full the fullest room is
    *(
      Sent(
        step, 'ids' if step == 'ids' else 'rows', A2A, GROUP,
        exchanged(room * size, c.group), f'{CAPACITY} {text} {name} (W-1)/W',
        exchanged(m * published, c.group), note,
      )
      for step, size, name, published in (
        ('ids', 4, '4', 8),
        ('forward', c.piece_bytes, 's', c.piece_bytes),
        ('backward', c.piece_bytes, 's', c.piece_bytes),
      )
    ),
  ]  # fmt: skip


def ragged(c: Case) -> list[Sent]:
  """The native one; its program says what there is room for, at most."""
  m, text = wanted(c)
  row = UNIT * math.ceil(c.piece_bytes / UNIT)
  found = [scalar(c, 'ids', GROUP)]
  for step, room, size, name, published in (
    ('ids', CAPACITY, UNIT, f'{UNIT}', 8),
    ('forward', 1, row, f'{row}', c.piece_bytes),
    ('backward', CAPACITY, row, f'{row}', c.piece_bytes),
  ):
    formula = f'{text} {name} (W-1)/W'
    note = f'at most; rows, also of an id, padded to {UNIT} bytes'
    if room > 1:
      formula, note = f'{room} {formula}', f'{note}; room for {room} shares'
    size = exchanged(room * m * size, c.group)
    what = 'ids' if step == 'ids' else 'rows'
    counts = 2 if step == 'ids' else 1
    found += [
      Sent(
        step, what, RAGGED, GROUP, size, formula,
        exchanged(m * published, c.group), note,
      ),
      Sent(
        step, 'scalars', A2A, GROUP, counts * gathered(4, c.group),
        f'{counts} 4 (W-1)',
      ),
    ]  # fmt: skip
  return found


def emulated(c: Case) -> list[Sent]:
  """The same on a CPU, where each part is as large as the whole."""
  m, text = wanted(c)
  found = [scalar(c, 'ids', GROUP)]
  for step, room, size, name, published, counts in (
    ('ids', 1, 4, '4', 8, 3),
    ('forward', CAPACITY, c.piece_bytes, 's', c.piece_bytes, 2),
    ('backward', 1, c.piece_bytes, 's', c.piece_bytes, 2),
  ):
    found += [
      Sent(
        step, 'ids' if step == 'ids' else 'rows', A2A, GROUP,
        gathered(room * m * size, c.group),
        f'{f"{room} " if room > 1 else ""}{text} {name} (W-1)',
        exchanged(m * published, c.group),
        'emulated: each part as large as the whole, and its offsets',
      ),
      Sent(
        step, 'scalars', A2A, GROUP, counts * gathered(4, c.group),
        f'{counts} 4 (W-1)',
      ),
    ]  # fmt: skip
  return found


# --- Copies.


def data_parallel(c: Case) -> list[Sent]:
  """Whole tables on all devices: rows of gradients go to all, or tables."""
  n = c.group * c.replicas
  published = c.tables * reduced(ROWS * c.width * 4, n)
  if c.ids * n <= 2 * ROWS:
    size = gathered(c.tables * c.ids * (4 + 4 * c.width), n)
    note = f'the published one adds whole tables, here of {ROWS:,} rows'
    formula = 'T b L (4 + 4 D) (W-1)'
    return [
      Sent('backward', 'rows', GATHER, ALL, size, formula, published, note)
    ]
  # A column more counts who has read a row; parts are whole lines of 128.
  part = math.ceil(ROWS / n) * (c.width + 1)
  table = (
    c.tables * n * 4 * (part if part <= 128 else math.ceil(part / 128) * 128)
  )
  note = f'half of it; {ROWS:,} rows of D+1 columns, padded to W parts'
  formula = 'pad(T R) 4 (D+1) (W-1)/W'
  half = exchanged(table, n)
  return [
    Sent('backward', 'rows', op, ALL, half, formula, published / 2, note)
    for op in (A2A, GATHER)
  ]


def copies(c: Case) -> Sent:
  """The mean of a device's rows over replica groups, where it is taken."""
  own = math.ceil(c.tables * ROWS / c.group) + 1
  return Sent(
    'backward', 'copies', REDUCE, ('rep',),
    reduced(own * c.width * 4, c.replicas), '2 (T R/W + 1) s (r-1)/r', None,
    'r groups; on every sync_every-th step; the 1 is a spare row',
  )  # fmt: skip
