"""One experiment, spread over devices by its configuration alone.

The models drop out and draw negatives: both go by the number of a token in the
batch, so that they are the same wherever the token lies.
"""

import itertools

import jax
import pytest

from genrec_jax.embedding.plan import SCHEMES
from genrec_jax.planner import InsufficientMemory
from genrec_jax.serve.predictor import Predictor
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import loop, results
from tests.e2e import spread_runs
from tests.e2e.spread_runs import MESH, ROWS, assert_same_curve
from tests.marks import slow
from tests.tolerances import assert_close
from tests.train import tiny_run

# name -> the keys of `parallel` that differ from a run on one device.
SPREADS = {
  'ddp': ('parallel.replicas=2', *MESH),
  'row_wise': (*MESH, 'parallel.scheme=row_wise'),
  'row_wise, fsdp, offload, ragged': (
    *MESH,
    'parallel.dense=fsdp',
    'parallel.offload=true',
    'parallel.exchange.kind=ragged',
  ),
  'table_row_wise, hybrid, accumulate': (
    *MESH,
    'parallel.scheme=table_row_wise',
    'parallel.dense=hybrid',
    'parallel.microbatches=2',
  ),
  'column_wise, grad_op, gather': (
    'parallel.devices=4',
    'parallel.scheme=column_wise',
    'parallel.dense=grad_op',
    'parallel.exchange.kind=gather',
  ),
}


class Runs:
  """Runs of this file, each made once."""

  def __init__(self, directory):
    self._directory, self._made = directory, {}

  def __call__(self, model: str, *overrides: str):
    """The workdir of a run to its end."""
    key = (model, *overrides)
    if key not in self._made:
      workdir = self._directory / str(len(self._made))
      spread_runs.train(workdir, *key)
      self._made[key] = workdir
    return self._made[key]


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
  return Runs(tmp_path_factory.mktemp('runs'))


@pytest.mark.parametrize(
  'model, loss, name',
  [
    ('hstu', (ROWS,), 'row_wise, fsdp, offload, ragged'),
    ('hstu', (ROWS,), 'table_row_wise, hybrid, accumulate'),
    pytest.param(
      'sasrec', ('loss.sampler=in_batch',), 'ddp', marks=pytest.mark.slow
    ),
  ],
)
def test_trains_as_on_one_device(runs, model, loss, name):
  found = runs(model, *loss, *SPREADS[name])
  assert_same_curve(found, runs(model, *loss))


def test_a_table_too_large_for_one_device(runs, tmp_path):
  """20,001 rows of 16 and their slots are 1.4 MB, a device has 1 MB."""
  large = (ROWS, 'data.synthetic.items=20000', 'loss.sampler=in_batch')
  budget = 'parallel.memory_gb=0.001'
  with pytest.raises(InsufficientMemory) as refused:
    spread_runs.train(tmp_path, 'sasrec', *large, budget)
  words = str(refused.value)
  assert 'device 0 would hold 1.38 MB (1.36 MB of rows and optimizer' in words
  assert 'less 15% reserve and ' in words
  assert 'items: 20,001 x 16, 1.36 MB in all' in words
  assert not (tmp_path / 'checkpoints').exists()
  found = runs('sasrec', *large, budget, 'parallel.devices=8')
  assert_same_curve(found, runs('sasrec', *large))


@pytest.mark.slow
@pytest.mark.parametrize('model', spread_runs.CONFIGS)
@pytest.mark.parametrize('update', ['dense', 'row_adagrad', 'adam', 'sgd'])
@pytest.mark.parametrize('name', SPREADS)
def test_every_way_to_spread(runs, model, update, name):
  update = f'optimizer.rows.name={update}'
  if name == 'ddp':  # groups of their own step by their own gradients
    parallel = ('parallel.devices=8',)
  else:
    parallel = SPREADS[name]
  found = runs(model, update, *parallel)
  assert_same_curve(found, runs(model, update))


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['gather', 'all_to_all', 'ragged'])
@pytest.mark.parametrize('scheme', SCHEMES)
def test_every_scheme_and_exchange(runs, scheme, kind):
  found = runs(
    'sasrec',
    ROWS,
    *MESH,
    f'parallel.scheme={scheme}',
    f'parallel.exchange.kind={kind}',
  )
  assert_same_curve(found, runs('sasrec', ROWS))


@pytest.mark.slow
@pytest.mark.parametrize(
  'sampler', ['uniform', 'shared', 'in_batch', 'in_batch_unique']
)
@pytest.mark.parametrize('microbatches', [1, 2])
def test_every_sampler(runs, sampler, microbatches):
  sampler = f'loss.sampler={sampler}'
  parallel = ('parallel.devices=4', f'parallel.microbatches={microbatches}')
  found = runs('hstu', ROWS, sampler, *parallel)
  assert_same_curve(found, runs('hstu', ROWS, sampler))


@pytest.mark.slow
def test_an_exchange_without_room_is_the_same(runs):
  found = runs('hstu', ROWS, *MESH, 'parallel.exchange.capacity=0.1')
  assert_same_curve(found, runs('hstu', ROWS))
  counted = [
    row['train/exchange_overflow']
    for row in tiny_run.curve(found)
    if 'train/loss' in row
  ]
  assert min(counted) > 0


# --- Checkpoints


ONE = ()


def continued(directory, model, loss, *ways):
  """Each of the ways takes the run a few steps further, the last to its end."""
  for number, way in enumerate(ways, 1):
    steps = spread_runs.EVERY * number
    if number == len(ways):
      steps = spread_runs.STEPS
    spread_runs.train(directory, model, *loss, f'train.steps={steps}', *way)
  return directory


def test_a_run_continues_spread_otherwise(runs, tmp_path):
  found = continued(
    tmp_path,
    'hstu',
    (ROWS,),
    SPREADS['row_wise, fsdp, offload, ragged'],
    SPREADS['table_row_wise, hybrid, accumulate'],
    ONE,
  )
  assert_same_curve(found, runs('hstu', ROWS))
  assert_same_answers(found, runs('hstu', ROWS))


@pytest.mark.parametrize(
  'ways', [(ONE, SPREADS['row_wise']), slow((SPREADS['row_wise'], ONE))]
)
def test_a_line_sums_up_steps_of_two_meshes(runs, tmp_path, monkeypatch, ways):
  """Taken away between two lines, after the checkpoint of step 4."""
  keys = ('sasrec', ROWS, 'train.log_every=3')
  update = loop.Progress.update

  def interrupt(progress, step, **shown):
    if step == 5:
      raise KeyboardInterrupt
    return update(progress, step, **shown)

  with monkeypatch.context() as patch:
    patch.setattr(loop.Progress, 'update', interrupt)
    with pytest.raises(KeyboardInterrupt):
      spread_runs.train(tmp_path, *keys, *ways[0])
  spread_runs.train(tmp_path, *keys, *ways[1])
  assert_same_curve(tmp_path, runs(*keys))


def test_a_run_that_was_spread_is_evaluated(runs):
  keys = ('hstu', ROWS, *SPREADS['row_wise, fsdp, offload, ragged'])
  workdir = runs(*keys)
  with jax.numpy_dtype_promotion('standard'):  # for optax
    found = results.evaluate_run(spread_runs.config(*keys), workdir, TASK_KINDS)
  row = next(
    row
    for row in tiny_run.curve(workdir)
    if row['step'] == found['step'] and 'valid/mrr' in row
  )
  for name, value in found['metrics']['valid'].items():
    assert value == row[f'valid/{name}']


@pytest.mark.slow
@pytest.mark.parametrize('update', ['dense', 'row_adagrad', 'adam'])
@pytest.mark.parametrize(
  'first, second', list(itertools.permutations([*SPREADS, 'one device'], 2))
)
def test_from_every_spread_to_every_other(
  runs, tmp_path, update, first, second
):
  update = f'optimizer.rows.name={update}'
  ways = {**SPREADS, 'ddp': ('parallel.devices=8',), 'one device': ONE}
  found = continued(tmp_path, 'sasrec', (update,), ways[first], ways[second])
  assert_same_curve(found, runs('sasrec', update))
  assert_same_answers(found, runs('sasrec', update))


def assert_same_answers(workdir, wanted) -> None:
  """The same items for the same histories, with the same scores."""
  found, wanted = Predictor.load(workdir), Predictor.load(wanted)
  assert found.step == wanted.step
  histories = [wanted.items.vocab.ids[[1, 5, 9]].tolist(), [7], [3, 3]]
  for own, other in zip(
    found.recommend(histories), wanted.recommend(histories), strict=True
  ):
    assert [item for item, _ in own] == [item for item, _ in other]
    assert_close([s for _, s in own], [s for _, s in other])
