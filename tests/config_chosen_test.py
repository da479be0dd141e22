"""What is chosen where the user says nothing, the same on every road."""

import json
import pathlib

import jax
import pytest
from flax import nnx

from genrec_jax import config as config_lib
from genrec_jax.config import file_formats, overrides
from genrec_jax.config.key_rules import find_rule
from genrec_jax.config.model_choice import MODELS_OF
from genrec_jax.config.models import DLRM as DLRMConfig
from genrec_jax.config.sections import MODEL_CLASSES
from genrec_jax.features import FeatureSpec
from genrec_jax.library import fitting
from genrec_jax.models import MODELS, RANKERS, REQUEST_MODELS
from genrec_jax.models.dlrm import DLRM
from genrec_jax.train.settings_checks import check_settings

# --- The interaction of DLRM


def load_on_every_road():
  yield config_lib.load('own_clicks:dlrm')
  yield config_lib.load('own_clicks', ['model.name=dlrm'])
  yield fitting._ranking_config('dlrm')


def count_inputs(config, tables, numbers):
  """Width of what the upper MLP reads."""
  features = [FeatureSpec(f't{i}', rows=3) for i in range(tables)]
  features += [FeatureSpec(f'n{i}', kind='numeric') for i in range(numbers)]
  shapes = nnx.eval_shape(
    lambda: DLRM(config, tuple(features), 1, nnx.Rngs(jax.random.key(0)))
  )
  path = jax.tree.leaves(nnx.state(shapes.top, nnx.Param))
  return max(leaf.shape[0] for leaf in path if leaf.ndim == 2)


@pytest.mark.parametrize(
  'tables, numbers, width',
  [
    # The vectors themselves, 8 numbers each; those of all numbers are one.
    (1, 0, 8),
    (2, 0, 2 * 8),
    (4, 0, 4 * 8),
    (3, 1, 4 * 8),
    (3, 7, 4 * 8),
    # The products of all pairs, and the vector of the numbers beside them.
    (5, 0, 10),
    (4, 1, 10 + 8),
    (4, 5, 10 + 8),
    (9, 0, 36),
  ],
)
def test_few_vectors_are_concatenated_and_many_multiplied(
  tables, numbers, width
):
  sizes = dict(dim=8, bottom=(2,), top=(2,))
  for config in load_on_every_road():
    fields = config.model.to_dict() | sizes
    assert fields.pop('name') == 'dlrm'
    assert count_inputs(DLRMConfig(**fields), tables, numbers) == width
  named = DLRMConfig(**sizes, interaction='dot')
  if tables > 2:
    pairs = (tables + bool(numbers)) * (tables + bool(numbers) - 1) // 2
    wanted = pairs + 8 * bool(numbers)
    assert count_inputs(named, tables, numbers) == wanted
  squares = DLRMConfig(**sizes, itself=True)
  assert squares.choose_interaction(2) == 'dot'


def test_every_road_gives_the_model_alike():
  first, *others = [c.model.to_dict() for c in load_on_every_road()]
  assert first['interaction'] == 'auto'
  assert others == [first] * 2
  named = config_lib.load('own_clicks:dlrm', ['model.interaction=dot'])
  assert named.model.interaction == 'dot'
  assert config_lib.load('frappe:dlrm').model.interaction == 'cat'


@pytest.mark.parametrize('former', ['dot', 'cat'])
def test_a_run_goes_on_with_the_interaction_that_it_began_with(
  former, tmp_path
):
  began = config_lib.load('own_clicks:dlrm', [f'model.interaction={former}'])
  path = tmp_path / 'config.json'
  config_lib.save(began, path)
  assert config_lib.load_saved(path).model.interaction == former
  config = config_lib.load('own_clicks:dlrm')
  saved = config_lib.read_config(path)
  config_lib.keep_former_values(config, saved)
  assert config_lib.describe_differences(saved, config) == []
  # Somebody who wants another one is told.
  other = {'dot': 'cat', 'cat': 'dot'}[former]
  config = config_lib.load('own_clicks:dlrm', [f'model.interaction={other}'])
  config_lib.keep_former_values(config, saved)
  assert len(config_lib.describe_differences(saved, config)) == 1


def test_a_run_of_before_the_key_multiplied(tmp_path):
  saved = json.loads(config_lib.to_json(config_lib.load('own_clicks:dlrm')))
  del saved['model']['interaction']
  path = tmp_path / 'config.json'
  path.write_text(json.dumps(saved))
  assert config_lib.load_saved(path).model.interaction == 'dot'


def test_the_reference_says_how_it_is_chosen():
  page = pathlib.Path(__file__).parents[1] / 'docs/config_reference.md'
  line = next(
    line
    for line in page.read_text().splitlines()
    if 'model.interaction' in line
  )
  assert "`'auto'`" in line and '`dot` from five vectors on' in line


# --- Capacities of ranking


def test_more_capacities_than_ranking_has_are_refused_at_the_start():
  told = 'data.token_capacities is 3, must be from 0 to 1'
  with pytest.raises(config_lib.ConfigError, match=told):
    config_lib.load('own_clicks', ['data.token_capacities=3'])
  config = config_lib.load('own_clicks')
  config.data.token_capacities = 3
  with pytest.raises(config_lib.ConfigError, match=told):
    check_settings(config)
  for count in (0, 1):
    config.data.token_capacities = count
    check_settings(config)
  assert not find_rule('data.token_capacities', 'retrieval').explain(3)


@pytest.mark.parametrize('held, read', [(0, 0), (1, 1), (2, 1), (50, 1)])
def test_a_former_run_with_more_of_them_goes_on(held, read, tmp_path):
  config = config_lib.load('own_clicks')
  saved = json.loads(config_lib.to_json(config))
  saved['data']['token_capacities'] = held
  path = tmp_path / 'config.json'
  path.write_text(json.dumps(saved))
  again = config_lib.load_saved(path)
  assert again.data.token_capacities == read
  check_settings(again)
  config_lib.save(config_lib.load('own_csv'), path)
  assert config_lib.load_saved(path).data.token_capacities == 3


# --- One table of models


def test_each_model_has_one_class():
  names = {name for models in MODELS_OF.values() for name in models}
  assert MODEL_CLASSES.keys() == names
  for name, model in (MODELS | RANKERS | REQUEST_MODELS).items():
    assert MODEL_CLASSES[name] is model.Config


# --- Formats by the names of files


def test_a_directory_is_read_only_where_its_format_is_not_known(
  tmp_path, monkeypatch
):
  read = []
  guess = file_formats.guess_format
  monkeypatch.setattr(
    overrides, 'guess_format', lambda path: read.append(path) or guess(path)
  )
  given = f'data.path={tmp_path}'
  (tmp_path / 'x.parquet').touch()
  assert config_lib.load('own_csv', [given]).data.name == 'parquet'
  assert read == [str(tmp_path)]
  config = config_lib.load('own_csv', [given, 'data.name=parquet'])
  config_lib.load('frappe', [given])
  path = tmp_path / 'config.json'
  config_lib.save(config, path)
  # A run that has begun knows its format, unless it is led elsewhere.
  assert config_lib.load_saved(path, ['train.steps=3']).data.name == 'parquet'
  assert len(read) == 1
  assert config_lib.load_saved(path, ['data.path=y.csv']).data.name == 'csv'
  assert read[1:] == ['y.csv']


def test_below_a_directory_is_looked_only_where_it_has_no_such_file(
  tmp_path, monkeypatch
):
  (tmp_path / 'train').mkdir()
  (tmp_path / 'train' / 'a.CSV').touch()
  assert file_formats.guess_format(tmp_path) == 'csv'
  (tmp_path / 'b.parquet').touch()
  monkeypatch.setattr(pathlib.Path, 'glob', None)
  assert file_formats.guess_format(tmp_path) == 'parquet'
  (tmp_path / 'c.csv').touch()  # as before, where both are there
  assert file_formats.guess_format(str(tmp_path)) == 'csv'
  assert file_formats.guess_format(tmp_path / 'none.tsv') == 'csv'
