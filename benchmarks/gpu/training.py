"""How many tokens a second does a large HSTU train on, and what is its MFU?

8 layers of 1,024 numbers in bfloat16, 32 histories of up to 4,096 events, a
million items by row-wise AdaGrad, 128 uniform negatives, AdamW: whole steps of
`genrec_jax.runtime.step`, on batches that are ready. `tflops` counts what the
mathematics needs on real tokens: products of all matrices, the causal half of
the attention and the scores, forward once and backward twice; `mfu` is their
share of what the device's data sheet says (989 TFLOP/s for H100 and H200).
"""

import functools
import pathlib
import tempfile
import time

import numpy as np

from benchmarks.gpu import kit, measure
from benchmarks.gpu.kernels import device

LAYERS, DIM, BATCH, LONGEST, ITEMS = 8, 1024, 32, 4096, 1_000_000
NEGATIVES = 128
PEAK_TFLOPS = 989.0
TINY = dict(layers=2, dim=32, batch=4, longest=64, items=200)


def cases(args) -> list[dict]:
  usual = dict(
    layers=LAYERS, dim=DIM, batch=BATCH, longest=LONGEST, items=ITEMS
  )
  if args.rehearse:
    usual = TINY
  return [
    dict(
      case=f'{heads} heads, {bias} bias, {"remat" if remat else "kept"}',
      heads=heads,
      bias=bias,
      remat=remat,
      **usual,
    )
    for remat in (False, True)
    for heads in (8, 4)
    for bias in ('none', 'both')
  ]


def work(case: dict, args) -> dict:
  import jax

  from genrec_jax.runtime.step import make_step

  begin = time.perf_counter()
  with tempfile.TemporaryDirectory() as workdir:
    experiment, config = build(case, pathlib.Path(workdir))
    batch = next(iter(experiment.train_batches(config)))
    state = experiment.runtime.fresh_state()
    step = jax.jit(
      make_step(
        experiment.task,
        experiment.tx,
        seed=0,
        row_learning_rate=config.optimizer.rows.learning_rate,
      ),
      donate_argnums=0,
    )
    compiled = step.lower(state, batch).compile()
  row = dict(prepare_s=time.perf_counter() - begin)
  batch = jax.device_put(batch)
  tokens = int(np.sum(batch.jagged['events'].lengths))

  def run(turns):
    nonlocal state
    for _ in range(turns):
      state, loss = compiled(state, batch)
    losses.append(float(loss))  # waits for the last step

  losses = []
  seconds = kit.locked(measure.time_calls)(run, 0.0 if args.rehearse else 1.0)
  if not np.isfinite(losses).all() or losses[-1] >= losses[0]:
    raise ValueError(f'losses of one batch, again and again: {losses}')
  lengths = np.asarray(batch.jagged['events'].lengths)
  tflops = count_flops(case, lengths) / seconds / 1e12
  memory = compiled.memory_analysis()
  return row | dict(
    ms=1e3 * seconds,
    tokens=tokens,
    tokens_per_s=tokens / seconds,
    tflops=tflops,
    mfu=tflops / PEAK_TFLOPS,
    loss=losses[-1],
    temp_mb=memory.temp_size_in_bytes / 2**20 if memory else None,
    **device(),
  )


def count_flops(case: dict, lengths: np.ndarray) -> float:
  """Of a step, by the sizes alone: forward once, backward twice.

  Args:
    case: its sizes.
    lengths: real tokens of each history.
  """
  dim, tokens = case['dim'], float(np.sum(lengths))
  matrices = 2.0 * tokens * (4 * dim * dim + dim * dim)
  attention = measure.attention_flops(
    lengths, case['heads'], dim // case['heads'], products=2
  )
  scores = 2.0 * tokens * (NEGATIVES + 1) * dim
  return 3.0 * (case['layers'] * (matrices + attention) + scores)


def build(case: dict, workdir: pathlib.Path):
  """The experiment of a case on a generated log, and its config."""
  from genrec_jax import config as config_lib
  from genrec_jax.task_kinds import TASK_KINDS
  from genrec_jax.train import experiment as experiment_lib

  data = workdir / 'data'
  make_log(case, data)
  config = config_lib.retrieval()
  width = case['dim'] // case['heads']
  config.model = config_lib.hstu(
    dim=case['dim'], blocks=case['layers'], heads=case['heads'], dqk=width,
    dv=width, max_len=case['longest'], dtype='bfloat16',
    position_bias=case['bias'] == 'both', time_bias=case['bias'] == 'both',
    remat=case['remat'],
  )  # fmt: skip
  config.data.update(name='histories', path=str(data))
  config.loss.negatives = NEGATIVES
  config.optimizer.rows.name = 'row_adagrad'
  config.train.batch_size = case['batch']
  config.split.holdout = 1
  build_experiment = functools.partial(
    experiment_lib.build_experiment, log=lambda line: None
  )
  return build_experiment(config, workdir, TASK_KINDS), config


def make_log(case: dict, directory: pathlib.Path) -> None:
  """Writes histories of random items, one batch of them."""
  from benchmarks import ml1m_shape
  from genrec_jax.data import readers

  longest, items = case['longest'], case['items']
  # An event more than a training example has: the last one is held out.
  lengths = 1 + measure.lengths(longest, 0.5, longest * case['batch'])
  lengths = np.maximum(lengths, 3).astype(np.int64)
  rng = np.random.default_rng(0)
  total = int(lengths.sum())
  log = readers.Events(
    user=np.repeat(np.arange(1, len(lengths) + 1), lengths),
    item=rng.integers(1, items + 1, total),
    time=rng.integers(956_000_000, 1_046_000_000, total),
  )
  ml1m_shape.write_log(log, directory, items)


if __name__ == '__main__':
  kit.main('benchmarks.gpu.training', __doc__, cases, work, minutes=4)
