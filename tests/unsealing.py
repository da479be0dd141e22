"""Directories as earlier versions wrote them, without a seal."""

import json
import pathlib

from genrec_jax import sealed


def unseal(directory) -> None:
  """Removes the seal, and the key that speaks of it."""
  directory = pathlib.Path(directory)
  (directory / sealed.NAME).unlink()
  for path in directory.glob('*.json'):
    body = json.loads(path.read_text())
    if body and body.pop('sealed', False):
      path.write_text(json.dumps(body, indent=1))
