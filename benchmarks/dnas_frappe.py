"""The part of `benchmarks.dnas` on Frappe_x1: searched against hand-made."""

import argparse
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from benchmarks import cli, dnas_runs, runs
from benchmarks.result import CoreTimer
from genrec_jax import config as config_lib
from genrec_jax.search.architecture import Architecture
from genrec_jax.serve.weights import load_weights
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import experiment, search_results, series
from genrec_jax.train import search as search_lib
from genrec_jax.train.supernet_scores import score_architectures

CONFIG = 'configs/dnas_frappe.py'
# Share of the operations and bytes of the hand-made model -> its config.
SHARES = {'full': CONFIG, 'quarter': f'{CONFIG}:quarter'}
SEEDS = (1, 2, 3)  # of searches
# Of trainings from scratch: none is the seed by which a model was chosen.
FRESH, MORE = (11, 12, 13), (11, 12, 13, 14, 15)
RANDOM = 30
# Factor of the widths of the top MLP and of tables, of scaled models.
SCALES = (
  (0.25, 0.5),
  (0.5, 0.5),
  (0.5, 1.0),
  (0.75, 0.5),
  (0.75, 1.0),
  (1, 0.5),
)
METRICS = ('auc', 'logloss')
# Of `loss.table_l2`, in supernets that are trained for the mixture alone.
FACTORS = (1.0, 0.1, 0.01)


def list_rows(args: argparse.Namespace) -> list[tuple[str, Callable]]:
  """(name, function that measures it), in their order."""
  if not args.data and not args.smoke:
    return []
  found = []

  def add(name: str, measure: Callable, *more) -> None:
    found.append((f'frappe/{name}', functools.partial(measure, args, *more)))

  def add_searches(share: str) -> None:
    for seed in SEEDS:
      add(f'search/{share}/seed{seed}', search, share, seed)
    for again in MORE:
      add(f'chosen/{share}/seed{again}', train_chosen, share, again)
    for seed in SEEDS:
      for again in FRESH:
        name = f'found/{share}/supernet{seed}/seed{again}'
        add(name, train_found, share, seed, again)

  for seed in MORE:
    add(f'hand-made/seed{seed}', train_handmade, seed)
  add_searches('full')
  for number in range(RANDOM):
    add(f'random/{number}', train_random, number)
  for number in range(len(SCALES)):
    add(f'scaled/{number}', train_scaled, number)
  for count in (1, len(SEEDS)):
    add(f'random search/{count}', search_randomly, count)
  for seed in SEEDS:
    add(f'ranking/seed{seed}', rank_models, seed)
  for factor in FACTORS:
    add(f'supernet/{factor:g}', train_supernet, factor)
  add_searches('quarter')
  return found


def train_handmade(args: argparse.Namespace, seed: int) -> dict:
  """The DLRM of configs/frappe.py."""
  config = _name_config(args, CONFIG)
  budgets = config_lib.load(str(runs.ROOT / CONFIG)).search  # its own costs
  return _train(args, config, 'hand-made', {'seed': seed}) | {
    'of': 'frappe/hand-made', 'seed': seed,
    'flops': budgets.max_flops, 'bytes': budgets.max_bytes,
  }  # fmt: skip


def search(args: argparse.Namespace, share: str, seed: int) -> dict:
  """A search by the command; the figures are of the model that it chose.

  The row has all that later rows need of it, so that these can be measured
  where its directory is no more.
  """
  workdir = _root(args) / 'searches' / f'{share}_seed{seed}'
  options = _choose_data(args) | {'seed': seed, 'search.seed': seed}
  row = dnas_runs.search_once(
    _name_config(args, SHARES[share]), workdir,
    dnas_runs.list_overrides(options),
  )  # fmt: skip
  _, best = dnas_runs.read_search(workdir)
  row |= {
    'of': f'frappe/search/{share}', 'seed': seed,
    'architecture': best['architecture'],
    **_read_metrics(best['metrics']),
  }  # fmt: skip
  if share == 'full':
    row['scores'] = _score_random(args, workdir / 'supernet')
  return row


def train_supernet(args: argparse.Namespace, factor: float) -> dict:
  """The mixture of a supernet, and how it ranks models trained alone.

  One seed: it says which factor of L2 the searches should have.
  """
  options = _choose_data(args) | {'seed': 1, 'search.seed': 1}
  options['search.table_l2_factor'] = factor
  name = str(runs.ROOT / _name_config(args, CONFIG))
  config = config_lib.load(name, dnas_runs.list_overrides(options))
  folder = _root(args) / 'supernets' / f'{factor:g}'
  if factor == config_lib.load(name).search.table_l2_factor:
    folder = _root(args) / 'searches' / 'full_seed1' / 'supernet'
  config = search_lib.make_supernet_config(config)
  report = series.train_once(config, folder, TASK_KINDS, None)
  drawn = [_read_row(args, f'random/{number}') for number in range(RANDOM)]
  scores = np.array(_score_random(args, folder))
  found = {'kind': 'supernet', 'factor': factor, 'core_s': report['core_s']}
  found |= _read_metrics(report['metrics'])
  return found | _correlate(scores, drawn)


def _score_random(args, folder: pathlib.Path) -> list[float]:
  """The supernet's log loss of the models of `frappe/random`, in validation."""
  _, data, task = _load_supernet(args, 'full')
  scores = score_architectures(
    task, load_weights(folder, task, 'latest'), data.splits['valid'], 4096,
    draw_models(task.space, task.search, RANDOM),
  )  # fmt: skip
  return scores.tolist()


def train_found(
  args: argparse.Namespace, share: str, supernet: int, seed: int
) -> dict:
  """The model that a search has chosen, from scratch with another seed."""
  searched = _read_row(args, f'search/{share}/seed{supernet}')
  model = _read_architecture(searched['architecture'])
  name = f'found_{share}_supernet{supernet}'
  return _train_model(args, share, model, name, seed) | {
    'of': f'frappe/found/{share}', 'seed': seed, 'supernet': supernet,
  }  # fmt: skip


def _read_row(args: argparse.Namespace, name: str) -> dict:
  rows = cli.read_rows(args, 'dnas')
  if (found := rows.get(f'frappe/{name}')) is None:
    raise ValueError(f'frappe/{name} has not been measured: do that first')
  return found


def train_chosen(args: argparse.Namespace, share: str, seed: int) -> dict:
  """That of the searches that validated best, with five seeds in all."""
  searched = [_read_row(args, f'search/{share}/seed{s}') for s in SEEDS]
  best = max(searched, key=lambda row: row['valid_auc'])
  row = train_found(args, share, best['seed'], seed)
  by_hand = _read_row(args, f'hand-made/seed{seed}')
  return row | {
    'of': f'frappe/chosen/{share}',
    'auc_diff': row['auc'] - by_hand['auc'],
    'logloss_diff': row['logloss'] - by_hand['logloss'],
  }


def train_random(args: argparse.Namespace, number: int) -> dict:
  """A model by chance, of those that take half of a budget at least."""
  _, _, task = _load_supernet(args, 'full')
  model = draw_models(task.space, task.search, RANDOM)[number]
  name = f'random_{number:02d}'
  return _train_model(args, 'full', model, name, 1) | {
    'kind': 'random model', 'number': number,
  }  # fmt: skip


def _train_model(
  args, share: str, model: Architecture, name: str, seed: int
) -> dict:
  """The row of a model of the space of a search."""
  config, _, task = _load_supernet(args, share)
  candidate = search_results.Candidate(
    name, task.space.name_architecture(model), model,
    task.space.measure_architecture(model), 0.0,
    search_results.make_found_config(config, task.space, model),
  )  # fmt: skip
  folder = _root(args) / 'models'
  search_results.write_config(folder, candidate, task.space)
  row = _train(args, str(folder / f'{name}.py'), name, {'seed': seed})
  return row | {
    'chosen': candidate.title,
    'flops': candidate.costs['flops'], 'bytes': candidate.costs['bytes'],
  }  # fmt: skip


def draw_models(space, settings, count: int) -> list[Architecture]:
  """Different models that keep all budgets, and take half of one.

  Args:
    space: of a search.
    settings: of the search.
    count: how many.
  """
  rng, found, uniform = np.random.default_rng(0), {}, space.make_uniform()
  while len(found) < count:
    model = space.choose(space.draw_options(uniform, rng))
    costs = space.measure_architecture(model)
    large = any(2 * costs[n] >= most for n, most in settings.budgets.items())
    if settings.is_within(costs) and (large or not settings.budgets):
      found[model.name] = model
  return list(found.values())


def train_scaled(args: argparse.Namespace, number: int) -> dict:
  """The hand-made model with narrower layers and tables."""
  top, dim = SCALES[number]
  options = {
    'seed': 1,
    'model.top': (round(400 * top),) * 3,
    'model.dim': round(10 * dim),
  }
  name = f'scaled_{number}'
  row = _train(args, _name_config(args, CONFIG), name, options)
  sizes = (10 * options['model.dim'], *options['model.top'], 1)
  flops = 2 * sum(a * b for a, b in zip(sizes, sizes[1:], strict=False))
  return row | {
    'kind': 'scaled model', 'flops': flops,
    # Without the running statistics of its norms, as a space counts.
    'bytes': 4 * (row['parameters'] - 2 * sum(options['model.top'])),
    'chosen': f'top {options["model.top"]}, dim {options["model.dim"]}',
  }  # fmt: skip


def search_randomly(args: argparse.Namespace, searches: int) -> dict:
  """Random models for the cost of some searches; validation chooses."""
  searched = [_read_row(args, f'search/full/seed{s}') for s in SEEDS]
  spent = searches * dnas_runs.find_spent(searched)
  drawn = [_read_row(args, f'random/{number}') for number in range(RANDOM)]
  found = {'kind': 'random search', 'models': len(drawn)}
  wanted = round(spent / np.mean([row['core_s'] for row in drawn]))
  found['asked'] = wanted  # more than there are where these do not suffice
  count = max(1, min(wanted, len(drawn)))
  rng = np.random.default_rng(0)
  chosen = []
  for _ in range(2_000):
    own = rng.choice(len(drawn), count, replace=False)
    chosen.append(max((drawn[i] for i in own), key=lambda r: r['valid_auc']))
  return found | {
    'trained': count,
    **runs.over_seeds('auc', [row['auc'] for row in chosen]),
    'logloss': float(np.mean([row['logloss'] for row in chosen])),
  }


def rank_models(args: argparse.Namespace, seed: int) -> dict:
  """Spearman's correlation between the supernet and models trained alone."""
  drawn = [_read_row(args, f'random/{number}') for number in range(RANDOM)]
  scores = np.array(_read_row(args, f'search/full/seed{seed}')['scores'])
  found = {'of': 'frappe/ranking', 'kind': 'ranking', 'models': len(drawn)}
  return found | _correlate(scores, drawn)


def _correlate(scores: np.ndarray, drawn: Sequence[Mapping]) -> dict:
  """Spearman's correlation of scores with what each model alone reaches."""
  found = {}
  for name, truth in (
    ('spearman', [row['valid_logloss'] for row in drawn]),
    ('spearman_auc', [-row['valid_auc'] for row in drawn]),
  ):
    found |= dnas_runs.correlate(scores, np.array(truth), name)
  return found


def _read_architecture(saved: Mapping) -> Architecture:
  net = {key: tuple(value) for key, value in saved['net'].items()}
  return Architecture(net, saved['dims'], saved['rows'], saved['extra'])


def _load_supernet(args: argparse.Namespace, share: str):
  """(config, data, task) of a search, of which nothing need be there."""
  name = str(runs.ROOT / _name_config(args, SHARES[share]))
  config = config_lib.load(name, dnas_runs.list_overrides(_choose_data(args)))
  data, task = experiment.load_data_and_task(
    search_lib.make_supernet_config(config), _root(args) / 'space',
    TASK_KINDS, lambda *_: None,
  )  # fmt: skip
  return config, data, task


def _train(args, config: str, name: str, options: Mapping) -> dict:
  """The row of a run, trained unless it has ended."""
  workdir = _root(args) / 'runs' / f'{name}_seed{options["seed"]}'
  with CoreTimer() as timer:
    report = runs.train_once(
      config, workdir,
      dnas_runs.list_overrides(_choose_data(args) | dict(options)),
    )  # fmt: skip
  return {
    'kind': 'run', **_read_metrics(report['metrics']),
    'parameters': sum(report['parameters'].values()),
    'core_s': report['core_s'], 'run_core_s': timer.core_s,
  }  # fmt: skip


def _read_metrics(metrics: Mapping) -> dict:
  return {
    **{key: metrics['test'][key] for key in METRICS},
    **{f'valid_{key}': metrics['valid'][key] for key in METRICS},
  }


def _name_config(args: argparse.Namespace, config: str) -> str:
  if not args.smoke:
    return config
  return f'{config},smoke' if ':' in config else f'{config}:smoke'


def _choose_data(args: argparse.Namespace) -> dict:
  if args.smoke:
    return {}
  path = pathlib.Path(args.data).resolve() / 'frappe'
  return {
    'data.path': path, 'data.cache': _root(args) / 'data',
    'report.importance_rows': 0,
  }  # fmt: skip


def _root(args: argparse.Namespace) -> pathlib.Path:
  return pathlib.Path(args.runs).resolve() / 'frappe'
