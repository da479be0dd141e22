"""One small table in five forms, trained on and scored through `genrec_jax`.

What becomes of a value is read where every way in meets: at `Encoder.encode`.
"""

import contextlib
import dataclasses
import functools
import importlib
import logging
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from unittest import mock

import numpy as np

import genrec_jax
from benchmarks.meaning_cases import Absent
from genrec_jax.data.ranking import datasets
from genrec_jax.data.ranking.encoder import Encoder

# Rows of the table that are tested, behind those that are trained on.
SETTINGS = {
  'train.batch_size': 16,
  'eval.batch_size': 64,
  'data.split.valid_fraction': 0.0,
  'data.split.test_fraction': 0.1,
  'report.importance_rows': 0,
}
Table = Mapping[str, Sequence]


def make_form(
  engine: str,
  table: Table,
  path: pathlib.Path,
  types: Mapping[str, str] | None = None,
  separator: str = '^',
):
  """The table as `genrec_jax.fit` takes it.

  Args:
    engine: one of ENGINES.
    table: column -> Python values; None is missing.
    path: of the file, without its suffix.
    types: column -> Arrow type of the Parquet file, such as 'date32'.
    separator: of lists in a cell of CSV.
  """
  types = types or {}
  if engine == 'parquet':
    pa, parquet = import_optional('pyarrow'), import_optional('pyarrow.parquet')
    arrays = {
      name: pa.array(values, _arrow_type(pa, types.get(name)))
      for name, values in table.items()
    }
    file = path.with_suffix('.parquet')
    parquet.write_table(pa.table(arrays), file)
    return str(file)
  if engine == 'polars':
    pl = import_optional('polars')
    frame = pl.DataFrame(dict(table), strict=False)
    for name, kind in types.items():
      if kind == 'dictionary':
        frame = frame.with_columns(pl.col(name).cast(pl.Categorical))
    return frame
  pd = import_optional('pandas')
  frame = pd.DataFrame({name: list(values) for name, values in table.items()})
  if engine == 'csv':
    file = path.with_suffix('.csv')
    for name, values in table.items():
      if any(isinstance(v, list) for v in values):
        frame[name] = [
          '' if v is None else separator.join(map(str, v)) for v in values
        ]
    frame.to_csv(file, index=False)
    return str(file)
  for name, kind in types.items():
    if kind == 'dictionary':
      frame[name] = frame[name].astype('category')
    elif kind == 'nullable':
      frame[name] = frame[name].astype('Int64')
  return frame if engine == 'pandas' else frame.to_dict('records')


@functools.lru_cache
def import_optional(name: str):
  """A module of a package that the project does not need."""
  try:
    return importlib.import_module(name)
  except ImportError:
    raise Absent(f'pip install {name.partition(".")[0]}') from None


def _arrow_type(pa, kind: str | None):
  if kind in (None, 'nullable'):
    return None
  if kind == 'dictionary':
    return pa.dictionary(pa.int32(), pa.string())
  return pa.decimal128(10, 2) if kind == 'decimal' else getattr(pa, kind)()


class Recorder:
  """Keeps what `Encoder.encode` makes of the rows that pass through it."""

  def __init__(self):
    self.rows: list = []

  @contextlib.contextmanager
  def listen(self) -> Iterator['Recorder']:
    encode = Encoder.encode

    def keep(encoder, *args, **options):
      rows = encode(encoder, *args, **options)
      self.rows.append(rows)
      return rows

    with mock.patch.object(Encoder, 'encode', keep):
      yield self


@contextlib.contextmanager
def hear() -> Iterator[list[str]]:
  """Every line of the library's log at INFO and above."""
  lines: list[str] = []

  class Handler(logging.Handler):
    def emit(self, record):
      lines.append(f'{record.levelname}: {record.getMessage()}')

  log, handler = logging.getLogger('genrec_jax'), Handler(logging.INFO)
  level = log.level
  log.addHandler(handler)
  log.setLevel(logging.INFO)
  try:
    yield lines
  finally:
    log.removeHandler(handler)
    log.setLevel(level)


@dataclasses.dataclass(frozen=True)
class Trained:
  """A run on one small table, and what it said.

  Attributes:
    run: of `genrec_jax.fit`.
    dataset: the prepared data.
    lines: of the log.
  """

  run: genrec_jax.RankingRun
  dataset: datasets.RankingDataset
  lines: list[str]

  @property
  def encoder(self) -> Encoder:
    return self.dataset.encoder

  def rows_of(self, split: str):
    """The encoded rows of a split, in order."""
    store = self.dataset.splits[split]
    return store.rows(0, len(store))

  def serve(self, examples):
    """The encoded rows of what `score` is given, and the scores."""
    recorder = Recorder()
    with recorder.listen():
      scores = self.run.score(examples)
    return recorder.rows, scores


def train(examples, features, **settings) -> Trained:
  """One step of logistic regression: enough to have a run.

  Args:
    examples: in any form.
    features: as of `fit`.
    settings: dotted keys with `__` for the dots, beside SETTINGS; 'label',
      'group' and 'steps' go to `fit`.
  """
  options = {
    k: settings.pop(k) for k in ('label', 'group', 'steps') if k in settings
  }
  settings = {k.replace('__', '.'): v for k, v in settings.items()}
  with hear() as lines:
    run = genrec_jax.fit(
      examples,
      'lr',
      features=features,
      settings=SETTINGS | settings,
      progress=False,
      **({'steps': 1} | options),
    )
  return Trained(run, open_data(run), lines)


def open_data(run) -> datasets.RankingDataset:
  """What a run has prepared."""
  [meta] = sorted((run.workdir / 'data').glob('*/dataset.json'))
  config = {'name': 'prepared', 'path': str(meta.parent)}
  return datasets.load(config, run.workdir, log=lambda line: None)


def name_rows(ids: np.ndarray, rows: int, unseen: int = 1) -> list:
  """Rows of a table as '-' for missing, '?' for unseen, else their number."""
  return [
    '-' if i == 0 else '?' if i >= rows - unseen else int(i)
    for i in np.asarray(ids).tolist()
  ]


def add_label(table: Table) -> dict:
  """The table with labels 0, 1, 0, ..."""
  size = len(next(iter(table.values())))
  return {**table, 'label': [i % 2 for i in range(size)]}


def train_size(table: Table) -> int:
  """How many rows are trained on, by `SETTINGS`."""
  size = len(next(iter(table.values())))
  return size - int(size * SETTINGS['data.split.test_fraction'])


def observe(trained: Trained, parts: Sequence) -> dict[str, list]:
  """Feature -> its values in encoded rows: rows of tables, numbers or lists.

  Args:
    trained: whose encoder made them.
    parts: of `Encoder.encode`, one behind the other.
  """
  names, specs = (
    trained.encoder.schema.names,
    {f.name: f for f in trained.encoder.features},
  )
  unseen = {c.name: max(1, c.hash_rows) for c in trained.encoder.schema.coded}
  values: dict[str, list] = {name: [] for name in specs}
  for rows in parts:
    for i, name in enumerate(names.ids):
      values[name] += name_rows(rows.ids[:, i], specs[name].rows, unseen[name])
    for i, name in enumerate(names.numbers):
      values[name] += rows.numbers[:, i].tolist()
    for name, bags in rows.bags.items():
      labels = name_rows(bags.values, specs[name].rows, unseen[name])
      ends = np.cumsum(bags.lengths)
      values[name] += [
        labels[end - size : end]
        for end, size in zip(ends, bags.lengths, strict=True)
      ]
  return values


def count_rows(trained: Trained) -> list[int]:
  """How often each row of the first table stands in the training part."""
  rows = trained.rows_of('train')
  spec = next(f for f in trained.encoder.features if f.kind != 'numeric')
  if spec.name in rows.bags:
    ids = rows.bags[spec.name].values
  else:
    ids = rows.ids[:, trained.encoder.schema.names.ids.index(spec.name)]
  return np.bincount(ids, minlength=spec.rows).tolist()
