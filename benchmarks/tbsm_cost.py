"""What a longer history costs TBSM and its baselines, and what it is worth.

  python -m benchmarks.tbsm_cost --runs DIR --data DIR
  python -m benchmarks.tbsm_cost --runs DIR --only step

step  a training step of 256 examples against T, the most events of a history:
      of `mixed` lengths, 1 to T, each as likely, which are packed, and all of
      length T (`full`), which is what padding would cost. Rows are made up;
      sizes are those of benchmarks/tbsm.py. All kinds take turns, a few steps
      at a time, in one process: `core_ms` is the median over turns of what a
      step costs, `low` and `high` the quarter below and above it, `full_x` the
      median of the ratios of full to mixed within each turn. A slope is that
      of a line through all T: `us_event`, core-microseconds for each event
      there is, and `base_ms`, what a step without events would cost.
use   AUC of the test split, by models that learned histories of at most 20
      events, on the latest T events alone. The logs reach further back: a click
      of the stream depends on 100 events, and of MovieLens 100K up to 100 are
      given. All kinds are told the age of events and not their place, which is
      counted in parts of T. `def` and `concat` have weights for each of 20
      places: what they say of longer histories is `refused`. Means over seeds,
      `auc_std` the deviation, `auc_ci` half of a 95 % interval.

Rows that a result file has are not measured again.
"""

import argparse
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks import cli, runs, tbsm, tbsm_search, tbsm_study
from benchmarks.result import CoreTimer
from benchmarks.tbsm_search import BASELINES, EVENTS
from genrec_jax import config as config_lib
from genrec_jax.checkpoint.manager import CheckpointError
from genrec_jax.config import event_models
from genrec_jax.data.parquet import pa, pq
from genrec_jax.data.ranking import behaviour_rows, interests, raw
from genrec_jax.data.ranking.saved_encoder import load_encoder
from genrec_jax.serve.scorer import Scorer
from genrec_jax.serve.weights import load_weights
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.tasks.ranking import Ranking
from genrec_jax.train import experiment as experiment_lib

COLUMNS = (
  'case', 'core_ms', 'low', 'high', 'full_x', 'events', 'us_event', 'base_ms',
  'turns', 'seeds', 'auc', 'auc_std', 'auc_ci', 'core_s', 'refused',
)  # fmt: skip
KINDS = ('def', *BASELINES)
LENGTHS = (5, 10, 20, 50, 100, 200)  # T of a step
SHAPES = ('mixed', 'full')
BATCH, BATCHES = 256, 3  # the batches of a turn
# Mechanisms with a number of inputs for each place of a history.
PLACED = (*event_models.COMPARING, 'concat')
USED = (1, 2, 5, 10, 20, 50, 100)  # T of a trained model
SEEDS = (1, 2, 3)
# Events that the logs reach back; models learn the latest EVENTS.
LOGS = {
  'interests': {'data.interests.history': max(USED)},
  'movielens/100k': {'data.movielens_clicks.history': max(USED)},
}
NOTES = (
  'step: batches of 256; full_x is the median over turns of a ratio within the '
  'turn.',
  'use: models that were trained with 20 events.',
)


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('tbsm_cost', __doc__)
  parser.add_argument('--turns', type=int, default=10, help='of each kind (10)')
  args = tbsm_search.parse(parser, argv)
  rows = cli.read_rows(args, 'tbsm_cost')
  try:
    for name, names, measure in list_parts(args):
      if not {*names} <= rows.keys():
        rows |= {row['case']: row for row in measure()}
        save(args, rows, name)
  except (ValueError, OSError, RuntimeError) as error:
    cli.fail(str(error))
  for name in ('step', 'use'):
    save(args, rows, name)


def list_parts(
  args: argparse.Namespace,
) -> list[tuple[str, list[str], Callable[[], list[dict]]]]:
  """('step' or 'use', names of rows, function that measures them) of each part.

  The kinds of a step take turns, so that all of a T are measured at once.
  """
  found = []
  for most in LENGTHS[:2] if args.smoke else LENGTHS:
    names = [f'step/T={most}/{k}/{s}' for k in list_kinds(args) for s in SHAPES]
    measure = functools.partial(measure_steps, args, most)
    found.append(('step', names, measure))
  for seed in SEEDS[:1] if args.smoke else SEEDS:
    for data in LOGS:
      for kind in list_kinds(args):
        names = [f'use/{data}/{kind}/seed{seed}']
        measure = functools.partial(measure_use, args, data, kind, seed)
        found.append(('use', names, measure))
  wanted = [
    part
    for part in found
    if any(name.startswith(tuple(args.only)) for name in part[1])
  ]
  if not wanted:
    raise ValueError(f'there is no case that begins with {args.only}')
  return wanted


def list_kinds(args: argparse.Namespace) -> Sequence[str]:
  """Those that are compared; of --smoke two."""
  return ('def', 'gru') if args.smoke else KINDS


class Side:
  """A training step of one kind on rows of one shape, compiled."""

  def __init__(self, config: ConfigDict, folder: pathlib.Path):
    """Compiles it.

    Args:
      config: of the experiment.
      folder: of its data.
    """
    folder.mkdir(parents=True, exist_ok=True)
    built = experiment_lib.build_experiment(
      config, folder, TASK_KINDS, lambda line: None
    )
    stream = built.runtime.batches(iter(built.train_batches(config)))
    self._batches = [next(stream) for _ in range(BATCHES)]
    self._state = built.runtime.fresh_state()
    self._step = built.runtime.step()
    self.time_steps()  # compiles

  @property
  def events(self) -> float:
    """Of a step, in the mean."""
    lengths = [x.jagged['events'].lengths for x in self._batches]
    return float(np.mean([np.sum(x) for x in lengths]))

  def time_steps(self) -> float:
    """Core-milliseconds of a step, over a few of them."""
    with CoreTimer() as timer:
      for batch in self._batches:
        self._state, loss = self._step(self._state, batch)
      jax.block_until_ready(loss)
    return 1000 * timer.core_s / BATCHES


def measure_steps(args: argparse.Namespace, most: int) -> list[dict]:
  """The rows of all kinds and shapes of a T."""
  sides = {
    (kind, shape): make_side(args, most, kind, shape)
    for kind in list_kinds(args)
    for shape in SHAPES
  }
  times: dict[tuple[str, str], list[float]] = {key: [] for key in sides}
  order = [*sides]
  for _ in range(2 if args.smoke else args.turns):
    for key in order:
      times[key].append(sides[key].time_steps())
    order = [*order[1:], order[0]]  # nobody is always the first
  found = []
  for (kind, shape), own in times.items():
    low, middle, high = np.percentile(own, [25, 50, 75])
    ratios = np.array(times[kind, 'full']) / times[kind, 'mixed']
    found.append({
      'case': f'step/T={most}/{kind}/{shape}', 'kind': 'step', 'T': most,
      'mechanism': kind, 'shape': shape, 'core_ms': float(middle),
      'low': float(low), 'high': float(high), 'turns': len(own),
      'events': sides[kind, shape].events,
    })  # fmt: skip
    if shape == 'mixed':
      found[-1]['full_x'] = float(np.median(ratios))
  return found


def make_side(
  args: argparse.Namespace, most: int, kind: str, shape: str
) -> Side:
  """The step of a kind on rows that are made up.

  Args:
    args: of the command line.
    most: T.
    kind: of KINDS.
    shape: of SHAPES.
  """
  folder = pathlib.Path(args.runs).resolve() / 'step' / f'{shape}_{most}'
  if not (folder / 'rows.parquet').exists():
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(invent_rows(most, shape), folder / 'rows.parquet')
  options = {
    'data.name': 'parquet',
    'data.path': str(folder / 'rows.parquet'),
    'data.cache': str(folder / 'data'),
    'train.batch_size': BATCH,
    **tbsm_search.choose_features(most),
    **tbsm_search.choose_model(kind),
  }
  path = runs.ROOT / tbsm_search.CONFIGS['interests']
  overrides = [f'{key}={value}' for key, value in options.items()]
  return Side(config_lib.load(f'{path}:{kind}', overrides), folder / kind)


def invent_rows(most: int, shape: str):
  """Rows with the columns of the data sets, as a table of Arrow.

  >>> invent_rows(3, 'full')['history_item'][0].as_py().__len__()
  3

  Args:
    most: T.
    shape: 'mixed' has histories of 1 to T events, 'full' of T.
  """
  rng, rows = np.random.default_rng(26), 2 * BATCH * BATCHES
  lengths = np.full(rows, most)
  if shape == 'mixed':
    lengths = rng.integers(1, most + 1, rows)
  count = int(lengths.sum())
  table = {
    'label': raw.NumberColumn(rng.integers(0, 2, rows)),
    'user': raw.NumberColumn(rng.integers(0, 100, rows)),
    'item': raw.NumberColumn(rng.integers(0, 2000, rows)),
    'category': raw.NumberColumn(rng.integers(0, 20, rows)),
  }
  for name, end in (('item', 2000), ('category', 20), ('age', 10**6)):
    values = raw.NumberColumn(rng.integers(0, end, count))
    table[f'history_{name}'] = raw.ListColumn(values, lengths)
  return pa.table({name: tbsm.to_array(x) for name, x in table.items()})


def measure_use(
  args: argparse.Namespace, data: str, kind: str, seed: int
) -> list[dict]:
  """The row of a model that is used on histories of other lengths."""
  folder = pathlib.Path(args.runs).resolve() / 'use' / data.replace('/', '_')
  options = {**tbsm_search.choose_data(args, data, seed), **LOGS[data]}
  config, knobs = choose_recipe(data)
  report, _ = tbsm_search.train(
    args,
    f'{config}:{kind}',
    folder / f'{kind}_seed{seed}',
    {
      **options,
      'data.cache': str(folder / f'data_seed{seed}'),
      **tbsm_search.choose_features(EVENTS),
      **tbsm_search.choose_model(kind, {'position': False}),
      **tbsm_search.set_knobs(knobs[kind]),
    },
  )
  chunks = list(read_rows(data, options))
  row = {
    'case': f'use/{data}/{kind}/seed{seed}', 'kind': 'use', 'data': data,
    'of': f'use/{data}/{kind}', 'mechanism': kind, 'seed': seed,
    'core_s': report['core_s'], 'lengths': [], 'aucs': [],
  }  # fmt: skip
  for most in USED:
    try:
      scorer = open_scorer(folder / f'{kind}_seed{seed}', max(most, EVENTS))
    except CheckpointError as error:
      if kind not in PLACED or most <= EVENTS:
        raise
      row['refused'] = str(error)
      break
    row['lengths'].append(most)
    row['aucs'].append(measure_auc(scorer, chunks, most))
  return [row]


def choose_recipe(data: str) -> tuple[str, Mapping[str, Mapping]]:
  """The config of a data set, and the knobs of each kind."""
  short = data.partition('/')[0]
  return tbsm_search.CONFIGS[short], tbsm.KNOBS[short]


def read_rows(
  data: str, options: Mapping[str, object]
) -> Iterator[raw.RawChunk]:
  """The rows of the test split, with all events that the log has.

  Args:
    data: a key of LOGS.
    options: keys that describe it.
  """
  names = ('label', *behaviour_rows.choose_features(EVENTS))
  if data == 'interests':
    log = interests.InterestLog(**tbsm.take_section(options, 'interests'))
    return interests.read_chunks(log, names, 'test')
  return tbsm.open_films(options).read_chunks(names, 'test')


def open_scorer(workdir: pathlib.Path, most: int) -> Scorer:
  """The model of a run, for histories of up to `most` events.

  Args:
    workdir: of the run.
    most: events that are read; the run may have read fewer.

  Raises:
    CheckpointError: its weights are of another number of places.
  """
  config = ConfigDict(config_lib.read_config(workdir / 'config.json'))
  encoder = load_encoder(workdir)
  columns = tuple(
    dataclasses.replace(column, max_len=most) if column.history else column
    for column in encoder.schema.columns
  )
  schema = dataclasses.replace(encoder.schema, columns=columns)
  encoder = dataclasses.replace(encoder, schema=schema)
  task = Ranking.from_config(config, encoder.features, schema.labels)
  return Scorer(task, load_weights(workdir, task, 'best'), encoder, config)


def measure_auc(
  scorer: Scorer, chunks: Iterable[raw.RawChunk], most: int
) -> float:
  """The AUC of a scorer on the latest events of each history alone.

  Args:
    scorer: of a trained model.
    chunks: rows with labels.
    most: events that it is given.
  """
  chunks = [keep_latest(chunk, most) for chunk in chunks]
  labels = [chunk.columns['label'].values for chunk in chunks]
  scores = np.concatenate(list(scorer.score_chunks(chunks)))
  return tbsm_study.count_auc(np.concatenate(labels), scores[:, 0])


def keep_latest(chunk: raw.RawChunk, most: int) -> raw.RawChunk:
  """The rows with the `most` latest events of each history alone.

  Args:
    chunk: rows, the latest event of a history last.
    most: events that are kept.
  """
  columns = dict(chunk.columns)
  for name, column in columns.items():
    if isinstance(column, raw.ListColumn):
      total = int(column.lengths.sum())
      left = np.repeat(np.cumsum(column.lengths), column.lengths)
      columns[name] = column.take_values(left - np.arange(total) <= most)
  return dataclasses.replace(chunk, columns=columns)


def save(
  args: argparse.Namespace, rows: Mapping[str, Mapping], kind: str
) -> None:
  """Writes the rows of a part, and what follows from them."""
  own = [row for row in rows.values() if row['kind'] == kind]
  more = find_slopes(own) if kind == 'step' else average(own)
  if own:
    cli.finish(args, 'tbsm_cost', [*own, *more], COLUMNS, NOTES)


def find_slopes(rows: Iterable[Mapping]) -> list[dict]:
  """What each event of a step costs, by a line through all T.

  Args:
    rows: of steps; what was measured at a single T has no slope.
  """
  by_side: dict[tuple[str, str], list[Mapping]] = {}
  for row in rows:
    by_side.setdefault((row['mechanism'], row['shape']), []).append(row)
  found = []
  for (kind, shape), own in by_side.items():
    if len(own) < 2:
      continue
    slope, base = np.polyfit(
      [row['events'] for row in own], [row['core_ms'] for row in own], 1
    )
    found.append({
      'case': f'slope/{kind}/{shape}', 'kind': 'slope', 'mechanism': kind,
      'shape': shape, 'us_event': 1000 * float(slope), 'base_ms': float(base),
    })  # fmt: skip
  return found


def average(rows: Iterable[Mapping]) -> list[dict]:
  """Means over seeds for each T, and what a kind says of a longer history."""
  found = []
  for name, of in runs.group_by_seed(rows).items():
    first = next(iter(of.values()))
    about = {'data': first['data'], 'mechanism': first['mechanism']}
    for i, most in enumerate(first['lengths']):
      values = [row['aucs'][i] for row in of.values()]
      mean = {'case': f'{name}/T={most}', 'kind': 'mean', 'T': most} | about
      mean |= {'seeds': len(of)} | runs.over_seeds('auc', values)
      width = tbsm.compare('auc', values).get('auc_ci')
      found.append(mean if width is None else mean | {'auc_ci': width})
    if 'refused' in first:
      row = {'case': f'{name}/refused', 'kind': 'refused'} | about
      found.append(row | {'refused': first['refused']})
  return found


if __name__ == '__main__':
  main()
