"""Workdirs that earlier versions wrote still open, continue and serve.

tests/golden/COMMIT holds what the code of that commit left behind and what it
went on to compute (make.py). The config is the old user's: config.py with the
same flags, through the functions of `genrec_jax.config` as they are now.
"""

import csv
import functools
import json
import os
import pathlib
import zlib

import jax
import numpy as np
import pytest

from genrec_jax import config as config_lib
from genrec_jax.checkpoint import inspect
from genrec_jax.checkpoint.follow import Follower
from genrec_jax.checkpoint.serving_copy import ServingCopy
from genrec_jax.data import datasets
from genrec_jax.data.histories import Histories
from genrec_jax.data.ranking import datasets as ranking_datasets
from genrec_jax.data.ranking.store import PreparedStore
from genrec_jax.serve.predictor import Predictor
from genrec_jax.serve.scorer import Scorer
from genrec_jax.serve.weights import load_weights
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import experiment, loop, results
from tests.golden import kinds, machine
from tests.marks import slow_but
from tests.tolerances import assert_close
from tests.train import tiny_run

every_kind = pytest.mark.parametrize('name', kinds.KINDS)


def unpack(name: str, place: pathlib.Path) -> pathlib.Path:
  """The old `workdir`, beside the `data` it was trained on."""
  with kinds.open_workdir(name) as archive:
    archive.extractall(place)
  return place / 'workdir'


@functools.cache
def expected(name: str) -> dict:
  return json.loads((kinds.FILES / f'{name}.json').read_text())


def typed_config(name: str, workdir: pathlib.Path, *more: str):
  """What the old user types today, the data being somewhere else now."""
  kind = kinds.KINDS[name]
  overrides = [*kinds.flags(kind, str(workdir.parent / 'data')), *more]
  return config_lib.load(f'{kinds.CONFIG}:{kind.config}', overrides)


# `lookup.take_rows` gives NaN for an id that is not a row, where the old code
# read some other row. XLA fuses what follows otherwise, and the last digit of
# some measurements changes. With `values[index]` instead, all bits are equal.
ROUNDED_OTHERWISE = ('sasrec_chain', 'dlrm_dense', 'wukong_mesh')


def same_bits(name: str) -> bool:
  """Whether this machine and this code round as those of the old run did."""
  if name in ROUNDED_OTHERWISE:
    return False
  return expected(name)['rounding'] == machine.describe_rounding(os.environ)


def assert_measured(name: str, found: dict, wanted: dict, where) -> None:
  """Equal numbers; to rounding on a machine that rounds otherwise."""
  assert wanted.keys() <= found.keys(), where  # later code may measure more
  found = {key: found[key] for key in wanted}
  if same_bits(name):
    assert found == wanted, where
  for key, value in wanted.items():
    dtype = 'curve' if key.startswith('train/') else 'float32'
    assert_close(found[key], value, dtype, f'{key} of {where}')


def assert_predicted(name: str, found: list[str], wanted: list[str]) -> None:
  """Equal files; on a machine that rounds otherwise, scores are near."""
  # Earlier versions gave the probability the name of the label.
  wanted = [wanted[0].replace('row,label', 'row,score'), *wanted[1:]]
  if same_bits(name):
    assert found == wanted
  found, wanted = list(csv.reader(found)), list(csv.reader(wanted))
  assert [line[:-1] for line in found] == [line[:-1] for line in wanted]
  found, wanted = ([float(x[-1]) for x in y[1:] if x] for y in (found, wanted))
  assert_close(found, wanted, 'float32', 'scores')


# --- Checkpoints


def checksum(array) -> str:
  array = np.asarray(array)
  crc = zlib.crc32(array.tobytes())
  return f'{array.dtype}{list(array.shape)} {crc:08x}'


@every_kind
def test_arrays_are_the_same_on_any_machine(name, tmp_path):
  workdir = unpack(name, tmp_path)
  config = typed_config(name, workdir)
  task = experiment.load_task(config, workdir, TASK_KINDS, log=lambda _: None)
  found = load_weights(workdir, task, 'latest')
  wanted = expected(name)['arrays']
  assert found.step == wanted['step'] == kinds.STOP
  assert {n: checksum(t) for n, t in found.tables.items()} == wanted['tables']
  params = sorted(map(checksum, jax.tree.leaves(found.params)))
  assert params == wanted['params']


@every_kind
def test_every_step_is_listed_as_whole(name, tmp_path):
  lines, well = inspect.report(unpack(name, tmp_path), contents=True)
  assert well, '\n'.join(lines)
  listed = [line.split()[0] for line in lines if line.endswith(' whole')]
  assert str(kinds.STOP) in listed


def test_the_chain_has_two_deltas(tmp_path):
  lines, _ = inspect.report(unpack('sasrec_chain', tmp_path))
  (_, _, base, *deltas, _) = lines[: lines.index('')] + ['']
  assert base.split()[1] == 'base' and len(deltas) == 2
  assert all(delta.split()[1] == 'delta' for delta in deltas)


# --- Going on


@pytest.fixture(scope='module')
def run_to_end(tmp_path_factory):
  """Name -> the old workdir, trained to its end; each once."""

  @functools.cache
  def run(name: str) -> pathlib.Path:
    workdir = unpack(name, tmp_path_factory.mktemp(name))
    with jax.numpy_dtype_promotion('standard'):  # for optax
      loop.train_and_evaluate(typed_config(name, workdir), workdir, TASK_KINDS)
    return workdir

  return run


@pytest.mark.parametrize(
  'name', slow_but(kinds.KINDS, [k for k in kinds.KINDS if 'mesh' not in k])
)
def test_continues_to_the_same_curve(run_to_end, name):
  found, wanted = tiny_run.curve(run_to_end(name)), expected(name)['curve']
  assert [row['step'] for row in found] == [row['step'] for row in wanted]
  for row, other in zip(found, wanted, strict=True):
    assert_measured(name, row, other, f'step {other["step"]}')


@every_kind
def test_steps_upon_old_ones_are_whole(run_to_end, name):
  lines, well = inspect.report(run_to_end(name))
  assert well, '\n'.join(lines)


def test_keys_of_an_old_config_still_belong_to_the_workdir(tmp_path):
  workdir = unpack('sasrec_rows', tmp_path)
  config = typed_config('sasrec_rows', workdir, 'loss.negatives=3')
  with pytest.raises(config_lib.ConfigError, match='loss.negatives: saved 2'):
    loop.train_and_evaluate(config, workdir, TASK_KINDS)


@every_kind
def test_the_config_of_the_workdir_is_the_one_that_is_typed(name, tmp_path):
  workdir = unpack(name, tmp_path)
  path, typed = workdir / 'config.json', typed_config(name, workdir)
  config_lib.keep_former_values(typed, config_lib.read_config(path))
  place = f'data.path={typed.data.path}'
  saved = config_lib.load_saved(path, [place] * bool(typed.data.path))
  if typed.parallel.scheme == 'row_wise':
    typed.parallel.scheme = ''  # which is the same
  assert saved.to_dict() == typed.to_dict()


# --- Serving


@every_kind
def test_evaluates_the_same(name, tmp_path):
  workdir = unpack(name, tmp_path)
  with jax.numpy_dtype_promotion('standard'):  # for optax
    config = typed_config(name, workdir)
    found = results.evaluate_run(config, workdir, TASK_KINDS)['metrics']
  wanted = expected(name)['evaluation']
  assert found.keys() == wanted.keys()
  for part in wanted:
    assert_measured(name, found[part], wanted[part], part)


@every_kind
def test_predicts_the_same(name, tmp_path):
  workdir = unpack(name, tmp_path)
  config = typed_config(name, workdir, 'predict.checkpoint=latest')
  TASK_KINDS[config.task].predict(config, workdir)
  found = (workdir / 'predictions.csv').read_text().split('\n')
  assert_predicted(name, found, expected(name)['predictions'])


@pytest.mark.parametrize('name', ['hstu_dense', 'sasrec_chain'])
def test_recommends_with_the_config_that_is_saved(name, tmp_path):
  workdir = unpack(name, tmp_path)
  histories = Histories.open(tmp_path / 'data/histories')
  events = [
    (histories.vocab.decode(histories.items[a:b]), histories.times[a:b])
    for a, b in zip(histories.offsets, histories.offsets[1:], strict=False)
  ]
  answers = Predictor.load(workdir, checkpoint='latest').recommend(
    [items.tolist() for items, _ in events],
    k=3,
    times=[times.tolist() for _, times in events],
  )
  _, *wanted = csv.reader(filter(None, expected(name)['predictions']))
  assert [item for answer in answers for item, _ in answer] == [
    item for _, _, item, _ in wanted
  ]
  scores = [score for answer in answers for _, score in answer]
  assert_close(scores, [float(score) for *_, score in wanted])


def test_scores_with_the_config_that_is_saved(tmp_path):
  workdir = unpack('dlrm_dense', tmp_path)
  with open(tmp_path / 'data/examples.csv') as file:
    rows = list(csv.DictReader(file))
  _, *wanted = csv.reader(filter(None, expected('dlrm_dense')['predictions']))
  records = [
    {
      name: cell.split('^') * bool(cell) if name in ('tags', 'seen') else cell
      for name, cell in row.items()
    }
    for row in rows[-len(wanted) :]  # the test split
  ]
  found = Scorer.load(workdir, checkpoint='latest').score(records)
  assert_close(found[:, 0], [float(score) for _, score in wanted])


# --- What readers follow


def test_follows_what_was_published(tmp_path):
  workdir = unpack('sasrec_chain', tmp_path)
  with Follower(workdir, tmp_path / 'new', log=lambda _: None) as follower:
    assert follower.update() == [2, 4]
    table = np.array(follower.table('items'))
  old = ServingCopy(tmp_path / 'copy')
  assert old.step == 4
  np.testing.assert_array_equal(old.table('items'), table)


def test_an_old_copy_follows_on(run_to_end, tmp_path):
  unpack('sasrec_chain', tmp_path)
  with Follower(
    tmp_path / 'workdir', tmp_path / 'copy', log=lambda _: None
  ) as follower:
    assert follower.step == 4 and follower.update() == []
  workdir = run_to_end('sasrec_chain')
  for copy in ('copy', 'new'):
    with Follower(workdir, tmp_path / copy, log=lambda _: None) as follower:
      assert follower.update() == [6, 8, 9]  # each second step, and the last
  np.testing.assert_array_equal(
    ServingCopy(tmp_path / 'copy').table('items'),
    ServingCopy(tmp_path / 'new').table('items'),
  )


# --- Data


def test_events_are_converted_as_before(tmp_path):
  unpack('hstu_dense', tmp_path)
  config = _prepared_now('events.csv', tmp_path)
  found = datasets.load(config.data, tmp_path / 'now').histories
  wanted = Histories.open(tmp_path / 'data/histories')
  assert found.vocab.fingerprint() == wanted.vocab.fingerprint()
  for column in ('offsets', 'items', 'times'):
    np.testing.assert_array_equal(
      getattr(found, column), getattr(wanted, column), err_msg=column
    )


def test_examples_are_prepared_as_before(tmp_path):
  unpack('dlrm_dense', tmp_path)
  config = _prepared_now('examples.csv', tmp_path)
  found = ranking_datasets.load(config.data, tmp_path / 'now')
  assert (
    found.fingerprint()
    == PreparedStore(tmp_path / 'data/prepared').fingerprint()
  )


def _prepared_now(raw: str, place: pathlib.Path):
  variant, flags, _ = kinds.PREPARED[raw]
  return config_lib.load(
    f'{kinds.CONFIG}:{variant}', [*flags, f'data.path={place}/data/{raw}']
  )
