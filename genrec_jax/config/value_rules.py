"""What a value of a config may be: the kinds of rules of key_rules.py."""

import dataclasses
import math
import numbers
import re
from collections.abc import Callable
from typing import Any

from genrec_jax.config.loading import hint_nearest

# On a device, numbers have 32 bits.
INT32, FLOAT32 = 2**31 - 1, 3.4e38


def _is_number(value) -> bool:
  return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_whole(value) -> bool:
  return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_pattern(value) -> bool:
  try:
    re.compile(value)
  except (TypeError, re.error):
    return False
  return isinstance(value, str)


_KINDS: dict[str, Callable[[Any], bool]] = {
  'a whole number': _is_whole,
  'a number': _is_number,
  'True or False': lambda value: isinstance(value, bool),
  'text': lambda value: isinstance(value, str),
  'a regular expression': _is_pattern,
  'some text': lambda value: isinstance(value, str) and value != '',
  'pairs': lambda value: isinstance(value, tuple | list),
}


@dataclasses.dataclass(frozen=True)
class Rule:
  """Which values a key may have.

  Attributes:
    kind: what each of them is, a key of `_KINDS`.
    least: the smallest number, None for any.
    most: the largest one.
    above: what a number must be above.
    below: what a number must be below.
    words: the texts and numbers there are; () is any.
    grows: whether parts from outside the library may add to `words`.
    many: 'tuple' for several values, 'either' for one or several.
    filled: whether several values must be one at least.
    optional: whether None may stand for no value.
  """

  kind: str
  least: float | None = None
  most: float | None = None
  above: float | None = None
  below: float | None = None
  words: tuple = ()
  grows: bool = False
  many: str = ''
  filled: bool = False
  optional: bool = False

  def explain(self, value: Any, extended: bool = False) -> str:
    """What a value must be; '' where it is that.

    >>> Rule('a number', least=0, below=1).explain(1.5)
    'at least 0 and below 1'

    Args:
      value: of any type.
      extended: whether there are parts from outside the library.
    """
    if value is None and self.optional:
      return ''
    if self.many and isinstance(value, tuple | list):
      if self.filled and not value:
        return 'one value or more'
      wrong = (self._explain_one(part, extended) for part in value)
      return next(filter(None, wrong), '')
    if self.many == 'tuple':
      return f'several values, each {self.describe()}'
    return self._explain_one(value, extended)

  def explain_type(self, value: Any) -> str:
    """What a value must be if its type is another; '' where it is the one.

    >>> rule = Rule('a number', least=0)
    >>> rule.explain_type(-1), rule.explain_type('1')
    ('', 'a number, at least 0')

    Args:
      value: of any type.
    """
    if value is None and self.optional:
      return ''
    several = isinstance(value, tuple | list) and self.many != ''
    if self.many == 'tuple' and not several:
      return f'several values, each {self.describe()}'
    for part in value if several else (value,):
      if self.words:
        fits = any(type(part) is type(word) for word in self.words)
      else:
        fits = _KINDS[self.kind](part)
      if not fits:
        return self.describe()
    return ''

  def _explain_one(self, value: Any, extended: bool) -> str:
    if self.words:
      # 1 is equal to True, and is another word.
      is_known = any(value == w and type(value) is type(w) for w in self.words)
      is_new = extended and self.grows and isinstance(value, str) and value
      if is_known or is_new:
        return ''
      near = ''
      if isinstance(value, str) and value:
        near = hint_nearest(value, filter(None, map(str, self.words)))
      return f'{self.describe()}{near}'
    if not _KINDS[self.kind](value):
      return self.describe()
    if not _is_number(value):
      return ''
    has_all_values = not isinstance(value, numbers.Integral)
    if has_all_values and math.isnan(value):
      return self._describe_range() or self.kind
    if has_all_values and math.isinf(value):
      return 'a finite number'
    if self.kind == 'a number' and abs(value) > FLOAT32:
      return f'a number of 32 bits, at most {FLOAT32}'
    if self._is_long and value > self.most:
      return f'at most {self.most:,}'
    fits = (
      (self.least is None or value >= self.least)
      and (self.most is None or value <= self.most)
      and (self.above is None or value > self.above)
      and (self.below is None or value < self.below)
    )
    return '' if fits else self._describe_range()

  @property
  def _is_long(self) -> bool:
    """Whether the upper bound is one that hardly anybody meets."""
    return self.most is not None and self.most >= 2**16

  def _describe_range(self) -> str:
    if self.above is not None:
      if self.most is not None:
        return f'above {self.above} and at most {self.most}'
      return f'a finite number above {self.above}'
    if self.least is None:
      return ''
    if self.below is not None:
      return f'at least {self.least} and below {self.below}'
    if self.most is not None and not self._is_long:
      return f'from {self.least} to {self.most}'
    return f'at least {self.least}'

  def describe(self) -> str:
    """The values as a sentence says them.

    >>> whole(1).describe()
    'a whole number, at least 1'
    """
    if self.words:
      return f'one of {", ".join(map(repr, self.words))}'
    bounds = self.describe_bounds()
    if bounds.startswith('a finite number'):
      return bounds
    text = f'{self.kind}, {bounds}' if bounds else self.kind
    return f'{text}, or None' if self.optional else text

  def describe_bounds(self) -> str:
    """The range of a number; '' for what has none.

    >>> whole(1).describe_bounds(), Rule('text').describe_bounds()
    ('at least 1', '')
    """
    numeric = self.kind in ('a number', 'a whole number')
    return self._describe_range() if numeric and not self.words else ''


def whole(least: int = 0, most: int = INT32, **options) -> Rule:
  return Rule('a whole number', least=least, most=most, **options)


def number(**bounds) -> Rule:
  return Rule('a number', **bounds)


def words(*known, **options) -> Rule:
  return Rule('text', words=known, **options)


def some(rule: Rule, **options) -> Rule:
  """Several values, each of which follows a rule."""
  return dataclasses.replace(rule, many='tuple', **options)


def maybe(rule: Rule) -> Rule:
  """The rule, or None."""
  return dataclasses.replace(rule, optional=True)
