"""A run that begins with weights from a file: `train.init_from`.

Names and shapes must be those of the run, all of them: weights that are left
as they were drawn, because a name has changed, are the kind of mistake that no
metric shows for hours.
"""

import json
import logging
import os
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from genrec_jax.embedding.layout import Stack
from genrec_jax.tasks import meaning
from genrec_jax.weights import safetensors
from genrec_jax.weights.names import list_differences
from genrec_jax.weights.safetensors import Spec, TensorFile, WeightsError

LOG = logging.getLogger('genrec_jax')
TABLES = 'tables'
RUN = 1 << 16  # rows that are put in place at a time


def import_weights(
  path: str | os.PathLike,
  weights: Mapping,
  stacks: Mapping[str, Stack],
  data: str | None = None,
  task=None,
) -> dict:
  """The weights of a safetensors file, where those of a run lie.

  Tables are laid out as the run's plan says, and each process reads the rows
  of its own devices alone. Numbers of another float type are rounded.

  Args:
    path: of a file with the names of `export_weights`.
    weights: of the run, `contracts.weights_of` its state; they are given away,
      so that no table is on the devices twice.
    stacks: array -> what lies in it, of the tables that are updated by rows.
    data: fingerprint of the run's data, compared with the file's.
    task: of the run, whose model is compared with that of the file.

  Returns:
    The same tree with the values of the file.

  Raises:
    WeightsError: with the names that are missing or left over, and the shapes
      that differ.
  """
  file = safetensors.open_file(path)
  trained_on = file.metadata.get('data')
  marks = [
    text.partition(', towers ')[2] for text in (data, trained_on) if text
  ]
  _require_same_arrays(file, _list_arrays(weights, stacks), marks)
  if data and trained_on and len(set(marks)) > 1:
    raise WeightsError(
      f'train.init_from: {path} has the weights of other towers (model.towers) '
      'than this run; give model.towers the file model_towers.json of the '
      'workdir that it was exported from'
    )
  if data and trained_on and trained_on != data:
    LOG.warning(
      '%s was trained on other data: row r of a table is taken for row r, so '
      'the vocabularies must be the same (data.item_vocab keeps one)',
      path,
    )
  saved = _read_model(file)
  if differences := meaning.list_differences(saved, task):
    LOG.warning(
      'train.init_from: %s has the weights of another model: %s. They fit by '
      'their shapes and mean something else until they are trained anew; set '
      'the same in this config if that is not wanted',
      path,
      '; '.join(differences),
    )

  def load_leaf(key_path, leaf):
    name, stack = _locate_leaf(key_path, stacks)
    sharding, shape, dtype = leaf.sharding, leaf.shape, leaf.dtype
    if stack is not None:
      leaf.delete()  # room for the new one
      read_part = _Rows(file, stack, shape[0], dtype).cut
    else:
      array = file[name]

      def read_part(index):
        return _convert_dtype(array[index], dtype, name)

    return jax.make_array_from_callback(shape, sharding, read_part)

  return jax.tree_util.tree_map_with_path(load_leaf, dict(weights))


def _read_model(file: TensorFile) -> Mapping | None:
  """The section of the model in the config of the run that made a file.

  None where it says nothing of it: others may have written the file.
  """
  try:
    config = json.loads(file.metadata.get('config', ''))
  except ValueError:
    return None
  return config.get('model') if isinstance(config, dict) else None


def _list_arrays(weights, stacks) -> dict[str, Spec]:
  """The arrays of a file that the leaves of a run are made of."""
  specs = {}
  for key_path, leaf in jax.tree_util.tree_leaves_with_path(dict(weights)):
    name, stack = _locate_leaf(key_path, stacks)
    if stack is None:
      specs[name] = Spec.of(leaf)
      continue
    if leaf.shape[0] % stack.size:
      raise WeightsError(
        f'train.init_from: {name} has {leaf.shape[0]:,} places on the device '
        f'for {stack.size:,} rows: its store brings rows from elsewhere, '
        'and no file can fill that'
      )
    for piece in stack.pieces:
      table = _describe_table(stacks, piece, leaf.dtype)
      specs[f'{TABLES}/{piece.table}'] = table
  return specs


def _describe_table(stacks, piece, dtype) -> Spec:
  """The table that a piece is some columns of."""
  columns = sum(
    other.columns
    for stack in stacks.values()
    for other in stack.pieces
    if other.table == piece.table
  )
  return Spec(np.dtype(dtype), (piece.rows, columns))


class _Rows:
  """The rows of a stack, from the tables of a file."""

  def __init__(self, file: TensorFile, stack: Stack, length: int, dtype):
    self._stack, self._length, self._dtype = stack, length, dtype
    self._tables = [file[f'{TABLES}/{p.table}'] for p in stack.pieces]

  def cut(self, index) -> np.ndarray:
    """The part of the array that a device holds."""
    stack = self._stack
    begin, end, _ = index[0].indices(self._length)
    rows = np.zeros((end - begin, stack.columns), self._dtype)
    # Replicas of a group hold the same rows again.
    for first in range(begin, end, stack.depth):
      device = first // stack.depth % stack.devices
      # In runs, so that little is held beside the rows themselves.
      for start in range(0, stack.depth, RUN):
        within = np.arange(start, min(start + RUN, stack.depth), dtype=np.int32)
        self._fill_rows(rows[first - begin + start :], device, within)
    return rows

  def _fill_rows(
    self, rows: np.ndarray, device: int, within: np.ndarray
  ) -> None:
    """Copies what lies `within` a device's part to the first of `rows`."""
    numbers, ids = self._stack.identify(device, within)
    for number, piece in enumerate(self._stack.pieces):
      here = np.flatnonzero(numbers == number)
      columns = slice(piece.first_column, piece.first_column + piece.columns)
      values = self._tables[number][ids[here], columns]
      name = f'{TABLES}/{piece.table}'
      rows[here] = _convert_dtype(values, self._dtype, name)


def _convert_dtype(values: np.ndarray, dtype, name: str) -> np.ndarray:
  """Numbers in the dtype of the run.

  A NaN would stop the run at its first measurement, with the advice to lower
  the learning rate.
  """
  with np.errstate(over='ignore'):  # it is infinite then, and refused
    converted = np.asarray(values).astype(dtype)
  if _is_float(converted.dtype) and not np.isfinite(converted).all():
    raise WeightsError(
      f'train.init_from: {name} holds numbers that are not finite in {dtype}'
    )
  return converted


def _require_same_arrays(
  file: TensorFile, specs: dict[str, Spec], towers: Sequence[str]
) -> None:
  """Refuses a file that has not exactly the arrays of the run.

  Args:
    file: with the weights.
    specs: of the run's arrays.
    towers: marks of those of the run and of the file, '' for none, as far as
      they are known.
  """
  lines = list_differences(file.specs, specs, _fits_shape)
  if not lines:
    return
  if any(line.startswith(f'{TABLES}/') for line in lines):
    lines.append(
      'A table has a row for each id of the vocabulary and one for padding: '
      'were the weights trained on other data? data.item_vocab keeps a '
      'vocabulary.'
    )
  if len(towers) == 2 and bool(towers[0]) != bool(towers[1]):
    lines.append(
      'The weights are those of a model on towers, and this run has none '
      '(model.towers).'
      if towers[1]
      else 'This run is on towers (model.towers), and the weights are those of '
      'a model without.'
    )
  if 'config' in file.metadata:
    lines.append(
      'The config it was trained with: python -m genrec_jax.weights show '
      f'{file.path}'
    )
  raise WeightsError(
    f'train.init_from={file.path} does not fit this run:'
    + ''.join(f'\n  {line}' for line in lines)
  )


def _fits_shape(saved: Spec, spec: Spec) -> bool:
  """Whether shapes agree, and types or that both are of floats."""
  same_kind = saved.dtype == spec.dtype or (
    _is_float(saved.dtype) and _is_float(spec.dtype)
  )
  return saved.shape == spec.shape and same_kind


def _is_float(dtype: np.dtype) -> bool:
  return jax.numpy.issubdtype(dtype, np.floating)


def _locate_leaf(key_path, stacks) -> tuple[str, Stack | None]:
  """(name of a leaf, what lies in it if it is updated by rows)."""
  name = jax.tree_util.keystr(key_path, simple=True, separator='/')
  kind, _, array = name.partition('/')
  return name, stacks.get(array) if kind == TABLES else None
