"""Runs a sweep by XManager: here, on Vertex AI or on Kubernetes.

`genrec sweep --backend=xm` and `launch/xm_launch.py` come here. On this machine
a work unit becomes a run of the sweep as a task of Slurm does, by `--run=N`, a
plain process without Docker: notes, logs and `--collect` are as ever. A cloud
does not see the directory of the sweep. There a work unit is a container that
runs `genrec_jax.main` with the words of the variant, in `{workdir}/{wid}`.

XManager repeats a flag for each element of a tuple, of which a parser takes the
last, leaves None out and turns booleans into other flags. So all values are
handed over as text, which it passes on as it is.
"""

import argparse
import asyncio
import contextlib
import importlib.metadata
import pathlib
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence

from genrec_jax import interruption
from genrec_jax.config.errors import ConfigError
from genrec_jax.processes import notes
from genrec_jax.processes.children import Bounds
from genrec_jax.sweep import collect, local, run_states
from genrec_jax.sweep.record import Sweep
from genrec_jax.sweep.variants import Variant

_POLL_S = 0.1
# Flags that would be heeded by nobody: in a cloud, here, and anywhere.
_OF_HERE = ('jobs', 'threads', 'gpus')
_OF_CLOUDS = tuple(
  f'xm_{name}' for name in 'workdir gpu tpu cpu ram_gb image push'.split()
)
_OF_OTHERS = ('retries', 'stop_bad', 'revive', 'memory_gb')
_ALIASES = {'l4': 'l4_24th', 'a100_80gb': 'a100_80gib'}
# XManager selects nodes of Kubernetes by 'nvidia-tesla-KIND', as others are not
# called, and chooses machines of Vertex that others are not in.
_TESLA = ('p4', 't4', 'p100', 'v100', 'a100')
_FOLDER, _CONFIGS = 'genrec', 'sweep_config'  # in the image
_ENTRY = 'exec python -m genrec_jax.main "$@"'  # exec: signals reach the run


class _Ended(Exception):
  """All runs have ended, however they did."""


def launch_sweep(
  sweep: Sweep, wanted: Sequence[Variant], args: argparse.Namespace
) -> int:
  """Runs what is not done; in a cloud, hands it over.

  Args:
    sweep: in its directory.
    wanted: the variants to run.
    args: the flags of `genrec sweep`.

  Returns:
    The exit status.
  """
  check_flags(args)
  parse_own_flags(args.xm_flag)
  states = {v: run_states.find_state(sweep, v)[0] for v in wanted}
  others = (notes.DONE, notes.BAD, notes.RUNNING)
  left = [v for v in wanted if states[v] not in others]
  if not left:
    print('no run is left to start')
    return interruption.DONE
  if args.xm_executor == 'local':
    return run_here(sweep, left, args)
  executor = make_executor(args)
  try:
    asyncio.run(_hand_over(sweep, left, executor, args))
  except Exception as error:  # of Docker, of Google's libraries, ...
    raise ConfigError(
      f'XManager cannot launch: {type(error).__name__}: {error}'
    ) from error
  return interruption.DONE


def check_flags(args: argparse.Namespace) -> None:
  """Refuses flags that nobody would heed, and misses what is needed."""
  is_here = args.xm_executor == 'local'
  for name in (*_OF_OTHERS, *(_OF_CLOUDS if is_here else _OF_HERE)):
    if getattr(args, name):
      raise ConfigError(f'--xm_executor={args.xm_executor} has no --{name}')
  if is_here:
    return
  if not (args.xm_workdir or '').startswith('/'):
    raise ConfigError(
      '--xm_workdir must be a path where containers see a disk that outlives '
      'them; on Vertex, gs://BUCKET/DIR is /gcs/BUCKET/DIR'
    )
  if args.xm_tpu and args.xm_executor == 'kubernetes':
    raise ConfigError(
      'XManager asks Kubernetes for no TPU, so that runs would be on CPUs; use '
      '--xm_executor=vertex'
    )


def parse_own_flags(words: Sequence[str]) -> None:
  """Sets flags of XManager, which reads them from absl."""
  from absl import flags

  try:
    from xmanager import xm_flags  # defines them
  except ImportError as error:
    raise ConfigError(
      f"--backend=xm needs XManager ({error}): pip install 'genrec_jax[xm]'"
    ) from error
  # `xmanager launch` has parsed its own; a second time adds to them.
  if words or not flags.FLAGS.is_parsed():
    try:
      flags.FLAGS(['genrec sweep', *words])
    except flags.Error as error:
      raise ConfigError(f'--xm_flag: {error}') from error
  if xm_flags.should_use_multiplexer():
    raise ConfigError('a run in a multiplexer does not say when it ends')


def run_here(
  sweep: Sweep, left: Sequence[Variant], args: argparse.Namespace
) -> int:
  """Runs variants on this machine, and collects what they have found.

  Args:
    sweep: in its directory.
    left: the variants.
    args: `jobs`, `threads` and `gpus` bound them; XManager starts all at once.
  """
  jobs, threads, gpus = local.choose_jobs(args.jobs, args.threads, args.gpus)
  gpus = gpus or ('',)
  local.LocalOptions(jobs, Bounds(threads))  # judges them
  slots = [
    Bounds(threads, gpu=gpus[n % len(gpus)]).environment() for n in range(jobs)
  ]
  with interruption.SafePoints(listen=True) as points:
    points.hold()
    asyncio.run(_run_all(sweep, left, slots, points))
  print(collect.collect_sweep(sweep))
  if points.number is not None:
    raise interruption.Stopped(points.number)
  states = [run_states.find_state(sweep, variant)[0] for variant in left]
  bad = sum(state != notes.DONE for state in states)
  if bad:
    print(f'{bad} runs failed; the same command tries them again')
  return interruption.FAILED if bad else interruption.DONE


async def _run_all(
  sweep: Sweep,
  left: Sequence[Variant],
  slots: Sequence[Mapping[str, str]],
  points: interruption.SafePoints,
) -> None:
  """Runs variants, one at a time in each slot, which is an environment."""
  from xmanager import xm, xm_local
  from xmanager.xm_local import executables

  free, units, asked = asyncio.Queue(), [], []
  for slot in slots:
    free.put_nowait(slot)
  (sweep.root / 'logs').mkdir(exist_ok=True)
  executor = xm_local.Local()
  # A binary made by hand, since `xm.binary` takes a file: XManager runs it in a
  # shell, which would get the signals that are meant for the run.
  program = executables.LocalBinary('genrec_jax', 'exec')
  start = [sys.executable, '-m', 'genrec_jax.sweep', str(sweep.root)]

  async def run_one(variant: Variant) -> None:
    slot = await free.get()
    try:
      if not points.reach():
        name, words = f'{variant.number:03d}', f'--run={variant.number}'
        job = xm.Job(program, executor, name, [*start, words], slot)
        units.append(unit := await experiment.add(job))
        await unit.wait_until_complete()
    except xm.ExperimentUnitFailedError:
      pass  # the run has said why, and so does its note
    except Exception as error:  # too many processes, say
      print(f'{variant.name}: {type(error).__name__}: {error}')
    finally:
      free.put_nowait(slot)

  with contextlib.suppress(_Ended):
    async with xm_local.create_experiment(sweep.root.name) as experiment:
      running = asyncio.gather(*map(run_one, left))
      while not running.done():
        for unit in units if points.reach() else ():
          if unit not in asked:
            asked.append(unit)
            # A unit of a binary has no stop(), as of XManager 0.8.5.
            for handle in unit._local_execution_handles:
              handle.terminate()
        await asyncio.sleep(_POLL_S)
      await running
      # Else the experiment would end with the first run that has failed.
      raise _Ended


async def _hand_over(
  sweep: Sweep, left: Sequence[Variant], executor, args: argparse.Namespace
) -> None:
  """Launches a container for each variant; nobody waits for them."""
  from xmanager import xm, xm_local

  with stage_image(sweep, args) as (packageable, config):
    jobs = plan_jobs(sweep, left, args.xm_workdir, config)
    async with xm_local.create_experiment(sweep.root.name) as experiment:
      [executable] = experiment.package([packageable])
      for name, words in jobs:
        await experiment.add(xm.Job(executable, executor, name, words))
        print(f'{name}: {words["workdir"]}')
  print(f'experiment {experiment.experiment_id}: {len(left)} runs')


def plan_jobs(
  sweep: Sweep, left: Sequence[Variant], workdir: str, config: str
) -> list[tuple[str, dict[str, str]]]:
  """(name, arguments) of each variant in a container; all values are text.

  Args:
    sweep: in its directory.
    left: the variants.
    workdir: as containers see it; {wid} and {name} in it tell runs apart.
    config: as containers see it.
  """
  if not re.search(r'\{(wid|name)\}', workdir):
    workdir = f'{workdir.rstrip("/")}/{{wid}}'
  jobs = []
  for variant in left:
    # XManager counts from 1 in each experiment, and so does this in the sweep:
    # a second launch goes on in the workdirs of the first.
    wid = str(variant.number + 1)
    words = [word[2:].partition('=') for word in sweep.words(variant)]
    flags = {flag: text for flag, _, text in words}
    flags['workdir'] = workdir.replace('{wid}', wid)
    flags['workdir'] = flags['workdir'].replace('{name}', variant.name)
    # Kubernetes takes no '=' in a name.
    jobs.append((f'run-{wid}', {**flags, 'config': config}))
  return jobs


def make_executor(args: argparse.Namespace):
  """The executor of XManager in a cloud, with what each run needs."""
  from xmanager import xm, xm_local

  resources, kind = {}, ''
  for flag, prefix in ('xm_gpu', ''), ('xm_tpu', 'tpu_'):
    if text := getattr(args, flag):
      found = re.fullmatch(r'(\w+)=([1-9]\d*)', text.lower())
      if not found:
        raise ConfigError(f'--{flag} takes KIND=N, such as a100=8, not {text}')
      kind = prefix + found[1].removeprefix(prefix)
      kind = _ALIASES.get(kind, kind)
      resources[kind] = int(found[2])
  sizes = {'cpu': args.xm_cpu, 'ram': (args.xm_ram_gb or 0) * 1e9}
  resources |= {name: size for name, size in sizes.items() if size}
  try:
    needs = xm.JobRequirements(resources)
    if kind and needs.accelerator is None:
      raise ValueError(f'{kind} is no accelerator')
    if args.xm_executor == 'kubernetes':
      # Without a provider, any node with GPUs will do.
      named = {} if kind in _TESLA else {'cloud_provider': ''}
      return xm_local.Kubernetes(requirements=needs, **named)
    from xmanager.cloud import vertex

    executor = xm_local.Vertex(requirements=needs)
    machine = vertex.get_machine_spec(xm.Job(None, executor))['machine_type']
    if kind and kind not in _TESLA and machine.startswith('n1-'):
      raise ValueError(f'no machine of Vertex has {kind}')
  except (KeyError, ValueError) as error:
    raise ConfigError(f'XManager has no such machine: {error}') from error
  return executor


@contextlib.contextmanager
def stage_image(sweep: Sweep, args: argparse.Namespace) -> Iterator[tuple]:
  """Yields (what containers run, the config as they call it) of a sweep."""
  from xmanager import xm, xm_local

  own = args.xm_executor.title()  # 'Vertex', 'Kubernetes'
  make_spec = getattr(xm_local, own).Spec
  if args.xm_image:
    yield xm.container(make_spec(args.xm_push), args.xm_image), sweep.config
    return
  extras = {'gcs', args.xm_gpu and 'cuda12', args.xm_tpu and 'tpu'}
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / _FOLDER
    config = copy_project(path, sweep.config, extras - {None})
    image = xm.python_container(
      make_spec(args.xm_push),
      xm.CommandList([_ENTRY]),
      str(path),
      base_image=args.xm_base_image or 'python:{}.{}'.format(*sys.version_info),
      docker_instructions=[
        f'WORKDIR /{_FOLDER}',
        # First, so that they are installed again only when they have changed.
        f'COPY {_FOLDER}/requirements.txt requirements.txt',
        'RUN pip install --no-cache-dir -r requirements.txt',
        f'COPY {_FOLDER}/ .',
      ],
      env_vars={'PYTHONUNBUFFERED': '1'},
    )
    yield image, config


def copy_project(path: pathlib.Path, config: str, extras: set[str]) -> str:
  """Copies the library and the config of a sweep, with requirements.txt.

  Args:
    path: a new directory.
    config: FILE or NAME, with :variant or without.
    extras: of the library, such as 'cuda12'.

  Returns:
    The config as it is called from that directory.
  """
  root = pathlib.Path(__file__).parents[2]
  junk = shutil.ignore_patterns('__pycache__')
  for name in ('genrec_jax', 'pallas_kernels', 'configs'):
    # A wheel has configs/ in the package, a checkout beside it.
    if name != 'configs' or not (root / 'genrec_jax' / name).is_dir():
      shutil.copytree(root / name, path / name, ignore=junk)
  # pip leaves out what has an extra behind it, as in `pyarrow; extra == "dev"`.
  packages = '\n'.join(importlib.metadata.requires('genrec_jax'))
  for extra in extras:
    packages = packages.replace(f'; extra == "{extra}"', '')
  (path / 'requirements.txt').write_text(packages + '\n')
  file, colon, arg = config.partition(':')
  if not file.endswith('.py'):
    return config
  (path / _CONFIGS).mkdir()
  shutil.copy(file, path / _CONFIGS)
  return f'{_CONFIGS}/{pathlib.Path(file).name}{colon}{arg}'
