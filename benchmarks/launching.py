"""Do sweeps survive kills, and what does the launcher itself cost?

  python -m benchmarks.launching --part kills --trials 20
  python -m benchmarks.launching --part jobs
  python -m benchmarks.launching --part preempt sizes

The parts are

  kills    a sweep of 12 tiny runs, whose launcher is killed by SIGKILL at a
           random moment and one of its runs with it (a moment at which no run
           is there is drawn again); the same command is given again. All runs
           must end, with curves that are those of a sweep that nobody
           disturbed, bit for bit.
  jobs     12 tiny runs by a shell loop, and by the launcher with one job and
           with two: seconds, and core-seconds of all processes.
  preempt  a run as a task of an array of Slurm, with one process and with two,
           which gets SIGTERM again and again, as from a scheduler that wants
           the machine, and is submitted again each time. The scheduler is
           played by this file; its variables are those of srun.
  notebooks
           seconds, and core-seconds of all processes, of the notebooks in
           launch/notebooks, run from start to end in an empty directory as
           JAX finds the machine (nbclient, of the extra `dev`).
  sizes    seconds until 200 variants are checked and printed, and until 200
           finished runs are collected.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from benchmarks import cli
from genrec_jax.processes import notes
from genrec_jax.sweep import collect, record, run_states

CONFIG = 'quickstart:smoke'
SETS = ('optimizer.learning_rate=1e-3,3e-3,1e-2', 'seed=0..3')
PARTS = ('kills', 'jobs', 'preempt', 'sizes', 'notebooks')
NOTEBOOKS = pathlib.Path(__file__).parents[1] / 'launch' / 'notebooks'
COLUMNS = (
  'case', 'trials', 'runs', 'complete', 'equal_curves', 'started_again',
  'wall_s', 'core_s', 'wall_x', 'core_x', 'launcher_core_s', 'launcher_share',
)  # fmt: skip
NOTES = (
  'equal_curves: trials in which metrics.jsonl of every run has the values of '
  'the undisturbed sweep, bit for bit; times in it left aside.',
  'started_again: starts of runs beyond the first, of all trials.',
  'launcher_core_s: what the launcher itself takes, its start and the page at '
  'the end included; launcher_share is its share of that of the runs.',
  'wall_x and core_x are ratios to the shell loop of the same command.',
)


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('launching', __doc__)
  parser.add_argument('--part', nargs='+', choices=PARTS, default=PARTS)
  parser.add_argument('--trials', type=int, default=20, help='of kills')
  parser.add_argument('--repeats', type=int, default=3, help='of jobs')
  parser.add_argument(
    '--directory', help='where sweeps may be put (the system decides)'
  )
  args = parser.parse_args(argv)
  if args.smoke:
    args.trials, args.repeats = 1, 1
  measures = {
    'kills': measure_kills,
    'jobs': measure_jobs,
    'preempt': measure_preemption,
    'sizes': measure_sizes,
    'notebooks': measure_notebooks,
  }
  with tempfile.TemporaryDirectory(dir=args.directory) as directory:
    for part in args.part:
      rows = measures[part](args, pathlib.Path(directory) / part)
      cli.finish(args, 'launching', rows, COLUMNS, NOTES)
      wrong = [r['case'] for r in rows if r.get('wrong')]
      if wrong:
        cli.fail(f'not as it should be: {", ".join(wrong)}')


def command(root: pathlib.Path, smoke: bool, *words: str) -> list[str]:
  """The command line of a sweep."""
  sets = SETS if not smoke else ('seed=0..1',)
  return [
    *(sys.executable, '-m', 'genrec_jax.sweep', CONFIG, f'--workdir={root}'),
    *(word for one in sets for word in ('--set', one)),
    *words,
  ]


def measure_kills(args: argparse.Namespace, root: pathlib.Path) -> list[dict]:
  """Kills launchers, and goes on; trials that the result file has are kept."""
  root.mkdir()
  known = cli.read_rows(args, 'launching')
  rows = [row for row in known.values() if row.get('kind') == 'trial']
  # The second one has its programs compiled, as the trials do.
  for calm in (root / 'calm', root / 'warm'):
    began = time.monotonic()
    subprocess.run(
      command(calm, args.smoke, '--jobs=2'),
      check=True,
      stderr=subprocess.DEVNULL,
    )
    took = time.monotonic() - began
  wanted = read_curves(calm)
  if read_curves(root / 'calm') != wanted:
    cli.fail('two sweeps that nobody disturbed have different curves')
  for trial in range(args.trials):
    if any(row['case'] == f'kills/trial {trial}' for row in rows):
      continue
    rng, place = random.Random(trial), root / f'trial{trial}'
    killed, early = '', 0
    while not killed:  # a moment at which there was nothing to kill is no trial
      shutil.rmtree(place, ignore_errors=True)
      moment = rng.uniform(0.05, 0.95) * took
      killed = kill_at(
        command(place, args.smoke, '--jobs=2'), place, moment, rng
      )
      early += not killed
    done = subprocess.run(
      command(place, args.smoke, '--jobs=2'), capture_output=True, text=True
    )
    sweep = record.require_sweep(place)
    states = [run_states.find_state(sweep, v) for v in sweep.variants]
    row = {
      'case': f'kills/trial {trial}',
      'kind': 'trial',
      'killed_at_s': moment,
      'killed_run': killed,
      'redrawn': early,
      'runs': len(states),
      'complete': sum(state == notes.DONE for state, _ in states),
      'equal_curves': int(read_curves(place) == wanted),
      'started_again': sum(note.tries - 1 for _, note in states),
    }
    row['wrong'] = row['complete'] < row['runs'] or not row['equal_curves']
    if row['wrong']:
      print(done.stdout[-2000:], done.stderr[-2000:])
    rows.append(row)
    cli.finish(args, 'launching', [row, add_trials(rows)], COLUMNS, NOTES)
    shutil.rmtree(place)
  return [add_trials(rows)]


def add_trials(rows: list[dict]) -> dict:
  """The row of all trials."""
  sums = ('runs', 'complete', 'equal_curves', 'started_again')
  return {
    'case': 'kills',
    'kind': 'kills',
    'trials': len(rows),
    **{name: sum(row[name] for row in rows) for name in sums},
    'wrong': any(row['wrong'] for row in rows),
  }


def kill_at(
  words: list[str], root: pathlib.Path, moment: float, rng: random.Random
) -> str:
  """Kills a launcher after some seconds, and one of its runs; names the run."""
  launcher = subprocess.Popen(
    words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
  )
  try:
    launcher.wait(moment)
    return ''  # it had ended
  except subprocess.TimeoutExpired:
    pass
  running = []
  if (sweep := record.read_sweep(root)) is not None:
    for variant in sweep.variants:
      note = notes.read_note(sweep.note(variant))
      if notes.is_alive(note, sweep.log(variant)):
        running.append((variant.name, note.pid))
  name = ''
  if running:
    name, pid = rng.choice(running)
    os.killpg(pid, signal.SIGKILL)
  launcher.kill()
  launcher.wait()
  return name


def read_curves(root: pathlib.Path) -> dict[str, list]:
  """Run -> what it measured, without times."""
  found = {}
  for path in sorted(root.glob('*/metrics.jsonl')):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    found[path.parent.name] = [
      {k: v for k, v in row.items() if not k.startswith('perf/')}
      for row in rows
    ]
  return {
    name: [row for row in rows if len(row) > 1] for name, rows in found.items()
  }


def measure_jobs(args: argparse.Namespace, root: pathlib.Path) -> list[dict]:
  """The launcher beside a shell loop, alternately."""
  root.mkdir()
  best: dict[str, dict] = {}
  for repeat in range(args.repeats):
    place = root / f'{repeat}'
    place.mkdir()
    dry = subprocess.run(
      command(place / 'loop', args.smoke, '--dry_run'),
      capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = dry.stdout.replace('python -m', f'{sys.executable} -m').splitlines()
    loop = '\n'.join(f'{line} >> {place}/log 2>&1' for line in lines)
    ways = {
      'loop': ['bash', '-c', loop],
      '1 job': command(place / 'one', args.smoke, '--jobs=1'),
      '2 jobs': command(place / 'two', args.smoke, '--jobs=2'),
    }
    for way, words in ways.items():
      took = run_timed(words)
      took['runs'] = len(lines)
      if way != 'loop':
        runs_core_s = sum_core_seconds(place / {'1': 'one', '2': 'two'}[way[0]])
        took['launcher_core_s'] = took['core_s'] - runs_core_s
        took['launcher_share'] = took['launcher_core_s'] / runs_core_s
      if way not in best or took['core_s'] < best[way]['core_s']:
        best[way] = took
      print(way, took, flush=True)
  rows = []
  for way, took in best.items():
    rows.append({
      'case': f'jobs/{way}',
      'kind': 'time',
      'trials': args.repeats,
      **took,
      'wall_x': took['wall_s'] / best['loop']['wall_s'],
      'core_x': took['core_s'] / best['loop']['core_s'],
    })  # fmt: skip
  return rows


def sum_core_seconds(root: pathlib.Path) -> float:
  """Of the runs of a sweep, without its launcher."""
  sweep = record.require_sweep(root)
  return sum(notes.read_note(sweep.note(v)).core_s for v in sweep.variants)


def run_timed(words: list[str]) -> dict[str, float]:
  """Seconds and core-seconds of a command with all that it starts."""
  before, began = os.times(), time.monotonic()
  subprocess.run(
    words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
  )
  after = os.times()
  return {
    'wall_s': time.monotonic() - began,
    'core_s': after.children_user
    + after.children_system
    - before.children_user
    - before.children_system,
  }


def measure_preemption(
  args: argparse.Namespace, root: pathlib.Path
) -> list[dict]:
  """Tasks that are put back into the queue."""
  root.mkdir()
  rows = []
  for processes in (1, 2):
    places, preempted = [], []
    for name, stops in (('calm', 0), ('preempted', 1 if args.smoke else 4)):
      place = root / f'{name}{processes}'
      sweep, _ = record.extend_sweep(
        place, CONFIG, [f'parallel.hosts={processes}', 'parallel.devices=1'],
        [(('seed', '1'),)],
      )  # fmt: skip
      record.write_sweep(sweep)
      preempted.append(run_tasks(sweep, processes, stops))
      places.append(place)
    calm, other = map(read_curves, places)
    rows.append({
      'case': f'preempt/{processes} processes',
      'kind': 'kills',
      'runs': 1,
      'complete': int(any(place.glob('*/report.json'))),
      'equal_curves': int(calm == other),
      'started_again': preempted[1],
      'wrong': calm != other or not calm,
    })  # fmt: skip
  return rows


def run_tasks(sweep: record.Sweep, processes: int, stops: int) -> int:
  """Submits a task until its run is done; returns how often again."""
  metrics = sweep.workdir(sweep.variants[0]) / 'metrics.jsonl'
  for again in range(100):
    before = metrics.stat().st_size if metrics.exists() else 0
    task = [start_task(sweep, processes, i, again) for i in range(processes)]
    while again < stops and any(p.poll() is None for p in task):
      if metrics.exists() and metrics.stat().st_size > before:
        for process in task:  # to all processes of the step
          process.send_signal(signal.SIGTERM)
        break
      time.sleep(0.02)
    statuses = [p.wait() for p in task]
    if set(statuses) == {0}:
      return again
    if set(statuses) - {0, 75, 76}:  # 76: stopped before it had got on
      cli.fail(f'{sweep.root}: processes ended with {statuses}')
  cli.fail(f'{sweep.root}: not done after 100 submissions')


def start_task(
  sweep: record.Sweep, processes: int, process: int, again: int
) -> subprocess.Popen:
  """One process of a task, with the variables of srun."""
  env = os.environ | {
    'SLURM_ARRAY_TASK_ID': '0',
    'SLURM_JOB_ID': str(20_000 + os.getpid() % 20_000 + again),
    'SLURM_PROCID': str(process),
    'SLURM_LOCALID': str(process),
    'SLURM_STEP_NUM_TASKS': str(processes),
    'SLURM_STEP_NODELIST': 'localhost',
    'SLURM_RESTART_COUNT': str(again),
  }
  words = [sys.executable, '-m', 'genrec_jax.sweep', str(sweep.root), '--run=0']
  with open(sweep.root / f'slurm-{process}.out', 'ab') as out:
    return subprocess.Popen(words, env=env, stdout=out, stderr=out)


def measure_sizes(args: argparse.Namespace, root: pathlib.Path) -> list[dict]:
  """Sweeps of many variants."""
  root.mkdir()
  count = 20 if args.smoke else 200
  words = [
    *(sys.executable, '-m', 'genrec_jax.sweep', CONFIG),
    *(f'--workdir={root / "dry"}', '--set', f'seed=0..{count - 1}'),
  ]
  dry = run_timed([*words, '--dry_run'])
  one = root / 'one'
  subprocess.run(
    command(one, True, '--jobs=2'), check=True, stderr=subprocess.DEVNULL
  )
  source = record.require_sweep(one)
  sweep, wanted = record.extend_sweep(
    root / 'many', CONFIG, (), [(('seed', str(n)),) for n in range(count)]
  )
  record.write_sweep(sweep)
  (sweep.root / 'logs').mkdir()
  real = source.workdir(source.variants[0])
  for variant in wanted:  # all files of a real run that are read
    sweep.workdir(variant).mkdir()
    for name in ('report.json', 'metrics.jsonl', 'config.json'):
      shutil.copy(real / name, sweep.workdir(variant) / name)
  collecting = run_timed(
    [sys.executable, '-m', 'genrec_jax.sweep', str(sweep.root), '--collect']
  )
  assert len(collect.list_rows(collect.read_results(sweep))) == count
  return [
    {'case': f'sizes/{what} {count}', 'kind': 'time', 'runs': count, **took}
    for what, took in (('dry run of', dry), ('collecting', collecting))
  ]


def measure_notebooks(
  args: argparse.Namespace, root: pathlib.Path
) -> list[dict]:
  """Each notebook by a client of its own."""
  root.mkdir()
  rows = []
  for path in sorted(NOTEBOOKS.glob('*.ipynb'))[: 1 if args.smoke else None]:
    place = root / path.stem
    place.mkdir()
    run = (
      'import nbclient, nbformat; '
      f'book = nbformat.read({str(path)!r}, as_version=4); '
      'nbclient.NotebookClient(book, timeout=900, kernel_name="python3", '
      f'resources={{"metadata": {{"path": {str(place)!r}}}}}).execute()'
    )
    took = run_timed([sys.executable, '-c', run])
    rows.append({
      'case': f'notebooks/{path.stem}', 'kind': 'time', 'runs': 1, **took,
    })  # fmt: skip
  return rows


if __name__ == '__main__':
  main()
