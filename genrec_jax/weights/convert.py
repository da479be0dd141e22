"""Published checkpoints to the names of this library, and back."""

import os
from collections.abc import Mapping

import numpy as np

from genrec_jax.weights import safetensors, torch_files
from genrec_jax.weights.names import list_differences
from genrec_jax.weights.published import ITEMS, MODELS, Pair, Published
from genrec_jax.weights.safetensors import WeightsError

Arrays = Mapping[str, np.ndarray]


def read_arrays(path: str | os.PathLike) -> Arrays:
  """The arrays of a .safetensors file, or of one that `torch.save` wrote."""
  path = safetensors.find_file(path)
  with open(path, 'rb') as file:
    is_zip = file.read(2) == b'PK'
  if is_zip or path.suffix in torch_files.SUFFIXES:
    return torch_files.read_state_dict(path)
  return safetensors.open_file(path)


def from_published(
  arrays: Arrays, model: str, ids: np.ndarray | None = None
) -> dict[str, np.ndarray]:
  """A published state dict under the names of this library.

  Args:
    arrays: name there -> array; every one of them is used, exactly once.
    model: a name of `published.MODELS`.
    ids: `[V]` the original id of each index 1..V of the own vocabulary, where
      the published table has a row for every id: row r of the own table is
      then row ids[r - 1] of the published one. None keeps the rows as they are.

  Returns:
    name here -> array, without copying where that can be.

  Raises:
    WeightsError: with the names that are missing or left over, and the shapes
      that differ.
  """
  published = _find_model(model)
  pairs = published.make_pairs(published.measure(_list_shapes(arrays)))
  _require_same_shapes(
    model, _list_shapes(arrays), {p.published: p.shape for p in pairs}
  )
  own = {}
  for pair in pairs:
    parts = pair.split(arrays[pair.published])
    own.update(zip(pair.own, parts, strict=True))
  if ids is not None:
    own[ITEMS] = own[ITEMS][_find_rows(ids, len(own[ITEMS]))]
  return own


def to_published(
  arrays: Arrays, model: str, ids: np.ndarray | None = None
) -> dict[str, np.ndarray]:
  """The inverse of `from_published`.

  Args:
    arrays: name here -> array, of a model that the published one can be.
    model: a name of `published.MODELS`.
    ids: as in `from_published`; rows of ids that do not occur are zeros.

  Returns:
    name there -> array.

  Raises:
    WeightsError: the weights are none of that model, with what differs.
  """
  published = _find_model(model)
  pairs = published.make_pairs(published.measure_own(_list_shapes(arrays)))
  _require_same_shapes(model, _list_shapes(arrays), _list_own_shapes(pairs))
  arrays = {name: arrays[name] for name in arrays}
  if ids is not None:
    table = arrays[ITEMS]
    if len(ids) + 1 != len(table):
      raise WeightsError(
        f'{ITEMS} has {len(table):,} rows and there are {len(ids):,} ids; it '
        'must be one row more'
      )
    largest = int(np.max(_require_integers(ids), initial=0))
    spread = np.zeros((largest + 1, *table.shape[1:]), table.dtype)
    spread[_find_rows(ids, largest + 1)] = table
    arrays[ITEMS] = spread
  return {p.published: p.join(*(arrays[n] for n in p.own)) for p in pairs}


def describe_model(arrays: Arrays, model: str) -> str:
  """What a config must say for weights of a published model."""
  published = _find_model(model)
  return published.describe(published.measure_own(_list_shapes(arrays)))


def _list_own_shapes(pairs: list[Pair]) -> dict[str, tuple[int, ...]]:
  """Shapes here, by splitting arrays without contents."""
  shapes = {}
  for pair in pairs:
    if pair.own:
      hollow = np.broadcast_to(np.zeros((), np.int8), pair.shape)
      parts = pair.split(hollow)
      shapes |= {n: p.shape for n, p in zip(pair.own, parts, strict=True)}
  return shapes


def _find_rows(ids: np.ndarray, rows: int) -> np.ndarray:
  """The published row of each own row; that of padding is 0 in both."""
  ids = _require_integers(ids)
  outside = ids[(ids < 1) | (ids >= rows)]
  if outside.size:
    raise WeightsError(
      f'the published table has {rows:,} rows and none for {outside.size:,} of '
      f'the ids, {outside[0]} for one'
    )
  return np.concatenate([[0], ids])


def _require_integers(ids: np.ndarray) -> np.ndarray:
  ids = np.asarray(ids)
  if ids.ndim != 1 or ids.dtype.kind not in 'iu':
    raise WeightsError(
      'the ids of a published table are its rows, so they must be integers; '
      f'these are {ids.dtype}'
    )
  return ids


def _list_shapes(arrays: Arrays) -> dict[str, tuple[int, ...]]:
  specs = getattr(arrays, 'specs', arrays)  # of a file: nothing is mapped
  return {name: tuple(x.shape) for name, x in specs.items()}


def _find_model(name: str) -> Published:
  if name not in MODELS:
    raise WeightsError(
      f'there is no published model {name!r}, only {", ".join(MODELS)}'
    )
  return MODELS[name]


def _require_same_shapes(model: str, saved: dict, expected: dict) -> None:
  if lines := list_differences(saved, expected):
    raise WeightsError(
      f'these are not weights of the published model {model!r}:'
      + ''.join(f'\n  {line}' for line in lines)
    )
