"""Runs that begin with a file: every number in its place, or a refusal."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from genrec_jax.embedding import relayout
from genrec_jax.embedding.layout import lay_out
from genrec_jax.features import FeatureSpec, TableSpec
from genrec_jax.tasks.ranking import Ranking
from genrec_jax.weights import safetensors, start
from genrec_jax.weights.safetensors import WeightsError
from genrec_jax.weights.start import import_weights
from tests.checkpoint.laid_out import Setting, numbered
from tests.embedding.plans import PLANS, SPECS


def dense():
  """Weights of a run on one device, without tables updated by rows."""
  return {
    'params': {'a': {'kernel': jnp.zeros((2, 3)), 'bias': jnp.zeros(3)}},
    'tables': {'items': jnp.zeros((4, 2))},
    'id_states': {},
    'modules': {},
  }


def arrays(**changes):
  """The same of a file, with other numbers."""
  found = {
    'params/a/kernel': np.arange(6, dtype=np.float32).reshape(2, 3),
    'params/a/bias': np.ones(3, np.float32),
    'tables/items': np.arange(8, dtype=np.float32).reshape(4, 2),
  }
  found |= changes
  return {n: x for n, x in found.items() if x is not None}


def loaded(tmp_path, found, weights=None, stacks=None, metadata=None, **more):
  safetensors.write_file(tmp_path / 'a', found, metadata)
  return import_weights(
    tmp_path / 'a', weights or dense(), stacks or {}, **more
  )


def test_each_weight_in_its_place(tmp_path):
  found = loaded(tmp_path, arrays())
  assert jax.tree.structure(found) == jax.tree.structure(dense())
  np.testing.assert_array_equal(
    found['params']['a']['kernel'], arrays()['params/a/kernel']
  )
  np.testing.assert_array_equal(found['params']['a']['bias'], np.ones(3))
  np.testing.assert_array_equal(
    found['tables']['items'], arrays()['tables/items']
  )


def test_other_floats_are_rounded_and_integers_are_not(tmp_path):
  half = np.full(3, 1.5, np.float16)
  found = loaded(tmp_path, arrays(**{'params/a/bias': half}))
  assert found['params']['a']['bias'].dtype == jnp.float32
  assert found['params']['a']['bias'].tolist() == [1.5] * 3
  with pytest.raises(WeightsError, match='bias is int32.3. in the file'):
    loaded(tmp_path, arrays(**{'params/a/bias': np.ones(3, np.int32)}))


def test_numbers_that_are_none(tmp_path):
  bad = np.array([1, np.nan, 2], np.float32)
  with pytest.raises(WeightsError, match='a/bias holds numbers .* not finite'):
    loaded(tmp_path, arrays(**{'params/a/bias': bad}))
  wide = arrays(**{'tables/items': np.full((4, 2), 1e300)})
  stacks = relayout.sources_of_whole({'items': TableSpec('items', 4, 2)})
  weights = dense() | {'tables': {'items': jnp.zeros((4, 2))}}
  with pytest.raises(WeightsError, match='tables/items holds .* float32'):
    loaded(tmp_path, wide, weights, stacks)


@pytest.mark.parametrize(
  'changes, messages',
  [
    ({'params/a/bias': None}, ['missing in the file: params/a/bias']),
    (
      {'params/a/bias': None, 'params/a/biases': np.ones(3)},
      ['missing', 'left over .*a/biases .perhaps meant as params/a/bias.'],
    ),
    (
      {'params/a/kernel': np.ones((3, 2))},
      [r'kernel is float64.3,2. in the file and must be float32.2,3.'],
    ),
    (
      {'tables/items': np.ones((5, 2))},
      [r'items is float64.5,2.', 'trained on other data.*data.item_vocab'],
    ),
    ({'slots/items/sum': np.ones(4)}, ['left over in the file: slots/items']),
  ],
)
def test_refusals(tmp_path, changes, messages):
  with pytest.raises(WeightsError) as e:
    loaded(tmp_path, arrays(**changes), metadata={'config': '{}'})
  assert str(e.value).startswith('train.init_from=')
  assert 'genrec_jax.weights show' in str(e.value)
  for message in messages:
    assert e.match(f'(?s){message}')


def test_many_differences_are_counted(tmp_path):
  extra = {f'params/extra_{i}': np.ones(1) for i in range(20)}
  with pytest.raises(WeightsError, match='and 12 more'):
    loaded(tmp_path, arrays(**extra))


def test_weights_that_meant_something_else_are_told(tmp_path, caplog):
  features = [FeatureSpec('user', rows=9), FeatureSpec('item', rows=9)]
  own = dict(dim=4, top=(4,), itself=True)
  task = Ranking('dlrm', own, {}, features=features, labels=['x'])
  config = json.dumps({'model': {'name': 'dlrm', **own}})
  with caplog.at_level('WARNING', 'genrec_jax'):
    for text in (config, '', 'no JSON', '[]'):
      loaded(tmp_path, arrays(), metadata={'config': text}, task=task)
    assert not caplog.text
    other = config.replace('true', 'false')
    loaded(tmp_path, arrays(), metadata={'config': other}, task=task)
  assert 'another model: model.itself is True and was False' in caplog.text


def test_other_data_are_told(tmp_path, caplog):
  metadata = {'data': 'of-monday'}
  with caplog.at_level('WARNING', 'genrec_jax'):
    loaded(tmp_path, arrays(), metadata=metadata, data='of-monday')
    assert not caplog.text
    loaded(tmp_path, arrays(), metadata=metadata, data='of-tuesday')
  assert 'was trained on other data' in caplog.text


@pytest.mark.parametrize('replicas', [1, 2])
@pytest.mark.parametrize('which', PLANS)
def test_tables_where_a_plan_wants_them(tmp_path, which, replicas, monkeypatch):
  monkeypatch.setattr(start, 'RUN', 5)
  plan = PLANS[which]
  if plan.hosts * plan.devices * replicas > len(jax.devices()):
    pytest.skip('more devices than there are')
  setting = Setting(which, replicas)
  wanted = numbered(setting.layout, added=7)
  tables = {
    f'tables/{n}': relayout.gather_table(setting.layout, wanted[0], n)
    for n in SPECS
  }
  weights = {'params': {}, 'tables': dict(setting.arrays)}
  found = loaded(tmp_path, tables, weights, setting.stacks)['tables']
  for name, array in setting.put(wanted)[0].items():
    assert found[name].sharding == array.sharding
    np.testing.assert_array_equal(found[name], array, err_msg=name)
    assert setting.arrays[name].is_deleted()


def test_rows_of_one_device(tmp_path):
  """Each table is an array of its own, and a file may have other floats."""
  stacks = relayout.sources_of_whole(SPECS)
  layout = lay_out(next(iter(PLANS.values())))
  source = numbered(layout)[0]
  tables = {
    f'tables/{n}': relayout.gather_table(layout, source, n).astype(np.float64)
    for n in SPECS
  }
  weights = {
    'params': {},
    'tables': {n: jnp.zeros((s.rows, s.dim)) for n, s in SPECS.items()},
  }
  found = loaded(tmp_path, tables, weights, stacks)['tables']
  for name in SPECS:
    np.testing.assert_array_equal(found[name], tables[f'tables/{name}'])
  odd = {n: jnp.zeros((s.rows - 1, s.dim)) for n, s in SPECS.items()}
  with pytest.raises(WeightsError, match='brings rows from elsewhere'):
    loaded(tmp_path, tables, {'params': {}, 'tables': odd}, stacks)
