"""Where predictions come from and go to, looked at before an hour of work."""

import os
import pathlib

from genrec_jax import interruption
from genrec_jax.checkpoint import workdir as workdir_lib
from genrec_jax.data import remote_files
from genrec_jax.parallel import job
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
    ValueError: several processes predict, or a path cannot be used.
  """
  if job.process_count() > 1:
    raise ValueError(
      'predictions are written by one process, and these are '
      f'{job.process_count()}; '
      'start --mode=predict without the others'
    )
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
