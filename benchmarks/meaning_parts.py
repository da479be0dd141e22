"""Cases of `benchmarks.meaning`: parts, weights, shares, what is predicted."""

import json
import math
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks import meaning_forms as forms
from benchmarks.meaning_cases import Case, ReadOrTold, Told, refusal

NO = None
FILES = ('csv', 'parquet')
# Options of the ranking data, which older versions lack.
SPLIT_BY_TIME = {'data__split__by': 'time', 'data__time': 'at'}
SPLIT_BY_USER = {'data__split__by': 'group', 'data__split__column': 'user'}
WEIGHT = 'data__weight'
NEGATIVES_KEPT = 'data__negatives_kept'

ROWS = 200
RNG = np.random.default_rng(2)
TABLE = {
  'n': list(range(ROWS)),
  'x': RNG.integers(0, 8, ROWS).tolist(),
  'user': [f'u{i}' for i in RNG.integers(0, 60, ROWS)],
  'at': RNG.permutation(ROWS * 1000)[:ROWS].tolist(),
  'weight': RNG.integers(0, 4, ROWS).astype(float).tolist(),
  'label': RNG.integers(0, 2, ROWS).tolist(),
}
CUTS = {'data__split__valid_fraction': 0.1, 'data__split__test_fraction': 0.2}


def list_cases() -> list[Case]:
  """All cases of this file."""
  return [*_splits(), *_files(), *_weights(), *_shares(), *_predictions()]


def _take(columns: Sequence[str], rows=None, **others) -> dict:
  rows = range(ROWS) if rows is None else rows
  table = {name: [TABLE[name][i] for i in rows] for name in columns}
  return table | {name: list(values) for name, values in others.items()}


def _numbers(trained: forms.Trained) -> dict[str, list[int]]:
  """Part -> the numbers of its rows, which a numeric feature 'n' holds."""
  at = trained.encoder.schema.names.numbers.index('n')
  return {
    part: trained.rows_of(part).numbers[:, at].astype(int).tolist()
    for part in trained.dataset.splits
  }


def _describe(parts: Mapping[str, Sequence[int]]) -> dict[str, list]:
  """How many rows, the sum of their numbers and of the squares, by part."""
  return {
    part: [len(rows), sum(rows), sum(i * i for i in rows)]
    for part, rows in parts.items()
  }


AS_IS = {'n': {'kind': 'numeric', 'transform': 'as_is'}}


def _splits() -> list[Case]:
  def measure(table, judge, **settings):
    def split(engine, directory):
      form = forms.make_form(engine, table, directory / 'old')
      trained = forms.train(
        form, AS_IS | {'x': 'categorical'}, **(CUTS | settings)
      )
      return judge(_numbers(trained))

    return split

  def case(name, expected, table, judge=_describe, **settings):
    measured = measure(table, judge, **settings)
    return Case(name, 'parts', 'pandas', expected, measured)

  def cut(order):
    order = [int(i) for i in order]
    parts = {'train': order[:140], 'valid': order[140:160]}
    return _describe(parts | {'test': order[160:]})

  def find_fractions(parts):
    rows = [i for part in parts.values() for i in part]
    near = all(
      abs(len(parts[part]) - share * ROWS) < 4 * math.sqrt(share * ROWS)
      for part, share in (('valid', 0.1), ('test', 0.2))
    )
    return {
      'rows': len(rows),
      'distinct': len(set(rows)),
      'near the fractions': near,
    }

  def find_users(parts):
    users = [{TABLE['user'][i] for i in rows} for rows in parts.values()]
    return {
      'rows': sum(map(len, parts.values())),
      'users': len(set.union(*users)),
      'of parts': sum(map(len, users)),
    }

  small = _take(('n', 'x', 'label'))
  users = len(set(TABLE['user']))
  return [
    case('the last rows test', cut(range(ROWS)), small),
    case(
      'random rows test',
      {'rows': ROWS, 'distinct': ROWS, 'near the fractions': True},
      small,
      find_fractions,
      data__split__by='random',
    ),
    case(
      'the latest rows test',
      cut(np.argsort(TABLE['at'])),
      _take(('n', 'x', 'at', 'label')),
      **SPLIT_BY_TIME,
    ),
    case(
      'users are of one part',
      {'rows': ROWS, 'users': users, 'of parts': users},
      _take(('n', 'x', 'user', 'label')),
      find_users,
      **SPLIT_BY_USER,
    ),
  ]


def _write_parts(engine: str, directory: pathlib.Path, parts) -> str:
  """Files train, valid and test of these rows; the directory."""
  path = directory / 'data'
  path.mkdir()
  for name, rows in parts.items():
    forms.make_form(engine, _take(('n', 'x', 'label'), rows), path / name)
  return str(path)


def _files() -> list[Case]:
  parts = {
    'train': range(100),
    'valid': range(100, 130),
    'test': range(130, 200),
  }

  def measure(written, judge, **files):
    def read(engine, directory):
      path = _write_parts(engine, directory, written)
      settings = {
        f'data__files__{part}': f'{name}.{engine}'
        for part, name in files.items()
      }
      trained = forms.train(
        path, AS_IS | {'x': 'categorical'}, **(CUTS | settings)
      )
      return judge(trained)

    return read

  def case(name, expected, written, judge, **files):
    measured = measure(written, judge, **files)
    return Case(name, 'files', 'pandas', expected, measured, FILES)

  def describe(trained):
    return _describe(_numbers(trained))

  def tell(trained):
    return ' '.join(trained.lines)

  def warn(trained):
    told = [x for x in trained.lines if x.startswith('WARNING')]
    return ' '.join(told) or 'not a word'

  every = _describe(parts)
  return [
    case('train, valid and test by their names', every, parts, describe),
    case(
      'train, valid and test in words',
      every,
      {'a': parts['train'], 'b': parts['valid'], 'c': parts['test']},
      describe,
      train='a',
      valid='b',
      test='c',
    ),
    case(
      'a pattern for training that holds the test file, too',
      ReadOrTold(
        _describe({**parts, 'train': range(100), 'valid': range(100, 130)}),
        ('test.', 'train'),
      ),
      parts,
      describe,
      train='*',
      valid='valid',
      test='test',
    ),
    case(
      'one file in two parts',
      refusal('test.'),
      parts,
      describe,
      train='train',
      valid='test',
      test='test',
    ),
    case(
      'the files of each part are listed',
      Told(('train.', 'valid.', 'test.')),
      parts,
      tell,
      train='train',
      valid='valid',
      test='test',
    ),
    case(
      'equal rows in two parts are told',
      Told(('train', 'test', '50')),
      parts | {'test': [*range(50), *range(130, 200)]},
      warn,
      train='train',
      valid='valid',
      test='test',
    ),
  ]


def _weights() -> list[Case]:
  def measure_auc(weighted):
    def auc(engine, directory):
      table = _take(('x', 'weight', 'label'))
      settings = {WEIGHT: 'weight'} if weighted else {}
      form = forms.make_form(engine, table, directory / 'old')
      trained = forms.train(
        form, {'x': 'categorical', 'weight': None}, **(CUTS | settings)
      )
      rows = range(160, ROWS)
      new = forms.make_form(
        engine, _take(('x', 'weight', 'label'), rows), directory / 'new'
      )
      scores = trained.run.score(new)
      labels = [TABLE['label'][i] for i in rows]
      weights = [TABLE['weight'][i] for i in rows]
      metrics = forms.import_optional('sklearn.metrics')
      weights = weights if weighted else None
      reported = trained.run.metrics['test']
      peer = metrics.roc_auc_score(labels, scores, sample_weight=weights)
      loss = metrics.log_loss(
        labels, scores.astype(np.float64), sample_weight=weights
      )
      return {
        'AUC differs by': round(abs(reported['auc'] - peer), 5),
        'log loss by': round(abs(reported['logloss'] - loss), 5),
      }

    return auc

  def case(name, expected, measured, against='scikit-learn'):
    return Case(name, 'weights', against, expected, measured)

  def keep_negatives(engine, directory):
    labels = (np.arange(4000) % 20 == 0).astype(int).tolist()
    table = {'x': [1] * 4000, 'label': labels}
    form = forms.make_form(engine, table, directory / 'old')
    settings = {NEGATIVES_KEPT: 0.25, 'optimizer__learning_rate': 0.05}
    # All rows at once, to the optimum of their mean loss. AUC would keep the
    # first step: with one value it is .5 at all of them.
    settings |= {'train__monitor': 'logloss', 'optimizer__schedule': 'cosine'}
    settings |= dict.fromkeys(
      ('train__eval_every', 'train__checkpoint_every'), 100
    )
    trained = forms.train(
      form, {'x': 'categorical'}, **settings, steps=300, train__batch_size=2048
    )
    new = forms.make_form(engine, {'x': [1, 1]}, directory / 'new')
    kept = trained.rows_of('train').labels[:, 0]
    p = kept.mean()
    q = p / (p + (1 - p) / 0.25)
    return {
      'a quarter is kept': bool(abs((kept == 0).sum() / 3420 - 0.25) < 0.05),
      'q': bool(abs(trained.run.score(new)[0] / q - 1) < 0.001),
    }

  def read_shares(engine, directory):
    table = {'x': [1, 2] * 10, 'label': [0.25, 0.75] * 10}
    form = forms.make_form(engine, table, directory / 'old')
    trained = forms.train(
      form,
      {'x': 'categorical'},
      data__label_kinds={'label': 'probability'},
    )
    return trained.rows_of('train').labels[:3, 0].tolist()

  none = {'AUC differs by': 0.0, 'log loss by': 0.0}
  return [
    case('metrics of the report', none, measure_auc(False)),
    case('metrics of the report, with weights', none, measure_auc(True)),
    case(
      'a quarter of the negatives, and the probability of all',
      {'a quarter is kept': True, 'q': True},
      keep_negatives,
      'q = p / (p + (1 - p) / w)',
    ),
    case(
      'labels between 0 and 1',
      [0.25, 0.75, 0.25],
      read_shares,
      'pandas',
    ),
  ]


def _shares() -> list[Case]:
  old = [1, 2, 3, 4] * 9 + [1, NO, 7, 8]  # the last four test
  table = {'x': old, 'label': [0, 1] * 20}

  def read_report(engine, directory):
    form = forms.make_form(engine, table, directory / 'old')
    trained = forms.train(form, {'x': 'categorical'})
    report = json.loads((trained.run.workdir / 'report.json').read_text())
    counts = report['values']['test']['x']
    return {key: counts.get(key) for key in ('values', 'missing', 'unseen')}

  def count():
    import pandas as pd

    train, test = pd.Series(old[:36]), pd.Series(old[36:])
    unseen = ~test.dropna().isin(train)
    return {
      'values': len(test),
      'missing': int(test.isna().sum()),
      'unseen': int(unseen.sum()),
    }

  def score(values):
    def hear(engine, directory):
      table = {'x': [i % 50 for i in range(400)], 'label': [0, 1] * 200}
      form = forms.make_form(engine, table, directory / 'old')
      trained = forms.train(form, {'x': 'categorical'})
      new = forms.make_form(engine, {'x': values}, directory / 'new')
      with forms.hear() as lines:
        trained.run.score(new)
      told = [x for x in lines if x.startswith('WARNING')]
      return ' '.join(told) or 'not a word'

    return hear

  def case(name, expected, measured):
    return Case(name, 'shares', 'pandas', expected, measured)

  return [
    case('missing and unseen values of the test part', count, read_report),
    case(
      'scoring unseen values is told',
      Told(('unseen', "'x'")),
      score([1000 + i for i in range(300)]),
    ),
    case(
      'scoring missing values is told',
      Told(('missing', "'x'")),
      score([1, 2, *[NO] * 298]),
    ),
    case(
      'scoring known values is not told',
      'not a word',
      score([i % 50 for i in range(300)]),
    ),
  ]


def _predictions() -> list[Case]:
  def prepare(engine, directory):
    table = _take(('x', 'user', 'label'))
    form = forms.make_form(engine, table, directory / 'old')
    features = {'x': 'categorical', 'user': 'categorical'}
    return forms.train(form, features, data__init_std=0.5).run

  def case(name, expected, compare):
    return Case(name, 'predictions', 'NumPy', expected, compare, tolerance=1e-5)

  def measure_hole(engine, directory):
    run, new = prepare(engine, directory), _take(('x', 'user'), range(50))
    whole = run.score(forms.make_form(engine, new, directory / 'whole'))
    new = new | {'x': [NO, *new['x'][1:]]}
    holes = run.score(forms.make_form(engine, new, directory / 'holes'))
    return float(np.abs(whole[1:] - holes[1:]).max())

  def measure_order(engine, directory):
    run = prepare(engine, directory)
    order = RNG.permutation(ROWS)
    scores = [
      run.score(forms.make_form(engine, _take(('user', 'n', 'x'), rows), path))
      for rows, path in (
        (range(ROWS), directory / 'one'),
        (order, directory / 'other'),
      )
    ]
    return float(np.abs(scores[0][order] - scores[1]).max())

  def measure_labels(engine, directory):
    run, new = prepare(engine, directory), _take(('x', 'user'), range(50))
    scores = run.score(forms.make_form(engine, new, directory / 'without'))
    new = new | {'label': [NO] * 50}
    empty = run.score(forms.make_form(engine, new, directory / 'empty'))
    return float(np.abs(scores - empty).max())

  def measure_file(engine, directory):
    """The command `--mode=predict` of a file with an empty label column."""
    from genrec_jax.serve import score as score_lib

    run, new = prepare(engine, directory), _take(('x', 'user'), range(50))
    path = forms.make_form(
      engine, new | {'label': [NO] * 50}, directory / 'empty'
    )
    config = run.config.copy_and_resolve_references()
    config.predict.update(input=path, format=engine)
    config.predict.output = str(directory / 'scores.csv')
    score_lib.write_scores(config, run.workdir)
    lines = (directory / 'scores.csv').read_text().splitlines()[1:]
    scores = [float(line.split(',')[-1]) for line in lines]
    expected = run.score(forms.make_form(engine, new, directory / 'without'))
    return float(np.abs(np.array(scores) - expected).max())

  return [
    case('a missing cell changes no other row', 0.0, measure_hole),
    case('the order of rows and other columns', 0.0, measure_order),
    case('an empty column of labels', 0.0, measure_labels),
    Case(
      '--mode=predict of a file with empty labels',
      'predictions',
      'NumPy',
      0.0,
      measure_file,
      FILES,
      1e-3,
    ),
  ]
