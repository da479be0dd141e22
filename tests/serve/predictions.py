"""Logs to predict for, files of predictions, and a slow way to make them."""

import csv

import jax
import numpy as np

from genrec_jax.data import histories, pipeline, splits
from genrec_jax.data.items import ItemCatalogue
from genrec_jax.embedding import lookup
from genrec_jax.serve.weights import load_weights
from genrec_jax.tasks.retrieval import Retrieval
from tests.serve.conftest import MAX_LEN

T = 1_700_000_000


def read_csv(path):
  with open(path, newline='', encoding='utf-8') as f:
    return list(csv.DictReader(f))


def by_user(path) -> dict[str, list[tuple[str, float]]]:
  """user -> [(item, score), ...] of a CSV of predictions; ranks are 1, 2, .."""
  found = {}
  for row in read_csv(path):
    own = found.setdefault(row['user'], [])
    own.append((row['item'], float(row['score'])))
    assert int(row['rank']) == len(own)
  return found


def write_histories(path, past: dict, times=True):
  """A CSV log of `past`: user -> items; the files' order is not by user."""
  lines = ['user,item,time' if times else 'user,item']
  longest = max(map(len, past.values()))
  for n in range(longest):
    for user, items in past.items():
      if n < len(items):
        lines.append(f'{user},{items[n]}' + (f',{T + n * 60}' if times else ''))
  path.write_text('\n'.join(lines) + '\n')


def oracle(config, workdir, past: dict, times: bool, checkpoint='best'):
  """user -> every unseen item and its score, best first; one by one."""
  items = ItemCatalogue.load(workdir)
  task = Retrieval.from_config(config, items.corpus, items.counts)
  w = load_weights(workdir, task, checkpoint)

  @jax.jit
  def ask(batch):
    rows = lookup.view_tables(w.tables, task.reads_for('predict', batch))
    return task.predict(w.params, rows, batch)

  reads = task.reads_for('items', task.corpus)
  vectors = task.vectors(lookup.view_tables(w.tables, reads))
  vectors = np.asarray(vectors, np.float64)
  found = {}
  for user, own in past.items():
    h = histories.from_arrays(
      [user] * len(own),
      own,
      [T + n * 60 for n in range(len(own))] if times else None,
      item_vocab=items.vocab,
      unknown='skip',
    )
    if not len(h):
      continue
    batch = pipeline.collate_examples(
      h, splits.to_predict(h), [0], max_len=MAX_LEN, batch_size=1
    )
    scores = vectors @ np.asarray(ask(batch)[0], np.float64)
    seen = set()
    if config.eval.filter_seen != 'none':
      seen = set(h.items.tolist())
    if config.eval.filter_seen == 'window':
      seen = set(h.items[-MAX_LEN:].tolist())
    order = sorted(
      (-s, c) for c, s in enumerate(scores) if int(items.corpus[c]) not in seen
    )
    ids = items.vocab.decode(items.corpus[[c for _, c in order]]).tolist()
    found[user] = [(str(i), -s) for i, (s, _) in zip(ids, order, strict=True)]
  return found
