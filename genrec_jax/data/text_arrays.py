"""Arrays of texts whose memory follows the characters that they hold.

NumPy's fixed width pays for the longest text in every row: one id of 4,096
characters among a million makes 16 GB. Where that would waste much, strings of
any length (`StringDType`) hold the same texts.
"""

from collections.abc import Sequence

import numpy as np

LONGEST_ID = 4096  # characters; URLs are the longest ids that are in use
_ANY_LENGTH = np.dtypes.StringDType()
_FREE = 1 << 22  # bytes that padding may take anyway


def is_text(values: np.ndarray) -> bool:
  """Whether an array holds texts, of either type.

  >>> is_text(np.array(['a'])), is_text(np.array([1]))
  (True, False)
  """
  return values.dtype.kind in 'UT'


def _choose_dtype(longest: int, characters: int, count: int) -> np.dtype:
  """Fixed width, unless most of it would be padding."""
  is_small = 4 * longest * count <= _FREE + 16 * characters
  return np.dtype(f'U{max(1, longest)}') if is_small else _ANY_LENGTH


def measure(words: Sequence[str]) -> np.ndarray:
  """`[N]` int64, the characters of each text."""
  return np.fromiter(map(len, words), np.int64, len(words))


def make_text_array(
  words: Sequence[str], lengths: np.ndarray | None = None
) -> np.ndarray:
  """`[N]` texts, of which `lengths` are known or measured here.

  >>> make_text_array(['a', 'bc']).dtype.str
  '<U2'
  >>> make_text_array(['a'] * 10_000 + ['b' * 4096]).dtype
  StringDType()
  """
  lengths = measure(words) if lengths is None else lengths
  longest, characters = int(lengths.max(initial=0)), int(lengths.sum())
  return np.array(words, _choose_dtype(longest, characters, len(words)))


def take_rows(texts: np.ndarray, rows: np.ndarray) -> np.ndarray:
  """`texts[rows]`, in the type that suits what the rows hold.

  >>> take_rows(np.array(['a', 'bcd']), np.array([0, 0])).dtype.str
  '<U1'
  """
  lengths = np.strings.str_len(texts)[rows]
  longest, characters = int(lengths.max(initial=0)), int(lengths.sum())
  dtype = _choose_dtype(longest, characters, len(rows))
  return texts.astype(dtype, copy=False)[rows]


def concatenate(arrays: Sequence[np.ndarray]) -> np.ndarray:
  """As `np.concatenate`; texts in the type that suits all of them.

  >>> concatenate([np.array(['a']), np.array(['bcd'])]).tolist()
  ['a', 'bcd']
  """
  if not all(map(is_text, arrays)):
    return np.concatenate(arrays)
  dtype = find_common_dtype(*arrays)
  return np.concatenate([array.astype(dtype, copy=False) for array in arrays])


def find_common_dtype(*arrays: np.ndarray) -> np.dtype:
  """The type for an array that holds the texts of all `arrays`."""
  count = sum(map(len, arrays))
  widths = [a.dtype.itemsize // 4 for a in arrays if a.dtype.kind == 'U']
  if len(widths) == len(arrays) and 4 * max(widths) * count <= _FREE:
    return np.dtype(f'U{max(1, *widths)}')  # without a look at the texts
  return find_narrowest_dtype(*arrays)


def find_narrowest_dtype(*arrays: np.ndarray) -> np.dtype:
  """As `find_common_dtype`, and no wider than the longest text."""
  count = sum(map(len, arrays))
  lengths = [np.strings.str_len(array) for array in arrays if len(array)]
  return _choose_dtype(
    max((int(x.max()) for x in lengths), default=0),
    sum(int(x.sum()) for x in lengths),
    count,
  )


def fit_to(
  texts: np.ndarray, known: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """`texts` in the type of `known`, and which of them `known` might hold.

  The other way round, the padding of one long text would be that of all
  `known`.
  """
  if texts.dtype == known.dtype or known.dtype.kind == 'T':
    return texts.astype(known.dtype, copy=False), np.ones(len(texts), bool)
  width = known.dtype.itemsize // 4
  short = np.strings.str_len(texts) <= width
  return texts.astype(known.dtype), short  # cuts off what is too long


def view_content(values: np.ndarray) -> list[np.ndarray]:
  """Arrays whose bytes say what `values` hold, for a digest of them."""
  if values.dtype.kind == 'T':  # its own bytes are addresses
    return list(pack_texts(values.tolist()))
  return [np.ascontiguousarray(values)]


def pack_texts(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
  """The UTF-8 of all texts in a row, and `[N]` int64 where each ends."""
  words = [text.encode() for text in texts]
  ends = np.cumsum(np.fromiter(map(len, words), np.int64, len(words)))
  return np.frombuffer(b''.join(words), np.uint8), ends.astype(np.int64)


def pack_array(values: np.ndarray) -> np.ndarray:
  """An array of texts as one of single bytes, for a file.

  They are the number of texts and where each ends, 64 bits each, and the texts
  in UTF-8, one behind the other. Fixed width has another type.
  """
  blob, ends = pack_texts(values.tolist())
  content = np.int64(len(ends)).tobytes() + ends.tobytes() + blob.tobytes()
  return np.frombuffer(content, 'S1')


def unpack_array(packed: np.ndarray) -> np.ndarray:
  """The inverse of `pack_array`.

  >>> texts = np.array(['a', 'bcd'])
  >>> unpack_array(pack_array(texts)).tolist()
  ['a', 'bcd']

  Raises:
    ValueError: it is not what `pack_array` made.
  """
  content = packed.tobytes()
  count = int.from_bytes(content[:8], 'little')
  begin = 8 * (count + 1)
  if begin > len(content):
    raise ValueError(f'it says that it holds {count:,} texts, and is too short')
  ends = np.frombuffer(content, np.int64, count, 8)
  cuts = np.concatenate([[0], ends])
  if (np.diff(cuts) < 0).any() or begin + cuts[-1] != len(content):
    raise ValueError('the ends of its texts do not rise to the last one')
  cuts = (begin + cuts).tolist()
  pairs = zip(cuts[:-1], cuts[1:], strict=True)
  return make_text_array([content[a:b].decode() for a, b in pairs])
