"""Keeps the items in a workdir, to recommend without the training data."""

import dataclasses
import json
import logging
import os
import pathlib
import zlib

import numpy as np

from genrec_jax import sealed
from genrec_jax.data import scratch
from genrec_jax.data.vocab import Vocab

FORMAT = 1
LOG = logging.getLogger('genrec_jax')


@dataclasses.dataclass(frozen=True)
class ItemCatalogue:
  """The items of a trained model.

  Attributes:
    vocab: original ids <-> rows of the item table.
    corpus: `[C]` int32 sorted item indices that may be recommended.
    counts: `[rows]` int64 occurrences in the training split.
    titles: item index -> title, or None.
    has_times: whether the training data had times.
    data: fingerprint of the training data.
  """

  vocab: Vocab
  corpus: np.ndarray
  counts: np.ndarray
  titles: dict[int, str] | None
  has_times: bool
  data: str

  @classmethod
  def from_data(cls, data) -> 'ItemCatalogue':
    """The items of a `train.retrieval_data.RetrievalData`."""
    dataset = data.dataset
    return cls(
      vocab=dataset.histories.vocab,
      corpus=np.asarray(dataset.corpus, np.int32),
      counts=data.item_counts,
      titles=dataset.titles,
      has_times=dataset.histories.has_times,
      data=data.fingerprint(),
    )

  @classmethod
  def load(cls, workdir: str | os.PathLike) -> 'ItemCatalogue':
    """The items that `keep_items` left in a workdir."""
    files = sealed.SealedDirectory(
      pathlib.Path(workdir) / 'items', sealed.WRITTEN_AT_START
    )
    meta = files.read_json('meta.json', format=int)
    if meta['format'] != FORMAT:
      raise ValueError(
        f'{files.path}: items of format {meta["format"]}, this version reads '
        f'format {FORMAT}'
      )
    with files.explain_damage('meta.json'):
      sealed.check_keys(meta, vocab=str, has_times=bool, data=str)
      # Of workdirs without a seal; those of the first versions have none.
      for name, checksum in meta.get('checksums', {}).items():
        if zlib.crc32(files.read(name)) != checksum:
          raise files.damaged(name, 'it is not the file that was saved')
    ids = files.read_array('ids.npy')
    with files.explain_damage('ids.npy'):
      vocab = Vocab(ids)
      if meta['vocab'] != vocab.fingerprint():
        raise ValueError('it is not the file that was saved')
    counts = files.read_array('counts.npy')
    if counts.shape != (vocab.rows,) or not _holds_integers(counts, 0):
      raise files.damaged('counts.npy', 'it holds no number for each item')
    corpus = files.read_array('corpus.npy')
    if (
      corpus.ndim != 1
      or not _holds_integers(corpus, 1)
      or corpus.max(initial=0) >= vocab.rows
      or (np.diff(corpus) <= 0).any()
    ):
      raise files.damaged('corpus.npy', 'it holds no ascending rows of items')
    titles = files.read_json('titles.json')
    if titles is not None:
      with files.explain_damage('titles.json'):
        titles = {int(index): str(title) for index, title in titles.items()}
    return cls(vocab, corpus, counts, titles, meta['has_times'], meta['data'])

  def title(self, item) -> str | None:
    """Title of an original item id; None where there is none."""
    (index,) = self.vocab.encode(np.array([item])).tolist()
    return (self.titles or {}).get(index)

  def save(self, workdir: str | os.PathLike) -> None:
    """Writes <workdir>/items; a reader sees all of it or nothing."""
    with scratch.replaced_directory(pathlib.Path(workdir) / 'items') as partial:
      partial.mkdir(parents=True)
      self.vocab.save(partial / 'ids.npy')
      np.save(partial / 'corpus.npy', self.corpus)
      np.save(partial / 'counts.npy', self.counts)
      (partial / 'titles.json').write_text(json.dumps(self.titles))
      meta = {
        'format': FORMAT,
        'data': self.data,
        'vocab': self.vocab.fingerprint(),
        'has_times': self.has_times,
      }
      (partial / 'meta.json').write_text(json.dumps(meta, indent=1))
      sealed.seal(partial, 'meta.json')


def _holds_integers(values: np.ndarray, least: int) -> bool:
  return values.dtype.kind == 'i' and bool((values >= least).all())


def keep_items(workdir: str | os.PathLike, data) -> None:
  """Leaves the items of a training in its workdir, once, or mends them."""
  try:
    if ItemCatalogue.load(workdir).data == data.fingerprint():
      return
  except (FileNotFoundError, ValueError) as e:
    if pathlib.Path(workdir, 'items').exists():
      LOG.warning('%s; writing the items again', e)
  ItemCatalogue.from_data(data).save(workdir)
