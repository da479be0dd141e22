"""The first hour of a new user, replayed: what it takes, and what it says.

  python -m benchmarks.first_hour
  python -m benchmarks.first_hour --pictures DIR
  python -m benchmarks.first_hour --python .venv/bin/python --only mistakes

A wheel is built of this checkout and installed into a fresh environment, in an
empty directory. From there all commands are run as a reader of the README types
them, and what they leave behind is looked at with a reader of its own: the same
log in six shapes has the same metrics, the recommendations are those that the
generated log was made of, the AUC of the written scores is that of the report.
A station that fails ends in a row that says so.
"""

import argparse
import dataclasses
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

from benchmarks import cli, first_hour_logs, result

ROOT = pathlib.Path(__file__).parent.parent
COLUMNS = (
  'case', 'ok', 'wall_s', 'core_s', 'commands', 'lines', 'shown',
)  # fmt: skip
LIMIT_S = 900.0  # of a command: a run that hangs must not hold the rest
SOURCES = ('setup.py', 'pyproject.toml', 'README.md', 'LICENSE', 'genrec_jax',
           'pallas_kernels', 'configs')  # fmt: skip
# Commands that are wrong, and what their message must name.
MISTAKES = (
  (['train', 'quickstrat'], 'quickstart'),
  (['train', 'own_csv:sasrek'], 'sasrec'),
  (['train', 'quickstart', '--config.model.name=gru'], 'gru'),
  (['train', 'quickstart', '--config.model.name=dlrm'], 'dlrm'),
  (['train', 'quickstart', '--config.model.dim=-3'], 'model.dim'),
  (['train', 'quickstart', '--config.model.dropout=1.5'], 'model.dropout'),
  (['train', 'quickstart', '--config.eval.ks=0,10'], 'eval.ks'),
  (['train', 'quickstart', '--config.train.batch_size=0'], 'batch_size'),
  (
    ['train', 'quickstart', '--config.optimizer.learning_rate=-1'],
    'learning_rate',
  ),
  (['train', 'quickstart', '--config.trian.steps=5'], 'train.steps'),
  (['train', 'own_csv', '--config.data.path=none.csv'], 'none.csv'),
  (
    [
      *('train', 'own_csv', '--config.data.path=purchases.csv'),
      *('--config.data.columns.user=costumer',),
      *('--config.data.columns.item=product',),
      *('--config.data.columns.time=bought_at',),
    ],
    'customer',
  ),
  (['predict', 'nowhere', 'new.csv'], 'nowhere'),
)


class Fault(Exception):
  """A station is not as a user may expect it."""


@dataclasses.dataclass
class Hour:
  """A directory in which commands are typed.

  Attributes:
    folder: the directory.
    python: the interpreter that everything is installed for.
    target: where the wheel is, if not in the environment of `python`.
    lines: of output that a user has seen at this station.
    commands: that were typed at it.
  """

  folder: pathlib.Path
  python: pathlib.Path
  target: pathlib.Path | None = None
  lines: int = 0
  commands: int = 0

  def environment(self) -> dict[str, str]:
    bins = [self.python.parent]
    env = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
    if self.target:
      bins.insert(0, self.target / 'bin')
      env['PYTHONPATH'] = str(self.target)
    # Compiled programs of other days must not make this one quicker.
    env['XDG_CACHE_HOME'] = str(self.folder / '.cache')
    env['PATH'] = os.pathsep.join([*map(str, bins), env['PATH']])
    return env

  def start(self, *words: str) -> subprocess.Popen:
    """Starts `genrec WORDS`; both of its outputs are one."""
    self.commands += 1
    program = shutil.which('genrec', path=self.environment()['PATH'])
    if program is None:
      raise Fault('the command genrec is not installed')
    return subprocess.Popen(
      [program, *words],
      cwd=self.folder,
      env=self.environment(),
      text=True,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      start_new_session=True,
    )

  def genrec(self, *words: str, status: Sequence[int] = (0,)) -> str:
    """Runs `genrec WORDS` and returns what it printed."""
    process = self.start(*words)
    try:
      text, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
      os.killpg(process.pid, signal.SIGKILL)
      raise Fault(f'genrec {" ".join(words)} hangs') from None
    self.lines += len(text.splitlines())
    if 'Traceback' in text:
      raise Fault(f'genrec {" ".join(words)}: a traceback\n{text}')
    if process.returncode not in status:
      raise Fault(
        f'genrec {" ".join(words)}: status {process.returncode}\n{text}'
      )
    return text


def see_help(hour: Hour) -> str:
  """The words that a lost user tries."""
  empty = hour.genrec(status=(2,))
  found = hour.genrec('--help')
  for text in (empty, found):
    _expect('genrec train quickstart' in text, 'no example', text)
  _expect(len(empty.splitlines()) <= 15, 'too many lines', empty)
  configs, models = hour.genrec('configs'), hour.genrec('models')
  for name in ('quickstart', 'own_csv', 'own_clicks'):
    _expect(name in configs, f'no {name}', configs)
  for name in ('hstu', 'sasrec', 'dlrm', 'wukong'):
    _expect(name in models, f'no {name}', models)
  return f'{len(models.splitlines())} lines of models'


def run_quickstart(hour: Hour) -> str:
  hour.genrec('train', 'quickstart', '--workdir=quick')
  report = first_hour_logs.read_report(hour.folder / 'quick')
  test = report['metrics']['test']
  popular = report['baselines']['popularity']['test']
  _expect(test['hr@10'] > 2 * popular['hr@10'], 'as good as popularity', test)
  return f'HR@10 {test["hr@10"]:.3f}, popularity {popular["hr@10"]:.3f}'


def read_shapes(hour: Hour) -> str:
  """One log in six shapes is one log."""
  found = {}
  for shape, words in first_hour_logs.write_shapes(hour.folder).items():
    workdir = f'shape_{shape}'
    hour.genrec(
      *('train', 'own_csv', f'--workdir={workdir}', *words),
      *('--config.train.steps=20', '--config.model.dim=16'),
    )
    report = first_hour_logs.read_report(hour.folder / workdir)
    found[shape] = report['metrics']['test']
  first, *others = found.values()
  _expect(all(x == first for x in others), 'the shapes differ', found)
  return f'{len(found)} shapes, equal metrics'


def train_by_name(hour: Hour) -> str:
  """SASRec on purchases, and what comes next for three new customers."""
  hour.genrec(
    *('train', 'own_csv:sasrec', '--workdir=sasrec'),
    *first_hour_logs.PURCHASE_COLUMNS,
    *('--config.data.path=purchases.csv', '--config.model.max_len=8'),
    *('--config.train.epochs=20', '--config.train.batch_size=64'),
  )
  new = first_hour_logs.write_new_customers(hour.folder / 'new.csv')
  hour.genrec('predict', 'sasrec', 'new.csv', '--output=next.csv')
  right = first_hour_logs.count_right(hour.folder / 'next.csv', new)
  _expect(right >= 2, 'the next products are not those that follow', right)
  report = first_hour_logs.read_report(hour.folder / 'sasrec')
  return (
    f'{right} of {len(new)} next products right, '
    f'HR@10 {report["metrics"]["test"]["hr@10"]:.3f}'
  )


def train_on_clicks(hour: Hour) -> str:
  """DLRM on clicks; the AUC of the scores it writes, counted again."""
  first_hour_logs.write_clicks(hour.folder)
  hour.genrec(
    *('train', 'own_clicks:dlrm', '--workdir=dlrm'),
    *('--config.data.path=clicks.csv', '--config.data.labels=clicked'),
    '--config.data.time=shown_at',
  )
  hour.genrec('predict', 'dlrm', 'new_clicks.csv', '--output=scores.csv')
  found, best = first_hour_logs.measure_scores(
    hour.folder / 'scores.csv', hour.folder / 'new_clicks_answers.csv'
  )
  _expect(found > 0.5 + 0.6 * (best - 0.5), 'the scores are poor', found)
  return f'AUC {found:.4f} of new rows; {best:.4f} of the true probabilities'


def ask_again(hour: Hour) -> str:
  """A workdir is enough to evaluate it and to make its page again."""
  report = first_hour_logs.read_report(hour.folder / 'sasrec')
  said = hour.genrec('eval', 'sasrec')
  value = f'{report["metrics"]["test"]["hr@10"]:.4f}'
  _expect(value in said, f'HR@10 {value} is not told', said)
  page = hour.folder / 'sasrec/report.html'
  page.unlink()
  hour.genrec('report', 'sasrec')
  _expect(page.exists(), 'no page', page)
  return f'HR@10 {value} again; the page is back'


def stop_and_go_on(hour: Hour) -> str:
  """Ctrl-C in the middle, and the same command again."""
  words = ('train', 'quickstart', '--workdir=stopped')
  process = hour.start(*words)
  read = []
  for line in process.stdout:
    read.append(line)
    if line.startswith('step '):
      break
  began = time.perf_counter()
  os.killpg(process.pid, signal.SIGINT)
  text = process.stdout.read()
  took = time.perf_counter() - began
  status = process.wait(timeout=LIMIT_S)
  hour.lines += len(read) + len(text.splitlines())
  _expect(status == 130 and 'Traceback' not in text, f'status {status}', text)
  again = hour.genrec(*words)
  _expect('continu' in again, 'it does not say where it goes on', again)
  names = ('quick', 'stopped')
  a, b = (first_hour_logs.read_report(hour.folder / n) for n in names)
  _expect(a['metrics'] == b['metrics'], 'other metrics', b['metrics'])
  return f'{took:.1f} s after Ctrl-C; then the metrics of an undisturbed run'


def make_mistakes(hour: Hour) -> str:
  """A sentence each, and soon."""
  slowest = 0.0
  for words, name in MISTAKES:
    if words[0] == 'train':
      words = [*words, '--workdir=mistake']
    began = time.perf_counter()
    said = hour.genrec(*words, status=(1, 2))
    slowest = max(slowest, time.perf_counter() - began)
    _expect(name in said, f'{name} is not named', said)
    _expect(len(said.splitlines()) <= 6, 'too many lines', said)
  return f'{len(MISTAKES)} sentences, the slowest after {slowest:.1f} s'


STATIONS: dict[str, Callable[[Hour], str]] = {
  'help': see_help,
  'quickstart': run_quickstart,
  'six shapes': read_shapes,
  'SASRec by name': train_by_name,
  'DLRM on clicks': train_on_clicks,
  'from the workdir': ask_again,
  'Ctrl-C': stop_and_go_on,
  'mistakes': make_mistakes,
}


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('first_hour', __doc__)
  parser.add_argument(
    '--python',
    type=pathlib.Path,
    help='an interpreter that has the dependencies; none are installed then',
  )
  parser.add_argument('--only', nargs='+', choices=list(STATIONS))
  parser.add_argument('--keep', type=pathlib.Path, help='directory to work in')
  parser.add_argument(
    '--pictures',
    type=pathlib.Path,
    help='directory for pictures of all pages, which need chromium',
  )
  args = parser.parse_args(argv)
  # A shell's background job ignores it, and what it starts would, too.
  signal.signal(signal.SIGINT, signal.default_int_handler)
  with tempfile.TemporaryDirectory() as scratch:
    folder = (args.keep or pathlib.Path(scratch)).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    rows = replay(args, folder)
    if args.pictures:
      first_hour_logs.take_pictures(folder, args.pictures)
  notes = ['core_s counts the commands and all of their processes.']
  if args.python:
    notes.append('Dependencies were installed before: "install" is the wheel.')
  cli.finish(args, 'first_hour', rows, COLUMNS, notes)
  if not all(row['ok'] for row in rows):
    cli.fail('; '.join(r['shown'] for r in rows if not r['ok']))


def replay(args: argparse.Namespace, folder: pathlib.Path) -> list[dict]:
  """A row for each station; one that fails is told and the next is tried."""
  rows, hours = [], []

  def install(_: None) -> str:
    hours.append(install_wheel(folder, args.python))
    return 'wheel installed'

  rows.append(_measure('install', install, None))
  if not rows[0]['ok']:
    return rows
  first_hour_logs.write_purchases(folder / 'purchases.csv')
  for name, station in STATIONS.items():
    if not args.only or name in args.only:
      rows.append(_measure(name, station, hours[0]))
  return rows


def install_wheel(folder: pathlib.Path, python: pathlib.Path | None) -> Hour:
  """Builds a wheel of this checkout and installs it, with dependencies or not.

  Args:
    folder: directory that all of it goes to.
    python: an interpreter with the dependencies, or None for a fresh
      environment.
  """
  source, target = folder / '.source', None
  shutil.rmtree(source, ignore_errors=True)
  source.mkdir()
  ignore = shutil.ignore_patterns('__pycache__', '*.so')
  for name in SOURCES:
    path = ROOT / name
    if path.is_dir():
      shutil.copytree(path, source / name, ignore=ignore)
    elif path.exists():
      shutil.copy(path, source)
  pip = ('-m', 'pip', '--quiet', '--disable-pip-version-check')
  _run(
    sys.executable, *pip, 'wheel', '--no-deps',
    f'--wheel-dir={folder / ".wheel"}', str(source),
  )  # fmt: skip
  (wheel,) = (folder / '.wheel').glob('*.whl')
  if python:
    target = folder / '.installed'
    shutil.rmtree(target, ignore_errors=True)
    more = ('--no-deps', f'--target={target}')
  else:
    _run(sys.executable, '-m', 'venv', str(folder / '.venv'))
    python, more = folder / '.venv/bin/python', ()
  _run(str(python), *pip, 'install', *more, str(wheel))
  return Hour(folder, python.absolute(), target)


def _run(*command: str) -> None:
  done = subprocess.run(
    command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
  )
  if done.returncode:
    raise Fault(f'{" ".join(command)}\n{done.stdout}')


def _measure(name: str, station: Callable, hour: Hour | None) -> dict:
  if hour:
    hour.lines = hour.commands = 0
  with result.CoreTimer() as timer:
    try:
      shown, ok = station(hour), True
    except (Fault, OSError, KeyError, ValueError) as fault:
      shown, ok = f'{type(fault).__name__}: {fault}', False
  row = {
    'case': name,
    'ok': ok,
    'wall_s': timer.wall_s,
    'core_s': timer.core_s,
    'shown': shown,
  }
  if hour:
    row |= {'commands': hour.commands, 'lines': hour.lines}
  print(f'{name}: {shown}', flush=True)
  return row


def _expect(holds: bool, fault: str, said: object) -> None:
  if not holds:
    raise Fault(f'{fault}: {said}')


if __name__ == '__main__':
  main()
