"""What the command line says of what was nearly right, and what it says early.

A conflict of settings is told before any data are read: the paths of these
configs lead nowhere, and the workdir is not made.
"""

import os

import pytest
from absl import app

from genrec_jax import command_line
from genrec_jax import config as config_lib
from genrec_jax.contracts import Extensions
from genrec_jax.train import loop
from genrec_jax.train.settings_checks import check_files, check_settings

# --- Names


@pytest.mark.parametrize(
  'flag, meant',
  [
    ('data.path', '--config.data.path'),
    ('train.steps', '--config.train.steps'),
    ('trian.steps', '--config.train.steps'),
    ('data.pth', '--config.data.path'),
    ('data.clicks.rows', '--config.data.clicks.rows'),  # of ranking alone
    ('data.features.age', '--config.data.features.age'),
    ('patience', '--config.train.patience'),
    ('eval_every', '--config.train.eval_every'),
    (
      'batch_size',
      '--config.eval.batch_size or --config.search.batch_size or '
      '--config.train.batch_size',
    ),
    ('seed', '--config.seed'),
    ('workdri', ''),
    ('x', ''),
    ('name', ''),  # of too many keys
    ('a.b', ''),
    ('', ''),
  ],
)
def test_a_flag_that_is_a_key_without_config(flag, meant):
  hint = f'; did you mean {meant} ?' if meant else ''
  assert command_line.hint_key(flag) == hint


def test_a_word_that_is_a_key():
  words = ['train', 'own_csv', 'data.path=x.csv']
  with pytest.raises(app.UsageError) as error:
    command_line.translate(words)
  assert str(error.value).endswith('did you mean --config.data.path ?')
  with pytest.raises(app.UsageError) as error:
    command_line.translate(['train', 'own_csv', 'x.csv'])
  assert 'did you mean' not in str(error.value)


@pytest.mark.parametrize(
  'config, told',
  [
    ('own_csv:sasrek', "did you mean 'sasrec'?"),
    ('own_clicks:dlmr', "did you mean 'dlrm'?"),
    ('quickstart:smok', "did you mean 'smoke'?"),
    ('own_csv:SASRec', "did you mean 'sasrec'?"),
    ('quickstart:sasrec', 'on data of your own it is own_csv:sasrec'),
  ],
)
def test_a_variant_that_is_nearly_one(config, told):
  with pytest.raises(config_lib.ConfigError) as error:
    config_lib.load(config)
  assert str(error.value).endswith(told)
  assert 'this config knows' in str(error.value)


def test_a_variant_that_is_like_nothing():
  with pytest.raises(config_lib.ConfigError) as error:
    config_lib.load('own_csv:zzz')
  assert 'did you mean' not in str(error.value)


# --- Conflicts


@pytest.mark.parametrize(
  'name, overrides, told',
  [
    ('own_csv', ['eval.splits=test'], 'train.patience is 5 .*without .valid'),
    ('own_clicks', ['eval.splits=()'], 'train.patience is 3 .*without .valid'),
    (
      'own_csv',
      ['split.name=leave_last_out', 'split.holdout=1'],
      'train.patience is 5 .*split.holdout=1 holds out a test item alone',
    ),
    (
      'own_csv',
      ['split.name=global_time', 'split.valid_from=0.9'],
      'train.patience is 5 .*split.valid_from=0.9 leaves nothing',
    ),
    (
      'own_csv',
      ['split.name=global_time', 'split.valid_from=0.95'],
      'split.valid_from is 0.95, after split.test_from, which is 0.9',
    ),
    (
      'own_csv',
      ['split.name=global_time', 'split.valid_from=0'],
      'split.valid_from is 0.0, must be seconds since 1970 or a share',
    ),
    (
      'own_csv',
      ['data.stream.directory=parts', 'train.steps=9'],
      "train.eval_every must be set where .* 'parts': a stream has no epochs",
    ),
    (
      'own_clicks',
      ['eval.progressive=window', 'parallel.microbatches=2'],
      "eval.progressive=window scores .*microbatches=1",
    ),
    (
      'own_clicks',
      ['data.labels=a,b', 'data.label_kinds.b=float'],
      'data.label_kinds.b: the label is any number',
    ),
    ('own_csv', ['train.init_from=no.safetensors'], 'init_from is .no.safeten'),
    (
      'own_csv',
      ['checkpoint.sign_key_file=no.key'],
      'sign_key_file: key file no.key cannot be read .No such file',
    ),
  ],
)
def test_a_conflict_is_told_at_the_start(
  name, overrides, told, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  kinds = {kind: _NoData for kind in ('retrieval', 'ranking')}
  with pytest.raises(config_lib.ConfigError, match=told):
    config = config_lib.load(name, ['data.path=not_there.csv', *overrides])
    loop.train_and_evaluate(config, tmp_path / 'run', kinds)
  assert os.listdir(tmp_path) == []


class _NoData:
  defaults = None


@pytest.mark.parametrize(
  'name, overrides',
  [
    ('own_csv', ['eval.splits=test', 'train.patience=0']),
    ('own_csv', ['eval.splits=train,valid']),
    ('own_csv', ['split.name=leave_last_out', 'split.holdout=2']),
    ('own_csv', ['split.name=global_time', 'split.valid_from=0.8']),
    # Which of them is later, only the data can say.
    (
      'own_csv',
      ['split.name=global_time', 'split.valid_from=1e9', 'split.test_from=0.9'],
    ),
    ('own_clicks', ['eval.progressive=window']),
    ('own_clicks', ['data.label_kinds.label=probability']),
  ],
)
def test_what_makes_a_run_is_not_refused(name, overrides):
  check_settings(config_lib.load(name, overrides))


def test_first_weights_are_looked_for_where_they_are_read():
  config = config_lib.load('own_csv', ['train.init_from=no.safetensors'])
  check_files(config, continues=True)
  with pytest.raises(config_lib.ConfigError, match='there is no such file'):
    check_files(config, continues=False)


def test_evaluations_of_host_tables_are_refused_with_the_settings():
  class OnHost:
    on_host = True

  extensions = Extensions(stores={'items': OnHost()})
  config = config_lib.load('own_csv')
  with pytest.raises(config_lib.ConfigError, match='items work on the host'):
    check_settings(config, extensions)
