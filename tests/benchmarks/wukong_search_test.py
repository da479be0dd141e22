"""The search and the ablation, with runs that are made up."""

import json

import pytest

from benchmarks import runs, wukong_ablation, wukong_search


def write(workdir, auc, **more):
  workdir.mkdir(parents=True, exist_ok=True)
  metrics = {'auc': auc, 'logloss': 1 - auc}
  report = {
    'metrics': {'valid': metrics, 'test': metrics},
    'parameters': {'model': 3, 'tables': 4},
    'steps': 20,
    'best_step': 10,
    'core_s': 1.0,
    **more,
  }
  (workdir / 'report.json').write_text(json.dumps(report))
  lines = [{'step': s, 'test/auc': 0.5} for s in (10, 20)]
  (workdir / 'metrics.jsonl').write_text('\n'.join(map(json.dumps, lines)))


@pytest.fixture
def started(monkeypatch):
  """The runs that were started; wider models are better."""
  found = []

  def train(config, workdir, overrides, env=None):
    settings = dict(o.split('=', 1) for o in overrides)
    found.append(settings)
    write(workdir, 0.9 + 1e-4 * float(settings['model.dim']))

  monkeypatch.setattr(runs, 'train', train)
  return found


def search(tmp_path, *more):
  wukong_search.main(
    [
      *('--data', str(tmp_path), '--runs', str(tmp_path / 'runs')),
      *('--results', str(tmp_path), *more),
    ]
  )


def test_a_search_goes_on_from_the_best_and_repeats_nothing(
  tmp_path, started, rows
):
  trials = len(wukong_search.START) + 6
  search(tmp_path, '--trials', str(trials))
  assert len(started) == trials
  names = [sorted((k, v) for k, v in s.items() if k != 'seed') for s in started]
  assert all(names.count(name) == 1 for name in names)
  found = list(rows('wukong_search').values())
  aucs = [row['valid_auc'] for row in found]
  assert aucs == sorted(aucs, reverse=True) and len(aucs) == trials
  assert found[0]['epochs'] == 1 and found[0]['parameters'] == 7

  search(tmp_path, '--trials', str(trials))
  assert len(started) == trials, 'what has been run was run again'
  search(
    tmp_path, '--trials', str(trials + 1), '--confirm', '2', '--seeds', '0', '1'
  )
  assert len(started) == trials + 3
  again = rows('wukong_search').values()
  assert sorted(row['seeds'] for row in again)[-3:] == [1, 2, 2]


def test_several_vectors_go_to_users_and_items():
  settings = wukong_search.BASE | {'vectors': 2}
  assert wukong_search.overrides_of(settings)[-2:] == [
    'model.important.user=2',
    'model.important.item=2',
  ]


def test_an_ablation_compares_with_the_whole_model(tmp_path, monkeypatch, rows):
  def train(config, workdir, overrides, env=None):
    assert config == 'configs/wukong_synthetic.py'
    write(workdir, 0.6 if 'model.zero=fmb' in overrides else 0.8)

  monkeypatch.setattr(runs, 'train', train)
  wukong_ablation.main(
    ['--runs', str(tmp_path / 'runs'), '--results', str(tmp_path)]
  )
  found = rows('wukong_ablation')
  assert len(found) == len(wukong_ablation.CASES)
  assert found['clicks/no FMB']['loss_more'] == pytest.approx(100)
  assert found['clicks/no LCB']['loss_more'] == pytest.approx(0)
  assert found['clicks/whole']['seeds'] == 3
