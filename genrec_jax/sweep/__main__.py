"""Runs many variants of one experiment: `genrec sweep`.

    genrec sweep CONFIG --workdir=ROOT --set optimizer.learning_rate=1e-3,3e-3
        --set seed=0..4                 every value with every other
    genrec sweep CONFIG --workdir=ROOT --sweep=NAME     sweep_NAME() of CONFIG
    genrec sweep ROOT                   go on with what is not done
    genrec sweep ROOT --collect         one table of all runs, at any time

Each variant is a run of its own, in a workdir of its own below ROOT, as if it
had been started by hand: `--dry_run` prints the commands. All variants are
checked before the first one starts. A sweep that was stopped or killed goes on
with the same command, and its runs with it.
"""

import argparse
import functools
import pathlib
import re
import shlex
import sys
from collections.abc import Callable, Sequence

from genrec_jax import command_line, interruption, last_resort, provenance
from genrec_jax.config.errors import ConfigError
from genrec_jax.processes import notes
from genrec_jax.processes.children import Bounds
from genrec_jax.sweep import (
  collect,
  live_table,
  local,
  record,
  slurm,
  slurm_task,
)
from genrec_jax.sweep.variants import Variant, read_variants

BACKENDS = ('local', 'slurm', 'xm')


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit status."""
  argv = list(sys.argv[1:] if argv is None else argv)
  words, overrides = command_line.split_overrides(argv)
  args = PARSER.parse_args(words)
  if problem := command_line.find_repeated(overrides):
    raise ConfigError(problem)
  if args.run is not None:
    return run_one(args)
  root, sweep, wanted, is_new = find_sweep(args, overrides)
  if args.collect:
    print(collect.collect_sweep(record.require_sweep(root)))
    return interruption.DONE
  if args.only:
    wanted = [v for v in wanted if re.search(args.only, v.name)]
    if not wanted:
      raise ConfigError(f'--only={args.only} matches no variant')
  if args.dry_run:
    for variant in wanted:
      print(sweep.describe_command(variant))
    return interruption.DONE
  # Before anything is written: what is refused leaves no sweep behind.
  start = choose_backend(args)
  with record.lock_sweep(root):
    if is_new:
      command = shlex.join(['genrec', 'sweep', *argv])
      sweep = record.note_command(sweep, provenance.mask_secrets(command))
      record.write_sweep(sweep)
    return start(sweep, wanted)


def choose_backend(
  args: argparse.Namespace,
) -> Callable[[record.Sweep, list[Variant]], int]:
  """What starts the runs of a sweep, its options being checked."""
  if args.backend == 'slurm':
    slurm.check_flags(args)
    return functools.partial(submit_array, args)
  if args.backend == 'xm':
    from genrec_jax.sweep import xm

    return functools.partial(xm.launch_sweep, args=args)
  return functools.partial(run_here, read_options(args))


def find_sweep(
  args: argparse.Namespace, overrides: Sequence[str]
) -> tuple[pathlib.Path, record.Sweep, list[Variant], bool]:
  """The sweep that a command line is about.

  Returns:
    The directory, the sweep, the variants to run, and whether the command says
    which they are.
  """
  config, root = args.config, args.workdir and pathlib.Path(args.workdir)
  if args.what:
    # A directory is a sweep, anything else a config; but a directory may have
    # the name of a config, such as that of the config's own sweep.
    is_config = not pathlib.Path(args.what).is_dir() or (
      root is not None and config is None
    )
    if (config if is_config else root) is not None:
      raise ConfigError(
        f'both {args.what} and --{"config" if is_config else "workdir"} are '
        'given; leave one out'
      )
    config = args.what if is_config else config
    root = root if is_config else pathlib.Path(args.what)
  if root is None:
    if args.what and not args.set and not args.sweep:
      raise ConfigError(
        f'{args.what} is no directory, so not that of a sweep to go on with; '
        f'a new sweep of a config needs --workdir=DIRECTORY'
      )
    raise ConfigError('--workdir is missing, a directory for the sweep')
  root = root.absolute()
  names = [name for text in args.sweep for name in text.split(',')]
  if config and not (names or args.set):
    if args.collect:
      raise ConfigError(
        '--collect takes the directory of a sweep, and no config'
      )
    names = ['']  # a config that has a sweep() needs no more words
  if names or args.set:
    if not config:
      known = record.require_sweep(root)
      config, overrides = known.config, [*known.overrides, *overrides]
    variants = read_variants(config, names, args.set)
    sweep, wanted = record.extend_sweep(root, config, overrides, variants)
    return root, sweep, wanted, True
  if overrides:
    raise ConfigError(
      f'--config.{overrides[0]} would make another sweep of {root}; name the '
      'config, too'
    )
  sweep = record.require_sweep(root)
  if not args.collect:
    record.require_same_base(sweep)
  return root, sweep, list(sweep.variants), False


def read_options(args: argparse.Namespace) -> local.LocalOptions:
  """How runs are started on this machine."""
  for name, value in vars(args).items():
    if name.startswith(('sbatch', 'xm_')) and value != PARSER.get_default(name):
      backend = 'slurm' if name == 'sbatch' else 'xm'
      raise ConfigError(
        f'--{name} is for --backend={backend}, and the runs are started here; '
        'leave one of them out'
      )
  jobs, threads, gpus = local.choose_jobs(args.jobs, args.threads, args.gpus)
  return local.LocalOptions(
    jobs=jobs,
    bounds=Bounds(threads, args.memory_gb),
    gpus=gpus,
    retries=args.retries,
    stop_bad=args.stop_bad,
    revive=args.revive,
    grace_s=args.grace_s,
  )


def run_here(
  options: local.LocalOptions, sweep: record.Sweep, wanted: list[Variant]
) -> int:
  """Runs variants on this machine and collects what they have found."""
  jobs, threads = options.jobs, options.bounds.threads
  others = len(sweep.variants) - len(wanted)
  with live_table.LiveTable() as table:
    table.say(
      f'{len(wanted)} runs in {sweep.root}, {jobs} at a time'
      + (f', {threads} threads each' if threads else '')
      + (f'; {others} others of it are left as they are' if others else '')
    )
    try:
      counts = local.Launcher(sweep, wanted, options, table).run()
    finally:
      try:
        table.say(collect.collect_sweep(sweep))
      except OSError as error:  # a full disk; how the runs ended counts
        table.say(f'the table of all runs is not written: {error}')
  bad = counts[notes.FAILED]
  if bad:
    table.say(f'{bad} runs failed; the same command tries them again')
  return interruption.FAILED if bad else interruption.DONE


def submit_array(
  args: argparse.Namespace, sweep: record.Sweep, wanted: list[Variant]
) -> int:
  """Hands the variants that nobody has done or runs to Slurm."""
  left, words = slurm.choose_variants(sweep, wanted)
  if words:
    print(words)
  if not left:
    print('no run is left to submit')
    return interruption.DONE
  said = slurm.submit(
    sweep, left, jobs=args.jobs, retries=args.retries, options=args.sbatch
  )
  print(said)
  return interruption.DONE


def run_one(args: argparse.Namespace) -> int:
  """Becomes one run of a sweep, in a task of an array say."""
  if not args.what:
    raise ConfigError('--run takes the directory of a sweep before it')
  sweep = record.require_sweep(pathlib.Path(args.what).absolute())
  if not 0 <= args.run < len(sweep.variants):
    raise ConfigError(
      f'--run={args.run}: {sweep.root} has variants 0 to '
      f'{len(sweep.variants) - 1}'
    )
  record.require_same_base(sweep)
  return slurm_task.become_run(sweep, sweep.variants[args.run])


def make_parser() -> argparse.ArgumentParser:
  """The flags; `--config.KEY=VALUE` are taken out before."""
  parser = argparse.ArgumentParser(
    prog='genrec sweep',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    epilog='--config.KEY=VALUE sets a key of all runs.',
    allow_abbrev=False,
  )
  add = parser.add_argument
  add('what', nargs='?', metavar='CONFIG|ROOT', help='a config or a sweep')
  add('--config', metavar='CONFIG', help='the same as CONFIG')
  add('--workdir', metavar='ROOT', help='directory of the sweep')
  add(
    '--sweep',
    action='append',
    default=[],
    metavar='NAME,NAME',
    help='sweep_NAME() of the config; several multiply',
  )
  add(
    '--set',
    action='append',
    default=[],
    metavar='KEY=V,V',
    help='values of a key, or FIRST..LAST; several multiply',
  )
  add('--only', metavar='REGEX', help='of these, runs whose names match')
  add('--dry_run', action='store_true', help='print the commands and stop')
  add('--collect', action='store_true', help='write the table and stop')
  add('--backend', choices=BACKENDS, default='local', help='who runs them')
  add('--run', type=int, metavar='N', help='be run N of a sweep, and no other')
  local_flags = parser.add_argument_group('local')
  add = local_flags.add_argument
  add('--jobs', type=int, metavar='N', help='runs at a time (1; one a GPU)')
  add(
    '--threads',
    type=int,
    metavar='T',
    help='of each run (its share of the processors; 0 sets no bound)',
  )
  add(
    '--memory_gb',
    type=float,
    default=0.0,
    metavar='GB',
    help='a run that has more is ended (0: no bound)',
  )
  add('--gpus', metavar='0,1', help='devices, of which each job sees one')
  add(
    '--retries',
    type=int,
    default=0,
    metavar='N',
    help='how often a run that fails is tried again (0)',
  )
  add(
    '--stop_bad',
    action='store_true',
    help='stop runs whose best value is behind the median of the others',
  )
  add(
    '--revive',
    action='store_true',
    help='go on with runs that --stop_bad has stopped, too',
  )
  add(
    '--grace_s',
    type=float,
    default=600.0,
    metavar='S',
    help='how long runs may take to save when the launcher is stopped (600)',
  )
  slurm_flags = parser.add_argument_group('slurm')
  slurm_flags.add_argument(
    '--sbatch', action='append', default=[], metavar='OPTION',
    help='of sbatch, such as --sbatch=--partition=gpu; --jobs bounds the array',
  )  # fmt: skip
  add = parser.add_argument_group('xm').add_argument
  add(
    '--xm_executor',
    choices=('local', 'vertex', 'kubernetes'),
    default='local',
    help='where XManager runs them (local: here, without Docker; --jobs, '
    '--threads and --gpus count)',
  )
  add(
    '--xm_workdir',
    metavar='DIR',
    help='in a cloud: where containers see a disk that outlives them, such as '
    '/gcs/BUCKET/DIR; a run has DIR/{wid}, its number from 1 on, unless DIR '
    'itself has {wid} or {name} in it',
  )
  add('--xm_gpu', metavar='KIND=N', help='of each run, such as a100=8')
  add('--xm_tpu', metavar='KIND=N', help='of each run, such as v3=8')
  add('--xm_cpu', type=float, metavar='N', help='processors of each run')
  add('--xm_ram_gb', type=float, metavar='GB', help='memory of each run')
  add(
    '--xm_image',
    metavar='IMAGE',
    help='a ready image whose entry point is `python -m genrec_jax.main`; '
    'without it, one is built of the genrec_jax that is here',
  )
  add(
    '--xm_base_image',
    metavar='IMAGE',
    help='what the image is built upon (python:3.11 under Python 3.11)',
  )
  add(
    '--xm_push',
    metavar='IMAGE:TAG',
    help='the name by which an image is pushed to a registry',
  )
  add(
    '--xm_flag',
    action='append',
    default=[],
    metavar='FLAG',
    help='of XManager, such as --xm_flag=--noxm_build_image_locally',
  )
  return parser


PARSER = make_parser()


def run(argv: Sequence[str] | None = None) -> None:
  """Runs the command line; errors of users end without a traceback."""
  interruption.install()

  def run_guarded() -> int:
    try:
      return main(argv)
    except interruption.Stopped as stopped:
      interruption.end_by_signal(stopped.number)

  last_resort.run_command(run_guarded, 'sweeping')


if __name__ == '__main__':
  run()
