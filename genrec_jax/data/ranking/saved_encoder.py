"""What a workdir remembers of its examples, to score without training data."""

import logging
import os
import pathlib
from collections.abc import Callable

from genrec_jax import sealed
from genrec_jax.data import scratch
from genrec_jax.data.quoting import list_names
from genrec_jax.data.ranking.encoder import Encoder

DIRECTORY = 'encoder'  # of a workdir
_FINGERPRINT = 'data.txt'
_TRAINED = ('checkpoints', 'best')  # of a workdir that has come to a step
_GUESSED = ('csv', 'parquet', 'libsvm')  # formats whose files are looked at
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


def keep_features(cfg, workdir: str | os.PathLike, log: Callable[[str], None]):
  """`config.data`, with the features of a run that goes on if it names none.

  What is guessed of the columns of a file may differ between versions, and a
  run keeps what it has begun with.

  Args:
    cfg: `config.data`; it is not changed.
    workdir: of the run, maybe a new one.
    log: called with a message if the features are those of the run.
  """
  features = None if cfg.get('features', None) else read_features(workdir)
  if features is None or cfg['name'] not in _GUESSED:
    return cfg
  log(
    f'data.features is not set; the features are those that {workdir} has '
    f'begun with: {list_names(list(features))}'
  )
  return {**cfg, 'features': features}


def read_features(workdir: str | os.PathLike) -> dict[str, dict] | None:
  """Feature -> every option, of a run that has trained; None without one."""
  path = pathlib.Path(workdir)
  if not any((path / name).exists() for name in _TRAINED):
    return None
  try:
    columns = load_encoder(workdir).schema.columns
  except (FileNotFoundError, ValueError):
    # `save_encoder` says what is wrong with it, and writes that of the data.
    prepared = list((path / 'data').glob('*/encoder.json'))
    if len(prepared) != 1:
      return None
    columns = Encoder.load(prepared[0].parent).schema.columns
  options = {column.name: column.to_json() for column in columns}
  return {
    name: {k: v for k, v in x.items() if k != 'name'}
    for name, x in options.items()
  }


def read_fingerprint(workdir: str | os.PathLike) -> str:
  """Fingerprint of the data that the workdir was trained on."""
  files = _open_files(workdir)
  raw = files.read(_FINGERPRINT)
  with files.explain_damage(_FINGERPRINT):
    return raw.decode()


def _open_files(workdir: str | os.PathLike) -> sealed.SealedDirectory:
  path = pathlib.Path(workdir) / DIRECTORY
  return sealed.SealedDirectory(path, sealed.WRITTEN_AT_START)
