"""Cases of `benchmarks.meaning`: values of categories.

Each is trained on and scored in every form of input, and scored once more, in
that form, by the run that was trained on CSV.
"""

import functools
import pathlib
from collections.abc import Mapping, Sequence

from benchmarks import meaning_forms as forms
from benchmarks.meaning_cases import ENGINES, Case, Told, refusal
from benchmarks.meaning_peers import ask

NO = None


def value_case(
  name: str,
  old: Mapping[str, Sequence] | Sequence,
  new: Mapping[str, Sequence] | Sequence,
  expected,
  *,
  part: str = 'categories',
  against: str = 'pandas',
  features=None,
  types: Mapping[str, str] | None = None,
  separator: str = '^',
  counts: bool = True,
  engines: Sequence[str] = ENGINES,
  **settings,
) -> Case:
  """A case in which a table `old` is trained on, and `new` is scored.

  Args:
    name: of the case.
    old: column -> values; or those of the one column, 'x'.
    new: the same for scoring.
    expected: what `new` becomes: feature -> values, or those of the one
      feature; a refusal; or a function that says it.
    part: of the table.
    against: what states the expected values.
    features: of `fit`; 'x' is categorical by default.
    types: of columns, see `meaning_forms.make_form`.
    separator: of lists in CSV.
    counts: whether the rows of the training part are counted, too; they are
      expected as often as pandas counts the values of the only feature.
    engines: forms of input.
    settings: see `meaning_forms.train`.
  """
  old = forms.add_label(old if isinstance(old, Mapping) else {'x': old})
  new = new if isinstance(new, Mapping) else {'x': new}
  features = features or {'x': 'categorical'}

  @functools.cache
  def train(engine: str, directory: pathlib.Path) -> forms.Trained:
    form = forms.make_form(engine, old, directory / 'old', types, separator)
    return forms.train(form, features, **settings)

  def measure(engine: str, directory: pathlib.Path):
    form = forms.make_form(engine, new, directory / 'new', types, separator)
    trained = train(engine, directory)
    values = forms.observe(trained, trained.serve(form)[0])
    got = _of_one(values)
    if counts:
      got = {'rows': forms.count_rows(trained), 'new': got}
    if engine != 'csv' and 'csv' in engines:
      other = train('csv', _beside(directory))
      crossed = _of_one(forms.observe(other, other.serve(form)[0]))
      if repr(crossed) != repr(_of_one(values)):
        return {'own': _of_one(values), 'trained on CSV': crossed}
    return got

  def expect():
    value = expected() if callable(expected) else expected
    if isinstance(value, Told) or not counts:
      return value
    size = forms.train_size(old)
    return {
      'rows': count_values(old['x'][:size], _least(features)),
      'new': value,
    }

  return Case(name, part, against, expect, measure, engines)


def _of_one(values: Mapping[str, list]):
  return next(iter(values.values())) if len(values) == 1 else dict(values)


def _beside(directory: pathlib.Path) -> pathlib.Path:
  path = directory.parent / 'csv'
  path.mkdir(exist_ok=True)
  return path


def _least(features) -> int:
  options = features['x']
  return options.get('min_count', 1) if isinstance(options, Mapping) else 1


def count_values(values: Sequence, least: int = 1) -> list[int]:
  """Missing, each value from the most frequent on, unseen: by pandas."""
  import pandas as pd

  counts = pd.Series(list(values), dtype=object).explode()
  known = counts.dropna().value_counts()
  rare = int(known[known < least].sum())
  kept = sorted(known[known >= least].tolist(), reverse=True)
  return [int(counts.isna().sum()), *map(int, kept), rare]


def repeat_values(*counts: tuple[object, int]) -> list:
  """20 values: each so often, with the first two again at the end."""
  values = [value for value, count in counts for _ in range(count)]
  if len(values) != 18:
    raise ValueError(f'{len(values)} values to train on instead of 18')
  return [*values, values[0], values[0]]


def list_cases() -> list[Case]:
  whole = repeat_values((7, 9), (12, 6), (3, 3))
  holes = repeat_values((7, 8), (12, 5), (3, 3), (NO, 2))
  text = repeat_values(('de', 9), ('fr', 6), ('it', 3))
  floats = repeat_values((7.0, 9), (12.0, 6), (3.0, 3))
  bools = repeat_values((True, 11), (False, 7))
  case = value_case
  return [
    case('whole numbers', whole, [7, 12, 3, 4], [1, 2, 3, '?']),
    case(
      'whole numbers, a training cell missing',
      holes,
      [7, 12, 3, 4],
      [1, 2, 3, '?'],
    ),
    case(
      'whole numbers, a cell to score missing',
      whole,
      [7, 12, NO, 3, 4],
      [1, 2, '-', 3, '?'],
    ),
    case('missing in both', holes, [NO, 7, 12, 4], ['-', 1, 2, '?']),
    case(
      'whole numbers, scored as floats',
      whole,
      [7.0, 12.0, 3.0, 4.0],
      [1, 2, 3, '?'],
    ),
    case('whole floats', floats, [7.0, 12.0, 4.0], [1, 2, '?']),
    case('whole floats, scored as ints', floats, [7, 12, 4], [1, 2, '?']),
    case(
      'negative whole numbers',
      repeat_values((-7, 9), (0, 6), (3, 3)),
      [-7, 0, 3, 7],
      [1, 2, 3, '?'],
    ),
    case(
      'whole numbers beyond 2^53',
      repeat_values((2**53 + 1, 9), (2**53, 6), (5, 3)),
      [2**53 + 1, 2**53, 2**53 + 2],
      [1, 2, '?'],
    ),
    case(
      'nullable whole numbers',
      holes,
      [7, NO, 4],
      [1, '-', '?'],
      types={'x': 'nullable'},
    ),
    case('bools', bools, [True, False], [1, 2]),
    case(
      'bools, a cell missing',
      repeat_values((True, 10), (False, 6), (NO, 2)),
      [True, NO, False],
      [1, '-', 2],
    ),
    case('bools, scored as 0 and 1', bools, [1, 0, 2], [1, 2, '?']),
    case('text', text, ['de', 'fr', 'xx'], [1, 2, '?']),
    case(
      'text, cells missing',
      repeat_values(('de', 8), ('fr', 6), (NO, 4)),
      ['fr', NO, 'xx'],
      [2, '-', '?'],
    ),
    case('every cell to score missing', text, [NO, NO], ['-', '-']),
    case(
      'text of a category type',
      text,
      ['de', 'fr', 'xx'],
      [1, 2, '?'],
      types={'x': 'dictionary'},
    ),
    case(
      'spaces and case are kept',
      repeat_values(('a', 9), ('A', 6), (' a', 3)),
      ['a', 'A', ' a', 'a '],
      [1, 2, 3, '?'],
    ),
    case(
      "text with leading zeros, '007' and '7'",
      repeat_values(('007', 9), ('7', 6), ('07', 3)),
      ['007', '7', '07', '0007'],
      [1, 2, 3, '?'],
    ),
    case(
      "text with an exponent, '1e5'",
      repeat_values(('1e5', 9), ('x', 9)),
      ['1e5', '1e6'],
      [1, '?'],
    ),
    case(
      'min_count 4',
      whole,
      [7, 12, 3, 4],
      [1, 2, '?', '?'],
      features={'x': {'kind': 'categorical', 'min_count': 4}},
    ),
    case(
      'text beside another statement',
      text,
      ['de', 'fr', 'it', 'xx'],
      ask(
        'text beside another statement',
        text[:18],
        ['de', 'fr', 'it', 'xx'],
        type='categorical',
        dtype='str',
      ),
      against='FuxiCTR',
    ),
    case(
      'text with min_count 4 beside another statement',
      text,
      ['de', 'it', 'xx'],
      ask(
        'text with min_count 4 beside another statement',
        text[:18],
        ['de', 'it', 'xx'],
        type='categorical',
        dtype='str',
        min_categr_count=4,
      ),
      features={'x': {'kind': 'categorical', 'min_count': 4}},
      against='FuxiCTR',
    ),
    case(
      'a table for two columns',
      {'x': repeat_values(('a', 9), ('b', 9)), 'y': repeat_values(('b', 18))},
      {'x': ['a', 'b', 'c'], 'y': ['b', 'a', NO]},
      {'x': [2, 1, '?'], 'y': [1, 2, '-']},
      features={
        name: {'kind': 'categorical', 'table': 't'} for name in ('x', 'y')
      },
      counts=False,
    ),
    case(
      'hashed unseen values',
      whole,
      [7, 4, 5.0],
      [1, '?', '?'],
      features={'x': {'kind': 'categorical', 'oov': 'hash', 'hash_rows': 4}},
      counts=False,
    ),
    case(
      'unseen values as an error',
      whole,
      [7, 4],
      refusal("'x'", '4'),
      features={'x': {'kind': 'categorical', 'oov': 'error'}},
    ),
    case(
      'missing cells filled',
      holes,
      [NO, 7, 3],
      [1, 1, 3],
      features={'x': {'kind': 'categorical', 'fill': '7'}},
      counts=False,
    ),
  ]
