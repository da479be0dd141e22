import numpy as np

from genrec_jax.data import synthetic


def slow_stream(records, length, items, categories, per_record, seed):
  """The process of the paper, one draw at a time; category of each draw."""
  rng = np.random.default_rng(seed)
  out = np.zeros((records, length), int)
  for r in range(records):
    own = rng.integers(0, categories, per_record)
    prior = rng.dirichlet(np.ones(per_record))
    alpha = int(rng.integers(1, 501))
    drawn = []
    for n in range(1, length + 1):
      if rng.random() < alpha / (alpha + n - 1):
        drawn.append(int(rng.choice(own, p=prior)))
      else:
        counts = np.bincount(drawn, minlength=categories)
        drawn.append(int(rng.choice(categories, p=counts / (n - 1))))
    out[r] = drawn
  return out


def concentration(category):
  """Per record: distinct categories, share of the commonest, repeats."""
  distinct = [len(set(row)) for row in category.tolist()]
  top = [np.bincount(row).max() / len(row) for row in category]
  same = (category[:, 1:] == category[:, :-1]).mean(axis=1)
  return np.array([np.mean(distinct), np.mean(top), np.mean(same)])


def test_statistics_equal_the_slow_process():
  shape = dict(records=1200, length=24, items=2000, categories=20, per_record=5)
  fast = synthetic.generate_stream(**shape, seed=1)
  category = synthetic.item_categories(2000, 20, 1)
  got = concentration(category[fast.items.reshape(1200, 24) - 1])
  expected = concentration(slow_stream(**shape, seed=2))
  # Three standard errors of the difference, from the spread over records.
  assert np.all(np.abs(got - expected) < [0.2, 0.025, 0.03])


def test_category_draws_follow_the_urn():
  # One category in the prior twice over makes no difference to an urn with
  # alpha 1: the share of "position 2 equals position 1" is known exactly.
  h = synthetic.generate_stream(20_000, 2, 4000, 100, 5, alpha_max=1, seed=3)
  category = synthetic.item_categories(4000, 100, 3)[h.items - 1].reshape(-1, 2)
  same = np.mean(category[:, 0] == category[:, 1])
  # alpha = 1: copy with 1/2, else two draws from a flat Dirichlet of 5 parts
  # agree in the part with 2 / (5 + 1), in the category 1 % of the rest.
  agree = 1 / 3 + 2 / 3 / 100
  assert abs(same - (0.5 + 0.5 * agree)) < 0.012


def test_items_are_uniform_among_the_open_ones_of_a_category():
  h = synthetic.generate_stream(4000, 16, 60, 3, 5, seed=0, opening=(0.5, 0.5))
  assert h.items.max() == 30 and h.items.min() == 1
  category = synthetic.item_categories(60, 3, 0)[:30]
  for c in range(3):
    ids = np.flatnonzero(category == c) + 1
    counts = np.bincount(h.items, minlength=31)[ids]
    assert np.all(abs(counts / counts.mean() - 1) < 0.12)


def test_the_vocabulary_opens_linearly():
  h = synthetic.generate_stream(1000, 32, 500, 10, 5, seed=0)
  limits = synthetic.opening_limits(1000, 500, (0.4, 1.0))
  assert limits[0] == 200 and limits[500] == 350
  items = h.items.reshape(1000, 32)
  assert np.all(items <= limits[:, None])
  assert items[:300].max() <= 290 and items[900:].max() > 460


def test_categories_without_an_open_item_are_redrawn():
  h = synthetic.generate_stream(500, 8, 10, 10, 5, seed=0, opening=(0.1, 1.0))
  items = h.items.reshape(500, 8)
  limits = synthetic.opening_limits(500, 10, (0.1, 1.0))
  assert np.all((items >= 1) & (items <= limits[:, None]))


def test_streams_are_seeded():
  a, b, c = (
    synthetic.generate_stream(50, 8, 100, 10, 3, seed=seed).items
    for seed in (0, 0, 1)
  )
  assert np.array_equal(a, b) and not np.array_equal(a, c)


def test_stream_is_a_whole_data_set():
  h = synthetic.generate_stream(50, 8, 100, 10, 3)
  assert len(h) == 50 and not h.has_times and len(h.vocab) == 100
  assert np.all(np.diff(h.offsets) == 8) and h.items.dtype == np.int32
