"""Named ranking data: your own files, public layouts, generated logs."""

import dataclasses
import functools
import hashlib
import json
import logging
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping

from genrec_jax import features as features_lib
from genrec_jax.config.loading import hint_nearest
from genrec_jax.data import remote_files, source_files
from genrec_jax.data.quoting import list_names
from genrec_jax.data.ranking import annotations as annotations_lib
from genrec_jax.data.ranking import (
  behaviour_sets,
  clicks,
  collation,
  criteo,
  drift,
  feature_guesses,
  formats,
  libsvm_layout,
  movielens_ratings,
  raw,
  split_files,
  split_rules,
  value_shares,
)
from genrec_jax.data.ranking import encoder as encoder_lib
from genrec_jax.data.ranking import prepare as prepare_lib
from genrec_jax.data.ranking import schema as schema_lib
from genrec_jax.data.ranking import source_rows as source_rows_lib
from genrec_jax.data.ranking import store as store_lib
from genrec_jax.data.ranking import vocabulary as vocabulary_lib

LOG = logging.getLogger('genrec_jax')
_TRUTH = 'probability'  # column of generated streams


@dataclasses.dataclass(frozen=True)
class RankingDataset:
  """Ranking data, ready for batches.

  Attributes:
    name: as in the config.
    store: the prepared blocks.
    split_column: whose values are of one split each, '' for none.
    source_rows: what the blocks were made of; None where only they are left.
  """

  name: str
  store: store_lib.PreparedStore
  split_column: str = ''
  source_rows: source_rows_lib.SourceRows | None = None

  @property
  def raw_rows(self) -> source_rows_lib.SourceRows | source_rows_lib.StoredRows:
    """The rows as they were before they were encoded."""
    return self.source_rows or source_rows_lib.StoredRows(self.store)

  @property
  def encoder(self) -> encoder_lib.Encoder:
    """Makes batches of raw rows; `encoder.save(directory)` is for serving."""
    return self.store.encoder

  @functools.cached_property
  def features(self) -> tuple[features_lib.FeatureSpec, ...]:
    """Of the encoder; how long bags of any length are, from the first block."""
    features = self.encoder.features
    if not any(f.is_list and not f.max_len for f in features):
      return features
    bags = self.splits['train'].block(0).bags
    return tuple(
      dataclasses.replace(f, mean_len=float(bags[f.name].lengths.mean()))
      if f.is_list and not f.max_len
      else f
      for f in features
    )

  @property
  def labels(self) -> tuple[str, ...]:
    return self.encoder.schema.labels

  @property
  def group(self) -> str:
    """Column whose values group the examples, '' for none."""
    return self.encoder.schema.group

  @property
  def annotations(self) -> annotations_lib.Annotations:
    """The columns of the rows other than their features."""
    return self.encoder.schema.annotations

  @property
  def splits(self) -> dict[str, store_lib.SplitStore]:
    """'train', and where they exist 'valid' and 'test'."""
    return self.store.splits

  @property
  def vocabularies(self) -> Mapping[str, vocabulary_lib.Vocabulary]:
    """Name of a table -> its vocabulary."""
    return self.encoder.vocabularies

  def summary(self) -> str:
    """One line for the log of a run."""
    rows = ', '.join(f'{len(p):,} {name}' for name, p in self.splits.items())
    kinds = [spec.kind for spec in self.features]
    counts = ', '.join(
      f'{kinds.count(kind)} {kind}'
      for kind in schema_lib.KINDS
      if kind in kinds
    )
    total = sum(v.rows for v in self.vocabularies.values())
    line = f'{self.name}: {rows} examples; features: {counts}; {total:,} rows'
    line += f' in {len(self.vocabularies)} tables'
    if len(self.labels) > 1:
      line += f'; labels: {", ".join(self.labels)}'
    if self.group:
      line += f'; {self.store.manifest["groups"]:,} groups ({self.group})'
    if beside := self.annotations.to_json():
      line += f'; with {", ".join(beside)}'
    return line

  def tell_values(self, log: Callable[[str], None]) -> None:
    """Logs the shares of unseen and missing values; warns of too many."""
    for split, features in self.encoder.value_counts.items():
      if line := value_shares.describe_part(split, features):
        log(line)
    for excesses in self.find_excesses().values():
      for excess in excesses:
        if excess.text:
          LOG.warning('%s', excess.text)

  def find_excesses(self) -> dict[str, list[value_shares.Excess]]:
    """Split -> where it has far more such values than expected."""
    columns = self.encoder.schema.columns
    # Splits by this column have no value in common.
    apart = [c.name for c in columns if c.source == self.split_column]
    return {
      split: [x for x in found if x.kind != 'unseen' or x.feature not in apart]
      for split, found in value_shares.check_splits(self.encoder).items()
    }

  def fingerprint(self) -> str:
    """Names the content: rows, their order, and what they were made by."""
    return self.store.fingerprint()

  def encode(
    self, chunks: Iterable[raw.RawChunk], batch_size: int
  ) -> Iterator[features_lib.Examples]:
    """Batches of raw rows, labelled or not; see `collation.raw_batches`."""
    return collation.raw_batches(self.encoder, chunks, batch_size=batch_size)


def _need_path(cfg) -> pathlib.Path:
  if not cfg.get('path', ''):
    raise ValueError(
      f'data.path is not set: data.name={cfg["name"]} reads files; set '
      'config.data.path to the file, or to the directory that holds them'
    )
  path = remote_files.locate(cfg['path'])
  if not path.exists():
    raise FileNotFoundError(f'{path}: no such file or directory (data.path)')
  return path


def _prepared_from(
  cfg, cache_dir, log, sources, schema, reading, names
) -> RankingDataset:
  missing = set(store_lib.SPLITS) - set(sources)
  split_rule = split_rules.build_rule(cfg, names, missing)
  block_rows = cfg.get('block_rows', 1 << 14)
  recipe = {
    # Of blocks and encoder; a schema with annotations says so itself.
    'format': [1, 1],
    'files': {
      split: [
        [str(p.resolve()), *stat]
        for p, stat in source_files.stat_files(source.files).items()
      ]
      for split, source in sources.items()
    },
    'schema': schema.to_json(),
    'split': split_rule.to_json() if split_rule else None,
    'block_rows': block_rows,
    'reading': reading,
  }
  text = json.dumps(recipe, sort_keys=True)
  fingerprint = hashlib.sha256(text.encode()).hexdigest()[:16]
  store = prepare_lib.prepare_store(
    sources,
    schema,
    pathlib.Path(cache_dir) / f'{cfg["name"]}-{fingerprint}',
    split_rule=split_rule,
    block_rows=block_rows,
    reading=reading,
    fingerprint=fingerprint,
    log=log,
  )
  source_rows = source_rows_lib.SourceRows(
    sources, schema, split_rule, reading, names
  )
  return RankingDataset(cfg['name'], store, source_rows=source_rows)


def _from_files(
  cfg, cache_dir, log, known: Mapping = {}, defaults=None
) -> RankingDataset:
  file_format = formats.find_format(cfg['name'])
  labels = schema_lib.label_names(cfg)

  def missing_labels(path):
    reading = formats.settle_reading(cfg, path, LOG.debug)
    columns = file_format.read_names(path, reading)
    return [label for label in labels if label not in columns]

  suffixes = file_format.SUFFIXES
  files = split_files.find_files(
    cfg, _need_path(cfg), known, suffixes, missing_labels, log
  )
  first = files['train'][0]
  reading = formats.settle_reading(cfg, first, log)
  if cfg['name'] == 'libsvm':
    cfg, reading = libsvm_layout.settle_options(cfg, first, reading, log)
  names = file_format.read_names(first, reading)
  absent = [label for label in labels if label not in names]
  if absent and not file_format.BARE:
    raise ValueError(
      f'{first}: no column {absent[0]!r} (data.labels); the columns are '
      f'{list_names(names)}' + formats.hint_label(first, reading, absent[0])
    )
  beside = annotations_lib.build_annotations(cfg, labels).columns
  for key, column in beside.items():
    if file_format.BARE and column not in names:
      raise ValueError(
        f'{first}: no column {column!r} ({key}); {cfg["name"]} files have '
        'columns for labels and features alone, convert them to CSV or Parquet '
        'to have others'
      )
  if defaults is None and not cfg.get('features', None):
    guesses = formats.guess_features(first, reading, labels, beside.values())
    defaults = feature_guesses.choose_features(guesses, first, log)
  schema = schema_lib.build_schema(cfg, names, defaults or {}, str(first))
  if reading.get('decimal') == ',':
    _refuse_commas(schema)
  if not file_format.BARE:
    rows = next(file_format.read_chunks(first, labels, reading), None)
    kinds = dict(cfg.get('label_kinds', None) or {})
    binary = [x for x in labels if kinds.get(x, 'binary') == 'binary']
    if rows and (words := annotations_lib.describe_words(rows, binary)):
      log(f'{first}: {words}')
  sources = {
    split: prepare_lib.RowSource(
      lambda wanted, paths=paths: formats.read_files(paths, wanted, reading),
      tuple(paths),
      ', '.join(map(str, paths)),
    )
    for split, paths in files.items()
  }
  return _prepared_from(cfg, cache_dir, log, sources, schema, reading, names)


def _refuse_commas(schema: schema_lib.Schema) -> None:
  """Refuses lists between commas where a comma may be a decimal point."""
  for column in schema.lists:
    if column.separator == ',':
      raise ValueError(
        f"data.decimal is ',', and so is the separator of feature "
        f'{column.name!r}; the files need another mark for one of the two'
      )


def _own_files(cfg, cache_dir, log) -> RankingDataset:
  return _from_files(cfg, cache_dir, log)


_FRAPPE = (
  'user item daytime weekday isweekend homework cost weather country city'
).split()


def _load_frappe(cfg, cache_dir, log) -> RankingDataset:
  known = {
    split: (f'{split}.csv', f'Frappe_x1_{split}.csv')
    for split in store_lib.SPLITS
  }
  defaults = {name: {'kind': 'categorical'} for name in _FRAPPE}
  return _from_files(cfg, cache_dir, log, known, defaults)


def _load_criteo(cfg, cache_dir, log) -> RankingDataset:
  known = {'train': ('train.txt', 'train.txt.gz')}
  return _from_files(cfg, cache_dir, log, known, criteo.FEATURES)


def _read_options(cfg, section: str, options_class: type) -> dict:
  """The options of a generated log that `data.SECTION` sets."""
  options = dict(cfg.get(section, None) or {})
  known = [field.name for field in dataclasses.fields(options_class)]
  for key in options:
    if key not in known:
      raise ValueError(
        f'data.{section}.{key} is not an option' + hint_nearest(key, known)
      )
  return options


def _load_clicks(cfg, cache_dir, log) -> RankingDataset:
  options = _read_options(cfg, 'clicks', clicks.ClickLog)
  if 'orders' in options:
    options['orders'] = tuple(options['orders'])
  generated = clicks.ClickLog(**options)
  schema = schema_lib.build_schema(
    cfg, generated.names, generated.options, 'generated clicks'
  )
  source = prepare_lib.RowSource(
    lambda wanted: clicks.read_chunks(generated, wanted),
    name='generated clicks',
  )
  reading = {'format': 'clicks', **dataclasses.asdict(generated)}
  # Without what came later the recipe is that of before: so are the rows.
  if not generated.blocks:
    del reading['blocks'], reading['within']
  if not generated.silent:
    del reading['silent']
  return _prepared_from(
    cfg, cache_dir, log, {'train': source}, schema, reading, generated.names
  )


def _refuse_truth(schema: schema_lib.Schema, name: str) -> None:
  """Refuses features of what generated rows know and no real ones do."""
  for column in schema.columns:
    if _TRUTH in column.sources:
      raise ValueError(
        f'data.features.{column.name} reads the column {_TRUTH!r} of '
        f'data.name={name}, the true probability that the label was drawn '
        'with: a model that sees it learns nothing else; leave the feature '
        f'out (as data.extras.{_TRUTH}=float it is beside the features, for a '
        'task that compares with it)'
      )


def _load_drift(cfg, cache_dir, log) -> RankingDataset:
  generated = drift.DriftLog(**_read_options(cfg, 'drift', drift.DriftLog))
  schema = schema_lib.build_schema(
    cfg, generated.names, generated.options, 'generated stream'
  )
  _refuse_truth(schema, 'drift')
  source = prepare_lib.RowSource(
    lambda wanted: drift.read_chunks(generated, wanted),
    name='generated stream',
  )
  reading = {'format': 'drift', **dataclasses.asdict(generated)}
  return _prepared_from(
    cfg, cache_dir, log, {'train': source}, schema, reading, generated.names
  )


def _refuse_split(cfg) -> None:
  """Refuses a rule for splits where the data set has its own."""
  name, split = cfg['name'], dict(cfg.get('split', None) or {})
  by, column = split.get('by', 'order'), split.get('column', '')
  if by != 'order' or column:
    raise ValueError(
      f'data.split.by={by!r}, data.split.column={column!r}: {name} has splits '
      f'of its own, see the keys of data.{name}; leave both as they are'
    )


def _load_ratings(cfg, cache_dir, log) -> RankingDataset:
  _refuse_split(cfg)
  name, options_class = cfg['name'], movielens_ratings.MovielensRatingOptions
  options = options_class(**_read_options(cfg, name, options_class))
  path = _need_path(cfg)
  names, features = movielens_ratings.NAMES, movielens_ratings.FEATURES
  return _prepared_from(
    {**cfg, 'split': {}},
    cache_dir,
    log,
    movielens_ratings.make_sources(path, options, log),
    schema_lib.build_schema(cfg, names, features, str(path)),
    {'format': name, **dataclasses.asdict(options)},
    names,
  )


def _load_behaviours(cfg, cache_dir, log) -> RankingDataset:
  _refuse_split(cfg)
  name = cfg['name']
  options_class = behaviour_sets.OPTIONS[name]
  options = options_class(**_read_options(cfg, name, options_class))
  path = None if name == 'interests' else _need_path(cfg)
  cache_dir = pathlib.Path(cache_dir)
  with behaviour_sets.open_set(name, options, path, cache_dir, log) as found:
    schema = schema_lib.build_schema(
      cfg, found.names, found.features, found.origin
    )
    _refuse_truth(schema, name)
    dataset = _prepared_from(
      {**cfg, 'split': {}}, cache_dir, log, found.sources, schema,
      found.reading, found.names,
    )  # fmt: skip
  return dataclasses.replace(
    dataset, split_column='user' if found.apart else ''
  )


def _load_prepared(cfg, cache_dir, log) -> RankingDataset:
  dataset = RankingDataset(
    cfg['name'], store_lib.PreparedStore(_need_path(cfg))
  )
  for key, usual in (('weight', ''), ('negatives_kept', 1.0)):
    wanted, there = cfg.get(key, usual), getattr(dataset.annotations, key)
    if wanted not in (usual, there):
      raise ValueError(
        f'data.{key} is {wanted!r}, and {cfg["path"]} was prepared with '
        f'{there!r}; remove the key, or prepare the data again from its files'
      )
  return dataset


DATASETS = {
  'clicks': _load_clicks,
  'drift': _load_drift,
  'interests': _load_behaviours,
  'movielens_clicks': _load_behaviours,
  'movielens_ratings': _load_ratings,
  'taobao': _load_behaviours,
  'criteo': _load_criteo,
  'frappe': _load_frappe,
  'libsvm': _own_files,
  'csv': _own_files,
  'parquet': _own_files,
  'prepared': _load_prepared,
}


def load(
  cfg,
  cache_dir: str | pathlib.Path,
  log: Callable[[str], None] = print,
) -> RankingDataset:
  """Loads the data set that `config.data` names, preparing it if need be.

  Args:
    cfg: mapping with `name` (a key of `DATASETS`), `path` and the options that
      docs/ranking_data.md lists.
    cache_dir: where prepared blocks are kept.
    log: called with progress messages.

  Returns:
    The data set; its rows stay on disk until they are asked for.
  """
  if cfg['name'] not in DATASETS:
    raise ValueError(
      f'data.name must be one of {", ".join(DATASETS)}, not {cfg["name"]!r}'
      + hint_nearest(str(cfg['name']), DATASETS)
    )
  dataset = DATASETS[cfg['name']](cfg, cache_dir, log)
  split = cfg.get('split', None) or {}
  if split.get('by', '') != 'group':
    return dataset
  column = split.get('column', '') or cfg.get('group', '')
  return dataclasses.replace(dataset, split_column=column)
