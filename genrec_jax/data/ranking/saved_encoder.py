"""What a workdir remembers of its examples, to score without training data."""

import logging
import os
import pathlib

from genrec_jax import sealed
from genrec_jax.data import scratch
from genrec_jax.data.ranking.encoder import Encoder

DIRECTORY = 'encoder'  # of a workdir
_FINGERPRINT = 'data.txt'
LOG = logging.getLogger('genrec_jax')


def save_encoder(workdir: str | os.PathLike, dataset) -> None:
  """Leaves the encoder of a dataset in a workdir, once, or mends it.

  A reader sees all of it or nothing.

  Args:
    workdir: of a run.
    dataset: a `datasets.RankingDataset`.
  """
  path, fingerprint = pathlib.Path(workdir) / DIRECTORY, dataset.fingerprint()
  try:
    load_encoder(workdir)
    if read_fingerprint(workdir) == fingerprint:
      return
  except (FileNotFoundError, ValueError) as e:
    if path.exists():
      LOG.warning('%s; writing the encoder again', e)
  with scratch.replaced_directory(path) as partial:
    dataset.encoder.save(partial)
    (partial / _FINGERPRINT).write_text(fingerprint)
    sealed.seal(partial, 'encoder.json')


def load_encoder(workdir: str | os.PathLike) -> Encoder:
  """The encoder that a training left in its workdir."""
  return Encoder.from_files(_open_files(workdir))


def read_fingerprint(workdir: str | os.PathLike) -> str:
  """Fingerprint of the data that the workdir was trained on."""
  files = _open_files(workdir)
  raw = files.read(_FINGERPRINT)
  with files.explain_damage(_FINGERPRINT):
    return raw.decode()


def _open_files(workdir: str | os.PathLike) -> sealed.SealedDirectory:
  path = pathlib.Path(workdir) / DIRECTORY
  return sealed.SealedDirectory(path, sealed.WRITTEN_AT_START)
