"""What other libraries made of 60 rows, as a file has it, and what we make.

`python -m benchmarks.numerics_peers --golden` writes the file, and without
`--golden` compares a thousand times as many numbers.
"""

import pathlib

import numpy as np
import pytest

from benchmarks import numerics_peers

GOLDEN = pathlib.Path(__file__).with_name('peers.npz')


@pytest.fixture(scope='module')
def rows():
  found = dict(np.load(GOLDEN))
  prefix = f'{numerics_peers.DATA}/'
  data = {
    key.removeprefix(prefix): found.pop(key)
    for key in [*found]
    if key.startswith(prefix)
  }
  assert len(data) == 10 and 'specials' in data
  with np.errstate(all='ignore'):
    return list(numerics_peers.compare(found, data))


@pytest.mark.parametrize(
  'peer, cases', [('microxcaling', 18), ('torchao', 20), ('fbgemm', 7)]
)
def test_no_number_differs_without_a_known_reason(rows, peer, cases):
  of_peer = [row for row in rows if row['peer'] == peer]
  assert len(of_peer) == cases and all(row['numbers'] for row in of_peer)
  for row in of_peer:
    assert not row['differ'] and not row['scales_differ'], row['case']
    assert row['known'] < 0.2 * row['numbers'], row['case']
