"""The planted space of `benchmarks.dnas`: 192 models, all of them known.

`Truth` has what each comes to when it is trained alone (dnas_every.py); a
search is judged by where its model stands among all that keep the budget.
"""

import argparse
import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy import stats

from benchmarks import cli, dnas_every, dnas_runs, runs
from benchmarks.dnas_every import Examples, Model, Training
from benchmarks.result import CoreTimer
from genrec_jax import config as config_lib
from genrec_jax.data.ranking import clicks
from genrec_jax.serve.scorer import Scorer
from genrec_jax.serve.weights import load_weights
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import experiment
from genrec_jax.train.supernet_scores import score_architectures

CONFIG = 'configs/dnas_clicks.py:planted'
MODELS = 'dnas_models'  # the result file of the truth
BUDGETS = (200, 300, 900)  # operations; models have 96 to 3,392
TRUTH_SEEDS, SEEDS, ROADS = 5, (1, 2, 3), 6
_DRAWS = 20_000  # of random searches

# What is searched with other settings -> the keys that differ.
_SGD = {
  'optimizer.name': 'sgd', 'optimizer.learning_rate': 1.0,
  'search.optimizer': 'sgd', 'search.learning_rate': 1.0,
}  # fmt: skip
VARIANTS = {
  'published': {},
  'tried': {'search.proposals': 64},
  'per batch': {'search.draws': 'batch'},
  'hard': {'search.hard': True},
  'skips dropped': {'search.drop_skips': True},
  'sgd': _SGD,
  # At 500 times the rate that was meant, as in the published code.
  'sgd, shared': {
    **_SGD,
    'search.learning_rate': 2e-3,
    'search.shared_optimizer': True,
  },
}
MAIN = ('published', 'tried')  # at each budget, the others at the middle one


@dataclasses.dataclass(frozen=True)
class Truth:
  """What each model of the space comes to alone.

  Attributes:
    models: all of them.
    valid: `[models, seeds]` log loss of the examples that validate.
    excess: `[models, seeds]` expected log loss of the test examples, above that
      of the true chances.
  """

  models: Sequence[Model]
  valid: np.ndarray
  excess: np.ndarray

  @classmethod
  def read(cls, args: argparse.Namespace) -> 'Truth':
    """The truth that was measured.

    Args:
      args: of the command line.
    """
    rows = cli.read_rows(args, MODELS).values()
    if not rows:
      raise ValueError('planted/models is not measured: do that first')
    models = [Model(tuple(r['top']), tuple(r['dims'])) for r in rows]
    return cls(
      models,
      np.array([r['valids'] for r in rows]),
      np.array([r['excesses'] for r in rows]),
    )

  @functools.cached_property
  def mean(self) -> np.ndarray:
    """`[models]` mean excess."""
    return self.excess.mean(axis=1)

  @property
  def noise(self) -> float:
    """Half of a 95 % interval of the difference of two models' means.

    Of models with the median variance: a few hang in some of their seeds.
    """
    seeds = self.excess.shape[1]
    variance = np.median(self.excess.var(axis=1, ddof=1))
    wide = stats.t.ppf(0.975, 2 * (seeds - 1))
    return float(wide * (2 * variance / seeds) ** 0.5)

  def judge(self, model: int, seed: int) -> float:
    """The mean excess of a model over the seeds but one, that chose it.

    Args:
      model: its number.
      seed: that does not count, unless there is no other.
    """
    others = np.arange(self.excess.shape[1]) != seed
    own = self.excess[model]
    return float(own[others].mean() if others.any() else own.mean())

  def list_within(self, budget: float) -> np.ndarray:
    """Numbers of the models that keep a budget, the best one first."""
    flops = np.array([model.flops for model in self.models])
    within = np.flatnonzero(flops <= budget)
    return within[np.argsort(self.mean[within])]


def list_rows(args: argparse.Namespace) -> list[tuple[str, Callable]]:
  """(name, function that measures it), in their order."""
  seeds = SEEDS[: 1 if args.smoke else None]
  found = [('planted/models', functools.partial(train_models, args))]
  for number in range(1 if args.smoke else ROADS):
    measure = functools.partial(compare_road, args, number)
    found.append((f'planted/road/{number}', measure))
  for budget in BUDGETS:
    measure = functools.partial(know_budget, args, budget)
    found.append((f'planted/known/{budget}', measure))
    for variant in VARIANTS:
      if variant not in MAIN and budget != BUDGETS[1]:
        continue
      for seed in seeds:
        measure = functools.partial(search, args, budget, variant, seed)
        found.append((f'planted/{variant}/{budget}/seed{seed}', measure))
  for budget in BUDGETS:
    measure = functools.partial(search_randomly, args, budget)
    found.append((f'planted/random/{budget}', measure))
  return found


def make_log(args: argparse.Namespace) -> clicks.ClickLog:
  """The log of the config."""
  config = config_lib.load(str(runs.ROOT / CONFIG))
  options = {
    key: tuple(value) if isinstance(value, (list, tuple)) else value
    for key, value in config.data.clicks.items()
  }
  log = clicks.ClickLog(**options)
  return dataclasses.replace(log, rows=5_000) if args.smoke else log


def train_models(args: argparse.Namespace) -> dict:
  """Trains all models, and writes the file that `Truth` reads."""
  log = make_log(args)
  examples = Examples.generate(log)
  search = config_lib.load(str(runs.ROOT / CONFIG)).search
  models = dnas_every.list_models(log.fields, search.top, search.dims)
  training = Training(epochs=1 if args.smoke else Training.epochs)
  with CoreTimer() as timer:
    scores = [
      dnas_every.train_every(models, examples, training, seed)
      for seed in range(2 if args.smoke else TRUTH_SEEDS)
    ]
  rows = []
  for number, model in enumerate(models):
    valids = [float(s.valid[number]) for s in scores]
    excesses = [float(s.test[number]) - examples.floor for s in scores]
    top = '-'.join(map(str, model.top))
    rows.append({
      'case': f'top {top}, dim {" ".join(map(str, model.dims))}',
      'top': list(model.top),
      'dims': list(model.dims),
      'flops': model.flops,
      **runs.over_seeds('excess', excesses),
      'valids': [round(x, 6) for x in valids],
      'excesses': [round(x, 6) for x in excesses],
    })  # fmt: skip
  columns = ('case', 'flops', 'excess', 'excess_std')
  cli.finish(args, MODELS, rows, columns, merge=False)
  spread = float(np.mean([np.std(r['excesses'], ddof=1) for r in rows]))
  return {
    'kind': 'models', 'models': len(rows), 'seeds': len(scores),
    'floor': examples.floor, 'spread': spread, 'core_s': timer.core_s,
  }  # fmt: skip


def compare_road(args: argparse.Namespace, number: int) -> dict:
  """A model of the space, trained by the library and by the oracle."""
  truth, log = Truth.read(args), make_log(args)
  rng = np.random.default_rng(0)
  chosen = int(rng.permutation(len(truth.models))[number])
  model = truth.models[chosen]
  examples = Examples.generate(log)
  columns = {
    f'c{i}': column for i, column in enumerate(examples.values['test'].T)
  }
  found, spent = [], []
  for seed in SEEDS:
    workdir = _root(args) / 'road' / f'{chosen}_seed{seed}'
    dims = {f'c{i}': d for i, d in enumerate(model.dims)}
    options = {
      'seed': seed,
      'model.top': model.top,
      **{f'model.dims.{c}': d for c, d in dims.items() if d != max(dims)},
    }
    report = runs.train_once(CONFIG, workdir, _list_overrides(args, options))
    p = Scorer.load(workdir).score(columns).reshape(-1).astype(np.float64)
    q = examples.chance['test']
    loss = -np.mean(q * np.log(p) + (1 - q) * np.log1p(-p))
    found.append(float(loss) - examples.floor)
    spent.append(report['core_s'])
  return {
    'kind': 'road',
    'model': f'{model.top} {model.dims}',
    **runs.over_seeds('excess', found),
    'excess_alone': float(truth.mean[chosen]),
    'core_s': float(np.mean(spent)),
  }


def know_budget(args: argparse.Namespace, budget: int) -> dict:
  """What somebody without a search comes to, and what can be known at all.

  Size is a score, too: `spearman_size` is that of more operations, and
  `spearman_halves` that of two seeds and three others of the truth, which no
  score can be expected to exceed. `on_front` is the share of all models, and
  `regret_all` what all trainings with one seed, judged by the others, come to.
  `curse` is the regret of the best by three seeds, judged by two others.
  """
  truth = Truth.read(args)
  within = truth.list_within(budget)
  mean, excess = truth.mean[within], truth.excess[within]
  flops = np.array([truth.models[i].flops for i in within])
  seeds = range(excess.shape[1])
  halves, curses, regrets = [], [], []
  for some in itertools.combinations(seeds, (len(seeds) + 1) // 2):
    rest = [s for s in seeds if s not in some]
    if not rest:
      continue
    a, b = excess[:, list(some)].mean(axis=1), excess[:, rest].mean(axis=1)
    halves.append(stats.spearmanr(a, b)[0])
    curses.append(b[a.argmin()] - b.min())
  for seed in seeds:
    best = truth.valid[within, seed].argmin()
    regrets.append(truth.judge(within[best], seed) - mean[0])
  return {
    'kind': 'known', 'budget': budget, 'models': len(within),
    'noise': truth.noise, 'regret': float(np.mean(mean - mean[0])),
    'on_front': float(np.mean(mean - mean[0] <= truth.noise)),
    'regret_all': float(np.mean(regrets)),
    'curse': float(np.mean(curses)) if curses else 0.0,
    'spearman_size': float(stats.spearmanr(-flops, mean)[0]),
    'spearman_halves': float(np.mean(halves)) if halves else 0.0,
  }  # fmt: skip


def search(
  args: argparse.Namespace, budget: int, variant: str, seed: int
) -> dict:
  """A search by the command, and where its model stands."""
  truth = Truth.read(args)
  name = f'{variant.replace(", ", "_").replace(" ", "_")}_{budget}_seed{seed}'
  workdir = _root(args) / 'searches' / name
  options = {
    'seed': seed, 'search.seed': seed, 'search.max_flops': float(budget),
    **VARIANTS[variant],
  }  # fmt: skip
  row = dnas_runs.search_once(CONFIG, workdir, _list_overrides(args, options))
  found, best = dnas_runs.read_search(workdir)
  within = truth.list_within(budget)
  places = [int(np.flatnonzero(within == x)[0]) for x in (
    _find_model(truth, best['architecture']),
    _find_model(truth, found['candidates'][0]['architecture']),
  )]  # fmt: skip
  regrets = [
    float(truth.mean[within[p]] - truth.mean[within[0]]) for p in places
  ]
  dims = list(best['architecture']['dims'].values())
  silent, widest = make_log(args).silent, max(max(m.dims) for m in truth.models)
  return row | {
    'of': f'planted/{variant}/{budget}', 'seed': seed,
    'variant': variant, 'budget': budget,
    'excess': float(truth.mean[within[places[0]]]),
    'regret': regrets[0], 'regret_likeliest': regrets[1],
    'noise': truth.noise, 'on_front': int(regrets[0] <= truth.noise),
    'place': places[0] + 1, 'models': len(within),
    'silent_wide': dims[-silent:].count(widest),
    'telling_wide': dims[:-silent].count(widest),
    'widest': max(best['architecture']['net']['top']),
    **_rank_models(workdir / 'supernet', truth, within),
  }  # fmt: skip


def _rank_models(
  folder: pathlib.Path, truth: Truth, within: np.ndarray
) -> dict:
  """Spearman's correlation between the supernet's loss and the truth.

  Of all models, with an interval of 95 % by drawing models anew, and of those
  within the budget.
  """
  config = config_lib.load_saved(folder / 'config.json')
  data, task = experiment.load_data_and_task(
    config, folder, TASK_KINDS, lambda *_: None
  )
  weights = load_weights(folder, task, 'latest')
  architectures = list(task.space.list_architectures())
  scores = score_architectures(
    task, weights, data.splits['valid'], 4096, architectures
  )
  places = [_find_model(truth, a.to_json()) for a in architectures]
  mean, allowed = truth.mean[places], np.isin(places, within)
  return dnas_runs.correlate(scores, mean, 'spearman') | {
    'spearman_within': float(
      stats.spearmanr(scores[allowed], mean[allowed])[0]
    ),
  }  # fmt: skip


def search_randomly(args: argparse.Namespace, budget: int) -> dict:
  """What trainings of models by chance come to, as dear as the search was.

  Each draw takes the model that validates best with one seed, among as many
  models within the budget as the search has cost trainings.
  """
  truth = Truth.read(args)
  searched = [
    row
    for row in cli.read_rows(args, 'dnas').values()
    if row.get('of') == f'planted/published/{budget}'
  ]
  if not searched:
    raise ValueError(
      f'planted/published/{budget} is not measured: do that first'
    )
  spent = dnas_runs.find_spent(searched)
  count = max(1, round(spent / np.mean([r['trained_s'] for r in searched])))
  within = truth.list_within(budget)
  count = min(count, len(within))
  rng = np.random.default_rng(0)
  seeds = rng.integers(truth.valid.shape[1], size=_DRAWS)
  regrets = np.empty(_DRAWS)
  for i, seed in enumerate(seeds):
    own = rng.choice(within, count, replace=False)
    best = own[np.argmin(truth.valid[own, seed])]
    regrets[i] = truth.judge(best, seed) - truth.mean[within[0]]
  return {
    'kind': 'random', 'budget': budget, 'models': len(within),
    'trained': count, 'regret': float(regrets.mean()),
    'regret_std': float(regrets.std()), 'noise': truth.noise,
    'on_front': float(np.mean(regrets <= truth.noise)),
  }  # fmt: skip


def _find_model(truth: Truth, architecture: Mapping) -> int:
  """The number of an architecture among all models."""
  wanted = Model(
    tuple(architecture['net']['top']), tuple(architecture['dims'].values())
  )
  return list(truth.models).index(wanted)


def _list_overrides(args: argparse.Namespace, options: Mapping) -> list[str]:
  options = {
    'data.cache': str(_root(args) / 'data'),
    'report.importance_rows': 0,
    **options,
  }
  if args.smoke:
    options |= {
      'data.clicks.rows': 5_000,
      'train.epochs': 2,
      'search.budget_epochs': 0.5,
    }
  return dnas_runs.list_overrides(options)


def _root(args: argparse.Namespace) -> pathlib.Path:
  return pathlib.Path(args.runs).resolve() / 'planted'
