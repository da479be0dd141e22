"""Maps of the tables of a run, learned and given to it: the parts of
`learn_hash`.
"""

import dataclasses
import logging
import pathlib
import re
import time
from collections.abc import Iterable, Mapping
from urllib.parse import quote

import numpy as np

from genrec_jax import config as config_lib
from genrec_jax.checkpoint.inspect_text import format_columns
from genrec_jax.data.ranking.datasets import RankingDataset
from genrec_jax.data.ranking.vocabulary import Vocabulary
from genrec_jax.embedding import learned_hash
from genrec_jax.embedding.learned_map import MapFile, count_words
from genrec_jax.features import TableSpec
from genrec_jax.formatting import format_bytes
from genrec_jax.models.fields import LINEAR
from genrec_jax.serve.weights import load_weights
from genrec_jax.train import experiment, series

LOG = logging.getLogger('genrec_jax')
RESULT = 'hash.json'
METRICS = ('auc', 'gauc', 'logloss', 'ne')
_TELL_S = 10
_CHUNK = 1 << 16  # rows that are counted at a time


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
  def bytes_before(self) -> int:
    """Of the rows with one for each id."""
    return self.spec.rows * self._width

  @property
  def bytes(self) -> int:
    """Of the rows that there will be."""
    return self.rows * self._width

  @property
  def map_bytes(self) -> int:
    """Of the packed map."""
    return 4 * count_words(self.spec.rows, self.rows)

  @property
  def _width(self) -> int:
    return self.spec.dim * np.dtype(self.spec.dtype).itemsize


def list_shares(asked: Mapping) -> list[float]:
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
    table = TableIds(spec, vocabularies[name], rows)
    # One row is of padding, and one at least is shared.
    too_few = not asked.rows and rows < asked.reserved + 2
    if too_few or table.bytes + table.map_bytes >= table.bytes_before:
      small.append(name)
      continue
    found[name] = table
    for share in list_shares(asked.to_dict()):
      make_options(asked.to_dict(), table, share)
  if small:
    LOG.info(
      'as they are, since a map would save nothing: %s',
      ', '.join(sorted(small)),
    )
  first_order = [n for n in task.tables() if n.endswith(LINEAR)]
  if found and first_order:
    LOG.info(
      'with a number for each id, beside what follows: %s',
      ', '.join(sorted(first_order)),
    )
  if not found:
    raise config_lib.ConfigError(
      f'no table has its ids put together: hash.tables is {asked.tables!r} and '
      f'hash.rows {asked.rows:,}, and the tables have '
      + ', '.join(f'{n} {s.rows:,} rows' for n, s in task.tables().items())
    )
  return found


def count_ids(
  dataset: RankingDataset,
  tables: Iterable[str],
  first: int = 0,
  end: int | None = None,
) -> dict[str, np.ndarray]:
  """How often each id stands in some rows of the training split.

  Args:
    dataset: whose split.
    tables: names of those whose ids are counted.
    first: number of the first row.
    end: number behind the last one; None for all.

  Returns:
    Table -> `[ids]` int64; of padding and of ids of unseen values it is 0.
  """
  split, known = dataset.splits['train'], dataset.vocabularies
  end = len(split) if end is None else min(end, len(split))
  counts = {name: np.zeros(known[name].rows, np.int64) for name in tables}
  features = [f for f in dataset.features if f.has_table and f.source in counts]
  for a in range(first, end, _CHUNK):
    rows = split.rows(a, min(a + _CHUNK, end))
    for feature in features:
      if feature.name in rows.bags:
        ids = rows.bags[feature.name].values
      else:
        ids = rows.ids[:, split.names.ids.index(feature.name)]
      found = counts[feature.source]
      found += np.bincount(ids, minlength=len(found))
  for name, found in counts.items():
    found[0] = 0
    # All rows of a hashed vocabulary are of values, whoever they are.
    if len(known[name].counts):
      found[1 + len(known[name].counts) :] = 0
  return counts


def read_counts(
  dataset: RankingDataset, tables: Mapping[str, TableIds]
) -> dict[str, np.ndarray]:
  """As `count_ids` of all rows, which are read where nobody has counted.

  Args:
    dataset: whose training split.
    tables: of `choose_tables`.
  """
  counts = {}
  for name, table in tables.items():
    known = table.vocabulary.counts
    if len(known):
      counts[name] = np.pad(known, (1, table.spec.rows - 1 - len(known)))
  # Hashed values have no vocabulary.
  hashed = [name for name in tables if name not in counts]
  return counts | (count_ids(dataset, hashed) if hashed else {})


def set_maps(config, task, tables: Mapping[str, TableIds], maps):
  """The config of a run with learned maps.

  Args:
    config: of a run with a row for each id.
    task: of that run.
    tables: of `choose_tables`.
    maps: table -> file of its map.
  """
  changes = {
    name: {'id_map': 'learned', 'rows': table.rows, 'map': str(maps[name])}
    for name, table in tables.items()
  }
  return series.change_tables(config, list(task.tables()), changes)


def make_options(asked: Mapping, table: TableIds, share: float):
  room = table.rows - 1 - asked['reserved']
  private = 0 if asked['method'] == 'embedding' else int(share * room)
  try:
    return learned_hash.HashOptions(
      rows=table.rows,
      private=min(private, len(table.vocabulary.counts)),
      reserved=asked['reserved'],
      shrink=asked['shrink'],
      method=asked['method'],
      seed=asked['seed'],
    )
  except ValueError as e:
    raise config_lib.ConfigError(f'table {table.spec.name!r}: {e}') from None


def learn_map(
  path: pathlib.Path,
  table: TableIds,
  counts: np.ndarray,
  vectors: np.ndarray | None,
  asked: Mapping,
  share: float,
) -> None:
  """Writes the map of a table, unless it is there.

  Args:
    path: of the file.
    table: whose ids share rows.
    counts: `[ids]` how often each id was seen; where none was, ids are spread
      over all rows.
    vectors: `[ids - 1, D]` of all ids but padding; None where nobody needs
      them.
    asked: the section `hash`.
    share: of the rows that frequent ids have alone.
  """
  if path.exists():
    return
  name, seen = table.spec.name, int(np.count_nonzero(counts))
  about = {'seen': seen, 'dim': asked['dim']}
  if seen:
    options = make_options(asked, table, share)
    options = dataclasses.replace(options, private=min(options.private, seen))
    LOG.info(
      'table %s: %s ids on %s rows, %s of them for one id alone',
      name,
      f'{table.spec.rows:,}',
      f'{options.rows:,}',
      f'{options.private:,}',
    )
    rows = learned_hash.learn_rows(
      counts[1:], vectors, options, unseen=0, tell=ProgressMeter(name)
    )
    about |= dataclasses.asdict(options)
  else:
    rows = learned_hash.spread_rows(table.spec.rows, table.rows, asked['seed'])
  fingerprint = table.vocabulary.fingerprint()
  MapFile(name, rows, table.rows, fingerprint, about, counts).save(path)


def name_map(folder: pathlib.Path, table: str) -> pathlib.Path:
  """The file of the map of a table."""
  # An absolute path: a run may go on from another directory.
  return (folder / f'{quote(table, safe="")}.npz').resolve()


class ProgressMeter:
  """Tells now and then how far a map is."""

  def __init__(self, name: str):
    self._name, self._told = name, time.monotonic()

  def __call__(self, done: int, count: int) -> None:
    if time.monotonic() - self._told > _TELL_S:
      self._told = time.monotonic()
      LOG.info('table %s: part %d of %d', self._name, done, count)


def load_data_and_task(config, workdir, kinds, extensions):
  """As `experiment.load_data_and_task`, told to the log."""
  return experiment.load_data_and_task(
    config, workdir, kinds, LOG.info, extensions
  )


def read_vectors(
  folder: pathlib.Path,
  of_run,
  tables: Mapping[str, TableIds],
  kinds,
  extensions,
  checkpoint: str | int = 'best',
) -> dict[str, np.ndarray]:
  """Table -> vectors `[ids - 1, D]` of a run, those of unseen ids at the end.

  Args:
    folder: of the run.
    of_run: its config.
    tables: of `choose_tables`.
    kinds: the kinds of tasks there are.
    extensions: what is used from outside the library.
    checkpoint: as in `load_weights`.
  """
  data, task = load_data_and_task(of_run, folder, kinds, extensions)
  specs = task.tables()
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
  weights = load_weights(folder, task, checkpoint, extensions)
  return {n: np.asarray(weights.tables[n], np.float32)[1:] for n in tables}


def describe_metrics(
  head: str, runs: Mapping[str, Mapping[str, Mapping[str, float]]]
) -> list[str]:
  """Lines of a table of metrics.

  Args:
    head: what names runs.
    runs: name of a run -> split -> its metrics.
  """
  splits = [(run, s, m) for run, own in runs.items() for s, m in own.items()]
  shown = [x for x in METRICS if any(x in m for _, _, m in splits)]
  rows = [
    (run, split, *(f'{m[x]:.4f}' if x in m else '' for x in shown))
    for run, split, m in splits
  ]
  return format_columns([f'<{head}', '<split', *(f'>{x}' for x in shown)], rows)


def measure_sizes(tables: Mapping[str, TableIds]) -> dict[str, dict]:
  """Table -> 'ids', 'rows' and bytes: without the map, with it, and of it."""
  return {
    name: {
      'ids': t.spec.rows,
      'rows': t.rows,
      'bytes_before': t.bytes_before,
      'bytes': t.bytes,
      'map_bytes': t.map_bytes,
    }
    for name, t in tables.items()
  }


def describe_sizes(sizes: Mapping[str, Mapping]) -> list[str]:
  """What `measure_sizes` found, a line for each table."""
  lines = []
  for name, t in sizes.items():
    whole = t['bytes'] + t['map_bytes']
    lines.append(
      f'{name}: {t["ids"]:,} ids on {t["rows"]:,} rows, '
      f'{format_bytes(t["bytes_before"])} -> {format_bytes(whole)}, of which '
      f'{format_bytes(t["map_bytes"])} are the map '
      f'({t["bytes_before"] / whole:.1f} times less)'
    )
  return lines
