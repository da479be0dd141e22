"""The rule table: first match, whole paths, and errors that help."""

import jax
import numpy as np
import pytest

from genrec_jax.parallel import rules

TREE = {
  'layer_0': {'kernel': np.zeros((6, 16)), 'bias': np.zeros(6)},
  'norm': jax.ShapeDtypeStruct((8,), np.float32),
}
FLAT = {'layer_0/kernel': (6, 16), 'layer_0/bias': (6,), 'norm': (8,)}


@pytest.mark.parametrize('shapes', [TREE, FLAT])
def test_the_first_match_counts(shapes):
  table = [('.*/bias', None), [r'layer_\d+/kernel', -1], ('norm|.*/bias', 0)]
  assert rules.resolve_rules(table, shapes, 8) == {
    'layer_0/kernel': 1,
    'layer_0/bias': None,
    'norm': 0,
  }
  assert rules.resolve_rules([('.*', rules.LARGEST)], shapes, 8) == {
    'layer_0/kernel': 1,
    'layer_0/bias': None,
    'norm': 0,
  }


@pytest.mark.parametrize(
  'table, words',
  [
    ([('norm', 0)], r"'layer_0/bias' of shape \(6,\).* into 8: add .*None"),
    (
      [('kernel', 0), ('.*bias|norm', None)],  # no whole path
      r"covers .*'layer_0/kernel' .*\(6, 16\).*layer_\\\\d\+/kernel', 1",
    ),
    (
      [('.*kernel', 0), ('.*', None)],
      r"6 does not divide into 8 shards, 16 does: put .*kernel', 1\) in front",
    ),
    ([('.*bias', 0)], r'6 does not divide into 8 shards, no dimension divides'),
    ([('.*', 2)], r'no dimension 2'),
    ([('(', 0)], r'not a \(regex, axis\) pair'),
    ([('.*',)], r'not a \(regex, axis\) pair'),
    ([('.*', 'biggest')], r"must be an int, None or 'largest'"),
  ],
)
def test_what_does_not_fit_is_an_error_with_a_suggestion(table, words):
  with pytest.raises(rules.RuleError, match=words):
    rules.resolve_rules(table, TREE, 8)


def test_the_suggestion_of_an_error_is_accepted():
  with pytest.raises(rules.RuleError) as error:
    rules.resolve_rules([('.*', 0)], {'layer_3/w.x': (6, 16)}, 8)
  rule = eval(str(error.value).split('put ')[1].split(' in front')[0])
  found = rules.resolve_rules([rule, ('.*', 0)], {'layer_3/w.x': (6, 16)}, 8)
  assert found == {'layer_3/w.x': 1}
