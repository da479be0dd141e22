import numpy as np
import pytest

from genrec_jax.data.ranking import clicks, datasets


def drawn(**changes):
  options = dict(rows=20_000, fields=5, values=12, numbers=2, terms=3)
  log = clicks.ClickLog(**(options | changes))
  columns = [
    np.concatenate(c) for c in zip(*clicks.generate_arrays(log), strict=True)
  ]
  return log, *columns


def test_a_longer_log_begins_with_a_shorter_one():
  _, *short = drawn(rows=5_000)
  _, *long = drawn(rows=9_000)
  for a, b in zip(short, long, strict=True):
    np.testing.assert_array_equal(a, b[:5_000])
  log = clicks.ClickLog(rows=9_000, fields=5, values=12, numbers=2, terms=3)
  middle = clicks.true_probabilities(log, 4_000, 4_500)
  np.testing.assert_array_equal(middle, long[3][4_000:4_500])
  assert not np.array_equal(short[0], drawn(rows=5_000, seed=1)[1])


def test_orders_share_the_variance_and_are_not_seen_by_lower_ones():
  log, values, numbers, _, _ = drawn(rows=100_000, orders=(1, 2, 3))
  planted = clicks.PlantedSignal(log)
  logits = planted.signal(values, numbers) - clicks.BIAS
  assert abs(logits.mean()) < 0.05
  assert abs(logits.std() - log.signal) < 0.1
  third = clicks.PlantedSignal(
    clicks.ClickLog(**(vars(log) | {'orders': (3,)}))
  )
  logits = third.signal(values, numbers) - clicks.BIAS
  assert abs(logits.std() - log.signal) < 0.1
  # The mean over the rows of a value, or of two, is the mean of all.
  for field in range(log.fields):
    means = [logits[values[:, field] == v].mean() for v in range(3)]
    assert np.abs(means).max() < 0.1
  both = (values[:, 0] == 0) & (values[:, 1] == 0)
  assert abs(logits[both].mean()) < 0.15


def test_probabilities_are_those_of_the_labels():
  _, _, _, labels, chance = drawn(rows=100_000)
  order = np.argsort(chance)
  for some in np.array_split(order, 10):
    assert abs(labels[some].mean() - chance[some].mean()) < 0.02


@pytest.mark.parametrize(
  'options, wanted',
  [
    ({'rows': 0}, 'rows'),
    ({'values': 1}, 'values'),
    ({'orders': (20,)}, 'orders holds 20'),
    ({'noise': -1.0}, 'noise'),
    ({'fields': 0, 'numbers': 0}, 'both 0'),
    ({'row': 5}, "'rows'"),
  ],
)
def test_impossible_logs_are_refused(tmp_path, options, wanted):
  with pytest.raises(ValueError, match=wanted):
    datasets.load({'name': 'clicks', 'clicks': options}, tmp_path)


def test_the_prepared_log_is_the_drawn_one(tmp_path):
  log, values, numbers, labels, _ = drawn(rows=3_000)
  told = []
  ds = datasets.load(
    {
      'name': 'clicks',
      'clicks': {'rows': 3_000, 'fields': 5, 'values': 12, 'terms': 3}
      | {'numbers': 2},
      'split': {'by': 'random', 'test_fraction': 0.2, 'seed': 1},
      'group': 'c0',
    },
    tmp_path,
    told.append,
  )
  assert 'prepared 3,000 rows' in told[-1]
  train, test = ds.splits['train'], ds.splits['test']
  assert len(train) + len(test) == 3_000 and 500 < len(test) < 700
  assert 'groups (c0)' in ds.summary()
  rows = train.rows(0, len(train))
  decoded = np.stack(
    [ds.vocabularies[f'c{i}'].decode(rows.ids[:, i]) for i in range(5)], 1
  )
  # Rows keep their order, and those of the test split are left out.
  at = 0
  for row in range(len(train)):
    while not (
      np.array_equal(decoded[row].astype(int), values[at])
      and np.allclose(rows.numbers[row], numbers[at])
      and rows.labels[row, 0] == labels[at]
    ):
      at += 1
  assert len(np.unique(rows.group)) == len(np.unique(decoded[:, 0]))
