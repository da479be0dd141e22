"""Negatives: how often each sampler draws what, and how likely it says."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax.features import EVENTS, PAD, UNREAD
from genrec_jax.tasks import retrieval
from tests.tasks.retrieval_cases import (
  ITEMS,
  LENGTHS,
  REAL,
  TOKENS,
  drawn,
  make_batch,
  make_task,
  targets_of,
)


def chi_square(observed, expected):
  """How many deviations the statistic lies above its mean."""
  statistic = ((observed - expected) ** 2 / expected).sum()
  degrees = len(observed) - 1
  return (statistic - degrees) / np.sqrt(2 * degrees)


def counts_of(task, batch, keys=64):
  """How often each index is drawn as a negative of a real token."""
  draw = jax.jit(lambda key: task.reads(batch, key)['negatives'].ids)
  counts = np.zeros(task.table.rows)
  for key in jax.random.split(jax.random.key(5), keys):
    ids = np.asarray(draw(key))
    ids = ids[:REAL] if ids.ndim == 2 else ids
    counts += np.bincount(ids.ravel(), minlength=len(counts))
  return counts


@pytest.mark.parametrize('sampler', ['uniform', 'shared'])
@pytest.mark.parametrize('corpus', [range(1, 13), (2, 3, 5, 7, 11)])
def test_negatives_are_uniform_over_the_candidates(sampler, corpus):
  corpus = np.array(corpus)
  task = make_task(corpus=corpus, sampler=sampler, negatives=400)
  batch = make_batch(items=2)
  counts = counts_of(task, batch)
  assert counts.sum() == counts[corpus].sum()  # never PAD, candidates alone
  expected = counts.sum() / len(corpus)
  assert chi_square(counts[corpus], expected) < 4


def test_in_batch_negatives_come_as_often_as_in_the_batch():
  task, batch = make_task(sampler='in_batch', negatives=400), make_batch()
  counts = counts_of(task, batch)
  share = np.bincount(targets_of(batch)[:REAL], minlength=len(counts)) / REAL
  assert not np.any(counts[share == 0])  # PAD among them
  found = share > 0
  expected = share[found] * counts.sum()
  assert chi_square(counts[found], expected) < 4


@pytest.mark.parametrize('capacity', [REAL, TOKENS])  # without and with padding
def test_unique_in_batch_negatives_are_uniform_over_the_items_met(capacity):
  task = make_task(corpus=range(1, 60), sampler='in_batch_unique')
  batch = make_batch(capacity)
  counts = counts_of(task, batch, keys=256)
  met = np.unique(targets_of(batch)[:REAL])
  assert counts.sum() == counts[met].sum()
  assert chi_square(counts[met], counts.sum() / len(met)) < 4


def with_targets(batch, targets):
  """The batch with other next items."""
  events = batch.jagged[EVENTS]
  column = events.columns.names.index('next_item')
  values = jnp.asarray(events.columns.values).at[: len(targets), column]
  columns = dataclasses.replace(events.columns, values=values.set(targets))
  jagged = {EVENTS: dataclasses.replace(events, columns=columns)}
  return dataclasses.replace(batch, jagged=jagged)


def test_unique_items_are_drawn_as_often_as_logq_says():
  """Batches of items drawn by popularity; a constant factor is nothing."""
  task = make_task(sampler='in_batch_unique', logq=True)
  batch, counts = make_batch(), np.arange(ITEMS + 1)
  met = np.random.default_rng(2).choice(
    ITEMS + 1, (4000, REAL), p=counts / counts.sum()
  )

  @jax.jit
  @jax.vmap
  def draw(targets, key):
    reads = task.reads(with_targets(batch, targets), key)
    return reads['negatives'].ids[:REAL]

  ids = np.asarray(
    draw(np.int32(met), jax.random.split(jax.random.key(8), 4000))
  )
  # As if each batch had drawn every item that it holds equally often.
  distinct = [len(np.unique(targets)) for targets in met]
  share = np.repeat(distinct, ids[0].size) / ids.size
  found = np.bincount(ids.ravel(), share, minlength=ITEMS + 1)
  np.testing.assert_allclose(
    found[1:], np.exp(task._log_q(batch))[1:], rtol=0.1
  )


@pytest.mark.parametrize('sampler', ['in_batch', 'in_batch_unique'])
def test_what_has_no_target_is_never_drawn(sampler):
  """Neither the end of an open history nor padding."""
  task = make_task(sampler=sampler, negatives=400)
  targets = np.array(targets_of(make_batch()))
  targets[[3, LENGTHS[0] - 1, REAL - 1]] = PAD
  batch = with_targets(make_batch(), targets)
  ids = np.asarray(
    jax.jit(task.reads)(batch, jax.random.key(1))['negatives'].ids
  )
  if ids.ndim == 2:
    assert np.all((ids == UNREAD).T == (targets == PAD))
    ids = ids[targets != PAD]
  counts = np.bincount(ids.ravel(), minlength=ITEMS + 1)
  share = np.bincount(targets[targets != PAD], minlength=ITEMS + 1)
  assert np.all((counts > 0) == (share > 0))
  if sampler == 'in_batch':
    expected = share * ids.size / share.sum()
    assert chi_square(counts[share > 0], expected[share > 0]) < 4


@pytest.mark.parametrize('bound', [2, 1000, 2**16 + 1, 10**6])
def test_random_below(bound, key):
  bits = jax.random.bits(key, (100_000,))
  drawn = np.asarray(retrieval.scale_bits(bits, bound))
  assert drawn.dtype == np.int32
  assert drawn.min() >= 0 and drawn.max() < bound
  cell_of = np.arange(bound) * min(bound, 50) // bound
  share = np.bincount(cell_of) / bound
  counts = np.bincount(cell_of[drawn], minlength=len(share))
  assert chi_square(counts, share * len(drawn)) < 4


def test_each_step_draws_other_negatives(key):
  task, batch = make_task(), make_batch()
  one, other = jax.random.split(key)
  assert np.any(drawn(task, batch, one) != drawn(task, batch, other))
