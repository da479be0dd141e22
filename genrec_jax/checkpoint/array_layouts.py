"""Looks at how the arrays of a step are stored, before Orbax reads them.

Orbax unpacks whatever a step asks for: chunks of any size, by any compressor. A
step that somebody else has written might so take all memory, or end the process
where no Python can catch it. What `CheckpointManager` saves is simpler: numbers
as they are in memory, in chunks that are no larger than their array.
"""

import json
from collections.abc import Iterator, Mapping

import numpy as np
import tensorstore

from genrec_jax import sealed
from genrec_jax.checkpoint import storage, trees
from genrec_jax.checkpoint.errors import DamagedError

_MOST_BYTES = 64 << 20  # of what is said about all arrays


def check_layouts(directory, target, saved: Mapping[str, str]) -> None:
  """Refuses arrays that are stored otherwise than a save stores them.

  Args:
    directory: where Orbax has put the arrays of a step.
    target: pytree of the arrays that will be read.
    saved: the description of the arrays in the manifest, see
      `trees.describe_tree`.

  Raises:
    DamagedError: naming the first such array.
  """
  try:
    about = json.loads(storage.read_file(directory, '_METADATA', _MOST_BYTES))
    sealed.check_keys(about, use_ocdbt=bool, use_zarr3=bool)
    if not about['use_ocdbt'] or not about['use_zarr3']:
      raise ValueError('of another format')
  except (OSError, *sealed.UNREADABLE) as e:
    raise DamagedError(f'damaged: state/_METADATA cannot be used ({e})') from e
  store = tensorstore.KvStore.open(
    {'driver': 'ocdbt', 'base': _base_of(directory)}
  ).result()
  paths = trees.describe_tree(target)
  names = trees.describe_tree(target, '.')  # of Orbax, in the same order
  answers = [store.read(f'{name}/zarr.json') for name in names]
  for path, answer in zip(paths, answers, strict=True):
    try:
      _check_layout(json.loads(answer.result().value), saved[path])
    except sealed.UNREADABLE as e:
      raise DamagedError(
        f'damaged: array {path} is not stored as a save stores it '
        f'({str(e)[:200]})'
      ) from e


def read_runs(
  directory, path: str, saved: Mapping[str, str]
) -> Iterator[tuple[int, np.ndarray]]:
  """(first row, rows) of an array, a run that was stored in one piece a time.

  A device stores its part of an array in one piece, so that no more than such a
  part is in memory, however large the array is. Compare the step with its
  manifest before.

  Args:
    directory: as in `check_layouts`.
    path: of the array.
    saved: as in `check_layouts`.

  Raises:
    DamagedError: it is stored otherwise than a save stores it.
  """
  check_layouts(directory, {path: trees.shape_of(saved[path])}, saved)
  array = tensorstore.open(
    {
      'driver': 'zarr3',
      'kvstore': {
        'driver': 'ocdbt',
        'base': _base_of(directory),
        'path': f'{path}/',
      },
    },
    read=True,
    open=True,
  ).result()
  step = array.chunk_layout.write_chunk.shape[0]
  for first in range(0, array.shape[0], step):
    last = min(first + step, array.shape[0])
    yield first, array[first:last].read().result()


def _base_of(directory) -> dict | str:
  if storage.is_disk(directory):
    return {'driver': 'file', 'path': f'{directory}/'}
  return f'{directory}/'


def _check_layout(layout, saved: str) -> None:
  """ValueError, or another of a wrong type, unless it is of a save."""
  array = trees.shape_of(saved)
  if (layout['data_type'], layout['shape']) != (
    str(array.dtype),
    list(array.shape),
  ):
    raise ValueError('it has another shape or dtype than its manifest says')
  chunks, codecs = layout['chunk_grid']['configuration'], layout['codecs']
  _check_chunk(chunks, array.shape)
  if _names_of(codecs) == ['sharding_indexed']:
    inner = codecs[0]['configuration']
    _check_chunk(inner, array.shape)
    if _names_of(inner['index_codecs']) != ['bytes', 'crc32c']:
      raise ValueError('its index is packed')
    codecs = inner['codecs']
  if _names_of(codecs) != ['bytes']:
    raise ValueError(f'its codecs are {_names_of(codecs)}')


def _check_chunk(about, shape: tuple[int, ...]) -> None:
  chunk = about['chunk_shape']
  sizes = zip(chunk, shape, strict=True)
  # Of no elements, a chunk is still of one.
  if not all(type(n) is int and 0 < n <= max(most, 1) for n, most in sizes):
    raise ValueError(f'chunks of {chunk} for an array of {list(shape)}')


def _names_of(codecs) -> list:
  return [codec['name'] for codec in codecs]
