"""Columns of the examples that go into a file of scores, beside the scores."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from genrec_jax.config.loading import hint_nearest
from genrec_jax.data.quoting import list_names
from genrec_jax.data.ranking import forms, raw

AUTO = 'auto'
_THINGS = (
  'account|ad|article|book|customer|doc|document|event|example|impression|item|'
  'movie|order|page|product|query|request|session|shop|song|store|track|user|'
  'video|visitor'
)
_ID = re.compile(
  rf'(?i:(.*[\W_])?(id|uid|uuid|guid|sku)|({_THINGS})(id)?)|.*[a-z0-9]I[dD]'
)


def is_id(name: str) -> bool:
  """Whether a column is called as ids are.

  >>> [is_id(x) for x in ('user', 'itemid', 'ad_id', 'productId', 'bid')]
  [True, True, True, True, False]
  """
  return bool(_ID.fullmatch(name))


class KeptColumns:
  """Holds the columns of rows until their scores are there."""

  def __init__(self, asked: Sequence[str], data: Mapping, reserved: set[str]):
    """Of `config.predict.keep`.

    Args:
      asked: names of columns; AUTO stands for those that say which row it is.
      data: `config.data`.
      reserved: names of the other columns of the file.
    """
    self._asked, self._data, self._reserved = asked, data, reserved
    self.names: list[str] = []
    self._waiting: dict[str, list] = {}
    self._held = 0  # rows

  def choose(
    self, columns: Sequence[str], by_type: Mapping[str, dict | None]
  ) -> list[str]:
    """Those of a file's columns that are kept, which are `names` from now on.

    Args:
      columns: of the file.
      by_type: column -> the feature that its type suggests.

    Raises:
      ValueError: a column is asked for that cannot be had.
    """
    named = [name for name in self._asked if name != AUTO]
    for name in named:
      if name not in columns:
        there = f'the columns are {list_names(columns)}'
        raise ValueError(
          f'predict.keep: no column {name!r}; '
          f'{there if columns else "these prepared data have none as it was"}'
          f'{hint_nearest(name, columns)}'
        )
      if name in self._reserved:
        raise ValueError(
          f'predict.keep: the predictions have a column {name!r} of their own; '
          'leave it out, or rename it in predict.input'
        )
    kept = set(named)
    if AUTO in self._asked:
      ours = (self._data.get(key) for key in ('group', 'time', 'example_id'))
      kept |= {*ours} | {
        name
        for name, options in by_type.items()
        if is_id(name) and (options or {}).get('kind') == 'categorical'
      }
      kept -= self._reserved - {*named}
    self.names = [name for name in columns if name in kept]
    return self.names

  def watch(self, chunks: Iterable[raw.RawChunk]) -> Iterator[raw.RawChunk]:
    """The same chunks, whose columns are held."""
    for chunk in chunks:
      for name in self.names:
        values = take_values(chunk, name)
        self._waiting.setdefault(name, []).append(values)
      self._held += len(chunk)
      yield chunk

  def hold(self, chunks: Iterator[raw.RawChunk], count: int) -> None:
    """Reads on, until the columns of so many rows are held.

    Args:
      chunks: of `watch`.
      count: of rows; more may be held already.

    Raises:
      ValueError: there are fewer rows.
    """
    while self.names and self._held < count:
      if next(chunks, None) is None:
        raise ValueError(
          'the files of the data have fewer rows than were prepared of them; '
          'set --config.predict.keep=() to have rows and scores alone'
        )

  def take(self, count: int) -> dict[str, list | np.ndarray]:
    """Column -> the first values that are held, which are forgotten."""
    taken = {}
    self._held -= count
    for name, pieces in self._waiting.items():
      held = pieces[0]
      if len(pieces) > 1:
        held = join_values(pieces)
      taken[name], self._waiting[name] = held[:count], [held[count:]]
    return taken


def take_values(
  chunk: raw.RawChunk, name: str
) -> list[str] | np.ma.MaskedArray:
  """A column as files of predictions hold it: texts or numbers."""
  column = chunk.columns[name]
  if isinstance(column, raw.ListColumn):
    raise ValueError(
      f'{chunk.where(0)}, column {name!r}: holds lists, which predictions do '
      'not carry; leave it out of predict.keep'
    )
  if not isinstance(column, raw.NumberColumn):
    return list(column)
  if column.are_dates:
    return _format_dates(column)
  values, present = column.values, column.present
  if values.dtype.kind == 'f':  # with as few digits as they have
    values = values.astype(str).astype(np.float64)
  return np.ma.MaskedArray(values, None if present is None else ~present)


def join_values(pieces: Sequence) -> list[str] | np.ma.MaskedArray:
  """Some values of `take_values`, which files may hold in different types."""
  kinds = {'' if isinstance(x, list) else x.dtype.kind for x in pieces}
  if len(kinds) == 1:
    is_text = '' in kinds
    return sum(pieces, []) if is_text else np.ma.concatenate(pieces)
  # Numbers as texts, as CSV has them: floats would round large whole ones.
  return sum(map(_list_texts, pieces), [])


def _list_texts(piece: list[str] | np.ma.MaskedArray) -> list[str]:
  if isinstance(piece, list):
    return piece
  texts, places, _ = forms.find_distinct(piece.data, ~np.ma.getmaskarray(piece))
  return [texts[place] for place in places.tolist()]


def _format_dates(column: raw.NumberColumn) -> list[str]:
  """ISO dates in UTC, '' where there is none."""
  texts = np.datetime_as_string(column.values.astype('datetime64[s]')).tolist()
  if column.fraction is not None:
    texts = [
      f'{text}.{fraction:09d}'.rstrip('0') if fraction else text
      for text, fraction in zip(texts, column.fraction.tolist(), strict=True)
    ]
  if column.present is None:
    return texts
  return np.where(column.present, texts, '').tolist()
