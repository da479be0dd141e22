"""Tests of the result files and of the tables made from them."""

import doctest
import json
import sys
import time

import numpy as np
import pytest

from benchmarks import result, tables

TABLE = {
  'files': ('cpu2/train_step', 'h200/train_step'),
  'columns': (
    ('model', 'case', ''),
    ('core-s', 'step_core_s', '.2f'),
    ('tokens', 'tokens', ',.0f'),
    ('machine', 'machine', ''),
  ),
}


@pytest.fixture
def root(tmp_path, monkeypatch):
  monkeypatch.setattr(
    sys, 'argv', [result.__file__.replace('result', 'train_step')]
  )
  _write(tmp_path, [
    {'case': 'hstu', 'step_core_s': 0.694, 'tokens': 13_712},
    {'case': 'sasrec|x', 'step_core_s': 0.5},
  ])  # fmt: skip
  _write(tmp_path, [{'case': 'hstu', 'tokens': 14_500}], machine='h200')
  page = '# Title\n\n<!-- table:step -->\n<!-- /table -->\n\nEnd.\n'
  (tmp_path / 'README.md').write_text(page)
  (tmp_path / 'docs').mkdir()
  (tmp_path / 'docs' / 'plain.md').write_text('No table.\n')
  return tmp_path


def _write(root, rows, *, machine='cpu2', **kwargs):
  path = root / 'benchmarks' / 'results'
  return result.write(
    'train_step', rows, machine=machine, results=path, **kwargs
  )


def _rows(path):
  return {r['case']: r for r in json.loads(path.read_text())['rows']}


def test_the_pages_of_this_project_are_up_to_date():
  assert tables.update(write=False) == []


def test_every_table_that_was_measured_can_be_written():
  written = 0
  for name, table in tables.TABLES.items():
    files = [
      tables.ROOT / 'benchmarks' / 'results' / f'{file}.json'
      for file in table['files']
    ]
    if all(file.exists() for file in files):
      assert tables.render(name, tables.TABLES, tables.ROOT).startswith('| ')
      written += 1
  assert written


def test_bytes_are_shown_in_megabytes():
  assert tables._cell(357_056_333, 'MB') == '357'
  assert tables._cell(3_884 * 50 * 4, 'MB') == '0.8'
  assert tables._cell(None, 'MB') == '–'


def test_pages_are_written_between_the_markers(root):
  assert tables.update(write=True, tables={'step': TABLE}, root=root) == [
    'README.md'
  ]
  date = time.strftime('%Y-%m-%d')
  command = '<code>python -m benchmarks.train_step</code>'
  assert (root / 'README.md').read_text() == (
    '# Title\n\n<!-- table:step -->\n'
    '| model | core-s | tokens | machine |\n'
    '| --- | ---: | ---: | --- |\n'
    '| hstu | 0.69 | 13,712 | cpu2 |\n'
    '| sasrec\\|x | 0.50 | – | cpu2 |\n'
    '| hstu | – | 14,500 | h200 |\n\n'
    f'<sub>Measured by {command} on cpu2, {date};'
    f' {command} on h200, {date}.</sub>\n'
    '<!-- /table -->\n\nEnd.\n'
  )
  assert tables.update(write=False, tables={'step': TABLE}, root=root) == []


def test_check_finds_a_page_that_differs(root, monkeypatch, capsys):
  monkeypatch.setattr(tables, 'ROOT', root)
  monkeypatch.setattr(tables, 'TABLES', {'step': TABLE})
  old = (root / 'README.md').read_text()
  assert tables.main(['--check']) == 1
  assert 'README.md: out of date' in capsys.readouterr().out
  assert (root / 'README.md').read_text() == old
  assert tables.main([]) == 0
  assert tables.main(['--check']) == 0
  _write(root, [{'case': 'hstu', 'step_core_s': 1.0, 'tokens': 1}])
  assert tables.main(['--check']) == 1
  monkeypatch.setattr(tables, 'TABLES', {'stop': TABLE})
  assert tables.main(['--check']) == 1
  assert "README.md: There is no table 'step'" in capsys.readouterr().err


def test_where_selects_rows(root):
  table = {**TABLE, 'where': {'case': ('hstu', 'other'), 'machine': 'cpu2'}}
  text = tables.render('step', {'step': table}, root)
  assert text.count('\n|') == 2 and '| hstu | 0.69 |' in text


def test_names_select_and_call_rows(root):
  columns = (('what', 'name', ''), *TABLE['columns'])
  table = {**TABLE, 'columns': columns, 'names': {'hstu': 'HSTU, a step'}}
  text = tables.render('step', {'step': table}, root)
  assert '| HSTU, a step | hstu | 0.69 |' in text and 'sasrec' not in text


@pytest.mark.parametrize(
  'change, message',
  [
    ({'files': ('cpu2/gone',)}, 'reads benchmarks/results/cpu2/gone.json'),
    ({'where': {'case': 'x'}}, "'step' has no rows"),
    ({'columns': (('ms', 'ms', ''),)}, "the key 'ms' of column 'ms'; there"),
  ],
)
def test_mistakes_in_tables_are_errors(root, change, message):
  with pytest.raises(ValueError, match=message):
    tables.render('step', {'step': {**TABLE, **change}}, root)


def test_an_unknown_table_names_the_nearest(root):
  with pytest.raises(ValueError, match="'step'.*Did you mean 'steps'"):
    tables.update(write=True, tables={'steps': TABLE}, root=root)


@pytest.mark.parametrize(
  'text',
  [
    '<!-- table:step -->\nNo end.\n',
    'No begin.\n<!-- /table -->\n',
    '<!-- table:step -->\n\n<!-- table:step -->\n<!-- /table -->\n',
    '<!-- table: step -->\n<!-- /table -->\n',
  ],
)
def test_unpaired_markers_are_errors(root, text):
  (root / 'docs' / 'page.md').write_text(text)
  with pytest.raises(ValueError, match='docs/page.md: each table needs'):
    tables.update(write=True, tables={'step': TABLE}, root=root)
  assert (root / 'docs' / 'page.md').read_text() == text


def test_write_keeps_what_a_figure_depends_on(root):
  path = _write(root, [{'case': 1, 'x_ms': np.float32(0.5)}], notes='A note.')
  found = json.loads(path.read_text())
  assert found['name'] == 'train_step' and found['machine'] == 'cpu2'
  assert found['command'] == 'python -m benchmarks.train_step'
  assert found['rows'] == [{'case': 1, 'x_ms': 0.5}]
  assert found['notes'] == ['A note.'] and found['cpu']
  assert {'python', 'jax', 'jaxlib', 'numpy'} <= set(found['versions'])
  assert path == root / 'benchmarks' / 'results' / 'cpu2' / 'train_step.json'


def test_merge_replaces_rows_of_the_same_case(root, monkeypatch):
  monkeypatch.setattr(sys, 'argv', [*sys.argv, '--only=hstu'])
  rows = [{'case': 'hstu', 'step_core_s': 0.6}, {'case': 'new'}]
  path = _write(root, rows, merge=True)
  found = _rows(path)
  assert list(found) == ['hstu', 'sasrec|x', 'new']
  assert found['hstu'] == {'case': 'hstu', 'step_core_s': 0.6}
  assert found['sasrec|x']['command'] == 'python -m benchmarks.train_step'
  assert 'date' not in found['sasrec|x']
  command = json.loads(path.read_text())['command']
  assert command == 'python -m benchmarks.train_step --only=hstu'
  # A row remembers the run that measured it, however often others are merged.
  monkeypatch.setattr(sys, 'argv', [*sys.argv, '--again'])
  found = _rows(_write(root, [{'case': 'new'}], merge=True))
  assert found['sasrec|x']['command'] == 'python -m benchmarks.train_step'
  assert found['hstu']['command'] == command


def test_merge_needs_distinct_cases(root):
  with pytest.raises(ValueError, match='needs the key "case"'):
    _write(root, [{'x': 1}], merge=True)
  with pytest.raises(ValueError, match="two rows have the case 'a'"):
    _write(root, [{'case': 'a'}, {'case': 'a'}], merge=True)


def test_commands_hold_no_path_of_this_machine(monkeypatch, tmp_path):
  monkeypatch.setenv('GENREC_DATA', '/somewhere/data')
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'argv', [
    result.__file__.replace('result', 'speed'),
    '--path=/somewhere/data/ml-1m',
    '--workdir=/home/someone/run',
    f'{tmp_path}/configs/a.py',
    'configs/b.py:smoke',
    '--lr=1e-3',
    'two words',
  ])  # fmt: skip
  assert result.command() == (
    'python -m benchmarks.speed --path=$GENREC_DATA/ml-1m --workdir=.../run'
    " configs/a.py configs/b.py:smoke --lr=1e-3 'two words'"
  )


@pytest.mark.parametrize(
  'device, kind',
  [
    ('NVIDIA H200', 'h200'),
    ('NVIDIA H100 80GB HBM3', 'h100'),
    ('NVIDIA A100-SXM4-80GB', 'a100'),
    ('NVIDIA GeForce RTX 4090', 'rtx_4090'),
    ('TPU v5 lite', 'tpu_v5_lite'),
    ('TPU7x', 'tpu7x'),
    ('', 'unknown'),
  ],
)
def test_accelerator_kind(device, kind):
  assert result.accelerator_kind(device) == kind


def test_the_machine_under_test_is_a_cpu():
  assert result.machine_kind().startswith('cpu')


def test_core_timer_counts_processor_time_only():
  with result.CoreTimer() as timer:
    time.sleep(0.05)
    slept = timer.core_s
    while timer.core_s < slept + 0.02:
      pass
  assert 0 <= slept < 0.04
  assert timer.wall_s >= 0.06
  assert timer.core_s >= 0.02 and timer.core_s == timer.core_s


def test_examples_in_docstrings():
  assert doctest.testmod(result).failed == 0
