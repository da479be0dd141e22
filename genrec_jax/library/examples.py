"""Examples in memory -> chunks of raw rows, as the readers of files make them.

Features by the columns, unless they are named: numbers with fractions are
numeric, text and whole numbers categorical, lists multi_hot, and a column that
numbers the rows is left out.
"""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from genrec_jax.config.loading import hint_nearest
from genrec_jax.data import fields, text_arrays
from genrec_jax.data.quoting import escape, list_names
from genrec_jax.data.ranking import (
  annotations,
  feature_guesses,
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
  by_type: Mapping[str, dict | None],
  features: Features,
  beside: Sequence[str],
  left_out: Collection[str] = (),
) -> dict[str, dict]:
  """Feature -> options, as `config.data.features` takes them.

  >>> by_type = {'age': {'kind': 'numeric'}, 'shop': {'kind': 'categorical'}}
  >>> choose_features(by_type, {'age': 'categorical', 'shop': None}, ())
  {'age': {'kind': 'categorical'}}

  Args:
    by_type: column -> what it suggests; None for nothing.
    features: names to choose from those; or name -> kind or options of those
      that shall be otherwise, None for what is left out; or None.
    beside: columns that are something else, such as labels.
    left_out: columns that are features only if they are named.

  Raises:
    ValueError: a name that is not a column, or a column whose kind must be
      given.
  """
  suggestions = {
    n: x for n, x in by_type.items() if n not in beside and n not in left_out
  }
  overrides: dict[str, Any] = {}
  if isinstance(features, str):
    features = [features]
  if isinstance(features, Mapping):
    overrides = dict(features)
    weights = _list_sources(features, 'weights')
    suggestions = {n: x for n, x in suggestions.items() if n not in weights}
  elif features is not None:
    suggestions = {n: x for n, x in suggestions.items() if n in features}
    overrides = {
      n: by_type.get(n) or {} for n in features if n not in suggestions
    }
  for name, options in overrides.items():
    source = next(iter(_list_sources({name: options}, 'column')), name)
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
    sources = _list_sources(features, 'column', 'weights')
    return features.get(name, '') is None and name not in sources
  return features is not None and name not in features and name != features


def _list_sources(features: Mapping[str, Any], *keys: str) -> set[str]:
  """The columns that options of features name by these keys."""
  some = [x for x in features.values() if isinstance(x, Mapping)]
  return {x[key] for x in some for key in keys if key in x}


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


def guess_features(
  columns: Mapping[str, Column], beside: Sequence[str], labels: Sequence[str]
) -> dict[str, feature_guesses.Guess]:
  """What each column seems to be, by its type and its first values."""
  by_type = {
    n: x for n, x in suggest_features(columns).items() if n not in beside
  }
  wanted = [*labels, *(name for name, x in by_type.items() if x)]
  first = {
    name: _to_raw(columns[name]).cut(
      0, min(feature_guesses.ROWS, len(columns[name]))
    )
    for name in wanted
  }
  rows = len(next(iter(first.values())))
  chunk = raw.RawChunk(first, rows)
  return feature_guesses.guess_features([chunk], by_type, labels)


def choose_guesses(
  guesses: Mapping[str, feature_guesses.Guess],
  by_type: Mapping[str, dict | None],
  features: Features,
  beside: Sequence[str],
  where: object,
  log: Callable[[str], None],
) -> dict[str, dict]:
  """Feature -> options: what is named, and guesses, which the log shows.

  Args:
    guesses: column -> what it seems to be.
    by_type: column -> what its type suggests; None for nothing.
    features: as in `choose_features`.
    beside: as there.
    where: the file or the like, for messages.
    log: called with messages.
  """
  guesses = {
    name: guess
    for name, guess in guesses.items()
    if by_type[name] and _decides(guess, name, features)
  }
  if guesses:
    log(
      f'the first rows of {where} give\n'
      + feature_guesses.describe_guesses(guesses)
    )
    feature_guesses.warn_of(guesses, where)
  left_out = [name for name, guess in guesses.items() if not guess.options]
  options = {name: x.options for name, x in guesses.items() if x.options}
  return choose_features({**by_type, **options}, features, beside, left_out)


def _decides(guess, name: str, features: Features) -> bool:
  """Whether a guess counts: nobody has said what the column is."""
  if features is None or _is_left_out(name, features):
    return features is None
  if not isinstance(features, Mapping):
    return guess.options is not None
  options = features.get(name, {})
  is_named = name in features and guess.options is None
  return isinstance(options, Mapping) and 'kind' not in options and not is_named


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
  guesses = guess_features(typed, beside, labels)
  options = choose_guesses(
    guesses, by_type, features, beside, 'the examples', log
  )
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
    self._columns = {
      name: _to_raw(column)
      for name, column in columns.items()
      if name in layout.everything or name in beside
    }
    self._rows = len(next(iter(columns.values())))

  def __call__(self, names: Sequence[str]) -> Iterator[raw.RawChunk]:
    """Chunks with the columns `names`."""
    for first in range(0, self._rows, CHUNK_ROWS):
      end = min(first + CHUNK_ROWS, self._rows)
      yield raw.RawChunk(
        {name: self._columns[name].cut(first, end) for name in names},
        end - first,
        lambda i, first=first: f'row {first + i}',
        'give None or NaN if it is missing',
      )


class _Plain:
  """Texts or numbers, one a row."""

  def __init__(self, values: Sequence[str] | raw.NumberColumn):
    self._values = values

  def cut(self, first: int, end: int) -> raw.Column:
    if not isinstance(self._values, raw.NumberColumn):
      return self._values[first:end]
    return self._values.take(slice(first, end))


class _Lists:
  """Lists of those."""

  def __init__(self, values: _Plain, lengths: np.ndarray):
    self._values, self._lengths = values, lengths
    self._starts = np.concatenate([[0], np.cumsum(lengths)])

  def cut(self, first: int, end: int) -> raw.ListColumn:
    at = int(self._starts[first]), int(self._starts[end])
    return raw.ListColumn(self._values.cut(*at), self._lengths[first:end])


def _to_raw(column: Column) -> _Plain | _Lists:
  """A parsed column as the encoder takes it."""
  values, present = column.values, column.present
  if column.lengths is not None:
    inner = dataclasses.replace(column, lengths=None)
    return _Lists(_to_raw(inner), column.lengths)
  if present is not None and not present.any():
    return _Plain([''] * len(values))  # of any type: nothing is there
  if column.kind == 'text':
    return _Plain(values.tolist())
  if column.kind == 'time':
    times, _ = fields.from_dates(values)
    return _Plain(
      raw.NumberColumn(times.seconds, present, True, times.fraction)
    )
  if column.kind == 'float':  # whose shortest texts are those of their type
    values = values.astype(column.float_type)
  return _Plain(raw.NumberColumn(values, present))
