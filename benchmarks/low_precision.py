"""Ranking models whose products are rounded to shared microexponents.

  python -m benchmarks.low_precision --runs DIR --data DIR/frappe
  python -m benchmarks.low_precision --runs DIR --data DIR/frappe --only dlrm

Models are trained on Frappe_x1 by the protocol of configs/frappe.py; *clicks*
is DLRM on a million generated clicks, for ten seeds: a run takes two minutes,
and its test split has 125,000 examples. Every product but the first and the
last of the model has the format of the case, these two have bfloat16; norms,
sums and weights are in float32. A case is

  bfloat16     all products in bfloat16: what the others are compared with
  MX           trained from its first step in the format, forward and backward
  MX cast      the weights of bfloat16, evaluated in the format
  MX tuned     the weights of bfloat16, trained on in the format with rates of a
               tenth, by the same rules

with MX one of mx9, mx6 and mx4 and, for comparison, mxfp8_e4m3, mxint8 and
mxfp4_e2m1; `mx4_stochastic` rounds gradients by chance. Differences are between
runs of equal seeds. NE is the log loss over the entropy of the labels;
`ne_minus_%` is the difference as a share of it.

Nothing here becomes faster: the formats are emulated (docs/numerics.md). What a
run costs is of this emulation. A run that has ended in `--runs` is not trained
again, nor is one whose row the result file has. NPROC=1 and
XLA_FLAGS=--xla_cpu_multi_thread_eigen=false keep a run to one core.
"""

import argparse
import dataclasses
import pathlib
from collections.abc import Iterable, Mapping

from benchmarks import cli, runs
from benchmarks.dmt_quality import make_frappe, train_to_the_end
from benchmarks.frappe import NAMES, REBUILT, best_epoch
from genrec_jax import config as config_lib
from genrec_jax.config.planted_blocks import planted_blocks
from genrec_jax.numerics import policy
from genrec_jax.numerics.block_formats import BLOCK_FORMATS
from genrec_jax.numerics.products import PRODUCTS
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import experiment as experiment_lib
from genrec_jax.train import results
from genrec_jax.weights import export

COLUMNS = (
  'case', 'seeds', 'auc', 'auc_std', 'auc_minus', 'auc_minus_se', 'logloss',
  'ne', 'ne_minus_%', 'ne_minus_%_se', 'products', 'core_s',
)  # fmt: skip
BASE = 'bfloat16'
FORMATS = ('mx9', 'mx6', 'mx4', 'mxfp8_e4m3', 'mxint8', 'mxfp4_e2m1')
# The first product of a model on Frappe, and its last one.
OUTER = {
  'dlrm': ('top/linear_0/kernel', 'top/out/kernel'),
  'clicks': ('top/linear_0/kernel', 'top/out/kernel'),
  'wukong': ('layer_0/fmb/mlp/linear_0/kernel', 'top/out/kernel'),
}
HOW = ('', ' cast', ' tuned')
MODELS = ('dlrm', 'clicks', 'wukong')
CLICKS = 1_250_000  # of which a tenth validates and a tenth tests
NOTES = (
  REBUILT,
  'clicks: 16 fields of 100 values in four blocks, one epoch of batches of '
  '1,024; a seed is that of weights, batches and log.',
  'std is over seeds, with n - 1; *_minus are means of differences from the '
  'bfloat16 run of the same seed, *_se their standard errors.',
  'products: how many products of the model have which format.',
  'core_s: of the emulation, on a machine that did other work as well; of a '
  'cast that of its evaluation, of a tuned run without that of the run before.',
)


@dataclasses.dataclass(frozen=True)
class Case:
  """What is trained, with which seeds.

  Attributes:
    model: of MODELS.
    recipe: name of the product of all weights but the first and the last.
    how: one of HOW.
    seeds: of the runs.
  """

  model: str
  recipe: str
  how: str
  seeds: tuple[int, ...]

  @property
  def name(self) -> str:
    """As rows have it.

    >>> Case('dlrm', 'mx6', ' cast', (0,)).name
    'dlrm/mx6 cast'
    """
    return f'{self.model}/{self.recipe}{self.how}'

  @property
  def policy(self) -> tuple[tuple[str, str], ...]:
    """Rules of `numerics.policy`.

    >>> Case('dlrm', 'mx6', '', (0,)).policy[-1]
    ('.+', 'mx6')
    """
    # A cast has no backward pass; '.+' names every weight, '.*' would spare
    # those of few rows or columns.
    outer = tuple((name, BASE) for name in OUTER[self.model])
    return (*outer, ('.+', self.recipe))


def list_cases() -> list[Case]:
  """The most wanted first."""
  three, one = (0, 1, 2), (0,)
  cases = []
  for model in ('dlrm', 'wukong'):
    cases.append(Case(model, BASE, '', three))
    for how in HOW:
      cases += [Case(model, f, how, three) for f in ('mx9', 'mx6')]
    # What more training alone does.
    cases.append(Case(model, BASE, ' tuned', three))
    cases += [Case(model, 'mx4', how, one) for how in HOW]
    for f in FORMATS[3:]:
      cases += [Case(model, f, how, one) for how in HOW[:2]]
  ten = tuple(range(10))
  cases.append(Case('clicks', BASE, '', ten))
  for how in HOW[:2]:
    cases += [Case('clicks', f, how, ten) for f in ('mx9', 'mx6')]
  for f in ('mx4', 'mxfp4_e2m1'):
    cases += [Case('clicks', f'{f}{more}', '', three)
              for more in ('', '_stochastic')]  # fmt: skip
    cases.append(Case('clicks', f, ' cast', three))
  others = [
    f for f in BLOCK_FORMATS if f not in ('mx9', 'mx6', 'mx4', 'mxfp4_e2m1')
  ]
  cases += [Case('clicks', f, ' cast', three) for f in others]
  return cases


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('low_precision', __doc__)
  parser.add_argument('--runs', required=True, help='directory of the workdirs')
  parser.add_argument('--data', help='directory of the CSVs of Frappe')
  parser.add_argument('--train-file', help='of --data, if not the usual one')
  parser.add_argument('--seeds', nargs='+', type=int, help='these alone')
  parser.add_argument(
    '--only', nargs='+', default=[''], metavar='NAME',
    help='cases whose names begin so, such as dlrm or wukong/mx9',
  )  # fmt: skip
  args = parser.parse_args(argv)
  if not (args.data or args.smoke or args.only == ['clicks']):
    parser.error('--data DIR is needed, with the files of Frappe')
  rows = cli.read_rows(args, 'low_precision')
  for case, seed in list_runs(args):
    name = f'{case.name}/seed{seed}'
    if name not in rows:
      rows[name] = measure(args, case, seed)
    same = [
      row
      for row in rows.values()
      if row['kind'] == 'run' and row['case'].startswith(f'{case.model}/')
    ]
    cli.finish(args, 'low_precision', [*same, *average(same)], COLUMNS, NOTES)


def list_runs(args: argparse.Namespace) -> list[tuple[Case, int]]:
  """(case, seed), in the order of training: seed by seed for each model."""
  cases = list_cases()
  if args.smoke:
    cases = [
      dataclasses.replace(case, seeds=(0,))
      for case in cases
      if case.model == 'dlrm'
      and case.recipe in (BASE, 'mx4')
      or case.name == 'clicks/mx4_stochastic'
    ]
  wanted = [
    (case, seed)
    for model in MODELS
    for seed in range(10)
    for case in cases
    if case.model == model and seed in case.seeds
  ]
  return [
    (case, seed)
    for case, seed in wanted
    if (args.seeds is None or seed in args.seeds)
    and case.name.startswith(tuple(args.only))
  ]


def measure(args: argparse.Namespace, case: Case, seed: int) -> dict:
  """The row of a run, trained unless it has ended."""
  if case.how == ' cast':
    workdir = train(args, Case(case.model, BASE, '', ()), seed)
    config = config_lib.load_saved(workdir / 'config.json')
    config.numerics.policy = case.policy
    found = results.evaluate_run(config, workdir, TASK_KINDS)
    metrics, more = found['metrics'], {'core_s': found['core_s']}
  else:
    workdir = train(args, case, seed)
    report = runs.read_report(workdir)
    metrics = report['metrics']
    more = {
      'core_s': report['core_s'],
      'epochs': best_epoch(report, workdir),
      'parameters': report['parameters']['model'],
    }
  row = {
    'case': f'{case.name}/seed{seed}',
    'kind': 'run',
    'of': case.name,
    'model': NAMES.get(case.model, 'DLRM'),
    'recipe': case.recipe,
    'how': case.how.strip() or 'trained',
    'seed': seed,
    'products': count_products(case, workdir),
  }
  for key in ('auc', 'logloss', 'ne'):
    row[key] = metrics['test'][key]
  return row | {'valid_auc': metrics['valid']['auc']} | more


def train(args: argparse.Namespace, case: Case, seed: int) -> pathlib.Path:
  """The workdir of a run that has ended."""
  workdir = find_workdir(args, case, seed)
  if runs.ended(workdir):
    return workdir
  config = make_config(args, case, seed)
  config.numerics.policy = case.policy
  config.eval.splits = ('valid', 'test')
  if case.how == ' tuned':
    before = train(args, Case(case.model, BASE, '', ()), seed)
    weights = before.with_suffix('.safetensors')
    if not weights.exists():
      export.export_weights(before, weights)
    config.train.init_from = str(weights.resolve())
    config.optimizer.learning_rate *= 0.1
  train_to_the_end(config, workdir)
  return workdir


def make_config(args: argparse.Namespace, case: Case, seed: int):
  """The experiment of a case, with products as they are."""
  if case.model != 'clicks':
    return make_frappe(args, case.model, seed)
  config = planted_blocks(config_lib.dlrm(), 'flat')
  config.seed = config.data.clicks.seed = seed
  rows = 4_000 if args.smoke else CLICKS
  config.data.clicks.update(rows=rows, values=100)
  config.train.update(batch_size=1024, epochs=1)
  return config


def find_workdir(
  args: argparse.Namespace, case: Case, seed: int
) -> pathlib.Path:
  """Where a run is, or will be."""
  name = case.name.replace('/', '_').replace(' ', '_')
  return pathlib.Path(args.runs) / f'{name}_seed{seed}'


def count_products(case: Case, workdir: pathlib.Path) -> str:
  """How many products of a model have which format."""
  config = config_lib.load_saved(workdir / 'config.json')
  experiment = experiment_lib.build_experiment(
    config, workdir, TASK_KINDS, lambda line: None, trains=False
  )
  sites = experiment.task.sites
  chosen = policy.choose_products(case.policy, sites_of(sites), (), PRODUCTS)
  return policy.describe_products(chosen)


def sites_of(sites) -> dict[str, tuple[int, ...]]:
  """Shapes do not matter to rules that name every weight."""
  return dict.fromkeys(sites, (1, 1))


def average(rows: Iterable[Mapping]) -> list[dict]:
  """A mean over seeds for each case, and what it is beside bfloat16."""
  by_case = runs.group_by_seed(rows)
  found = []
  for name, of in by_case.items():
    first = next(iter(of.values()))
    mean = {'case': name, 'kind': 'mean', 'seeds': len(of)}
    mean |= {key: first[key] for key in ('model', 'recipe', 'how', 'products')}
    for key in ('auc', 'logloss', 'ne', 'core_s'):
      mean |= runs.over_seeds(key, [r[key] for r in of.values()])
    base = by_case.get(f'{name.partition("/")[0]}/{BASE}', {})
    if not name.endswith(f'/{BASE}'):
      mean |= compare(of, base)
    found.append(mean)
  return found


def compare(
  of: Mapping[int, Mapping], base: Mapping[int, Mapping]
) -> dict[str, float]:
  """Mean differences of runs of equal seeds, and their standard errors.

  >>> one = {0: {'auc': 0.75, 'ne': 0.5}, 1: {'auc': 0.5, 'ne': 0.5}}
  >>> compare(one, {0: {'auc': 0.5, 'ne': 0.4}})
  {'auc_minus': 0.25, 'ne_minus_%': 25.0, 'pairs': 1}
  """
  both = [(row, base[seed]) for seed, row in of.items() if seed in base]
  if not both:
    return {}
  differences = {
    'auc_minus': [a['auc'] - b['auc'] for a, b in both],
    'ne_minus_%': [100 * (a['ne'] / b['ne'] - 1) for a, b in both],
  }
  found = {}
  for key, values in differences.items():
    found |= runs.mean_difference(key, values)
    found[key] = round(found[key], 9)
  return found | {'pairs': len(both)}


if __name__ == '__main__':
  main()
