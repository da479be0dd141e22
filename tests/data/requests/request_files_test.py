import dataclasses
import json

import numpy as np
import pytest

from genrec_jax import sealed
from genrec_jax.data.requests import request_files
from genrec_jax.data.vocab import Vocab
from genrec_jax.features import FeatureSpec
from tests.data.requests import checks_test
from tests.data.requests.random_requests import make_dataset
from tests.unsealing import unseal

CASES = {
  'all': dict(steps=3),
  'places': dict(places=True),
  'devices': dict(devices=True, context=False),
  'bare': dict(timed=False, watch_time=False, context=False, weighted=False),
}


def assert_equal(one, other):
  ours, theirs = one.arrays(), other.arrays()
  assert list(ours) == list(theirs)
  for name, array in ours.items():
    np.testing.assert_array_equal(theirs[name], array, err_msg=name)
    assert theirs[name].dtype == array.dtype
  assert one.spec == other.spec and one.name == other.name
  assert list(one.splits) == list(other.splits)


def list_mapped(dataset):
  """Names of the columns that are still in their files."""
  return {
    name
    for name, array in dataset.arrays().items()
    if not array.flags.owndata and not array.flags.writeable
  }


@pytest.mark.parametrize('case', CASES)
def test_a_round_trip(tmp_path, case):
  data = make_dataset(1, **CASES[case])
  request_files.save_requests(data, tmp_path / 'sub' / 'data')
  again = request_files.open_requests(tmp_path / 'sub' / 'data')
  assert_equal(data, again)
  assert again.fingerprint() == data.fingerprint()
  # Not only what was stored: also what the columns give.
  copy = dataclasses.replace(again)
  assert not copy.saved_fingerprint and again.saved_fingerprint
  assert copy.fingerprint() == data.fingerprint()
  unmapped = set(again.arrays()) - list_mapped(again)
  assert all(n == 'users' or n.startswith('vocab.') for n in unmapped)


def test_a_changed_copy_has_a_fingerprint_of_its_own(tmp_path):
  request_files.save_requests(make_dataset(1), tmp_path / 'data')
  data = request_files.open_requests(tmp_path / 'data')
  fewer = {'train': data.splits['train']}
  changed = dataclasses.replace(data, splits=fewer)
  assert changed.fingerprint() != data.fingerprint()
  found = request_files.read_fingerprint(tmp_path / 'data')
  assert found == data.fingerprint() == make_dataset(1).fingerprint()
  assert found != make_dataset(2).fingerprint()


def test_requests_of_before_candidates_had_features_of_their_own(tmp_path):
  data = checks_test.make()
  # What version 022df83 says of these requests.
  assert data.fingerprint() == 'df636a8807b3556c'
  path = tmp_path / 'data'
  request_files.save_requests(data, path)
  meta = json.loads((path / 'meta.json').read_text())
  del meta['spec']['candidates']
  spoil_meta(path, **meta)
  with open(path / 'meta.json') as f:
    assert 'candidates' not in json.load(f)['spec']
  assert_equal(request_files.open_requests(path), data)
  places = (FeatureSpec('place', rows=2),)
  spec = dataclasses.replace(data.spec, candidates=places)
  other = dataclasses.replace(data, spec=spec)
  assert other.fingerprint() != data.fingerprint()


def test_equal_texts_have_equal_fingerprints():
  data = make_dataset(1)
  wide = data.user_ids.astype('U90')
  any_length = data.user_ids.astype(np.dtypes.StringDType())
  for ids in (wide, any_length):
    again = dataclasses.replace(data, user_ids=ids)
    assert again.fingerprint() == data.fingerprint()
  other = np.array([f'v{i}' for i in range(len(wide))])
  again = dataclasses.replace(data, user_ids=other)
  assert again.fingerprint() != data.fingerprint()


def test_texts_of_any_length_and_odd_names_are_saved(tmp_path):
  data = make_dataset(1)
  users = np.array(['ü' * 4000, *(f'{i}' for i in range(11))])
  users = users.astype(np.dtypes.StringDType())
  spec = dataclasses.replace(
    data.spec,
    context=(
      dataclasses.replace(data.spec.context[0], name='a/b ü.c', table='user'),
    ),
  )
  data = dataclasses.replace(
    data,
    spec=spec,
    user_ids=users,
    context={'a/b ü.c': data.context['user']},
    vocabs={**data.vocabs, 'user': Vocab(np.array(['x y', 'ß']))},
  )
  request_files.save_requests(data, tmp_path / 'data')
  again = request_files.open_requests(tmp_path / 'data')
  assert again.user_ids.tolist() == users.tolist()
  assert again.fingerprint() == data.fingerprint()
  assert dataclasses.replace(again).fingerprint() == data.fingerprint()
  np.testing.assert_array_equal(again.context['a/b ü.c'],
                                data.context['a/b ü.c'])  # fmt: skip
  assert again.vocabs['user'] == data.vocabs['user']


def test_what_is_there_already_stays_if_it_is_the_same(tmp_path):
  path = tmp_path / 'data'
  request_files.save_requests(make_dataset(1), path)
  stamp = (path / sealed.NAME).stat().st_mtime_ns
  request_files.save_requests(make_dataset(1), path)
  assert (path / sealed.NAME).stat().st_mtime_ns == stamp
  with pytest.raises(FileExistsError, match='exists already; choose another'):
    request_files.save_requests(make_dataset(2), path)
  assert sorted(p.name for p in tmp_path.iterdir()) == ['data']


def test_data_with_a_fault_are_not_saved(tmp_path):
  data = make_dataset(1)
  events = dataclasses.replace(data.events, action=data.events.action + 2)
  with pytest.raises(ValueError, match='name the other bits'):
    request_files.save_requests(
      dataclasses.replace(data, events=events), tmp_path / 'data'
    )
  twice = np.array(['u'] * data.events.users)
  with pytest.raises(ValueError, match="'u' appears twice"):
    request_files.save_requests(
      dataclasses.replace(data, user_ids=twice), tmp_path / 'data'
    )
  assert not list(tmp_path.iterdir())


def test_predicting_needs_no_events(tmp_path):
  data = make_dataset(1)
  path = tmp_path / 'work' / 'predict'
  for _ in range(2):  # the second takes the place of the first
    request_files.save_for_predicting(data, path)
  names = [p.name for p in path.iterdir()]
  assert not [n for n in names if 'events' in n or 'train' in n]
  whole = tmp_path / 'data'
  request_files.save_requests(data, whole)
  for column in whole.glob('*-events.*'):
    column.unlink()  # nobody looks at it
  for source in (path, whole):
    known = request_files.open_for_predicting(source)
    assert known.spec == data.spec and known.name == data.name
    assert known.vocabs == data.vocabs and list(known.vocabs) == [
      'item',
      'genre',
    ]
    assert known.users.ids.tolist() == data.user_ids.tolist()
    assert known.fingerprint == data.fingerprint()
    for name, column in data.context.items():
      np.testing.assert_array_equal(known.context[name], column)
  with pytest.raises(ValueError, match='there are no events, as in what a tra'):
    request_files.open_requests(path)


def test_every_damaged_file_is_named_with_the_remedy(tmp_path):
  out = tmp_path / 'data'
  request_files.save_requests(make_dataset(1, steps=2), out)
  names = sorted(p.name for p in out.iterdir())
  assert len(names) > 30 and 'meta.json' in names and sealed.NAME in names
  for name in names:
    path = out / name
    whole = path.read_bytes()
    for at in (0, 40, len(whole) - 1):
      flipped = bytearray(whole)
      flipped[at] ^= 4
      for content in (flipped, b'', whole[:-3], whole * 2):
        path.write_bytes(content)
        with pytest.raises(
          sealed.DamagedError, match=f'{path} is damaged .*; fetch it again'
        ):
          request_files.open_requests(out, 'fetch it again')
    path.unlink()
    with pytest.raises((FileNotFoundError, sealed.DamagedError)) as e:
      request_files.open_requests(out)
    assert name in str(e.value) and 'remove the directory' in str(e.value)
    path.write_bytes(whole)
  assert request_files.open_requests(out)


BAD = {
  'another type': ('test.user', lambda x: x.astype(np.int64)),
  'a column of floats': ('events.items.item', lambda x: x.astype(np.float32)),
  'longer': ('test.items.genre', lambda x: np.append(x, x)),
  'shorter': ('events.time', lambda x: x[1:]),
  'one user less': ('events.offsets', lambda x: x[:-1]),
  'events from nowhere': ('events.offsets', lambda x: x + 1),
  'not to the end': ('train.offsets', lambda x: np.minimum(x, x[-1] - 1)),
  'descending': ('train.offsets', lambda x: x - 9 * (np.arange(len(x)) == 3)),
  'a user twice': ('users', lambda x: np.append(x[:-1], x[:1])),
  'users more': ('users', lambda x: np.append(x, ['more'])),
  'another context': ('context.age', lambda x: x[1:]),
}


@pytest.mark.parametrize('case', BAD)
def test_sealed_nonsense_is_refused(tmp_path, case):
  out = tmp_path / 'data'
  request_files.save_requests(make_dataset(1), out)
  name, spoil = BAD[case]
  file = out / json.loads((out / 'meta.json').read_text())['files'][name]
  np.save(file, spoil(np.load(file)))
  sealed.seal(out)
  with pytest.raises(sealed.DamagedError, match=f'{file.name} is damaged'):
    request_files.open_requests(out)


def spoil_meta(path, **values):
  meta = json.loads((path / 'meta.json').read_text())
  (path / 'meta.json').write_text(json.dumps(meta | values))
  sealed.seal(path)


def test_a_meta_file_of_another_kind_is_refused(tmp_path):
  out = tmp_path / 'data'
  message = (
    r'not a directory of saved requests \(no meta.json\); remove the dir'
  )
  with pytest.raises(FileNotFoundError, match=message):
    request_files.open_requests(tmp_path)
  request_files.save_requests(make_dataset(1), out)
  spoil_meta(out, spec={'items': [{'nome': 'x'}]})
  with pytest.raises(sealed.DamagedError, match='meta.json is damaged'):
    request_files.open_requests(out)
  spoil_meta(out, files={})
  with pytest.raises(sealed.DamagedError, match='meta.json is damaged'):
    request_files.open_requests(out)
  spoil_meta(out, format=9)
  with pytest.raises(ValueError, match='requests of format 9, this version re'):
    request_files.open_requests(out)


def test_a_lost_seal_is_damage(tmp_path):
  out = tmp_path / 'data'
  request_files.save_requests(make_dataset(1), out)
  (out / sealed.NAME).unlink()
  with pytest.raises(sealed.DamagedError, match='SEAL.json is missing'):
    request_files.open_requests(out)
  request_files.save_requests(make_dataset(1), tmp_path / 'two')
  unseal(tmp_path / 'two')
  assert request_files.open_requests(tmp_path / 'two')
