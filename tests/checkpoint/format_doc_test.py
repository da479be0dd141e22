"""The reader in docs/checkpoint_format.md reads what the library writes."""

import io
import json
import pathlib
import shutil
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax.checkpoint import chunks
from genrec_jax.checkpoint.chunks import RowChunk, RowEncoding
from tests.checkpoint import rows_content

DOCUMENT = pathlib.Path(__file__).parents[2] / 'docs' / 'checkpoint_format.md'
ENCODINGS = [
  RowEncoding(32),
  RowEncoding(32, slots='float16'),
  RowEncoding(8, 'adaptive'),
  RowEncoding(8, 'symmetric'),
  RowEncoding(4, 'adaptive', 'float16'),
  RowEncoding(4, 'kmeans'),
  RowEncoding(3, 'asymmetric'),
  RowEncoding(3, 'symmetric', 'float16'),
  RowEncoding(2, 'adaptive'),
  RowEncoding(2, 'kmeans', 'float16'),
]
CASES = [
  (f'{dtype}-{e.bits}-{e.method}-{e.slots}', dtype, e)
  for dtype in ('float32', 'bfloat16')
  for e in ENCODINGS
]
CHILD = """
import json, pathlib, sys
root = pathlib.Path(sys.argv[1])
for case in json.loads(sys.argv[2]):
  for table in ('item', 'user id'):
    values, slots = read_table(root / case, 8, table)
    assert values.dtype == np.float32
    np.savez(root / f'{case}.{table}.npz', **slots, **{'': values})
for module in sys.modules:
  assert module.split('.')[0] not in ('jax', 'genrec_jax', 'ml_dtypes'), module
"""


def reader() -> str:
  """The code of the document."""
  code = DOCUMENT.read_text().split('```python\n')[1:]
  assert len(code) == 1
  return code[0].split('```')[0]


@pytest.fixture(scope='module')
def read(tmp_path_factory):
  """A directory: checkpoints of all cases, and what the reader makes of them.

  Each is a base, a delta at 32 bits, and one upon both.
  """
  root = tmp_path_factory.mktemp('format')
  for case, dtype, encoding in CASES:
    write = dict(directory=root / case, dtype=dtype)
    rows_content.write(step=3, encoding=encoding, **write)
    rows_content.write(step=5, parents=[3], **write)
    rows_content.write(step=8, parents=[3, 5], encoding=encoding, **write)
  cases = json.dumps([case for case, _, _ in CASES])
  # -I: neither the checkout nor PYTHONPATH.
  command = [sys.executable, '-I', '-c', reader() + CHILD, str(root), cases]
  subprocess.run(command, cwd=root, check=True, timeout=60)
  return root


@pytest.mark.parametrize('case, dtype, encoding', CASES)
def test_the_reader_reads_what_the_library_restores(
  read, case, dtype, encoding
):
  found = rows_content.load(read / case, 8, dtype)
  values, slots = np.asarray(found.arrays['s']), found.slots['s']
  items, width = rows_content.ROWS['item'], rows_content.WIDTH
  start = 0
  for table, column in (('item', 0), ('item', width), ('user id', 0)):
    here = slice(start, start + rows_content.ROWS[table])
    columns = slice(column, column + width)
    start = here.stop
    with np.load(read / f'{case}.{table}.npz') as got:
      np.testing.assert_array_equal(
        got[''][:, columns].astype(jnp.dtype(dtype)), values[here]
      )
      np.testing.assert_array_equal(got['sum'], slots['sum'][here])
      np.testing.assert_array_equal(
        got['mean'][:, columns], slots['mean'][here]
      )
      assert got['count'] == slots['count'] == 8
  # And that is what was to be saved, as near as so many bits come.
  (arrays,), (_,), _ = (x.values() for x in rows_content.state(8, dtype))
  wanted = np.asarray(arrays, np.float32)
  error = np.abs(np.asarray(values, np.float32) - wanted)
  assert error.max() <= (0 if encoding.bits == 32 else 6 / 2**encoding.bits)
  assert values.shape[0] == 2 * items + rows_content.ROWS['user id'] + 1


def complaint(root) -> str:
  """The last words of the reader about a checkpoint."""
  cases = json.dumps([CASES[0][0]])
  command = [sys.executable, '-I', '-c', reader() + CHILD, str(root), cases]
  found = subprocess.run(command, capture_output=True, text=True, timeout=60)
  return found.stderr.splitlines()[-1]


@pytest.mark.parametrize(
  'file, words',
  [
    ('5/rows/item/0-00000.npz', '5/rows/item/0-00000.npz is damaged'),
    ('3/MANIFEST.json', 'step 3: its manifest is damaged'),
  ],
)
def test_the_reader_refuses_what_is_damaged(read, tmp_path, file, words):
  case = CASES[0][0]
  path = shutil.copytree(read / case, tmp_path / case) / file
  raw = path.read_bytes()
  path.write_bytes(raw.replace(b'1', b'2', 1))
  assert complaint(tmp_path) == f'AssertionError: {words}'


def test_the_reader_refuses_another_parent(read, tmp_path):
  case = CASES[0][0]
  path = shutil.copytree(read / case, tmp_path / case)
  shutil.rmtree(path / '5')
  rows_content.write(path, 5, [3], RowEncoding(4))
  assert complaint(tmp_path) == 'AssertionError: step 5 is another one'


@pytest.mark.parametrize(
  'ids, written',
  [
    ([7], None),
    ([2, 5, 8, 11], None),
    ([1, 3, 4, 9], np.uint8),
    ([0, 3, 9, 12, 30], np.uint8),
    ([0, 1, 10_000], np.int64),
  ],
)
def test_every_way_to_write_ids(ids, written):
  names = {}
  exec(reader(), names)
  values = np.arange(2.0 * len(ids), dtype=np.float32).reshape(-1, 2) + 1
  chunk = RowChunk('t', 1, np.array(ids), values, {})
  with np.load(io.BytesIO(chunks.to_bytes(chunk, RowEncoding()))) as arrays:
    arrays = dict(arrays)
  assert written == (arrays['ids'].dtype if 'ids' in arrays else None)
  found = {'': np.zeros((10_001, 4), np.float32)}
  names['put_chunk'](arrays, 't', found)
  wanted = np.zeros((10_001, 4), np.float32)
  wanted[ids, 1:3] = values
  np.testing.assert_array_equal(found[''], wanted)


def test_float16_tables_too():
  names = {}
  exec(reader(), names)
  values = np.array([[1.5, -2.0]], np.float16)
  chunk = RowChunk('t', 0, np.array([0]), values, {})
  with np.load(io.BytesIO(chunks.to_bytes(chunk, RowEncoding()))) as arrays:
    found = names['decoded'](dict(arrays), 2, 32)
  np.testing.assert_array_equal(found, values)
