"""What notebooks show of runs, and a sweep that a cell starts.

    from genrec_jax import notebook
    from genrec_jax.config import sweeps

    with notebook.live():  # the line of progress moves, as on a terminal
      run = genrec_jax.fit('events.csv', 'sasrec')
    notebook.draw_run(run)
    found = notebook.run_sweep(
      'own_csv:sasrec',
      sweeps.vary('optimizer.learning_rate', (1e-3, 1e-2)),
      settings={'data.path': 'events.csv'},
    )
    notebook.draw_sweep(found)

Pictures are SVG without a script, and need no package but this one. `live` uses
IPython, which every notebook has; without it, what it is given is printed.
"""

import contextlib
import dataclasses
import io
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from genrec_jax import interruption, provenance
from genrec_jax.library.settings import flatten_settings
from genrec_jax.report import curves as curves_lib
from genrec_jax.report.chart_files import draw_file, pick_color
from genrec_jax.report.charts import Chart, Frame, Series
from genrec_jax.report.comparison import compare_metrics, name_metric
from genrec_jax.report.metric_writers import read_jsonl, restore_numbers
from genrec_jax.sweep import record, results
from genrec_jax.sweep.variants import (
  check_variants,
  write_value,
  write_variants,
)

_FRAME = Frame(440, 300, 52, 14, 60, 38)  # of a chart of a picture
# What lines that move begin with: back to the beginning, and up some lines.
_CONTROL = re.compile(r'(\r\x1b\[K|\x1b\[\d+F\x1b\[J)')


# ---- A line that moves -------------------------------------------------------


class LiveText(io.TextIOBase):
  """A stream whose text is shown anew as a whole with each change.

  It understands what `Progress` and `LiveTable` write to a terminal.

  >>> shown = []
  >>> stream = LiveText(shown.append)
  >>> for text in ('begins\\n', '\\r\\x1b[Kstep 1', '\\r\\x1b[Kstep 2'):
  ...   _ = stream.write(text)
  >>> shown[-1]
  'begins\\nstep 2'
  """

  encoding = 'utf-8'

  def __init__(self, show: Callable[[str], object]):
    """Shows nothing yet.

    Args:
      show: is given the whole text.
    """
    super().__init__()
    self._show, self._lines = show, ['']

  def isatty(self) -> bool:
    return True

  def writable(self) -> bool:
    return True

  def write(self, text: str) -> int:
    for part in _CONTROL.split(text):
      if part.startswith('\r'):
        self._lines[-1] = ''
      elif part.startswith('\x1b'):
        self._lines[-1 - int(part[2 : part.index('F')]) :] = ['']
      else:
        first, *others = part.split('\n')
        self._lines[-1] += first
        self._lines += others
    self._show('\n'.join(self._lines).rstrip('\n'))
    return len(text)


@contextlib.contextmanager
def live() -> Iterator[None]:
  """Shows lines of progress in place, below the cell of a notebook."""
  shell = None
  with contextlib.suppress(ImportError):
    from IPython import display, get_ipython

    shell = get_ipython()
  if shell is None:
    yield
    return
  empty = {'text/plain': ''}
  place = display.display(empty, raw=True, display_id=True)
  stream = LiveText(lambda text: place.update({'text/plain': text}, raw=True))
  with contextlib.redirect_stderr(stream):
    yield


# ---- Pictures ----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Picture:
  """Charts side by side, which a notebook shows.

  Attributes:
    titles: of the charts.
    svg: the document.
  """

  titles: tuple[str, ...]
  svg: str = dataclasses.field(repr=False)

  def _repr_svg_(self) -> str:
    return self.svg


def draw_run(run, most: int = 2) -> Picture:
  """The curves of a run that matter most.

  Args:
    run: what `fit` or `load` has returned, or the path of a workdir.
    most: how many charts.

  Raises:
    ValueError: nothing was measured more than once.
  """
  workdir = pathlib.Path(getattr(run, 'workdir', run))
  report = restore_numbers(results.read_report(workdir / 'report.json'))
  rows = read_jsonl(workdir / 'metrics.jsonl')
  first, more = curves_lib.chart_curves(report, compare_metrics(report), rows)
  return draw_charts([*first, *more][:most])


def draw_sweep(found: results.Collection) -> Picture:
  """The curves of all runs of a sweep, the best first in the legend.

  Args:
    found: what `run_sweep` has returned.

  Raises:
    ValueError: no run has measured anything.
  """
  ranked = found.rank()
  series = [
    Series(
      result.variant.name.partition('_')[2] or result.variant.name,
      list(zip(result.curve.steps, result.curve.values, strict=True)),
      pick_color(at),
    )
    for at, result in enumerate(ranked)
  ]
  if not series:
    raise ValueError('no run of the sweep has measured anything')
  split, _, metric = found.metric.partition('/')
  title = f'{name_metric(metric)}, {split}' if metric else 'monitored value'
  return draw_charts([curves_lib.chart_steps(title, series)])


def draw_charts(charts: Sequence[Chart]) -> Picture:
  """Charts side by side, with their legends, in one picture."""
  if not charts:
    raise ValueError('there is nothing to draw: all was measured once')
  # Many viewers have no pointer for what answers to it.
  plain = [dataclasses.replace(chart, readouts=()) for chart in charts]
  titles = tuple(chart.title for chart in charts)
  return Picture(titles, draw_file(plain, _FRAME))


# ---- Sweeps ------------------------------------------------------------------


def run_sweep(
  config: str,
  variants: Iterable[Mapping[str, object]],
  *,
  settings: Mapping[str, object] | None = None,
  workdir: str | os.PathLike | None = None,
  jobs: int = 1,
) -> results.Collection:
  """Runs variants of an experiment as `genrec sweep` does, and waits for them.

  Every run is a process of its own, and so is what starts them: a notebook has
  threads of JAX, and a process with threads must not be forked. On GPUs and
  TPUs, the notebook itself must not hold the devices.

  Args:
    config: FILE or FILE:variant, as on the command line.
    variants: {dotted key: value} each, from `genrec_jax.config.sweeps`.
    settings: dotted key -> value, of all runs, as `fit` takes them.
    workdir: of the sweep, in which the same call goes on after an interruption.
      None makes a temporary one, which goes when the collection does.
    jobs: runs at a time.

  Returns:
    All runs, which `draw_sweep` takes, and `collect.list_rows`.

  Raises:
    ConfigError: a variant cannot be; it is named.
    ChildProcessError: the sweep ended before its runs did.
    KeyboardInterrupt: you did; the runs have saved first.
  """
  overrides = [
    f'{key}={write_value(key, _write_path(value))}'
    for key, value in flatten_settings(settings).items()
  ]
  asked = write_variants(variants)
  check_variants(config, overrides, asked)
  temporary = workdir is None
  top = pathlib.Path(workdir or tempfile.mkdtemp(prefix='genrec_jax-'))
  root = (top / 'sweep' if temporary else top).absolute()
  try:
    with record.lock_sweep(root):
      sweep, _ = record.extend_sweep(root, config, overrides, asked)
      command = f'genrec_jax.notebook.run_sweep({config!r}, ...)'
      sweep = record.note_command(sweep, provenance.mask_secrets(command))
      record.write_sweep(sweep)
    status = _launch(root, jobs)
    if status not in (interruption.DONE, interruption.FAILED):
      raise ChildProcessError(f'the sweep has ended with exit status {status}')
    found = results.read_results(sweep)
  except BaseException:
    if temporary:
      shutil.rmtree(top, ignore_errors=True)
    raise
  if temporary:
    weakref.finalize(found, shutil.rmtree, top, ignore_errors=True)
  return found


def _write_path(value: object) -> object:
  return os.fspath(value) if isinstance(value, os.PathLike) else value


def _launch(root: pathlib.Path, jobs: int) -> int:
  """Runs what is not done of a sweep, and prints what it says."""
  words = [sys.executable, '-m', 'genrec_jax.sweep', str(root)]
  # A notebook interrupts all processes of its group, and more than once; a
  # second SIGINT would not let the runs save.
  with _ignore_interrupts():
    child = subprocess.Popen(
      [*words, f'--jobs={jobs}'],
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      encoding='utf-8',
      errors='replace',
    )

  def print_lines():
    for line in child.stdout:
      print(line.replace(str(root), root.name), end='', flush=True)

  with child:
    try:
      print_lines()
    except KeyboardInterrupt:
      child.terminate()
      print_lines()
      raise
  return child.returncode


@contextlib.contextmanager
def _ignore_interrupts() -> Iterator[None]:
  """Processes that are started in this context never see a SIGINT."""
  before = None
  with contextlib.suppress(ValueError):  # not in the main thread
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
  try:
    yield
  finally:
    if before is not None:
      signal.signal(signal.SIGINT, before)
