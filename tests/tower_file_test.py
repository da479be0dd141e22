"""Files of towers: there and back, and what is refused."""

import json
import subprocess
import sys
import time

import pytest

from genrec_jax.config.errors import ConfigError
from genrec_jax.config.tower_file import (
  NAME,
  TowerPlan,
  check_towers,
  read_towers,
  write_towers,
)

FEATURES = ['user', 'city', 'item', 'shop']
PLAN = TowerPlan(
  (('user', 'größe'), ('item',)), 'coherent', '1 - |cos|', 3, 0.125, 2, 900, 'x'
)  # fmt: skip


@pytest.mark.parametrize('plan', [PLAN, TowerPlan((('a',),))])
def test_there_and_back(tmp_path, plan):
  assert TowerPlan.from_json(plan.to_json()) == plan
  write_towers(tmp_path / NAME, plan)
  assert read_towers(tmp_path / NAME) == read_towers(tmp_path) == plan
  data = json.loads((tmp_path / NAME).read_text(encoding='utf-8'))
  assert data == plan.to_json()
  assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_file_by_hand_needs_two_keys(tmp_path):
  (tmp_path / 'mine.json').write_text('{"version": 1, "towers": [["a"]]}')
  plan = read_towers(tmp_path / 'mine.json')
  assert plan == TowerPlan((('a',),)) and plan.seed is None


@pytest.mark.parametrize(
  'text, wanted',
  [
    ('{"version": 1, "towers": [["a"]', 'damaged, it is no JSON'),
    ('', 'damaged'),
    ('[' * 100_000, 'damaged'),
    ('[]', 'must be an object with the keys'),
    ('{"version": 1}', 'must be an object with the keys'),
    ('{"version": 2, "towers": []}', 'its version is 2'),
    ('{"towers": []}', 'its version is None'),
    ('{"version": 1, "towers": ["a"]}', 'a list of lists'),
    ('{"version": 1, "towers": [[3]]}', 'a list of lists'),
    ('{"version": 1, "towers": [], "sed": 1}', "'sed'; did you mean 'seed'"),
    ('{"version": 1, "towers": [], "seed": true}', '"seed" is True'),
    ('{"version": 1, "towers": [], "seed": -1}', '"seed" is -1'),
    ('{"version": 1, "towers": [], "stress": NaN}', '"stress" is nan'),
    ('{"version": 1, "towers": [], "source": 3}', '"source" is 3, must be a'),
  ],
)
def test_damaged_files_are_refused_with_their_name(tmp_path, text, wanted):
  path = tmp_path / NAME
  path.write_text(text)
  with pytest.raises(ConfigError, match=wanted) as caught:
    read_towers(path)
  assert str(path) in str(caught.value)


def test_bytes_that_are_no_text_and_no_file(tmp_path):
  (tmp_path / NAME).write_bytes(b'\xff\xfe\x00')
  with pytest.raises(ConfigError, match='damaged'):
    read_towers(tmp_path)
  with pytest.raises(FileNotFoundError, match='no such file of towers'):
    read_towers(tmp_path / 'other.json')


@pytest.mark.parametrize(
  'towers, wanted',
  [
    ([], 'there is no tower'),
    ([['user', 'city'], [], ['item', 'shop']], 'tower 1 is empty'),
    ([['user', 'city'], ['item']], "no tower has 'shop'"),
    ([['user']], "no tower has 'city', 'item', 'shop'"),
    ([['user', 'city'], ['item', 'shop', 'user']], "'user' is in towers 0 and"),
    ([['user', 'user'], ['item']], "'user' is in tower 0 twice"),
    ([['user', 'city'], ['items', 'shop']], "'items', .* mean 'item'?"),
  ],
)
def test_what_is_no_partition_is_refused(towers, wanted):
  with pytest.raises(ConfigError, match=wanted):
    check_towers(towers, FEATURES)


def test_a_table_lies_under_one_tower():
  tables = {'user': 'place', 'city': 'place'}
  check_towers([['user', 'city'], ['item', 'shop']], FEATURES, tables)
  words = "'user' and 'city' share the table 'place', but are in towers 0 and 1"
  with pytest.raises(ConfigError, match=words):
    check_towers([['user', 'item'], ['city', 'shop']], FEATURES, tables)


def test_towers_of_features():
  assert PLAN.find_tower('item') == 1
  assert PLAN.features == ('user', 'größe', 'item')
  with pytest.raises(ConfigError, match="in no tower; did you mean 'item'"):
    PLAN.find_tower('itm')


def test_only_the_standard_library_is_needed():
  code = """
import sys
import genrec_jax.config.tower_file as t
own = [n for n in vars(t).values() if type(n) is type(sys)]
print(all(m.__name__ in sys.stdlib_module_names for m in own))
print('jax' in sys.modules)
"""
  out = subprocess.check_output([sys.executable, '-c', code], text=True)
  assert out.split() == ['True', 'False']


@pytest.mark.parametrize(
  'more, wanted',
  [
    ('"stress": 1' + '0' * 400, '"stress" is 1000'),
    ('"stress": NaN', '"stress" is nan'),
    (r'"source": "\ud800"', '"source" is .* must be a text'),
    (f'"{"k" * 10**6}": 1', 'unknown key'),
  ],
)
def test_hostile_facts(tmp_path, more, wanted):
  """No crash, no error as long as what it is about, and a name."""
  path = tmp_path / 'towers.json'
  path.write_text(f'{{"version": 1, "towers": [["a"]], {more}}}')
  with pytest.raises(ConfigError, match=wanted) as refused:
    read_towers(path)
  assert len(str(refused.value)) < 1000 and str(path) in str(refused.value)


def test_many_keys_take_no_time(tmp_path):
  """Every key was compared with every other: three minutes."""
  path = tmp_path / 'towers.json'
  keys = ', '.join(f'"k{n}": 1' for n in range(100_000))
  path.write_text(f'{{"version": 1, "towers": [["a"]], {keys}}}')
  began = time.process_time()
  with pytest.raises(ConfigError, match='unknown key'):
    read_towers(path)
  assert time.process_time() - began < 10
