"""What a workdir remembers of its examples, to score without training data."""

import os
import pathlib

from genrec_jax.data import scratch
from genrec_jax.data.ranking.encoder import Encoder

DIRECTORY = 'encoder'  # of a workdir
_FINGERPRINT = 'data.txt'


def save_encoder(workdir: str | os.PathLike, dataset) -> None:
  """Leaves the encoder of a `datasets.RankingDataset` in a workdir, once.

  A reader sees all of it or nothing.
  """
  path, fingerprint = pathlib.Path(workdir) / DIRECTORY, dataset.fingerprint()
  if path.exists() and read_fingerprint(workdir) == fingerprint:
    return
  with scratch.replaced_directory(path) as partial:
    dataset.encoder.save(partial)
    (partial / _FINGERPRINT).write_text(fingerprint)


def load_encoder(workdir: str | os.PathLike) -> Encoder:
  """The encoder that a training left in its workdir."""
  return Encoder.load(pathlib.Path(workdir) / DIRECTORY)


def read_fingerprint(workdir: str | os.PathLike) -> str:
  """Fingerprint of the data that the workdir was trained on."""
  path = pathlib.Path(workdir) / DIRECTORY / _FINGERPRINT
  try:
    return path.read_text()
  except FileNotFoundError:
    raise FileNotFoundError(
      f'{path}: no such file; a training writes it when it starts. '
      '--mode=train with the same config writes it again, and trains only '
      'the missing steps'
    ) from None
