"""Signs manifests, so that readers on other machines know who wrote them.

A CRC protects against accidents but not against somebody who rewrites a
manifest. With a key that the trainer and its readers share, the manifest holds
the SHA-256 of every file, and an HMAC-SHA256 over all that it says.
docs/publishing.md explains how to make a key, and what this does not prevent.
"""

import hashlib
import hmac
import os
import pathlib
import stat
from collections.abc import Callable

from genrec_jax.checkpoint.errors import CheckpointError, UnsignedError

_LEAST, _MOST = 16, 4096  # bytes


def read_key(
  path: str | os.PathLike, log: Callable[[str], object] = print
) -> bytes | None:
  """The key in a file, without white space around it.

  Args:
    path: of the file; '' for no key.
    log: receives a warning if other users may read the file.

  Returns:
    The key; None for no file.

  Raises:
    CheckpointError: the file cannot be read, or is no key.
  """
  if not os.fspath(path):
    return None
  path = pathlib.Path(path)
  try:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
      raise CheckpointError(f'key file {path}: it is not a regular file')
    with path.open('rb') as file:
      key = file.read(_MOST + 1).strip()
  except OSError as e:
    raise CheckpointError(
      f'key file {path} cannot be read ({e.strerror or e})'
    ) from e
  if not _LEAST <= len(key) <= _MOST:
    raise CheckpointError(
      f'key file {path} has {len(key)} bytes, must have {_LEAST} to {_MOST}; '
      'docs/publishing.md says how to make one'
    )
  if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
    log(f'key file {path} is open to other users; use chmod 600 on it')
  return key


def sign(text: bytes, key: bytes) -> str:
  """The signature of a text.

  >>> sign(b'text', b'k' * 16)[:8]
  'f604a91d'
  """
  return hmac.new(key, text, hashlib.sha256).hexdigest()


def check_signature(
  body: dict, to_text: Callable[[dict], bytes], key: bytes
) -> None:
  """Raises UnsignedError unless a manifest is signed with the key."""
  unsigned = {name: x for name, x in body.items() if name != 'hmac'}
  actual, wanted = body.get('hmac'), sign(to_text(unsigned), key)
  if 'hmac' not in body:
    raise UnsignedError('not signed, and this reader accepts signed steps only')
  if not (
    isinstance(actual, str)
    and hmac.compare_digest(actual.encode('utf-8', 'replace'), wanted.encode())
  ):
    raise UnsignedError('signed with another key, or changed since')
