"""Tests of the benchmarks of TBSM on data: runs, rows, pairs and pictures."""

import doctest

import numpy as np
import pytest

from benchmarks import tables, tbsm, tbsm_cost, tbsm_curves, tbsm_search
from genrec_jax import config as config_lib
from genrec_jax.config import event_models
from genrec_jax.data.ranking import raw


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
  return tmp_path_factory.mktemp('runs')


@pytest.fixture
def options(tmp_path, runs):
  """Of the small form of a benchmark; runs are those of the module."""
  return ['--smoke', '--runs', str(runs), '--results', str(tmp_path), '--only']


def test_doctests():
  for module in (tbsm, tbsm_search, tbsm_cost):
    assert doctest.testmod(module).failed == 0


@pytest.mark.slow
def test_smoke_of_a_stream_and_of_films(options, runs, rows, monkeypatch):
  only = ['interests/data', 'interests/def', 'movielens/latest/data']
  tbsm.main([*options, *only, 'interests/heads 2'])
  found = rows('tbsm')
  bounds = found['interests/data/seed1']
  assert 0 < bounds['floor'] < 1 and 0.5 < bounds['best_auc'] < 1
  assert found['interests/data']['floor'] == bounds['floor']
  assert 0.3 < found['movielens/latest/data']['popularity_auc'] < 0.7
  row = found['interests/def/seed1']
  # What is counted beforehand is what a run has.
  assert row['parameters'] == tbsm_search.count_parameters('def')
  assert 0.3 < row['auc'] < 0.8 and 0.3 < row['gauc'] < 0.8
  assert row['run_core_s'] > 0 and row['epochs'] == 1
  heads = found['interests/heads 2']
  assert heads['seeds'] == 1 and 'auc_ci' not in heads
  assert heads['auc_diff'] == pytest.approx(heads['auc'] - row['auc'], abs=1e-4)
  assert heads['against'] == 'interests/def'
  assert 'auc_diff' not in found['interests/def']
  folder = runs / 'interests'
  assert list(folder.glob('heads_2_seed1_*/report.json'))

  # What the result file has is not measured again.
  def refuse(*_):
    raise AssertionError('it was measured')

  monkeypatch.setattr(tbsm_search, 'train', refuse)
  monkeypatch.setattr(tbsm, 'describe_data', refuse)
  tbsm.main([*options, *only])
  assert rows('tbsm').keys() == found.keys()
  with pytest.raises(SystemExit, match='no case'):
    tbsm.main([*options, 'movie_lens'])


@pytest.mark.slow
def test_smoke_of_the_leak(options, rows):
  tbsm.main([*options, f'{tbsm.LEAK}/order'])
  found = rows('tbsm')
  for trained in ('apart, id', 'shared', 'shared, id'):
    row = found[f'{tbsm.LEAK}/order/{trained}']
    assert row['against'] == f'{tbsm.LEAK}/order/apart'
    assert np.isfinite(row['auc_diff'])


def test_the_leak_shares_users_and_no_rows(options, tmp_path):
  parser = tbsm_search.cli.parser('tbsm', '')
  args = tbsm_search.parse(parser, [*options, ''])
  given = tbsm_search.choose_data(args, 'movielens/100k', 1)
  for by in ('order', 'random'):
    made = tbsm.write_leak(tmp_path, f'{by}/shared, id', given)
    read = {
      name: tbsm.pq.read_table(f'{made["data.path"]}/{name}.parquet')
      for name in ('apart', 'shared', 'valid', 'test')
    }
    users = {k: {*t['user'].to_pylist()} for k, t in read.items()}
    assert users['test'] <= users['shared']
    assert not users['test'] & users['apart']
    assert not users['valid'] & (users['shared'] | users['test'])
    assert len(read['apart']) == len(read['shared'])
    keys = {
      name: {
        (user, *items, item)
        for user, items, item in zip(
          *(table[c].to_pylist() for c in ('user', 'history_item', 'item')),
          strict=True,
        )
      }
      for name, table in read.items()
    }
    assert not keys['test'] & keys['shared']
    assert made['data.files.train'] == 'shared.parquet'
    assert 'data.movielens_clicks.seed' not in made
    assert made['data.features.history_age.kind'] == 'numeric_sequence'


def test_rows_of_a_user_are_cut_in_halves():
  user = np.repeat([3, 5, 9], [4, 1, 6])
  for by in ('order', 'random'):
    at = tbsm.cut_leak(user, 30, by, 1)
    both = np.sort(np.concatenate([at['own'], at['tested']]))
    np.testing.assert_array_equal(both, np.arange(11))
    assert np.bincount(user[at['tested']])[[3, 9]].tolist() == [2, 3]
    assert 5 not in user[at['tested']]  # who has a single row trains
    assert len(at['kept']) + len(at['own']) == 30
    assert len({*at['kept'].tolist()}) == len(at['kept'])
  assert tbsm.cut_leak(user, 30, 'order', 1)['tested'].tolist() == [
    2, 3, 8, 9, 10,
  ]  # fmt: skip


def test_baselines_are_as_large_as_def():
  wanted = tbsm_search.count_parameters('def')
  for mechanism in (*tbsm_search.MECHANISMS, *tbsm_search.BASELINES):
    changed = {}
    if mechanism in tbsm_search.BASELINES:
      changed = tbsm_search.match_size(mechanism)
      assert [*changed] == [tbsm_search.WIDTHS[mechanism]]
    size = tbsm_search.count_parameters(mechanism, changed)
    assert abs(size / wanted - 1) < 0.1, mechanism


def test_every_case_has_a_name_of_its_own_and_knobs():
  groups = tbsm.list_groups()
  names = [f'{group.name}/{case}' for group in groups for case in group.cases]
  assert len({*names}) == len(names)
  for group in groups:
    for case in group.cases:
      assert tbsm.split_name(f'{group.name}/{case}/seed1') == (group.name, case)
      of, fields = (
        ('def', {}) if group.name == tbsm.LEAK else tbsm.describe_model(case)
      )
      assert {*group.knobs[of]} == {'rate', 'rows_rate', 'table_l2', 'dropout'}
      event_models.TBSM(mechanism=of, **fields)  # refuses what does not fit
  assert len({*tbsm_search.list_searches()}) == 18
  for data in tbsm_search.SEARCHED:
    assert data in tbsm_search.DATA
    for knobs in tbsm.KNOBS[data.partition('/')[0]].values():
      for name, ladder in tbsm_search.LADDERS.items():
        assert knobs[name] in ladder  # what is measured could be tried
  for case, beside in tbsm.BESIDE.items():
    assert {case, beside} <= {*groups[0].cases}
  assert tbsm_search.SEED not in {*tbsm.SEEDS, *tbsm_cost.SEEDS}
  assert {*tbsm_curves.CASES} <= {*groups[0].cases} - {'def'}
  assert {*tbsm_curves.MECHANISMS} == {*tbsm_cost.KINDS} - {'concat'}
  assert {*tbsm_curves.LENGTHS} == {*tbsm_cost.LOGS} <= {*tbsm_search.DATA}


def make_run(case, seed, auc, group='interests', **more):
  row = {'case': f'{group}/{case}/seed{seed}', 'kind': 'run', 'seed': seed}
  row |= {'of': f'{group}/{case}', 'group': group, 'variant': case}
  row |= {'against': f'{group}/def', 'auc': auc, 'gauc': 0.6, 'logloss': 0.5}
  row |= {'ne': 1.5 - auc, 'parameters': 4660, 'epochs': 2.0, 'core_s': 10.0}
  return row | {'run_core_s': 20.0} | more


def test_differences_are_paired_by_seed():
  rows = [
    make_run('def', 1, 0.70),
    make_run('def', 2, 0.60),
    make_run('def', 3, 0.65),
    make_run('mean', 1, 0.68),
    make_run('mean', 2, 0.59),
    make_run('mean', 3, 0.62),
    make_run('gru', 2, 0.80),
    make_run('gru', 4, 0.99),  # without a partner
    make_run('def', 1, 0.10, 'movielens/1m'),  # of other data
  ]
  found = {row['case']: row for row in tbsm.average(rows)}
  row = found['interests/mean']
  assert row['auc'] == pytest.approx(0.63) and row['seeds'] == 3
  assert row['auc_diff'] == pytest.approx(-0.02)
  # Half of 95 %: 4.3027 deviations of .01 over the root of 3.
  assert row['auc_ci'] == pytest.approx(4.30265 * 0.01 / 3**0.5, rel=1e-4)
  assert row['ne_diff'] == pytest.approx(0.02)
  assert row['ne_ci'] == pytest.approx(row['auc_ci'])
  assert row['gauc_diff'] == row['logloss_diff'] == 0
  assert row['auc_std'] == pytest.approx(np.std([0.68, 0.59, 0.62], ddof=1))
  alone = found['interests/gru']
  assert alone['auc_diff'] == pytest.approx(0.20) and 'auc_ci' not in alone
  assert alone['seeds'] == 2
  assert 'auc_diff' not in found['interests/def']
  assert 'auc_diff' not in found['movielens/1m/def']


def test_an_estimate_follows_what_was_measured():
  runs = [f'interests/{case}/seed1' for case in ('def', 'gru')]
  rows = {runs[0]: make_run('def', 1, 0.7, run_core_s=1800.0)}
  assert tbsm.estimate(rows, [*runs, 'interests/data/seed1']) == (
    '1.00 core-hours for 2 runs, of which 0.50 for 1 that are not there'
  )
  # The whole is what a user grants.
  wanted = [
    f'{group.name}/{case}/seed{seed}'
    for group in tbsm.list_groups()
    for case in group.cases
    for seed in tbsm.SEEDS[: group.seeds]
  ]
  assert float(tbsm.estimate({}, wanted).split()[0]) < 8


def search(loss_of):
  """The trials of a search whose losses are known."""
  tried = []
  while knobs := tbsm_search.suggest_knobs(tried):
    tried.append((knobs, loss_of(knobs)))
  return tried


def test_a_search_follows_the_slope():
  wanted = dict(rate=1e-2, rows_rate=1e-1, table_l2=0.0, dropout=0.0)

  def loss(knobs):
    ladders = tbsm_search.LADDERS.items()
    return sum(
      abs(ladder.index(knobs[name]) - ladder.index(wanted[name]))
      for name, ladder in ladders
    )

  tried = search(loss)
  assert len(tried) == tbsm_search.TRIES
  assert len({tuple(knobs.values()) for knobs, _ in tried}) == len(tried)
  assert min(tried, key=lambda x: x[1])[0] == wanted
  rates = [(knobs['rate'], knobs['rows_rate']) for knobs, _ in tried[:3]]
  assert rates == list(tbsm_search.STARTS)


def test_a_search_ends_at_the_ends_of_its_ladders():
  tried = search(lambda knobs: -knobs['rate'])
  best = min(tried, key=lambda x: x[1])[0]
  assert len(tried) == tbsm_search.TRIES
  assert 'rate' in tbsm_search.list_ends(best)


def test_other_options_have_another_workdir(tmp_path):
  names = {
    tbsm_search.name_workdir(tmp_path, 'heads 2_seed1', {'a': value}).name
    for value in (1, 2, 'x, y')
  }
  assert len(names) == 3 and all(n.startswith('heads_2_seed1_') for n in names)


def test_a_row_of_other_knobs_is_measured_again():
  knobs = tbsm.KNOBS['interests']['gru']
  row = make_run('gru', 1, 0.5, knobs=dict(knobs))
  assert not tbsm.is_stale(row)
  assert tbsm.is_stale(row | {'knobs': knobs | {'rate': 7.0}})
  assert not tbsm.is_stale(make_run('heads 2', 1, 0.5, kind='data'))


@pytest.mark.slow
def test_smoke_of_the_search(options, rows, monkeypatch):
  monkeypatch.setattr(tbsm_search, 'TRIES', 1)
  tbsm_search.main([*options, 'interests/gru'])
  (row,) = rows('tbsm_search').values()
  assert row['mechanism'] == 'gru' and 0.4 < row['valid_logloss'] < 1
  wanted = tbsm_search.count_parameters('gru', tbsm_search.match_size('gru'))
  assert row['parameters'] == wanted


def test_the_least_validation_loss_chooses_knobs():
  losses = [0.5, 0.4, 0.3, 0.45, 0.31, 0.6, 0.7, 0.33, 0.9][: tbsm_search.TRIES]
  rows = []
  for loss in losses:
    tried = tbsm_search.find_tries(rows, 'movielens/1m', 'din')
    knobs = tbsm_search.suggest_knobs(tried)
    rows.append(
      {'data': 'movielens/1m', 'mechanism': 'din', 'knobs': knobs}
      | {'valid_logloss': loss}
    )
  # One whose tries are not all there is left out.
  rows.append({**rows[0], 'mechanism': 'gru'})
  chosen = tbsm_search.choose_knobs(rows)
  assert chosen == {'movielens': {'din': rows[2]['knobs']}}
  space = {}
  exec(tbsm_search.format_knobs(chosen), space)  # noqa: S102
  assert space['KNOBS'] == chosen


def test_rates_l2_and_dropout_are_keys_of_the_config():
  path = tbsm_search.runs.ROOT / 'configs' / 'tbsm_movielens.py'
  keys = tbsm_search.set_knobs(
    dict(rate=0.5, rows_rate=0.25, table_l2=0.125, dropout=0.0625)
  )
  config = config_lib.load(str(path), [f'{k}={v}' for k, v in keys.items()])
  assert config.optimizer.learning_rate == 0.5
  assert config.optimizer.rows.learning_rate == 0.25
  assert config.optimizer.rows.weight_decay == 0.125
  assert config.optimizer.rows.decay == 'l2'
  assert config.model.dropout == 0.0625


@pytest.mark.slow
def test_smoke_of_steps(options, rows):
  tbsm_cost.main([*options, 'step'])
  found = rows('tbsm_cost')
  for most in (5, 10):
    full = found[f'step/T={most}/def/full']
    mixed = found[f'step/T={most}/def/mixed']
    assert full['events'] == most * tbsm_cost.BATCH
    mean = (most + 1) / 2 * tbsm_cost.BATCH
    assert mixed['events'] == pytest.approx(mean, rel=0.1)
    assert mixed['full_x'] > 0 and full['core_ms'] > 0
  assert 'us_event' in found['slope/gru/mixed']


@pytest.mark.slow
def test_smoke_of_other_lengths(options, rows):
  tbsm_cost.main([*options, 'use/interests'])
  found = rows('tbsm_cost')
  run = found['use/interests/gru/seed1']
  assert run['lengths'] == [*tbsm_cost.USED] and 'refused' not in run
  run = found['use/interests/def/seed1']
  assert run['lengths'] == [1, 2, 5, 10, 20]
  assert '50' in found['use/interests/def/refused']['refused']
  assert 0.3 < found['use/interests/gru/T=50']['auc'] < 0.8


def test_slopes_are_those_of_lines():
  rows = [
    {'mechanism': 'gru', 'shape': 'full', 'T': t, 'events': 100.0 * t}
    | {'core_ms': 3.0 + 0.2 * t}
    for t in (5, 10, 50)
  ]
  (row,) = tbsm_cost.find_slopes(rows)
  assert row['us_event'] == pytest.approx(2.0)
  assert row['base_ms'] == pytest.approx(3.0)
  assert tbsm_cost.find_slopes(rows[:1]) == []


def test_the_latest_events_are_kept():
  lists = raw.ListColumn(
    raw.NumberColumn(np.array([1, 2, 3, 4, 5, 6])), np.array([3, 0, 1, 2])
  )
  labels = raw.NumberColumn(np.array([0, 1, 1, 0]))
  chunk = raw.RawChunk({'label': labels, 'history_item': lists}, 4, str)
  kept = tbsm_cost.keep_latest(chunk, 2).columns
  assert kept['history_item'].values.values.tolist() == [2, 3, 4, 5, 6]
  assert kept['history_item'].lengths.tolist() == [2, 0, 1, 2]
  assert kept['label'] is labels


def make_use(kind, seed, aucs, **more):
  row = {'case': f'use/interests/{kind}/seed{seed}', 'kind': 'use'}
  row |= {'of': f'use/interests/{kind}', 'data': 'interests', 'seed': seed}
  row |= {'mechanism': kind, 'lengths': [5, 20, 50][: len(aucs)], 'aucs': aucs}
  return row | more


def test_means_of_lengths_and_the_pictures():
  rows = [
    make_use('gru', 1, [0.6, 0.7, 0.72]),
    make_use('gru', 2, [0.62, 0.7, 0.74]),
    make_use('def', 1, [0.6, 0.7], refused='it has 20 places'),
  ]
  made = tbsm_cost.average(rows)
  found = {row['case']: row for row in made}
  row = found['use/interests/gru/T=50']
  assert row['auc'] == pytest.approx(0.73) and row['seeds'] == 2
  assert row['auc_ci'] == pytest.approx(12.7062 * 0.01, rel=1e-4)
  assert 'use/interests/def/T=50' not in found
  assert found['use/interests/def/refused']['refused'] == 'it has 20 places'
  drawn = tbsm_curves.draw_lengths(made)
  assert drawn.count('class="title"') == 1 and 'GRU' in drawn

  rows = [
    make_run(case, seed, 0.7 + 0.01 * seed * (case != 'def'))
    for case in ('def', 'ind', 'heads 2', 'gru')
    for seed in (1, 2)
  ]
  drawn = tbsm_curves.draw_differences(tbsm.average(rows))
  assert drawn.count('class="title"') == 1
  assert 'no proj' in drawn and 'MovieLens 1M' not in drawn


def test_tables_name_keys_that_rows_have(tmp_path):
  write = tbsm_search.cli.result.write
  data = {'case': 'interests/data/seed1', 'kind': 'data', 'seed': 1}
  data |= {'of': 'interests/data', 'group': 'interests', 'variant': 'data'}
  data |= {'floor': 0.5, 'best_auc': 0.9, 'popularity_auc': 0.8}
  rows = [data] + [
    make_run(case, seed, 0.7 + 0.01 * seed)
    for case in ('def', 'ind')
    for seed in (1, 2)
  ]
  folder = tmp_path / 'benchmarks' / 'results'
  options = dict(machine='cpu2', results=folder)
  write('tbsm', [*rows, *tbsm.average(rows)], **options)
  table = tables.render('tbsm_interests', tables.TABLES, tmp_path)
  # A line a case: neither runs nor what is known of the data.
  assert table.count('\n| interests/') == 2
  assert '| interests/ind | 2 | 0.7150 |' in table
  known = tables.render('tbsm_known', tables.TABLES, tmp_path)
  assert '| generated stream | 0.5000 | 0.9000 | 0.8000 |' in known
  steps = [
    {'case': f'step/T={t}', 'kind': 'step', 'T': t, 'mechanism': 'gru'}
    | {'shape': 'mixed', 'events': 10.0 * t, 'core_ms': 1.0 * t}
    | {'low': 1.0, 'high': 2.0, 'full_x': 1.5}
    for t in (5, 10)
  ]
  uses = [make_use('gru', s, [0.6, 0.7 + 0.1 * s]) for s in (1, 2)]
  uses.append(make_use('def', 1, [0.5], refused='20 places'))
  made = [*steps, *tbsm_cost.find_slopes(steps), *tbsm_cost.average(uses)]
  write('tbsm_cost', made, **options)
  for name in ('tbsm_steps', 'tbsm_slopes', 'tbsm_lengths', 'tbsm_refused'):
    assert (
      '| gru |' in (text := tables.render(name, tables.TABLES, tmp_path))
      or '20 places' in text
    )
