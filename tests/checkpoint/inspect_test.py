import json
import shutil
import subprocess
import sys

import pytest

from genrec_jax.checkpoint import inspect, manifest
from genrec_jax.checkpoint.chunks import RowEncoding
from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.formatting import format_bytes
from tests.checkpoint import checkpoint_content as content
from tests.checkpoint import rows_content

# --- Whole checkpoints


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  path = tmp_path_factory.mktemp('saved')
  with CheckpointManager(path / 'checkpoints', keep=9) as checkpoints:
    for step in (10, 20, 30):
      checkpoints.save(step, content.state(step), data=content.iterator())
  return path


@pytest.fixture
def workdir(saved, tmp_path):
  return shutil.copytree(saved, tmp_path, dirs_exist_ok=True)


def chunk_of(workdir, step):
  files = (workdir / 'checkpoints' / str(step) / 'state').rglob('*')
  return max((f for f in files if f.is_file()), key=lambda f: f.stat().st_size)


def test_lists_steps_and_the_arrays_of_the_newest(workdir, capsys):
  assert inspect.main([str(workdir), '--contents']) == 0
  lines = capsys.readouterr().out.splitlines()
  assert lines[0] == f'{workdir / "checkpoints"}:'
  assert [line.split()[0] for line in lines[1:5]] == ['step', '10', '20', '30']
  assert all(line.endswith('  whole') for line in lines[2:5])
  assert lines[6] == 'step 30: 5 dense arrays; with data iterator'
  assert '  tables/bfloat16  bfloat16[64,8]' in lines
  assert lines[-2:] == ['host values:', 'null']
  assert inspect.main([str(workdir / 'checkpoints'), '--step=10']) == 0
  out = capsys.readouterr().out
  assert 'step 10: 5 dense arrays' in out and 'bfloat16' not in out


def test_says_what_is_wrong(workdir, capsys):
  chunk = chunk_of(workdir, 20)
  raw = bytearray(chunk.read_bytes())
  raw[len(raw) // 2] ^= 4
  chunk.write_bytes(raw)
  (workdir / 'checkpoints' / '30' / manifest.NAME).unlink()
  assert inspect.main([str(workdir)]) == 1
  out = capsys.readouterr().out
  assert 'damaged: the contents of state/' in out
  assert 'half-written: it has no MANIFEST.json' in out
  assert 'step 10: 5 dense arrays' in out  # the newest whole one


def test_quick_reads_no_contents(workdir, capsys):
  chunk = chunk_of(workdir, 20)
  chunk.write_bytes(bytes(chunk.stat().st_size))
  assert inspect.main([str(workdir), '--quick']) == 0
  assert 'sizes as written' in capsys.readouterr().out
  chunk.unlink()
  assert inspect.main([str(workdir), '--quick']) == 1


def test_a_half_written_newest_may_be_a_save_under_way(workdir):
  (workdir / 'checkpoints' / '30' / manifest.NAME).unlink()
  assert inspect.main([str(workdir)]) == 0


def test_no_checkpoints_or_no_such_step(workdir, tmp_path, capsys):
  with pytest.raises(SystemExit):
    inspect.main([str(tmp_path / 'elsewhere')])
  assert 'no checkpoints in' in capsys.readouterr().err
  with pytest.raises(SystemExit):
    inspect.main([str(workdir), '--step=11'])
  assert 'only 10, 20, 30' in capsys.readouterr().err


# --- Checkpoints by rows


@pytest.fixture(scope='module')
def by_rows(tmp_path_factory):
  """A base, 4 and 6 upon it, 8 upon 2 and 4; published and best beside."""
  path = tmp_path_factory.mktemp('by_rows')
  steps = path / 'checkpoints'
  rows_content.write(steps, 2)
  for step, parents in ((4, [2]), (6, [2]), (8, [2, 4])):
    rows_content.write(steps, step, parents, RowEncoding(4, slots='float16'))
  rows_content.write(path / 'published', 3)
  return path


@pytest.fixture
def damageable(by_rows, tmp_path):
  return shutil.copytree(by_rows, tmp_path / 'run')


def printed(capsys, *arguments, status=0):
  assert inspect.main([*map(str, arguments)]) == status
  return capsys.readouterr().out.splitlines()


def cells(lines, step):
  """Cells of the line of a step in the first table."""
  return next(x for x in map(str.split, lines) if x and x[0] == str(step))


def test_the_chain_and_its_sizes(by_rows, capsys):
  lines = printed(capsys, by_rows)
  assert max(map(len, lines)) <= 100
  assert cells(lines, 2)[1:5] == ['base', '-', '-', '32']
  assert cells(lines, 6)[1:3] == ['delta', '2']
  assert cells(lines, 6)[4] == '4'
  assert [x.rstrip(',') for x in cells(lines, 8)[1:4]] == ['delta', '2', '4']
  assert f'{by_rows / "published"}:' in lines
  assert cells(lines, 3)[1] == 'base'

  def of(step):
    sizes = manifest.read(by_rows / 'checkpoints' / str(step))['files']
    rows = sum(n for name, (n, _) in sizes.items() if name.startswith('rows/'))
    return rows, sum(n for n, _ in sizes.values())

  # rows, dense and what a restore reads, of step 6
  (base, all_of_base), (rows, everything) = of(2), of(6)
  sizes = [rows, everything - rows, all_of_base + everything]
  text = ' '.join(cells(lines, 6))
  assert ' '.join(map(format_bytes, sizes)) in text
  assert f' {rows / base:.1%} ' in text


def test_a_step_by_rows(by_rows, capsys):
  lines = printed(capsys, by_rows, '--step=6')
  start = next(i for i, x in enumerate(lines) if x.startswith('step 6: '))
  assert lines[start] == (
    'step 6: delta, rows at 4 bits (adaptive), slots float16; 1 dense array; '
    'no data iterator'
  )
  changed = int((rows_content.state(6)[2]['s'][:90] > 0).sum())
  item, user = (line.split() for line in lines[start + 3 : start + 5])
  assert (
    item
    == (
      f'item 90 34 float32 some mean (element), sum (row), count 6 {changed} '
      f'{changed / 90:.1%}'
    ).split()
  )
  assert user[-2:] == ['0', '0.0%']
  text = '\n'.join(lines[start + 6 :])
  base, delta = (
    len(list((by_rows / 'checkpoints' / s / 'rows').rglob('*.npz')))
    for s in ('2', '6')
  )
  assert f'a restore of step 6 compares {base + delta + 2} files' in text
  assert f'step 2  rows   {base} files' in text
  assert f'step 6  rows   {delta} files' in text
  assert 'by the rule of intermittent the next is a delta, since F = ' in text


def test_the_rule_of_the_next_base(tmp_path, capsys):
  rows_content.write(tmp_path, 2)
  rows_content.write(tmp_path, 40, [2])  # nearly everything has changed
  assert 'the next is a delta, since F = 1' in printed(capsys, tmp_path)[-1]
  rows_content.write(tmp_path, 41, [2], history=[0.01] * 12)
  *_, sizes, rule = printed(capsys, tmp_path)
  assert sizes.startswith('13 deltas since the base of step 2')
  assert 'the next is a base, since F = 1' in rule and '<= I = 14 x' in rule


def test_quick_looks_into_no_files_of_rows(damageable, capsys):
  files = (damageable / 'checkpoints' / '8' / 'rows').rglob('*.npz')
  for file in files:
    file.write_bytes(bytes(file.stat().st_size))
  lines = printed(capsys, damageable, '--quick', '--step=8')
  assert any(line.startswith('step 8: delta') for line in lines)
  assert 'held here' not in '\n'.join(lines)


def test_a_step_without_its_base_is_damaged(damageable, capsys):
  shutil.rmtree(damageable / 'checkpoints' / '4')
  lines = printed(capsys, damageable, '--directory=checkpoints', status=1)
  assert cells(lines, 6)[-1] == 'whole'
  assert cells(lines, 8)[-1] == 'damaged'
  assert '  step 8: damaged: it needs step 4, which is not there' in lines
  assert any(line.startswith('step 6: delta') for line in lines)  # the newest


def test_a_step_upon_another_base_is_damaged(damageable, capsys):
  steps = damageable / 'checkpoints'
  shutil.rmtree(steps / '4')
  rows_content.write(steps, 4, [2])  # at 32 bits
  out = '\n'.join(printed(capsys, damageable, status=1))
  assert (
    '  step 8: damaged: it needs step 4 as it was, and that is another one'
  ) in out
  assert 'step 6: damaged' not in out


def test_a_damaged_base_is_read_once_and_damages_all(
  damageable, capsys, monkeypatch
):
  file = damageable / 'checkpoints' / '2' / 'rows' / 'item' / '0-00000.npz'
  raw = bytearray(file.read_bytes())
  raw[-1] ^= 1
  file.write_bytes(raw)
  compared, original = [], manifest.verify

  def verify(path, **how):
    compared.append(path.name)
    return original(path, **how)

  monkeypatch.setattr(manifest, 'verify', verify)
  lines = printed(capsys, damageable, '--directory=checkpoints', status=1)
  assert sorted(compared) == ['2', '4', '6', '8']
  reason = 'damaged: the contents of rows/item/0-00000.npz have changed'
  assert f'  step 2: {reason}' in lines
  for step in (4, 6, 8):
    assert (
      f'  step {step}: damaged: it needs step 2, which is {reason}' in lines
    )
  # All of the run, then: what is published is whole.
  lines = printed(capsys, damageable, status=1)
  assert cells(lines, 3)[-1] == 'whole'


def test_one_directory_of_several(by_rows, capsys):
  lines = printed(capsys, by_rows, '--directory=published')
  assert lines[0] == f'{by_rows / "published"}:'
  assert any(line.startswith('step 3: base') for line in lines)
  with pytest.raises(SystemExit):
    inspect.main([str(by_rows), '--directory=best'])
  assert f'no checkpoints in {by_rows / "best"}' in capsys.readouterr().err


def test_amounts_have_three_digits():
  amounts = [format_bytes(n) for n in (0, 999, 1000, 99_960, 1.27e9)]
  assert amounts == ['0 B', '999 B', '1.00 kB', '100 kB', '1.27 GB']
  assert format_bytes(999_600) == '1.00 MB'
  assert format_bytes(2.5e15) == '2500 TB'


def test_needs_no_jax(workdir, by_rows):
  module = 'genrec_jax.checkpoint.inspect'
  for path in (workdir, by_rows):
    arguments = json.dumps([str(path), '--contents'])
    command = (
      f'import sys, runpy; sys.argv[1:] = {arguments}\n'
      f'try: runpy.run_module({module!r}, run_name="__main__")\n'
      'except SystemExit as e: assert e.code == 0, e.code\n'
      'assert "jax" not in sys.modules and "orbax" not in sys.modules'
    )
    subprocess.run([sys.executable, '-c', command], check=True, timeout=30)
