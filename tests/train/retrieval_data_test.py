"""Retrieval data: what a fingerprint looks at, and the shapes of batches."""

import doctest
import json
import types

import jax
import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax.config import comparison
from genrec_jax.data import histories, splits
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
  seconds = programs.watch_compiling()
  before = len(seconds)
  for size in (3, 3, 4):
    jax.jit(lambda x: x + 1)(np.zeros(size))
  assert seconds is programs.watch_compiling()
  assert len(seconds) >= before + 2 and min(seconds) >= 0
