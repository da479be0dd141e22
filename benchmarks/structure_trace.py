"""Traces one training step and prints which own functions it went through.

  PYTHONPATH=CHECKOUT python -P benchmarks/structure_trace.py wukong CHECKOUT

A program of its own, which imports nothing of `benchmarks`: the checkout that
is traced may be an older one. It prints one JSON object.
"""

import json
import os
import pathlib
import sys
import tempfile

PACKAGES = ('genrec_jax', 'pallas_kernels')
# Name -> (config, overrides, devices); `main` makes a step of each.
RUNS = {
  'wukong': ('wukong_synthetic.py:smoke', (), 1),
  'hstu': (
    'quickstart.py:smoke',
    (
      # The former name of the key: both commits understand it.
      'data.table_update=row_adagrad',
      'parallel.hosts=2',
      'parallel.devices=4',
      'parallel.pipeline=exact',
    ),
    8,
  ),
}


class Tracer:
  """Counts the frames whose file is one of `roots`; use with `with`.

  >>> import fractions
  >>> folder = pathlib.Path(fractions.__file__).parent
  >>> with Tracer([folder / 'fractions.py']) as tracer:
  ...   fractions.Fraction(1, 2)
  Fraction(1, 2)
  >>> tracer.depth, len(tracer.files)
  (1, 1)

  Attributes:
    depth: the most of them that were open at once.
    deepest: 'file:function' of those, the first time.
    functions: (file, line, name) of each that was entered.
    files: of those.
  """

  def __init__(self, roots):
    self._roots = tuple(str(root) for root in roots)
    self._open, self._own = [], {}
    self.depth, self.deepest, self.functions = 0, [], set()

  def __enter__(self):
    sys.setprofile(self._see)
    return self

  def __exit__(self, *error):
    sys.setprofile(None)

  @property
  def files(self) -> set[str]:
    return {file for file, _, _ in self.functions}

  def _see(self, frame, event, argument):
    del argument
    code = frame.f_code
    if code not in self._own:
      self._own[code] = code.co_filename.startswith(self._roots)
    if not self._own[code]:
      return
    if event == 'call':
      self._enter(code)
    elif event == 'return' and self._open:
      self._open.pop()

  def _enter(self, code):
    self._open.append(code)
    if not code.co_name.startswith('<'):  # lambdas, comprehensions
      self.functions.add((code.co_filename, code.co_firstlineno, code.co_name))
    if len(self._open) > self.depth:
      self.depth = len(self._open)
      self.deepest = [
        f'{pathlib.Path(c.co_filename).name}:{c.co_name}' for c in self._open
      ]


def trace(name: str, root: pathlib.Path) -> dict:
  """Traces the step of a run of `RUNS`.

  Args:
    name: of the run.
    root: the checkout, from which `genrec_jax` is imported.

  Returns:
    What there is to count, as JSON can say it.
  """
  import jax

  from genrec_jax import config as config_lib
  from genrec_jax.train import experiment

  file, overrides, _ = RUNS[name]
  config = config_lib.load(str(root / 'configs' / file), list(overrides))
  with tempfile.TemporaryDirectory() as workdir:
    # In older checkouts the function is called `build`.
    build = getattr(experiment, 'build_experiment', None) or experiment.build
    pieces = build(config, workdir, *_kinds(), lambda *_: None)
    # An earlier commit calls it otherwise.
    runtime = getattr(pieces, 'runtime', None) or pieces.spread
    batches = runtime.batches(iter(pieces.train_batches(config)))
    batch = next(batches)
    batches.close()
  state, step = runtime.abstract_state(), runtime.step()
  with Tracer([root / package for package in PACKAGES]) as tracer:
    jax.eval_shape(lambda state, batch: step(state, batch), state, batch)
  return {
    'depth': tracer.depth,
    'functions': len(tracer.functions),
    'files': len(tracer.files),
    'deepest': tracer.deepest,
  }


def _kinds() -> tuple:
  """The argument of `build_experiment` that names the kinds of tasks."""
  try:
    from genrec_jax.task_kinds import TASK_KINDS
  except ImportError:
    return ()
  return (TASK_KINDS,)


def main(name: str, root: str) -> None:
  devices = RUNS[name][2]
  os.environ['JAX_PLATFORMS'] = 'cpu'
  os.environ['JAX_NUM_CPU_DEVICES'] = str(devices)
  os.environ['NPROC'] = '32'  # fewer threads than devices would deadlock
  print(json.dumps(trace(name, pathlib.Path(root).resolve())))


if __name__ == '__main__':
  main(*sys.argv[1:])
