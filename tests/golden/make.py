"""Makes the old workdirs with the code of the commit that they are of.

    git archive --prefix=old/ a521de1 | tar -x -C /some/where
    python -m tests.golden.make --source=/some/where/old --scratch=/golden \
      [--only=KIND,KIND]

writes KIND.tar.gz and KIND.json to tests/golden/a521de1, for each kind of
kinds.py. The archive holds `workdir`, which SIGTERM left in the middle of an
epoch, the `data` it was trained on, and maybe a serving `copy` of what it has
published. The JSON holds what the old code made of it: the arrays of the
checkpoint, an evaluation, predictions, and the curve of the run when it is
continued. That is also the curve of a run that nothing interrupted, which is
checked here.

Everything is done by the command lines a user types, in processes with the
settings that tests have (machine.SETTINGS). Paths are relative to the scratch
directory; but Orbax leaves an absolute path in each checkpoint, which checksums
protect, so give the scratch directory a name that tells nothing.
"""

import argparse
import gzip
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

from tests.golden import data_files, kinds, machine
from tests.train import tiny_run

MAIN = ('-m', 'genrec_jax.main')
STOPPED = ('-m', 'tests.e2e.dying', f'SIGTERM after step {kinds.STOP}')
# Of a521de1; the test asks the same of the code at hand.
CHECKSUMS = """
import json, sys, zlib
import jax, numpy as np
from genrec_jax import config
from genrec_jax.serve.weights import load_weights
from genrec_jax.train import experiment

def checksum(array):
  array = np.asarray(array)
  return f'{array.dtype}{list(array.shape)} {zlib.crc32(array.tobytes()):08x}'

config = config.load(sys.argv[1], sys.argv[2:])
task = experiment.load_task(config, 'workdir', lambda *_: None)
found = load_weights('workdir', task, 'latest')
print(json.dumps({
  'step': found.step,
  'tables': {name: checksum(table) for name, table in found.tables.items()},
  'params': sorted(map(checksum, jax.tree.leaves(found.params))),
}))
"""


class Old:
  """The old code, run in a scratch directory."""

  def __init__(self, source: pathlib.Path, scratch: pathlib.Path):
    self._scratch = scratch
    self._env = {
      **os.environ,
      **machine.SETTINGS,
      'PYTHONPATH': str(source),
      'JAX_COMPILATION_CACHE_DIR': str(scratch / 'compiled'),
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    }

  def python(self, cwd: pathlib.Path, *words: str) -> str:
    """What `python WORDS` printed; it must succeed."""
    done = subprocess.run(
      [sys.executable, *words],
      cwd=cwd,
      env=self._env,
      capture_output=True,
      text=True,
    )
    if done.returncode:
      raise RuntimeError(f'{" ".join(words)}\n{done.stderr[-4000:]}')
    return done.stdout

  def run(self, cwd, program, config, workdir, overrides, *more: str) -> None:
    """A training, or what `--mode` in `more` says, by the command line."""
    self.python(
      cwd,
      *program,
      f'--config={kinds.CONFIG}:{config}',
      f'--workdir={workdir}',
      *(f'--config.{override}' for override in overrides),
      *more,
    )

  def prepare(self, name: str) -> pathlib.Path:
    """A directory with a raw file and what a training makes of it."""
    place = self._scratch / name.partition('.')[0]
    if not place.exists():
      place.mkdir()
      data_files.WRITE[name](place / name)
      config, flags, made = kinds.PREPARED[name]
      short = [*flags, f'data.path={name}', 'train.steps=1']
      self.run(place, MAIN, config, 'short', short)
      (cache,) = (place / 'short/data').iterdir()
      cache.rename(place / made)
      shutil.rmtree(place / 'short')
    return place


def make(old: Old, name: str, scratch: pathlib.Path, out: pathlib.Path):
  """Writes one archive, and what is expected of it."""
  kind, place = kinds.KINDS[name], scratch / name
  (place / 'data').mkdir(parents=True)
  if raw := kinds.raw_file(kind):
    shutil.copytree(old.prepare(raw), place / 'data', dirs_exist_ok=True)
  flags = kinds.flags(kind, 'data')
  old.run(place, STOPPED, kind.config, 'workdir', flags)
  for path in place.glob('workdir/events.*'):  # for TensorBoard
    path.unlink()
  if (place / 'workdir/published').exists():
    follow = ('-m', 'genrec_jax.checkpoint.follow', '--once')
    old.python(place, *follow, 'workdir', 'copy')
  pack(place, out / f'{name}.tar.gz')

  latest = [*flags, 'predict.checkpoint=latest']
  old.run(place, MAIN, kind.config, 'workdir', latest, '--mode=predict')
  old.run(place, MAIN, kind.config, 'workdir', flags, '--mode=eval')
  config = f'{kinds.CONFIG}:{kind.config}'
  expected = {
    'rounding': machine.describe_rounding(machine.SETTINGS),
    'arrays': json.loads(old.python(place, '-c', CHECKSUMS, config, *flags)),
    'evaluation': json.loads((place / 'workdir/eval.json').read_text())[
      'metrics'
    ],
    'predictions': (place / 'workdir/predictions.csv').read_text().split('\n'),
  }
  old.run(place, MAIN, kind.config, 'workdir', flags)
  expected['curve'] = tiny_run.curve(place / 'workdir')
  old.run(place, MAIN, kind.config, 'whole', flags)
  if kind.lossless and tiny_run.curve(place / 'whole') != expected['curve']:
    raise AssertionError(f'{name} continues to another curve')
  text = json.dumps(expected, indent=1)
  (out / f'{name}.json').write_text(text + '\n')


def pack(place: pathlib.Path, archive: pathlib.Path) -> None:
  """An archive of `place` that tells nothing of who made it, or when."""

  def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.mtime = entry.uid = entry.gid = 0
    entry.uname = entry.gname = ''
    entry.mode = 0o755 if entry.isdir() else 0o644
    return entry

  with (
    open(archive, 'wb') as raw,
    gzip.GzipFile('', 'wb', 9, raw, mtime=0) as packed,
    tarfile.open(fileobj=packed, mode='w') as tar,
  ):
    for path in sorted(place.rglob('*')):
      tar.add(path, path.relative_to(place), recursive=False, filter=anonymous)


def main() -> None:
  parser = argparse.ArgumentParser(prog='python -m tests.golden.make')
  parser.add_argument('--source', type=pathlib.Path, required=True)
  parser.add_argument('--scratch', type=pathlib.Path, required=True)
  parser.add_argument('--out', type=pathlib.Path, default=kinds.FILES)
  parser.add_argument('--only', default=','.join(kinds.KINDS))
  args = parser.parse_args()
  args.out.mkdir(parents=True, exist_ok=True)
  args.scratch.mkdir()  # fails rather than mixing with what is there
  try:
    scratch = args.scratch.resolve()
    old = Old(args.source.resolve(), scratch)
    for name in args.only.split(','):
      make(old, name, scratch, args.out)
      size = (args.out / f'{name}.tar.gz').stat().st_size
      print(f'{name}: {size:,} bytes', flush=True)
  finally:
    shutil.rmtree(args.scratch)


if __name__ == '__main__':
  main()
