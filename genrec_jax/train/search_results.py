"""What `genrec search` has found: configs of models, search.json, a text."""

import dataclasses
import json
import pathlib
import shlex
import textwrap
from collections.abc import Iterator, Mapping

import numpy as np

from genrec_jax import config as config_lib
from genrec_jax.checkpoint.inspect_text import format_columns
from genrec_jax.processes.whole_files import replace_file
from genrec_jax.report.metric_writers import read_jsonl
from genrec_jax.search.architecture import Architecture, ArchitectureSpace
from genrec_jax.train import series

RESULT, PAGE = 'search.json', 'search.html'
_METRICS = ('auc', 'logloss', 'ne')
# Of the entropy of choices, above which they are as they began.
_UNDECIDED = 0.98


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

{costs}.
{tables}Its keys are in {json}.
"""

import pathlib

from genrec_jax import config as config_lib


def get_config(arg=None):
  variants = config_lib.parse_variants(arg)
  saved = pathlib.Path(__file__).with_suffix('.json')
  config = config_lib.load_saved(saved)
  return config_lib.ranking_smoke(config) if 'smoke' in variants else config
'''


def write_config(
  folder: pathlib.Path, candidate: Candidate, space: ArchitectureSpace
) -> None:
  """Writes the config of a candidate, as a file that can be trained.

  Args:
    folder: where.
    candidate: whose.
    space: of the search.
  """
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / f'{candidate.name}.py'
  config_lib.save(candidate.config, path.with_suffix('.json'))
  costs = ', '.join(f'{x:,.7g} {name}' for name, x in candidate.costs.items())
  text = _FOUND.format(
    title=_quote(candidate.title.capitalize()),
    path=_quote(shlex.quote(str(path))),
    costs=costs,
    tables=_quote(''.join(_list_tables(candidate.architecture, space))),
    json=path.with_suffix('.json').name,
  )
  replace_file(path, text)


def _quote(text: str) -> str:
  """As it stands in a docstring, which it must not end.

  >>> print(_quote('a\\\\b"c'))
  a\\\\b\\"c
  """
  return text.replace('\\', '\\\\').replace('"', '\\"')


def _list_tables(
  architecture: Architecture, space: ArchitectureSpace
) -> Iterator[str]:
  """Lines that name the tables for which there was something to choose."""
  extra = {name: (own, {}) for name, own in architecture.extra.items()}
  for what, (own, sizes) in {
    'Widths': (architecture.dims, space.dims),
    'Rows': (architecture.rows, space.rows),
    **extra,
  }.items():
    some = [
      f'{table} {option}'
      for table, option in own.items()
      if len(sizes.get(table, (0, 0))) > 1
    ]
    if some:
      text = f'{what}: {", ".join(some)}.'
      yield '\n'.join(textwrap.wrap(text, 80, break_on_hyphens=False)) + '\n'


def list_notes(
  search: Mapping,
  choices: Mapping[str, np.ndarray],
  expected: Mapping[str, float],
  likeliest_first: bool,
) -> list[str]:
  """What a user should know of a search before believing it.

  Args:
    search: its settings.
    choices: choice -> probabilities of its options.
    expected: costs with these probabilities.
    likeliest_first: whether the likeliest architecture keeps the budgets.
  """
  found = []
  shares = [
    -np.sum(w * np.log(np.maximum(w, 1e-300))) / np.log(len(w))
    for w in choices.values()
  ]
  if np.mean(shares) > _UNDECIDED:
    found.append(
      'The choices are as undecided as they began, and what was found is '
      "little else than drawn by chance: raise search.learning_rate (of 'adam' "
      '0.02 or so) or search.epochs'
    )
  for name, cost in expected.items():
    most = search.get(f'max_{name}', 0.0)
    if most and cost > 1.1 * most:
      found.append(
        f'The choices have ended at {cost / most:.3g} times search.max_{name}, '
        'and models were drawn until some kept it: raise search.epochs or '
        'search.budget_rate, or lower search.budget_epochs'
      )
  if not likeliest_first:
    found.append(
      'The likeliest architecture exceeds a budget: all were drawn by chance'
    )
  return found


def summarize(
  config, folder, supernet, task, choices, proposals, candidates, reports, best
) -> dict:
  space = task.space
  expected = {n: float(x) for n, x in space.measure(choices).items()}
  likeliest = space.choose(space.choose_likeliest(choices)).name
  likeliest_first = candidates[0].architecture.name == likeliest
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
    'expected': expected,
    'likeliest_first': likeliest_first,
    'notes': list_notes(
      config.search.to_dict(), choices, expected, likeliest_first
    ),
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


def describe(found: Mapping, workdir: pathlib.Path) -> str:
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
  if 'given' in found:
    given = found['given']
    values = [f'{given["metrics"][s][m]:.4f}' for s in splits for m in shown]
    costs = [f'{given["costs"][cost]:,.7g}' for cost in names]
    rows.append(('given', 'of the config', *costs, '', *values))
  supernet = found['supernet']
  trained = [c['core_s'] for c in found['candidates']]
  line = (
    f'{found["space"]["architectures"]:,} architectures; the search took '
    f'{supernet["core_s"]:.0f} core-seconds, {len(trained)} trainings '
    f'{sum(trained):.0f}'
  )
  return '\n'.join([
    *format_columns(head, rows), '', line,
    f'the best, trained: {workdir / "candidates" / found["best"]}',
    f'its config: {workdir / "found" / "best.py"}',
    f'page: {workdir / PAGE}',
  ])  # fmt: skip


def _first_metrics(found: Mapping) -> Mapping:
  return found['candidates'][0]['metrics']
