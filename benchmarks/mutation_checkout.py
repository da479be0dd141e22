"""A copy of the checkout in which `benchmarks.mutation` runs mutants."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from benchmarks import cli
from benchmarks.mutation_plugin import REQUEST

ROOT = pathlib.Path(__file__).parent.parent


@contextlib.contextmanager
def copied(root: pathlib.Path, work: str) -> Iterator['Checkout']:
  """A copy of what the checkout tracks or would track."""
  directory = pathlib.Path(work)
  directory.mkdir(parents=True, exist_ok=True)
  command = ('git', 'ls-files', '-co', '--exclude-standard', '-z')
  listed = subprocess.run(command, cwd=root, capture_output=True, text=True)
  if listed.returncode:
    cli.fail(f'{root} is copied by what git lists of it: {listed.stderr}')
  with tempfile.TemporaryDirectory(dir=directory, prefix='copy-') as place:
    copy = pathlib.Path(place) / 'checkout'
    for name in filter(None, listed.stdout.split('\0')):
      if (root / name).is_file():  # a link to a directory is not of the code
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, copy / name)
    (pathlib.Path(place) / 'tmp').mkdir()
    yield Checkout(copy, directory)


class Checkout:
  """A copy of the library in which tests run, one process at a time."""

  def __init__(self, root: pathlib.Path, work: pathlib.Path):
    self.root, self.work = root, work
    self._time = 1_000_000_000  # of the files that are written here

  def write(self, file: str, text: str) -> None:
    """Replaces a file.

    Python knows an old file from a new one by its size and by its time in whole
    seconds; mutants of equal size follow each other in less.
    """
    path = self.root / file
    path.write_text(text)
    self._time += 10
    os.utime(path, (self._time, self._time))

  def pytest(self, request: dict, arguments, limit_s: float | None = None):
    """Runs pytest.

    Args:
      request: for `mutation_plugin`.
      arguments: files and options.
      limit_s: after which it is killed, with all that it has started.

    Returns:
      (exit status, or None if it was killed; the plugin's answer, or {}; the
      end of its output).
    """
    path = self.root.parent / 'request'
    path.write_text(json.dumps(request))
    answer = path.with_suffix('.answer')
    answer.unlink(missing_ok=True)
    environment = {
      **os.environ,
      REQUEST: str(path),
      'PYTHONPATH': os.pathsep.join((str(self.root), str(ROOT))),
      'TMPDIR': str(self.root.parent / 'tmp'),
      'PYTEST_ADDOPTS': '',
    }
    # One cache for all: most programs of a mutant are those of the library.
    environment.setdefault(
      'JAX_COMPILATION_CACHE_DIR', str(self.work / 'compiled')
    )
    process = subprocess.Popen(
      [
        *(sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider'),
        *('-p', 'benchmarks.mutation_plugin', '--rootdir', '.', *arguments),
      ],
      cwd=self.root,
      env=environment,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      errors='replace',
      start_new_session=True,
    )
    try:
      output, _ = process.communicate(timeout=limit_s)
      status = process.returncode
    except subprocess.TimeoutExpired:
      status = None
    finally:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if status is None:
      output, _ = process.communicate()
    found = json.loads(answer.read_text()) if answer.exists() else {}
    return status, found, '\n'.join(output.splitlines()[-30:])
