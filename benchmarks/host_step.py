"""Does the host's work of a step grow with the number of devices?

  python -m benchmarks.host_step
  python -m benchmarks.host_step --devices 8 1024

One host of four devices, of a job of so many. Devices have no part in it, so
none need be there: what a process does for a step is to make its own shards of
the batch and to find where they belong. The examples of a device are fixed, so
the batch grows with the devices; only what concerns all of it, such as the
order of an epoch, can cost more.
"""

import pathlib
import tempfile
import types

import jax
import numpy as np

from benchmarks import cli
from benchmarks.result import CoreTimer
from genrec_jax import config as config_lib
from genrec_jax.config import rankers
from genrec_jax.data import devices as devices_lib
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import experiment

DEVICES = 8, 64, 512, 1024
OF_HOST = 4
EACH = 64  # examples of a device
COLUMNS = (
  'case', 'devices', 'batch_core_ms', 'place_core_ms', 'first_batch_core_ms',
  'batch_mb',
)  # fmt: skip
NOTES = (
  f'One host of {OF_HOST} devices, {EACH} examples a device. batch_core_ms: to '
  'make its shards of a batch, the mean of many; place_core_ms: to find them '
  'among all; first_batch_core_ms: of the first batch, for which the epoch is '
  'ordered.',
)


def retrieval():
  config = config_lib.retrieval()
  config.data.name = 'synthetic'
  config.data.synthetic.update(records=330_000, length=30)
  config.model.update(max_len=30, time_bias=False)
  return config


def ranking():
  config = config_lib.ranking()
  config.data.clicks.update(rows=500_000, fields=26, values=1_000, numbers=13)
  config.model = rankers.dlrm()
  return config


KINDS = {'retrieval': retrieval, 'ranking': ranking}


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('host_step', __doc__)
  parser.add_argument('--kinds', nargs='+', choices=KINDS, default=[*KINDS])
  parser.add_argument('--devices', nargs='+', type=int, default=[*DEVICES])
  parser.add_argument('--repeats', type=int, default=20)
  args = parser.parse_args(argv)
  if args.smoke:
    args.kinds, args.devices, args.repeats = ['ranking'], [8], 2
  for kind in args.kinds:
    config = KINDS[kind]()
    if args.smoke:
      config.data.clicks.rows = 2_000
    with tempfile.TemporaryDirectory() as workdir:
      data = experiment.load_data(config, pathlib.Path(workdir), TASK_KINDS)
      rows = [
        measure(kind, data, config, n, args.repeats) for n in args.devices
      ]
    cli.finish(args, 'host_step', rows, COLUMNS, NOTES)


def measure(kind: str, data, config, devices: int, repeats: int) -> dict:
  """The row of a host among so many devices."""
  config.train.batch_size = EACH * devices
  runtime = types.SimpleNamespace(shards=devices, local_shards=range(OF_HOST))
  source = data.train_batches(config, runtime, lambda: True, lambda *_: None)
  with CoreTimer() as first:
    batches = iter(source)
    batch = next(batches)
  # A thread makes batches ahead: what one costs is known of many alone.
  with CoreTimer() as many:
    for _ in range(repeats):
      batch = next(batches)
  mesh = pretend_mesh(devices)
  placed = []
  for _ in range(repeats):
    with CoreTimer() as timer:
      assert devices_lib.own_shards(mesh) == range(OF_HOST)
    placed.append(timer.core_s)
  return {
    'case': f'{kind}/{devices}',
    'kind': kind,
    'devices': devices,
    'batch_core_ms': 1e3 * many.core_s / repeats,
    'place_core_ms': 1e3 * min(placed),
    'first_batch_core_ms': 1e3 * first.core_s,
    'batch_mb': sum(x.nbytes for x in jax.tree.leaves(batch)) / 1e6,
  }


def pretend_mesh(devices: int):
  """What `own_shards` asks of a mesh, of hosts of four devices."""
  found = [
    types.SimpleNamespace(process_index=k // OF_HOST) for k in range(devices)
  ]
  return types.SimpleNamespace(devices=np.array(found))


if __name__ == '__main__':
  main()
