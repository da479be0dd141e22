"""Cases of `benchmarks.meaning`: metrics, monitors, rates."""

import math
import pathlib

import numpy as np

from benchmarks import meaning_forms as forms
from benchmarks.meaning_cases import Case, Told, refusal
from genrec_jax import config as config_lib
from genrec_jax.evaluators.progressive import Progressive
from genrec_jax.runtime import optimizer as optimizer_lib
from genrec_jax.tasks import metrics, ranking_metrics
from genrec_jax.train.monitor import parse_monitor

NAN = math.nan
# Scores of 400 examples, of which many tie; weights and groups of them.
RNG = np.random.default_rng(0)
LOGITS = np.round(RNG.normal(size=400), 1)
LABELS = (RNG.random(400) < 1 / (1 + np.exp(-LOGITS))).astype(np.float64)
WEIGHTS = RNG.integers(0, 4, 400).astype(np.float64)
GROUPS = RNG.integers(0, 60, 400)


def list_cases() -> list[Case]:
  """All cases of this file."""
  return [
    *_ranking(),
    *_progressive(),
    *_retrieval(),
    *_monitors(),
    *_rates(),
  ]


def _case(part, name, against, expected, measure, tolerance=1e-9) -> Case:
  return Case(
    name, part, against, expected, lambda *_: measure(), ('',), tolerance
  )


def _sklearn():
  return forms.import_optional('sklearn.metrics')


def _probability(logits) -> np.ndarray:
  return 1 / (1 + np.exp(-np.asarray(logits, np.float64)))


def _of_groups(logits, labels, weights, groups) -> float:
  """The mean AUC of the groups with both labels, by their weight."""
  total = weight = 0.0
  for group in np.unique(groups):
    own = (groups == group) & (weights > 0)
    if len(set(labels[own])) == 2:
      auc = _sklearn().roc_auc_score(
        labels[own], logits[own], sample_weight=weights[own]
      )
      total += weights[own].sum() * auc
      weight += weights[own].sum()
  return total / weight if weight else NAN


def _entropy(labels, weights) -> float:
  rate = np.average(labels, weights=weights)
  return _sklearn().log_loss(
    labels, np.full(len(labels), rate), sample_weight=weights
  )


def _ranking() -> list[Case]:
  def measured(name, logits, labels, weights=None, groups=None):
    def measure():
      columns = np.asarray(logits)[:, None], np.asarray(labels)[:, None]
      return ranking_metrics.measure_labels(*columns, weights, groups)[name]

    return measure

  def case(title, name, expected, *data, against='scikit-learn'):
    part = 'ranking metrics'
    return _case(part, title, against, expected, measured(name, *data))

  ones = np.ones(400)
  p = _probability(LOGITS)
  few = [0.1, 0.4, -0.3]
  return [
    case(
      'AUC with ties',
      'auc',
      lambda: _sklearn().roc_auc_score(LABELS, LOGITS),
      LOGITS,
      LABELS,
    ),
    case(
      'AUC with ties and weights, some of them 0',
      'auc',
      lambda: _sklearn().roc_auc_score(LABELS, LOGITS, sample_weight=WEIGHTS),
      LOGITS,
      LABELS,
      WEIGHTS,
    ),
    case('AUC of a constant score', 'auc', 0.5, np.ones(400), LABELS),
    case('AUC of one class is NaN', 'auc', NAN, few, [1.0] * 3),
    case('AUC of no example is NaN', 'auc', NAN, [], []),
    case(
      'AUC where the sigmoid saturates',
      'auc',
      1.0,
      [30.0, 40.0, 50.0],
      [0.0, 1.0, 1.0],
      against='by hand',
    ),
    case(
      'gAUC',
      'gauc',
      lambda: _of_groups(LOGITS, LABELS, ones, GROUPS),
      LOGITS,
      LABELS,
      None,
      GROUPS,
    ),
    case(
      'gAUC with weights',
      'gauc',
      lambda: _of_groups(LOGITS, LABELS, WEIGHTS, GROUPS),
      LOGITS,
      LABELS,
      WEIGHTS,
      GROUPS,
    ),
    case(
      'gAUC without a group of both labels is NaN',
      'gauc',
      NAN,
      LOGITS,
      LABELS,
      None,
      np.arange(400),
    ),
    case(
      'log loss',
      'logloss',
      lambda: _sklearn().log_loss(LABELS, p),
      LOGITS,
      LABELS,
    ),
    case(
      'log loss with weights',
      'logloss',
      lambda: _sklearn().log_loss(LABELS, p, sample_weight=WEIGHTS),
      LOGITS,
      LABELS,
      WEIGHTS,
    ),
    case(
      'normalised entropy',
      'ne',
      lambda: _sklearn().log_loss(LABELS, p) / _entropy(LABELS, ones),
      LOGITS,
      LABELS,
    ),
    case(
      'normalised entropy with weights',
      'ne',
      lambda: (
        _sklearn().log_loss(LABELS, p, sample_weight=WEIGHTS)
        / _entropy(LABELS, WEIGHTS)
      ),
      LOGITS,
      LABELS,
      WEIGHTS,
    ),
    case('normalised entropy of one class is NaN', 'ne', NAN, few, [1.0] * 3),
    case(
      'calibration',
      'calibration',
      float(p.mean() / LABELS.mean()),
      LOGITS,
      LABELS,
      against='NumPy',
    ),
    case(
      'calibration with weights',
      'calibration',
      float(p @ WEIGHTS / (LABELS @ WEIGHTS)),
      LOGITS,
      LABELS,
      WEIGHTS,
      against='NumPy',
    ),
    case(
      'calibration without a positive is NaN',
      'calibration',
      NAN,
      few,
      [0.0] * 3,
      against='NumPy',
    ),
  ]


def _progressive() -> list[Case]:
  def case(spread):
    rng = np.random.default_rng(1)
    logits = rng.normal(-3.5, spread, 20_000).astype(np.float32)
    lift = (logits + 3.5) / spread * 0.3
    labels = (rng.random(20_000) < _probability(lift - 1)).astype(np.float32)

    def measure():
      progressive = Progressive(('click',))
      for part in np.split(np.arange(20_000), 20):
        columns = logits[part, None], labels[part, None]
        progressive.update(*columns, np.ones(len(part)))
      return progressive.metrics()['auc']

    return _case(
      'progressive evaluation',
      f'AUC of scores that lie within {spread:g}',
      'scikit-learn',
      lambda: float(_sklearn().roc_auc_score(labels, logits)),
      measure,
      2e-3,
    )

  return [
    *(case(spread) for spread in (1.0, 1e-2, 1e-3, 1e-4)),
    _case(
      'progressive evaluation',
      'what was learned before is told or refused',
      'by hand',
      Told(('lifetime',)),
      lambda: hear_run(eval__progressive='lifetime', steps=40),
    ),
  ]


def hear_run(**settings) -> str:
  """The warnings of a run on 200 examples, whose users have one label each."""
  users = [n % 40 for n in range(200)]
  table = {'x': users, 'g': users, 'label': [user % 2 for user in users]}
  records = forms.make_form('records', table, pathlib.Path())
  features = {'x': 'categorical', 'g': None}
  lines = forms.train(records, features, **settings).lines
  return ' '.join(x for x in lines if x.startswith('WARNING')) or 'not a word'


def _retrieval() -> list[Case]:
  def case(name, expected, ranks, ks, **options):
    def measure():
      values = metrics.ranking_metrics(np.array(ranks), ks, **options)
      return {key: values[key] for key in expected}

    return _case('retrieval metrics', name, 'by hand', expected, measure)

  inf = math.inf
  return [
    case(
      'hit rate, NDCG and MRR of ranks 1, 3 and 7',
      {
        'hr@3': 2 / 3,
        'ndcg@3': (1 + 1 / math.log2(4)) / 3,
        'mrr': (1 + 1 / 3 + 1 / 7) / 3,
      },
      [1.0, 3.0, 7.0],
      (3,),
    ),
    case('a rank of k is a hit', {'hr@5': 1.0, 'hr@4': 0.0}, [5.0], (4, 5)),
    case(
      'a rank between two, of a tie',
      {'hr@2': 1.0, 'hr@1': 0.0, 'ndcg@2': 1 / math.log2(2.5), 'mrr': 1 / 1.5},
      [1.5],
      (1, 2),
    ),
    case(
      'a miss is none for k beyond the catalogue',
      {'hr@100': 0.0, 'ndcg@100': 0.0, 'mrr': 0.0},
      [inf, inf],
      (100,),
    ),
    case(
      'a miss is none for k beyond miss_rank',
      {'hr@100': 0.0, 'ndcg@100': 0.0, 'mrr': 1 / 51},
      [60.0, 70.0, inf],
      (100,),
      miss_rank=51,
    ),
    case(
      'no example is NaN',
      {'hr@1': NAN, 'ndcg@1': NAN, 'mrr': NAN},
      [],
      (1,),
    ),
  ]


def _monitors() -> list[Case]:
  said = ranking_metrics.DIRECTIONS | {'examples': 'none'}

  def choose(text, values):
    """The evaluation that a monitor keeps, counted from 0."""
    monitor = parse_monitor(text, list(said), said)
    best = at = None
    for i, metrics_ in enumerate(values):
      value = monitor.measure(metrics_)
      if monitor.is_better(value, best):
        best, at = value, i
    return at

  def case(name, text, expected, **columns):
    values = [
      dict(zip(columns, row, strict=True))
      for row in zip(*columns.values(), strict=True)
    ]
    return _case(
      'monitors', name, 'by hand', expected, lambda: choose(text, values)
    )

  return [
    case('the highest AUC', 'auc', 1, auc=[0.6, 0.8, 0.7]),
    case('the first of equal ones', 'auc', 0, auc=[0.8, 0.8]),
    case('the lowest log loss', 'logloss', 2, logloss=[0.6, 0.7, 0.5]),
    case(
      'the calibration next to 1', 'calibration', 1, calibration=[1.3, 0.9, 1.2]
    ),
    case('NaN first', 'gauc', 2, gauc=[NAN, 0.6, 0.7]),
    case('NaN between', 'logloss', 2, logloss=[0.6, NAN, 0.5]),
    case('NaN always', 'gauc', None, gauc=[NAN, NAN]),
    case(
      'a sum of two',
      'auc:1,logloss:-1',
      1,
      auc=[0.7, 0.72, 0.7],
      logloss=[0.5, 0.4, 0.45],
    ),
    _case(
      'monitors',
      'a gAUC of users with one label each is told',
      'by hand',
      Told(('gauc', 'nan')),
      lambda: hear_run(
        group='g', train__monitor='gauc', data__split__valid_fraction=0.2
      ),
    ),
    case(
      'what has no direction', 'examples', refusal('examples'), examples=[1, 2]
    ),
  ]


def _rates() -> list[Case]:
  def section(**fields):
    settings = config_lib.ranking().optimizer.copy_and_resolve_references()
    settings.update(fields)
    return settings

  def case(name, expected, steps=6, rate=optimizer_lib.learning_rate, **fields):
    def measure():
      schedule = rate(section(**fields))
      return [float(schedule(step)) for step in range(steps)]

    return _case('rates', name, 'by hand', expected, measure, 1e-6)

  def refused(name, *words, **settings):
    return _case(
      'rates', name, 'by hand', refusal(*words), lambda: hear_run(**settings)
    )

  cosine = [(1 + math.cos(math.pi * i / 4)) / 2 for i in range(5)]
  return [
    case(
      'a warm-up of 4 steps',
      [0.25, 0.5, 0.75, 1.0, 1.0, 1.0],
      learning_rate=1.0,
      warmup_steps=4,
    ),
    case(
      'a warm-up of rows',
      [0.25, 0.5, 0.75, 1.0, 1.0, 1.0],
      rate=optimizer_lib.row_rate,
      rows={'learning_rate': 1.0},
      warmup_steps=4,
    ),
    case('a warm-up of 1 step', [1.0] * 6, learning_rate=1.0, warmup_steps=1),
    case(
      'cosine to 0',
      [*cosine, 0.0],
      learning_rate=1.0,
      schedule='cosine',
      decay_steps=4,
    ),
    case(
      'linear to 0',
      [1.0, 0.75, 0.5, 0.25, 0.0, 0.0],
      learning_rate=1.0,
      schedule='linear',
      decay_steps=4,
    ),
    refused(
      'a weight decay that adam ignores',
      'weight_decay',
      'adam',
      optimizer__name='adam',
      optimizer__weight_decay=0.5,
    ),
    refused(
      'a weight decay that sgd ignores',
      'weight_decay',
      'sgd',
      optimizer__name='sgd',
      optimizer__weight_decay=0.5,
    ),
  ]
