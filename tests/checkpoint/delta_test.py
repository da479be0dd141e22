"""Bases and deltas of a run: what a save holds, and what a restore gives."""

import pytest

from genrec_jax.checkpoint import chain, chunks, delta, manifest, policy
from genrec_jax.checkpoint import rows as rows_lib
from genrec_jax.checkpoint.manifest import CheckpointError
from genrec_jax.embedding import dirty_rows as dirty_lib
from tests.checkpoint import training
from tests.checkpoint.training import Training, steps


def entry(run, step):
  return manifest.read(run.checkpoints.directory / str(step))['rows']


def whole_steps(run):
  return [s for s, _ in entry(run, run.step)['parents']] + [run.step]


@pytest.mark.parametrize('most_bytes', [0, 1])
@pytest.mark.parametrize('name', policy.POLICIES)
def test_every_policy_restores_every_step_to_the_bit(
  name, most_bytes, tmp_path
):
  run = Training(tmp_path, keep=9, policy=name, most_bytes=most_bytes)
  for _ in range(5):
    run.train(2).save()
  run.checkpoints.wait()
  kinds = [entry(run, s)['kind'] for s in (2, 4, 6, 8, 10)]
  assert kinds[0] == 'base' and ('delta' in kinds) == (name != 'full')
  wanted = Training(tmp_path / 'never')
  for step in (2, 4, 6, 8, 10):
    Training(tmp_path).restore(step).assert_same(wanted.train(2))


@pytest.mark.parametrize('name', policy.POLICIES)
def test_a_run_started_again_goes_on_as_if_nothing_had_been(name, tmp_path):
  whole = Training(tmp_path / 'whole', keep=9, policy=name)
  for _ in range(6):
    whole.train().save()
  whole.checkpoints.wait()
  for part in range(3):
    run = Training(tmp_path / 'parts', keep=9, policy=name)
    if part:
      run.restore()
    for _ in range(2):
      run.train().save()
    run.checkpoints.wait()
  run.assert_same(whole)
  for step in range(1, 7):
    one, other = entry(run, step), entry(whole, step)
    assert one['kind'] == other['kind']
    assert one['history'] == other['history']


@pytest.mark.parametrize('most_bytes', [0, 1])
@pytest.mark.parametrize('name', ['one_shot', 'consecutive', 'intermittent'])
def test_what_a_failed_save_has_lost_is_in_the_next(
  name, most_bytes, tmp_path, monkeypatch
):
  run = Training(tmp_path, keep=9, policy=name, most_bytes=most_bytes)
  run.train().save()
  run.checkpoints.wait()
  with monkeypatch.context() as broken:
    broken.setattr(rows_lib, 'write_chunks', training.disk_full)
    run.train().save()
    run.train()
    with pytest.raises(CheckpointError, match='saving step 2 .* disk is full'):
      run.save()  # which is not tried: the failure comes first
    run.save()
    with pytest.raises(CheckpointError, match='saving step 3 .* disk is full'):
      run.checkpoints.wait()
  run.train().save()
  run.checkpoints.wait()
  assert entry(run, 4)['kind'] == 'delta'
  assert whole_steps(run) == [1, 4] and steps(run.checkpoints) == [1, 4]
  Training(tmp_path).restore().assert_same(Training('').train(4))


def test_a_base_that_fails_is_made_again(tmp_path, monkeypatch):
  run = Training(tmp_path, policy='consecutive')
  with monkeypatch.context() as broken:
    broken.setattr(rows_lib, 'write_chunks', training.disk_full)
    run.train().save()
    with pytest.raises(CheckpointError, match='the disk is full'):
      run.checkpoints.wait()
  run.train().save()
  run.checkpoints.wait()
  assert entry(run, 2)['kind'] == 'base'


def test_retention_keeps_what_a_delta_needs(tmp_path):
  run = Training(tmp_path / 'a', keep=1, policy='one_shot')
  for _ in range(4):
    run.train().save()
  run.checkpoints.wait()
  assert steps(run.checkpoints) == [1, 4]
  run = Training(tmp_path / 'b', keep=2, policy='consecutive', full_every=3)
  for _ in range(8):
    run.train().save()
  run.checkpoints.wait()  # bases are 1, 4 and 7
  assert steps(run.checkpoints) == [7, 8]
  run = Training(tmp_path / 'c', keep=2, policy='consecutive', full_every=3)
  for _ in range(7):
    run.train().save()
  run.checkpoints.wait()
  assert steps(run.checkpoints) == [4, 5, 6, 7]


def test_a_base_of_the_same_number_is_not_taken_for_another(tmp_path):
  run = Training(tmp_path / 'a', keep=9, policy='one_shot')
  run.train().save()
  run.train().save()
  run.checkpoints.wait()
  other = Training(tmp_path / 'b', policy='one_shot').train()
  other.arrays['user'] += 1
  other.save()
  other.checkpoints.wait()
  (tmp_path / 'a/1').rename(tmp_path / 'was')
  (tmp_path / 'b/1').rename(tmp_path / 'a/1')
  with pytest.raises(CheckpointError, match='needs step 1 as it was'):
    Training(tmp_path / 'a').restore(2)
  # Without a name the newest that is whole is taken, which is the base.
  log = []
  assert Training(tmp_path / 'a', log.append).restore().step == 1
  assert 'step 2 skipped, damaged: it needs step 1' in log[0]
  # And a run that had seen the old one builds nothing on the new one.
  run.train().save()
  run.checkpoints.wait()
  assert entry(run, 3)['kind'] == 'base'


def test_a_missing_base_is_damage(tmp_path):
  run = Training(tmp_path, keep=9, policy='consecutive')
  for _ in range(3):
    run.train().save()
  run.checkpoints.wait()
  (tmp_path / '2').rename(tmp_path / 'gone')
  with pytest.raises(CheckpointError, match='it needs step 2, which is not'):
    run.checkpoints.restore({}, step=3, partial=True)
  assert [b['step'] for b in chain.read_chain(tmp_path, 1)] == [1]


def test_rows_that_change_after_they_were_verified_are_refused(tmp_path):
  run = Training(tmp_path, policy='consecutive').train()
  run.save()
  run.checkpoints.wait()
  (path,) = tmp_path.glob('1/rows/item/*.npz')
  raw = bytearray(path.read_bytes())
  raw[len(raw) // 2] ^= 1
  verify = chain.verify_chain

  def then_flip(*args):
    found = verify(*args)
    path.write_bytes(bytes(raw))
    return found

  with pytest.MonkeyPatch.context() as m:
    m.setattr(chain, 'verify_chain', then_flip)
    with pytest.raises(CheckpointError, match='contents of rows/item/.*ago'):
      Training(tmp_path).restore()


def test_bits_follow_the_restores_to_be_expected():
  auto = delta.DeltaOptions(bits=delta.AUTO, expected_restores=1)
  assert [auto.encoding(n).bits for n in (0, 1, 2, 9)] == [4, 4, 8, 8]
  # Without a plan, and of what is published.
  assert delta.DeltaOptions(bits=delta.AUTO).encoding(0).bits == 8
  few = delta.DeltaOptions(bits=delta.AUTO, method='kmeans')
  assert few.encoding(0) == chunks.RowEncoding(8, 'adaptive')
  assert delta.DeltaOptions(bits=4).encoding(99).bits == 4
  assert delta.DeltaOptions(bits=4, expected_restores=9).encoding(10).bits == 8
  assert (
    delta.DeltaOptions(bits=32, expected_restores=1).encoding(10).bits == 32
  )
  kmeans = delta.DeltaOptions(bits=4, method='kmeans', expected_restores=1)
  assert kmeans.encoding(1).method == 'kmeans'
  assert kmeans.encoding(2) == chunks.RowEncoding(8, 'adaptive')


@pytest.mark.parametrize(
  'wrong, message',
  [
    ({'policy': 'daily'}, "checkpoint policy is 'daily'"),
    ({'bits': 16}, 'checkpoint bits is 16'),
    ({'bits': 8, 'method': 'kmeans'}, "checkpoint method kmeans .* 'adaptive'"),
    ({'chunk_rows': 0}, 'chunk_rows must be at least 1'),
  ],
)
def test_options_that_cannot_be_are_refused(wrong, message):
  with pytest.raises(ValueError, match=message):
    delta.DeltaOptions(**wrong)


def test_quantised_rows_move_no_more_once_they_are_restored(tmp_path):
  run = Training(tmp_path, keep=9, policy='consecutive', bits=4).train()
  run.save()
  run.checkpoints.wait()
  again = Training(tmp_path, keep=9, policy='consecutive', bits=4).restore()
  for _ in range(2):
    again.train().save()
  again.checkpoints.wait()
  held = Training(tmp_path).restore()
  moved = Training(tmp_path).restore(1).train(2)
  for name, dirty_rows in again.dirty_rows.items():
    assert not (dirty_rows & dirty_lib.SINCE_SAVE).any()
    still = ~(moved.dirty_rows[name] > 0)
    assert (held.arrays[name][still] == moved.arrays[name][still]).all()


def test_a_run_of_two_bits_goes_on_with_those_that_are_chosen(tmp_path):
  """Earlier versions chose 2 bits where `AUTO` chooses 4 or 8 now."""
  run = Training(tmp_path, keep=9, policy='consecutive', bits=2).train()
  run.save()
  run.checkpoints.wait()
  auto = dict(bits=delta.AUTO, expected_restores=1)
  again = Training(tmp_path, keep=9, policy='consecutive', **auto).restore()
  again.train().save()
  again.checkpoints.wait()
  rows = [again.checkpoints.read_manifest(step)['rows'] for step in (1, 2)]
  assert [(x['kind'], x['bits']) for x in rows] == [('base', 2), ('delta', 4)]
  assert Training(tmp_path).restore().step == 2
