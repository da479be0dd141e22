"""The command line: `genrec COMMAND ...`, or `python -m genrec_jax.main`.

`genrec train quickstart --workdir=DIR` is the same as
`python -m genrec_jax.main --config=quickstart --workdir=DIR`; --help explains
the commands and the flags, which are in `command_line.py`.

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

import logging
import os
import pathlib
import sys
import traceback

from absl import app, flags
from absl import logging as absl_logging

from genrec_jax import command_line, provenance
from genrec_jax import config as config_lib
from genrec_jax.checkpoint import workdir_files
from genrec_jax.command_line import FLAGS, MODES
from genrec_jax.last_resort import (
  end_output,
  explain_error,
  hush_late_errors,
  print_result,
)

LOG = logging.getLogger('genrec_jax')
# Modes that begin runs, or go on with them on the mesh that they have.
BEGINS = ('train', 'plan', 'learn_hash', 'search')
SERIES = ('learn_hash', 'search')  # which begin several
LOGGERS = ('genrec_jax', 'pallas_kernels')  # ours


def main(words: list[str], overrides: list[str]) -> None:
  if words == ['configs']:
    return print_result(command_line.describe_configs())
  if words == ['models']:
    return print_result(command_line.describe_models())
  if problem := command_line.find_repeated(overrides):
    raise app.UsageError(problem)
  overrides = [
    *command_line.set_flags(command_line.translate(words)),
    *overrides,
  ]
  config = _load_config(overrides)
  if FLAGS.print_config:
    return print_result(config_lib.to_json(config))
  if not FLAGS.workdir:
    raise app.UsageError('--workdir is missing, a directory for this run')
  if FLAGS.compile_for and FLAGS.mode != 'plan':
    raise app.UsageError('--compile_for belongs to `genrec plan`')
  if FLAGS.mode not in SERIES:
    workdir_files.refuse_series(pathlib.Path(FLAGS.workdir))
  # Late, so that --help and config errors do not wait for JAX.
  _start_devices(config.parallel)
  from genrec_jax import extensions as extensions_lib
  from genrec_jax.checkpoint.workdir_files import make_workdir
  from genrec_jax.contracts import kind_of
  from genrec_jax.parallel import job
  from genrec_jax.runtime.compile_cache import use_compile_cache
  from genrec_jax.task_kinds import TASK_KINDS

  use_compile_cache(config)
  extensions = extensions_lib.load_extensions(config.get('extensions', ''))
  kinds = extensions_lib.add_to_kinds(TASK_KINDS, extensions)
  if not FLAGS.config:
    config = config_lib.load_saved(
      _saved_config(),
      overrides,
      # Of a kind of task from outside, whose keys the saved config may lack.
      kind_of(config, kinds).defaults,
      # A run of a mesh is evaluated and predicts anywhere.
      forget_mesh=FLAGS.mode not in BEGINS
      and (job.process_count() == 1 or _names_mesh(overrides)),
    )
  if FLAGS.mode == 'train':
    from genrec_jax.train import loop

    if not FLAGS.config:
      LOG.info('continuing the run of %s with its config', FLAGS.workdir)
    loop.train_and_evaluate(config, FLAGS.workdir, kinds, extensions)
  elif FLAGS.mode == 'plan':
    from genrec_jax.runtime import planning
    from genrec_jax.train import experiment

    make_workdir(pathlib.Path(FLAGS.workdir))
    data, task = experiment.load_data_and_task(
      config, FLAGS.workdir, kinds, extensions=extensions
    )
    print_result(
      planning.describe_plan(config, task, FLAGS.workdir, extensions)
    )
    if FLAGS.compile_for:
      from genrec_jax.train import compile_ahead

      compiled = compile_ahead.compile_step(
        config, data, task, FLAGS.compile_for, extensions
      )
      print_result(str(compiled))
  elif FLAGS.mode == 'learn_hash':
    from genrec_jax.train import learn_hash

    print_result(
      learn_hash.learn_hash(config, FLAGS.workdir, kinds, extensions)
    )
  elif FLAGS.mode == 'search':
    from genrec_jax.train import search

    print_result(search.search_models(config, FLAGS.workdir, kinds, extensions))
  elif FLAGS.mode == 'eval':
    from genrec_jax.train import results

    with job.all_or_none('evaluating', config.parallel.heartbeat_s):
      results.evaluate_run(config, FLAGS.workdir, kinds, extensions)
  elif FLAGS.mode == 'report':
    from genrec_jax.report import saved_report

    saved_report.rewrite_page(FLAGS.workdir, kind_of(config, kinds).panels)
  else:
    from genrec_jax.runtime import build

    more = {}  # kinds of tasks from outside may know no mesh
    if make_runtime := build.plan_eval_runtime(config, extensions):
      more['make_runtime'] = make_runtime
    with job.all_or_none('predicting', config.parallel.heartbeat_s):
      kind_of(config, kinds).predict(config, FLAGS.workdir, extensions, **more)


def _names_mesh(overrides: list[str]) -> bool:
  """Whether the command line says how many devices there are."""
  sizes = ('hosts', 'devices', 'replicas')
  keys = {override.partition('=')[0] for override in overrides}
  return bool(keys & {f'parallel.{size}' for size in sizes})


def _saved_config() -> pathlib.Path:
  return pathlib.Path(FLAGS.workdir) / 'config.json'


def _load_config(overrides: list[str]):
  """The config that is named, or that of the run in the workdir."""
  if FLAGS.config:
    return config_lib.load(FLAGS.config, overrides)
  if FLAGS.workdir and _saved_config().exists():
    return config_lib.load_saved(_saved_config(), overrides)
  if FLAGS.mode in BEGINS or FLAGS.print_config:
    without = f' and --workdir={FLAGS.workdir} holds no run to go on with'
    raise app.UsageError(
      f'--config is missing{without if FLAGS.workdir else ""}; try '
      '--config=quickstart, or one that `genrec configs` lists'
    )
  if not FLAGS.workdir:
    raise app.UsageError('--workdir is missing, the directory of a run')
  raise FileNotFoundError(
    f'--workdir={FLAGS.workdir} is not the workdir of a run (no config.json); '
    'train first'
  )


def _start_devices(parallel) -> None:
  """Joins the processes of the job, or splits the CPU; then JAX may start."""
  if FLAGS.mode == 'plan' and FLAGS.compile_for not in ('', 'here'):
    # JAX would wait for the TPUs that a libtpu promises.
    os.environ['JAX_PLATFORMS'] = 'cpu'
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
    LOG.info(job_settings)
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
  if {'--help', '-help', '-h'} & set(argv):
    print_result(command_line.describe_help())
    interruption.leave(*end_output())
  if '--version' in argv:
    version = sys.modules['genrec_jax'].__version__  # nobody imports from it
    print_result(f'genrec_jax {version}')
    interruption.leave(*end_output())
  FLAGS.set_gnu_getopt()  # words and flags in any order
  try:
    return FLAGS(argv)
  except flags.Error as error:
    hint = ''
    if isinstance(error, flags.UnrecognizedFlagError):
      hint = command_line.hint_key(error.flagname)
    words = f'{error}{hint}\nPass --help to see the flags.'
    interruption.leave(interruption.MISUSED, words)


def run() -> None:
  """Parses the command line and runs; user errors end without a traceback."""
  interruption.install()
  hush_late_errors()
  if len(sys.argv) == 1:
    interruption.leave(interruption.MISUSED, command_line.describe_usage())
  if sys.argv[1] in command_line.OTHERS:
    from genrec_jax.sweep import __main__ as sweep

    return sweep.run(sys.argv[2:])
  argv, overrides = command_line.split_overrides(sys.argv)
  provenance.remember_command(sys.argv, overrides)
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '1')
  # Tracebacks are written to error.log alone, and shall be whole there.
  os.environ.setdefault('JAX_TRACEBACK_FILTERING', 'off')

  def run_guarded(argv):
    start_logging()
    try:
      main(argv[1:], overrides)
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
