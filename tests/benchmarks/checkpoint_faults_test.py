"""The benchmark that injects faults sees what it says it would see."""

import pytest

from benchmarks import checkpoint_faults
from benchmarks import checkpoint_faults_kill as kill
from benchmarks.checkpoint_faults_kill import (
  EARLIER,
  LAST,
  OTHERWISE,
  REFUSED,
  WRONG,
  Outcome,
)
from benchmarks.checkpoint_faults_run import Run, State
from genrec_jax.checkpoint import manifest
from genrec_jax.checkpoint import rows as rows_lib
from genrec_jax.checkpoint.manifest import CheckpointError


def test_smoke_damages_files_and_tells(tmp_path, rows, capsys):
  checkpoint_faults.main([
    *('--smoke', '--parts', 'damage', '--policies', 'consecutive'),
    *('--results', str(tmp_path)),
  ])  # fmt: skip
  found = rows('checkpoint_faults')
  of = found['bit flipped, step by name']
  assert of['policy'] == 'all' and of['trials'] == of[REFUSED] > 0
  assert found['bit flipped, step by name/consecutive']['trials'] > 0
  assert all(row[WRONG] == row[OTHERWISE] == 0 for row in found.values())
  assert 'bit flipped' in capsys.readouterr().out


def test_a_table_of_two_steps_is_found_wrong(tmp_path, monkeypatch):
  run = Run(tmp_path, life=1, keep=9, policy='consecutive')
  for _ in range(3):
    run.train()
    run.save()
  run.checkpoints.close()
  names = [tmp_path / step / 'rows/user/0-00000.npz' for step in ('2', '3')]
  one, other = (name.read_bytes() for name in names)
  names[0].write_bytes(other)
  names[1].write_bytes(one)
  with pytest.raises(CheckpointError, match='damaged'):
    Run(tmp_path).restore(3)
  # As if the library compared nothing.
  monkeypatch.setattr(manifest, 'verify', lambda d, **_: manifest.read(d))
  monkeypatch.setattr(
    rows_lib,
    'verify_file',
    lambda step_dir, name, _: (step_dir / name).read_bytes(),
  )
  error = Run(tmp_path).restore(3)
  assert error == 'step 3: user is not what it was'


@pytest.mark.parametrize('policy', ['one_shot', 'consecutive'])
def test_a_run_restores_what_it_has_saved(policy, tmp_path):
  run = Run(tmp_path, life=3, policy=policy)
  for _ in range(3):
    run.train(2)
    run.save()
  run.checkpoints.close()
  again = Run(tmp_path, life=4, policy=policy)
  assert again.restore() is None
  assert again.state.lives == [3] * 6
  again.train()
  again.save()
  again.checkpoints.close()
  assert again.restore() is None and again.state.lives == [3] * 6 + [4]


def test_other_lives_are_other_states():
  one, other = State([1, 1, 2]), State([1, 2, 2])
  for name, array in one.arrays.items():
    if not name.startswith('dense/'):  # all of that moves in every step
      assert (array != other.arrays[name]).any(), name


def test_a_restore_is_judged_by_what_was_made():
  assert kill.judged(None, [1, 1, 2], [1, 1, 2, 2], 3) == (LAST, '')
  assert kill.judged(None, [1, 1], [1, 1, 2, 2], 3)[0] == EARLIER
  assert kill.judged(None, [1, 2, 2], [1, 1, 2, 2], 3)[0] == WRONG
  assert kill.judged('user differs', [1], [1], 1) == (WRONG, 'user differs')


def test_faults_are_added_up_over_parts_and_policies(
  tmp_path, monkeypatch, rows
):
  def measured(policy, *outcomes):
    found = [Outcome('flood', policy, one) for one in outcomes]
    monkeypatch.setattr(
      checkpoint_faults,
      'measure',
      lambda args: [(found, {('flood', policy): len(found)})],
    )
    checkpoint_faults.main(['--results', str(tmp_path)])

  measured('full', LAST, EARLIER)
  with pytest.raises(SystemExit, match='1 trials ended as none may'):
    measured('one_shot', LAST, WRONG)
  measured('full', LAST, EARLIER, LAST)  # once more, instead
  found = rows('checkpoint_faults')
  assert set(found) == {'flood', 'flood/full', 'flood/one_shot'}
  assert found['flood/full']['trials'] == 3
  assert found['flood']['trials'] == found['flood']['failed_saves'] == 5
  assert [found['flood'][end] for end in kill.OUTCOMES] == [3, 1, 0, 1, 0]
