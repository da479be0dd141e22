"""Runs that differ in how they lie on devices, and what must then agree."""

import pathlib

import jax

from genrec_jax import config as config_lib
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import loop
from tests.tolerances import assert_close
from tests.train import tiny_run

ROOT = pathlib.Path(__file__).parents[2]
CONFIGS = {
  'hstu': f'{ROOT}/configs/quickstart.py:smoke',
  'sasrec': f'{ROOT}/configs/sasrec_ml1m.py:smoke',
}
STEPS, EVERY = 12, 4
# As in tiny_run: 102 records, seven steps an epoch, the last batch not full.
# No batch has more tokens than the least capacity: one step is compiled.
OVERRIDES = (
  *tiny_run.OVERRIDES,
  'data.synthetic.length=8',
  'model.max_len=8',
  f'train.steps={STEPS}',
  'train.log_every=1',
  f'train.eval_every={EVERY}',
  f'train.checkpoint_every={EVERY}',
  'optimizer.clip_norm=1.0',
  'report.users=0',
)
ROWS = 'optimizer.rows.name=row_adagrad'
MESH = ('parallel.hosts=2', 'parallel.devices=2')


def config(model: str, *overrides: str):
  return config_lib.load(CONFIGS[model], [*OVERRIDES, *overrides])


def train(workdir, model: str, *overrides: str) -> dict | None:
  with jax.numpy_dtype_promotion('standard'):  # for optax
    return loop.train_and_evaluate(
      config(model, *overrides), workdir, TASK_KINDS
    )


def assert_same_curve(workdir, wanted) -> None:
  """Every line says the same: measurements to rounding, metrics exactly.

  Metrics are of ranks, and no two items of these runs are so close that
  rounding would exchange them.
  """
  found, wanted = tiny_run.curve(workdir), tiny_run.curve(wanted)
  assert [r['step'] for r in found] == [r['step'] for r in wanted]
  for row, other in zip(found, wanted, strict=True):
    # Only a mesh counts rows that found no room in an exchange.
    assert row.keys() - {'train/exchange_overflow'} == (
      other.keys() - {'train/exchange_overflow'}
    )
    for name in other.keys() & row.keys():
      where = f'{name} of step {other["step"]}'
      if name.startswith('train/'):
        assert_close(row[name], other[name], 'curve', where)
      else:
        assert row[name] == other[name], where
