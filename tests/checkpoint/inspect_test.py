import subprocess
import sys

import pytest

from genrec_jax.checkpoint import inspect, manifest
from genrec_jax.checkpoint.full import Checkpoints
from tests.checkpoint import checkpoint_content as content


@pytest.fixture
def workdir(tmp_path):
  with Checkpoints(tmp_path / 'checkpoints', keep=9) as checkpoints:
    for step in (10, 20, 30):
      checkpoints.save(step, content.state(step), data=content.iterator())
  return tmp_path


def chunk_of(workdir, step):
  files = (workdir / 'checkpoints' / str(step) / 'state').rglob('*')
  return max((f for f in files if f.is_file()), key=lambda f: f.stat().st_size)


def test_lists_steps_and_the_arrays_of_the_newest(workdir, capsys):
  assert inspect.main([str(workdir)]) == 0
  lines = capsys.readouterr().out.splitlines()
  assert [line.split()[0] for line in lines[:4]] == ['step', '10', '20', '30']
  assert all(line.endswith('  whole') for line in lines[1:4])
  assert lines[5] == 'step 30: 5 arrays, data iterator: yes, host: None'
  assert '  tables/bfloat16  bfloat16[64,8]' in lines
  assert inspect.main([str(workdir / 'checkpoints'), '--step=10']) == 0
  assert 'step 10: 5 arrays' in capsys.readouterr().out


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
  assert 'step 10: 5 arrays' in out  # the newest whole one


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


def test_needs_no_jax(workdir):
  module = 'genrec_jax.checkpoint.inspect'
  command = (
    f'import sys, runpy; sys.argv[1:] = [{str(workdir)!r}]\n'
    f'try: runpy.run_module({module!r}, run_name="__main__")\n'
    'except SystemExit as e: assert e.code == 0, e.code\n'
    'assert "jax" not in sys.modules'
  )
  subprocess.run([sys.executable, '-c', command], check=True, timeout=30)
