"""Data sets whose examples have what a user did before, with their own splits.

| data set           | made of                 | a split is                 |
|--------------------|-------------------------|----------------------------|
| `interests`        | draws                   | users, or a span of time   |
| `movielens_clicks` | an edition of MovieLens | users                      |
| `taobao`           | UserBehavior.csv        | users, see taobao.py       |
"""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from genrec_jax.data.ranking import (
  behaviour_rows,
  interests,
  movielens_clicks,
  movielens_files,
  popularity,
  prepare,
  taobao,
)

OPTIONS = {
  'interests': interests.InterestLog,
  'movielens_clicks': movielens_clicks.MovielensClickOptions,
  'taobao': taobao.TaobaoOptions,
}
# Options that change how rows are made, and not which ones.
_HARMLESS = ('memory_mb',)


@dataclasses.dataclass(frozen=True)
class BehaviourSet:
  """What a data set is prepared of.

  Attributes:
    origin: of its rows, for messages.
    names: of its columns.
    features: their options, as `data.features` has them.
    sources: split -> its rows.
    reading: the options that say which rows these are.
    apart: whether each user is in one split.
  """

  origin: str
  names: Sequence[str]
  features: Mapping[str, dict]
  sources: dict[str, prepare.RowSource]
  reading: dict
  apart: bool


@contextlib.contextmanager
def open_set(
  name: str,
  options: object,
  path: pathlib.Path | None,
  cache_dir: pathlib.Path,
  log: Callable[[str], None],
) -> Iterator[BehaviourSet]:
  """Opens a data set; what it needs for that is gone when the block ends.

  Args:
    name: a key of `OPTIONS`.
    options: of the class that is there.
    path: of the files, None where there are none.
    cache_dir: where a scratch directory may be made.
    log: called with progress messages.
  """
  with _OPEN[name](options, path, cache_dir, log) as found:
    fields = dataclasses.asdict(options)
    kept = {k: v for k, v in fields.items() if k not in _HARMLESS}
    yield dataclasses.replace(found, reading={'format': name, **kept})


@contextlib.contextmanager
def _open_interests(log_options, path, cache_dir, log):
  def read(split, names):
    return interests.read_chunks(log_options, names, split)

  yield _make_set(
    'generated interests',
    log_options.names,
    log_options.history,
    log_options.splits,
    read,
    apart=log_options.split == 'users',
  )


@contextlib.contextmanager
def _open_movielens(options, path, cache_dir, log):
  @functools.cache  # a directory that is prepared already needs no files
  def open_clicks():
    clicks = movielens_clicks.MovielensClicks(path, options)
    lines = popularity.describe_splits(
      options.splits, lambda split, names: clicks.read_chunks(names, split)
    )
    for line in lines:
      log(f'movielens_clicks, {line}')
    return clicks

  yield _make_set(
    str(path),
    behaviour_rows.NAMES,
    options.history,
    options.splits,
    lambda split, names: open_clicks().read_chunks(names, split),
    movielens_files.find_files(path),
  )


@contextlib.contextmanager
def _open_taobao(options, path, cache_dir, log):
  path = taobao.find_file(path)
  with taobao.TaobaoClicks(path, options, cache_dir, log) as clicks:
    yield _make_set(
      str(path),
      taobao.NAMES,
      options.history,
      ('train', 'valid', 'test'),
      lambda split, names: clicks.read_chunks(names, split),
      (path,),
    )


_OPEN = {
  'interests': _open_interests,
  'movielens_clicks': _open_movielens,
  'taobao': _open_taobao,
}


def _make_set(
  origin, names, history, splits, read, files=(), apart=True
) -> BehaviourSet:
  sources = {
    split: prepare.RowSource(
      functools.partial(read, split),
      tuple(files),
      f'{origin}, {split} split',
      repeats=True,  # histories end before the impression, and items come back
    )
    for split in splits
  }
  features = behaviour_rows.choose_features(history)
  return BehaviourSet(origin, names, features, sources, {}, apart)
