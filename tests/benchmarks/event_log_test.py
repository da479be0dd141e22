import numpy as np

from benchmarks import event_log


def test_events_are_skewed_ordered_and_seeded():
  chunks = list(event_log.generate_events(1000, 50, 40, seed=1, chunk_rows=300))
  assert [len(c) for c in chunks] == [300, 300, 300, 100]
  time = np.concatenate([c.time for c in chunks])
  assert np.all(np.diff(time) >= 0)
  item = np.concatenate([c.item for c in chunks])
  user = np.concatenate([c.user for c in chunks])
  assert item.min() >= 1 and item.max() <= 40
  assert user.min() >= 1 and user.max() <= 50
  counts = np.bincount(item, minlength=41)[1:]
  assert counts[0] > 3 * counts[5] > 0
  again = next(event_log.generate_events(1000, 50, 40, seed=1, chunk_rows=300))
  np.testing.assert_array_equal(again.item, chunks[0].item)
  assert chunks[1].where(2) == 'generated event 302'
