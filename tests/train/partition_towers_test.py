"""The command that chooses towers, on tiny trained runs."""

import json
import xml.dom.minidom

import jax
import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax.config.tower_file import read_towers
from genrec_jax.serve.weights import load_weights
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import loop, partition_towers, tower_samples


def train_run(config, workdir):
  config.train.steps, config.train.batch_size = 8, 128
  config.train.eval_every = config.train.log_every = 8
  config.eval.splits = ()
  with jax.numpy_dtype_promotion('standard'):  # optax mixes dtypes
    loop.train_and_evaluate(config, workdir, TASK_KINDS)
  return workdir


@pytest.fixture(scope='module')
def clicks_run(tmp_path_factory):
  config = config_lib.ranking()
  config.model = config_lib.dlrm(dim=4, top=(8,), bottom=(8,))
  config.data.clicks.update(
    rows=2_000, fields=8, values=20, orders=(2,), terms=24, blocks=2
  )
  return train_run(config, tmp_path_factory.mktemp('clicks') / 'run')


@pytest.fixture(scope='module')
def shop_run(tmp_path_factory):
  """Lists, a shared table, a field of two values, and missing ones."""
  folder = tmp_path_factory.mktemp('shop')
  rng = np.random.default_rng(0)
  lines = ['label,user,item,last,tags,sex,price']
  for _ in range(900):
    item, last = rng.integers(1, 30, 2)
    tags = '|'.join(map(str, rng.integers(1, 9, rng.integers(0, 4))))
    user = '' if rng.random() < 0.3 else rng.integers(50)
    label = int(rng.random() < 0.3 + 0.4 * (item % 2))
    lines.append(
      f'{label},{user},{item},{last},{tags},{item % 2},{rng.random()}'
    )
  (folder / 'train.csv').write_text('\n'.join(lines) + '\n')
  config = config_lib.ranking()
  config.model = config_lib.dlrm(dim=4, top=(8,), bottom=(8,))
  config.data.name, config.data.path = 'csv', str(folder / 'train.csv')
  features = {name: {'kind': 'categorical'} for name in ('user', 'sex')}
  features |= {
    'item': {'kind': 'categorical', 'table': 'items'},
    'last': {'kind': 'categorical', 'table': 'items'},
    'tags': {'kind': 'multi_hot', 'separator': '|', 'pooling': 'mean'},
    'price': {'kind': 'numeric'},
  }
  config.data.features = features
  return train_run(config, folder / 'run')


def run_command(capsys, *words):
  assert partition_towers.main([str(word) for word in words]) == 0
  return capsys.readouterr().out


@pytest.mark.parametrize('strategy', partition_towers.STRATEGIES)
def test_every_strategy_writes_towers_of_a_run(
  clicks_run, tmp_path, capsys, strategy
):
  text = run_command(
    capsys, clicks_run, '--towers=2', f'--strategy={strategy}', '--samples=500',
    f'--output={tmp_path}',
  )  # fmt: skip
  assert text.startswith(f'8 features in 2 towers, strategy {strategy}')
  plan = read_towers(tmp_path)
  assert [len(tower) for tower in plan.towers] == [4, 4]
  assert sorted(plan.features) == [f'c{i}' for i in range(8)]
  assert plan.strategy == strategy and plan.seed == 0
  picture = tmp_path / partition_towers.PICTURE
  dealt = strategy in partition_towers.DEALT
  assert picture.exists() != dealt
  if not dealt:
    assert plan.samples == 500 and 0 < plan.stress < 1
    drawn = xml.dom.minidom.parse(str(picture)).getElementsByTagName('title')
    titles = [node.firstChild.data for node in drawn]
    assert sorted(titles) == sorted(
      f'c{i}, tower {plan.find_tower(f"c{i}")}' for i in range(8)
    )
    assert 'distance of two features: ' in text and 'stress: ' in text


def test_the_same_command_writes_the_same_bytes(clicks_run, tmp_path, capsys):
  for name in 'ab':
    run_command(
      capsys,
      clicks_run,
      '--towers=3',
      '--seed=5',
      f'--output={tmp_path / name}',
    )
  for file in ('towers.json', 'towers.svg'):
    one, other = (tmp_path / name / file for name in 'ab')
    assert one.read_bytes() == other.read_bytes()


def test_vectors_are_the_rows_of_the_checkpoint(shop_run):
  data, task, extensions = partition_towers._load_run(shop_run)
  samples = tower_samples.load_samples(data, task, 300, 0)
  vectors, step = tower_samples.read_vectors(
    shop_run, task, samples, 'latest', extensions
  )
  tables = load_weights(shop_run, task, 'latest').tables
  assert step == 8 and len(samples.rows) == 300
  ids = samples.rows.ids
  for name, table in (('user', 'user'), ('item', 'items'), ('last', 'items')):
    own = ids[:, samples.names.ids.index(name)]
    np.testing.assert_allclose(vectors[name], np.asarray(tables[table])[own])
    np.testing.assert_array_equal(samples.present[name], own != 0)
  assert 0.1 < 1 - samples.present['user'].mean() < 0.5
  bags = samples.rows.bags['tags']
  rows, start = np.asarray(tables['tags']), 0
  codes = samples.codes()['tags']
  for i, length in enumerate(bags.lengths):
    own = bags.values[start : start + length]
    mean = rows[own].mean(axis=0) if length else np.zeros(4)
    np.testing.assert_allclose(vectors['tags'][i], mean, atol=1e-6)
    assert codes[i] == (own[-1] if length else 0)
    start += length
  np.testing.assert_array_equal(samples.present['tags'], bags.lengths > 0)
  assert samples.values['sex'] == 2
  loads = {f.name: f for f in samples.features}
  assert loads['item'].source == loads['last'].source == 'items'
  assert loads['item'].load == 16 and loads['tags'].load > 16
  assert loads['user'].bytes == tables['user'].nbytes


def test_samples_are_drawn_from_all_of_the_split(clicks_run):
  data, task, _ = partition_towers._load_run(clicks_run)
  split = data.splits['train']
  rows = [
    tower_samples.load_samples(data, task, 200, seed).rows.labels[:, 0]
    for seed in (0, 0, 1)
  ]
  np.testing.assert_array_equal(rows[0], rows[1])
  assert not np.array_equal(rows[0], rows[2])
  first = split.block(0).take(np.arange(200)).labels[:, 0]
  assert not np.array_equal(rows[0], first)
  every = tower_samples.load_samples(data, task, 10**9, 0)
  assert len(every.rows.labels) == len(split)


def test_features_of_a_shared_table_stay_together(shop_run, tmp_path, capsys):
  text = run_command(
    capsys, shop_run, '--towers=2', '--least=2', f'--output={tmp_path}'
  )
  plan = read_towers(tmp_path)
  assert plan.find_tower('item') == plan.find_tower('last')
  assert 'note: sex: 3 values or fewer' in text
  assert 'price' not in text  # a number has no table


def test_towers_by_hand_are_described(clicks_run, tmp_path, capsys):
  file = tmp_path / 'mine.json'
  names = [f'c{i}' for i in range(8)]
  file.write_text(json.dumps({'version': 1, 'towers': [names[:3], names[3:]]}))
  before = sorted(clicks_run.iterdir())
  text = run_command(capsys, clicks_run, f'--check={file}')
  assert text.startswith('8 features in 2 towers\n') and 'c0, c1, c2' in text
  assert 'in all towers' in text and 'wrote' not in text
  assert sorted(clicks_run.iterdir()) == before
  file.write_text(json.dumps({'version': 1, 'towers': [names[:3], names[4:]]}))
  with pytest.raises(ValueError, match="no tower has 'c3'"):
    partition_towers.main([str(clicks_run), f'--check={file}'])


def test_without_a_model_no_weights_are_needed(clicks_run, tmp_path, capsys):
  untrained = tmp_path / 'run'
  untrained.mkdir()
  for file in clicks_run.glob('*config.json*'):
    (untrained / file.name).write_bytes(file.read_bytes())
  words = [untrained, '--towers=2', '--samples=200']
  assert 'c0' in run_command(capsys, *words, '--strategy=cooccurrence')
  assert (untrained / 'towers.json').exists()
  with pytest.raises(ValueError, match='no checkpoint; train first'):
    partition_towers.main([str(word) for word in words])


@pytest.mark.parametrize(
  'words, wanted',
  [
    (['--towers=9'], '9 towers need as many tables, but the 8 features'),
    (
      ['--max_bytes=100'],
      "feature 'c0' has .* bytes, and a tower may have 100",
    ),
    (['--max_load=16'], '128 load, and 4 towers of 16 at most hold 64'),
    (['--samples=1'], '--samples must be at least 2, not 1'),
  ],
)
def test_what_cannot_be_is_refused(clicks_run, words, wanted):
  with pytest.raises(ValueError, match=wanted):
    partition_towers.main([str(clicks_run), *words])


def test_other_directories_and_tasks_are_refused(tmp_path):
  with pytest.raises(FileNotFoundError, match='no config.json'):
    partition_towers.main([str(tmp_path)])
  config = config_lib.retrieval()
  (tmp_path / 'config.json').write_text(config_lib.to_json(config))
  with pytest.raises(ValueError, match="a run of task 'retrieval'"):
    partition_towers.main([str(tmp_path)])


def test_models_without_rows_are_refused(tmp_path):
  config = config_lib.ranking()
  config.model = config_lib.lr()
  config.data.clicks.update(rows=300, fields=3, orders=(1,))
  (tmp_path / 'config.json').write_text(config_lib.to_json(config))
  with pytest.raises(ValueError, match="no rows of feature 'c0'"):
    partition_towers.main([str(tmp_path), '--towers=2'])


@pytest.mark.parametrize(
  'word, message',
  [
    ('--seed=-1', '--seed must be at least 0, not -1'),
    ('--max_bytes=nan', '--max_bytes must be above 0, not nan'),
    ('--max_load=-1', '--max_load must be above 0'),
    ('--dimensions=0', '--dimensions must be at least 1'),
    ('--least=0', '--least must be at least 1, not 0'),
    ('--most=-3', '--most must be at least 1, not -3'),
    ('--least=5 --most=3', '--most=3 is less than --least=5'),
    ('--least=5', '8 features do not make 2 towers of 5 features'),
    ('--most=3', '8 features do not make 2 towers of 3 features'),
    ('--strategy=random --output=/dev/null', '--output=/dev/null is no dir'),
  ],
)
def test_bounds_that_mean_nothing(clicks_run, word, message):
  with pytest.raises(ValueError, match=message):
    partition_towers.main([str(clicks_run), '--towers=2', *word.split()])


def test_other_towers_are_not_written_over(clicks_run, tmp_path, capsys):
  words = [str(clicks_run), '--samples=300', f'--output={tmp_path}']
  partition_towers.main([*words, '--towers=2', '--strategy=random'])
  kept = (tmp_path / 'towers.json').read_text()
  partition_towers.main([*words, '--towers=2', '--strategy=random'])
  with pytest.raises(ValueError, match='pass --replace'):
    partition_towers.main([*words, '--towers=3', '--strategy=random'])
  assert (tmp_path / 'towers.json').read_text() == kept
  partition_towers.main([
    *words, '--towers=3', '--strategy=random', '--replace',
  ])  # fmt: skip
  assert (tmp_path / 'towers.json').read_text() != kept
