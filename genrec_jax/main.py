"""Command line: `python -m genrec_jax.main --config=FILE --workdir=DIR`.

| exit status | meaning                                                       |
|-------------|---------------------------------------------------------------|
| 0           | done                                                          |
| 1           | an error, told in a sentence                                  |
| 2           | the command line cannot be understood                         |
| 70          | a bug of this library; the traceback is in WORKDIR/error.log  |
| 75          | stopped by SIGTERM, and saved: run the same command again     |
| 130         | stopped by Ctrl-C, and saved: run the same command again      |
"""

from genrec_jax import interruption

if __name__ == '__main__':  # other imports take the time of a Ctrl-C
  interruption.install()

import collections
import logging
import os
import sys
import traceback

from absl import app, flags
from absl import logging as absl_logging

from genrec_jax import config as config_lib
from genrec_jax.last_resort import (
  end_output,
  explain_error,
  hush_late_errors,
  print_result,
)

FLAGS = flags.FLAGS
LOGGERS = ('genrec_jax', 'pallas_kernels')  # ours
MODES = {  # -> what it does
  'train': 'training',
  'eval': 'evaluating',
  'predict': 'predicting',
  'plan': 'planning',
}

flags.DEFINE_string(
  'config',
  None,
  'Config file, FILE.py or FILE.py:variant (every config knows :smoke). Any '
  'key of it can be set: --config.train.batch_size=64 --noconfig.loss.logq',
)
flags.DEFINE_string('workdir', None, 'Directory of the run; made when absent.')
flags.DEFINE_enum(
  'mode',
  'train',
  list(MODES),
  'train: train, evaluate and report, continuing what the workdir holds. '
  'eval: evaluate its best (or latest) checkpoint. predict: write top-k items '
  'for the histories, or the probabilities of the examples, of '
  '--config.predict.input. plan: print where the tables '
  'would lie on the hardware of --config.parallel.topology, which need not be '
  'there, and what a step would cost; refuse what does not fit.',
)
flags.DEFINE_string(
  'coordinator',
  '',
  'Several processes: host:port of process 0. Slurm, MPI, Kubernetes and TPU '
  'pods are recognised without flags; auto leaves it to JAX.',
)
flags.DEFINE_integer('processes', 0, 'Several processes: how many.')
flags.DEFINE_integer('process', -1, 'Several processes: number of this one.')
flags.DEFINE_integer(
  'fake_devices',
  0,
  'Split this CPU into so many devices, to try a mesh without having one.',
)
flags.DEFINE_bool('print_config', False, 'Print the resolved config and stop.')


def split_overrides(argv: list[str]) -> tuple[list[str], list[str]]:
  """Takes `--config.a.b=V`, `--config.a.b V`, `--noconfig.flag` out."""
  rest, overrides = [], []
  words = collections.deque(argv)
  while words:
    word = words.popleft()
    name = word.lstrip('-')
    if word.startswith('-') and name.startswith('config.'):
      key = name.removeprefix('config.')
      # Without a value, when the next word is a flag, it is a switch.
      if '=' not in key and words and not words[0].startswith('--'):
        key += f'={words.popleft()}'
      overrides.append(key)
    elif word.startswith('-') and name.startswith('noconfig.'):
      overrides.append(name.removeprefix('noconfig.') + '=false')
    else:
      rest.append(word)
  return rest, overrides


def main(argv: list[str], overrides: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'unexpected arguments: {" ".join(argv[1:])}')
  if not FLAGS.config:
    raise app.UsageError(
      '--config is missing, try --config=configs/quickstart.py'
    )
  config = config_lib.load(FLAGS.config, overrides)
  if FLAGS.print_config:
    print_result(config_lib.to_json(config))
    return
  if not FLAGS.workdir:
    raise app.UsageError('--workdir is missing, a directory for this run')
  # Late, so that --help and config errors do not wait for JAX.
  _start_devices(config.parallel)
  from genrec_jax import extensions as extensions_lib
  from genrec_jax.contracts import kind_of
  from genrec_jax.runtime.compile_cache import use_compile_cache
  from genrec_jax.task_kinds import TASK_KINDS

  use_compile_cache(config)
  extensions = extensions_lib.load_extensions(config.get('extensions', ''))
  kinds = extensions_lib.add_to_kinds(TASK_KINDS, extensions)
  if FLAGS.mode == 'train':
    from genrec_jax.train import loop

    loop.train_and_evaluate(config, FLAGS.workdir, kinds, extensions)
  elif FLAGS.mode == 'plan':
    from genrec_jax.runtime import planning
    from genrec_jax.train import experiment

    task = experiment.load_task(
      config, FLAGS.workdir, kinds, extensions=extensions
    )
    print_result(
      planning.describe_plan(config, task, FLAGS.workdir, extensions)
    )
  elif FLAGS.mode == 'eval':
    from genrec_jax.train import results

    results.evaluate_run(config, FLAGS.workdir, kinds, extensions)
  else:
    kind_of(config, kinds).predict(config, FLAGS.workdir, extensions)


def _start_devices(parallel) -> None:
  """Joins the processes of the job, or splits the CPU; then JAX may start."""
  if FLAGS.fake_devices:
    os.environ['JAX_NUM_CPU_DEVICES'] = str(FLAGS.fake_devices)
    os.environ['JAX_PLATFORMS'] = 'cpu'
    # Fewer threads than devices would wait for each other for ever.
    os.environ['NPROC'] = str(max(32, 4 * FLAGS.fake_devices))
  from genrec_jax.parallel import job, processes

  job_settings = processes.join_processes(
    FLAGS.coordinator,
    FLAGS.processes,
    FLAGS.process,
    parallel.heartbeat_s,
    parallel.join_s,
  )
  if job.process_count() > 1:
    logging.getLogger('genrec_jax').info(job_settings)
  if not job.is_leader():  # one voice is enough
    interruption.PROCESS.is_voice = False
    for name in LOGGERS:
      logging.getLogger(name).setLevel(logging.WARNING)


def start_logging() -> None:
  """Our lines plainly on stderr; of JAX, Orbax and grain only warnings."""
  handler = logging.StreamHandler()
  handler.setFormatter(logging.Formatter('%(message)s'))
  for name in LOGGERS:
    logger = logging.getLogger(name)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
  if FLAGS.verbosity <= 0:
    absl_logging.set_verbosity(absl_logging.WARNING)


def parse_flags(argv: list[str]) -> list[str]:
  """The words that are no flags; a mistake ends with the status of one."""
  try:
    return FLAGS(argv)
  except flags.Error as error:
    words = f'{error}\nPass --help to see the flags.'
    interruption.leave(interruption.MISUSED, words)


def run() -> None:
  """Parses the command line and runs; user errors end without a traceback."""
  interruption.install()
  hush_late_errors()
  argv, overrides = split_overrides(sys.argv)
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '1')
  # Tracebacks are written to error.log alone, and shall be whole there.
  os.environ.setdefault('JAX_TRACEBACK_FILTERING', 'off')

  def run_guarded(argv):
    start_logging()
    try:
      main(argv, overrides)
      _part_from_peers()
    except app.UsageError as error:
      interruption.leave(interruption.MISUSED, f'error: {error}')
    except interruption.Stopped as stopped:
      interruption.end_by_signal(stopped.number)
    except Exception as error:
      status, words = explain_error(error, MODES[FLAGS.mode], FLAGS.workdir)
      if FLAGS.verbosity > 0:
        traceback.print_exc()
      if peers := interruption.PROCESS.peers:
        peers.fail(f'in another process: {words.removeprefix("error: ")}')
      interruption.leave(status, words)
    interruption.leave(*end_output())

  app.run(run_guarded, argv=argv, flags_parser=parse_flags)


def _part_from_peers() -> None:
  """Waits until all processes have done their part."""
  if interruption.PROCESS.peers:
    from genrec_jax.parallel import peers

    peers.part()


if __name__ == '__main__':
  run()
