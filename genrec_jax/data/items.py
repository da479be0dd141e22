"""Keeps the items in a workdir, to recommend without the training data."""

import dataclasses
import io
import json
import os
import pathlib
import zlib

import numpy as np

from genrec_jax.data import scratch
from genrec_jax.data.vocab import Vocab

FORMAT = 1
_CHECKED = ('titles.json', 'counts.npy', 'corpus.npy')  # ids.npy by its own


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
    path = pathlib.Path(workdir) / 'items'
    try:
      meta = json.loads((path / 'meta.json').read_text())
      files = {name: (path / name).read_bytes() for name in _CHECKED}
      # Workdirs of earlier versions have no checksums.
      for name, checksum in meta.get('checksums', {}).items():
        if zlib.crc32(files[name]) != checksum:
          raise ValueError(f'{name} is not the file that was saved')
      titles = json.loads(files['titles.json'])
      counts, corpus = (
        np.load(io.BytesIO(files[name]), allow_pickle=False)
        for name in ('counts.npy', 'corpus.npy')
      )
    except FileNotFoundError as e:
      raise FileNotFoundError(
        f'{e.filename}: no such file; a training writes it when it starts. '
        '--mode=train with the same config writes it again, and trains only '
        'the missing steps'
      ) from None
    except (ValueError, EOFError, LookupError, AttributeError) as e:
      raise _damaged(path, e) from None
    vocab = Vocab.load(path / 'ids.npy')
    if meta.get('format') != FORMAT:
      raise ValueError(
        f'{path}: items of format {meta.get("format")}, this version reads '
        f'format {FORMAT}'
      )
    if meta.get('vocab') != vocab.fingerprint():
      raise _damaged(path, 'ids.npy is not the file that was saved')
    if counts.shape != (vocab.rows,) or not _holds_integers(counts, 0):
      raise _damaged(path, 'counts.npy holds no number for each item')
    if (
      corpus.ndim != 1
      or not _holds_integers(corpus, 1)
      or corpus.max(initial=0) >= vocab.rows
      or (np.diff(corpus) <= 0).any()
    ):
      raise _damaged(path, 'corpus.npy holds no ascending rows of the items')
    if titles is not None:
      titles = {int(index): title for index, title in titles.items()}
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
        'checksums': {
          name: zlib.crc32((partial / name).read_bytes()) for name in _CHECKED
        },
        'data': self.data,
        'vocab': self.vocab.fingerprint(),
        'has_times': self.has_times,
      }
      (partial / 'meta.json').write_text(json.dumps(meta, indent=1))


def _damaged(path: pathlib.Path, reason) -> ValueError:
  return ValueError(
    f'{path} is damaged ({reason}); remove it and let --mode=train write it '
    'again'
  )


def _holds_integers(values: np.ndarray, least: int) -> bool:
  return values.dtype.kind == 'i' and bool((values >= least).all())


def keep_items(workdir: str | os.PathLike, data) -> None:
  """Leaves the items of a training in its workdir, once."""
  try:
    meta = pathlib.Path(workdir, 'items', 'meta.json').read_text()
    if json.loads(meta)['data'] == data.fingerprint():
      return
  except (FileNotFoundError, ValueError, KeyError):
    pass
  ItemCatalogue.from_data(data).save(workdir)
