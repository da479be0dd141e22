"""The weights of a workdir as one safetensors file.

What a checkpoint holds is read off its manifest: neither the data nor the model
are needed, so any kind of task will do. Tables that a plan had cut into pieces
are put together in the file itself, the part of one device after the other, and
what was saved row by row chunk by chunk: no whole table is ever in memory.
"""

import dataclasses
import importlib.metadata
import json
import logging
import os
import pathlib

import numpy as np

from genrec_jax import provenance
from genrec_jax.checkpoint import (
  array_layouts,
  chain,
  manifest,
  row_files,
  trees,
)
from genrec_jax.checkpoint import workdir as workdir_lib
from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.checkpoint.manifest import CheckpointError
from genrec_jax.contracts import Extensions
from genrec_jax.embedding import layout as layout_lib
from genrec_jax.embedding import plan as plan_lib
from genrec_jax.numerics.formats import extend_formats
from genrec_jax.weights import safetensors
from genrec_jax.weights.safetensors import Spec, WeightsError

LOG = logging.getLogger('genrec_jax')
FORMAT = '1'
# What of a state is a weight; the rest is the optimizer's, or counts steps.
PARTS = ('params/', 'tables/', 'modules/', 'id_states/')
RUN = 1 << 16  # rows of a piece that are put in place at a time


@dataclasses.dataclass(frozen=True)
class Export:
  """What `export_weights` has written.

  Attributes:
    path: of the file.
    step: the training step of the weights.
    specs: name -> dtype and shape.
  """

  path: pathlib.Path
  step: int
  specs: dict[str, Spec]

  def __str__(self) -> str:
    count = sum(int(np.prod(s.shape)) for s in self.specs.values())
    return (
      f'{self.path}: {len(self.specs)} arrays with {count:,} numbers, of step '
      f'{self.step}'
    )


def export_weights(
  workdir: str | os.PathLike,
  path: str | os.PathLike,
  checkpoint: str | int = 'best',
  extensions: Extensions | None = None,
) -> Export:
  """Writes all weights of a trained workdir to one safetensors file.

  The arrays have the names of the checkpoint, `params/layer_0/uvqk/kernel` or
  `tables/items`, and whole tables have their rows in the order of the
  vocabulary, whatever plan they were trained with. The metadata hold the
  config, the kind of task, the step and a fingerprint of the training data.

  Args:
    workdir: of the run.
    path: of the file.
    checkpoint: 'best' (by validation; the latest where there is none),
      'latest', or the number of a step in WORKDIR/checkpoints.
    extensions: what the run used from outside the library; its number formats
      are needed where rows were saved in one of them.

  Returns:
    What was written.

  Raises:
    CheckpointError: there is no such checkpoint, or it is damaged.
    WeightsError: an array cannot be written.
  """
  workdir = pathlib.Path(workdir)
  directory, step = _find_step(workdir, checkpoint)
  with CheckpointManager(directory, log=LOG.warning) as checkpoints:
    workdir_lib.warn_if_diverged(workdir, checkpoints.read_manifest(step))
    source = _Source(checkpoints, step, extensions or Extensions())
    specs = source.specs()
    metadata = _collect_metadata(workdir, step)
    with safetensors.create_file(path, specs, metadata) as views:
      source.fill(views)
  return Export(pathlib.Path(path), step, specs)


def _find_step(workdir: pathlib.Path, checkpoint: str | int):
  """(directory, step) of a checkpoint that is whole."""
  if not (workdir / 'config.json').exists():
    raise FileNotFoundError(
      f'{workdir} is not the workdir of a run (no config.json)'
    )
  if isinstance(checkpoint, int):
    return workdir / 'checkpoints', checkpoint
  if checkpoint not in ('best', 'latest'):
    raise WeightsError(
      f"checkpoint is {checkpoint!r}, must be 'best', 'latest' or the number "
      'of a step'
    )
  names = ('best', 'checkpoints') if checkpoint == 'best' else ('checkpoints',)
  for name in names:
    with CheckpointManager(workdir / name, log=LOG.warning) as checkpoints:
      step = checkpoints.latest()
    if step is not None:
      return workdir / name, step
    if name == 'best':
      LOG.info('no best checkpoint in %s, taking the latest', workdir)
  if manifest.list_steps(workdir / 'best'):
    raise CheckpointError(
      f'{workdir} holds the best weights only, as a saved run does; export '
      "those with checkpoint='best', or give the workdir of the training"
    )
  raise CheckpointError(f'{workdir} holds no checkpoint; train first')


class _Source:
  """A checkpoint, as whole tables and parameters."""

  def __init__(self, checkpoints: CheckpointManager, step: int, extensions):
    self._checkpoints, self._step = checkpoints, step
    self._formats = extend_formats(extensions.formats)
    body = checkpoints.read_manifest(step)
    self._tree = {
      name: trees.shape_of(text)
      for name, text in body['tree'].items()
      if name.startswith(PARTS)
    }
    # Name -> the leaf with its values.
    field = trees.find_params(body['tree'])
    self._leaves = {
      name: name.replace('params/', f'{field}/', 1)
      if name.startswith('params/')
      else name
      for name in self._tree
    }
    self._rows = (body.get('rows') or {}).get('tables', {})
    plan = (body['host'] or {}).get('plan')
    # Rows that were saved by themselves know no plan.
    self._layout = (
      layout_lib.lay_out(plan_lib.from_json(plan))
      if plan and not self._rows
      else None
    )

  def specs(self) -> dict[str, Spec]:
    """Name -> what the whole array looks like."""
    specs = {name: Spec.of(x) for name, x in self._tree.items()}
    if self._layout:
      for name in self._layout.stacks:
        del specs[f'tables/{name}']
      for name in self._layout.pieces:
        table = self._layout.plan.tables[name]
        specs[f'tables/{name}'] = _describe_table(
          table.dtype, table.rows, table.dim
        )
    for name, about in self._rows.items():
      specs[f'tables/{name}'] = _describe_table(
        about['dtype'], about['rows'], about['dim']
      )
    return specs

  def fill(self, views: dict[str, np.ndarray]) -> None:
    """Puts every value in its place."""
    stacks = self._layout.stacks if self._layout else {}
    whole = {n: x for n, x in self._tree.items() if n in views}
    if whole:  # every byte of the step is compared with its manifest
      wanted = {self._leaves[name]: x for name, x in whole.items()}
      _, found, _ = self._checkpoints.restore(
        wanted, step=self._step, partial=True
      )
      for name in whole:
        safetensors.copy_array(found.pop(self._leaves[name]), views[name])
    elif stacks:
      manifest.verify(self._checkpoints.directory / str(self._step))
    for name, stack in stacks.items():
      for first, rows in self._read_runs(f'tables/{name}'):
        _put_rows(first, rows, stack, views)
        del rows  # before the next are read
    if self._rows:
      self._apply_rows(views)

  def _read_runs(self, path: str):
    directory = self._checkpoints.directory / str(self._step) / 'state'
    saved = self._checkpoints.read_manifest(self._step)['tree']
    return array_layouts.read_runs(directory, path, saved)

  def _apply_rows(self, views: dict[str, np.ndarray]) -> None:
    """A base and then its deltas, one file of rows after the other."""
    directory = self._checkpoints.directory
    for body in chain.read_chain(directory, self._step):
      for file, table in row_files.of_tables(body, self._rows):
        raw = row_files.verify_file(directory / str(body['step']), file, body)
        chunk = row_files.decode_chunk(raw, table, self._rows, self._formats)
        end = chunk.first_column + chunk.values.shape[1]
        columns = slice(chunk.first_column, end)
        views[f'tables/{table}'][chunk.ids, columns] = chunk.values


def _describe_table(dtype: str, rows: int, dim: int) -> Spec:
  # By way of a leaf's description, which knows the names of 16-bit dtypes.
  return Spec.of(trees.shape_of(f'{dtype}[{rows},{dim}]'))


def _put_rows(
  first: int, rows: np.ndarray, stack, views: dict[str, np.ndarray]
) -> None:
  """Copies what lies in an array from row `first` on to its tables, in runs."""
  end = min(first + len(rows), stack.size)  # replicas hold the same again
  while first < end:
    device, start = divmod(first, stack.depth)
    count = min(RUN, stack.depth - start, end - first)
    within = np.arange(start, start + count, dtype=np.int32)
    numbers, ids = stack.identify(device, within)
    for number, piece in enumerate(stack.pieces):
      here = numbers == number
      columns = slice(piece.first_column, piece.first_column + piece.columns)
      views[f'tables/{piece.table}'][ids[here], columns] = rows[:count][here]
    first, rows = first + count, rows[count:]


def _collect_metadata(workdir: pathlib.Path, step: int) -> dict[str, str]:
  """What a reader of the file must know to build the model."""
  text = (workdir / 'config.json').read_text().strip()
  config = json.loads(text)
  # Weights go to others, who have no use for a password in a path.
  if provenance.holds_secrets(config):
    text = json.dumps(provenance.mask_all(config), indent=2)
  metadata = {
    'format': f'genrec_jax {FORMAT}',
    'version': _find_version(),
    'task': config['task'],
    'step': str(step),
    'config': text,
  }
  if data := _find_data(workdir):
    metadata['data'] = data
  return metadata


def _find_data(workdir: pathlib.Path) -> str | None:
  """Fingerprint of the data that a workdir was trained on.

  Any checkpoint that can be read tells; the best weights alone do not.
  """
  directory = workdir / 'checkpoints'
  for step in reversed(manifest.list_steps(directory)):
    try:
      return manifest.read(directory / str(step))['host']['data']
    except (CheckpointError, KeyError, TypeError):
      continue
  return None


def _find_version() -> str:
  try:
    return importlib.metadata.version('genrec-jax')
  except importlib.metadata.PackageNotFoundError:  # run from a checkout
    return 'unknown'
