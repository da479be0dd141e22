"""Who started us, from fake environments; and two real processes."""

import json
import math
import os
import pathlib
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

from genrec_jax.parallel import mesh as mesh_lib
from genrec_jax.parallel import processes
from genrec_jax.parallel.processes import AUTO, Settings
from tests.parallel import two_processes
from tests.tolerances import assert_close

SLURM = {
  'SLURM_JOB_ID': '4097',
  'SLURM_STEP_NODELIST': 'gpu[003-004,9],x1',
  'SLURM_STEP_NUM_TASKS': '8',
  'SLURM_STEP_NUM_NODES': '4',
  'SLURM_NTASKS': '16',
  'SLURM_PROCID': '3',
  'SLURM_LOCALID': '1',
}
OPEN_MPI = {
  'OMPI_COMM_WORLD_SIZE': '4',
  'OMPI_COMM_WORLD_RANK': '2',
  'OMPI_COMM_WORLD_LOCAL_SIZE': '2',
  'OMPI_COMM_WORLD_LOCAL_RANK': '0',
  'OMPI_MCA_orte_hnp_uri': '8193.0;tcp://10.96.0.1,10.1.0.1:34911',
}
PMI = {'PMI_RANK': '1', 'PMI_SIZE': '2'}
KUBERNETES = {
  'JOB_COMPLETION_INDEX': '1',
  'JAX_COORDINATOR_ADDRESS': 'train-workers-0-0.train:1234',
  'JAX_NUM_PROCESSES': '8',
}


@pytest.mark.parametrize(
  'environ, found',
  [
    ({}, None),
    (SLURM, Settings('gpu003:61441', 8, 3, 'Slurm', (1,))),
    (
      {**SLURM, 'CUDA_VISIBLE_DEVICES': '0'},
      Settings('gpu003:61441', 8, 3, 'Slurm'),
    ),
    (
      {**SLURM, 'SLURM_STEP_NUM_NODES': '8', 'JAX_COORDINATOR_PORT': '7'},
      Settings('gpu003:7', 8, 3, 'Slurm'),
    ),
    # A batch script, or a shell, without srun.
    ({'SLURM_JOB_ID': '1', 'SLURM_NTASKS': '4', 'SLURM_PROCID': '0'}, None),
    (OPEN_MPI, Settings('10.96.0.1:61441', 4, 2, 'Open MPI', (0,))),
    (
      {**OPEN_MPI, 'OMPI_MCA_orte_hnp_uri': '1.0;tcp6://[fe80::b9:1]:4'},
      Settings('[fe80::b9:1]:61441', 4, 2, 'Open MPI', (0,)),
    ),
    (
      {**OPEN_MPI, 'OMPI_COMM_WORLD_LOCAL_SIZE': '4'},
      Settings('localhost:61441', 4, 2, 'Open MPI', (0,)),
    ),
    # mpirun inside a Slurm job: Slurm's numbers are those of the daemons.
    (
      {**SLURM, **OPEN_MPI},
      Settings('10.96.0.1:61441', 4, 2, 'Open MPI', (0,)),
    ),
    (
      {**SLURM, **PMI},
      Settings('gpu003:61441', 2, 1, 'MPI'),
    ),
    (
      {**PMI, 'MPI_LOCALNRANKS': '2', 'MPI_LOCALRANKID': '1'},
      Settings('localhost:61440', 2, 1, 'MPI', (1,)),
    ),
    (
      {**PMI, 'JAX_COORDINATOR_ADDRESS': 'a:1'},
      Settings('a:1', 2, 1, 'MPI'),
    ),
    (
      KUBERNETES,
      Settings('train-workers-0-0.train:1234', 8, 1, 'Kubernetes'),
    ),
    (
      {**KUBERNETES, 'JOB_INDEX': '1', 'PROCESSES_IN_JOB': '4'},
      Settings('train-workers-0-0.train:1234', 8, 5, 'Kubernetes'),
    ),
    # A sweep as an indexed job: every pod is a run of its own.
    ({'JOB_COMPLETION_INDEX': '3'}, None),
    (
      {**KUBERNETES, 'JAX_PROCESS_ID': '6'},
      Settings('train-workers-0-0.train:1234', 8, 6, 'JAX_* variables'),
    ),
    ({'TPU_WORKER_HOSTNAMES': 'a,b'}, Settings(AUTO, 0, -1, 'TPU pod')),
    ({'TPU_WORKER_HOSTNAMES': 'localhost'}, None),
  ],
)
def test_who_started_us(environ, found):
  assert processes.find_settings(environ) == found


def without(environ, name):
  return {k: v for k, v in environ.items() if k != name}


@pytest.mark.parametrize(
  'environ, words',
  [
    (without(SLURM, 'SLURM_PROCID'), 'Slurm: SLURM_PROCID is not set'),
    ({**SLURM, 'SLURM_PROCID': 'x'}, "SLURM_PROCID is 'x', must be a number"),
    ({**SLURM, 'SLURM_PROCID': '8'}, r'process 8 of 8 \(Slurm\)'),
    (PMI, 'MPI tells no address .* JAX_COORDINATOR_ADDRESS'),
    ({'PMI_SIZE': '2', 'JAX_COORDINATOR_ADDRESS': 'a:1'}, 'MPI: PMI_RANK'),
    (
      without(KUBERNETES, 'JAX_NUM_PROCESSES'),
      'Kubernetes: JAX_NUM_PROCESSES is not set',
    ),
    (
      without(KUBERNETES, 'JAX_COORDINATOR_ADDRESS'),
      'JAX_COORDINATOR_ADDRESS is not set',
    ),
    ({**KUBERNETES, 'JOB_INDEX': '1'}, 'PROCESSES_IN_JOB is not set'),
    ({'JAX_NUM_PROCESSES': '2'}, 'JAX_PROCESS_ID is not set'),
    (
      {**KUBERNETES, 'JAX_COORDINATOR_ADDRESS': 'head'},
      r"coordinator is 'head' \(Kubernetes\), must be host:port",
    ),
  ],
)
def test_incomplete_environments_name_what_is_missing(environ, words):
  with pytest.raises(processes.ProcessError, match=words):
    processes.find_settings(environ)


@pytest.mark.parametrize(
  'flags, words',
  [
    (('a:1', 0, -1), 'coordinator given without processes and process'),
    (('', 2, 0), 'processes and process given without coordinator'),
    (('', 0, 0), 'process given without coordinator and processes'),
    (('a:1', 2, 2), r'process 2 of 2 \(flags\)'),
    (('a:1', 2, -2), r'process -2 of 2'),
    (('a', 2, 1), "coordinator is 'a'"),
    (('a:0', 2, 1), "coordinator is 'a:0'"),
    (('a:99999', 2, 1), "coordinator is 'a:99999'"),
    (('a..b:1', 2, 1), "coordinator is 'a..b:1'"),
    (('a:1', 2, 1, 1e9), 'heartbeat_s is 1000000000.0, must be .* at most'),
    (('a:1', 2, 1, 30.0, math.nan), 'join_s is nan, must be'),
    (('auto', 2, 1), 'by itself, but they are 2 and 1'),
  ],
)
def test_flags_must_be_complete(flags, words):
  with pytest.raises(processes.ProcessError, match=words):
    processes.join_processes(*flags)


def test_one_process_stays_alone(monkeypatch):
  for name in list(os.environ):
    if name.startswith(('SLURM', 'OMPI', 'PMI', 'JAX_COORD', 'TPU_WORKER')):
      monkeypatch.delenv(name)
  assert processes.join_processes() == 'one process'
  assert processes.join_processes('here:1', 1, 0) == 'one process (flags)'
  assert not jax.distributed.is_initialized()
  assert str(Settings('a:1', 4, 2, 'Slurm', (1,))) == (
    'process 2 of 4, device 1, coordinator a:1 (Slurm)'
  )


def test_two_processes_train_as_one(optax_promotes):
  """A host of the mesh is a process; DDP and FSDP run over both."""
  with socket.socket() as s:
    s.bind(('localhost', 0))
    address = f'localhost:{s.getsockname()[1]}'
  root = pathlib.Path(__file__).parents[2]
  env = {**os.environ, 'JAX_NUM_CPU_DEVICES': '2', 'PYTHONPATH': str(root)}
  env |= {'JAX_COORDINATOR_ADDRESS': address, 'JAX_NUM_PROCESSES': '2'}
  script = root / 'tests/parallel/two_processes.py'
  running = [
    subprocess.Popen(
      [sys.executable, script],
      env={**env, 'JAX_PROCESS_ID': str(i)},
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    for i in range(2)
  ]
  said = []
  try:
    for process in running:
      out, errors = process.communicate(timeout=120)
      assert process.returncode == 0, errors
      said.append(json.loads(out.splitlines()[-1]))
  finally:
    for process in running:
      process.kill()
  assert [s['words'] for s in said] == [
    f'process {i} of 2, coordinator {address} (JAX_* variables)'
    for i in range(2)
  ]
  assert [s['hosts'] for s in said] == [[[0, 0], [1, 1]]] * 2
  assert [s['sum'] for s in said] == [6.0, 6.0]
  for mode, dense in two_processes.MODES.items():
    alone = two_processes.losses(dense, mesh_lib.make_mesh(1, 2, 2))
    for process in said:
      assert_close(process[mode], alone)
    assert np.all(np.isfinite(alone)) and alone[0] != alone[-1]
    assert said[0][mode] == said[1][mode]
