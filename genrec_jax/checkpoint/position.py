"""The position of a data iterator, written once for all processes."""

import asyncio
import json

import jax

# As grain's iterators name it when one process saves them.
FILE = 'process_0-of-1.json'


class IteratorState:
  """An iterator as Orbax saves and loads it (`StatefulCheckpointable`).

  Every process makes its part of the same batches, so their iterators stand at
  the same place, and a job of any number of processes can continue from it.
  grain's own way is a file a process, which no other number of them can read.
  """

  def __init__(self, data):
    """Wraps an iterator with `get_state` and `set_state`, as grain has them."""
    if not (hasattr(data, 'get_state') and hasattr(data, 'set_state')):
      raise TypeError(
        f'data is a {type(data).__name__}, not a grain iterator (get_state, '
        'set_state)'
      )
    self._data = data

  def text(self) -> str:
    return json.dumps(self._data.get_state(), indent=4)

  async def save(self, directory):
    return self._write(directory, self.text())  # the state of this moment

  async def load(self, directory):
    return self._read(directory)

  async def _write(self, directory, text: str) -> None:
    directory = await directory.await_creation()
    if jax.process_index() == 0:
      await asyncio.to_thread((directory / FILE).write_text, text)

  async def _read(self, directory) -> None:
    text = await asyncio.to_thread((directory / FILE).read_text)
    self._data.set_state(json.loads(text))
