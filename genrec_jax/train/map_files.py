"""Learned maps of a run, compared with the vocabularies that give its ids."""

import pathlib
from collections.abc import Mapping
from typing import Protocol

from genrec_jax.embedding.learned_map import read_vocabulary
from genrec_jax.models.fields import LINEAR


class Vocabulary(Protocol):
  """What gives the values of a table ids."""

  def fingerprint(self) -> str:
    """A short name that other vocabularies do not have."""


def check_map_files(task, vocabularies: Mapping[str, Vocabulary]) -> None:
  """Refuses maps that were learned of other ids.

  A file that is not there is no error: a run that goes on has its map in the
  checkpoint, and one that begins says so when it reads the file.

  Args:
    task: whose tables.
    vocabularies: table -> its vocabulary.

  Raises:
    ValueError: a map is of another vocabulary.
  """
  for name, spec in task.tables().items():
    source = vocabularies.get(name.removesuffix(LINEAR))
    if not spec.map_file or not pathlib.Path(spec.map_file).exists():
      continue
    found = read_vocabulary(spec.map_file)
    if source is not None and found and found != (own := source.fingerprint()):
      raise ValueError(
        f'the learned map {spec.map_file} is of a vocabulary {found}, and '
        f'table {name!r} has the vocabulary {own}: its ids are of other '
        'values. Learn a map of these data (genrec learn_hash)'
      )
