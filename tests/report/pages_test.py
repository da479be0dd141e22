"""Tests of report.json, report.html and the table, on made-up runs."""

import json
import math

import numpy as np
import pytest

from genrec_jax.contracts import Panel
from genrec_jax.report.comparison import compare_metrics
from genrec_jax.report.summary import (
  format_table,
  rebuild_report,
  write_report,
)
from tests.report.page_parser import parse

KS = (1, 5, 10, 50, 100, 200)


def fake_metrics(strength):
  """Metrics of a plausible size; a stronger model has larger ones."""
  metrics = {}
  for family in ('hr', 'ndcg'):
    for k in KS:
      share = 1 - math.exp(-strength * k**0.62)
      metrics[f'{family}@{k}'] = share * (
        1 if family == 'hr' or k == 1 else 0.45 + 0.25 / k**0.5
      )
  metrics['mrr'] = 0.55 * metrics['hr@10']
  return metrics


def fake_report():
  return {
    'config': {
      'seed': 0,
      'data': {'name': 'ml1m', 'path': 'ml-1m', 'min_rating': None},
      'split': {'name': 'leave_last_out', 'holdout': 2, 'windows': 'latest'},
      'model': {
        'name': 'hstu', 'dim': 50, 'blocks': 2, 'heads': 1, 'max_len': 200,
        'relative_bias': True, 'dropout': 0.2, 'ks': (1, 10, 50),
      },
      'loss': {'name': 'sampled_softmax', 'negatives': 128},
      'optimizer': {'name': 'adamw', 'lr': 1e-3, 'betas': (0.9, 0.98)},
      'train': {'epochs': 101, 'batch_size': 128, 'patience': 10},
    },
    'seed': 0,
    'data': 'ml1m: 6,040 users, 1,000,209 events, 3,883 items to recommend, '
    '96 events a user (median; 20 to 2,314), 2000-04-25 to 2003-02-28',
    'metrics': {'valid': fake_metrics(0.093), 'test': fake_metrics(0.086)},
    'last_epoch': {'valid': fake_metrics(0.09), 'test': fake_metrics(0.084)},
    'baselines': {
      'popularity': {
        'valid': fake_metrics(0.013), 'test': fake_metrics(0.012)
      }
    },
    'best_step': 3600,
    'steps': 4848,
    'wall_s': 4211.4,
    'core_s': 7866.2,
    'examples_per_s': 148.7,
    'tokens_per_s': 20_431.0,
    'devices': '1 x cpu',
    'versions': {'python': '3.11.7', 'jax': '0.10.2', 'numpy': '2.4.6'},
    'notes': ['Timestamps were interpolated for 71.8 % of the events.'],
  }  # fmt: skip


def fake_curves(steps=4848):
  rng = np.random.default_rng(0)
  rows = []
  for step in range(12, steps + 1, 12):
    left = math.exp(-step / 900)
    rows.append({
      'step': step,
      'train/loss': 3.9 + 3.2 * left + 0.05 * rng.normal(),
      'train/grad_norm': 0.4 + 1.1 * left + 0.06 * abs(rng.normal()),
      'perf/steps_per_s': 1.15 + 0.03 * rng.normal(),
      'perf/tokens_per_s': 20_400 + 350 * rng.normal(),
    })  # fmt: skip
    if step % 240 == 0:
      strength = 0.094 * (1 - left) * (1 - step / 60_000)
      for part, factor in (('valid', 1.0), ('test', 0.93)):
        metrics = fake_metrics(strength * factor + 0.001 * rng.normal())
        rows.append(
          {'step': step} | {f'{part}/{n}': v for n, v in metrics.items()}
        )
  return rows


def fake_examples():
  first = ('The Silent', 'Return to', 'A Winter in', 'Last Train to', 'Blue')
  second = ('Harbour', 'Montreal', 'the Lighthouse', 'Orchard Street', 'Atlas')
  rng = np.random.default_rng(1)

  def item(**more):
    n = int(rng.integers(25))
    title = f'{first[n // 5]} {second[n % 5]} ({int(rng.integers(1950, 2000))})'
    return {'item': 100 + n, 'title': title, **more}

  examples = []
  for user, rank in ((42, 1), (1977, 7), (5301, None)):
    start = 956_700_000 + int(rng.integers(10**7))
    recommended = [
      item(score=9.1 - 0.3 * i - 0.1 * rng.random(), hit=i + 1 == rank)
      for i in range(10)
    ]
    target = dict(recommended[rank - 1]) if rank else item()
    examples.append({
      'user': user,
      'history': [item(time=start + 90_000 * i) for i in range(9)],
      'target': target,
      'target_rank': rank,
      'recommendations': recommended,
    })  # fmt: skip
  return examples


def parse_page(tmp_path, data, curves=(), examples=()):
  data = {**data, 'users': examples} if examples else data
  write_report(tmp_path, data, curves)
  return parse((tmp_path / 'report.html').read_text(encoding='utf-8'))


def test_a_whole_report(tmp_path):
  data = fake_report()
  data['users'] = fake_examples()
  page = parse_page(tmp_path, data, fake_curves())
  assert json.loads((tmp_path / 'report.json').read_text()) == json.loads(
    json.dumps(data)
  )
  for text in (
    'HSTU on ml1m', '6,040 users', 'Timestamps were interpolated', '3,600',
    'Test metrics', 'NDCG@10', 'HR@200', 'MRR', 'popularity',
    'test, last epoch', 'of all cases (popularity:', 'User 1977',
    'next item ranked 7',
    'next item not among the first 10', '2000-', 'model.blocks', '0.10.2',
    '1h 10m',
  ):  # fmt: skip
    assert text in page.text, text
  assert sum(tag == 'svg' for tag, _ in page.tags) == 4 + 2 * len(KS) + 1
  assert len((tmp_path / 'report.html').read_bytes()) < 1_500_000


def test_the_table_of_a_terminal():
  data = {
    'metrics': {
      'valid': {'mrr': 0.2, 'ndcg@10': 0.1834, 'hr@10': 0.321, 'hr@5': 0.1},
      'test': {'mrr': 0.15, 'ndcg@10': 0.1720, 'hr@10': 0.3097, 'hr@5': 0.1},
    },
    'last_epoch': {'test': {'hr@10': 0.3071, 'ndcg@10': math.nan}},
    'baselines': {'popularity': {'hr@10': 0.0812, 'ndcg@10': 0.0}},
    'best_step': 1200,
    'steps': 2000,
    'wall_s': 142.0,
    'core_s': 263.1,
    'examples_per_s': 1234.5,
    'seed': 0,
  }
  assert format_table(data) == (
    '           test  popularity  vs popularity  test, last epoch   valid\n'
    'hr@5     0.1000           -              -                 -  0.1000\n'
    'hr@10    0.3097      0.0812   3.81x better            0.3071  0.3210\n'
    'ndcg@10  0.1720      0.0000  0.1720 better               nan  0.1834\n'
    'mrr      0.1500           -              -                 -  0.2000\n'
    'step 1,200 of 2,000, 2m 22s wall, 4m 23s of processor time,'
    ' 1.23k examples/s, seed 0'
  )
  assert format_table({'metrics': {'valid': {'users': 3}}}) == (
    '       valid\nusers      3'
  )


def test_baselines_of_each_part_or_of_the_shown_one():
  for values in ({'mrr': 0.1}, {'valid': {'mrr': 9.0}, 'test': {'mrr': 0.1}}):
    c = compare_metrics({
      'metrics': {'valid': {'mrr': 0.3}, 'test': {'mrr': 0.2}},
      'baselines': {'popularity': values, 'markov': {'mrr': 0.16}},
    })  # fmt: skip
    assert c.columns == (
      'test', 'popularity', 'markov', 'vs best baseline', 'valid'
    )  # fmt: skip
    assert c.verdict('mrr') == ('better', '25.0%', 'markov', 0.16)
    assert c.value('mrr', 'x') is None and c.value('x', 'test') is None


def test_the_last_epoch_is_not_told_twice():
  metrics = {'test': {'mrr': 0.2}}
  c = compare_metrics({'metrics': metrics, 'last_epoch': dict(metrics)})
  assert c.columns == ('test',)


def test_the_figures_above_the_table_are_three(tmp_path):
  page = parse_page(tmp_path, fake_report())
  assert page.text.count('this model') == 3


def test_the_column_of_the_part_that_counts_is_marked(tmp_path):
  data = fake_report()
  page = parse_page(tmp_path, data)
  own = [a for t, a in page.tags if t == 'td' and a.get('class') == 'own']
  assert len(own) == len(data['metrics']['test'])


def test_a_baseline_is_a_line_of_its_chart(tmp_path):
  page = parse_page(tmp_path, fake_report(), fake_curves())
  assert page.text.count('popularity (test)') == 2 * len(KS) + 1


def test_a_clock_that_is_no_date(tmp_path):
  (example, *_) = fake_examples()
  example['history'] = [{'item': 7, 'title': 'Atlas', 'time': 12}]
  page = parse_page(tmp_path, fake_report(), examples=[example])
  assert 't=12' in page.text


def test_no_metrics_is_an_error(tmp_path):
  with pytest.raises(ValueError, match='The report has no metrics'):
    write_report(tmp_path, {'metrics': {'test': {}}}, [])
  assert list(tmp_path.iterdir()) == []


def _without(*keys):
  return {k: v for k, v in fake_report().items() if k not in keys}


@pytest.mark.parametrize(
  'data',
  [
    {'metrics': {'test': {'mrr': 0.1}}},
    _without('baselines'),
    _without('last_epoch', 'notes', 'versions', 'config', 'data'),
    _without('best_step', 'wall_s', 'core_s'),
    {**fake_report(), 'metrics': {'test': fake_metrics(0.1), 'valid': {}}},
    {**fake_report(), 'metrics': {'valid': fake_metrics(0.1)}},
    {**fake_report(), 'baselines': {'popularity': {'test': {}}}},
    {**fake_report(), 'metrics': {'test': {'hr@10': math.nan, 'mrr': 0.0}}},
    {**fake_report(), 'metrics': {'test': {'a': None, 'b': 3, 'c': math.inf}}},
  ],
)
def test_parts_may_be_missing(tmp_path, data):
  parse_page(tmp_path, data, fake_curves(240), fake_examples())
  json.loads((tmp_path / 'report.json').read_text(), parse_constant=pytest.fail)
  assert format_table(data)


def test_numpy_scalars_are_numbers(tmp_path):
  data = {
    'metrics': {'test': {'mrr': np.float32(0.25), 'users': np.int64(7)}},
    'baselines': {'popularity': {'mrr': np.float32(0.125)}},
    'wall_s': np.float32(3),
  }
  page = parse_page(tmp_path, data, [{'step': 1, 'test/mrr': np.float32(0.25)}])
  assert '0.2500' in page.text and '2.00× better' in page.text
  assert '2.00x better' in format_table(data) and ' 7' in format_table(data)


@pytest.mark.parametrize(
  'example',
  [
    {'user': 'u1'},
    {'user': 1, 'history': [], 'target': None, 'recommendations': []},
    {
      'user': 2,
      'history': [{'item': 3, 'title': None, 'time': None}],
      'target': {'item': 'x'},
      'target_rank': 1,
      'recommendations': [
        {'item': 'x', 'title': None, 'score': math.nan, 'hit': True}
      ],
    },
    {'user': 3, 'history': [{'item': 3, 'title': None, 'time': 12}]},
    {'user': 4, 'history': [{'item': 3, 'title': None, 'time': 1 << 60}]},
    {'user': 5, 'history': [{'item': 3}], 'target': {'item': 4}},
    {'user': 6, 'recommendations': [{'item': 3}], 'target_rank': None},
  ],
)
def test_users_may_lack_anything(tmp_path, example):
  page = parse_page(tmp_path, fake_report(), [], [example])
  assert f'User {example["user"]}' in page.text


def test_nothing_from_outside_is_markup(tmp_path):
  evil = '<script>alert("x")</script>&amp;\'"'
  data = {
    'config': {'model': {'name': evil}, evil: evil, 'nested': {evil: [evil]}},
    'metrics': {'test': {evil: 0.1, 'hr@10': 0.2}, evil: {'hr@10': 0.1}},
    'baselines': {evil: {'hr@10': 0.1}},
    'data': evil,
    'devices': evil,
    'seed': evil,
    'versions': {evil: evil},
    'notes': [evil],
  }
  event = {'item': evil, 'title': evil, 'time': 10**9}
  example = {
    'user': evil,
    'history': [event],
    'target': event,
    'recommendations': [{**event, 'score': 1.0, 'hit': True}],
  }
  curves = [{'step': i, f'{evil}/{evil}': 1.0 * i} for i in range(3)]
  page = parse_page(tmp_path, data, curves, [example])
  assert page.text.count(evil) > 10


def whole_report():
  report = fake_report()
  report['config']['task'] = 'retrieval'
  report['run'] = {
    'command': 'python -m genrec_jax.main --config=a.py --config.model.dim=50',
    'set_keys': ['model.dim', 'gone.key'],
    'changed': {'train.batch_size': 64, 'model.dim': 16},
    'workdir': '/runs/a',
    'started': 1_795_000_000.0,
    'finished': 1_795_003_600.0,
    'version': '0.1.0',
    'commit': '0123456789ab+',
  }
  report['splits'] = {'test': {'examples': 6040, 'users': 6040}}
  report['intervals'] = {'test': {'hr@10': [0.29, 0.33]}}
  report |= {'setup_s': 3.0, 'train_s': 90.0, 'eval_s': 8.0, 'compile_s': 12.0}
  report['peak_memory'] = {'host': 1_500_000_000, 'device': 2_000_000}
  return report


def test_the_head_says_where_a_run_comes_from(tmp_path):
  page = parse_page(tmp_path, whole_report())
  for text in (
    '6,040 test users', '2026-11-18 12:06 UTC', 'commit 0123456789ab with',
    'genrec_jax 0.1.0', '/runs/a', '--config.model.dim=50',
    'the one before it validates', '95% interval: 0.2900 to 0.3300',
    'training 1m 30s', '12s of it compiling', '1.50 GB', '2.00 MB on a device',
  ):  # fmt: skip
    assert text in page.text, text
  assert '17950' not in page.text  # seconds since 1970


def test_settings_that_are_not_the_default_come_first(tmp_path):
  page = parse_page(tmp_path, whole_report())
  first = page.text.index('Settings that are not the default')
  listed = page.text[first : page.text.index('All settings')]
  assert listed.index('model.dim') < listed.index('train.batch_size')
  assert listed.count('command line') == 1 and 'model.heads' not in listed
  others = [a for t, a in page.tags if a.get('class') == 'other']
  assert len(others) == 2


def test_a_page_is_rebuilt_from_the_workdir_alone(tmp_path):
  report = whole_report() | {'users': fake_examples()}
  report['last_epoch']['test']['mrr'] = math.nan
  report['metrics']['test']['x'] = math.inf
  rows = fake_curves(960)
  (tmp_path / 'metrics.jsonl').write_text(
    ''.join(json.dumps(row) + '\n' for row in rows)
  )
  write_report(tmp_path, {**report, 'mine': 7}, rows, ['<p>mine 7</p>'])
  page = tmp_path / 'report.html'
  before = page.read_text()
  page.unlink()
  panel = Panel('mine', None, lambda value: f'<p>mine {value}</p>')
  absent = Panel('absent', None, lambda value: 1 / 0)
  assert rebuild_report(tmp_path, [panel, absent])['mine'] == 7
  assert page.read_text() == before and 'mine 7' in before
  (tmp_path / 'metrics.jsonl').unlink()
  rebuild_report(tmp_path)
  assert 'NDCG@10' in page.read_text()


def test_a_directory_without_a_run_has_no_page(tmp_path):
  with pytest.raises(FileNotFoundError, match='not the workdir of a run'):
    rebuild_report(tmp_path)


def test_a_run_below_its_baseline_is_in_the_file_for_scripts(tmp_path):
  report = fake_report()
  write_report(tmp_path, report, [])
  saved = json.loads((tmp_path / 'report.json').read_text())
  assert 'below_baseline' not in saved
  report['baselines']['popularity']['test']['mrr'] = 0.9
  write_report(tmp_path, report, [])
  saved = json.loads((tmp_path / 'report.json').read_text())
  (below,) = saved['below_baseline']
  assert below['metric'] == 'mrr' and below['baseline_value'] == 0.9


def test_titles_are_asked_for_where_there_are_none(tmp_path):
  examples = fake_examples()
  hint = 'data.titles'
  page = parse_page(tmp_path, fake_report(), examples=examples)
  assert hint not in page.text
  for example in examples:
    for item in (*example['history'], *example['recommendations']):
      item['title'] = None
  examples[0] |= {'place': 1, 'of': 64, 'depth': 100}
  examples[-1] |= {'place': 64, 'of': 64, 'depth': 100}
  page = parse_page(tmp_path, fake_report(), examples=examples)
  assert hint in page.text and 'best of 64' in page.text
  assert 'worst of 64' in page.text and 'among the first 100' in page.text
