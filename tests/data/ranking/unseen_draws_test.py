"""Known values that a training batch reads as unseen."""

import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax.config import comparison
from genrec_jax.data.ranking import batches, prepare, raw, schema, unseen_draws

FEATURES = {
  'user': {},
  'shop': {'oov': 'hash', 'hash_rows': 3},
  'rare': {'column': 'user', 'min_count': 2},
  'strict': {'column': 'user', 'oov': 'error'},
  'hashed': {'column': 'user', 'vocabulary': 'hashed', 'hash_rows': 7},
  'often': {'column': 'user', 'train_unseen': 0.5},
  'never': {'column': 'user', 'train_unseen': 0},
  'seen': {'kind': 'multi_hot'},
  'price': {'kind': 'numeric'},
}
ROWS = 4000


def build(features=FEATURES):
  names = ['label', 'user', 'shop', 'seen', 'price']
  return schema.build_schema({'features': features}, names, {}, 'x')


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  rng = np.random.default_rng(0)
  users = [f'u{n}' for n in rng.integers(40, size=ROWS)]
  users[5] = ''
  chunk = raw.RawChunk(
    {
      'label': ['0', '1'] * (ROWS // 2),
      'user': users,
      'shop': [f's{n}' for n in rng.integers(9, size=ROWS)],
      'seen': [f'a^b{n}' for n in rng.integers(9, size=ROWS)],
      'price': ['1.5'] * ROWS,
    },
    ROWS,
  )
  source = prepare.RowSource(lambda names: iter([chunk]), name='x')
  out = tmp_path_factory.mktemp('data') / 'x'
  return prepare.prepare_store({'train': source}, build(), out, log=print)


def draw(data, share=0.05, seed=0, batch=0):
  before = data.splits['train'].rows(0, ROWS)
  draws = unseen_draws.UnseenDraws(data.encoder, share, seed)
  return before, draws.apply(before, batch)


def ids_of(data, rows):
  return dict(zip(data.encoder.schema.names.ids, rows.ids.T, strict=True))


def test_a_share_of_known_values_is_read_as_unseen(data):
  before, after = draw(data)
  changed = 0
  for name, ids in ids_of(data, after).items():
    old = ids_of(data, before)[name]
    moved = ids != old
    vocabulary = data.encoder.vocabularies[name]
    known = len(vocabulary.values)
    assert (old[moved] >= 1).all() and (old[moved] <= known).all()
    assert (ids[moved] > known).all() and (ids < vocabulary.rows).all()
    changed += moved.any()
    share = {'user': 0.05, 'shop': 0.05, 'often': 0.5}.get(name, 0)
    assert abs(moved.mean() - share) <= 4 * (share / ROWS) ** 0.5
    if name == 'shop':  # each of the rows of unseen values is learned
      assert set(ids[moved]) == {known + 1, known + 2, known + 3}
    if name in ('user', 'often'):
      assert old[5] == ids[5] == 0  # missing is not unseen
  assert changed == 3
  bags = after.bags['seen'].values
  moved = bags != before.bags['seen'].values
  assert abs(moved.mean() - 0.05) < 0.01
  assert set(bags[moved]) == {data.encoder.vocabularies['seen'].rows - 1}
  np.testing.assert_array_equal(after.numbers, before.numbers)


def test_draws_depend_on_the_seed_and_the_number_of_the_batch(data):
  found = {
    draw(data, seed=seed, batch=batch)[1].ids.tobytes()
    for seed in (0, 1)
    for batch in (0, 1, 2**40)
    for _ in range(2)
  }
  assert len(found) == 6


def test_no_share_changes_no_batch(data):
  features = {n: x for n, x in FEATURES.items() if n != 'often'}
  encoder = data.encoder
  quiet = unseen_draws.UnseenDraws(
    type(encoder)(build(features), encoder.vocabularies, {}, {}), 0.0, 0
  )
  assert not quiet


def test_batches_are_the_same_on_every_mesh_and_after_a_restart(data):
  def batches_of(unseen=True, **options):
    draws = unseen_draws.UnseenDraws(data.encoder, 0.1, 3)
    dataset = batches.train_batches(
      data.splits['train'],
      batch_size=512,
      seed=3,
      prefetch=0,
      unseen=draws if unseen else None,
      **options,
    )
    return iter(dataset)

  whole = batches_of()
  wanted = [next(whole) for _ in range(12)]  # an epoch and a half
  plain = batches_of(unseen=False)
  order = [next(plain).ids['never'] for _ in range(12)]
  for batch, never in zip(wanted, order, strict=True):
    np.testing.assert_array_equal(batch.ids['never'], never)  # the same rows
  middle = batches_of(shards=4, own=range(1, 3))
  for batch in wanted:
    np.testing.assert_array_equal(
      next(middle).ids.values, batch.ids.values[128:384]
    )
  first = batches_of()
  for _ in range(9):
    next(first)
  again = batches_of()
  again.set_state(first.get_state())
  for batch in wanted[9:]:
    found = next(again)
    np.testing.assert_array_equal(found.ids.values, batch.ids.values)
    np.testing.assert_array_equal(
      found.jagged['seen']['seen'], batch.jagged['seen']['seen']
    )


@pytest.mark.parametrize(
  'features, wanted',
  [
    ({'user': {'train_unseen': 1.0}}, "of feature 'user' .* less than 1, not"),
    ({'user': {'train_unseen': True}}, 'must be a number'),
    (
      {'user': {'train_unseen': 0.1, 'oov': 'error'}},
      'no rows of unseen values; set it to 0',
    ),
    (
      {'price': {'kind': 'numeric', 'train_unseen': 0.1}},
      'no rows of unseen values',
    ),
    ({'user': {'clip': 3.0}}, 'clip .* bounds z-scores'),
  ],
)
def test_options_that_say_nothing_are_refused(features, wanted):
  with pytest.raises(ValueError, match=wanted):
    build(features)


def test_a_share_is_checked(data):
  with pytest.raises(ValueError, match='data.train_unseen must be .* not -0.1'):
    unseen_draws.UnseenDraws(data.encoder, -0.1, 0)


def test_options_of_later_versions_are_written_where_they_say_something():
  plain, changed = build().columns[0], build({'user': {'train_unseen': 0.5}})
  assert not {'clip', 'train_unseen'} & plain.to_json().keys()
  assert changed.columns[0].to_json()['train_unseen'] == 0.5


def test_a_workdir_of_an_earlier_version_goes_on_without():
  saved = config_lib.ranking().to_dict()
  del saved['data']['train_unseen']
  config = config_lib.ranking()
  assert config.data.train_unseen > 0
  saved = comparison.fill_defaults(saved)
  assert saved['data']['train_unseen'] == 0
  comparison.keep_former_values(config, saved)
  assert config.data.train_unseen == 0
