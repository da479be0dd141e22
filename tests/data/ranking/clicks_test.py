import numpy as np
import pytest

from genrec_jax.data.ranking import clicks, datasets

CACHE_BEFORE_BLOCKS = 'clicks-48aab4ca11a4a2b2'


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


def test_no_term_has_a_silent_field():
  options = dict(fields=12, numbers=2, orders=(1, 2), terms=400)
  for blocks in (0, 3):
    log = clicks.ClickLog(**options, silent=3, blocks=blocks)
    terms = clicks.PlantedSignal(log)._terms
    joined = {place for some in terms for term in some for place, _ in term}
    assert joined == {*range(9), 12, 13}  # the numbers are 12 and 13
    assert {f for b in clicks.list_blocks(log) for f in b} <= {
      f'c{i}' for i in range(9)
    }


def test_probabilities_are_those_of_the_labels():
  _, _, _, labels, chance = drawn(rows=100_000)
  order = np.argsort(chance)
  for some in np.array_split(order, 10):
    assert abs(labels[some].mean() - chance[some].mean()) < 0.02


def planted_terms(**changes):
  options = dict(fields=12, numbers=2, orders=(2, 3), terms=400, blocks=4)
  log = clicks.ClickLog(**(options | changes))
  blocks = clicks.list_blocks(log)
  terms = [
    {f'c{field}' for field, _ in term}
    for terms in clicks.PlantedSignal(log)._terms
    for term in terms
  ]
  return log, blocks, terms


def test_blocks_are_a_partition_that_numbers_say_nothing_about():
  log, blocks, _ = planted_terms(fields=14)
  assert [len(block) for block in blocks] == [4, 4, 3, 3]
  names = [name for block in blocks for name in block]
  assert sorted(names) == sorted(f'c{i}' for i in range(log.fields))
  assert blocks == clicks.list_blocks(log)
  others = clicks.list_blocks(clicks.ClickLog(**(vars(log) | {'seed': 1})))
  assert blocks != others
  in_order = [[f'c{i}' for i in range(a, a + 3)] for a in range(0, 12, 3)]
  assert planted_terms()[1] != in_order
  assert clicks.list_blocks(clicks.ClickLog()) == []


@pytest.mark.parametrize('within', [1.0, 0.9, 0.5])
def test_terms_join_fields_of_a_block_as_often_as_asked(within):
  _, blocks, terms = planted_terms(within=within)
  share = np.mean([any(t <= set(b) for b in blocks) for t in terms])
  # A term of any fields lies in one block by chance, once in ten.
  assert within - 0.06 <= share <= within + 0.1 * (1 - within) + 0.06
  inside = [b for t in terms for b in range(4) if t <= set(blocks[b])]
  counts = np.bincount(inside, minlength=4) / len(inside)
  assert np.abs(counts - 0.25).max() < 0.08


def test_a_log_without_blocks_is_what_it_was(tmp_path):
  _, values, numbers, labels, _ = drawn(rows=300)
  again = drawn(rows=300, within=0.2)
  for a, b in zip((values, numbers, labels), again[1:4], strict=True):
    np.testing.assert_array_equal(a, b)
  assert not np.array_equal(labels, drawn(rows=300, blocks=1)[3])

  def name_cache(**options):
    cfg = {'name': 'clicks', 'clicks': {'rows': 300} | options}
    return datasets.load(cfg, tmp_path, lambda _: None).store.directory.name

  # The name of the cache that commit b0408b69 made of this log.
  assert name_cache() == name_cache(within=0.2) == CACHE_BEFORE_BLOCKS
  assert name_cache(blocks=2) != CACHE_BEFORE_BLOCKS
  assert name_cache(silent=2) != CACHE_BEFORE_BLOCKS


@pytest.mark.parametrize(
  'options, wanted',
  [
    ({'blocks': 20}, 'data.clicks.blocks is 20; 12 fields'),
    ({'blocks': -1}, 'data.clicks.blocks is -1'),
    ({'within': 1.5}, 'data.clicks.within is 1.5'),
    ({'blocks': 5}, 'orders holds 3, but a block may have no more than 2'),
    ({'silent': 13}, 'data.clicks.silent is 13; there are 12 fields'),
    ({'silent': 9, 'numbers': 0, 'orders': (4,)}, 'there are 3 features that'),
    ({'silent': 4, 'blocks': 9}, '8 fields make 0 to 8 blocks'),
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
