"""`--mode=eval` gives the figures of the training, beside popularity."""

import json
import shutil

import jax
import pytest
from ml_collections import ConfigDict

from genrec_jax import config as config_lib
from genrec_jax import provenance, sealed
from genrec_jax.report import summary
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import loop, results


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """(config, workdir, report) of a short training."""
  config = config_lib.smoke(config_lib.retrieval())
  config.train.update(steps=4, eval_every=2, checkpoint_every=2, log_every=2)
  config.eval.update(batch_size=32, item_chunk=64)
  config.report.users = 0
  directory = tmp_path_factory.mktemp('run')
  with jax.numpy_dtype_promotion('standard'):  # optax is not strict
    report = loop.train_and_evaluate(config.lock(), directory, TASK_KINDS)
  return config, directory, report


def changed(config, **changes):
  config = ConfigDict(config.to_dict())
  for key, value in changes.items():
    config_lib.apply_override(config, f'{key.replace("__", ".")}={value}')
  return config.lock()


def files(directory):
  return {
    str(p.relative_to(directory)): p.read_bytes()
    for p in directory.rglob('*')
    if p.is_file() and p.name != 'eval.json'
  }


def test_what_the_report_says_of_the_run(run):
  config, directory, report = run
  about = report['run']
  assert about['workdir'] == str(directory)
  # '' unless another test has run the command line in this process.
  assert about['command'] == provenance.describe_command()
  assert about['started'] < about['finished']
  assert about['changed']['train.steps'] == 0
  assert 'eval.filter_seen' not in about['changed']
  counts = report['splits']['test']
  assert counts['examples'] == counts['users'] > 0
  for split, intervals in report['intervals'].items():
    assert set(intervals) == set(report['metrics'][split])
  wall = sum(report[f'{phase}_s'] for phase in ('setup', 'train', 'eval'))
  assert 0 < report['compile_s'] < wall and report['peak_memory']['host'] > 1e7
  page = (directory / 'report.html').read_text()
  (directory / 'report.html').unlink()
  summary.rebuild_report(directory)
  assert (directory / 'report.html').read_text() == page


def test_best_and_latest(run, capsys):
  config, directory, report = run
  before = files(directory)
  found = results.evaluate_run(config, directory, TASK_KINDS)
  assert found['metrics'] == report['metrics']
  assert found['baselines'] == report['baselines']
  assert found['step'] == report['best_step']
  assert found['intervals'] == report['intervals']
  printed = capsys.readouterr().out
  assert 'popularity' in printed and 'ndcg@10' in printed
  latest = changed(
    config, predict__checkpoint='latest', eval__splits="('test',)"
  )
  found = results.evaluate_run(latest, directory, TASK_KINDS)
  assert found['metrics'] == {'test': report['last_epoch']['test']}
  assert found['step'] == report['steps'] == 4
  saved = json.loads((directory / 'eval.json').read_text())
  assert saved['metrics'] == found['metrics']
  assert set(saved['versions']) == set(report['versions'])
  assert files(directory) == before


def test_other_ways_to_evaluate(run):
  """The eval section may differ from that of the training."""
  config, directory, report = run
  found = results.evaluate_run(
    changed(
      config, eval__ks='(3, 7)', eval__splits="('test',)", eval__item_chunk=50
    ),
    directory,
    TASK_KINDS,
  )
  assert set(found['metrics']['test']) == {
    'hr@3', 'ndcg@3', 'hr@7', 'ndcg@7', 'mrr',
  }  # fmt: skip
  assert found['metrics']['test']['mrr'] == report['metrics']['test']['mrr']


def test_refusals(run, tmp_path):
  config, directory, _ = run
  with pytest.raises(config_lib.ConfigError, match='seed: saved 0, now 1'):
    results.evaluate_run(changed(config, seed=1), directory, TASK_KINDS)
  with pytest.raises(FileNotFoundError, match='train first'):
    results.evaluate_run(config, tmp_path / 'nothing', TASK_KINDS)
  with pytest.raises(ValueError, match='tset'):
    results.evaluate_run(
      changed(config, eval__splits="('tset',)"), directory, TASK_KINDS
    )
  copy = tmp_path / 'copy'
  shutil.copytree(directory, copy)
  meta = json.loads((copy / 'items' / 'meta.json').read_text())
  (copy / 'items' / 'meta.json').write_text(json.dumps({**meta, 'data': '?'}))
  sealed.seal(copy / 'items')
  with pytest.raises(ValueError, match='trained on other data'):
    results.evaluate_run(config, copy, TASK_KINDS)
  shutil.rmtree(copy)
  shutil.copytree(directory, copy)
  for name in ('best', 'checkpoints'):
    shutil.rmtree(copy / name)
  with pytest.raises(ValueError, match='no checkpoint; train first'):
    results.evaluate_run(config, copy, TASK_KINDS)


def test_tables_of_few_bits(run, caplog):
  config, directory, report = run
  caplog.set_level('INFO', 'genrec_jax')
  before = files(directory)
  hits = {}
  for name in ('fbgemm_fp16', 'tbe_int2'):
    other = changed(config, numerics__rows=f"(('.*', '{name}'),)")
    found = results.evaluate_run(other, directory, TASK_KINDS)
    hits[name] = found['metrics']['test']['mrr']
    assert f'in {name} (' in caplog.text
  assert files(directory) == before
  wanted = report['metrics']['test']['mrr']
  assert hits['fbgemm_fp16'] == pytest.approx(wanted, abs=1e-3)
  assert hits['tbe_int2'] != wanted
  for rules, words in (
    ("(('item', 'tbe_int2'),)", 'matches no table'),
    ("(('.*', 'int2'),)", 'formats are'),
  ):
    with pytest.raises(ValueError, match=words):
      results.evaluate_run(
        changed(config, numerics__rows=rules), directory, TASK_KINDS
      )


def test_a_training_refuses_tables_of_few_bits(run, tmp_path):
  config, _, _ = run
  other = changed(config, numerics__rows="(('.*', 'tbe_int2'),)")
  with pytest.raises(config_lib.ConfigError, match='train without it'):
    loop.train_and_evaluate(other, tmp_path / 'new', TASK_KINDS)
  assert not (tmp_path / 'new').exists()
