"""`genrec search`: steps in turns, what is found, how it goes on."""

import json
import shutil

import jax
import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax import contracts
from genrec_jax.data.ranking.batches import eval_batches
from genrec_jax.embedding.local_tables import SingleDeviceEvalRuntime
from genrec_jax.search import latency
from genrec_jax.serve.scorer import Scorer
from genrec_jax.serve.weights import load_weights
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import experiment as experiment_lib
from genrec_jax.train import loop, search, search_results
from genrec_jax.train.supernet_scores import score_architectures
from tests.train.searches import STEPS, build, make_config


@pytest.fixture(scope='module', autouse=True)
def mixed_dtypes():
  with jax.numpy_dtype_promotion('standard'):  # for optax
    yield


@pytest.fixture(scope='module')
def searched(tmp_path_factory):
  """(workdir, what was printed) of a search."""
  workdir = tmp_path_factory.mktemp('searched') / 'run'
  return workdir, search.search_models(make_config(), workdir, TASK_KINDS)


def test_what_is_found_is_a_config(searched, tmp_path):
  workdir, said = searched
  found = json.loads((workdir / search_results.RESULT).read_text())
  best = next(c for c in found['candidates'] if c['name'] == found['best'])
  assert best['title'] in said and str(workdir / 'found' / 'best.py') in said
  valid = [c['metrics']['valid']['logloss'] for c in found['candidates']]
  assert best['metrics']['valid']['logloss'] == min(valid)
  config = config_lib.load(str(workdir / 'found' / 'best.py'), [])
  assert tuple(config.model.top) == tuple(best['architecture']['net']['top'])
  again = loop.train_and_evaluate(config, tmp_path / 'again', TASK_KINDS)
  assert again['metrics'] == best['metrics']
  total = sum(again['parameters'].values())
  assert total == best['costs']['parameters']
  smoke = config_lib.load(str(workdir / 'found' / 'best.py:smoke'), [])
  assert smoke.train.steps == 16


def test_the_same_command_trains_nothing_again(searched, monkeypatch):
  workdir, said = searched
  monkeypatch.setattr(loop, 'train_and_evaluate', None)
  assert search.search_models(make_config(), workdir, TASK_KINDS) == said
  with pytest.raises(config_lib.ConfigError, match='other settings'):
    search.search_models(make_config(seed=1), workdir, TASK_KINDS)


def test_the_page_says_what_was_chosen(searched):
  workdir, _ = searched
  page = (workdir / search_results.PAGE).read_text()
  found = json.loads((workdir / search_results.RESULT).read_text())
  for candidate in found['candidates']:
    assert candidate['title'] in page
  for words in ('width of c0', 'rows of c0', 'Entropy of the choices'):
    assert words in page
  assert 'http' not in page


def test_the_page_says_what_to_know(searched):
  workdir, said = searched
  found = json.loads((workdir / search_results.RESULT).read_text())
  uniform = {name: np.full(len(w), 1 / len(w)) for name, w in
             found['choices'].items()}  # fmt: skip
  costs, asked = {'flops': 290.0}, {'max_flops': 100.0}
  notes = search_results.list_notes(asked, uniform, costs, False)
  assert len(notes) == 3 and 'as undecided as they began' in notes[0]
  assert 'at 2.9 times search.max_flops' in notes[1]
  sure = {'a': np.array([0.99, 0.01])}
  assert not search_results.list_notes({}, sure, costs, True)
  found['notes'] = notes
  assert notes[1] in search.search_page.render_search(found)


def test_more_may_be_asked_of_a_search(searched, tmp_path):
  """Its supernet is not trained again, nor what was trained of it."""
  workdir = tmp_path / 'run'
  shutil.copytree(searched[0], workdir)
  changes = {'search.samples': 3, 'search.compare': True}
  said = search.search_models(make_config(**changes), workdir, TASK_KINDS)
  before, after = (
    json.loads((at / search_results.RESULT).read_text())
    for at in (searched[0], workdir)
  )
  assert after['choices'] == before['choices']
  assert after['candidates'][:2] == before['candidates']
  assert len(after['candidates']) == 3 and '\ngiven ' in said
  report = json.loads((workdir / 'given' / 'report.json').read_text())
  sizes = after['given']['costs']['parameters']
  assert sizes == sum(report['parameters'].values())
  # Who stands in the place of another is not taken for it.
  shutil.rmtree(workdir / 'candidates' / '00')
  (workdir / 'candidates' / '01').rename(workdir / 'candidates' / '00')
  with pytest.raises(config_lib.ConfigError, match='00 holds a run with other'):
    search.search_models(make_config(**changes), workdir, TASK_KINDS)


def test_choices_of_an_earlier_step_are_refused(searched, tmp_path):
  workdir = tmp_path / 'run'
  shutil.copytree(searched[0], workdir)
  steps = sorted((workdir / 'supernet' / 'checkpoints').glob('[0-9]*'))
  assert len(steps) > 1
  shutil.rmtree(max(steps, key=lambda path: int(path.name)))
  with pytest.raises(config_lib.ConfigError, match='no checkpoint of step 28'):
    search.search_models(make_config(), workdir, TASK_KINDS)


def test_what_was_refused_holds_no_workdir(tmp_path):
  wrong = {'search.max_flops': 1.0}
  with pytest.raises(ValueError, match='smallest model'):
    search.search_models(make_config(**wrong), tmp_path, TASK_KINDS)
  config = make_config(**{'search.max_flops': 200.0, 'search.samples': 1})
  assert search.search_models(config, tmp_path, TASK_KINDS)
  for name in ('config.json', '.config.json.seal'):
    (tmp_path / name).unlink()
  with pytest.raises(config_lib.ConfigError, match='but no config.json'):
    search.search_models(config, tmp_path, TASK_KINDS)
  (tmp_path / 'series.json').write_text('{}')
  with pytest.raises(config_lib.ConfigError, match='series.json is damaged'):
    search.search_models(config, tmp_path, TASK_KINDS)


def test_a_supernet_predicts_nothing(searched):
  with pytest.raises(config_lib.ConfigError, match='all models of a search'):
    Scorer.load(searched[0] / 'supernet')


def test_rates_that_print_alike_are_two(searched):
  config = make_config(**{'search.rates': (0.1, 0.1000000001, 0.1)})
  config, experiment = build(config, searched[0])
  task = experiment.task
  model = task.space.find_extremes()[0]
  names = [c.name for c in search.list_candidates(config, task, [(model, 0.5)])]
  assert names == ['00_rate_0.1', '00_rate_0.1000000001']


def test_names_are_quoted_in_configs(searched, tmp_path):
  _, experiment = build(make_config(), searched[0])
  space = experiment.task.space
  model = space.find_extremes()[0]
  folder = tmp_path / 'a """+str(1/0)+""" b'
  candidate = search_results.Candidate(
    '00', 'top 4 """', model, space.measure_architecture(model), 0.5,
    make_config(),
  )  # fmt: skip
  search_results.write_config(folder, candidate, space)
  found = config_lib.load(str(folder / '00.py'), [])
  assert found.model.name == 'dlrm'
  text = (folder / '00.py').read_text()
  assert 'Widths: c0 2.' in text and 'Rows: c0 ' in text


def test_a_latency_is_searched(tmp_path):
  table = latency.LatencyTable(
    latency.name_machine(), 8, (1, 64), ((1.0, 2.0), (2.0, 3.0))
  )
  table.save(tmp_path / 'table.json')
  config = make_config(**{
    'search.latency_table': str(tmp_path / 'table.json'),
    'search.cost': 'latency_us', 'search.samples': 1,
  })  # fmt: skip
  assert 'latency_us' in search.search_models(
    config, tmp_path / 'run', TASK_KINDS
  )


def test_a_search_on_two_devices_finds_the_same(searched, tmp_path):
  config = make_config(**{'parallel.devices': 2})
  search.search_models(config, tmp_path, TASK_KINDS)
  one, two = (
    json.loads((at / 'search.json').read_text())['candidates']
    for at in (searched[0], tmp_path)
  )
  for a, b in zip(one, two, strict=True):
    assert a['architecture'] == b['architecture']
    for split, metrics in a['metrics'].items():
      for key in ('auc', 'logloss'):
        assert np.isclose(metrics[key], b['metrics'][split][key], atol=1e-4)


def test_an_interrupted_search_ends_alike(searched, tmp_path):
  """The supernet goes on within an epoch, from a step of theta."""
  workdir, _ = searched
  config = search.make_supernet_config(make_config())
  config.data.cache = str(workdir / 'data')
  half = config.copy_and_resolve_references()
  half.train.steps = STEPS - 1
  own = tmp_path / 'run' / 'supernet'
  loop.train_and_evaluate(half, own, TASK_KINDS)
  for name in ('report.json', 'report.html'):
    (own / name).unlink()
  config_lib.save(config, own / 'config.json')
  asked = make_config(**{'data.cache': str(workdir / 'data')})
  config_lib.save(asked, tmp_path / 'run' / 'config.json')
  assert search.search_models(asked, tmp_path / 'run', TASK_KINDS)
  both = [
    json.loads((w / search_results.RESULT).read_text())
    for w in (workdir, tmp_path / 'run')
  ]
  assert both[0]['choices'] == both[1]['choices']
  assert [c['metrics'] for c in both[0]['candidates']] == [
    c['metrics'] for c in both[1]['candidates']
  ]


def test_budgets_hold(tmp_path):
  changes = {
    'search.cost_loss': 'budget', 'search.max_flops': 150.0,
    'search.budget_epochs': 1.0,
  }  # fmt: skip
  _, experiment = build(make_config(**changes), tmp_path)
  task = experiment.task
  weights = task.space.make_uniform()
  drawn = search.draw_architectures(task.space, task.search, weights, 20, 0)
  costs = [task.space.measure_architecture(a)['flops'] for a in drawn]
  assert 1 < len(drawn) and max(costs) <= 150
  # One option is sure, and exceeds the budget.
  sure = dict(weights, **{'top.out': np.array([0.0, 1.0])})
  sure['top.2.8'] = np.array([0.0, 1.0, 0.0])
  with pytest.raises(config_lib.ConfigError, match='none of .* is within'):
    search.draw_architectures(task.space, task.search, sure, 3, 0)


def test_scores_are_losses_of_the_options_alone(searched):
  workdir, _ = searched
  config = config_lib.load_saved(workdir / 'supernet' / 'config.json')
  data, task = experiment_lib.load_data_and_task(
    config, workdir / 'supernet', TASK_KINDS, lambda *_: None
  )
  supernet = load_weights(workdir / 'supernet', task, 'latest')
  some = list(task.space.list_architectures())[::17]
  split = data.splits['valid']
  scores = score_architectures(task, supernet, split, 64, some)
  assert len(set(scores.round(7))) > 1
  runtime = SingleDeviceEvalRuntime()
  known = contracts.weights_of(supernet)
  for architecture, score in zip(some, scores, strict=True):
    options = task.space.to_weights(task.space.describe(architecture))
    params = jax.tree.map(lambda x: x, supernet.params)
    for name, weight in options.items():
      params['choices'][name] = 1e3 * (weight - 1)
    total = 0.0
    for batch in eval_batches(split, batch_size=50):
      reads = task.reads_for('predict', batch)
      _, rows = runtime.read_rows(task, known, reads)
      logits = np.asarray(task.predict(params, rows, batch))[:, 0]
      label = batch.labels.values[:, 0]
      each = np.logaddexp(0, logits) - label * logits
      total += float(each[batch.weights > 0].sum())
    assert score == pytest.approx(total / len(split), rel=1e-5)
  found = json.loads((workdir / search_results.RESULT).read_text())
  assert [p['supernet_logloss'] for p in found['proposals']] == [
    c['supernet_logloss'] for c in found['candidates']
  ]


def test_the_best_proposals_are_trained(searched):
  workdir, _ = searched
  config = search.make_supernet_config(make_config(**{'search.proposals': 9}))
  data, task = experiment_lib.load_data_and_task(
    config, workdir / 'supernet', TASK_KINDS, lambda *_: None
  )
  supernet = load_weights(workdir / 'supernet', task, 'latest')
  choices = search.read_choices(supernet, task)
  found = search.score_proposals(config, data, task, supernet, choices)
  assert len(found) == 9 and len({a.name for a, _ in found}) == 9
  likeliest = task.space.choose(task.space.choose_likeliest(choices))
  assert found[0][0].name == likeliest.name
  losses = [loss for _, loss in found[1:]]
  assert losses == sorted(losses)
  assert len(search.list_candidates(make_config(), task, found)) == 2


def test_costs_are_of_the_rows_that_a_table_has(tmp_path):
  tables = "(('c0', {'id_map': 'hash', 'rows': 9}), ('.*', {}))"
  changes = {'search.spaces': ('mlp', 'emb_dim'), 'tables': tables}
  _, experiment = build(make_config(**changes), tmp_path)
  space = experiment.task.space
  assert space.rows['c0'] == (9,) and space.rows['c1'][0] > 9
  smallest = space.find_extremes()[0]
  config = search_results.make_found_config(
    make_config(**changes), space, smallest
  )
  own = experiment_lib.build_experiment(
    config, tmp_path / 'own', TASK_KINDS, lambda *_: None
  )
  state = own.runtime.fresh_state()
  count = sum(x.size for x in jax.tree.leaves((state.params, state.tables)))
  assert space.measure_architecture(smallest)['parameters'] == count


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    ({'search.warmup_epochs': 2}, 'none of the 2 epochs'),
    ({'search.cost_loss': 'budget', 'search.max_flops': 150.0,
      'search.budget_epochs': 3.0}, 'would never be asked for'),
    ({'search.proposals': 1}, 'fewer than search.samples=2'),
  ],
)  # fmt: skip
def test_a_search_that_would_not_search_is_refused(changes, words):
  with pytest.raises(config_lib.ConfigError, match=words):
    search.make_supernet_config(make_config(**changes))


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    ({'search.row_shares': (0.5, 0.2)}, 'lacks 1.0'),
    ({'search.share': 0.001}, 'leaves .* examples for weights'),
    ({'search.shared_optimizer': True}, "set search.optimizer='sgd'"),
    ({'search.max_flops': 1e9}, 'largest model of the space has'),
    ({'search.dims': (4, 64), 'model.interaction': 'dot'}, 'model.dim=64'),
    ({'model.towers': '2'}, 'cannot be searched'),
    ({'model.dims.c9': 4}, "model.dims names 'c9'"),
    ({'search.tables': 'nothing'}, 'matches none of the tables c0, c1'),
    ({'tables': "(('c0', {'id_map': 'hash', 'rows': 9}), ('.*', {}))"},
     'id_map='),
  ],
)  # fmt: skip
def test_what_cannot_be(changes, words, tmp_path):
  with pytest.raises(ValueError, match=words):
    build(make_config(**changes), tmp_path)


def test_other_tasks_and_models_are_refused(tmp_path):
  with pytest.raises(config_lib.ConfigError, match='search is for task=rank'):
    search.search_models(config_lib.retrieval(), tmp_path / 'a', TASK_KINDS)
  config = make_config()
  config_lib.choose_model(config, 'fm')
  with pytest.raises(ValueError, match="'fm' cannot be searched; dlrm and"):
    search.search_models(config, tmp_path / 'b', TASK_KINDS)
