"""What does it cost to train DLRM and DCN-V2 to a peer's AUC on Frappe?

  python -m benchmarks.frappe_cost --runs DIR --peer FILE.json

`--runs` are the workdirs that `python -m benchmarks.frappe` has left. `--peer`
is what another library took for the same models, protocol and data, measured
outside of this project: a list of {'model', 'seed', 'curve', 'versions'}, a
curve being [epoch, validation AUC, test AUC, core-seconds of training so far].

The AUC to reach is the least that any run of either ends with, where
validation is best; so every run reaches it. What counts are the core-seconds
of training, evaluations left out, until the first epoch whose test AUC is that
good.
"""

import json
import pathlib

from benchmarks import cli, runs
from benchmarks.frappe import NAMES, REBUILT

MODELS = ('dlrm', 'dcn')
OURS = 'genrec_jax'
COLUMNS = (
  'case', 'target_auc', 'epochs', 'epochs_std', 'core_s', 'core_s_std',
  'epoch_core_s', 'auc', 'auc_std', 'peer_x',
)  # fmt: skip
NOTES = (
  REBUILT,
  'One thread each, other work beside: compare core-seconds of an epoch as '
  'measured quietly by ranking_step. std is over seeds, with n - 1.',
)


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('frappe_cost', __doc__)
  parser.add_argument('--runs', required=True, help='directory of the workdirs')
  parser.add_argument('--peer', required=True, help='JSON file of its curves')
  args = parser.parse_args(argv)
  rows = []
  try:
    peers = json.loads(pathlib.Path(args.peer).read_text())
    for model in MODELS:
      ours = [curve(w) for w in workdirs(pathlib.Path(args.runs), model)]
      theirs = [p for p in peers if p['model'] == model]
      if ours and theirs:
        rows += beside(model, ours, theirs)
    if not rows:
      raise ValueError(f'no model has ended runs in {args.runs} and in --peer')
  except (ValueError, OSError) as error:
    cli.fail(str(error))
  cli.finish(args, 'frappe_cost', rows, COLUMNS, NOTES)


def workdirs(directory: pathlib.Path, model: str) -> list[pathlib.Path]:
  found = sorted(directory.glob(f'frappe_{model}_seed*'))
  return [w for w in found if w.is_dir() and runs.ended(w)]


def curve(workdir: pathlib.Path) -> list[list[float]]:
  """[epoch, validation AUC, test AUC, core-seconds] of each evaluation."""
  tests = runs.evaluations(workdir, 'test')
  valids = runs.evaluations(workdir, 'valid')
  each = runs.read_report(workdir)['train_core_s'] / len(valids)
  return [
    [epoch, valid['auc'], test['auc'], epoch * each]
    for epoch, (valid, test) in enumerate(zip(valids, tests, strict=True), 1)
  ]


def beside(model: str, ours: list, theirs: list[dict]) -> list[dict]:
  """A row for us and one for the peer."""
  curves = {OURS: ours, 'peer': [p['curve'] for p in theirs]}
  target = min(final(c) for both in curves.values() for c in both)
  rows = [row(model, which, both, target) for which, both in curves.items()]
  rows[0]['peer_x'] = rows[1]['core_s'] / rows[0]['core_s']
  rows[1]['library'], rows[1]['versions'] = name(theirs), theirs[0]['versions']
  return rows


def name(theirs: list[dict]) -> str:
  library, version = next(iter(theirs[0]['versions'].items()))
  return f'{library} {version}'


def row(model: str, which: str, curves: list, target: float) -> dict:
  reached = [next(e for e in c if e[2] >= target) for c in curves]
  found = {'case': f'{model}/{which}', 'model': NAMES[model], 'library': which}
  found |= {'target_auc': target, 'seeds': len(curves)}
  found |= runs.over_seeds('epochs', [e[0] for e in reached])
  found |= runs.over_seeds('core_s', [e[3] for e in reached])
  found |= runs.over_seeds('epoch_core_s', [c[-1][3] / len(c) for c in curves])
  return found | runs.over_seeds('auc', [final(c) for c in curves])


def final(found: list[list[float]]) -> float:
  """Test AUC of the epoch that validation chooses."""
  return max(found, key=lambda e: e[1])[2]


if __name__ == '__main__':
  main()
