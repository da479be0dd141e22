"""No damage to a file of a run passes in silence: a sample, and known cases."""

import numpy as np
import pytest

from benchmarks import robustness_damage as damage
from tests.unsealing import unseal


@pytest.fixture(scope='module')
def targets(tmp_path_factory):
  return damage.make_targets(tmp_path_factory.mktemp('runs'), ['retrieval'])


def test_a_sample_of_all_damages(targets):
  rows = list(damage.walk(targets, 48, seed=3))
  assert len(rows) == 48
  assert {row['damage'] for row in rows} == set(damage.DAMAGES)
  assert not [row for row in rows if row['outcome'] not in damage.GOOD]
  everything = damage.summarize(rows)
  assert next(x for x in everything if x['case'] == 'all')['openings'] == 48


@pytest.mark.slow
def test_a_sample_of_damages_to_requests(tmp_path):
  targets = damage.make_targets(tmp_path, ['requests'])
  files = targets[0].files()
  for folder in ('data', 'requests', 'checkpoints'):
    assert any(file.startswith(f'{folder}/') for file in files)
  rows = list(damage.walk(targets, 9, seed=1))
  assert not [row for row in rows if row['outcome'] not in damage.GOOD]
  assert {'sentence', 'same'} <= {row['outcome'] for row in rows}


def flip(at: int, bit: int = 0):
  def change(path):
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)

  return change


def put(at: int, value: int):
  """Another number in a .npy file, whose seal is gone, as of old versions."""

  def change(path):
    values = np.load(path)
    values[at] = value
    np.save(path, values)
    unseal(path.parent)

  return change


def write(content: bytes):
  return lambda path: path.write_bytes(content)


# What gave other recommendations, or a traceback: (file, opening, change).
KNOWN = {
  'an item recommended twice': ('items/corpus.npy', 'predict', flip(-4)),
  'another count': ('items/counts.npy', 'load', flip(-8)),
  'another title': ('items/titles.json', 'predict', flip(-9)),
  'another item of a history': ('data/*/items.npy', 'predict', flip(-1)),
  'an item of no table': ('data/*/items.npy', 'predict', put(3, 10**6)),
  'an item below 0': ('data/*/items.npy', 'resume', put(3, -5)),
  'a user renamed': ('data/*/user_ids.npy', 'predict', flip(-4)),
  'another time': ('data/*/times.npy', 'evaluate', flip(-3)),
  'a category changed': ('data/*/extra-0.npy', 'resume', flip(-4)),
  'a bit of a header': ('data/*/items.npy', 'evaluate', flip(61, 6)),
  'a bit of the header of items': ('items/ids.npy', 'load', flip(61, 6)),
  'an empty column': ('data/*/items.npy', 'predict', write(b'')),
  'offsets of 256 GiB': ('data/*/offsets.npy', 'predict', put(4, 2**35)),
  'offsets that descend': ('data/*/offsets.npy', 'resume', put(4, -1)),
  'meta.json without keys': ('items/meta.json', 'predict', write(b'{}')),
  'meta.json of the data': ('data/*/meta.json', 'resume', write(b'{}')),
  'a setting of another value': ('config.json', 'load', flip(300, 1)),
  'a metric of another value': ('report.json', 'load', flip(-40, 1)),
}


@pytest.mark.parametrize('case', KNOWN)
def test_known_damage_is_a_sentence(targets, case):
  pattern, opening, change = KNOWN[case]
  workdir = targets[0]
  [path] = workdir.directory.glob(pattern)
  file = path.relative_to(workdir.directory).as_posix()
  row = damage.open_damaged(workdir, file, case, opening, {}, change)
  assert row['outcome'] == 'sentence', row
  assert f'{file} is damaged (' in row['told']


def test_a_restart_writes_the_items_again(targets):
  workdir = targets[0]
  wanted = damage.expect(workdir, 'resume')
  row = damage.open_damaged(
    workdir, 'items/corpus.npy', 'bit', 'resume', wanted, flip(-4)
  )
  assert row['outcome'] == 'healed'
  assert 'corpus.npy is damaged' in row['told']
