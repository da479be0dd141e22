"""Published checkpoints: their names and shapes, and what the weights say.

The names and shapes are those that the published modules have, see recorded.py.
"""

import dataclasses

import jax
import numpy as np
import pytest

from genrec_jax import config
from genrec_jax.embedding.lookup import view_tables
from genrec_jax.tasks.retrieval import Retrieval
from genrec_jax.weights import convert, safetensors
from genrec_jax.weights.published import MODELS
from genrec_jax.weights.safetensors import WeightsError
from genrec_jax.weights.start import import_weights
from tests import sequences
from tests.parity import statement
from tests.tolerances import assert_close
from tests.weights import published
from tests.weights.recorded import CASES, state_dict

# What the sizes of a published module are in a config section.
SECTIONS = {
  'hstu': config.hstu(),
  'hstu_large': config.hstu(blocks=8, heads=2, dqk=25, dv=25),
  'sasrec': config.sasrec(),
  'sasrec_pytorch': config.sasrec(
    norm_affine=True,
    final_norm=True,
    positions_from='newest',
    extra_positions=0,
  ),
}
SECTIONS['sasrec_pytorch_2024'] = SECTIONS['sasrec_pytorch']


def make_task(section, rows, **loss):
  fields = section.to_dict()
  return Retrieval(
    fields.pop('name'),
    fields,
    config.retrieval().loss.to_dict() | loss,
    corpus=np.arange(1, rows),
    rows=rows,
  )


def weights_of_task(task, seed=0):
  key = jax.random.key(seed)
  table = jax.random.normal(key, (task.table.rows, task.table.dim)) * 0.5
  return {'params': task.init(key), 'tables': {'items': table}}


@pytest.mark.parametrize('case', CASES)
def test_each_number_has_one_place_there_and_here(case):
  state = state_dict(case)
  own = convert.from_published(state, CASES[case])
  there = sum(x.size for n, x in state.items() if n != '_attn_mask')
  padding = 50 if case == 'sasrec_pytorch_2024' else 0
  assert sum(x.size for x in own.values()) == there - padding
  numbers = np.concatenate([np.ravel(x) for x in own.values()])
  assert len(np.unique(numbers)) == len(numbers)
  again = convert.to_published(own, CASES[case])
  assert again.keys() == state.keys()
  for name, array in state.items():
    assert again[name].dtype == array.dtype
    np.testing.assert_array_equal(again[name], array, err_msg=name)


@pytest.mark.parametrize('case', CASES)
def test_they_are_the_weights_of_the_model_here(case):
  """All of a model of these sizes, and nothing else."""
  own = convert.from_published(state_dict(case), CASES[case])
  task = make_task(SECTIONS[case], len(own['tables/items']))
  params = jax.eval_shape(task.init, jax.random.key(0))
  expected = {
    'params/' + jax.tree_util.keystr(p, simple=True, separator='/'): x.shape
    for p, x in jax.tree_util.tree_leaves_with_path(params)
  }
  expected['tables/items'] = (task.table.rows, task.table.dim)
  assert {n: x.shape for n, x in own.items()} == expected
  said = convert.describe_model(own, CASES[case])
  assert f'dim=50, blocks={SECTIONS[case].blocks}' in said


def without(name):
  return lambda state: state.pop(name)


def put(name, value):
  return lambda state: state.update({name: value})


@pytest.mark.parametrize(
  'case, change, message',
  [
    (
      'hstu',
      without('_hstu._attention_layers.1._o.bias'),
      'missing in the file: _hstu._attention_layers.1._o.bias',
    ),
    (
      'hstu',
      put('_hstu._attention_layers.1._o.biases', np.zeros(50)),
      'left over in the file: _hstu._attention_layers.1._o.biases',
    ),
    (
      'hstu',
      put('_hstu._attention_layers.1._uvqk', np.zeros((50, 199))),
      r'_uvqk is \(50, 199\) in the file and must be \(50, 200\)',
    ),
    (
      'hstu',
      without('_embedding_module._item_emb.weight'),
      '_item_emb.weight is missing: is this a checkpoint of another',
    ),
    ('hstu', put('_attn_mask', np.ones((211, 211), bool)), 'holds other'),
    # A name costs nothing; a layer for each number below it would.
    (
      'hstu',
      put('_hstu._attention_layers.999999999999._uvqk', np.zeros((50, 200))),
      'left over in the file: _hstu._attention_layers.999999999999._uvqk',
    ),
    (
      'hstu',
      put(
        '_input_features_preproc._pos_emb.weight',
        np.broadcast_to(np.zeros(()), (1 << 40, 50)),
      ),
      r'_attn_mask is \(211, 211\) in the file and must be \(1099511627776, 1',
    ),
    (
      'sasrec_pytorch_2024',
      put('pos_emb.weight', np.ones((201, 50))),
      'position of padding is not zero',
    ),
    (
      'sasrec',
      without('attention_layers.0.in_proj_bias'),
      'missing in the file: attention_layers.0.in_proj_bias',
    ),
  ],
)
def test_what_does_not_fit(case, change, message):
  state = state_dict(case)
  change(state)
  with pytest.raises(WeightsError, match=message):
    convert.from_published(state, CASES[case])


def test_an_hstu_is_no_sasrec():
  with pytest.raises(WeightsError, match='_conv1d.0.weight is missing'):
    convert.from_published(state_dict('hstu'), 'sasrec')
  own = convert.from_published(state_dict('hstu'), 'hstu')
  with pytest.raises(WeightsError, match='is this a checkpoint of another'):
    convert.to_published(own, 'sasrec')
  with pytest.raises(WeightsError, match='no published model .*, only hstu'):
    convert.from_published({}, 'bert')


def test_an_own_model_that_nobody_has_published():
  own = convert.from_published(state_dict('hstu'), 'hstu')
  own['params/layer_0/uvqk/bias'] = np.zeros(200)
  with pytest.raises(WeightsError, match='left over .*uvqk/bias'):
    convert.to_published(own, 'hstu')


def test_rows_by_id():
  """A published table has a row for every id, a vocabulary only for some."""
  state = state_dict('hstu')
  table = state['_embedding_module._item_emb.weight']
  ids = np.array([3952, 7, 100])
  own = convert.from_published(state, 'hstu', ids)
  np.testing.assert_array_equal(own['tables/items'], table[[0, 3952, 7, 100]])
  again = convert.to_published(own, 'hstu', ids)
  found = again['_embedding_module._item_emb.weight']
  assert found.shape == table.shape
  np.testing.assert_array_equal(found[[0, *ids]], table[[0, *ids]])
  assert np.count_nonzero(found.any(axis=1)) == 4
  for wrong, message in (
    (np.array([1, 3953]), 'none for 1 of the ids, 3953 for one'),
    (np.array([0, 1]), 'none for 1 of the ids, 0'),
    (np.array(['a']), 'must be integers'),
  ):
    with pytest.raises(WeightsError, match=message):
      convert.from_published(state, 'hstu', wrong)
  with pytest.raises(WeightsError, match='4 rows and there are 2 ids'):
    convert.to_published(own, 'hstu', ids[:2])


# ---- What the weights say ----------------------------------------------------


TINY = dict(dim=8, blocks=2, heads=2, max_len=12)


@pytest.mark.parametrize('names', MODELS)
def test_logits_of_imported_weights(tmp_path, names):
  """The scores of all items, as the published formulas have them."""
  classic = names.startswith('sasrec_pytorch')
  lengths = (12, 12) if classic else (5, 12, 1)
  if names == 'hstu':
    section = config.hstu(**TINY, dqk=3, dv=5)
  elif classic:
    fields = TINY | {'ffn_dim': 8, 'extra_positions': 0}
    section = config.sasrec(
      **fields, norm_affine=True, final_norm=True, positions_from='newest'
    )
  else:
    section = config.sasrec(**TINY, ffn_dim=6)
  rows = 31
  loss = {'l2_normalize': not classic}
  task = make_task(section, rows, **loss)
  # A published checkpoint of these sizes, whose numbers are random.
  rng = np.random.default_rng(0)
  found = MODELS[names]
  own = flat(weights_of_task(task))
  sizes = found.measure_own({n: x.shape for n, x in own.items()})
  state = {
    pair.published: (
      rng.normal(size=pair.shape).astype(np.float32) * 0.3
      if pair.own
      else pair.join()
    )
    for pair in found.make_pairs(sizes)
  }
  if names == 'sasrec_pytorch_2024':
    state['pos_emb.weight'][0] = 0
  path = tmp_path / 'model.safetensors'
  safetensors.write_file(path, convert.from_published(state, names))
  weights = import_weights(path, weights_of_task(task, seed=1), {})

  users = sequences.draw(lengths, rows - 1)
  batch = sequences.pack(users, 32)
  views = view_tables(weights['tables'], task.reads_for('predict', batch))
  queries = jax.jit(task.predict)(weights['params'], views, batch)
  wide = {n: np.asarray(x, np.float64) for n, x in state.items()}
  if names == 'hstu':
    outputs = [published.hstu(wide, 2, 3, 5, 12 + 11, u) for u in users]
  else:
    outputs = [published.sasrec(wide, 2, u, classic) for u in users]
  last = np.stack([x[-1] for x in outputs])
  name = 'item_emb.weight' if classic else '_embedding_module._item_emb.weight'
  table = wide[name] if classic else statement.normalize(wide[name])
  items = np.asarray(weights['tables']['items'], np.float64)
  if not classic:
    items = statement.normalize(items)
  assert_close(np.asarray(queries, np.float64) @ items.T, last @ table.T)


def flat(weights) -> dict:
  return {
    jax.tree_util.keystr(p, simple=True, separator='/'): x
    for p, x in jax.tree_util.tree_leaves_with_path(weights)
  }


def test_sizes_of_both_sides_agree():
  for case, names in CASES.items():
    found, state = MODELS[names], state_dict(case)
    own = convert.from_published(state, names)
    one = found.measure({n: x.shape for n, x in state.items()})
    other = found.measure_own({n: x.shape for n, x in own.items()})
    assert dataclasses.asdict(one) == dataclasses.asdict(other)
