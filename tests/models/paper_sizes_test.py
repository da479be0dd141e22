"""The published configurations have the published numbers of parameters."""

import jax
import numpy as np
import pytest

from genrec_jax import config
from genrec_jax.tasks.retrieval import Retrieval

ML1M, ML20M, BOOKS = 3953, 131_263, 695_763  # rows, padding included
# name -> (model, rows of the item table, dense parameters); the counts are
# those of the published code, the item table not among them.
SIZES = {
  'ml1m_hstu': (config.hstu(), ML1M, 36_750),
  'ml1m_hstu_large': (
    config.hstu(blocks=8, heads=2, dqk=25, dv=25),
    ML1M,
    115_350,
  ),
  'ml1m_sasrec': (config.sasrec(), ML1M, 41_150),
  'ml20m_hstu': (
    config.hstu(dim=256, blocks=4, heads=4, dqk=64, dv=64),
    ML20M,
    1_367_960,
  ),
  'ml20m_hstu_large': (
    config.hstu(dim=256, blocks=16, heads=8, dqk=32, dv=32),
    ML20M,
    5_309_792,
  ),
  'ml20m_sasrec': (
    config.sasrec(dim=256, blocks=4, heads=4, ffn_dim=256),
    ML20M,
    1_633_024,
  ),
  'books_hstu': (
    config.hstu(dim=64, blocks=4, heads=4, dqk=16, dv=16, max_len=50),
    BOOKS,
    87_080,
  ),
  'books_hstu_large': (
    config.hstu(dim=64, blocks=16, heads=8, dqk=8, dv=8, max_len=50),
    BOOKS,
    336_608,
  ),
  'books_sasrec': (
    config.sasrec(dim=64, blocks=4, heads=4, ffn_dim=64, max_len=50),
    BOOKS,
    103_744,
  ),
}


@pytest.mark.parametrize('name', SIZES)
def test_parameter_counts(name):
  model, rows, count = SIZES[name]
  fields = model.to_dict()
  task = Retrieval(
    fields.pop('name'),
    fields,
    config.retrieval().loss.to_dict(),
    corpus=np.arange(1, rows),
    rows=rows,
  )
  params = jax.eval_shape(task.init, jax.random.key(0))
  assert sum(leaf.size for leaf in jax.tree.leaves(params)) == count
  assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {'float32'}
  assert (task.table.rows, task.table.dim) == (rows, fields['dim'])


def test_the_table_of_movielens_1m_has_the_published_size():
  assert ML1M * config.hstu().dim == 197_650


def test_the_defaults_are_the_published_ones():
  for model in (config.hstu(), config.sasrec()):
    assert (model.dropout, model.embedding_dropout) == (0.2, 0.2)
    assert (model.max_len, model.extra_positions) == (200, 11)
  assert config.sasrec().norm_eps == 1e-8
  loss = config.retrieval().loss
  assert (loss.name, loss.sampler) == ('sampled_softmax', 'uniform')
  assert (loss.negatives, loss.temperature) == (128, 0.05)
  assert loss.l2_normalize and loss.mask_collisions and not loss.logq
