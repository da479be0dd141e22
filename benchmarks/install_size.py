"""What `pip install` of the core brings: bytes, packages, and what it must not.

  python -m benchmarks.install_size

Makes a fresh virtual environment, installs this checkout with its core
requirements, and sums the files of site-packages, before and after they are
compiled to bytecode. Uses pip as it is configured. `--smoke` looks at the
environment it runs in instead and installs nothing.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile

from benchmarks import cli
from benchmarks.result import CoreTimer

ROOT = pathlib.Path(__file__).parent.parent
SOURCES = ('genrec_jax', 'pallas_kernels', 'setup.py', 'pyproject.toml')
UNWANTED = ('tensorflow', 'torch')
LARGEST = 12
COLUMNS = (
  'case', 'bytes', 'share', 'packages', 'pycache_bytes', 'unwanted', 'wall_s',
)  # fmt: skip


def main(argv: list[str] | None = None) -> None:
  args = cli.parser('install_size', __doc__).parse_args(argv)
  if args.smoke:
    rows = look(pathlib.Path(sys.executable), sysconfig.get_path('purelib'))
  else:
    with tempfile.TemporaryDirectory() as directory:
      rows = _install(pathlib.Path(directory))
  if rows[0]['unwanted'] and not args.smoke:
    cli.fail(f'the core brings {rows[0]["unwanted"]}')
  notes = [
    'Sums of file sizes in site-packages, pip itself included; total is '
    'without bytecode, pycache_bytes is what compiling adds.',
    'Target: below 1 GB, no TensorFlow, no PyTorch.',
  ]
  cli.finish(args, 'install_size', rows, COLUMNS, notes, merge=False)


def _install(directory: pathlib.Path) -> list[dict]:
  # A copy: building leaves files in the directory it builds.
  source = directory / 'source'
  source.mkdir()
  for name in SOURCES:
    if (ROOT / name).is_dir():
      ignored = shutil.ignore_patterns('__pycache__')
      shutil.copytree(ROOT / name, source / name, ignore=ignored)
    else:
      shutil.copy(ROOT / name, source)
  venv = directory / 'venv'
  _run(sys.executable, '-m', 'venv', venv)
  python = venv / 'bin' / 'python'
  with CoreTimer() as timer:
    _run(python, '-m', 'pip', 'install', '--quiet', '--no-compile', source)
  path = _run(
    python, '-c', "import sysconfig; print(sysconfig.get_path('purelib'))"
  )
  rows = look(python, path.strip())
  rows[0]['wall_s'] = timer.wall_s
  loaded = _run(
    *(python, '-B', '-c'),
    'import sys, genrec_jax.main, genrec_jax.train.loop; print(*sys.modules)',
  ).split()
  rows[0]['unwanted'] += ''.join(f' {n}' for n in UNWANTED if n in loaded)
  _run(python, '-m', 'compileall', '-q', path.strip(), check=False)
  _, rows[0]['pycache_bytes'] = sizes(pathlib.Path(path.strip()))
  return rows


def look(python: pathlib.Path, site_packages: str) -> list[dict]:
  """Rows of an environment: the total, then its largest packages."""
  found, cached = sizes(pathlib.Path(site_packages))
  listed = json.loads(_run(python, '-m', 'pip', 'list', '--format=json'))
  names = [package['name'].lower() for package in listed]
  unwanted = [n for n in names if n.split('-')[0].split('_')[0] in UNWANTED]
  total = sum(found.values())
  rows = [
    {
      'case': 'total',
      'bytes': total,
      'share': 1.0,
      'packages': len(names),
      'pycache_bytes': cached,
      'unwanted': ' '.join(unwanted),
      'installed': [f'{p["name"]}=={p["version"]}' for p in listed],
    }
  ]
  largest = sorted(found, key=found.get, reverse=True)[:LARGEST]
  return rows + [
    {'case': name, 'bytes': found[name], 'share': found[name] / total}
    for name in largest
  ]


def sizes(site_packages: pathlib.Path) -> tuple[dict[str, int], int]:
  """Bytes of each top-level entry without bytecode, and bytes of bytecode."""
  found, cached = {}, 0
  for path in site_packages.rglob('*'):
    if path.is_symlink() or not path.is_file():
      continue
    size = path.stat().st_size
    if path.suffix == '.pyc':
      cached += size
      continue
    top = path.relative_to(site_packages).parts[0]
    found[top] = found.get(top, 0) + size
  return found, cached


def _run(*command, check: bool = True) -> str:
  done = subprocess.run(
    [str(word) for word in command],
    capture_output=True,
    text=True,
    cwd=tempfile.gettempdir(),  # nothing of this checkout on the path
  )
  if check and done.returncode:
    words = ' '.join(str(w) for w in command)
    cli.fail(f'{words}\n{done.stdout}{done.stderr}')
  return done.stdout


if __name__ == '__main__':
  main()
