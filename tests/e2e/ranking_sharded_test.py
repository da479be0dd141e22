"""A ranking run spread over devices by its configuration alone.

With dropout, which goes by the number of an example in the batch; with batch
norm, whose statistics are those of all devices; and with a last batch that is
not full.
"""

import jax
import pytest

from genrec_jax import config as config_lib
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import loop
from tests.e2e.spread_runs import ROOT
from tests.tolerances import assert_close
from tests.train import tiny_run

CONFIGS = {
  'wukong': f'{ROOT}/configs/wukong_synthetic.py:smoke',
  'deepfm': f'{ROOT}/configs/frappe.py:deepfm,smoke',
  'tbsm': f'{ROOT}/configs/tbsm_synthetic.py:smoke',  # of packed histories
}
OVERRIDES = (
  'data.clicks.rows=1100',  # 880 to train on: the last batch is not full
  'model.dropout=0.2',
  'optimizer.clip_norm=1.0',
  # Adam's first steps are the signs of gradients, and where a gradient is the
  # noise of rounding, so is its sign. With this, steps are smooth in gradients.
  'optimizer.eps=1e-3',
  'train.steps=9',
  'train.log_every=1',
  'train.eval_every=9',
  'report.importance_rows=0',
)
ROWS = 'optimizer.rows.name=row_adagrad'
SPREADS = {
  'row_wise, fsdp': (
    ROWS,
    'parallel.devices=8',
    'parallel.scheme=row_wise',
    'parallel.dense=fsdp',
  ),
  'auto, hybrid, accumulate': (
    ROWS,
    'parallel.hosts=2',
    'parallel.devices=2',
    'parallel.scheme=auto',
    'parallel.dense=hybrid',
    'parallel.microbatches=2',
  ),
  'dense tables, ddp': ('parallel.devices=4',),
  'dense tables, grad_op': ('parallel.devices=8', 'parallel.dense=grad_op'),
}


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
  """(model, *overrides) -> its curve; each run is made once."""
  directory, made = tmp_path_factory.mktemp('runs'), {}

  def run(model, *overrides):
    if (model, *overrides) not in made:
      workdir = directory / str(len(made))
      l2 = 0.0 if ROWS in overrides else 0.01
      l2s = f'loss.table_l2={l2}', 'loss.net_l2=0.01'
      dense = ['optimizer.rows.name=dense', 'optimizer.rows.learning_rate=0.05']
      dense = [] if ROWS in overrides else dense
      given = [*OVERRIDES, *l2s, *dense, *overrides]
      config = config_lib.load(CONFIGS[model], given)
      with jax.numpy_dtype_promotion('standard'):  # for optax
        loop.train_and_evaluate(config, workdir, TASK_KINDS)
      made[model, *overrides] = tiny_run.curve(workdir)
    return made[model, *overrides]

  return run


@pytest.mark.parametrize(
  'model, name',
  [
    ('deepfm', 'row_wise, fsdp'),
    *(
      pytest.param(model, name, marks=pytest.mark.slow)
      for model in CONFIGS
      for name in SPREADS
      # Batch norm within microbatches is of each of them.
      if not (model == 'deepfm' and 'accumulate' in name)
    ),
  ],
)
def test_trains_as_on_one_device(runs, model, name):
  overrides = SPREADS[name]
  alone = tuple(o for o in overrides if not o.startswith('parallel.'))
  found, wanted = runs(model, *overrides), runs(model, *alone)
  assert [r['step'] for r in found] == [r['step'] for r in wanted]
  for row, other in zip(found, wanted, strict=True):
    for key in other.keys() & row.keys():
      near = 'curve' if key.startswith('train/') else 'float32'
      assert_close(row[key], other[key], near, f'{key}, step {row["step"]}')
