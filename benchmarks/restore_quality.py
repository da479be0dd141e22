"""What does a model lose by being restored from quantised checkpoints?

  python -m benchmarks.restore_quality --runs DIR --data DIR/frappe
  python -m benchmarks.restore_quality --runs DIR

A run is stopped k times, at evenly spaced steps, and goes on each time from
what was read back from the files of a checkpoint, the library's own, with the
tables at some bit width (policy intermittent; optimizer slots and everything
dense are exact). Its test log loss is compared with that of the run of the same
seed that nothing disturbed, on Frappe and on the generated click log.

  restored   k restores while training
  read       none while training; the last weights are read back and evaluated
  nudged     none; in the middle, each weight of the tables is moved, up or
             down by chance, to the next float32: what the least possible
             change does to a training

Check-N-Run claims a loss of 0.01 % at most for 1 restore at 2 bits, 3 at 3, 20
at 4, and more than 100 at 8. `verdict` holds the mean over the seeds against
that, with its 95 % interval: 'within' and 'above' if the interval lies on one
side, else 'not resolved'.

Restores happen within one process: the tables are saved by `RowSaver`, read
back from its files, and what is exact in a checkpoint stays in memory. What is
finished is kept in `--runs`, a line a run, and not run again; what the paper
claims is run first.
"""

import dataclasses
import functools
import itertools
import json
import math
import pathlib
import shutil
import time

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import cli, frappe, runs
from genrec_jax import config as config_lib
from genrec_jax.checkpoint import chain, manifest, row_files
from genrec_jax.checkpoint import rows as rows_lib
from genrec_jax.checkpoint.delta import DeltaOptions, RowSaver, RowTables
from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import experiment as experiment_lib

_FM = (
  'optimizer.rows.name=row_adagrad',
  'optimizer.rows.learning_rate=0.1',
  'loss.table_l2=0',
)
# Small and fast: what counts are the tables, and how often they are restored.
SETTINGS = {
  'frappe': (
    'configs/frappe.py:dlrm',
    (
      'optimizer.rows.name=row_adam',
      'data.init_std=0.01',
      'optimizer.rows.learning_rate=0.003',
      'loss.table_l2=0',
      'model.dim=16',
      'model.top=(64,32)',
      'model.dropout=0.1',
      'train.epochs=8',
    ),
  ),
  # No network, no dropout: it damps a change of its tables instead of
  # amplifying it, so that what a restore does can be told from chance.
  'frappe_fm': ('configs/frappe.py:fm', (*_FM, 'train.epochs=8')),
  # Six times the steps behind a restore.
  'frappe_fm_long': ('configs/frappe.py:fm', (*_FM, 'train.epochs=48')),
  'clicks': (
    'configs/wukong_synthetic.py',
    (
      'optimizer.rows.name=row_adagrad',
      'optimizer.rows.learning_rate=0.05',
      'model.fmb_hidden=(64,)',
      'model.bottom=(64,)',
      'model.top=(64,)',
      'train.batch_size=512',
      'train.epochs=1',
    ),
  ),
}
# (bits, method)
PLANS = (
  (32, 'exact'),
  (8, 'adaptive'),
  (4, 'adaptive'),
  (3, 'adaptive'),
  (2, 'adaptive'),
  (4, 'asymmetric'),
  (4, 'symmetric'),
  (2, 'asymmetric'),
  (2, 'symmetric'),
)
BUDGET = 0.01  # per cent
SAFE = 8  # bits for any number of restores
# How many restores of one run fewer bits can bear, by the paper.
RESTORES = {2: 1, 3: 3, 4: 20}
NUDGES = 2
# Two-sided 95 % of Student's t, by degrees of freedom.
T95 = (np.inf, 12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
LINES = 'restore_quality.jsonl'
COLUMNS = (
  'case', 'logloss', 'more', 'more_std', 'more_95', 'least', 'most', 'auc_more',
  'seeds', 'claimed', 'verdict',
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Case:
  """What happens to a run."""

  data: str
  kind: str  # 'plain', 'restored', 'read', 'nudged'
  restores: int = 0
  bits: int = 32
  method: str = 'exact'

  @property
  def name(self) -> str:
    words = [self.data, self.kind]
    if self.kind in ('restored', 'read'):
      words += [self.method, f'{self.bits} bits']
    if self.kind == 'restored':
      words.append(f'{self.restores} times')
    if self.kind == 'nudged':
      words.append(str(self.restores))
    return '/'.join(words)

  @property
  def claimed(self) -> bool:
    """Whether the paper claims to lose next to nothing."""
    if self.kind != 'restored' or self.method != 'adaptive':
      return False
    return self.bits == SAFE or self.restores <= RESTORES[self.bits]


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('restore_quality', __doc__)
  parser.add_argument('--runs', required=True, help='directory of what is run')
  parser.add_argument('--data', help='directory of the CSVs of Frappe')
  parser.add_argument('--only', choices=SETTINGS, help='one of the data sets')
  parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2])
  parser.add_argument(
    '--restores', nargs='+', type=int, default=[1, 3, 20, 100]
  )
  parser.add_argument(
    '--claimed', action='store_true', help='only what the paper claims'
  )
  parser.add_argument(
    '--finished', action='store_true', help='read what has ended, train nothing'
  )
  args = parser.parse_args(argv)
  if args.smoke:
    args.seeds, args.restores = [0], [3]
  directory = pathlib.Path(args.runs)
  directory.mkdir(parents=True, exist_ok=True)
  chosen = [
    data
    for data in SETTINGS
    if args.only in (None, data)
    and (data == 'clicks' or args.data or args.smoke)
  ]
  try:
    wanted = (True,) if args.claimed else (True, False)
    for claimed in () if args.finished else wanted:
      for seed in args.seeds:
        for data in chosen:
          run_all(cases(data, args.restores, claimed), seed, directory, args)
    rows = summaries(finished(directory), chosen)
  except (ValueError, OSError, RuntimeError) as error:
    cli.fail(str(error))
  notes = [
    'more: test log loss above that of the undisturbed run of the same seed, '
    'in per cent; mean over seeds, std with n - 1, half of the 95 % interval '
    "(Student's t), least and most. Negative is better.",
    'claimed: by Check-N-Run, to be 0.01 % at most. needed: seeds after which '
    'the interval would be as narrow as that, with this std.',
  ]
  if args.data:
    notes.append(frappe.REBUILT)
  cli.finish(args, 'restore_quality', rows, COLUMNS, notes)


def cases(data: str, restores, claimed: bool) -> list[Case]:
  """Of a seed: what is claimed and what it is compared with, or the rest."""
  if claimed:
    found = [Case(data, 'plain')]
    found += [Case(data, 'nudged', i + 1) for i in range(NUDGES)]
    found += [Case(data, 'read', 0, *plan) for plan in PLANS]
  else:
    found = []
  each = [Case(data, 'restored', k, *plan) for k in restores for plan in PLANS]
  # Without loss of a bit once is as good as a hundred times, and cheaper.
  few = [c for c in each if c.bits < 32 or c.restores <= RESTORES[3]]
  return found + [c for c in few if claimed == (c.claimed or c.bits == 32)]


def run_all(found: list[Case], seed: int, directory, args) -> None:
  """Those cases of a seed that have not ended."""
  ended = {(r['case'], r['seed']) for r in finished(directory)}
  wanted = [case for case in found if (case.name, seed) not in ended]
  if not wanted:
    return
  trainer = Trainer(wanted[0].data, seed, directory, args)
  for case in wanted:
    start = time.process_time()
    line = {
      'case': case.name,
      'seed': seed,
      'steps': trainer.steps,
      **dataclasses.asdict(case),
      **trainer.run(case),
      'core_s': time.process_time() - start,
    }
    with open(directory / LINES, 'a') as f:
      f.write(json.dumps(line) + '\n')
    text = f'{line["logloss"]:.6f}, {line["core_s"]:.1f} core-s'
    print(f'{case.name}, seed {seed}: {text}', flush=True)


def finished(directory: pathlib.Path) -> list[dict]:
  path = directory / LINES
  if not path.exists():
    return []
  return [json.loads(line) for line in path.read_text().splitlines()]


class Trainer:
  """The runs of a seed: one program, the same batches.

  Attributes:
    steps: of a run.
  """

  def __init__(self, data: str, seed: int, directory: pathlib.Path, args):
    name, overrides = SETTINGS[data]
    if args.smoke:
      name += ',smoke' if ':' in name else ':smoke'
      overrides = ('optimizer.rows.name=row_adagrad',)
    elif data != 'clicks':
      overrides += (f'data.path={pathlib.Path(args.data).resolve()}',)
    self._config = config_lib.load(
      str(runs.ROOT / name),
      [
        *overrides,
        f'seed={seed}',
        f'data.cache={directory / "data" / data}',
        'checkpoint.policy=intermittent',
        'eval.splits=("test",)',
      ],
    )
    self._experiment = experiment_lib.build_experiment(
      self._config, directory, TASK_KINDS
    )
    self._test = self._experiment.evaluators(self._config)['test']
    self._runtime = self._experiment.runtime
    self._step = self._runtime.step()
    train = self._config.train
    epoch = self._experiment.data.steps_per_epoch(train.batch_size)
    self.steps = train.steps or train.epochs * epoch
    self._directory = directory / 'checkpoints' / f'{data}_{seed}'

  @functools.cached_property
  def _batches(self) -> list:
    found = iter(self._experiment.train_batches(self._config))
    return list(itertools.islice(found, self.steps))

  @functools.cache
  def _undisturbed(self, steps: int):
    """The state after so many steps."""
    if not steps:
      return self._runtime.fresh_state()
    return self._train(self._copy(0), 0, steps)

  def _copy(self, steps: int):
    """That, as a copy: steps and saves take what they are given."""
    return jax.tree.map(jnp.copy, self._undisturbed(steps))

  def run(self, case: Case) -> dict:
    """Metrics of the test split."""
    if case.kind == 'plain':
      return self._measure(self._undisturbed(self.steps))
    if case.kind == 'nudged':
      return self._nudged(case.restores)
    bits = case.bits
    options = DeltaOptions(
      bits=bits, method=case.method if bits < 32 else DeltaOptions.method
    )
    shutil.rmtree(self._directory, ignore_errors=True)
    saver = Through(self._directory, self._runtime.stacks, options)
    if case.kind == 'read':
      return self._measure(saver.trip(self.steps, self._copy(self.steps)))
    stops = self._stops(case.restores)
    state = self._copy(stops[0])
    for a, b in zip(stops[:-1], stops[1:], strict=True):
      state = self._train(saver.trip(a, state), a, b)
    return self._measure(state)

  def _stops(self, restores: int) -> list[int]:
    """Steps of the restores, and the last one."""
    return (
      np.linspace(0, self.steps, restores + 2)[1:].round().astype(int).tolist()
    )

  def _nudged(self, seed: int) -> dict:
    middle, _ = self._stops(1)
    state = self._copy(middle)
    rng = np.random.default_rng(seed)
    tables = {}
    for name, table in state.tables.items():
      table = np.asarray(table)
      towards = rng.choice(np.float32([-np.inf, np.inf]), table.shape)
      tables[name] = jnp.array(np.nextafter(table, towards))
    state = dataclasses.replace(state, tables=tables)
    return self._measure(self._train(state, middle, self.steps))

  def _train(self, state, first: int, last: int):
    for batch in self._batches[first:last]:
      state, _ = self._step(state, batch)
    return state

  def _measure(self, state) -> dict:
    found = dict(self._test.run(state))
    return {name: float(found[name]) for name in ('logloss', 'auc')}


class OnlyRows(CheckpointManager):
  """Checkpoints of rows alone: what is exact need not be written here."""

  def save(self, step, state, *, data=None, host=None, rows=None, wait=False):
    path = self._step_directory(step)
    directory = path / row_files.NAME
    directory.mkdir(parents=True)
    rows_lib.write_chunks(directory, rows.taken.chunks, rows.encoding)
    manifest.write(path, step, rows=rows.about)
    kept = chain.collect_needed(self.directory, [step])
    for other in set(manifest.list_steps(self.directory)) - kept:
      shutil.rmtree(self._step_directory(other))


class Through:
  """Sends the tables of states through files, one state after the other."""

  def __init__(self, directory: pathlib.Path, stacks, options: DeltaOptions):
    self._stacks = stacks
    self._checkpoints = OnlyRows(directory)
    self._saver = RowSaver(self._checkpoints, stacks, options)

  def trip(self, step: int, state):
    """The state as a restore of this step gives it."""
    arrays = {n: state.tables[n] for n in self._stacks}
    tables = RowTables(arrays, state.row_opt_state, state.dirty_rows)
    shapes = jax.eval_shape(lambda: (arrays, state.row_opt_state))
    self._saver.save(step, {}, tables)
    chain.verify_chain(self._checkpoints.directory, step)
    found = self._checkpoints.restore_rows(step, self._stacks, *shapes)
    self._saver.note_restore(step)
    # On no device in particular, as in a run, lest steps be compiled anew.
    arrays, slots, dirty_rows = jax.tree.map(
      lambda x: jnp.array(np.asarray(x)),
      (found.arrays, found.slots, found.dirty_rows),
    )
    return dataclasses.replace(
      state,
      tables={**state.tables, **arrays},
      row_opt_state=slots,
      dirty_rows=dirty_rows,
    )


def summaries(lines: list[dict], chosen) -> list[dict]:
  """A row for each case: the mean over its seeds."""
  plain = {(r['data'], r['seed']): r for r in lines if r['kind'] == 'plain'}
  rows = []
  for name in sorted(
    {r['case'] for r in lines if r['data'] in chosen}, key=_order(lines)
  ):
    of = [r for r in lines if r['case'] == name]
    case = Case(**{f.name: of[0][f.name] for f in dataclasses.fields(Case)})
    rows.append(_summary(case, of, plain))
  return rows


def _order(lines):
  """Sorts names of cases: data, kind, restores, bits, method."""
  kinds = ('plain', 'nudged', 'read', 'restored')
  keys = {
    r['case']: (
      list(SETTINGS).index(r['data']),
      kinds.index(r['kind']),
      r['restores'],
      -r['bits'],
      r['method'],
    )
    for r in lines
  }
  return keys.__getitem__


def _summary(case: Case, of: list[dict], plain: dict) -> dict:
  row = {
    'case': case.name,
    **dataclasses.asdict(case),
    'seeds': len(of),
    'steps': of[0]['steps'],
    **runs.over_seeds('logloss', [r['logloss'] for r in of]),
    **runs.over_seeds('auc', [r['auc'] for r in of]),
    'core_s': float(np.mean([r['core_s'] for r in of])),
  }
  if case.kind == 'plain':
    return row
  more = [
    100 * (r['logloss'] / plain[r['data'], r['seed']]['logloss'] - 1)
    for r in of
  ]
  row |= runs.over_seeds('more', more)
  row |= {'least': min(more), 'most': max(more)}
  row['auc_more'] = float(
    np.mean([r['auc'] - plain[r['data'], r['seed']]['auc'] for r in of])
  )
  if len(of) > 1:
    t = T95[min(len(of), len(T95)) - 1]
    row['more_95'] = float(t * row['more_std'] / len(of) ** 0.5)
    # For half an interval as wide as the budget.
    row['needed'] = math.ceil((1.96 * row['more_std'] / BUDGET) ** 2)
  if case.claimed:
    row['claimed'] = '≤ 0.01 %'
    row['verdict'] = verdict(row['more'], row.get('more_95', np.inf))
  return row


def verdict(mean: float, half: float) -> str:
  """What an interval says of the budget."""
  if mean + half <= BUDGET:
    return 'within'
  return 'above' if mean - half > BUDGET else 'not resolved'


if __name__ == '__main__':
  main()
