"""Examples in memory -> chunks of raw rows, as the readers of files make them.

Features by the types of the columns, unless they are named: floats are numeric,
text and whole numbers categorical, lists multi_hot.
"""

import hashlib
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from genrec_jax.config.loading import hint_nearest
from genrec_jax.data import text_arrays
from genrec_jax.data.quoting import escape, list_names
from genrec_jax.data.ranking import (
  annotations,
  prepare,
  raw,
  schema,
  split_rules,
)
from genrec_jax.library import columns as columns_lib
from genrec_jax.library.columns import Column

CHUNK_ROWS = 1 << 14
# Kind of a column -> of its feature.
_KINDS = {'int': 'categorical', 'text': 'categorical', 'float': 'numeric'}

Features = Mapping[str, Any] | Sequence[str] | None


def choose_features(
  by_type: Mapping[str, dict | None], features: Features, beside: Sequence[str]
) -> dict[str, dict]:
  """Feature -> options, as `config.data.features` takes them.

  >>> by_type = {'age': {'kind': 'numeric'}, 'shop': {'kind': 'categorical'}}
  >>> choose_features(by_type, {'age': 'categorical', 'shop': None}, ())
  {'age': {'kind': 'categorical'}}

  Args:
    by_type: column -> what its type suggests; None for nothing.
    features: names to choose from those; or name -> kind or options of those
      that shall be otherwise, None for what is left out; or None.
    beside: columns that are something else, such as labels.

  Raises:
    ValueError: a name that is not a column, or a column whose kind must be
      given.
  """
  suggestions = {n: x for n, x in by_type.items() if n not in beside}
  overrides: dict[str, Any] = {}
  if isinstance(features, str):
    features = [features]
  if isinstance(features, Mapping):
    overrides = dict(features)
  elif features is not None:
    suggestions = {n: x for n, x in suggestions.items() if n in features}
    overrides = {
      n: by_type.get(n) or {} for n in features if n not in suggestions
    }
  for name, options in overrides.items():
    source = options['column'] if _has_source(options) else name
    if source not in by_type:
      raise ValueError(
        f'features names {name!r}, and there is no such column; the columns '
        f'are {list_names(list(by_type))}{hint_nearest(name, by_type)}'
      )
  result = {}
  for name, options in {**suggestions, **overrides}.items():
    if name in overrides:
      if options is None:
        continue
      if isinstance(options, str):
        options = {'kind': options}
      options = {**(by_type.get(name) or {}), **options}
    elif options is None:
      raise ValueError(
        f'column {name!r} holds dates, or a type of which no feature is '
        f'made; convert it, or leave it out with features={{{name!r}: None}}'
      )
    result[name] = options
  if not result:
    raise ValueError('no column is left to be a feature')
  return result


def _is_left_out(name: str, features: Features) -> bool:
  """Whether a column is not looked at; it may then hold anything."""
  if isinstance(features, Mapping):
    sources = {x['column'] for x in features.values() if _has_source(x)}
    return features.get(name, '') is None and name not in sources
  return features is not None and name not in features and name != features


def _has_source(options) -> bool:
  return isinstance(options, Mapping) and 'column' in options


def suggest_features(columns: Mapping[str, Column]) -> dict[str, dict | None]:
  """Column -> the feature that its type suggests; None for dates."""
  suggestions = {}
  for name, column in columns.items():
    if column.lengths is not None:
      suggestions[name] = {'kind': 'multi_hot'}
    elif column.kind in _KINDS:
      suggestions[name] = {'kind': _KINDS[column.kind]}
    else:
      suggestions[name] = None
  return suggestions


def write_examples(
  columns: Mapping[str, np.ndarray],
  cfg,
  features: Features,
  directory: pathlib.Path,
  log: Callable[[str], None],
) -> pathlib.Path:
  """Prepares the examples once; the same are found there later.

  Args:
    columns: from `columns.read_columns`.
    cfg: `config.data`, with labels, split and the other options.
    features: as in `choose_features`.
    directory: of the run's data.
    log: called with progress messages.

  Returns:
    A directory that `config.data.name='prepared'` reads.
  """
  labels = schema.label_names(cfg)
  for label in labels:
    hint = "Say what it is called, as in label='click'"
    _check_label(
      label,
      columns_lib.find_column(columns, label, 'the label', 'examples', hint),
      cfg,
    )
  beside = [
    *labels,
    *annotations.build_annotations(cfg, labels).columns.values(),
  ]
  typed = {
    name: columns_lib.parse_column(name, values)
    for name, values in columns.items()
    if name in (*beside, cfg.group, cfg.split.column)
    or not _is_left_out(name, features)
  }
  by_type = dict.fromkeys(columns) | suggest_features(typed)
  options = choose_features(by_type, features, beside)
  layout = schema.build_schema(
    {**cfg, 'features': options}, list(columns), {}, 'examples'
  )
  log(
    'the types of the columns and features= give '
    + escape(', '.join(f'{c.name} ({c.kind})' for c in layout.columns))
  )
  split_rule = split_rules.build_rule(cfg, list(columns))
  beside = [split_rule.column] if split_rule and split_rule.column else []
  chunks = Chunks(typed, layout, beside)
  of_rule = split_rule or split_rules.SplitRule(
    cfg.split.by, seed=cfg.split.seed
  )
  identity = [layout.to_json(), of_rule.to_json(), cfg.block_rows]
  digest = hashlib.sha256(json.dumps(identity).encode())
  for name in dict.fromkeys([*layout.everything, *beside]):
    _add_to_digest(digest, name, typed[name])
  fingerprint = digest.hexdigest()[:16]
  out = directory / f'examples-{fingerprint}'
  prepare.prepare_store(
    {'train': prepare.RowSource(chunks, name='the examples')},
    layout,
    out,
    split_rule=split_rule,
    block_rows=cfg.block_rows,
    fingerprint=fingerprint,
    log=log,
  )
  return out


def _check_label(name: str, column: Column, cfg) -> None:
  """Refuses what `annotations.read_labels` would, in words of a DataFrame."""
  if column.lengths is not None or column.kind == 'time':
    raise ValueError(f'the label {name!r} must hold numbers, 0 or 1')
  if column.present is not None:
    raise ValueError(
      f'column {name!r}, row {int(np.argmin(column.present))}: the label is '
      'missing; leave such rows out'
    )
  kind = cfg.label_kinds.get(name, 'binary')
  if kind != 'binary' or column.kind == 'text':
    return  # which the reader checks
  good = (column.values == 0) | (column.values == 1)
  if not good.all():
    row = int(np.argmin(good))
    raise ValueError(
      f'column {name!r}, row {row}: {column.values[row]} is not a label; '
      'labels are 0 and 1'
    )


def _add_to_digest(digest, name: str, column: Column) -> None:
  for array in (column.values, column.present, column.lengths):
    if array is not None:
      digest.update(f'{name} {array.dtype} {array.shape}'.encode())
      if array.dtype.kind == 'M':  # of which no buffer can be had
        array = array.view(np.int64)
      for content in text_arrays.view_content(array):
        digest.update(content.data)


class Chunks:
  """The rows of columns, in chunks; a `prepare.RowSource` calls it by names."""

  def __init__(
    self,
    columns: Mapping[str, Column],
    layout: schema.Schema,
    beside: Sequence[str] = (),
  ):
    """Turns columns into what the encoder reads.

    Args:
      columns: parsed.
      layout: what becomes of them.
      beside: names of further columns to keep, such as that of a split rule.
    """
    whole = {c.source for c in layout.columns if c.kind != 'numeric'}
    whole -= {c.source for c in layout.columns if c.kind == 'numeric'}
    whole |= set(layout.labels)
    self._columns = {
      name: _to_raw(column, whole=name in whole)
      for name, column in columns.items()
      if name in layout.everything or name in beside
    }
    for column in layout.pooled:
      values = columns[column.source]
      raw_column = self._columns[column.source]
      if values.lengths is not None and raw_column.has_fractions:
        raise ValueError(
          f'column {column.source!r} holds lists of fractions; the values of a '
          f'{column.kind} feature are text or whole numbers'
        )
    self._rows = len(next(iter(columns.values())))

  def __call__(self, names: Sequence[str]) -> Iterator[raw.RawChunk]:
    """Chunks with the columns `names`."""
    for first in range(0, self._rows, CHUNK_ROWS):
      end = min(first + CHUNK_ROWS, self._rows)
      yield raw.RawChunk(
        {name: self._columns[name].cut(first, end) for name in names},
        end - first,
        lambda i, first=first: f'row {first + i}',
      )


class _Plain:
  """Texts or numbers, one a row."""

  def __init__(self, values: Sequence[str] | raw.NumberColumn):
    self._values = values

  @property
  def has_fractions(self) -> bool:
    numbers = isinstance(self._values, raw.NumberColumn)
    return numbers and self._values.values.dtype.kind == 'f'

  def cut(self, first: int, end: int) -> raw.Column:
    if not isinstance(self._values, raw.NumberColumn):
      return self._values[first:end]
    values, present = self._values.values, self._values.present
    return raw.NumberColumn(
      values[first:end], None if present is None else present[first:end]
    )


class _Lists:
  """Lists of those."""

  def __init__(self, values: _Plain, lengths: np.ndarray):
    self._values, self._lengths = values, lengths
    self.has_fractions = values.has_fractions
    self._starts = np.concatenate([[0], np.cumsum(lengths)])

  def cut(self, first: int, end: int) -> raw.ListColumn:
    at = int(self._starts[first]), int(self._starts[end])
    return raw.ListColumn(self._values.cut(*at), self._lengths[first:end])


def _to_raw(column: Column, whole: bool) -> _Plain | _Lists:
  """A column as the encoder takes it.

  Args:
    column: parsed.
    whole: whether floats that are whole numbers are meant as such, as where a
      DataFrame holds whole numbers beside missing ones.
  """
  values, present = column.values, column.present
  if column.lengths is not None:
    inner = _to_raw(Column(values), whole=True)
    return _Lists(inner, column.lengths)
  if present is not None and not present.any():
    return _Plain([''] * len(values))  # of any type: nothing is there
  if column.kind == 'text':
    return _Plain(values.tolist())
  if column.kind == 'time':
    moments = values.astype('datetime64[us]').astype(np.int64)
    seconds = moments // 10**6
    if (moments != seconds * 10**6).any():
      seconds = moments / 10**6  # a split by time minds fractions
    return _Plain(raw.NumberColumn(seconds, present))
  if present is not None:
    values = np.where(present, values, values.dtype.type(0))
  if whole and column.kind == 'float':
    rounded = np.trunc(values)
    if np.all(rounded == values) and np.all(np.abs(values) < 2.0**53):
      values = rounded.astype(np.int64)
  return _Plain(raw.NumberColumn(values, present))
