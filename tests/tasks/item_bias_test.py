"""`loss.item_bias`: against vectors with one more column, and in a run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax.embedding import lookup
from genrec_jax.serve.predictor import Predictor
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import loop
from tests.tasks.retrieval_cases import (
  ITEMS,
  TOKENS,
  WIDTH,
  make_batch,
  make_task,
)
from tests.tolerances import assert_close


def draw():
  rng = np.random.default_rng(3)
  shapes = (TOKENS, WIDTH), (ITEMS + 1, WIDTH), (ITEMS + 1, 1)
  return [jnp.asarray(rng.standard_normal(s), jnp.float32) for s in shapes]


@pytest.mark.parametrize(
  'loss',
  [
    dict(),
    dict(l2_normalize=False),
    dict(sampler='shared'),
    dict(sampler='in_batch_unique', logq=True),
    dict(name='full_softmax'),
    dict(name='gbce'),
  ],
  ids=lambda loss: ', '.join(map(str, loss.values())),
)
def test_it_is_a_column_of_the_vectors(loss, key):
  own = make_task(**loss, item_bias=True)
  plain = make_task(**(loss | {'l2_normalize': False}))
  batch, values = make_batch(), draw()
  ones = jnp.ones((TOKENS, 1))

  def measure(queries, table, biases):
    tables = {'items': table, 'item_biases': biases}
    rows = lookup.view_tables(tables, own.reads(batch, key))
    queries = jnp.concatenate([queries, ones], 1)
    return own.loss(queries, rows, batch, key)['loss'][0]

  def measure_plainly(queries, table, biases):
    if own.loss_config.l2_normalize:
      table = table / jnp.linalg.norm(table, axis=1, keepdims=True)
    temperature = own.loss_config.temperature
    table = jnp.concatenate([table, temperature * biases], 1)
    rows = lookup.view_tables({'items': table}, plain.reads(batch, key))
    queries = jnp.concatenate([queries, ones], 1)
    return plain.loss(queries, rows, batch, key)['loss'][0]

  found, wanted = (
    jax.jit(jax.value_and_grad(f, argnums=(0, 1, 2)))(*values)
    for f in (measure, measure_plainly)
  )
  assert_close(found[0], wanted[0])
  for one, other in zip(found[1], wanted[1], strict=True):
    assert np.abs(other).max() > 0
    assert_close(one, other)


def test_items_cannot_share_it():
  settings = config_lib.TableSettings((('.*', {'id_map': 'hash', 'rows': 5}),))
  with pytest.raises(ValueError, match="name the table 'items' alone"):
    make_task(item_bias=True).__class__(
      'sasrec',
      {k: v for k, v in config_lib.sasrec(dim=4).to_dict().items()
       if k != 'name'},
      config_lib.retrieval().loss.to_dict() | {'item_bias': True},
      corpus=np.arange(1, 9),
      rows=9,
      settings=settings,
    )  # fmt: skip


def make_config(path, **changes):
  config = config_lib.retrieval()
  config.data.update(name='csv', path=str(path))
  config.model = config_lib.sasrec(dim=8, ffn_dim=8, blocks=1, max_len=8)
  config.tables = (('items', {'id_map': 'hash', 'rows': 6}), ('.*', {}))
  config.optimizer.rows.name = 'adam'
  config.train.update(batch_size=16, steps=30, eval_every=30)
  for key, value in changes.items():
    config_lib.apply_override(config, f'{key}={value}')
  return config


@pytest.fixture(scope='module')
def log(tmp_path_factory):
  rng = np.random.default_rng(0)
  path = tmp_path_factory.mktemp('log') / 'log.csv'
  lines = ['user,item,time']
  for user in range(60):
    items = rng.permutation(20)[:12]
    lines += [f'{user},i{x},{t}' for t, x in enumerate(items)]
  path.write_text('\n'.join(lines) + '\n')
  return path


def test_a_run_parts_the_items_of_a_row(log, tmp_path):
  with jax.numpy_dtype_promotion('standard'):  # for optax
    report = loop.train_and_evaluate(
      make_config(log), tmp_path / 'one', TASK_KINDS
    )
    assert any('of the 20 items share a row' in n for n in report['notes'])
    config = make_config(log, **{'loss.item_bias': True, 'parallel.devices': 4})
    report = loop.train_and_evaluate(config, tmp_path / 'own', TASK_KINDS)
  assert not any('share a row' in note for note in report['notes'])
  assert report['parameters']['tables'] == 6 * 8 + 21
  for name, parted in (('one', False), ('own', True)):
    predictor = Predictor.load(tmp_path / name)
    (found,) = predictor.recommend([[f'i{x}' for x in range(5)]], k=15)
    scores = [score for _, score in found]
    assert len(scores) == 15
    assert (len(set(scores)) == 15) == parted
    assert parted or len(set(scores)) <= 5
