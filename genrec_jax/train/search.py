"""`genrec search`: finds widths, depth and tables of a model, and trains them.

    WORKDIR/
      data/            the prepared data, unless data.cache says where
      supernet/        the run of the supernet
      candidates/00/   a run of each architecture that was drawn
      given/           a run of the model of the config, with `search.compare`
      found/00.py      a config of each, with found/00.json beside it
      found/best.py    that of the best on the validation split
      config.json      what was asked for
      search.json      what was found
      search.html      the same as a page

Whoever is interrupted goes on with the same command: a run that has ended is
read and not trained again. Nothing but the validation split chooses.
"""

import dataclasses
import json
import logging
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from genrec_jax import config as config_lib
from genrec_jax.contracts import Extensions, TaskKinds
from genrec_jax.parallel import job
from genrec_jax.processes.whole_files import replace_file
from genrec_jax.report import search_page
from genrec_jax.search import gumbel
from genrec_jax.search.architecture import Architecture, ArchitectureSpace
from genrec_jax.search.settings import SearchSettings, build_space
from genrec_jax.search.super_ranking import (
  MULTIPLIERS,
  SUPERNETS,
  THETA,
  SuperRanking,
)
from genrec_jax.serve.weights import Weights, load_weights
from genrec_jax.train import experiment, search_results, series
from genrec_jax.train.ranking_data import RankingData
from genrec_jax.train.search_results import Candidate
from genrec_jax.train.supernet_scores import score_architectures

LOG = logging.getLogger('genrec_jax')
_MOST_DRAWS = 100_000


def search_models(
  config,
  workdir,
  kinds: TaskKinds,
  extensions: Extensions | None = None,
) -> str:
  """Searches as `config.search` says, and trains what is found.

  Args:
    config: of the experiment.
    workdir: where all of it lies.
    kinds: the kinds of tasks there are.
    extensions: what is used from outside the library.

  Returns:
    What was found, as text; '' where SIGTERM has ended it early.
  """
  workdir = pathlib.Path(workdir)
  if 'search' not in config:
    raise config_lib.ConfigError(
      f'search is for task=ranking, and the task is {config.task!r}'
    )
  with series.take_workdir(workdir, config, 'search'):
    return _search_locked(config, workdir, kinds, extensions)


def _search_locked(config, workdir, kinds, extensions) -> str:
  cache = config.data.cache or str((workdir / 'data').resolve())
  base = config.copy_and_resolve_references()
  base.data.cache = cache
  of_supernet = make_supernet_config(base)
  folder = workdir / 'supernet'
  of_run = series.train_once(of_supernet, folder, kinds, extensions)
  if of_run is None:
    return ''
  data, task = experiment.load_data_and_task(
    of_supernet, folder, kinds, LOG.info, extensions
  )
  supernet = load_weights(folder, task, 'latest', extensions)
  if supernet.step != (ended := of_run['steps']):
    raise config_lib.ConfigError(
      f'{folder} has no checkpoint of step {ended:,}, where its training has '
      f'ended, and one of step {supernet.step:,}: remove {folder}/report.json, '
      'and the same command trains the rest again'
    )
  choices = read_choices(supernet, task)
  proposals = score_proposals(of_supernet, data, task, supernet, choices)
  candidates = list_candidates(base, task, proposals)
  if job.is_leader():
    for candidate in candidates:
      search_results.write_config(workdir / 'found', candidate, task.space)
  reports = {}
  for number, candidate in enumerate(candidates):
    LOG.info(
      'model %d of %d: %s',
      number + 1,
      len(candidates),
      candidate.title,
    )
    own = workdir / 'candidates' / candidate.name
    report = series.train_once(candidate.config, own, kinds, extensions)
    if report is None:  # stopped; the same command goes on
      return ''
    reports[candidate.name] = report
  metrics = {name: report['metrics'] for name, report in reports.items()}
  best = series.choose_best(metrics, config)
  found = search_results.summarize(
    config, folder, of_run, task, choices, proposals, candidates, reports, best
  )
  if config.search.compare:
    LOG.info('the model of the config')
    plain = series.change_config(base)
    report = series.train_once(plain, workdir / 'given', kinds, extensions)
    if report is None:
      return ''
    found['given'] = {
      'costs': measure_given(of_supernet, task),
      'metrics': report['metrics'],
      'core_s': report['core_s'],
    }
  if job.is_leader():
    chosen = next(c for c in candidates if c.name == best)
    chosen = dataclasses.replace(chosen, name='best')
    search_results.write_config(workdir / 'found', chosen, task.space)
    text = json.dumps(found, indent=2)
    replace_file(workdir / search_results.RESULT, text)
    page = search_page.render_search(found)
    replace_file(workdir / search_results.PAGE, page)
  for note in found['notes']:
    LOG.warning('%s', note)
  return search_results.describe(found, workdir)


def make_supernet_config(config):
  """The config of the supernet's run.

  Args:
    config: of the experiment.
  """
  if config.model.name not in SUPERNETS:
    raise config_lib.ConfigError(
      f'model.name={config.model.name!r} cannot be searched; '
      f'{" and ".join(SUPERNETS)} can'
    )
  _check_epochs(config)
  changed, search = config.copy_and_resolve_references(), config.search
  own = {
    'name': search.optimizer,
    'learning_rate': search.learning_rate,
    'weight_decay': 0.0,
  }
  groups = [(THETA, own)]
  if search.cost_loss == 'budget':
    rise = {'name': 'sgd', 'learning_rate': search.budget_rate}
    rise |= {'weight_decay': 0.0, 'schedule': 'constant', 'warmup_steps': 0}
    groups.insert(0, (MULTIPLIERS, rise))  # the first match counts
  with changed.unlocked():
    changed.search.supernet = True
    changed.optimizer.groups = (*groups, *config.optimizer.groups)
    changed.train.epochs = config.search.epochs or config.train.epochs
    changed.train.batch_size = (
      config.search.batch_size or config.train.batch_size
    )
    changed.loss.table_l2 *= search.table_l2_factor
    # What the choices say at the end counts, wherever the weights were best:
    # a mixture that validates worse says nothing of the models in it.
    changed.train.patience, changed.optimizer.plateau_factor = 0, 1.0
    # A model that was found starts afresh.
    changed.train.init_from = ''
  return changed.lock()


def _check_epochs(config) -> None:
  """Refuses a search that would end before it has searched."""
  search = config.search
  if 0 < search.proposals < search.samples:
    raise config_lib.ConfigError(
      f'search.proposals={search.proposals} are fewer than '
      f'search.samples={search.samples}, which are trained of them'
    )
  epochs = search.epochs or config.train.epochs
  if config.train.steps:  # which end it, whatever epochs there are
    return
  if search.warmup_epochs >= epochs:
    raise config_lib.ConfigError(
      f'search.warmup_epochs={search.warmup_epochs} leave none of the '
      f'{epochs} epochs of the supernet to choose in: raise search.epochs'
    )
  left = epochs - search.warmup_epochs
  if search.cost_loss == 'budget' and search.budget_epochs > left:
    raise config_lib.ConfigError(
      f'search.budget_epochs={search.budget_epochs:g}: the budgets would '
      f'never be asked for, since the supernet chooses in {left} epochs'
    )


def read_choices(
  supernet: Weights, task: SuperRanking
) -> dict[str, np.ndarray]:
  """Choice -> probabilities of its options.

  Args:
    supernet: weights at the end of its run.
    task: of the run.
  """
  theta = task.merge_model(supernet.params).read_theta()
  weights = gumbel.expect_weights(theta)
  return {name: np.asarray(w, np.float64) for name, w in weights.items()}


def score_proposals(
  config,
  data: RankingData,
  task: SuperRanking,
  supernet: Weights,
  choices: Mapping[str, np.ndarray],
) -> list[tuple[Architecture, float]]:
  """Architectures, and the log loss of the supernet with their options alone.

  The likeliest comes first, if it keeps the budgets, then those that were
  drawn. Where more are drawn than trained (`search.proposals`), these are in
  the order of this loss, on the examples of the choices, from which no weight
  has learned.

  Args:
    config: of the supernet.
    data: of its run.
    task: of its run.
    supernet: weights at the end of its run.
    choices: choice -> probabilities of its options.
  """
  search = config.search
  count = max(search.samples, search.proposals)
  drawn = draw_architectures(
    task.space, task.search, choices, count, search.seed
  )
  scores = score_architectures(
    task, supernet, data.supernet.choices, config.eval.batch_size, drawn
  )
  found = list(zip(drawn, scores.tolist(), strict=True))
  if search.proposals > search.samples:
    likeliest = task.space.choose(task.space.choose_likeliest(choices)).name
    found.sort(key=lambda found: (found[0].name != likeliest, found[1]))
  return found


def draw_architectures(
  space: ArchitectureSpace,
  settings: SearchSettings,
  weights: Mapping[str, np.ndarray],
  count: int,
  seed: int,
) -> list[Architecture]:
  """The likeliest architecture, and others by chance, all within the budgets.

  Args:
    space: of the search.
    settings: of the search.
    weights: choice -> probabilities of its options.
    count: how many are wanted; fewer where there are no more.
    seed: of the draws.
  """
  rng = np.random.default_rng(seed)
  count = min(count, space.count_architectures())
  found, seen, too_dear = [], set(), 0
  options = space.choose_likeliest(weights)
  for _ in range(_MOST_DRAWS):
    architecture = space.choose(options)
    if architecture.name not in seen:
      seen.add(architecture.name)
      costs = space.measure_architecture(architecture)
      if settings.is_within(costs):
        found.append(architecture)
      else:
        too_dear += 1
    if len(found) == count:
      break
    options = space.draw_options(weights, rng)
  if not found:
    least = {
      name: space.measure_architecture(space.find_extremes(name)[0])[name]
      for name in settings.budgets
    }
    raise config_lib.ConfigError(
      f'none of {_MOST_DRAWS:,} draws is within the budgets '
      f'({_say_budgets(settings)}); the smallest model has '
      + ', '.join(f'{least[name]:,.7g} {name}' for name in least)
      + f'. {_advise(settings)}'
    )
  if too_dear:
    LOG.info('%d architectures that were drawn exceed a budget', too_dear)
  return found


def _advise(settings: SearchSettings) -> str:
  """What brings choices within the budgets."""
  if settings.cost_loss == 'budget':
    return (
      'Raise search.budget_rate, search.epochs or search.learning_rate: the '
      'choices have not come down to the budgets'
    )
  return "Raise search.cost_weight, or take search.cost_loss='budget'"


def _say_budgets(settings: SearchSettings) -> str:
  return ', '.join(
    f'{most:,.0f} {name}' for name, most in settings.budgets.items()
  )


def list_candidates(
  config, task: SuperRanking, proposals: Sequence[tuple[Architecture, float]]
) -> list[Candidate]:
  """What is trained: the first architectures with each of `search.rates`.

  Args:
    config: of the experiment.
    task: of the supernet.
    proposals: of `score_proposals`.
  """
  found, chosen = [], proposals[: config.search.samples]
  for number, (architecture, score) in enumerate(chosen):
    costs = task.space.measure_architecture(architecture)
    title = task.space.name_architecture(architecture)
    for rate in dict.fromkeys(config.search.rates) or (None,):
      name = f'{number:02d}' if rate is None else f'{number:02d}_rate_{rate!r}'
      fields = {} if rate is None else {'optimizer.learning_rate': rate}
      own = search_results.make_found_config(
        config, task.space, architecture, **fields
      )
      found.append(Candidate(name, title, architecture, costs, score, own))
  return found


def measure_given(config, task: SuperRanking) -> dict:
  """Costs of the model of a config, as the space of a search counts them.

  Args:
    config: of the supernet.
    task: of its run.
  """
  settings = SearchSettings({**config.search.to_dict(), 'spaces': ()})
  space = build_space(
    settings, task.model_config, task.space.features, len(task.labels),
    task.space.row_bytes, may_be_one=True,
  )  # fmt: skip
  rows = {table: (max(sizes),) for table, sizes in task.space.rows.items()}
  space = dataclasses.replace(space, rows=rows)
  return space.measure_architecture(space.choose({}))
