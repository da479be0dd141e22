"""A case of `benchmarks.meaning`: what is expected, what came, and its row."""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

ENGINES = ('csv', 'parquet', 'records', 'pandas', 'polars')
TOLERANCE = 1e-6
LONGEST = 90  # characters of a value in the table


class Absent(Exception):
  """An optional package, or an option that this version lacks."""


@dataclasses.dataclass(frozen=True)
class Case:
  """One row of the table.

  Attributes:
    name: of the row.
    part: of the table.
    against: what states the expected value.
    expected: the value, or a function that asks the peer for it.
    measure: (engine, empty directory) -> the value of this library.
    engines: the forms of input that it is measured in; one '' where there is
      no input.
    tolerance: relative, for numbers.
  """

  name: str
  part: str
  against: str
  expected: object
  measure: Callable[[str, pathlib.Path], object]
  engines: Sequence[str] = ENGINES
  tolerance: float = TOLERANCE

  def run(self, directory: pathlib.Path) -> dict:
    """Measures the case in each engine.

    Args:
      directory: for its files.

    Returns:
      The row: 'expected', 'got' (of the engines that differ, where some do),
      'engines' ('5 of 5' agree with the expected value), 'equal'.
    """
    row = {'case': self.name, 'part': self.part, 'against': self.against}
    values = {}
    try:
      expected = self.expected() if callable(self.expected) else self.expected
      for engine in self.engines:
        own = directory / (engine or 'all')
        own.mkdir(parents=True, exist_ok=True)
        values[engine] = measure_value(self.measure, engine, own)
    except Absent as e:
      return row | {'expected': str(e), 'got': '', 'engines': '', 'equal': None}
    differ = {
      engine: value
      for engine, value in values.items()
      if not are_equal(value, expected, self.tolerance)
    }
    right = len(values) - len(differ)
    return row | {
      'expected': format_value(expected),
      'got': _join(differ) if differ else format_value(expected),
      'engines': f'{right} of {len(values)}',
      'equal': not differ,
    }


def measure_value(measure, engine: str, directory: pathlib.Path) -> object:
  """The value, or how it was refused."""
  try:
    return measure(engine, directory)
  except Absent:
    raise
  except (ValueError, FileNotFoundError, FloatingPointError) as e:
    # The directory is another one in each run.
    return Refusal(str(e).replace(f'{directory.parent}/', ''))
  except Exception as e:  # a crash is a value that differs from all others
    return f'{type(e).__name__}: {e}'


class Refusal(str):
  """The sentence of an error."""


@dataclasses.dataclass(frozen=True)
class Told:
  """An expected sentence: a refusal or a warning that has all these words."""

  words: tuple[str, ...]
  must_refuse: bool = False

  def __str__(self) -> str:
    what = 'refused' if self.must_refuse else 'a sentence'
    return f'{what}, with {", ".join(self.words)}'


def refusal(*words: str) -> Told:
  """The expected refusal that has all these words."""
  return Told(words, True)


@dataclasses.dataclass(frozen=True)
class ReadOrTold:
  """Either is right: the value, or a refusal that has all these words."""

  value: object
  words: tuple[str, ...]

  def __str__(self) -> str:
    return f'{format_value(self.value)}, or {refusal(*self.words)}'


def are_equal(got: object, expected: object, tolerance: float) -> bool:
  """Whether two values mean the same; NaN equals NaN.

  >>> are_equal([1, 0.3], [1, 0.1 + 0.2], 1e-6), are_equal('1', 1, 1e-6)
  (True, False)
  """
  if isinstance(expected, Told):
    text = str(got).lower()
    named = all(word.lower() in text for word in expected.words)
    return named and (isinstance(got, Refusal) or not expected.must_refuse)
  if isinstance(expected, ReadOrTold):
    told = isinstance(got, Refusal)
    expected = Told(expected.words) if told else expected.value
    return are_equal(got, expected, tolerance)
  if isinstance(got, Refusal):
    return False
  if isinstance(expected, Mapping):
    return (
      isinstance(got, Mapping)
      and list(got) == list(expected)
      and all(are_equal(got[k], expected[k], tolerance) for k in expected)
    )
  if isinstance(got, np.ndarray):
    got = got.tolist()
  if isinstance(expected, np.ndarray):
    expected = expected.tolist()
  if isinstance(expected, list | tuple):
    return (
      isinstance(got, list | tuple)
      and len(got) == len(expected)
      and all(map(are_equal, got, expected, [tolerance] * len(got)))
    )
  if isinstance(expected, float) or isinstance(got, float):
    if isinstance(got, str) or isinstance(expected, str):
      return False
    if math.isnan(expected) or math.isnan(got):
      return math.isnan(expected) and math.isnan(got)
    size = max(abs(expected), 1e-3)
    return got == expected or abs(got - expected) <= tolerance * size
  return got == expected


def format_value(value: object) -> str:
  """A value in a cell of the table."""
  if isinstance(value, np.ndarray):
    value = value.tolist()
  if isinstance(value, Refusal):
    text = f'refused: {value}'
  elif isinstance(value, Mapping):
    text = '; '.join(f'{k} {format_value(v)}' for k, v in value.items())
  elif isinstance(value, list | tuple):
    inner = [
      f'[{format_value(v)}]' if isinstance(v, list) else format_value(v)
      for v in value
    ]
    text = ' '.join(inner)
  elif isinstance(value, float):
    text = f'{value:.6g}'
  else:
    text = str(value)
  return text if len(text) <= LONGEST else text[: LONGEST - 1] + '…'


def _join(values: Mapping[str, object]) -> str:
  by_text: dict[str, list[str]] = {}
  for engine, value in values.items():
    by_text.setdefault(format_value(value), []).append(engine)
  return '; '.join(
    f'{", ".join(engines)}: {text}' if engines != [''] else text
    for text, engines in by_text.items()
  )
