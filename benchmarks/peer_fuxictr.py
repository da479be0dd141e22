"""FuxiCTR's preprocessing, for `benchmarks.meaning --peer_python PATH`.

  PATH benchmarks/peer_fuxictr.py QUESTIONS.json ANSWERS.json

A program of its own: it needs FuxiCTR's feature processor (with NumPy, polars,
scikit-learn and h5py; neither torch nor Ray) and nothing of this project. A
question holds the columns to fit on, those to transform and a feature's
options; the answer is what the feature's column becomes: '-' for its padding,
'?' for what is not in its vocabulary, else the row or the number.
"""

import importlib.metadata
import json
import sys
import tempfile
import types

import polars as pl


def main(source: str, target: str) -> None:
  _stand_in_for_ray()
  with open(source) as file:
    questions = json.load(file)
  answers = {name: answer(**question) for name, question in questions.items()}
  with open(target, 'w') as file:
    json.dump(
      {'version': importlib.metadata.version('fuxictr'), 'answers': answers},
      file,
    )


def _stand_in_for_ray() -> None:
  """Ray writes data sets in parallel, which nothing here does."""
  names = 'ray', 'ray.data', 'ray.data.datasource'
  for name in (*names, 'ray.data.datasource.filename_provider'):
    sys.modules[name] = types.ModuleType(name)
  sys.modules['ray.data'].SaveMode = object
  sys.modules['ray.data'].TaskPoolStrategy = object
  sys.modules[name].FilenameProvider = object


def answer(old: list, new: list, options: dict) -> list:
  """What FuxiCTR makes of `new`, fitted on `old`."""
  from fuxictr.preprocess import FeatureProcessor

  label = {'name': 'label', 'dtype': 'float'}
  feature = {'name': 'x', 'active': True, **options}
  with tempfile.TemporaryDirectory() as directory:
    processor = FeatureProcessor([feature], label, 'd', directory)

    def read(values):
      frame = pl.DataFrame({'x': values, 'label': [0.0] * len(values)})
      return processor.preprocess(frame.lazy())

    processor.fit(read(old))
    columns = read(new).collect().to_dict(as_series=False)
    values = list(processor.transform(columns)['x'])
  if feature['type'] == 'numeric':
    return [float(v) for v in values]
  oov = processor.processor_dict['x::tokenizer'].vocab['__OOV__']

  def name(row):
    return '-' if row == 0 else '?' if row == oov else int(row)

  if feature['type'] == 'sequence':  # padding is masked
    return [[name(row) for row in rows if row] for rows in values]
  return [name(row) for row in values]


if __name__ == '__main__':
  main(*sys.argv[1:])
