"""What `benchmarks.sass` reads of a listing, and how often it says it runs."""

import textwrap

import numpy as np
import pytest

from benchmarks import gpu_roofline, sass
from pallas_kernels.hstu_attention import reference

SOURCE = """
def step(known, high):
  x = 1
  if known:
    x = 2
  else:
    for one in range(high):
      x = 3
  return x
"""


@pytest.fixture
def listing(tmp_path):
  source = tmp_path / 'kernel.py'
  source.write_text(SOURCE)
  return source, textwrap.dedent(f"""
    .text.kernel:
    .L_x_3:
            /*0000*/                   S2R R0, SR_TID.X ;
    .L_x_0:
    \t//## File "{source}", line 3 inlined at "other.py", line 9
    \t//## File "other.py", line 9
            /*0010*/                   HGMMA.64x64x16 R24, R1, gdesc[UR8], R24 ;
            /*0020*/              @!PT LDS RZ, [RZ] ;
            /*0030*/              @!P0 BRA `(.L_x_1) ;
    \t//## File "{source}", line 5
            /*0040*/                   FFMA R1, R2, R3, R4 ;
            /*0050*/                   MUFU.TANH R1, R2 ;
            /*0060*/                   BRA `(.L_x_2) ;
    .L_x_1:
    \t//## File "{source}", line 8
            /*0070*/                   LDS.128 R4, [R2] ;
            /*0080*/                   IADD3 R1, R2, R3, RZ ;
    .L_x_2:
            /*0090*/               @P1 BRA `(.L_x_0) ;
            /*00a0*/               @P2 BRA `(.L_x_3) ;
            /*00b0*/                   EXIT ;
    """)


def test_a_loop_and_its_runs(listing):
  source, text = listing
  instructions, labels = sass.read(text)
  assert len(instructions) == 12
  assert labels == {
    '.L_x_3': 0, '.L_x_0': 0x10, '.L_x_1': 0x70, '.L_x_2': 0x90,
  }  # fmt: skip
  assert instructions[1].places == ((str(source), 3), ('other.py', 9))
  # What is switched off for good takes a turn and no memory.
  assert instructions[2].opcode == 'NOP'
  # The loop around it does not belong to a turn.
  (loop,) = sass.find_loops(instructions, labels)
  assert [len(run) for run in loop.runs] == [3, 3, 2, 1]


def test_branches_of_the_source_say_how_often_a_run_runs(listing):
  source, text = listing
  (loop,) = sass.find_loops(*sass.read(text))
  all_of_it = sass.count(loop, {}, warps=4)
  assert all_of_it == dict(
    issue=9.0, fma=1.0, alu=2.0, xu=8.0, lsu=16 + 16.0, tensor=32.0
  )
  rates = {
    ('step', 'known', 'if'): 0.75,
    ('step', 'known', 'else'): 0.25,
    ('step', 'one in range(high)', 'for'): 3.0,
  }
  found = sass.count(loop, rates, warps=4)
  # The last jump comes from the line of the loop, too, as far as is told.
  assert found['issue'] == pytest.approx(3 + 3 * 0.75 + 3 * 0.75)
  assert found['fma'] == pytest.approx(0.75)
  assert found['xu'] == pytest.approx(8 * 0.75)
  assert found['lsu'] == pytest.approx(16 + 16 * 0.75)
  lines = sass.count_by_line(loop, rates, warps=4)
  assert lines[str(source), 3]['tensor'] == 32
  assert lines[str(source), 8]['lsu'] == pytest.approx(12)


@pytest.mark.parametrize(
  ('opcode', 'operands', 'unit', 'clocks'),
  [
    ('FFMA', '', 'fma', 0.25),
    ('IMAD.WIDE', '', 'fma', 0.25),
    ('IMAD.WIDE', '', 'imad', 0.5),
    ('FSEL', '', 'alu', 0.5),
    ('MUFU.TANH', '', 'xu', 2),
    ('LDG.E.64.CONSTANT', '', 'lsu', 2),
    ('LDSM.16.M88.4', '', 'lsu', 4),
    ('STS', '', 'lsu', 1),
    # 64 x 64 x 16 products at 2,048 a clock, of four warps.
    ('HGMMA.64x64x16.F32.BF16', ' R24, R104, gdesc[UR8], R24', 'tensor', 8),
    # Here reading both factors takes longer than the product.
    ('HGMMA.64x32x16.F32.BF16', ' R40, gdesc[UR20], RZ', 'tensor', 6),
  ],
)
def test_clocks_of_an_instruction(opcode, operands, unit, clocks):
  one = sass.Instruction(0, opcode, operands, ())
  assert sass.clocks_of(one)[unit] == clocks
  assert sass.clocks_of(one)['issue'] == 0.25


def test_boundaries_are_not_fewer_than_there_are():
  rng = np.random.default_rng(0)
  time = np.cumsum(np.exp(rng.uniform(-1, 13, 96)).astype(np.int64))
  after = np.append(time[1:], time[-1] + 5)
  counts = iter(gpu_roofline.count_boundaries(after, time, 16, 32))
  for row0 in range(0, 96, 16):
    for key0 in range(0, 96, 32):
      if key0 + 32 <= row0:
        apart = after[row0 : row0 + 16, None] - time[None, key0 : key0 + 32]
        bucket = np.asarray(
          reference.time_bucket(apart.astype(np.float32), 129)
        )
        more = next(counts) - (bucket.max() - bucket.min())
        assert 0 <= more <= 1
  assert not [*counts]
