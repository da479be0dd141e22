"""Which features are in which tower of a run: what `model.towers` means.

The answer depends on the features, and with 'auto' on the data. It is computed
when a run begins and kept in its workdir (`config.tower_file.OF_A_RUN`), so
that the run goes on, predicts and is served with the same towers.
"""

import logging
import os
import pathlib
import re

import numpy as np

from genrec_jax.config import ConfigError, tower_file
from genrec_jax.config.tower_file import TowerPlan
from genrec_jax.planner.tower_partitioner import (
  TowerFeature,
  deal_features,
  partition_features,
)

LOG = logging.getLogger('genrec_jax')
SAMPLES = 1 << 16  # training examples that 'auto' looks at


def choose_towers(config, data, workdir: str | os.PathLike) -> TowerPlan | None:
  """The towers of a run, or None where its model has none.

  Args:
    config: of the run.
    data: its `train.ranking_data.RankingData`.
    workdir: of the run; towers that it has already stay.

  Raises:
    ConfigError: `model.towers` means nothing, or other towers than those of the
      workdir.
  """
  wanted = config.model.get('towers', '')
  if not wanted:
    return None
  kept = pathlib.Path(workdir) / tower_file.OF_A_RUN
  saved = _read_kept(kept) if kept.exists() else None
  number, automatic = _read_number(wanted, config.parallel.hosts)
  if not number:
    if saved is not None and not os.path.exists(wanted):
      _check(saved, data, kept)  # the file is needed once
      return saved
    plan = _read_file(wanted, kept)
    _check(plan, data, wanted)
    if saved is not None and saved.towers != plan.towers:
      raise ConfigError(
        f'model.towers={wanted} has other towers than this run, which began '
        f'with those of {kept}; name a new workdir, or give the file back its '
        'towers'
      )
  elif saved is not None:
    _check(saved, data, kept)
    return saved
  elif automatic:
    plan = _partition_by_values(config, data, number)
  else:
    plan = _deal(data, number)
  return plan


def keep_towers(config, workdir: str | os.PathLike):
  """A config whose towers are those of a trained run, whatever its file says.

  Args:
    config: of the run.
    workdir: of the run.
  """
  kept = pathlib.Path(workdir) / tower_file.OF_A_RUN
  wanted = config.get('model', {}).get('towers', '')
  is_file = wanted and not _read_number(wanted, config.parallel.hosts)[0]
  if not is_file or not kept.exists():
    return config
  saved = _read_kept(kept)
  try:
    changed = tower_file.read_towers(wanted).towers != saved.towers
  except (OSError, ConfigError):  # it is gone, or another file by now
    changed = False
  if changed:
    LOG.warning(
      'model.towers=%s has other towers than this run, which keeps those of %s',
      wanted,
      kept,
    )
  config = config.copy_and_resolve_references().unlock()
  config.model.towers = str(kept)
  return config.lock()


def check_words(config) -> None:
  """Refuses a `model.towers` that no data can make sense of."""
  wanted = config.get('model', {}).get('towers', '')
  if not wanted or _read_number(wanted, config.parallel.hosts)[0]:
    return
  if not os.path.exists(wanted):
    raise ConfigError(_explain_missing(wanted))


def _explain_missing(wanted: str) -> str:
  return (
    f'model.towers is {wanted!r:.200}, and there is no such file; it must be '
    "the path of a towers.json, a number of towers, 'auto' or 'auto:N'"
  )


def _read_number(wanted: str, hosts: int) -> tuple[int, bool]:
  """(how many towers, whether the data say which); 0 of a file."""
  if re.fullmatch(r'[0-9]{1,9}', wanted):
    number, automatic = int(wanted), False
  elif wanted == 'auto':
    number, automatic = max(hosts, 2), True
  elif match := re.fullmatch(r'auto:([0-9]{1,9})', wanted):
    number, automatic = int(match[1]), True
  else:
    return 0, False
  if number < 1:
    raise ConfigError(
      f'model.towers is {wanted!r}; a model has at least 1 tower, and none '
      "with ''"
    )
  return number, automatic


def _read_kept(path: pathlib.Path) -> TowerPlan:
  try:
    return tower_file.read_towers(path)
  except ConfigError as error:
    raise ConfigError(
      f'{error}. If you delete it, the next training of this workdir makes the '
      'same towers again from model.towers'
    ) from None


def _read_file(path: str, kept: pathlib.Path) -> TowerPlan:
  try:
    return tower_file.read_towers(path)
  except FileNotFoundError:
    if (kept.parent / 'config.json').exists():  # a run that has lost both
      raise ConfigError(
        f'model.towers is {path!r:.200}, and there is no such file; nor is '
        f'there {kept}, where this run has kept its towers: put back one of '
        'the two'
      ) from None
    raise ConfigError(_explain_missing(path)) from None


def _deal(data, number: int) -> TowerPlan:
  features = [TowerFeature(f.name, f.source) for f in _find_features(data)]
  return _partition(
    lambda: deal_features(features, number, 'round_robin'),
    features,
    number,
    strategy='round_robin',
  )


def _partition_by_values(config, data, number: int) -> TowerPlan:
  """Features whose values say something of each other share a tower."""
  tables = {f.source for f in _find_features(data)}
  _check_number(number, tables)  # before the work
  # Late: samples need a task, and tasks of towers come here first.
  from genrec_jax.planner.feature_distances import measure_cooccurrence
  from genrec_jax.train import tower_samples

  flat = config.copy_and_resolve_references().unlock()
  flat.model.towers = ''
  looked = tower_samples.load_samples(
    data, data.task(flat), SAMPLES, config.seed
  )
  LOG.info(
    'model.towers: which features say something of the label together, in %d '
    'examples',
    len(looked.rows.labels),
  )
  # Among examples of equal labels: features that occur together, and features
  # that say something of the label together.
  similarity = measure_cooccurrence(
    looked.codes(), looked.present, looked.strata()
  ).scale()
  distances = similarity.to_distances('coherent')
  plan = _partition(
    lambda: partition_features(
      looked.features, distances, number, seed=config.seed
    ),
    looked.features,
    number,
    strategy='cooccurrence_by_label',
    samples=similarity.samples,
  )
  _tell_distances(plan, [f.name for f in looked.features], distances)
  return plan


def _tell_distances(plan: TowerPlan, names: list[str], distances) -> None:
  tower = np.array([plan.find_tower(name) for name in names])
  together = tower[:, None] == tower[None]
  apart, others = distances[~together], ~np.eye(len(names), dtype=bool)
  within = distances[together & others]
  if not len(apart) or not len(within):
    return
  doubt = ''
  if within.mean() > 0.95 * apart.mean():
    doubt = (
      ': hardly less, so that these towers may be chance; see '
      'genrec_jax.train.partition_towers for other ways to choose them'
    )
  LOG.info(
    'model.towers: features of a tower are %.3f apart in the mean, those of '
    'two towers %.3f%s',
    within.mean(),
    apart.mean(),
    doubt,
  )


def _partition(make, features, number: int, **facts) -> TowerPlan:
  _check_number(number, {f.source for f in features})
  return make().plan(**facts)


def _check_number(number: int, tables: set[str]) -> None:
  if number > len(tables):
    raise ConfigError(
      f'model.towers asks for {number} towers, and there are {len(tables)} '
      'tables; every tower needs one'
    )


def _check(plan: TowerPlan, data, path) -> None:
  """Refuses towers of a file that are not those of the features."""
  features = _find_features(data)
  numbers = {f.name for f in data.dataset.features if not f.has_table}
  if wrong := sorted(numbers & {*plan.features}):
    raise ConfigError(
      f'model.towers: {path}: {wrong[0]!r} is numeric, and numbers have no '
      'table; they stay outside of towers: leave them out'
    )
  try:
    tower_file.check_towers(
      plan.towers,
      [f.name for f in features],
      {f.name: f.source for f in features},
    )
  except ConfigError as error:
    raise ConfigError(f'model.towers: {path}: {error}') from None


def _find_features(data) -> list:
  """The features with a table."""
  return [f for f in data.dataset.features if f.has_table]
