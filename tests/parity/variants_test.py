"""Every variant of the models against its formulas in NumPy, float64."""

import jax
import numpy as np
import pytest
from flax import nnx

from tests import sequences
from tests.models import model_cases as cases
from tests.parity import statement
from tests.tolerances import assert_close


@pytest.mark.parametrize('name', cases.CASES)
def test_representations(name):
  model = cases.build(name)
  users = sequences.draw(cases.LENGTHS, cases.ITEMS)
  rows, batch = cases.packed(users)
  actual = model.encode(model.params, rows, batch)
  pure = nnx.to_pure_dict(model.params)
  params = jax.tree.map(lambda p: np.asarray(p, np.float64), pure)
  config = cases.CASES[name].to_dict()
  encode = statement.MODELS[config['name']]
  start = 0
  for events in users:
    part = slice(start, start + len(events.item))
    if len(events.item):
      wide = np.asarray(rows[part], np.float64)
      expected = encode(params, config, wide, events)
      assert_close(actual[part], expected, name=f'sequence at {start}')
    start = part.stop
