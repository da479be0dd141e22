"""Joins the processes of a job, by flags or by what the launcher has set.

| started by          | number, count, address come from                       |
|---------------------|--------------------------------------------------------|
| flags               | `coordinator`, `processes`, `process`                  |
| anything            | JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES,            |
|                     | JAX_PROCESS_ID                                         |
| Kubernetes, indexed | the same, JOB_COMPLETION_INDEX being the number (with  |
| Job or JobSet       | JOB_INDEX and PROCESSES_IN_JOB, of a set of jobs)      |
| Open MPI            | OMPI_COMM_WORLD_*, address of mpirun                   |
| MPICH, Intel MPI    | PMI_RANK, PMI_SIZE                                     |
| Slurm (srun)        | SLURM_PROCID, SLURM_STEP_NUM_TASKS, first host of the  |
|                     | node list                                              |
| TPU pod             | JAX finds everything (`coordinator='auto'` forces it)  |

JAX_COORDINATOR_ADDRESS takes precedence over an address that is found so, and
JAX_COORDINATOR_PORT over a port.
"""

import dataclasses
import math
import os
import re
import zlib
from collections.abc import Mapping

import jax

from genrec_jax.parallel import meeting, peers
from genrec_jax.parallel.coordinator_relay import start_relay

AUTO = 'auto'
_LONGEST_S = 1_000_000  # three times that fits into what JAX takes
_PORTS = 61440, 4096  # first, how many: above what systems hand out


class ProcessError(ValueError):
  """Settings of processes that contradict each other or are incomplete."""


@dataclasses.dataclass(frozen=True)
class Settings:
  """What a process must know of its job.

  Attributes:
    coordinator: 'host:port' of process 0; `AUTO` leaves everything to JAX.
    processes: number of processes.
    process: number of this process.
    source: where the settings come from, for the log.
    devices: GPUs of this process, if several processes share a host; None for
      all there are.
  """

  coordinator: str
  processes: int
  process: int
  source: str
  devices: tuple[int, ...] | None = None

  def __str__(self) -> str:
    if self.coordinator == AUTO:
      return f'processes as JAX finds them ({self.source})'
    if self.processes == 1:
      return f'one process ({self.source})'
    devices = '' if self.devices is None else f', device {self.devices[0]}'
    return (
      f'process {self.process} of {self.processes}{devices}, coordinator '
      f'{self.coordinator} ({self.source})'
    )


def join_processes(
  coordinator: str = '',
  processes: int = 0,
  process: int = -1,
  heartbeat_s: float = peers.HEARTBEAT_S,
  join_s: float = meeting.JOIN_S,
) -> str:
  """Joins the other processes; call it before anything else is done with JAX.

  From here on, the end of one process ends the others.

  Args:
    coordinator: 'host:port' of process 0, 'auto', or '' to look at the
      environment.
    processes: number of processes; 0 to look at the environment.
    process: number of this process; -1 to look at the environment.
    heartbeat_s: seconds without a sign of life after which a process is gone.
    join_s: seconds to wait for processes that have not been started yet.

  Returns:
    The settings as text for the log.

  Raises:
    ProcessError: the settings are incomplete or contradict each other, or the
      processes do not find each other.
  """
  settings = settings_from_flags(
    coordinator, processes, process
  ) or find_settings(os.environ)
  if settings is None:
    return 'one process'
  for key, seconds in (('heartbeat_s', heartbeat_s), ('join_s', join_s)):
    if not 0 < seconds <= _LONGEST_S:
      raise ProcessError(
        f'parallel.{key} is {seconds}, must be a number of seconds above 0 and '
        f'at most {_LONGEST_S:,}'
      )
  # It would handle SIGTERM, and so does `interruption`.
  jax.config.update('jax_enable_preemption_service', False)
  # JAX, which aborts, must be the last to notice that a process is gone.
  patience = {'heartbeat_timeout_seconds': max(100, int(3 * heartbeat_s))}
  if settings.coordinator == AUTO:
    jax.distributed.initialize(
      initialization_timeout=math.ceil(join_s), **patience
    )
    peers.start(heartbeat_s)
    return (
      f'process {jax.process_index()} of {jax.process_count()} ({settings})'
    )
  if settings.processes > 1:
    # Of use on CPUs alone, where it is what collectives run on.
    jax.config.update('jax_cpu_collectives_implementation', 'gloo')
    address = settings.coordinator
    host, _, port = address.rpartition(':')
    try:
      peers.meet(
        (host.strip('[]'), int(port)),
        settings.process,
        settings.processes,
        heartbeat_s,
        join_s,
      )
      jax.distributed.initialize(
        start_relay(address) if settings.process else address,
        settings.processes,
        settings.process,
        local_device_ids=settings.devices,
        **patience,
      )
    except (OSError, meeting.MeetingError, jax.errors.JaxRuntimeError) as error:
      raise ProcessError(
        f'{settings}: the processes did not find each other; all of them must '
        f'be started, and reach the coordinator ({error})'
      ) from error
  return str(settings)


def settings_from_flags(
  coordinator: str, processes: int, process: int
) -> Settings | None:
  """The settings given by flags, None without flags.

  Args:
    coordinator: as for `join_processes`.
    processes: as for `join_processes`.
    process: as for `join_processes`.
  """
  if coordinator == AUTO:
    if processes or process != -1:
      raise ProcessError(
        f"coordinator='auto' finds processes and process by itself, but they "
        f'are {processes} and {process}'
      )
    return Settings(AUTO, 0, -1, 'asked for')
  is_given = {
    'coordinator': bool(coordinator),
    'processes': processes != 0,
    'process': process != -1,
  }
  if not any(is_given.values()):
    return None
  if missing := [name for name, there in is_given.items() if not there]:
    have = [name for name, there in is_given.items() if there]
    raise ProcessError(
      f'{" and ".join(have)} given without {" and ".join(missing)}: give all '
      'of coordinator, processes and process, or none'
    )
  return _check_settings(Settings(coordinator, processes, process, 'flags'))


def find_settings(environ: Mapping[str, str]) -> Settings | None:
  """The settings that the launcher has left, None for a single process.

  >>> env = {'PMI_SIZE': '2', 'PMI_RANK': '1',
  ...        'JAX_COORDINATOR_ADDRESS': 'node1:1234'}
  >>> str(find_settings(env))
  'process 1 of 2, coordinator node1:1234 (MPI)'

  Args:
    environ: environment variables.
  """
  # The most explicit one comes first: MPI may run inside a job of Slurm, whose
  # variables are then set too.
  for source in (
    _settings_of_jax,
    _open_mpi,
    _settings_of_pmi,
    _settings_of_slurm,
    _settings_of_tpu,
  ):
    if settings := source(environ):
      return (
        settings if settings.coordinator == AUTO else _check_settings(settings)
      )
  return None


def _settings_of_jax(env) -> Settings | None:
  names = ('JAX_NUM_PROCESSES', 'JAX_PROCESS_ID')
  if not any(name in env for name in names) and not (
    'JAX_COORDINATOR_ADDRESS' in env and 'JOB_COMPLETION_INDEX' in env
  ):
    return None
  source = 'JAX_* variables'
  if 'JAX_PROCESS_ID' in env:
    process = _require_number(env, 'JAX_PROCESS_ID', source)
  elif 'JOB_COMPLETION_INDEX' in env:
    source = 'Kubernetes'
    process = _require_number(env, 'JOB_COMPLETION_INDEX', source)
    # A set of jobs numbers the processes of each from 0.
    if job := int(env.get('JOB_INDEX', '0')):
      process += job * _require_number(env, 'PROCESSES_IN_JOB', source)
  else:
    process = _require_number(env, 'JAX_PROCESS_ID', source)
  return Settings(
    _require_variable(env, 'JAX_COORDINATOR_ADDRESS', source),
    _require_number(env, 'JAX_NUM_PROCESSES', source),
    process,
    source,
  )


def _open_mpi(env) -> Settings | None:
  if 'OMPI_COMM_WORLD_SIZE' not in env:
    return None
  source = 'Open MPI'
  size = _require_number(env, 'OMPI_COMM_WORLD_SIZE', source)
  local = int(env.get('OMPI_COMM_WORLD_LOCAL_SIZE', '1'))
  uri = env.get('OMPI_MCA_orte_hnp_uri', '')
  # '1531576320.0;tcp://10.96.0.1,10.148.0.1:34911', '...;tcp6://[fe80::1]:4'
  host = re.search(r'tcp6?://\[?([^,\]\s]+?)(?:[,\]]|:\d+$)', uri)
  # The number of the job, from which all processes compute the same port.
  job = uri.split('.')[0] or env.get('PMIX_NAMESPACE', '')
  return Settings(
    _coordinator_address(
      env, source, size, local, host[1] if host else '', job
    ),
    size,
    _require_number(env, 'OMPI_COMM_WORLD_RANK', source),
    source,
    _local_gpus(env, local, env.get('OMPI_COMM_WORLD_LOCAL_RANK')),
  )


def _settings_of_pmi(env) -> Settings | None:
  if 'PMI_SIZE' not in env:
    return None
  size, local = (
    _require_number(env, 'PMI_SIZE', 'MPI'),
    env.get('MPI_LOCALNRANKS'),
  )
  return Settings(
    _coordinator_address(env, 'MPI', size, int(local or 1), '', ''),
    size,
    _require_number(env, 'PMI_RANK', 'MPI'),
    'MPI',
    _local_gpus(env, int(local or 1), env.get('MPI_LOCALRANKID')),
  )


def _settings_of_slurm(env) -> Settings | None:
  # Without a step this is the batch script itself, one process.
  if 'SLURM_STEP_NODELIST' not in env:
    return None
  source = 'Slurm'
  count = 'SLURM_STEP_NUM_TASKS'
  # Older versions set the second name alone.
  count = count if count in env else 'SLURM_NTASKS'
  size = _require_number(env, count, source)
  nodes = int(env.get('SLURM_STEP_NUM_NODES', '1'))
  host = _first_host(env['SLURM_STEP_NODELIST'])
  return Settings(
    _coordinator_address(
      env, source, size, 1, host, _require_variable(env, 'SLURM_JOB_ID', source)
    ),
    size,
    _require_number(env, 'SLURM_PROCID', source),
    source,
    _local_gpus(env, size // nodes, env.get('SLURM_LOCALID')),
  )


def _settings_of_tpu(env) -> Settings | None:
  hosts = [h for h in env.get('TPU_WORKER_HOSTNAMES', '').split(',') if h]
  if len(hosts) > 1 or 'MEGASCALE_COORDINATOR_ADDRESS' in env:
    return Settings(AUTO, 0, -1, 'TPU pod')
  return None


def _coordinator_address(env, source, size, local, host, job) -> str:
  """'host:port' of process 0, the same in all processes."""
  if address := env.get('JAX_COORDINATOR_ADDRESS'):
    return address
  nodes = env.get('SLURM_STEP_NODELIST') or env.get('SLURM_JOB_NODELIST', '')
  # One host: no name needs to be resolved.
  if local == size:
    host = 'localhost'
  host = host or _first_host(nodes)
  if not host:
    raise ProcessError(
      f'{source} tells no address of process 0: set JAX_COORDINATOR_ADDRESS to '
      'host:port of it'
    )
  job = job or env.get('SLURM_JOB_ID', '')
  first, count = _PORTS
  # Jobs that share a host get different ports; a checksum and not `hash`, which
  # differs between processes.
  number = int(job) if job.isdigit() else zlib.crc32(job.encode())
  port = env.get('JAX_COORDINATOR_PORT', str(first + number % count))
  return f'[{host}]:{port}' if ':' in host else f'{host}:{port}'


def _first_host(nodes: str) -> str:
  """'node[003-007,9],x' -> 'node003'."""
  match = re.match(r'([^,\[]+)(?:\[(\d+)[^\]]*\]([^,\[]*))?', nodes)
  return ''.join(part or '' for part in match.groups()) if match else ''


def _local_gpus(env, local: int, rank: str | None) -> tuple[int, ...] | None:
  """The GPU of one of `local` processes of a host, if it sees several."""
  visible = env.get('CUDA_VISIBLE_DEVICES')
  # A launcher that gives each process one visible GPU has divided them already.
  if local < 2 or rank is None or (visible and ',' not in visible):
    return None
  return (int(rank),)


def _check_settings(settings: Settings) -> Settings:
  if settings.processes < 1 or not 0 <= settings.process < settings.processes:
    raise ProcessError(
      f'process {settings.process} of {settings.processes} '
      f'({settings.source}): numbers start at 0 and end below the count'
    )
  is_address = re.fullmatch(r'(\[.+\]|[^:]+):\d{1,5}', settings.coordinator)
  if is_address:
    host, _, port = settings.coordinator.rpartition(':')
    is_address = 0 < int(port) < 1 << 16
    try:
      host.strip('[]').encode('idna')
    except UnicodeError:
      is_address = False
  if not is_address:
    raise ProcessError(
      f'coordinator is {settings.coordinator!r} ({settings.source}), must be '
      'host:port'
    )
  return settings


def _require_variable(env, name: str, source: str) -> str:
  if name not in env:
    raise ProcessError(f'{source}: {name} is not set')
  return env[name]


def _require_number(env, name: str, source: str) -> int:
  value = _require_variable(env, name, source)
  if not value.isdigit():
    raise ProcessError(f'{source}: {name} is {value!r}, must be a number')
  return int(value)
