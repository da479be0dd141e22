"""From a DataFrame to click probabilities: train a ranking model and score.

    python examples/dataframe_ranking.py

The example generates impressions of advertisements whose true probability of a
click is known, trains DeepFM on them and scores new impressions. The data are a
pandas DataFrame if pandas is installed, and else a mapping of arrays. It takes
about 12 seconds on one CPU core.

Prints the probabilities beside the true ones, which they must come near to.
"""

import numpy as np

import genrec_jax

PEOPLE, ADS = ('family', 'student', 'pensioner'), ('toys', 'games', 'garden')
LIKING = np.array([[2.0, 0.0, 1.0], [-1.0, 2.0, -2.0], [0.0, -2.0, 2.0]])
SETTINGS = {
  'model.dim': 8,
  'model.hidden': (32,),
  'train': {'batch_size': 512, 'eval_every': 150, 'log_every': 300},
  'optimizer.learning_rate': 1e-2,
  'data.init_std': 0.05,
}


def find_probability(person, ad, price):
  """What a model can learn at best: who likes what, and that dear is bad."""
  logit = LIKING[person, ad] - np.asarray(price) / 25
  return 1 / (1 + np.exp(-logit))


def make_columns(count: int, seed: int) -> dict[str, np.ndarray]:
  """Impressions as columns, and whether each was clicked."""
  rng = np.random.default_rng(seed)
  person, ad = rng.integers(0, 3, count), rng.integers(0, 3, count)
  price = rng.uniform(0, 60, count)
  clicked = rng.random(count) < find_probability(person, ad, price)
  return {
    'person': np.array(PEOPLE)[person],
    'ad': np.array(ADS)[ad],
    'price': price,
    'click': clicked.astype(np.int64),
  }


def make_frame(columns: dict):
  """A pandas DataFrame where there is pandas; `fit` takes either."""
  try:
    import pandas
  except ImportError:
    return columns
  return pandas.DataFrame(columns)


def main() -> None:
  run = genrec_jax.fit(
    make_frame(make_columns(20_000, seed=0)),
    'deepfm',
    label='click',
    settings=SETTINGS,
    steps=300,
    progress=False,
  )
  print(f'test AUC {run.metrics["test"]["auc"]:.3f}, a constant has 0.500')

  person, ad = np.repeat(np.arange(3), 3), np.tile(np.arange(3), 3)
  price = np.linspace(5, 45, 9)
  shown = {
    'person': np.array(PEOPLE)[person],
    'ad': np.array(ADS)[ad],
    'price': price,
  }
  scores = run.score(make_frame(shown))
  truth = find_probability(person, ad, price)
  for *row, score, true in zip(*shown.values(), scores, truth, strict=True):
    print(
      '{:10} {:7} at {:4.1f}:'.format(*row), f'{score:.2f}, true {true:.2f}'
    )
  assert run.metrics['test']['auc'] > 0.75
  assert np.abs(scores - truth).mean() < 0.06, 'the probabilities are off'


if __name__ == '__main__':
  main()
