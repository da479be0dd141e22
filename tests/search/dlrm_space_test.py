"""Costs of nets: those of the models that are built, and expected ones."""

import dataclasses
import itertools

import numpy as np
import pytest

from benchmarks import flops
from genrec_jax.models import RANKERS
from genrec_jax.search.architecture import COSTS, Architecture
from genrec_jax.search.settings import SearchSettings, build_space
from tests.search import spaces

KINDS = [
  ('cat', False, spaces.FEATURES),
  ('dot', True, spaces.FEATURES),
  ('cat', True, spaces.FEATURES[:3]),
]


@pytest.mark.parametrize(('interaction', 'norm', 'features'), KINDS)
def test_costs_are_those_of_the_model(interaction, norm, features):
  space = spaces.make_space(interaction, norm, features)
  every = list(space.list_architectures())
  assert len(every) == space.count_architectures()
  assert len({a.name for a in every}) == len(every)
  for architecture in every[:: len(every) // 12]:
    dims = {f.name: architecture.dims.get(f.source) for f in features}
    config = dataclasses.replace(
      space.config,
      bottom=architecture.net.get('bottom', ()),
      top=architecture.net['top'],
      dims={name: dim for name, dim in dims.items() if dim},
    )
    sized = [
      dataclasses.replace(f, rows=architecture.rows.get(f.source, 0))
      for f in features
    ]
    costs = space.measure_architecture(architecture)
    model = RANKERS['dlrm']
    macs = flops.count_macs(model, config, sized, 2)
    parameters = flops.count_parameters(model, config, sized, 2)
    assert costs['flops'] == 2 * macs.total
    assert costs['parameters'] == parameters
    assert costs['bytes'] == 4 * parameters
    assert space.choose(space.describe(architecture)) == architecture


@pytest.mark.parametrize('interaction', ['cat', 'dot'])
def test_expected_costs_are_those_of_all_architectures(interaction):
  """Each space is drawn apart; all of them together are what is compared."""
  space = spaces.make_space(interaction)
  weights = spaces.draw_weights(space.choices)
  mlps = {
    name: list(spaces.list_mlps(getattr(space, name), weights))
    for name in ('bottom', 'top')
  }
  tables = [
    [(weights[c.name][i], c, size) for i, size in enumerate(c.options)]
    for c in space.table_choices
    if len(c.options) > 1
  ]
  expected, total = dict.fromkeys(COSTS, 0.0), 0.0
  known = {}
  for (p, bottom), (q, top) in itertools.product(mlps['bottom'], mlps['top']):
    key = bottom, top
    known[key] = known.get(key, 0.0) + p * q
  for sizes in itertools.product(*tables):
    own = {c.name: size for _, c, size in sizes}
    share = np.prod([p for p, _, _ in sizes])
    for (bottom, top), p in known.items():
      dims = {t: own[f'dim.{t}'] for t in ('user', 'item')}
      rows = {'user': own['rows.user'], 'item': 40}
      costs = space.measure_architecture(
        Architecture({'bottom': bottom, 'top': top}, dims, rows)
      )
      total += share * p
      for name in COSTS:
        expected[name] += share * p * costs[name]
  assert total == pytest.approx(1.0)
  found = space.measure(weights)
  for name in COSTS:
    assert float(found[name]) == pytest.approx(expected[name], rel=1e-9)


def test_extremes():
  space = spaces.make_space()
  least, most = map(space.measure_architecture, space.find_extremes())
  costs = [space.measure_architecture(a) for a in space.list_architectures()]
  for name in COSTS:
    assert least[name] == min(c[name] for c in costs)
    assert most[name] == max(c[name] for c in costs)


def make_settings(**fields):
  given = dict(
    spaces=('mlp',), top=(3, 5), top_layers=2, bottom=(3,), bottom_layers=1,
    dims=(2, 4), row_shares=(1.0, 0.5), tables='.*', skips=True,
    max_flops=0.0, max_parameters=0.0, max_bytes=0.0, cost_loss='linear',
    cost='flops', latency_table='',
  )  # fmt: skip
  return SearchSettings(given | fields)


def build(**fields):
  settings = make_settings(**fields)
  config = spaces.make_space().config
  row_bytes = {'user': 4, 'item': 4}
  return settings, build_space(settings, config, spaces.FEATURES, 2, row_bytes)


def test_spaces_of_a_config():
  _, space = build(spaces=('emb_dim', 'emb_rows'), tables='user')
  assert [c.name for c in space.choices] == ['dim.user', 'rows.user']
  assert space.rows == {'user': (50, 26), 'item': (40,)}
  assert space.dims['item'] == (4,) and space.top.list_mlps() == [(4,)]
  _, space = build()
  assert space.top.list_mlps() == [
    (3,), (5,), (3, 3), (3, 5), (5, 3), (5, 5)
  ]  # fmt: skip
  assert space.bottom.list_mlps() == [(3,)]


@pytest.mark.parametrize(
  ('fields', 'words'),
  [
    (dict(top=(3,), top_layers=1), 'leave nothing to choose'),
    (dict(spaces=('emb_dim',), tables='x'), "matches none of the tables user"),
    (dict(spaces=('emb_rows',), row_shares=(1.0,)), 'leave nothing to choose'),
  ],
)
def test_spaces_without_a_choice_are_refused(fields, words):
  with pytest.raises(ValueError, match=words):
    build(**fields)


def test_budgets_beyond_the_space_are_refused():
  settings, space = build(max_flops=1e9)
  least, most = map(space.measure_architecture, space.find_extremes())
  with pytest.raises(ValueError, match=f'largest model .* {most["flops"]:,}'):
    settings.check_budgets(space)
  settings, space = build(max_bytes=1.0)
  with pytest.raises(ValueError, match=f'smallest .* {least["bytes"]:,}'):
    settings.check_budgets(space)
  settings, space = build(cost_loss='budget')
  with pytest.raises(ValueError, match='has no budget'):
    settings.check_budgets(space)
  settings, space = build(max_flops=float(least['flops']))
  settings.check_budgets(space)
  assert settings.is_within(least) and not settings.is_within(most)
