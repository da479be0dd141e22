"""Where predictions come from and go to, looked at before an hour of work."""

import contextlib
import io
import os
import pathlib
from collections.abc import Iterator

from genrec_jax import interruption
from genrec_jax.checkpoint import workdir as workdir_lib
from genrec_jax.data import remote_files
from genrec_jax.parallel import job
from genrec_jax.progress import Progress
from genrec_jax.serve import prediction_files

Place = pathlib.Path | remote_files.RemotePath


def settle_paths(
  config, workdir: str | os.PathLike
) -> tuple[Place | None, Place]:
  """(`predict.input` or None, `predict.output`) of a run that may predict.

  Args:
    config: the config of the run, its `predict` section filled in.
    workdir: of a trained run.

  Raises:
    ValueError: a path cannot be used.
  """
  workdir, predict = pathlib.Path(workdir), config.predict
  workdir_lib.check_trained(workdir, config)
  output = remote_files.locate(predict.output or workdir / 'predictions.csv')
  prediction_files.check_path(output)
  interruption.keep(
    lambda: f'{output} is as it was, and the same command starts again'
  )
  source = remote_files.locate(predict.input) if predict.input else None
  if source and output.resolve() == source.resolve():
    raise ValueError(f'{output}: predict.output would replace predict.input')
  return source, output


class _NoFile:
  """What the other processes write, who have computed the same."""

  def write(self, rows) -> None:
    del rows


@contextlib.contextmanager
def open_output(path: Place, predict, total: int | None, unit: str) -> Iterator:
  """(file, progress) of a prediction; process 0 of a job writes and shows them.

  Args:
    path: as `settle_paths` gave it.
    predict: `config.predict`.
    total: how much there is to do; None where nobody knows.
    unit: what is counted.
  """
  with contextlib.ExitStack() as stack:
    file = _NoFile()
    if job.is_leader():
      escape = predict.escape_formulas
      file = stack.enter_context(
        prediction_files.create_file(path, escape_formulas=escape)
      )
    stream = None if job.is_leader() else io.StringIO()
    progress = stack.enter_context(Progress(total, stream=stream, unit=unit))
    stack.enter_context(interruption.Unwinding())
    yield file, progress
