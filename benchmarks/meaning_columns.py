"""Cases of `benchmarks.meaning`: numbers, lists, kinds by looking, labels."""

import datetime
import decimal
import math

import numpy as np

from benchmarks import meaning_forms as forms
from benchmarks.meaning_cases import Case, ReadOrTold, Told, refusal
from benchmarks.meaning_peers import ask
from benchmarks.meaning_values import NO, repeat_values, value_case

# Options of a feature, which older versions lack.
KEEP_FIRST = {'keep': 'first'}  # which end of a sequence stays
CLIPPED = {'clip': 3.0}  # bound of the z-scores of 'standardize'

NUMBERS = [0.5, 2.0, -1.5, 4.25, 10.0, 3.0] * 3 + [0.5, 2.0]


def list_cases() -> list[Case]:
  """All cases of this file."""
  return [*_numbers(), *_lists(), *_dates(), *_kinds(), *_labels()]


def standardize(old, new) -> list[float]:
  """Z-scores by scikit-learn, of the training part; missing is 0."""
  preprocessing = forms.import_optional('sklearn.preprocessing')

  def column(values):
    return np.array([math.nan if v is None else v for v in values], np.float64)[
      :, None
    ]

  scaler = preprocessing.StandardScaler().fit(
    column(old[: forms.train_size({'x': old})])
  )
  return np.nan_to_num(scaler.transform(column(new))[:, 0]).tolist()


def _numbers() -> list[Case]:
  def case(name, old, new, expected, against='NumPy', **options):
    options = {'kind': 'numeric'} | options
    return value_case(
      name,
      old,
      new,
      expected,
      part='numbers',
      against=against,
      features={'x': options},
      counts=False,
    )

  def scaled(name, old, new, **options):
    return case(
      name,
      old,
      new,
      lambda: standardize(old, new),
      'scikit-learn',
      transform='standardize',
      **options,
    )

  holes = [*NUMBERS[:4], NO, *NUMBERS[5:]]
  tenth = [0.1] * 20
  far = [1e9 + x for x in NUMBERS]
  return [
    case('as it is', NUMBERS, [1.5, -2.0], [1.5, -2.0], transform='as_is'),
    case(
      'as it is, missing',
      holes,
      [1.5, NO, math.nan],
      [1.5, 0.0, 0.0],
      transform='as_is',
    ),
    case(
      'as it is, missing is filled',
      holes,
      [1.5, NO],
      [1.5, 7.0],
      transform='as_is',
      fill='7',
    ),
    case(
      'whole numbers as numbers',
      list(range(20)),
      [3, NO, 5],
      [3.0, 0.0, 5.0],
      transform='as_is',
    ),
    case(
      'bools as numbers',
      repeat_values((True, 9), (False, 9)),
      [True, False],
      [1.0, 0.0],
      transform='as_is',
    ),
    case(
      'log(1 + x)',
      NUMBERS,
      [0.0, 9.0, -3.0, NO],
      [0.0, math.log(10), 0.0, 0.0],
      transform='log',
    ),
    value_case(
      'ln2 buckets',
      [1, 2, 3, 10, 100, 1000] * 3 + [1, 2],
      [1, 2, 3, 10, 100, 1000, NO, 7],
      # floor(ln(x)^2) of 3 is 1, too, so that 1 comes first; the others tie
      # and come in the order of their texts: 2, 21, 47, 5.
      [1, 2, 1, 5, 3, 4, '-', '?'],
      part='numbers',
      against='NumPy',
      features={'x': {'kind': 'numeric', 'transform': 'ln2'}},
      counts=False,
    ),
    case(
      'standardize, beside another statement',
      NUMBERS,
      [0.5, 100.0, -4.0],
      ask(
        'standardize, beside another statement',
        NUMBERS[: forms.train_size({'x': NUMBERS})],
        [0.5, 100.0, -4.0],
        type='numeric',
        dtype='float',
        normalizer='StandardScaler',
      ),
      'FuxiCTR',
      transform='standardize',
    ),
    scaled('standardize', NUMBERS, [0.5, 100.0, -4.0]),
    scaled('standardize, missing', holes, [0.5, NO, 3.0]),
    scaled('standardize, whole numbers', list(range(20)), [3, NO, 50]),
    scaled('standardize a constant 0.1', tenth, [0.1, 0.101]),
    scaled('standardize a constant 0', [0.0] * 20, [0.0, 2.5]),
    scaled(
      'standardize a constant 1e9 and a third',
      [1e9 + 1 / 3] * 20,
      [1e9 + 1 / 3, 1e9 + 1],
    ),
    scaled('standardize at 1e9', far, [1e9, 1e9 + 5]),
    case(
      'standardize, clipped at 3',
      NUMBERS,
      [3.0, 1e6, -1e6],
      lambda: [
        min(3.0, max(-3.0, z)) for z in standardize(NUMBERS, [3.0, 1e6, -1e6])
      ],
      'scikit-learn',
      transform='standardize',
      **CLIPPED,
    ),
    case(
      'infinity is refused', NUMBERS, [math.inf, 1.0], refusal("'x'", 'inf')
    ),
    value_case(
      'text as a number is refused',
      NUMBERS,
      ['ten', 'one'],
      refusal("'x'"),
      part='numbers',
      against='NumPy',
      features={'x': 'numeric'},
      counts=False,
    ),
    value_case(
      'decimals as numbers',
      [decimal.Decimal(f'{x:.2f}') for x in NUMBERS],
      [decimal.Decimal('1.25'), decimal.Decimal('-2.50')],
      [1.25, -2.5],
      part='numbers',
      against='NumPy',
      features={'x': 'numeric'},
      types={'x': 'decimal'},
      counts=False,
      data__numeric='as_is',
    ),
  ]


def _lists() -> list[Case]:
  def case(name, old, new, expected, kind='multi_hot', **rest):
    options = {'kind': kind} | rest.pop('options', {})
    return value_case(
      name,
      old,
      new,
      expected,
      part='lists',
      against=rest.pop('against', 'pandas'),
      features={'x': options},
      **rest,
    )

  tags = [['a', 'b', 'c'], ['a', 'b'], ['a']] * 6 + [['a'], ['a']]
  whole = [[7, 12, 3], [7, 12], [7]] * 6 + [[7], [7]]
  holes = [['a', 'b', 'c'], ['a', 'b'], NO] * 6 + [['a'], ['a']]
  short = {'max_len': 2}

  def beside(name, old, new, kind='sequence', padding='pre', **rest):
    """The same of FuxiCTR, which masks empty values."""
    options = rest.get('options', {})
    texts = [['' if v is None else '^'.join(v) for v in x] for x in (old, new)]
    size = forms.train_size({'x': old})
    expected = ask(
      name,
      texts[0][:size],
      texts[1],
      type='sequence',
      dtype='str',
      max_len=options.get('max_len', 3),
      padding=padding,
    )
    rest['against'] = 'FuxiCTR'
    return case(name, old, new, expected, kind, counts=False, **rest)

  return [
    case('sets of text', tags, [['a', 'x'], ['c']], [[1, '?'], [3]]),
    case('sets of whole numbers', whole, [[7, 4], [3]], [[1, '?'], [3]]),
    case(
      'sets of whole floats, scored',
      whole,
      [[7.0, 4.0], [3.0]],
      [[1, '?'], [3]],
    ),
    case(
      'a missing set, an empty set',
      holes,
      [NO, ['a'], []],
      [[], [1], []],
      counts=False,
    ),
    beside(
      'empty values in a set',
      tags,
      [['a', '', 'b'], ['', 'c'], ['a', ''], ['']],
      'multi_hot',
    ),
    beside(
      'empty values in a training set',
      [['a', '', 'b', 'c'], ['a', 'b'], ['', 'a']] * 6 + [['a'], ['a']],
      [['a'], ['b', 'c']],
      'multi_hot',
    ),
    case(
      'empty values take no place of max_len',
      tags,
      [['b', '', 'a'], ['', '', 'c']],
      [[2, 1], [3]],
      'sequence',
      options=short,
      counts=False,
    ),
    beside(
      'a sequence keeps its last values',
      tags,
      [['a', 'b', 'c'], ['x', 'a', 'b']],
      options=short,
    ),
    beside(
      'a sequence keeps its first values, by option',
      tags,
      [['a', 'b', 'c'], ['x', 'a', 'b']],
      padding='post',
      options=short | KEEP_FIRST,
    ),
    case(
      'a set keeps its first values',
      tags,
      [['a', 'b', 'c'], ['x', 'a', 'b']],
      [[1, 2], ['?', 1]],
      options=short,
      counts=False,
    ),
    case(
      'another separator',
      tags,
      [['a', 'x'], ['c']],
      [[1, '?'], [3]],
      options={'separator': '|'},
      separator='|',
    ),
    Case(
      'a wrong separator is told',
      'lists',
      'its definition',
      Told(('separator', "'x'")),
      lambda engine, directory: _hear_training(
        engine,
        directory,
        {'x': [['a', 'b'], ['c', 'd', 'e']] * 10},
        {'x': 'multi_hot'},
        separator=',',
      ),
      ('csv',),
    ),
  ]


def _dates() -> list[Case]:
  days = [datetime.date(2026, 11, d) for d in (1, 2, 3)]
  moments = [datetime.datetime(2026, 11, d, 12, 30) for d in (1, 2, 3)]

  def case(name, values, types=None):
    old = repeat_values((values[0], 9), (values[1], 6), (values[2], 3))
    return value_case(
      name,
      old,
      [values[0], values[2]],
      ReadOrTold([1, 3], ("'x'",)),
      part='dates',
      types=types,
      counts=False,
    )

  return [
    case('dates as categories', days),
    case('timestamps as categories', moments),
    case(
      'decimals as categories',
      [decimal.Decimal('1.5'), decimal.Decimal('2.25'), decimal.Decimal('3')],
      {'x': 'decimal'},
    ),
  ]


def _hear_training(engine, directory, table, features, **form) -> str:
  """The warnings of a training, or its refusal, in a line."""
  separator = form.pop('separator', '^')
  table = forms.add_label(table) if 'label' not in table else table
  examples = forms.make_form(
    engine, table, directory / 'old', separator=separator
  )
  lines = forms.train(examples, features, **form).lines
  return ' '.join(x for x in lines if x.startswith('WARNING')) or 'not a word'


def _kinds() -> list[Case]:
  def measure(table):
    def kinds(engine, directory):
      examples = forms.make_form(
        engine, forms.add_label(table), directory / 'old'
      )
      trained = forms.train(examples, None)
      return {c.name: c.kind for c in trained.encoder.schema.columns}

    return kinds

  def case(name, values, kind):
    measured = measure({'x': values})
    return Case(name, 'kinds by looking', 'pandas', {'x': kind}, measured)

  def told(name, table, *words):
    return Case(
      name,
      'kinds by looking',
      'its definition',
      Told(words),
      lambda engine, directory: _hear_training(engine, directory, table, None),
    )

  fractions = [x + 0.25 for x in range(20)]
  few = repeat_values((7, 9), (12, 9))
  return [
    case('fractions are numbers', fractions, 'numeric'),
    case(
      'fractions with a missing cell are numbers',
      [NO, *fractions[1:]],
      'numeric',
    ),
    case('whole numbers are categories', few, 'categorical'),
    case(
      'whole numbers with a missing cell are categories',
      [NO, *few[1:]],
      'categorical',
    ),
    case('bools are categories', [True, False] * 10, 'categorical'),
    case('text is a category', ['a', 'b'] * 10, 'categorical'),
    told(
      'a vocabulary near the number of rows is told',
      {'x': [f'id{i}' for i in range(2000)], 'y': few * 100},
      "'x'",
    ),
  ]


def _labels() -> list[Case]:
  def case(name, values, expected, **settings):
    def measure(engine, directory):
      table = {'x': [1, 2] * 10, 'label': values}
      examples = forms.make_form(engine, table, directory / 'old')
      trained = forms.train(examples, {'x': 'categorical'}, **settings)
      return trained.rows_of('train').labels[:4, 0].tolist()

    return Case(name, 'labels', 'pandas', expected, measure)

  return [
    case('labels 0 and 1', [0, 1] * 10, [0, 1, 0, 1]),
    case('labels False and True', [False, True] * 10, [0, 1, 0, 1]),
    case('labels 0.0 and 1.0', [0.0, 1.0] * 10, [0, 1, 0, 1]),
    case('a label of 2 is refused', [0, 2] * 10, refusal("'label'", '2')),
    case('a missing label is refused', [0, 1, NO, 1] * 5, refusal("'label'")),
    case('a label of text is refused', ['bad', 'good'] * 10, refusal('label')),
  ]
