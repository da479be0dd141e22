"""A small retrieval task and a batch of it."""

import numpy as np

from genrec_jax import config as config_lib
from genrec_jax.features import EVENTS
from genrec_jax.tasks import retrieval
from tests import sequences

TOKENS, WIDTH, ITEMS, NEGATIVES = 32, 6, 12, 8
LENGTHS = (9, 0, 7, 11)  # five tokens of padding
REAL = sum(LENGTHS)


class Queries(retrieval.Retrieval):
  """The task with its queries as parameters, for the sake of the loss."""

  def encode(self, params, rows, batch, key=None):
    return params


def model():
  return config_lib.sasrec(
    dim=WIDTH, ffn_dim=WIDTH, blocks=1, max_len=12
  ).to_dict()


def make_task(cls=Queries, corpus=None, **loss):
  fields = config_lib.retrieval().loss.to_dict() | {'negatives': NEGATIVES}
  config = model()
  config.pop('name')
  corpus = np.arange(1, ITEMS + 1) if corpus is None else np.asarray(corpus)
  counts = np.arange(corpus[-1] + 1)
  return cls(
    'sasrec',
    config,
    fields | {'temperature': 0.5, 'chunk': 8} | loss,
    corpus=corpus,
    rows=corpus[-1] + 1,
    item_counts=counts,
  )


def make_batch(capacity=TOKENS, items=ITEMS, seed=0):
  rng = np.random.default_rng(seed)
  item, next_item = rng.integers(1, items + 1, (2, REAL))
  ends = np.cumsum(LENGTHS)
  return sequences.pack(
    [
      sequences.Events(item[a:b], 0 * item[a:b], next_item[a:b], 0 * item[a:b])
      for a, b in zip(ends - LENGTHS, ends, strict=True)
    ],
    capacity,
  )


def targets_of(batch):
  return batch.jagged[EVENTS]['next_item']


def drawn(task, batch, key):
  """The negatives of each token, `[T, R]`."""
  reads = task.reads(batch, key)
  if 'negatives' not in reads:  # full softmax needs none
    return None
  ids = reads['negatives'].ids
  return np.broadcast_to(ids, (len(targets_of(batch)), ids.shape[-1]))
