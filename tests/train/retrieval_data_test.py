"""Retrieval data: what the fingerprint of a run looks at."""

import types

import numpy as np

from genrec_jax.train import retrieval_data as retrieval


class Histories:
  times, vocab = None, types.SimpleNamespace(fingerprint=lambda: 'items')

  def __init__(self, items, extras):
    self.items, self.offsets = items, np.array([0, len(items)])
    self.extras = extras

  def __len__(self):
    return 1


def fingerprint(items, **extras) -> str:
  dataset = types.SimpleNamespace(histories=Histories(items, extras))
  return retrieval.RetrievalData(dataset, {}, items).fingerprint()


def test_the_fingerprint_reads_a_sample_of_a_large_log(monkeypatch):
  monkeypatch.setattr(retrieval, 'SAMPLED', 10)
  items = np.arange(40)
  sampled, other = items.copy(), items.copy()
  sampled[8], other[9] = 99, 99  # every fourth is read
  assert fingerprint(sampled) != fingerprint(items)
  assert fingerprint(other) == fingerprint(items)
  assert fingerprint(items[:-1]) != fingerprint(items)


def test_the_fingerprint_knows_extra_columns():
  items = np.arange(4)
  some, other = (fingerprint(items, price=items + n) for n in (0.5, 1.5))
  assert len({some, other, fingerprint(items)}) == 3
