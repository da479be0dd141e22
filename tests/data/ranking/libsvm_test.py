"""libsvm files: what their pairs become, against a plain reading of them."""

import logging

import numpy as np
import pytest

from genrec_jax.data.ranking import (
  batches,
  collation,
  datasets,
  formats,
  libsvm,
)
from genrec_jax.data.ranking.encoder import Encoder
from genrec_jax.data.ranking.raw import from_records

SPLIT = {'by': 'order', 'valid_fraction': 0.25}


def load(tmp_path, text, log=lambda line: None, name='x.libsvm', **changes):
  path = tmp_path / name
  if text is not None:
    path.write_text(text)
  cfg = {'name': 'libsvm', 'path': str(path), **changes}
  return datasets.load(cfg, tmp_path / 'cache', log)


def only(split):
  (batch,) = batches.eval_batches(split, batch_size=len(split))
  return batch


def options_of(data) -> dict[str, str]:
  """Feature -> its kind, and the column of its weights."""
  return {
    c.name: f'{c.kind} {c.weights}'.strip() for c in data.encoder.schema.columns
  }


def read_plainly(text: str) -> tuple[list, list, list[dict]]:
  """Labels, query ids and {index: value} of the rows."""
  labels, queries, rows = [], [], []
  for line in text.splitlines():
    label, *pairs = line.split()
    labels.append(max(0, int(label)))
    queries.append(None)
    if pairs and pairs[0].startswith('qid:'):
      queries[-1] = pairs.pop(0)[4:]
    rows.append({})
    for pair in pairs:
      index, value = pair.split(':')
      rows[-1][int(index)] = float(value)
  return labels, queries, rows


def to_matrix(rows: list[dict], size: int) -> np.ndarray:
  matrix = np.zeros((len(rows), size))
  for i, row in enumerate(rows):
    for index, value in row.items():
      matrix[i, index] = value
  return matrix


def bag_matrix(data, split, size: int) -> np.ndarray:
  """What a bag says of each index, by the weights of its rows."""
  bag = only(split).jagged['indices']
  matrix, start = np.zeros((len(bag.lengths), size)), 0
  names = data.vocabularies['indices'].decode(bag['indices'])
  for i, length in enumerate(bag.lengths):
    for k in range(start, start + length):
      matrix[i, int(names[k])] += bag.floats['weight'][k]
    start += length
  return matrix


def make_text(seed: int, size: int, share: float, ordered=False) -> str:
  rng = np.random.default_rng(seed)
  lines = []
  for query in range(60):
    indices = np.flatnonzero(rng.random(size) < share)
    if not ordered:
      rng.shuffle(indices)
    words = [f'{i}:{rng.normal():.4g}' for i in indices]
    lines.append(f'{rng.choice([-1, 1])} qid:{query // 6} ' + ' '.join(words))
  return '\n'.join(lines) + '\n'


@pytest.mark.parametrize('share, kind', [(0.1, 'multi_hot'), (0.9, 'numeric')])
def test_a_file_is_the_matrix_that_it_states(tmp_path, share, kind):
  text = make_text(0, 40, share)
  said = []
  data = load(tmp_path, text, said.append)
  labels, queries, rows = read_plainly(text)
  batch, want = only(data.splits['train']), to_matrix(rows, 40)
  if kind == 'multi_hot':
    assert options_of(data) == {'indices': 'multi_hot values'}
    got = bag_matrix(data, data.splits['train'], 40)
  else:
    assert options_of(data) == {f'x{i}': 'numeric' for i in range(40)}
    got = batch.dense.values
  np.testing.assert_array_equal(got, np.float32(want))
  np.testing.assert_array_equal(batch.labels['label'], labels)
  np.testing.assert_array_equal(batch.group, [int(q) for q in queries])
  assert data.group == 'qid'
  group, features = said[:2]
  assert 'data.group is not set' in group and '(qid)' in group
  assert 'in the first 60 rows of' in features and 'in the mean' in features


def test_a_file_is_what_scikit_learn_reads(tmp_path):
  sklearn = pytest.importorskip('sklearn.datasets')
  data = load(tmp_path, make_text(1, 30, 0.2, ordered=True))
  x, y, query = sklearn.load_svmlight_file(
    str(tmp_path / 'x.libsvm'), n_features=30, zero_based=True, query_id=True
  )
  got = bag_matrix(data, data.splits['train'], 30)
  np.testing.assert_array_equal(got, np.float32(x.toarray()))
  batch = only(data.splits['train'])
  np.testing.assert_array_equal(batch.labels['label'], y > 0)
  np.testing.assert_array_equal(batch.group, query)


def test_saved_encoders_read_files_and_records_alike(tmp_path):
  text = make_text(2, 30, 0.2)
  data = load(tmp_path, text, split=SPLIT)
  data.encoder.save(tmp_path / 'encoder')
  encoder = Encoder.load(tmp_path / 'encoder')
  assert encoder.features == data.encoder.features
  assert encoder.features[0].weighted
  _, _, rows = read_plainly(text)
  records = [
    {'indices': list(row), 'values': list(row.values())} for row in rows
  ]
  by_file = formats.read_examples(encoder, tmp_path / 'x.libsvm')
  by_record = [from_records(records, encoder.schema.sources)]
  a, b = (
    next(collation.raw_batches(encoder, rows, batch_size=60)).jagged['indices']
    for rows in (by_file, by_record)
  )
  np.testing.assert_array_equal(a.columns.values, b.columns.values)
  np.testing.assert_array_equal(a.floats.values, b.floats.values)
  np.testing.assert_array_equal(a.lengths, b.lengths)
  seen = sum(len(part) for part in data.splits.values())
  assert seen == len(a.lengths) and a.floats.values.any()


FIELDS = '-1 451:1 4149:1 7:0.5\n1 37:1 2505:1 7:2 \n'


def test_pairs_of_own_places_are_fields(tmp_path):
  data = load(tmp_path, FIELDS)
  batch = only(data.splits['train'])
  assert options_of(data) == {
    'f0': 'categorical',
    'f1': 'categorical',
    'v2': 'numeric',
  }
  np.testing.assert_array_equal(batch.labels.values[:, 0], [0, 1])
  np.testing.assert_array_equal(batch.dense.values, [[0.5], [2]])
  # Equally frequent values come in the order of their texts.
  assert data.vocabularies['f0'].values == ('37', '451')
  np.testing.assert_array_equal(batch.ids.values, [[2, 2], [1, 1]])


@pytest.mark.parametrize(
  'text, kinds',
  [
    # An index that wanders between places.
    ('0 3:1 5:1\n1 5:1 3:1\n', {'indices': 'multi_hot values'}),
    # A value that says something beside an index that varies.
    ('0 3:2 5:1\n1 4:1 6:1\n', {'indices': 'multi_hot values'}),
    ('0 3:2 5:1\n1 3:1 5:1\n', {'x3': 'numeric', 'x5': 'numeric'}),
    # The indices are numbers, and so is their order.
    ('0 10:2 9:1\n1 9:4\n', {'x9': 'numeric', 'x10': 'numeric'}),
    ('+1 3:1 5:1\n0 3:1\n1\n', {'indices': 'multi_hot values'}),
  ],
)
def test_the_first_rows_decide(tmp_path, text, kinds):
  assert options_of(load(tmp_path, text)) == kinds


LATER = {
  '1 451:1 4149:1 8:3': r"pair 3: '8:3' has another index than '7'",
  '1 451:1 4149:1 7:3 9:1': '4 pairs, the training file has 3',
  '1 9:1 451:1 4149:1 7:3': '4 pairs, the training file has 3',
  '1 451:1 4149:0.5 7:3': r"pair 2: '4149:0.5' has a value other than 1",
  '1 4149:1 451:1 7:3': "pair 1: '4149:1' stands at place 1, and in other rows",
}


@pytest.mark.parametrize('split', ['train', 'test'])
@pytest.mark.parametrize('line', LATER)
def test_rows_that_do_not_fit_the_fields_are_refused(tmp_path, line, split):
  train = FIELDS * 600
  files = {}
  if split == 'train':
    train += line + '\n'
  else:
    (tmp_path / 'test.libsvm').write_text(line + '\n')
    files = {'files': {'train': 'x.libsvm', 'test': 'test.libsvm'}}
  place = 'x.libsvm, line 1201' if split == 'train' else 'test.libsvm, line 1'
  with pytest.raises(ValueError, match=f'{place}.*{LATER[line]}'):
    load(tmp_path, train, **files)


def test_an_index_that_the_first_rows_lack_is_said_once(tmp_path, caplog):
  text = '0 1:1 2:2\n' * 1500 + '1 1:3 5:2\n1 6:2\n'
  data = load(tmp_path, text)
  (line,) = caplog.messages
  assert line.startswith(
    f"{tmp_path}/x.libsvm, line 1501, pair 2: '5:2' has an index that the"
  )
  last = only(data.splits['train']).dense.values[-2:]
  np.testing.assert_array_equal(last, [[3, 0], [0, 0]])


def test_features_may_be_named_by_index_and_by_place(tmp_path, caplog):
  text = '0 3:1.5 5:2\n1 5:4 8:2.5\n'
  both = {'x5': 'numeric', 'indices': 'multi_hot', 'x9': 'numeric'}
  data = load(tmp_path, text, features=both)
  np.testing.assert_array_equal(
    only(data.splits['train']).dense.values, [[2, 0], [4, 0]]
  )
  (line,) = caplog.messages
  assert line.endswith('x.libsvm do not have index 9: it is 0 there')
  assert options_of(data)['indices'] == 'multi_hot values'
  plain = {'indices': {'kind': 'multi_hot', 'weights': ''}}
  data = load(tmp_path, text, features=plain)
  assert only(data.splits['train']).jagged['indices'].floats is None
  with pytest.raises(ValueError, match="line 2, pair 1: '5:4' has another"):
    load(tmp_path, text, features={'v0': 'numeric'})
  with pytest.raises(ValueError, match="no column 'x05'"):
    load(tmp_path, text, features={'x05': 'numeric'})
  caplog.clear()
  data = load(tmp_path, text, features={'f0': {}, 'v0': 'numeric', 'f1': {}})
  np.testing.assert_array_equal(
    only(data.splits['train']).dense.values[:, 0], [1.5, 4]
  )
  (line,) = caplog.messages
  assert "line 1, pair 2: '5:2' has a value other than 1" in line


def test_an_index_with_zeros_in_front_is_that_index(tmp_path):
  data = load(tmp_path, '0 03:1.5 5:2\n1 3:4 005:1\n')
  np.testing.assert_array_equal(
    only(data.splits['train']).dense.values, [[1.5, 2], [4, 1]]
  )


BAG = {'features': {'indices': 'multi_hot'}}
PLACES = {'features': {'f0': {}, 'v1': {'kind': 'numeric'}}}


@pytest.mark.parametrize(
  'line, wanted, changes',
  [
    ('1 3:1 5', 'mend or remove the line$', PLACES),
    ('1 3:1:2 5', 'mend or remove the line$', PLACES),
    ('1 3: 5:1', 'write a number, such as 0, if it is missing$', PLACES),
    ('1 3:1 5:inf', 'write a number, such as 0, if it is missing$', PLACES),
    ('1 3:1', '1 pairs, the training file has 2', PLACES),
    ('1 3:1 5:1e39', "'values': '1e39', the weight of value 2 of the row", BAG),
    ('1 3:inf', "'inf', the weight of value 1 of the row, is not", BAG),
    ('1 3:x', "'x', the weight of value 1 of the row, is not a finite", BAG),
    ('1 3:1 4:2 3:2', "pair 3: '3:2' has an index that stands in", {}),
    ('3 3:1 5:1', "the label is '3'.*write 1 for those", {}),
    ('2.5 3:1 5:1', 'data.label_kinds.label=float', {}),
  ],
)
def test_damaged_lines_are_told(tmp_path, line, wanted, changes):
  text = f'1 3:1 5:4\n{line}\n1 3:2 5:1\n'
  with pytest.raises(ValueError, match=f'x.libsvm, line 2.*{wanted}'):
    load(tmp_path, text, **changes)


def test_a_label_of_any_number_keeps_its_sign(tmp_path):
  data = load(tmp_path, '-1 3:1.5\n2.5 3:2\n', label_kinds={'label': 'float'})
  labels = only(data.splits['train']).labels['label']
  np.testing.assert_array_equal(labels, [-1, 2.5])


@pytest.mark.parametrize(
  'text, kinds, warning',
  [
    ('0 3:1 5:1\n1 4:1\n', {'indices': 'multi_hot'}, None),
    ('0 qid:3 5:2\n1 qid:4 5:3\n', dict(v0='numeric', v1='numeric'), None),
    (
      '0 3:1 5:2\n1 4:0.5 5:3 6:1\n',
      {'indices': 'multi_hot'},
      "{}: 3 values other than 1 in the first 2 rows are not read, for "
      "data.pairs is 'by_place' and these features are categories: indices",
    ),
  ],
)
def test_former_runs_go_on_by_place(tmp_path, caplog, text, kinds, warning):
  data = load(tmp_path, text, pairs='by_place')
  assert options_of(data) == kinds
  assert data.encoder.reading == {'format': 'libsvm', 'delimiter': ','}
  path = tmp_path / 'x.libsvm'
  libsvm.default_features(path, {})
  assert caplog.messages == ([warning.format(path)] if warning else [])


def test_former_numbers_by_place_are_read_on(tmp_path, caplog):
  text = '0 3:1 5:2\n' * 1500 + '1 3:1 6:2\n1 3:1 7:2\n'
  load(tmp_path, text, pairs='by_place')
  (line,) = caplog.messages
  assert "line 1501, pair 2: '6:2' has another index than '5'" in line
  assert logging.WARNING == caplog.records[0].levelno


def test_other_readings_are_refused(tmp_path):
  with pytest.raises(ValueError, match="data.pairs is 'by_plac'.*by_place"):
    load(tmp_path, FIELDS, pairs='by_plac')


def test_what_follows_a_number_sign_is_a_comment(tmp_path):
  text = '# made by hand\n1 qid:3 1:2 2:1 # docid = 7:1\n\n0 qid:3 1:5 2:0#x\n'
  data = load(tmp_path, text, features={'x1': 'numeric'})
  batch = only(data.splits['train'])
  assert batch.dense.values[:, 0].tolist() == [2, 5]
  with pytest.raises(ValueError, match='line 3: qid is not the first'):
    load(tmp_path, '# x\n1 1:2\n0 1:1 qid:3\n', name='y.libsvm')


def test_labels_may_be_probabilities(tmp_path):
  data = load(
    tmp_path, '0.25 1:2\n1 1:3\n', label_kinds={'label': 'probability'}
  )
  assert data.splits['train'].rows(0, 2).labels[:, 0].tolist() == [0.25, 1]
