"""Missing and unseen values by feature, and when they are too many.

What is counted is values: one a row, and the values of lists one by one, an
empty list as one that is missing. The share of unseen values is among those
that are there, so that neither share moves the other. Numbers and hashed
features have no unseen values.
"""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from genrec_jax.data.quoting import escape, quote

KINDS = ('unseen', 'missing')
SHOWN = 5  # features of a kind in a line
# A share is far more than expected when it is so many times the odds, and so
# much more in absolute terms; a model is rarely worse for less.
LEAST_ODDS = 3.0
LEAST_RISE = 0.05
# Nats by which chance is refuted. By Chernoff's bound n independent values show
# a share p, or a larger one, with a probability of at most
# exp(-n * KL(p || expected)): of e^-20 even millions of looks see none.
LEAST_EVIDENCE = 20.0
# Values are not independent: a thousand candidates for one new user are a
# thousand unseen values and one event. So many different ones are no accident.
LEAST_DISTINCT = 10


@dataclasses.dataclass(frozen=True)
class FeatureCounts:
  """Values of one feature in some rows.

  >>> counts = FeatureCounts(values=10, missing=2, unseen=4)
  >>> counts.share('missing'), counts.share('unseen')
  (0.2, 0.5)

  Attributes:
    values: how many there are.
    missing: how many of these are missing.
    unseen: how many of these training did not know; None for a feature that
      has no such values.
    distinct: how many different unseen ones were met, at most `LEAST_DISTINCT`;
      not every value is looked at.
    example: an unseen value with its place, as in "a.csv, line 2, column 'u':
      '7'".
    gap: the first place of a missing value.
    lists: of a column of a history, how many there are, one a row; None for
      other features, and where an earlier version has counted.
    empty: how many of these have no event.
    empty_at: the first place of such a one.
  """

  values: int = 0
  missing: int = 0
  unseen: int | None = None
  distinct: int = 0
  example: str = ''
  gap: str = ''
  lists: int | None = None
  empty: int | None = None
  empty_at: str = ''

  def share(self, kind: str) -> float:
    """The share that `count` is of; 0 where there are no values."""
    count, total = self.count(kind)
    return count / max(1, total)

  def count(self, kind: str) -> tuple[int, int]:
    """How many are 'missing' or 'unseen', and of how many values.

    Or how many lists are 'empty', and of how many.

    Args:
      kind: one of these words.
    """
    if kind == 'empty':
      return self.empty or 0, self.lists or 0
    if kind == 'missing':
      return self.missing, self.values
    return self.unseen or 0, self.values - self.missing

  def to_json(self) -> dict:
    """What says something."""
    return {
      name: value
      for name, value in dataclasses.asdict(self).items()
      if value not in (None, '') and (name != 'distinct' or value)
    }


# Part ('train', 'valid', 'test') -> feature -> its counts.
Parts = Mapping[str, Mapping[str, FeatureCounts]]


def to_json(parts: Parts) -> dict:
  """The counts as JSON holds them."""
  return {
    part: {name: counts.to_json() for name, counts in features.items()}
    for part, features in parts.items()
  }


def from_json(parts: Mapping) -> Parts:
  """The inverse of `to_json`; TypeError where it is none of its results."""
  known = {f.name for f in dataclasses.fields(FeatureCounts)}
  return {
    part: {
      name: FeatureCounts(**{k: v for k, v in counts.items() if k in known})
      for name, counts in features.items()
    }
    for part, features in parts.items()
  }


def format_share(share: float) -> str:
  """A share in percent; only none is 0 and only all is 100.

  >>> [format_share(x) for x in (0, 0.0001, 0.1234, 0.9999, 1)]
  ['0%', '<0.1%', '12.3%', '>99.9%', '100%']
  """
  if share in (0, 1):
    return f'{share:.0%}'
  if share < 0.001:
    return '<0.1%'
  return '>99.9%' if share > 0.999 else f'{share:.1%}'


def describe_part(name: str, features: Mapping[str, FeatureCounts]) -> str:
  """One line about some rows, worst features first; '' for nothing to say.

  >>> user = FeatureCounts(values=8, missing=0, unseen=1)
  >>> age = FeatureCounts(values=8, missing=2)
  >>> describe_part('valid', {'user': user, 'age': age})
  'valid: unseen: user 12.5%; missing: age 25.0%'
  """
  texts = []
  for kind in KINDS:
    shares = {n: c.share(kind) for n, c in features.items()}
    worst = sorted(filter(shares.get, shares), key=lambda n: -shares[n])
    words = [f'{escape(n)} {format_share(shares[n])}' for n in worst[:SHOWN]]
    if len(worst) > SHOWN:
      words.append(f'and {len(worst) - SHOWN} more')
    if words:
      texts.append(f'{kind}: {", ".join(words)}')
  return f'{name}: {"; ".join(texts)}' if texts else ''


@dataclasses.dataclass(frozen=True)
class Excess:
  """A share that is far more than was to be expected.

  Attributes:
    feature: its name.
    kind: 'unseen' or 'missing'.
    text: says so to a person, with an example and what to look for; '' where
      the excess of another column of the history does.
  """

  feature: str
  kind: str
  text: str


def find_excesses(
  encoder,
  name: str,
  features: Mapping[str, FeatureCounts],
  expected: Mapping[tuple[str, str], tuple[float, str]],
) -> list[Excess]:
  """Where some rows have far more missing or unseen values than expected.

  Args:
    encoder: of the training data.
    name: of the rows, for messages: a split or a file.
    features: their counts.
    expected: from `expect_shares`.

  Returns:
    The excesses, unseen values before missing ones.
  """
  excesses = []
  empty = _find_empty_histories(encoder, name, features, expected)
  for kind in KINDS:
    for column in encoder.schema.columns:
      if kind == 'missing' and column.name in empty:
        excesses.append(Excess(column.name, kind, empty[column.name]))
        continue
      counts = features.get(column.name, FeatureCounts())
      share, source = expected[kind, column.name]
      if not _is_far_more(*counts.count(kind), share):
        continue
      values = ()
      if kind == 'unseen':
        values = encoder.vocabularies[column.table_name].values
        # In a small vocabulary, one value that is not of it says enough.
        if counts.distinct < min(LEAST_DISTINCT, math.ceil(len(values) / 2)):
          continue
      count, total = counts.count(kind)
      text = (
        f'{name}: {format_share(counts.share(kind))} of the values of '
        f'{quote(column.name)} are {kind} ({count:,} of {total:,}), '
      )
      text += _tell_expected(share, source)
      if place := counts.example if kind == 'unseen' else counts.gap:
        text += f'. One is at {place}'
      if values:
        text += f'; training knows values such as {quote(values[0])}'
      excesses.append(Excess(column.name, kind, text + _REMEDIES[kind]))
  return excesses


def _find_empty_histories(encoder, name, features, expected) -> dict[str, str]:
  """Column of a history that is empty far too often -> a warning.

  The first column has it, and '' the others, which are empty with it.
  """
  found = {}
  for history, columns in encoder.schema.histories.items():
    counts = features.get(columns[0].name, FeatureCounts())
    share, source = expected['empty', columns[0].name]
    count, total = counts.count('empty')
    if not _is_far_more(count, total, share):
      continue
    found |= dict.fromkeys((c.name for c in columns), '')
    place = f'. One is at {counts.empty_at}' if counts.empty_at else ''
    names = ', '.join(quote(c.source) for c in columns)
    found[columns[0].name] = (
      f'{name}: {count:,} of {total:,} rows ({format_share(count / total)}) '
      f'have no event in history {quote(history)}, '
      f'{_tell_expected(share, source)}{place}. A model predicts such rows by '
      'their other features alone, with zeros for what events say. Are the '
      f'columns filled ({names}), and is it the right file?'
    )
  return found


def _tell_expected(share: float, source: str) -> str:
  if source:
    return f'at most {format_share(share)} are expected from the {source} split'
  return 'and how many were in training is not known'


_REMEDIES = {
  'unseen': '. Are they written as in training, and is it the right file?',
  'missing': '. Is the column filled, and is it the right file?',
}


def expect_shares(
  encoder, known: Parts
) -> dict[tuple[str, str], tuple[float, str]]:
  """What is to be expected of rows like those that are known.

  A part with `count` of `total` values gives (count + 1) / (total + 4), the
  mean of a Beta distribution: few values say little, and with none it is 1/4,
  so that more than half of the values must be missing or unseen to be far more.

  Args:
    encoder: of the training data.
    known: the part 'valid' is learned from, else 'train', else nothing.

  Returns:
    (kind, feature) -> the share, and of which part it is learned. A column of
    a history has the kind 'empty', too.
  """
  source = next((p for p in ('valid', 'train') if known.get(p)), '')
  features, shares = known.get(source, {}), {}
  for column in encoder.schema.columns:
    for kind in KINDS:
      count, total = features.get(column.name, FeatureCounts()).count(kind)
      if source == 'train' and kind == 'unseen' and column.coded:
        count, total = _estimate_unseen(encoder, column, features)
      shares[kind, column.name] = _bound_share(count, total), source
    if column.history:
      counts = features.get(column.name, FeatureCounts())
      known_by = '' if counts.lists is None else source
      shares['empty', column.name] = (
        _bound_share(*counts.count('empty')),
        known_by,
      )
  return shares


def _bound_share(count: int, total: int) -> float:
  """What the share may well be: its mean and three deviations.

  Few values of a small split must not count as exact.
  """
  mean = (count + 1) / (total + 4)
  if not total:
    return mean
  return min(1.0, mean + 3 * math.sqrt(mean * (1 - mean) / (total + 5)))


def check_splits(encoder) -> dict[str, list[Excess]]:
  """Split -> where it has far more than those before it let expect."""
  excesses, known = {}, {}
  for split, features in encoder.value_counts.items():
    excesses[split] = []
    if known:
      excesses[split] = find_excesses(
        encoder, f'{split} split', features, expect_shares(encoder, known)
      )
    known[split] = features
  return excesses


def _estimate_unseen(encoder, column, features) -> tuple[int, int]:
  """Unseen values among as many as training had, by Good and Turing.

  Training has no unseen values at all where each value has a row. Of new
  values, as many are expected to be unseen as stood there but once: a value
  is new with the probability that leaving out its place makes it so. Where a
  row takes `min_count` places, those of that count join the rarer ones.
  """
  readers = [
    c for c in encoder.schema.coded if c.table_name == column.table_name
  ]
  # Counts of a table do not tell those of one of its columns, nor counts of the
  # kept negatives those of all.
  if len(readers) > 1 or encoder.schema.annotations.negatives_kept < 1:
    return 0, 0
  counts = encoder.vocabularies[column.table_name].counts
  rarest = column.min_count * int(np.sum(counts == column.min_count))
  unseen, total = features.get(column.name, FeatureCounts()).count('unseen')
  return min(total, rarest + unseen), total


def _is_far_more(count: int, total: int, expected: float) -> bool:
  share = count / max(1, total)
  if share < expected + LEAST_RISE or share * (
    1 - expected
  ) < LEAST_ODDS * expected * (1 - share):
    return False
  evidence = share * math.log(share / expected)
  if share < 1:
    evidence += (1 - share) * math.log((1 - share) / (1 - expected))
  return total * evidence >= LEAST_EVIDENCE
