"""The part of `benchmarks.dnas` on rows: who needs them."""

import argparse
import functools
import pathlib
from collections.abc import Callable, Mapping

import numpy as np

from benchmarks import dnas_runs, runs
from benchmarks.result import CoreTimer
from genrec_jax import config as config_lib

CONFIG = 'configs/dnas_clicks.py:rows'
SEEDS = (1, 2, 3)
METRICS = ('logloss', 'auc', 'ne')


def list_rows(args: argparse.Namespace) -> list[tuple[str, Callable]]:
  """(name, function that measures it), in their order."""
  found, seeds = [], SEEDS[: 1 if args.smoke else None]
  for case in ('whole', 'uniform'):
    for seed in seeds:
      measure = functools.partial(train_plain, args, case, seed)
      found.append((f'rows/{case}/seed{seed}', measure))
  for seed in seeds:
    measure = functools.partial(search, args, seed)
    found.append((f'rows/search/seed{seed}', measure))
  for supernet in seeds:
    for seed in seeds:
      measure = functools.partial(train_found, args, supernet, seed)
      found.append((f'rows/found/supernet{supernet}/seed{seed}', measure))
  return found


def train_plain(args: argparse.Namespace, case: str, seed: int) -> dict:
  """A row for each value, or the same share of rows for every table."""
  config = _load(args)
  ids = config.data.clicks['values'] + 2
  options: dict[str, object] = {'seed': seed}
  if case == 'uniform':
    fields, dim = config.data.clicks.fields, config.model.dim
    top = sum(
      a * b + b
      for a, b in zip(
        (fields * dim, *config.model.top), (*config.model.top, 1), strict=True
      )
    )
    rows = int((config.search.max_bytes / 4 - top) / dim / fields)
    options['tables'] = f"(('.*', {{'id_map': 'hash', 'rows': {rows}}}),)"
  else:
    rows = ids
  name = f'{case}_seed{seed}'
  return _train(args, CONFIG, name, options) | {
    'of': f'rows/{case}', 'seed': seed, 'rows': rows,
  }  # fmt: skip


def search(args: argparse.Namespace, seed: int) -> dict:
  """A search by the command; the figures are of the model that it chose."""
  workdir = _root(args) / f'search_seed{seed}'
  options = {'seed': seed, 'search.seed': seed}
  row = dnas_runs.search_once(CONFIG, workdir, _list_overrides(args, options))
  found, best = dnas_runs.read_search(workdir)
  rows = list(best['architecture']['rows'].values())
  telling = len(rows) - _load(args).data.clicks.silent
  return row | {
    'of': 'rows/search', 'seed': seed,
    **{key: best['metrics']['test'][key] for key in METRICS},
    'telling_rows': float(np.mean(rows[:telling])),
    'silent_rows': float(np.mean(rows[telling:])),
    # Beside the model with a row for each value.
    'supernet_x': sum(found['supernet']['parameters'].values())
    / found['space']['largest']['parameters'],
  }  # fmt: skip


def train_found(args: argparse.Namespace, supernet: int, seed: int) -> dict:
  """What a search has chosen, from scratch with another seed."""
  workdir = _root(args) / f'search_seed{supernet}'
  config = str(workdir / 'found' / 'best.py')
  _, best = dnas_runs.read_search(workdir)
  row = _train(args, config, f'found{supernet}_seed{seed}', {'seed': seed})
  return row | {
    'of': 'rows/found', 'seed': seed, 'supernet': supernet,
    'chosen': best['title'],
  }  # fmt: skip


def _train(args, config: str, name: str, options: Mapping) -> dict:
  with CoreTimer() as timer:
    report = runs.train_once(
      config, _root(args) / name, _list_overrides(args, options)
    )
  return {
    'kind': 'run', **{key: report['metrics']['test'][key] for key in METRICS},
    'bytes': 4 * sum(report['parameters'].values()),
    'core_s': report['core_s'], 'run_core_s': timer.core_s,
  }  # fmt: skip


def _load(args: argparse.Namespace):
  return config_lib.load(str(runs.ROOT / CONFIG), _list_overrides(args, {}))


def _list_overrides(args: argparse.Namespace, options: Mapping) -> list[str]:
  options = {
    'data.cache': _root(args) / 'data', 'report.importance_rows': 0, **options
  }  # fmt: skip
  if args.smoke:
    options |= {
      'data.clicks.rows': 6_000, 'data.clicks.values': 300, 'train.epochs': 2,
      'search.max_bytes': 5e4, 'search.budget_epochs': 0.5,
    }  # fmt: skip
  return dnas_runs.list_overrides(options)


def _root(args: argparse.Namespace) -> pathlib.Path:
  return pathlib.Path(args.runs).resolve() / 'rows'
