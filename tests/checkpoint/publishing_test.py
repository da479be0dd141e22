"""What a training publishes, followed, against whole saves of every step."""

import pathlib
import re

import jax
import numpy as np
import pytest

from genrec_jax.checkpoint import chain
from genrec_jax.checkpoint.follow import Follower
from genrec_jax.config import retrieval
from tests.checkpoint import object_store
from tests.checkpoint.laid_out import Setting
from tests.checkpoint.published import Published, assert_is
from tests.checkpoint.training import STACKS, Training

pytestmark = pytest.mark.usefixtures('no_power_cut')

DOCS = pathlib.Path(__file__).parents[2] / 'docs' / 'publishing.md'


def publishing(directory, **options):
  options = {'policy': 'consecutive', 'full_every': 4, **options}
  return Training(directory, published=True, **options)


def assert_holds(follower, arrays):
  assert set(follower.tables) == set(arrays)
  for name, wanted in arrays.items():
    np.testing.assert_array_equal(follower.table(name), np.asarray(wanted))


def test_a_training_is_followed_while_it_removes_old_steps(tmp_path, log):
  run = publishing(tmp_path / 'run' / 'published', keep=1)
  whole = Training(tmp_path / 'whole', keep=99, policy='full')
  rng = np.random.default_rng(0)
  seen = []
  with Follower(tmp_path / 'run', tmp_path / 'copy', log=log) as follower:
    for _ in range(8):
      for training in (run, whole):
        training.train().save()
        training.checkpoints.wait()
      if rng.random() < 0.6:
        seen += follower.update()
        restored = Training(tmp_path / 'whole').restore(follower.step)
        assert_holds(follower, restored.arrays)
  assert 2 < len(set(seen)) < 8 and seen == sorted(seen)


def test_fewer_bits_are_read_as_a_restore_does(tmp_path, log):
  run = publishing(tmp_path / 'published', keep=9, bits=4)
  shapes = {
    n: jax.ShapeDtypeStruct(x.shape, x.dtype) for n, x in run.arrays.items()
  }
  with Follower(tmp_path, tmp_path / 'copy', log=log) as follower:
    for _ in range(3):
      run.train(2).save()
      run.checkpoints.wait()
      follower.update()
      wanted = run.checkpoints.restore_rows(run.step, STACKS, shapes, {})
      assert_holds(follower, wanted.arrays)


@pytest.mark.parametrize('which', ['rows', 'columns', 'hosts'])
def test_tables_of_any_layout(which, tmp_path, log):
  setting, whole = Setting(which), Setting('whole')
  directory = tmp_path / 'published'
  setting.save(directory, 1)
  arrays, slots = setting.host
  moved = {n: x + np.float32(0.5) for n, x in arrays.items()}
  setting.arrays, setting.slots = setting.put((moved, slots))
  parents = [[1, chain.read_identity(directory / '1')]]
  setting.save(directory, 2, 'delta', setting.dirty_rows(7), parents)
  with Follower(tmp_path, tmp_path / 'copy', log=log) as follower:
    assert follower.update() == [1, 2]
    for stack in whole.stacks.values():
      for piece in stack.pieces:
        ids = np.arange(piece.rows, dtype=np.int32)
        rows = whole.host[0][stack.name][stack.index(piece, ids)]
        np.testing.assert_array_equal(follower.table(piece.table), rows + 0.5)


def test_the_examples_of_the_guide(tmp_path, monkeypatch, capsys):
  run = publishing(tmp_path / 'run' / 'published')
  for step in (500, 1000, 1500):
    run.step = step - 1
    run.train().save()
    run.checkpoints.wait()
  monkeypatch.chdir(tmp_path)
  examples = re.findall(r'```python\n(.*?)```', DOCS.read_text(), re.DOTALL)
  assert len(examples) == 5
  found = {}
  packed = [x for x in examples if "'packed'" in x]
  for example in examples:
    if example not in packed:
      exec(compile(example, str(DOCS), 'exec'), found)
  found['follower'].close()
  assert found['steps'] == [500, 1000, 1500]
  assert found['dense'] == {'step': 1500}
  wanted = np.asarray(run.arrays['item'])
  np.testing.assert_array_equal(found['rows'], wanted[[3, 7]])
  np.testing.assert_array_equal(found['table'], wanted)
  shown = re.findall(r'^    (step .*)', DOCS.read_text(), re.MULTILINE)
  said = capsys.readouterr().out.splitlines()[: len(shown)]
  numbers = re.compile(r'[\d,.]+')
  assert [numbers.sub('#', line) for line in said] == [
    numbers.sub('#', line) for line in shown
  ]


def test_numpy_alone_reads_packed_rows(tmp_path, log, monkeypatch):
  run = publishing(tmp_path / 'run' / 'published')
  run.train().save()
  run.checkpoints.wait()
  packed = {'item': 'tbe_int4'}
  with Follower(
    tmp_path / 'run', tmp_path / 'copy', log=log, packed=packed
  ) as follower:
    follower.update()
    wanted = follower.rows('item', [3, 7])
  monkeypatch.chdir(tmp_path)
  examples = re.findall(r'```python\n(.*?)```', DOCS.read_text(), re.DOTALL)
  (example,) = [x for x in examples if "'packed'" in x]
  found = {}
  exec(compile(example, str(DOCS), 'exec'), found)
  np.testing.assert_array_equal(found['numbers'], wanted)


def test_every_key_is_named():
  text = DOCS.read_text()
  for key in retrieval().checkpoint.publish:
    assert f'`{key}`' in text


def test_a_store_is_followed_like_a_disk(tmp_path, log):
  published = Published(tmp_path / 'published').line(1, 2)
  with object_store.mounted() as store:

    def upload(*names):
      for path in sorted(tmp_path.joinpath('published').rglob('*')):
        if path.is_file() and (not names or path.name in names):
          key = path.relative_to(tmp_path).as_posix()
          store.objects[f'bucket/run/{key}'] = path.read_bytes()

    with Follower('s3://bucket/run', tmp_path / 'copy', log=log) as follower:
      assert follower.update() == []
      upload()
      assert follower.update() == [1, 2]
      published.delta(3)
      upload()
      del store.objects['bucket/run/published/3/MANIFEST.json']
      assert follower.update() == []
      upload('MANIFEST.json')
      assert follower.update() == [3]
      assert_is(follower, published.whole[3])
      published.delta(4)
      upload()
      store.objects['bucket/run/published/4/state/d'] = b''
      assert follower.update() == [] and 'state/d has 0' in follower.refused[4]
