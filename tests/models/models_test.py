"""One table of properties over all models and their variants."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import sequences
from tests.models import model_cases as cases
from tests.tolerances import assert_close

# Softmax does not see a constant added to all scores of a query.
WITHOUT_GRADIENT = {('sasrec', 'key', 'bias')}


@pytest.fixture(params=cases.ALL)
def name(request):
  return request.param


@pytest.fixture
def model(name):
  return cases.build(name)


def test_output_has_the_shape_and_dtype_of_the_config(name, model):
  rows, batch = cases.inputs()
  assert model.encode(model.params, rows, batch).shape == rows.shape
  for dtype in ('float32', 'bfloat16'):
    narrow = cases.build(name, dtype)
    out = jax.eval_shape(narrow.plain, narrow.params, rows, batch)
    assert out.dtype == dtype


def test_jit_changes_nothing(model):
  arguments = model.params, *cases.inputs()
  assert_close(model.encode(*arguments), model.plain(*arguments))


def test_gradients_are_finite_and_reach_every_parameter(name, model):
  grads, row_grads = model.grads(model.params, *cases.inputs())
  for path, grad in jax.tree_util.tree_leaves_with_path(grads):
    path = jax.tree_util.keystr(path, simple=True, separator='/')
    assert np.all(np.isfinite(grad)), path
    short = (name.split('_')[0], *path.split('/')[1:3])
    if short not in WITHOUT_GRADIENT:
      assert np.any(grad), path
  assert np.all(np.isfinite(row_grads))
  assert np.all(np.any(row_grads[: cases.TOKENS], axis=-1))
  assert not np.any(row_grads[cases.TOKENS :])  # nothing reads the padding


def test_an_empty_batch_has_zero_gradients(model):
  grads = model.grads(model.params, *cases.inputs([0] * 4))
  for grad in jax.tree.leaves(grads):
    assert not np.any(grad)


def test_more_padding_changes_nothing(model):
  small = model.encode(model.params, *cases.inputs())
  large = model.encode(model.params, *cases.inputs(capacity=40))
  assert_close(large[: cases.TOKENS], small[: cases.TOKENS])


def test_what_comes_later_changes_nothing_before_it(model):
  rows, events = cases.inputs()
  first, end = 5 + 7, 5 + 12  # the last events of the third sequence
  columns = events.columns
  for name in ('time', 'next_time'):
    here = np.s_[first:end, columns.names.index(name)]
    values = columns.values.at[here].add(9_999)
    columns = dataclasses.replace(columns, values=values)
  changed = dataclasses.replace(events, columns=columns)
  before = model.encode(model.params, rows, events)
  after = model.encode(model.params, rows.at[first:end].add(1.0), changed)
  others = np.r_[0:first, end : cases.TOKENS]
  np.testing.assert_array_equal(after[others], before[others])
  assert np.all(np.any(after[first:end] != before[first:end], axis=-1))


def test_a_user_does_not_see_the_company(model):
  mine, first, second = sequences.draw([6, 12, 3], cases.ITEMS)
  empty = sequences.draw([0], cases.ITEMS)[0]
  alone = cases.packed([mine, empty, empty, empty])
  among = cases.packed([first, empty, mine, second])
  expected = model.encode(model.params, *alone)[:6]
  assert_close(model.encode(model.params, *among)[12:18], expected)


def test_dropout_needs_a_key_and_follows_it(model):
  arguments = model.params, *cases.inputs()
  off, again = model.encode(*arguments), model.encode(*arguments)
  np.testing.assert_array_equal(off, again)
  one, same, other = (
    model.encode(*arguments, jax.random.key(seed)) for seed in (1, 1, 2)
  )
  np.testing.assert_array_equal(one, same)
  real = slice(0, cases.TOKENS)
  assert np.all(np.isfinite(one))
  assert np.all(np.any(one[real] != off[real], axis=-1))
  assert np.all(np.any(one[real] != other[real], axis=-1))


def test_bfloat16_is_close_to_float32(name, model):
  narrow = cases.build(name, 'bfloat16')
  rows, batch = cases.inputs()
  expected = model.encode(model.params, rows, batch)
  out = narrow.encode(narrow.params, rows, batch)
  assert_close(
    out[: cases.TOKENS].astype(jnp.float32),
    expected[: cases.TOKENS],
    'bfloat16',
  )


@pytest.mark.parametrize('base', ['hstu', 'sasrec', 'stu'])
def test_the_attention_backend_changes_nothing(base):
  model, reference = (
    cases.build(base),
    cases.build(base, 'float32', 'reference'),
  )
  arguments = model.params, *cases.inputs()
  out = model.encode(*arguments)[: cases.TOKENS]
  assert_close(out, reference.encode(*arguments)[: cases.TOKENS])


@pytest.mark.parametrize('base', ['hstu', 'sasrec', 'stu'])
def test_every_variant_is_another_function(base):
  """A field that is read nowhere would pass all the tests above."""
  arguments = cases.inputs()
  outputs = {}
  for variant in cases.ALL:
    if variant.startswith(base):
      model = cases.build(variant)
      outputs[variant] = model.encode(model.params, *arguments)
  names = list(outputs)
  for i, one in enumerate(names):
    for other in names[:i]:
      assert np.any(outputs[one] != outputs[other]), (one, other)
