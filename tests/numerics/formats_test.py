"""The registry: equal bytes in NumPy and in programs, sizes, extensions."""

import dataclasses
import doctest
import functools
import math
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from genrec_jax.checkpoint import chunks
from genrec_jax.numerics import bit_packing, formats, number_format, row_quant
from genrec_jax.numerics.block_formats import BLOCK_FORMATS
from genrec_jax.numerics.formats import FORMATS, extend_formats
from genrec_jax.numerics.number_format import EncodedArray, NumberFormat
from genrec_jax.parallel import codecs
from tests.numerics import format_rows
from tests.numerics.power_format import POWER8

DOCUMENT = pathlib.Path(__file__).parents[2] / 'docs' / 'number_formats.md'
ALL = extend_formats({'power8': POWER8}) | {
  'fp8 gradients': FORMATS['fp8'].gradients
}
# Of the formats of blocks, of which `block_rows_test.py` has all, three.
IN_BOTH = [
  n
  for n, f in ALL.items()
  if f.engines == ('numpy', 'jax')
  and (n not in BLOCK_FORMATS or n in ('mx6', 'mxfp6_e3m2', 'mxint8'))
]
any_float = st.floats(width=32, allow_nan=False, allow_infinity=False)


PROGRAMS = {
  n: jax.jit(functools.partial(ALL[n].encode, xp=jnp)) for n in IN_BOTH
}


def assert_same_bytes(name, rows):
  found = {n: np.asarray(x) for n, x in PROGRAMS[name](rows).items()}
  wanted = ALL[name].encode(rows)
  assert set(found) == set(wanted)
  for part, array in wanted.items():
    assert found[part].dtype == array.dtype, part
    if part == 'bias':
      # Which of 0.0 and -0.0 is the least is the compiler's choice, and no
      # decoded number tells: codes of zero times the scale, plus either, is 0.
      np.testing.assert_array_equal(found[part], array)
      found[part], array = found[part] + 0.0, array + 0.0
    assert found[part].tobytes() == array.tobytes(), part


@pytest.mark.parametrize('rows', [format_rows.plain, format_rows.extreme])
@pytest.mark.parametrize('name', IN_BOTH)
def test_numpy_and_programs_write_the_same_bytes(name, rows):
  for columns in format_rows.WIDTHS:
    assert_same_bytes(name, rows(columns))


@pytest.mark.parametrize('name', IN_BOTH)
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_finite_rows_have_the_same_bytes(name, data):
  shape = 3, data.draw(st.sampled_from([1, 2, 5, 16]))
  rows = data.draw(arrays_of.arrays(np.float32, shape, elements=any_float))
  with np.errstate(over='ignore'):
    spans = rows.max(-1) - rows.min(-1)
  if np.isfinite(spans).all():  # else int8 has nothing to count steps in
    assert_same_bytes(name, rows)


@pytest.mark.parametrize('name', [n for n in IN_BOTH if n != 'power8'])
def test_rows_that_are_not_finite_stay_visible_in_both(name):
  for columns in (2, 7, 64):
    rows, wrong = format_rows.not_finite(columns)
    for xp in (np, jnp):
      parts = ALL[name].encode(xp.asarray(rows), xp)
      found = np.asarray(ALL[name].decode(parts, columns, xp))
      np.testing.assert_array_equal(np.isfinite(found).all(-1), ~wrong)


@pytest.mark.parametrize('name', ALL)
def test_what_either_engine_reads(name):
  wanted = ALL[name]
  rows = format_rows.plain(64)
  parts = wanted.encode(rows)
  found = wanted.decode(parts, 64)
  assert found.dtype == np.float32 and found.shape == rows.shape
  largest = np.abs(rows).max(-1, keepdims=True)
  # A step and a half of 2 bits over the range, for the coarsest of them.
  assert (np.abs(found - rows) <= largest).all()
  if wanted.exact:
    assert found.tobytes() == rows.tobytes()
  if 'jax' in wanted.engines:
    again = jax.jit(lambda p: wanted.decode(p, 64, jnp))(parts)
    # Where product and sum become one instruction, the product, of at most
    # twice the largest number, is not rounded to half a unit of its own.
    assert (np.abs(again - found) <= 2.0**-22 * largest).all()


@pytest.mark.parametrize('name', ALL)
def test_a_row_has_the_bytes_that_are_said(name):
  for columns in (1, 17, 64):
    if columns < ALL[name].least_columns:
      continue
    rows = format_rows.plain(columns)
    if name[-1] in '234':  # whose scales float16 can hold
      rows = np.rint(rows)
    parts, layout = ALL[name].encode(rows), ALL[name].layout(columns)
    assert list(parts) == list(layout)
    total = sum(x.nbytes for x in parts.values())
    assert total == len(rows) * ALL[name].bytes_per_row(columns)
    for part, array in parts.items():
      assert array.dtype == layout[part].dtype


def test_formats_are_called_by_their_names():
  assert all(f.name == name for name, f in FORMATS.items())
  quantisers = {n for n, f in FORMATS.items() if f.method}
  assert quantisers == {
    f'{FORMATS[n].method}{FORMATS[n].bits}' for n in quantisers
  }
  assert codecs.names()[:5] == (
    'float32', 'float16', 'bfloat16', 'fp8', 'int8'
  )  # fmt: skip
  others = [name for name in codecs.names()[5:] if name not in BLOCK_FORMATS]
  assert all(name.startswith('fbgemm_') for name in others)
  assert {*BLOCK_FORMATS} < {*codecs.names()}
  assert formats.bit_widths() == (2, 3, 4, 8)
  assert [f.name for f in FORMATS.values() if f.storage_dtype] == [
    'float32',
    'float16',
    'bfloat16',
  ]


@pytest.mark.parametrize(
  'module',
  [bit_packing, codecs, chunks, formats, number_format, row_quant],
)
def test_examples(module):
  found = doctest.testmod(module)
  assert found.attempted and not found.failed


def test_the_table_of_the_document_is_the_registry():
  rows = re.findall(
    r'^\| `(\w+)` \| ([^|]+) \| [^|]+ \| ([^|]+) \| ([^|]+) \|$',
    DOCUMENT.read_text(),
    re.MULTILINE,
  )
  assert [name for name, *_ in rows] == list(FORMATS)
  for name, formula, where, engines in rows:
    written = FORMATS[name]
    formula = re.sub(r'(\d) C', r'\1 * C', formula)
    for columns in (1, 17, 64):
      found = eval(formula, {'C': columns, 'ceil': math.ceil})
      assert found == written.bytes_per_row(columns), name
    assert ('tables' in where.split(', ')) == (
      written.storage_dtype is not None
    )
    assert ('exchange' in where) == ('jax' in written.engines)
    assert ('JAX' in engines) == ('jax' in written.engines)
    assert ('checkpoints' in where.split(', ')) == bool(written.method)


def test_the_example_of_the_document_is_a_format():
  code = DOCUMENT.read_text().split('```python\n')[2].split('```')[0]
  names = {}
  exec(code, names)
  made = names['formats']['upper8']
  rows = np.array([[1.0, -2.0, 0.5]], np.float32)
  assert made.decode(made.encode(rows), 3).tolist() == [[0.5, -2.0, 0.5]]


def test_numpy_needs_no_jax():
  program = """
import sys
sys.modules['jax'] = None
import numpy as np
from genrec_jax.checkpoint import chunks, follow, serving_copy
from genrec_jax.numerics.formats import FORMATS
rows = np.arange(128, dtype=np.float32).reshape(2, 64)
for written in FORMATS.values():
  parts = written.encode(rows)
  assert np.abs(written.decode(parts, 64) - rows).max() < 65, written.name
  if written.method:
    encoding = chunks.RowEncoding(written.bits, written.method)
    chunk = chunks.RowChunk('t', 0, np.arange(2), rows, {})
    chunks.from_bytes(chunks.to_bytes(chunk, encoding))
"""
  subprocess.run([sys.executable, '-c', program], check=True)


def test_a_format_that_programs_cannot_run():
  with pytest.raises(ValueError, match="'adaptive4' runs in numpy, not in jax"):
    FORMATS['adaptive4'].encode(jnp.zeros((2, 64)), jnp)
  with pytest.raises(ValueError, match="no codec 'adaptive4', must be one of"):
    codecs.find_codec('adaptive4')


@pytest.mark.parametrize(
  'name, change, message',
  [
    ('int8', {'name': 'int8'}, "is a number format 'int8' already"),
    ('mine', {}, "'power8' is handed in as 'mine'; use one name"),
    (
      'mine',
      {'name': 'mine', 'method': 'adaptive'},
      "'adaptive8' and 'mine' both have the method 'adaptive' with 8 bits",
    ),
  ],
)
def test_names_are_given_once(name, change, message):
  with pytest.raises(ValueError, match=message):
    extend_formats({name: dataclasses.replace(POWER8, **change)})


@pytest.mark.parametrize(
  'change, message',
  [
    ({'engines': ('torch',)}, r"engines .* \('torch',\), must be of 'numpy'"),
    ({'bits': 32}, "method 'power', .* bits from 1 to 31: 32 stand for"),
    ({'engines': ('jax',)}, "needs 'numpy' among its engines"),
    (
      {'layout': lambda columns: {'ids': EncodedArray('uint8', columns)}},
      "has a part 'ids', which every chunk .* rename the part",
    ),
  ],
)
def test_formats_that_could_not_be_used(change, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(POWER8, **change)


def test_a_table_is_kept_in_a_format_with_a_dtype():
  for name in ('float32', 'float16', 'bfloat16'):
    assert formats.storage_dtype(name) == jnp.dtype(name)
  for name in ('int8', 'float64'):
    with pytest.raises(ValueError, match=f"'{name}', must be one of float32, "):
      formats.storage_dtype(name)


def test_a_format_is_a_value():
  assert hash(POWER8) == hash(dataclasses.replace(POWER8))
  assert isinstance(FORMATS['fp8'].gradients, NumberFormat)
