"""`genrec learn_hash`: learns which ids share a row, and trains with that.

    WORKDIR/
      data/            the prepared data, unless data.cache says where
      small/           a run of the same model with narrow tables
      private_0.50/    a run with maps in which frequent ids have half the rows
        maps/NAME.npz
        report.html ...
      config.json      what was asked for
      hash.json        what was measured, and the best run

Whoever is interrupted goes on with the same command: a run that has ended is
read and not trained again. Counts and vectors are of the training split alone.
"""

import dataclasses
import json
import logging
import math
import pathlib
import re
import time
from collections.abc import Mapping
from urllib.parse import quote

import numpy as np

from genrec_jax import config as config_lib
from genrec_jax.checkpoint.inspect_text import format_columns
from genrec_jax.checkpoint.workdir import lock_workdir
from genrec_jax.contracts import Extensions, TaskKinds
from genrec_jax.data.ranking.vocabulary import Vocabulary
from genrec_jax.embedding import learned_hash
from genrec_jax.embedding.learned_map import MapFile, count_words
from genrec_jax.features import TableSpec
from genrec_jax.formatting import format_bytes
from genrec_jax.models.fields import LINEAR
from genrec_jax.processes.whole_files import replace_file
from genrec_jax.serve.weights import load_weights
from genrec_jax.tasks.ranking_metrics import DIRECTIONS
from genrec_jax.train import experiment, loop
from genrec_jax.train.monitor import parse_monitor

LOG = logging.getLogger('genrec_jax')
RESULT = 'hash.json'
_TELL_S = 10
METRICS = ('auc', 'gauc', 'logloss', 'ne')


@dataclasses.dataclass(frozen=True)
class TableIds:
  """A table whose ids will share rows.

  Attributes:
    spec: of the table, with a row for each id.
    vocabulary: which gives the ids.
    rows: that it will have.
  """

  spec: TableSpec
  vocabulary: Vocabulary
  rows: int

  @property
  def counts(self) -> np.ndarray:
    """`[K]` how often each value stood in the training split."""
    return self.vocabulary.counts

  @property
  def unseen(self) -> int:
    """Ids of values that are not known."""
    return self.spec.rows - 1 - len(self.counts)


def learn_hash(
  config,
  workdir,
  kinds: TaskKinds,
  extensions: Extensions | None = None,
) -> str:
  """Learns maps as `config.hash` says, and trains with them.

  Args:
    config: of the experiment.
    workdir: where all of it lies.
    kinds: the kinds of tasks there are.
    extensions: what is used from outside the library.

  Returns:
    What was measured, as text; '' where SIGTERM has ended it early.
  """
  workdir = pathlib.Path(workdir)
  if 'hash' not in config:
    raise config_lib.ConfigError(
      f'learn_hash is for task=ranking, and the task is {config.task!r}; '
      'docs/learned_hash.md says how a map is made from vectors in Python'
    )
  with lock_workdir(workdir):
    return _learn_locked(config, workdir, kinds, extensions)


def _learn_locked(config, workdir, kinds, extensions) -> str:
  asked = config.hash.to_dict()
  _keep_settings(workdir, config)
  cache = config.data.cache or str((workdir / 'data').resolve())
  plain = _change(config, **{'data.cache': cache})
  data, task = _load(plain, workdir, kinds, extensions)
  tables = choose_tables(config, task, data.dataset.encoder.vocabularies)
  vectors = None
  if asked['method'] != 'frequency':
    vectors = _find_vectors(plain, asked, workdir, kinds, extensions, tables)
    if vectors is None:
      return ''
  trials = {}
  for share in _list_shares(asked):
    own = name_trial(workdir, share)
    maps = {
      name: _learn_map(own, table, vectors, asked, share)
      for name, table in tables.items()
    }
    with_maps = set_maps(plain, task, tables, maps)
    report = _train(with_maps, own, kinds, extensions)
    if report is None:  # stopped; the same command goes on
      return ''
    trials[share] = report['metrics']
  best = _choose(trials, config)
  found = _summarize(workdir, asked, tables, trials, best)
  replace_file(workdir / RESULT, json.dumps(found, indent=2))
  return _describe(found, trials, best)


def _list_shares(asked: Mapping) -> list[float]:
  if asked['method'] == 'embedding':
    return [0.0]
  return sorted(set(asked['private']))


def choose_tables(
  config, task, vocabularies: Mapping[str, Vocabulary]
) -> dict[str, TableIds]:
  """The tables whose ids will share rows.

  Args:
    config: of the experiment.
    task: whose tables, with a row for each id.
    vocabularies: table -> its vocabulary.
  """
  asked, found, small = config.hash, {}, []
  for name, spec in task.tables().items():
    if name.endswith(LINEAR) or not re.fullmatch(asked.tables, name):
      continue
    if spec.id_map != 'identity':
      raise config_lib.ConfigError(
        f'config.tables: table {name!r} has id_map={spec.id_map!r}, and '
        'learn_hash gives it a map: take that away, or leave the table out '
        '(hash.tables)'
      )
    rows = asked.rows or -int(-spec.rows // asked.compression)
    if rows >= spec.rows:
      small.append(name)
      continue
    found[name] = TableIds(spec, vocabularies[name], rows)
    for share in _list_shares(asked.to_dict()):
      _make_options(asked.to_dict(), found[name], share)
  if small:
    LOG.info(
      'as they are, with no more ids than rows: %s', ', '.join(sorted(small))
    )
  if not found:
    raise config_lib.ConfigError(
      f'no table has its ids put together: hash.tables is {asked.tables!r} and '
      f'hash.rows {asked.rows:,}, and the tables have '
      + ', '.join(f'{n} {s.rows:,} rows' for n, s in task.tables().items())
    )
  return found


def set_maps(config, task, tables: Mapping[str, TableIds], maps):
  """The config of a run with learned maps.

  Args:
    config: of a run with a row for each id.
    task: of that run.
    tables: of `choose_tables`.
    maps: table -> file of its map.
  """
  entries = list(config.tables) or [('.*', {})]
  own, decides = [], set()
  for name in task.tables():
    number, given = next(
      (i, dict(given))
      for i, (pattern, given) in enumerate(entries)
      if re.fullmatch(pattern, name)
    )
    if name in tables:
      given |= {'id_map': 'learned', 'rows': tables[name].rows}
      own.append((re.escape(name), given | {'map': str(maps[name])}))
    else:
      decides.add(number)
  # An entry that decides nothing any more would be refused.
  kept = [entries[number] for number in sorted(decides)]
  return _change(config, tables=(*own, *kept))


def _change(config, **fields):
  """A copy with other values, without the section that this file alone reads.

  Args:
    config: of the experiment.
    **fields: 'section.key' -> value.
  """
  changed = config.copy_and_resolve_references()
  with changed.unlocked():
    changed.hash = config_lib.ranking().hash
    for key, value in fields.items():
      section, _, name = key.rpartition('.')
      (changed[section] if section else changed)[name] = value
  return changed.lock()


def _keep_settings(workdir: pathlib.Path, config) -> None:
  """Refuses to go on with other settings than the workdir has begun with."""
  path = workdir / 'config.json'
  if not path.exists():
    config_lib.save(config, path)
    return
  saved = config_lib.read_config(path)
  if changed := config_lib.describe_differences(saved, config):
    raise config_lib.ConfigError(
      f'{workdir} was begun with other settings: {"; ".join(changed)}. Take '
      'another workdir for these'
    )


def _load(config, workdir, kinds, extensions):
  return experiment.load_data_and_task(
    config, workdir, kinds, LOG.info, extensions
  )


def _find_vectors(
  config, asked, workdir, kinds, extensions, tables
) -> dict[str, np.ndarray] | None:
  """Table -> vectors `[K, D]` of its values, of a small run; None: stopped."""
  folder = pathlib.Path(asked['vectors'] or workdir / 'small')
  if asked['vectors']:
    of_run = config_lib.load_saved(folder / 'config.json')
  else:
    of_run = _change(config, **{'model.dim': asked['dim']})
    LOG.info('vectors: a small model, %d wide', asked['dim'])
    if _train(of_run, folder, kinds, extensions) is None:
      return None
  with_data = _change(of_run, **{'data.cache': config.data.cache})
  data, task = _load(with_data, folder, kinds, extensions)
  specs, found = task.tables(), {}
  for name, table in tables.items():
    own = data.dataset.encoder.vocabularies.get(name)
    wanted = table.vocabulary.fingerprint()
    if name not in specs or own is None or own.fingerprint() != wanted:
      raise config_lib.ConfigError(
        f'hash.vectors: the run {folder} has no vectors of table {name!r}, '
        f'whose vocabulary is {wanted}: it has '
        + (f'the vocabulary {own.fingerprint()}' if own else 'no such table')
      )
    if specs[name].id_map != 'identity':
      raise config_lib.ConfigError(
        f'hash.vectors: ids of table {name!r} share rows already in the run '
        f'{folder} (id_map={specs[name].id_map!r})'
      )
  weights = load_weights(folder, task, 'best', extensions)
  for name, table in tables.items():
    rows = np.asarray(weights.tables[name], np.float32)
    found[name] = rows[1 : 1 + len(table.counts)]
  return found


def _make_options(asked: Mapping, table: TableIds, share: float):
  room = table.rows - 1 - asked['reserved']
  private = 0 if asked['method'] == 'embedding' else int(share * room)
  try:
    return learned_hash.HashOptions(
      rows=table.rows,
      private=min(private, len(table.counts)),
      reserved=asked['reserved'],
      shrink=asked['shrink'],
      method=asked['method'],
      seed=asked['seed'],
    )
  except ValueError as e:
    raise config_lib.ConfigError(f'table {table.spec.name!r}: {e}') from None


def _learn_map(
  folder: pathlib.Path, table: TableIds, vectors, asked: Mapping, share: float
) -> pathlib.Path:
  """Writes the map of a table, unless it is there."""
  name = table.spec.name
  # An absolute path: a run may go on from another directory.
  path = (folder / 'maps' / f'{quote(name, safe="")}.npz').resolve()
  if path.exists():
    return path
  options = _make_options(asked, table, share)
  LOG.info(
    'table %s: %s ids on %s rows, %s of them for one id alone',
    name,
    f'{table.spec.rows:,}',
    f'{options.rows:,}',
    f'{options.private:,}',
  )
  meter = ProgressMeter(name)
  rows = learned_hash.learn_rows(
    table.counts,
    None if vectors is None else vectors[name],
    options,
    unseen=table.unseen,
    tell=meter,
  )
  about = dataclasses.asdict(options) | {'dim': asked['dim']}
  MapFile(name, rows, options.rows, table.vocabulary.fingerprint(), about).save(
    path
  )
  return path


class ProgressMeter:
  """Tells now and then how far a map is."""

  def __init__(self, name: str):
    self._name, self._told = name, time.monotonic()

  def __call__(self, done: int, count: int) -> None:
    if time.monotonic() - self._told > _TELL_S:
      self._told = time.monotonic()
      LOG.info('table %s: part %d of %d', self._name, done, count)


def _train(config, folder, kinds, extensions) -> dict | None:
  """The report of a run, trained unless it has ended; None if stopped."""
  path = folder / 'report.json'
  if path.exists():
    return json.loads(path.read_text())
  return loop.train_and_evaluate(config, folder, kinds, extensions)


def _choose(trials: Mapping[float, Mapping], config) -> float:
  """The share whose run validates best."""
  valid = {share: metrics.get('valid') for share, metrics in trials.items()}
  if len(valid) == 1 or not all(valid.values()):
    return next(iter(valid))
  monitor = parse_monitor(
    config.train.monitor, list(next(iter(valid.values()))), DIRECTIONS
  )

  def score(share: float) -> float:
    value = monitor.measure(valid[share])
    return monitor.score(value) if math.isfinite(value) else -math.inf

  return max(valid, key=score)


def _summarize(workdir, asked, tables, trials, best) -> dict:
  width = {name: t.spec.dim * np.dtype(t.spec.dtype).itemsize
           for name, t in tables.items()}  # fmt: skip
  return {
    'hash': dict(asked),
    'tables': {
      name: {
        'ids': t.spec.rows,
        'rows': t.rows,
        'bytes_before': t.spec.rows * width[name],
        'bytes': t.rows * width[name],
        'map_bytes': 4 * count_words(t.spec.rows, t.rows),
      }
      for name, t in tables.items()
    },
    'trials': {f'{share:.2f}': metrics for share, metrics in trials.items()},
    'best': str(name_trial(workdir, best)),
  }


def name_trial(workdir: pathlib.Path, share: float) -> pathlib.Path:
  """The directory of the run in which frequent ids have that share of rows."""
  return workdir / f'private_{share:.2f}'


def _describe(found: Mapping, trials: Mapping[float, Mapping], best) -> str:
  """What `genrec learn_hash` prints."""
  lines = []
  for name, t in found['tables'].items():
    whole = t['bytes'] + t['map_bytes']
    lines.append(
      f'{name}: {t["ids"]:,} ids on {t["rows"]:,} rows, '
      f'{format_bytes(t["bytes_before"])} -> {format_bytes(whole)}, of which '
      f'{format_bytes(t["map_bytes"])} are the map '
      f'({t["bytes_before"] / whole:.1f} times less)'
    )
  head = ('<rows of one id', '<split', *(f'>{m}' for m in METRICS))
  rows = []
  for share, splits in trials.items():
    for split, metrics in splits.items():
      values = [f'{metrics[m]:.4f}' if m in metrics else '' for m in METRICS]
      mark = ' (best)' if share == best and len(trials) > 1 else ''
      rows.append((f'{share:.0%}{mark}', split, *values))
  return '\n'.join([*lines, '', *format_columns(head, rows), '', found['best']])
