"""Retrieval data: what a fingerprint looks at, and the shapes of batches."""

import doctest
import json
import logging
import types

import jax
import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax.config import comparison
from genrec_jax.data import histories, splits
from genrec_jax.runtime import compile_clock
from genrec_jax.train import programs
from genrec_jax.train import retrieval_data as retrieval


class Histories:
  times, vocab = None, types.SimpleNamespace(fingerprint=lambda: 'items')

  def __init__(self, items, extras):
    self.items, self.offsets = items, np.array([0, len(items)])
    self.extras = extras

  def __len__(self):
    return 1


def fingerprint(items, **extras) -> str:
  dataset = types.SimpleNamespace(histories=Histories(items, extras))
  return retrieval.RetrievalData(dataset, {}, items).fingerprint()


def test_the_fingerprint_reads_a_sample_of_a_large_log(monkeypatch):
  monkeypatch.setattr(retrieval, 'SAMPLED', 10)
  items = np.arange(40)
  sampled, other = items.copy(), items.copy()
  sampled[8], other[9] = 99, 99  # every fourth is read
  assert fingerprint(sampled) != fingerprint(items)
  assert fingerprint(other) == fingerprint(items)
  assert fingerprint(items[:-1]) != fingerprint(items)


def test_the_fingerprint_knows_extra_columns():
  items = np.arange(4)
  some, other = (fingerprint(items, price=items + n) for n in (0.5, 1.5))
  assert len({some, other, fingerprint(items)}) == 3


@pytest.mark.parametrize('make', [config_lib.retrieval, config_lib.ranking])
def test_a_run_from_before_there_were_few_capacities_keeps_its_own(make):
  config = make()
  saved = json.loads(config_lib.to_json(config))
  assert saved['data'].pop('token_capacities')
  saved = comparison.fill_defaults(saved)
  comparison.keep_former_values(config, saved)
  assert config.data.token_capacities == 0
  assert config_lib.describe_differences(saved, config) == []


def test_the_number_of_programs_is_known_before_the_first_step():
  h = histories.from_arrays(np.repeat(np.arange(300), 20), np.ones(6000, int))
  spans = {'train': splits.keep_whole(h)}
  data = retrieval.RetrievalData(types.SimpleNamespace(histories=h), spans, h)
  runtime = types.SimpleNamespace(shards=1, local_shards=None)
  config, told = config_lib.retrieval(), []
  config.train.batch_size = 256  # the second batch of an epoch has 44
  batches = data.train_batches(config, runtime, None, told.append)
  assert told == ['room for 4,864 tokens a batch, or 896 from step 265']
  assert [batches.count_programs(n) for n in (265, 266)] == [1, 2]
  config.data.token_capacities = 0
  batches = data.train_batches(config, runtime, None, told.append)
  assert not hasattr(batches, 'count_programs') and len(told) == 1


def test_programs_are_counted_by_the_shapes_of_batches():
  assert doctest.testmod(programs).failed == 0
  seconds = compile_clock.watch_compiling()
  before = len(seconds)
  for size in (3, 3, 4):
    jax.jit(lambda x: x + 1)(np.zeros(size))
  assert seconds is compile_clock.watch_compiling()
  assert len(seconds) >= before + 2 and min(seconds) >= 0


def load(tmp_path, rows, **changes):
  """The data of a log with users, items and times."""
  path = tmp_path / 'log.csv'
  lines = [','.join(map(str, row)) for row in rows]
  path.write_text('\n'.join(['user,item,time', *lines]) + '\n')
  config = config_lib.retrieval()
  config.data.update(name='csv', path=str(path))
  config.eval.ks = (1,)
  config.model.time_bias = False
  for key, value in changes.items():
    config_lib.apply_override(config, f'{key.replace("__", ".")}={value}')
  return retrieval.RetrievalData.load(config, tmp_path, lambda line: None)


# User u has items 0, 1, 2 and again 0; the odd users one that is new instead.
ROWS = [
  (user, item if item < 3 else 3 * (user % 2) + 0, 10 * item)
  for user in range(20)
  for item in range(4)
]


@pytest.mark.parametrize('filter_seen', ['history', 'window', 'none'])
def test_repeats_are_told_before_training(tmp_path, caplog, filter_seen):
  caplog.set_level(logging.INFO, logger='genrec_jax')
  data = load(tmp_path, ROWS, eval__filter_seen=filter_seen)
  told = [r for r in caplog.records if 'have had' in r.getMessage()]
  assert len(told) == 1  # not by a line and by a warning
  warned = [r.getMessage() for r in caplog.records if r.levelno > logging.INFO]
  counts, notes = data.describe_splits()
  assert counts['test']['users'] == counts['test']['examples'] == 20
  assert counts['test']['repeats'] == 0.5 and 'repeats' not in counts['valid']
  assert warned == notes
  if filter_seen == 'none':
    assert not notes and counts['test']['filter_seen'] is None
    (line,) = [r.getMessage() for r in told]
    assert line.startswith('10 of 20 test targets (50.0%) are items')
  else:
    assert notes[0].startswith('50.0% of the test targets')
    assert "set eval.filter_seen='none'" in notes[0]
    assert counts['test']['filter_seen'] == filter_seen


def test_a_window_forgets_what_is_further_back(tmp_path, caplog):
  changes = {'eval__filter_seen': 'window', 'model__max_len': 2}
  data = load(tmp_path, ROWS, **changes)
  assert data.describe_splits()[1] == [] and not caplog.records


def test_without_repeats_nothing_is_said(tmp_path, caplog):
  load(tmp_path, [row for row in ROWS if row[0] % 2])
  assert 'have had' not in caplog.text


def test_cut_offs_beyond_the_catalogue_are_one_sentence():
  describe = retrieval.describe_large_ks
  assert describe((1, 10), 60) == ''
  assert describe((10, 200), 60) == (
    'k=200 of eval.ks is left out: there are 60 items to recommend'
  )
  assert describe((10, 60, 100, 200), 60) == (
    'k=100, 200 of eval.ks are left out, and hr@60 does not depend on the '
    'model: there are 60 items to recommend'
  )
