"""What happens to files: mutations of their bytes and of their fields."""

_ODD = (
  '1_000', '１２', '٣', '273245533\x0b', '0x10', 'nan', 'inf', '-0', '+5', ' 7',
  '7 ', '1e400', '1e-400', '9' * 25, '9' * 5000, '-', '.', '1,5', '００', '',
  '9007199254740993', '1699999999.9999999', '2024-02-29', '2024-02-30',
  'deep', 'huge', '[deep]', '"', '""', "'", '\\', '\t', '\u2028', '\x1c', '::',
)  # fmt: skip
_PIECES = (
  b'\r', b'\n', b'\r\n', b'\r\r\n', b'\n\n', b'\0', b'\xef\xbb\xbf', b'\xff',
  b'\xc3', b'\xed\xa0\x80', b'"', b'""', b',', b'\t', b' ', b'::', b'|', b':',
  b'   \n', b'\t\t\n', b'\x0b', b'\x0c', b'\x85', b'\xc2\x85', b'\x1a', b'\x01',
)  # fmt: skip


def mutate_text(rng, content: bytes) -> bytes:
  at = rng.randrange(len(content) + 1)
  kind = rng.randrange(10)
  lines = content.splitlines(True)
  if kind == 0 and content:
    at = rng.randrange(len(content))
    flipped = bytes([content[at] ^ 1 << rng.randrange(8)])
    return content[:at] + flipped + content[at + 1 :]
  if kind == 1:
    return content[:at]
  if kind in (2, 3):
    return content[:at] + rng.choice(_PIECES) + content[at:]
  if kind == 4 and lines:  # a line doubled, dropped, or emptied
    i = rng.randrange(len(lines))
    lines[i : i + 1] = rng.choice([[lines[i]] * 2, [], [b'\n'], [b' \n']])
    return b''.join(lines)
  if kind == 5 and lines:  # other line ends, all or some
    end = rng.choice([b'\r', b'\r\n', b'\n'])
    share = rng.choice([1, 0.3])
    return b''.join(
      line.rstrip(b'\r\n') + end if rng.random() < share else line
      for line in lines
    )
  if kind == 6 and rng.random() < 0.3:
    size = rng.choice([300, 4096, 4097, 20000, 140000])
    return (
      content[:at]
      + rng.choice([b'x', b'7', b'\xc3\xa9']) * size
      + (content[at:])
    )
  if kind == 7 and lines:
    rng.shuffle(lines)
    return b''.join(lines)
  return _replace_field(rng, content)


def _replace_field(rng, content: bytes) -> bytes:
  marks = [i for i, x in enumerate(content) if x in b',\t:| \n\r']
  if not marks:
    return content
  a = rng.choice(marks)
  later = [i for i in marks if i > a]
  b = later[0] if later else len(content)
  return content[: a + 1] + rng.choice(_ODD).encode() + content[b:]


def mutate_bytes(rng, content: bytes) -> bytes:
  if not content:
    return content
  kind, at = rng.randrange(4), rng.randrange(len(content))
  if kind == 0:
    return content[:at]
  if kind == 1:
    size = rng.randrange(1, 40)
    return content[:at] + rng.randbytes(size) + content[at + size :]
  if kind == 2:
    return content[:at] + bytes(min(20, len(content) - at)) + content[at + 20 :]
  flipped = bytes([content[at] ^ 1 << rng.randrange(8)])
  return content[:at] + flipped + content[at + 1 :]
