"""Values of the features of requests, as the data name them <-> rows."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from genrec_jax.data import text_arrays
from genrec_jax.data import vocab as vocab_lib
from genrec_jax.data.requests.rows import encode_rows
from genrec_jax.features import PAD, FeatureSpec

_PIECE = 1 << 22  # values that are looked at together


@dataclasses.dataclass(frozen=True)
class FeatureValues:
  """What the rows of one feature stand for.

  Attributes:
    feature: the feature.
    vocab: of its table; None where ids are the data's own, id i of row i + 1.
  """

  feature: FeatureSpec
  vocab: vocab_lib.Vocab | None = None

  @property
  def unknown_row(self) -> int:
    """The row of values that training does not know; `PAD` without one."""
    if self.vocab is None:
      return self.feature.rows - 1
    is_there = self.feature.rows > len(self.vocab) + 1
    return len(self.vocab) + 1 if is_there else PAD

  def encode(self, values: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Rows `[N]` int32 of N texts, '' being missing, and which are unknown.

    >>> stars = FeatureValues(FeatureSpec('stars', rows=5))  # 0, 1, 2
    >>> [x.tolist() for x in stars.encode(['2', '', '7', 'many'])]
    [[3, 0, 4, 4], [False, False, True, True]]
    """
    texts = text_arrays.make_text_array(values, text_arrays.measure(values))
    is_missing = np.asarray(texts == '', bool)
    if self.vocab is None:
      ids, good = vocab_lib.parse_ints(values)
      good = good & (ids >= 0) & (ids < self.feature.rows - 2)
      rows = np.where(good, ids + 1, PAD).astype(np.int32)
    else:
      rows = encode_rows(self.vocab, texts)
      good = (rows > PAD) & (rows <= len(self.vocab))
    is_unknown = ~good & ~is_missing
    rows[is_unknown] = self.unknown_row
    return rows, is_unknown

  def decode(self, rows: np.ndarray) -> list[str] | np.ma.MaskedArray:
    """N texts, or `[N]` int64, of rows; '' or masked where there is none.

    >>> vocab = vocab_lib.Vocab(np.array(['on', 'in']))
    >>> words = FeatureValues(FeatureSpec('word', rows=4), vocab)
    >>> words.decode(np.array([2, 0, 3]))
    ['in', '', '']
    """
    known = self.feature.rows - 2 if self.vocab is None else len(self.vocab)
    is_known = (rows > PAD) & (rows <= known)
    at = np.where(is_known, rows - 1, 0)
    if self.vocab is None or not known:
      return np.ma.MaskedArray(at.astype(np.int64), ~is_known)
    if not self.vocab.has_texts:
      return np.ma.MaskedArray(self.vocab.ids[at], ~is_known)
    return np.where(is_known, self.vocab.ids[at], '').tolist()


def read_values(spec, vocabs: Mapping) -> dict[str, FeatureValues]:
  """Feature of a candidate, or column of the context -> its values.

  Args:
    spec: a `features.RequestSpec`.
    vocabs: table -> `Vocab`, as in `RequestDataset`.
  """
  features = {f.name: f for f in spec.candidate_features}
  return {
    name: FeatureValues(feature, vocabs.get(feature.source))
    for name, feature in (features | spec.context_columns).items()
  }


def map_item_features(dataset) -> dict[str, np.ndarray]:
  """Further feature of items -> its row, by the row of the item.

  Of an item that the data have with several values, one of them; `PAD` of an
  item that they do not have.

  Args:
    dataset: a `requests.RequestDataset`.
  """
  item, *others = dataset.spec.items
  sources = [split.items for split in dataset.splits.values()]
  sources.append(dataset.events.items)
  tables = {f.name: np.full(item.rows, PAD, np.int32) for f in others}
  for columns in sources if others else ():
    for first in range(0, len(columns[item.name]), _PIECE):
      some = slice(first, first + _PIECE)
      for name, table in tables.items():
        table[columns[item.name][some]] = columns[name][some]
  return tables
