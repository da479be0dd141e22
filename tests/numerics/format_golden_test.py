"""The bytes of every format, as they were when the files were first written.

Checkpoints outlive the code that wrote them, and devices of one run must agree:
a checksum that differs here is a new format, which needs a name of its own. A
search may come to find better ranges or codebooks, which are read as before;
that of kmeans has.
"""

import io
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax.checkpoint import chunks
from genrec_jax.checkpoint.chunks import RowChunk, RowEncoding
from genrec_jax.numerics.row_quant import quantize
from genrec_jax.parallel import codecs
from tests.numerics import format_rows

QUANTISED = {
  ('symmetric', 2): 83435147,
  ('symmetric', 3): 313646409,
  ('symmetric', 4): 4054769617,
  ('symmetric', 8): 1868546961,
  ('asymmetric', 2): 2924258857,
  ('asymmetric', 3): 780229657,
  ('asymmetric', 4): 2025583349,
  ('asymmetric', 8): 4121514845,
  ('adaptive', 2): 2486328024,
  ('adaptive', 3): 3164153552,
  ('adaptive', 4): 526075808,
  ('adaptive', 8): 4121514845,
  ('kmeans', 2): 201943975,
  ('kmeans', 3): 1011007253,
  ('kmeans', 4): 3058839982,
}
CHUNKS = {
  ('symmetric', 2, 'float32'): 1062692536,
  ('symmetric', 2, 'bfloat16'): 2205035868,
  ('symmetric', 2, 'float16'): 2245983298,
  ('symmetric', 3, 'float32'): 2590343029,
  ('symmetric', 3, 'bfloat16'): 1940734599,
  ('symmetric', 3, 'float16'): 1650176164,
  ('symmetric', 4, 'float32'): 859722488,
  ('symmetric', 4, 'bfloat16'): 1641048585,
  ('symmetric', 4, 'float16'): 3851778011,
  ('symmetric', 8, 'float32'): 4263687684,
  ('symmetric', 8, 'bfloat16'): 1816761499,
  ('symmetric', 8, 'float16'): 4287282806,
  ('asymmetric', 2, 'float32'): 665782703,
  ('asymmetric', 2, 'bfloat16'): 350952370,
  ('asymmetric', 2, 'float16'): 1740739215,
  ('asymmetric', 3, 'float32'): 94525876,
  ('asymmetric', 3, 'bfloat16'): 2551919691,
  ('asymmetric', 3, 'float16'): 335357405,
  ('asymmetric', 4, 'float32'): 2152481206,
  ('asymmetric', 4, 'bfloat16'): 92719285,
  ('asymmetric', 4, 'float16'): 3057651883,
  ('asymmetric', 8, 'float32'): 2866780389,
  ('asymmetric', 8, 'bfloat16'): 942412713,
  ('asymmetric', 8, 'float16'): 1033782025,
  ('adaptive', 2, 'float32'): 2930489588,
  ('adaptive', 2, 'bfloat16'): 322072695,
  ('adaptive', 2, 'float16'): 788230600,
  ('adaptive', 3, 'float32'): 3407615844,
  ('adaptive', 3, 'bfloat16'): 2398608239,
  ('adaptive', 3, 'float16'): 1939938623,
  ('adaptive', 4, 'float32'): 2147426537,
  ('adaptive', 4, 'bfloat16'): 260399575,
  ('adaptive', 4, 'float16'): 2221512936,
  ('adaptive', 8, 'float32'): 1000561895,
  ('adaptive', 8, 'bfloat16'): 1343201225,
  ('adaptive', 8, 'float16'): 1713474894,
  ('kmeans', 2, 'float32'): 3095798285,
  ('kmeans', 2, 'bfloat16'): 3567960187,
  ('kmeans', 2, 'float16'): 1070392141,
  ('kmeans', 3, 'float32'): 540199318,
  ('kmeans', 3, 'bfloat16'): 729376517,
  ('kmeans', 3, 'float16'): 3545866884,
  ('kmeans', 4, 'float32'): 675301254,
  ('kmeans', 4, 'bfloat16'): 2744729267,
  ('kmeans', 4, 'float16'): 918907761,
  ('adaptive', 32, 'float32'): 2061497481,
  ('adaptive', 32, 'bfloat16'): 2814144534,
  ('adaptive', 32, 'float16'): 1134926018,
}
WIRE = {
  ('float32', False): 3758680818,
  ('float32', True): 3758680818,
  ('float16', False): 3218137293,
  ('float16', True): 3218137293,
  ('bfloat16', False): 4212699499,
  ('bfloat16', True): 4212699499,
  ('fp8', False): 664287284,
  ('fp8', True): 3814185113,
  ('int8', False): 2040553022,
  ('int8', True): 2040553022,
}


def checksum(arrays, before=0):
  """CRC-32 of names, dtypes, shapes and bytes."""
  for name in sorted(arrays):
    array = np.ascontiguousarray(arrays[name])
    about = f'{name} {array.dtype.str} {array.shape}'
    before = zlib.crc32(array.tobytes(), zlib.crc32(about.encode(), before))
  return before


def quantised(method, bits):
  crc = 0
  for columns in format_rows.WIDTHS:
    if method == 'kmeans' and columns <= 2**bits:
      continue
    for make in (format_rows.plain, format_rows.extreme):
      crc = checksum(quantize(make(columns), bits, method), crc)
  return crc


def chunk(method, bits, dtype):
  """Checksum of chunks, of narrow rows and of wide ones."""
  crc = 0
  for columns in (1, 7, 64):
    values = format_rows.plain(columns).astype(dtype)
    made = RowChunk(
      't', 3, np.arange(40) * 2 + 5, values, {'sum': values[:, 0]}
    )
    with np.load(
      io.BytesIO(chunks.to_bytes(made, RowEncoding(bits, method)))
    ) as x:
      crc = checksum({k: x[k] for k in x.files if k != 'slot.sum'}, crc)
  return crc


def sent(name, backward):
  encode = jax.jit(codecs.find_codec(name, backward=backward).encode)
  crc = 0
  for columns in format_rows.WIDTHS:
    for make in (format_rows.plain, format_rows.extreme):
      crc = checksum({'': np.asarray(encode(make(columns)))}, crc)
  return crc


@pytest.mark.parametrize('method, bits', QUANTISED)
def test_quantised_rows_have_the_bytes_they_had(method, bits):
  assert quantised(method, bits) == QUANTISED[method, bits]


@pytest.mark.parametrize('method, bits, dtype', CHUNKS)
def test_chunks_have_the_bytes_they_had(method, bits, dtype):
  found = chunk(method, bits, jnp.dtype(dtype))
  assert found == CHUNKS[method, bits, dtype]


@pytest.mark.parametrize('name, backward', WIRE)
def test_rows_travel_in_the_bytes_they_had(name, backward):
  assert sent(name, backward) == WIRE[name, backward]
