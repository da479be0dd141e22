"""Lists with weights: the same from every input, and what is refused."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ml_collections import ConfigDict

from genrec_jax import config as config_lib
from genrec_jax.data.ranking import blocks, collation, datasets, rows, schema
from genrec_jax.data.ranking.encoder import Encoder
from genrec_jax.data.ranking.raw import from_records
from genrec_jax.evaluators import importance
from genrec_jax.features import FeatureSpec
from genrec_jax.library import columns as columns_lib
from genrec_jax.library.examples import write_examples

TAGS = [['a', 'b', 'c'], [], ['c'], ['b', 'a']]
SIZES = [[0.5, 2.0, -1.5], [], [4.0], [0.25, 3.0]]
LABELS = [1, 0, 0, 1]
OPTIONS = {'kind': 'multi_hot', 'weights': 'sizes'}
CSV = 'label,tags,sizes\n1,a^b^c,0.5^2^-1.5\n0,,\n0,c,4\n1,b^a,0.25^3.0\n'


def load(tmp_path, name, path, **options):
  cfg = {
    'name': name,
    'path': str(path),
    'features': {'tags': OPTIONS | options},
  }
  return datasets.load(cfg, tmp_path / 'cache', lambda line: None)


def read_csv(tmp_path, text=CSV, **options):
  (tmp_path / 'x.csv').write_text(text)
  return load(tmp_path, 'csv', tmp_path / 'x.csv', **options)


def bags_of(data) -> rows.Bags:
  return data.splits['train'].rows(0, 4).bags['tags']


def assert_same(a: rows.Bags, b: rows.Bags) -> None:
  for name in ('values', 'lengths', 'weights'):
    left, right = getattr(a, name), getattr(b, name)
    assert left.dtype == right.dtype
    np.testing.assert_array_equal(left, right)


def test_every_input_gives_the_same_lists(tmp_path):
  data = read_csv(tmp_path)
  want = bags_of(data)
  np.testing.assert_array_equal(want.weights, np.float32(sum(SIZES, [])))
  table = {'label': LABELS, 'tags': TAGS, 'sizes': SIZES}
  pq.write_table(pa.table(table), tmp_path / 'x.parquet')
  assert_same(bags_of(load(tmp_path, 'parquet', tmp_path / 'x.parquet')), want)
  data.encoder.save(tmp_path / 'encoder')
  records = [{'tags': t, 'sizes': s} for t, s in zip(TAGS, SIZES, strict=True)]
  encoder = Encoder.load(tmp_path / 'encoder')
  chunk = from_records(records, encoder.schema.sources)
  assert_same(encoder.encode(chunk).bags['tags'], want)
  cfg = ConfigDict(config_lib.ranking().data)
  cfg.update(split={'valid_fraction': 0.0, 'test_fraction': 0.0})
  columns = columns_lib.read_columns(table, 'examples')
  out = write_examples(columns, cfg, {'tags': OPTIONS}, tmp_path / 'e', print)
  framed = datasets.load({'name': 'prepared', 'path': str(out)}, tmp_path)
  assert [f.name for f in framed.features] == ['tags']
  assert_same(bags_of(framed), want)


def test_weights_go_with_their_values(tmp_path):
  data = read_csv(tmp_path)
  all_rows = data.splits['train'].rows(0, 4)
  want = all_rows.bags['tags']
  assert_same(blocks.from_bytes(blocks.to_bytes(all_rows)).bags['tags'], want)
  parts = [all_rows.slice_rows(a, b) for a, b in ((0, 1), (1, 3), (3, 4))]
  assert_same(rows.concatenate_rows(parts).bags['tags'], want)
  order = np.array([3, 0, 2, 1])
  moved = importance.permute_feature(all_rows, data.features, 0, order)
  np.testing.assert_array_equal(
    moved.bags['tags'].weights, [0.25, 3, 0.5, 2, -1.5, 4]
  )
  batch = collation.collate_rows(
    all_rows, data.encoder.schema.names, batch_size=4, shards=2
  )
  bag = batch.jagged['tags']
  # Each shard has room of its own, filled up with zeros.
  room = len(bag['tags']) // 2
  np.testing.assert_array_equal(bag.floats['weight'][:3], [0.5, 2, -1.5])
  np.testing.assert_array_equal(bag.floats['weight'][room:][:3], [4, 0.25, 3])
  assert not bag.floats['weight'][room + 3 :].any()


@pytest.mark.parametrize(
  'kind, weights', [('multi_hot', [0.5, 2]), ('sequence', [2, -1.5])]
)
def test_shortened_lists_keep_the_weights_of_what_is_left(
  tmp_path, kind, weights
):
  bags = bags_of(read_csv(tmp_path, kind=kind, max_len=2))
  np.testing.assert_array_equal(bags.lengths, [2, 0, 1, 2])
  np.testing.assert_array_equal(bags.weights, [*weights, 4, 0.25, 3])


@pytest.mark.parametrize(
  'text, options, wanted',
  [
    (
      CSV + '0,a^b,1\n',
      {},
      "line 6: column 'tags' holds 2 values and column 'sizes' 1 weights",
    ),
    (CSV + '0,a,\n', {}, "line 6: column 'tags' holds 1 values and .*0 weig"),
    (CSV + '0,a^b,1^nan\n', {}, "line 6, column 'sizes': 'nan', the weight of"),
    (CSV + '0,a^b,1^-1e39\n', {}, "'-1e39', the weight of value 2 of the row"),
    (CSV + '0,a^b,1^\n', {}, "column 'sizes': '', the weight of value 2"),
    (CSV, {'weights': 'size'}, "no column 'size'.*'sizes'"),
    (CSV, {'weights': 'label'}, "column 'label' is a label and a feature"),
    (CSV, {'kind': 'categorical'}, "one value has no weights; set kind to"),
    (CSV, {'fill': 'none'}, 'a value that fills an empty cell has no weight'),
  ],
)
def test_weights_that_cannot_be_are_refused(tmp_path, text, options, wanted):
  with pytest.raises(ValueError, match=wanted):
    read_csv(tmp_path, text, **options)


def test_lists_without_weights_are_described_as_before(tmp_path):
  column = schema.Column('tags', kind='multi_hot')
  assert 'weights' not in column.to_json()
  assert schema.Column(**column.to_json()) == column
  bags = bags_of(read_csv(tmp_path, weights=''))
  assert bags.weights is None and not FeatureSpec('tags').weighted
