"""Events, a teacher and a service, small: what tests of the service share."""

import pathlib

import jax

from genrec_jax import config as config_lib
from genrec_jax.data.parquet import pa, pq
from genrec_jax.data.ranking import drift, drift_files
from genrec_jax.serve.annotate_options import AnnotateOptions
from genrec_jax.serve.annotator import Annotator
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import loop

LOG = drift.DriftLog(
  windows=5, rows=200, segments=3, fields=3, values=10, pairs=2, rate=0.2,
  window_s=100, delay=0.3, lost=0.1, seed=4,
)  # fmt: skip
STREAMS = {'feed': (0, 1), 'video': (1, 2)}
ATTRIBUTION_S = 50


def make_events(folder: pathlib.Path) -> None:
  list(drift_files.write_events(LOG, folder, STREAMS))
  (folder / 'END').touch()


def options_of(folder: pathlib.Path, out='out', **changes) -> AnnotateOptions:
  about = dict(
    events=str(folder / 'events'),
    out=str(folder / out),
    teacher=str(folder / 'teacher'),
    window_s=LOG.window_s,
    attribution_s=ATTRIBUTION_S,
    poll_s=0.01,
  )
  return AnnotateOptions(**about | changes)


def train_teacher(folder: pathlib.Path) -> None:
  """Trains on the parts that are there, and ends."""
  base = folder / 'base.parquet'
  if not base.exists():
    window = drift.DriftStream(LOG).window(0)
    columns = {'segment': window.segment, 'label': window.label}
    columns |= {f'c{i}': window.ids[:, i] for i in range(LOG.fields)}
    columns |= {'time': window.time, 'example_id': window.example_id}
    pq.write_table(pa.table(columns), base)
  config = config_lib.ranking()
  config.model = config_lib.dlrm(dim=4, top=(8,))
  config.data.update(
    name='parquet', path=str(base), oov='hash', hash_rows=64, time='time',
    example_id='example_id',
  )  # fmt: skip
  config.data.features = {
    name: {'kind': 'categorical'} for name in ('segment', 'c0', 'c1', 'c2')
  }
  config.data.stream.update(
    directory=str(folder / 'out' / 'teacher'), pattern='*.parquet',
    idle_s=0.01, poll_s=0.01,
  )  # fmt: skip
  config.checkpoint.at_part_ends = True
  config.train.update(batch_size=64, steps=0, keep_checkpoints=20)
  config.optimizer.learning_rate = 0.01
  config.eval.splits = ()
  with jax.numpy_dtype_promotion('standard'):  # for optax
    loop.train_and_evaluate(config, folder / 'teacher', TASK_KINDS)


class Impatience:
  """Stops a service that has asked often without having got further."""

  def __init__(self):
    self.calls = 0

  def __call__(self) -> bool:
    self.calls += 1
    return self.calls > 8


def run_both(folder: pathlib.Path, options: AnnotateOptions) -> dict:
  """Service and teacher in turn, each a new one every time."""
  for _ in range(4 * LOG.windows):
    facts = Annotator(options, stop=Impatience()).run()
    if facts['finished']:
      return facts
    train_teacher(folder)
  raise AssertionError('they wait for each other')
