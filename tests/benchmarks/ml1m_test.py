"""Tests of the table of ML-1M runs."""

import json

import pytest

from benchmarks import ml1m, runs


def test_runs_stand_beside_the_published_figures(tmp_path, rows, finished):
  plain = finished('configs/hstu_ml1m.py', 'plain', seed=3)
  checked = finished(
    'configs/hstu_ml1m.py:validated', 'checked', parts=('valid', 'test')
  )
  ml1m.main(
    [
      *('--run', f'hstu_ml1m={plain}'),
      *('--run', f'hstu_ml1m:validated={checked}'),
      *('--results', str(tmp_path)),
    ]
  )
  found = rows('ml1m')
  row = found['hstu_ml1m/seed3']
  assert row['protocol'] == 'reference' and row['chosen_by'] == 'last epoch'
  assert row['hr@10'] == row['last_hr@10'] == pytest.approx(0.285)
  assert row['best_on_test_hr@200'] == pytest.approx(0.3)
  assert row['best_on_test_step'] == 75
  assert row['published_hr@10'] == 0.3097
  assert row['published_ndcg@200'] == 0.2606
  assert row['differs'] == []
  row = found['hstu_ml1m:validated/seed0']
  assert row['protocol'] == 'validated' and row['best_step'] == 75
  assert row['hr@50'] == pytest.approx(0.3)
  assert row['last_ndcg@50'] == pytest.approx(0.285)


def test_what_a_run_changed_is_written_down(finished):
  workdir = finished('configs/sasrec_ml1m.py', train__epochs=7)
  row = ml1m.row('sasrec_ml1m', workdir)
  assert row['differs'] == ['train.epochs: saved 7, now 101']


@pytest.mark.parametrize(
  ('run', 'message'),
  [
    ('hstu', 'NAME=WORKDIR'),
    ('hstu_ml2m=x', "no config 'hstu_ml2m'"),
    ('hstu_ml1m=absent', 'the run has not ended'),
  ],
)
def test_mistakes_are_told(run, message):
  with pytest.raises(SystemExit, match=message):
    ml1m.main(['--smoke', '--run', run])


def test_a_run_of_another_model_is_refused(finished):
  workdir = finished('configs/sasrec_ml1m.py')
  with pytest.raises(ValueError, match='a run of sasrec, not of hstu_ml1m'):
    ml1m.row('hstu_ml1m', workdir)


def test_train_runs_the_config_first(monkeypatch, tmp_path, finished):
  def train(config, workdir, overrides):
    calls.append((config, workdir.name, overrides))
    finished('configs/sasrec_ml1m.py', 'new', seed=1)

  calls = []
  monkeypatch.setattr(runs, 'train', train)
  ml1m.main(
    [
      *('--smoke', '--train', '--data', str(tmp_path), '--set', 'seed=1'),
      *('--run', f'sasrec_ml1m={tmp_path / "new"}'),
    ]
  )
  overrides = ['seed=1', f'data.path={tmp_path}']
  assert calls == [('configs/sasrec_ml1m.py', 'new', overrides)]


def test_a_failed_run_names_its_log(tmp_path):
  with pytest.raises(RuntimeError, match='run.log'):
    runs.train('configs/hstu_ml1m.py:nonsense', tmp_path / 'run')
  assert 'unknown variant' in (tmp_path / 'run.log').read_text()


def test_evaluations_are_those_of_one_part(tmp_path):
  lines = [
    {'step': 5, 'train/loss': 1.0},
    {'step': 9, 'valid/hr@10': 0.1},
    {'step': 9, 'test/hr@10': 0.2, 'test/mrr': 0.3},
  ]
  (tmp_path / 'metrics.jsonl').write_text(
    ''.join(json.dumps(line) + '\n' for line in lines)
  )
  assert runs.evaluations(tmp_path) == [{'step': 9, 'hr@10': 0.2, 'mrr': 0.3}]


def test_means_are_over_the_seeds_of_now_and_before(tmp_path, rows, finished):
  for seed, level in ((1, 0.2), (2, 0.3), (1, 0.4)):  # the first is replaced
    workdir = finished(
      'configs/hstu_ml1m.py', f'{seed}_{level}', seed=seed, level=level
    )
    ml1m.main(['--run', f'hstu_ml1m={workdir}', '--results', str(tmp_path)])
  mean = rows('ml1m')['hstu_ml1m']
  assert mean['kind'] == 'mean' and mean['seeds'] == 2
  found = [rows('ml1m')[f'hstu_ml1m/seed{seed}']['hr@10'] for seed in (1, 2)]
  assert mean['hr@10'] == pytest.approx(sum(found) / 2, rel=1e-4)
  assert mean['hr@10_std'] == pytest.approx(
    abs(found[0] - found[1]) / 2**0.5, rel=1e-4
  )
  assert mean['published_hr@10'] == 0.3097
