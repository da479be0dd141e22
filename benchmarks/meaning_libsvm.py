"""Cases of `benchmarks.meaning`: libsvm files, beside scikit-learn's reader."""

import functools
import io
import pathlib

import numpy as np
from ml_collections import ConfigDict

from benchmarks import meaning_forms as forms
from benchmarks.meaning_cases import Case
from genrec_jax import config as config_lib
from genrec_jax import load
from genrec_jax.data.ranking import formats
from genrec_jax.serve.scorer import Scorer
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import loop

RNG = np.random.default_rng(3)
ENGINES = ('libsvm',)
SHOWN = [0, 1, 39, 40, 53]  # rows of 54 that are compared
COLUMNS_OF_INDICES = {f'x{i}': 'numeric' for i in (1, 2, 3)}


def list_cases() -> list[Case]:
  """All cases of this file."""
  rows = _make_rows(2000)
  sparse = ''.join(
    f'{label} ' + ' '.join(f'{i}:{v:.3f}' for i, v in pairs) + '\n'
    for label, pairs in rows
  )
  shifted = ''.join(
    f'{n % 2} 1:1 {2 + (n >= 40)}:{5 + n / 100:.2f}\n' for n in range(60)
  )
  queries = ''.join(
    f'{n % 2} qid:{n // 6} 1:{n / 8:.3f} 2:{n % 5}\n' for n in range(60)
  )
  signed = ''.join(f'{"-+"[n % 2]}1 {n % 7}:1\n' for n in range(60))
  return [
    _case(
      'AUC of values in rows of any length',
      lambda: _fit_peer(sparse),
      functools.partial(_fit_own, sparse),
      0.02,
    ),
    _case(
      'the value of an index, wherever it stands',
      lambda: _read_peer(shifted)[0][SHOWN, 1:].tolist(),
      functools.partial(_read_numbers, shifted),
    ),
    _case(
      'qid gives the groups',
      lambda: _name_groups(_read_peer(queries)[2][:54:4]),
      functools.partial(_read_groups, queries),
    ),
    _case(
      'qid is no feature',
      lambda: 2,
      functools.partial(_read_features, queries),
    ),
    _case(
      'labels of -1 and +1',
      lambda: (_read_peer(signed)[1][:6] > 0).astype(int).tolist(),
      functools.partial(_read_labels, signed),
    ),
    _case(
      'a new file with a pair more in front',
      lambda: [0.0],
      functools.partial(_score_shifted, sparse),
    ),
  ]


def _case(name, expected, measure, tolerance=1e-6) -> Case:
  return Case(
    name,
    'libsvm',
    'scikit-learn',
    expected,
    lambda engine, directory: measure(directory),
    ENGINES,
    tolerance,
  )


def _make_rows(count: int):
  """Labels by the sign of sums of the values of one to four indices."""
  rows = []
  for _ in range(count):
    size = RNG.integers(1, 5)
    indices = sorted(RNG.choice(np.arange(1, 7), size, replace=False).tolist())
    values = RNG.normal(size=size).round(3)
    chance = 1 / (1 + np.exp(-3 * values.sum()))
    rows.append((int(RNG.random() < chance), list(zip(indices, values))))
  return rows


def _read_peer(text: str):
  """(values by index, labels, queries) by scikit-learn."""
  reader = forms.import_optional('sklearn.datasets')
  values, labels, queries = reader.load_svmlight_file(
    io.BytesIO(text.encode()), query_id=True, zero_based=True
  )
  return values.toarray(), labels, queries


def _fit_peer(text: str) -> float:
  """AUC of the last tenth by logistic regression on the rest."""
  linear = forms.import_optional('sklearn.linear_model')
  metrics = forms.import_optional('sklearn.metrics')
  values, labels, _ = _read_peer(text)
  cut = len(labels) - len(labels) // 10
  model = linear.LogisticRegression(C=1e3).fit(values[:cut], labels[:cut])
  return float(
    metrics.roc_auc_score(labels[cut:], model.decision_function(values[cut:]))
  )


def _write(text: str, directory: pathlib.Path, name='data') -> str:
  path = directory / f'{name}.libsvm'
  path.write_text(text)
  return str(path)


def _train(text: str, directory: pathlib.Path, **settings):
  """A run of logistic regression on a libsvm file, and its data."""
  with forms.hear():
    run = _fit(_write(text, directory), directory, settings)
  return run, forms.open_data(run)


def _fit(path: str, directory: pathlib.Path, settings) -> object:
  config = config_lib.ranking()
  config.model = config_lib.lr()
  config.update_from_flattened_dict(forms.SETTINGS)
  config.data.name, config.data.path = 'libsvm', path
  config.train.steps = 1
  config.update_from_flattened_dict(settings)
  workdir = directory / 'run'
  loop.train_and_evaluate(config.lock(), workdir, TASK_KINDS)
  return load(workdir)


def _fit_own(text: str, directory: pathlib.Path) -> float:
  settings = {
    'train.steps': 600,
    'train.batch_size': 256,
    'optimizer.learning_rate': 0.05,
  }
  return _train(text, directory, **settings)[0].metrics['test']['auc']


def _read_numbers(text: str, directory: pathlib.Path) -> list:
  """The values of indices 1, 2 and 3 in the training rows."""
  features = ConfigDict(COLUMNS_OF_INDICES)
  _, data = _train(text, directory, **{'data.features': features})
  numbers = data.splits['train'].rows(0, 54).numbers
  return np.round(numbers[SHOWN].astype(float), 6).tolist()


def _name_groups(queries) -> list[int]:
  """Groups numbered as they come."""
  first: dict = {}
  return [first.setdefault(q, len(first)) for q in np.asarray(queries).tolist()]


def _read_groups(text: str, directory: pathlib.Path) -> list[int]:
  _, data = _train(text, directory)
  group = data.splits['train'].rows(0, 54).group
  return 'no groups' if group is None else _name_groups(group[::4])


def _read_features(text: str, directory: pathlib.Path):
  """The number of features: indices 1 and 2, not qid."""
  _, data = _train(text, directory)
  names = data.encoder.schema.names
  return len(names.numbers) + len(names.ids)


def _read_labels(text: str, directory: pathlib.Path) -> list[int]:
  _, data = _train(text, directory)
  return data.splits['train'].rows(0, 54).labels[:6, 0].tolist()


def _score_shifted(text: str, directory: pathlib.Path) -> list[float]:
  """By how much a pair of an unknown index in front changes the scores."""
  run, _ = _train(text, directory, **{'data.init_std': 0.5})
  lines = text.splitlines()[:20]
  shifted = [f'{x.split()[0]} 0:0 {" ".join(x.split()[1:])}' for x in lines]
  scorer = Scorer.load(run.workdir)

  def score(rows, name):
    path = pathlib.Path(_write('\n'.join(rows) + '\n', directory, name))
    chunks = formats.read_examples(scorer.encoder, path, 'libsvm')
    return np.concatenate(list(scorer.score_chunks(chunks)))

  scores = score(lines, 'one'), score(shifted, 'other')
  return [float(np.abs(scores[0] - scores[1]).max().round(6))]
