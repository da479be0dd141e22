"""A workdir that is deleted while a run writes to it ends the run."""

import shutil
import time

import pytest

from genrec_jax.progress import Progress
from genrec_jax.train.workdir_watch import WorkdirGoneError
from tests.train.tiny_run import train


def delete(workdir):
  shutil.rmtree(workdir)


def replace(workdir):
  shutil.rmtree(workdir)
  workdir.mkdir()
  (workdir / 'metrics.jsonl').write_text('')


def delete_checkpoints(workdir):
  shutil.rmtree(workdir / 'checkpoints')


def delete_curve(workdir):
  (workdir / 'metrics.jsonl').unlink()


@pytest.mark.parametrize(
  'harm, message',
  [
    (delete, 'run was deleted during the run, after step 6: what was in it'),
    (replace, 'run was replaced by another during the run, after step 6: '),
    (
      delete_checkpoints,
      'checkpoints was deleted during the run, after step 6: what was in it',
    ),
    (delete_curve, 'metrics.jsonl was deleted during the run, after step 6: '),
  ],
)
def test_a_deleted_workdir(tmp_path, monkeypatch, harm, message):
  update = Progress.update

  def update_and_harm(self, step, **shown):
    update(self, step, **shown)
    if step == 7:
      # A save in another thread would write between the files that go.
      end = time.monotonic() + 30
      while not (tmp_path / 'run/checkpoints/4/MANIFEST.json').exists():
        assert time.monotonic() < end
        time.sleep(0.01)
      harm(tmp_path / 'run')

  monkeypatch.setattr(Progress, 'update', update_and_harm)
  with pytest.raises(WorkdirGoneError, match=message):
    train(tmp_path / 'run', 'train.steps=10')
  left = [p.name for p in tmp_path.glob('run/*')]
  assert 'report.json' not in left
  assert ('checkpoints' in left) == (harm is delete_curve)
