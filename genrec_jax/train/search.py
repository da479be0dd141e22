"""`genrec search`: finds widths, depth and tables of a model, and trains them.

    WORKDIR/
      data/            the prepared data, unless data.cache says where
      supernet/        the run of the supernet
      candidates/00/   a run of each architecture that was drawn
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
from genrec_jax.checkpoint.inspect_text import format_columns
from genrec_jax.contracts import Extensions, TaskKinds
from genrec_jax.parallel import job
from genrec_jax.processes.whole_files import replace_file
from genrec_jax.report import search_page
from genrec_jax.report.metric_writers import read_jsonl
from genrec_jax.search import gumbel
from genrec_jax.search.architecture import Architecture, ArchitectureSpace
from genrec_jax.search.settings import SearchSettings
from genrec_jax.search.super_ranking import MULTIPLIERS, THETA, SuperRanking
from genrec_jax.serve.weights import Weights, load_weights
from genrec_jax.train import experiment, series
from genrec_jax.train.ranking_data import RankingData
from genrec_jax.train.supernet_scores import score_architectures

LOG = logging.getLogger('genrec_jax')
RESULT, PAGE = 'search.json', 'search.html'
_MOST_DRAWS = 100_000
_METRICS = ('auc', 'logloss', 'ne')


@dataclasses.dataclass(frozen=True)
class Candidate:
  """An architecture that is trained from scratch.

  Attributes:
    name: of its directory, and of its config.
    title: what it is, in words.
    architecture: what it is.
    costs: of it, see `ArchitectureSpace.measure`.
    supernet_logloss: of the supernet with its options alone.
    config: of its run.
  """

  name: str
  title: str
  architecture: Architecture
  costs: Mapping[str, int]
  supernet_logloss: float
  config: object


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
  if series.train_once(of_supernet, folder, kinds, extensions) is None:
    return ''
  data, task = experiment.load_data_and_task(
    of_supernet, folder, kinds, LOG.info, extensions
  )
  supernet = load_weights(folder, task, 'latest', extensions)
  choices = read_choices(supernet, task)
  proposals = score_proposals(of_supernet, data, task, supernet, choices)
  candidates = list_candidates(base, task, proposals)
  if job.is_leader():
    for candidate in candidates:
      write_config(workdir / 'found', candidate)
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
  found = _summarize(
    config, folder, task, choices, proposals, candidates, reports, best
  )
  if job.is_leader():
    chosen = next(c for c in candidates if c.name == best)
    write_config(workdir / 'found', dataclasses.replace(chosen, name='best'))
    replace_file(workdir / RESULT, json.dumps(found, indent=2))
    replace_file(workdir / PAGE, search_page.render_search(found))
  return _describe(found, workdir)


def make_supernet_config(config):
  """The config of the supernet's run.

  Args:
    config: of the experiment.
  """
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

  The likeliest comes first, then those that were drawn. Where more are drawn
  than trained (`search.proposals`), the others are in the order of this loss,
  on the examples of the choices, from which no weight has learned.

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
  first, *rest = zip(drawn, scores.tolist(), strict=True)
  if search.proposals > search.samples:
    rest.sort(key=lambda proposal: proposal[1])
  return [first, *rest]


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
    least = space.measure_architecture(space.find_extremes()[0])
    raise config_lib.ConfigError(
      f'none of {_MOST_DRAWS:,} draws is within the budgets '
      f'({_say_budgets(settings)}); the smallest model has '
      + ', '.join(f'{least[name]:,} {name}' for name in settings.budgets)
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
    for rate in config.search.rates or (None,):
      name = f'{number:02d}' if rate is None else f'{number:02d}_rate_{rate:g}'
      fields = {} if rate is None else {'optimizer.learning_rate': rate}
      own = make_found_config(config, task.space, architecture, **fields)
      found.append(Candidate(name, title, architecture, costs, score, own))
  return found


def make_found_config(
  config, space: ArchitectureSpace, architecture: Architecture, **fields
):
  """The config of a model that was found, an ordinary one.

  Args:
    config: of the experiment.
    space: of the search.
    architecture: the model.
    **fields: 'section.key' -> value.
  """
  rows = {
    table: {'id_map': 'hash', 'rows': size}
    for table, size in architecture.rows.items()
    if size != max(space.rows[table])  # a row for each id
  }
  for name, own in architecture.extra.items():
    for table, option in own.items():
      if changed := space.extra[name].change(option):
        rows[table] = {**rows.get(table, {}), **changed}
  fields |= space.to_keys(architecture)
  return series.change_tables(config, list(architecture.rows), rows, **fields)


_FOUND = '''"""{title}, found by `genrec search`.

  genrec train {path} --workdir=DIR

{costs}. Its keys are in {json}.
"""

import pathlib

from genrec_jax import config as config_lib


def get_config(arg=None):
  variants = config_lib.parse_variants(arg)
  saved = pathlib.Path(__file__).with_suffix('.json')
  config = config_lib.load_saved(saved)
  return config_lib.ranking_smoke(config) if 'smoke' in variants else config
'''


def write_config(folder: pathlib.Path, candidate: Candidate) -> None:
  """Writes the config of a candidate, as a file that can be trained.

  Args:
    folder: where.
    candidate: whose.
  """
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / f'{candidate.name}.py'
  config_lib.save(candidate.config, path.with_suffix('.json'))
  costs = ', '.join(f'{x:,.7g} {name}' for name, x in candidate.costs.items())
  text = _FOUND.format(
    title=candidate.title.capitalize(),
    path=path,
    costs=costs,
    json=path.with_suffix('.json').name,
  )
  replace_file(path, text)


def _summarize(
  config, folder, task, choices, proposals, candidates, reports, best
) -> dict:
  space = task.space
  supernet = series.read_report(folder)
  least, most = map(space.measure_architecture, space.find_extremes())
  return {
    'search': json.loads(json.dumps(config.search.to_dict())),
    'space': {
      'architectures': space.count_architectures(),
      'smallest': least,
      'largest': most,
      'choices': {c.name: list(c.options) for c in space.choices},
    },
    'supernet': {
      'metrics': supernet['metrics'],
      'steps': supernet['steps'],
      'core_s': supernet['core_s'],
      'parameters': supernet['parameters'],
    },
    'choices': {name: list(map(float, w)) for name, w in choices.items()},
    'curve': _read_curve(folder),
    'proposals': [
      {
        'title': space.name_architecture(architecture),
        'costs': space.measure_architecture(architecture),
        'supernet_logloss': score,
      }
      for architecture, score in proposals
    ],
    'candidates': [
      {
        'name': c.name,
        'title': c.title,
        'architecture': c.architecture.to_json(),
        'costs': dict(c.costs),
        'supernet_logloss': c.supernet_logloss,
        'metrics': reports[c.name]['metrics'],
        'core_s': reports[c.name]['core_s'],
        'rate': c.config.optimizer.learning_rate,
      }
      for c in candidates
    ],
    'best': best,
  }


def _read_curve(folder: pathlib.Path) -> list[dict]:
  """What was measured of the choices, line by line."""
  wanted = ('search/', 'expected/', 'entropy/', 'multiplier/', 'loss/labels')
  return [
    {'step': row['step']}
    | {
      name.removeprefix('train/'): value
      for name, value in row.items()
      if name.removeprefix('train/').startswith(wanted)
    }
    for row in read_jsonl(folder / 'metrics.jsonl')
    if any(name.startswith('train/search/') for name in row)
  ]


def _describe(found: Mapping, workdir: pathlib.Path) -> str:
  """What `genrec search` prints."""
  splits = [s for s in ('valid', 'test') if s in _first_metrics(found)]
  shown = [m for m in _METRICS if m in _first_metrics(found)[splits[0]]]
  names = list(found['candidates'][0]['costs'])
  head = ['<model', '<architecture', *(f'>{cost}' for cost in names)]
  head += ['>supernet logloss']
  head += [f'>{split} {metric}' for split in splits for metric in shown]
  rows = []
  for c in found['candidates']:
    values = [f'{c["metrics"][s][m]:.4f}' for s in splits for m in shown]
    mark = ' (best)' if c['name'] == found['best'] else ''
    costs = [f'{c["costs"][cost]:,.7g}' for cost in names]
    values.insert(0, f'{c["supernet_logloss"]:.4f}')
    rows.append((c['name'] + mark, c['title'], *costs, *values))
  supernet = found['supernet']
  trained = [c['core_s'] for c in found['candidates']]
  line = (
    f'{found["space"]["architectures"]:,} architectures; the search took '
    f'{supernet["core_s"]:.0f} core-seconds, {len(trained)} trainings '
    f'{sum(trained):.0f}'
  )
  return '\n'.join([
    *format_columns(head, rows), '', line, str(workdir / 'found' / 'best.py'),
    str(workdir / PAGE),
  ])  # fmt: skip


def _first_metrics(found: Mapping) -> Mapping:
  return found['candidates'][0]['metrics']
