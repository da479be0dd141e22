"""What of a libsvm file becomes which feature, where `config.data` is silent.

The first rows decide, and the log says how. What they could not know, an index
or a value of a later row that does not fit, is an error or a warning of the
reader, see libsvm.py.
"""

import pathlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

from genrec_jax.config.loading import hint_nearest
from genrec_jax.data.quoting import list_names, quote
from genrec_jax.data.ranking import libsvm

PAIRS = ('by_index', 'by_place')
MOST_NUMBERS = 512  # numeric features that are made without being asked for
DENSE = 0.75  # share of the rows that have an index, in the mean over them
_SETS = {'kind': 'multi_hot', 'weights': 'values'}


class Layout(NamedTuple):
  """What the pairs of a file are.

  Attributes:
    name: 'fields' (each pair is a field), 'numbers' (each index is a number) or
      'sets' (each row is a weighted set of indices).
    features: feature -> options.
    reason: for the log.
  """

  name: str
  features: dict[str, dict]
  reason: str


def decide_features(rows: libsvm.PairRows) -> Layout:
  """The layout of a file with these first rows."""
  size, indices = int(rows.counts[0]), set(rows.indices)
  if size and (rows.counts == size).all():
    of_places = [set(rows.indices[i::size]) for i in range(size)]
    says = [libsvm.count_others(rows.values[i::size]) > 0 for i in range(size)]
    varies = [len(of_place) > 1 for of_place in of_places]
    are_own = sum(map(len, of_places)) == len(indices)
    are_clear = not any(a and b for a, b in zip(says, varies, strict=True))
    # Where no index varies, the rows may as well be vectors of numbers.
    if are_own and are_clear and (any(varies) or not any(says)):
      return Layout(
        'fields',
        dict(map(_make_field, range(size), says)),
        f'every row has {size} pairs, and every place indices of its own',
      )
  share = len(rows.indices) / (len(rows.counts) * max(1, len(indices)))
  if (
    libsvm.count_others(rows.values)
    and len(indices) <= MOST_NUMBERS
    and share >= DENSE
    and all(index.isdecimal() for index in indices)
  ):
    return Layout(
      'numbers',
      {f'x{i}': {'kind': 'numeric'} for i in sorted(indices, key=int)},
      f'a row has {share:.0%} of the {len(indices):,} indices in the mean; an '
      'index that a row does not have is 0',
    )
  return Layout(
    'sets',
    {'indices': _SETS},
    f'there are {len(indices):,} indices, and a row has {share:.2%} of them in '
    'the mean: each row is a set of indices with their values as weights',
  )


def _make_field(place: int, has_values: bool) -> tuple[str, dict]:
  if has_values:
    return f'v{place}', {'kind': 'numeric'}
  return f'f{place}', {'kind': 'categorical'}


def settle_options(
  cfg: Mapping,
  path: pathlib.Path,
  reading: Mapping,
  log: Callable[[str], None],
) -> tuple[Mapping, Mapping]:
  """Fills in what `config.data` does not say of a file.

  Args:
    cfg: `config.data`.
    path: the first training file.
    reading: format and options.
    log: called with what was decided.

  Returns:
    The same with features, and with `qid` as the group where there are query
    ids; and what readers of such files must know.

  Raises:
    ValueError: labels of more than two values, or an unknown `data.pairs`.
  """
  pairs = cfg.get('pairs', PAIRS[0])
  if pairs not in PAIRS:
    raise ValueError(
      f'data.pairs is {pairs!r}, must be one of {", ".join(PAIRS)}'
      + hint_nearest(str(pairs), PAIRS)
    )
  if pairs == 'by_place':
    return cfg, reading
  cfg, reading = {**cfg}, {**reading, 'pairs': pairs}
  kinds = cfg.get('label_kinds', None) or {}
  if kinds.get('label', 'binary') != 'binary':
    reading['labels'] = 'as_is'
  rows = libsvm.read_first(path, reading)
  count = f'the first {len(rows.counts):,} rows of {path}'
  if 'labels' not in reading:
    _check_labels(rows)
  if any(rows.queries) and not cfg.get('group', ''):
    cfg['group'] = 'qid'
    log(f'data.group is not set; {count} have query ids (qid), the groups')
  if features := cfg.get('features', None):
    cfg['features'] = {n: _complete_options(n, o) for n, o in features.items()}
  else:
    layout = decide_features(rows)
    cfg['features'], reading['decided'] = layout.features, layout.name
    options = next(iter(layout.features.values()))
    log(
      f'data.features is not set; in {count}, {layout.reason}. The features '
      f'are {list_names(list(layout.features))}'
      + (' (multi_hot, weights=values)' if options is _SETS else '')
    )
  sources = [
    options.get('column', '') or name
    for name, options in cfg['features'].items()
  ]
  if any(libsvm.BY_PLACE.fullmatch(source) for source in sources):
    reading['places'] = rows.indices[: rows.counts[0]]
  wanted = [s[1:] for s in sources if libsvm.BY_INDEX.fullmatch(s)]
  if rare := [index for index in wanted if index not in set(rows.indices)]:
    reading['rare'] = rare
    libsvm.warn(f'{count} do not have index {list_names(rare)}: it is 0 there')
  return cfg, reading


def _complete_options(name: str, options: Mapping | str) -> dict:
  """Options of a feature; a set of indices has the values as weights."""
  options = {'kind': options} if isinstance(options, str) else {**options}
  is_set = options.get('kind') in ('multi_hot', 'sequence')
  if is_set and (options.get('column', '') or name) == 'indices':
    return {'weights': 'values'} | options
  return options


def _check_labels(rows: libsvm.PairRows) -> None:
  for i, label in enumerate(rows.labels):
    try:
      is_grade = float(label) not in (0, 1)
    except ValueError:  # refused where labels are read
      is_grade = False
    if is_grade:
      raise ValueError(
        f'{rows.where(i)}: the label is {quote(label)}; labels are 0 and 1, or '
        '-1 and 1. If these are grades of relevance or classes, write 1 for '
        'those to be predicted and 0 for the others; '
        'data.label_kinds.label=float is for tasks that read any number'
      )
