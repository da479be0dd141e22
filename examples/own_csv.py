"""From your own CSV to recommendations: train, look at metrics, ask, save.

    python examples/own_csv.py

The example writes a log of purchases in which customers buy the products of a
collection in order, trains SASRec on it and predicts what three new customers
buy next. It takes about 30 seconds on one CPU core.

Prints the metrics beside those of popularity, and three recommendations, which
must be the products that follow in their collections.
"""

import csv
import pathlib
import random
import tempfile

import genrec_jax

COLLECTIONS, PRODUCTS = 8, 12
SETTINGS = {  # a small model for a small log; the rest are the defaults
  'model.dim': 32,
  'model.ffn_dim': 32,
  'model.blocks': 1,
  'model.max_len': 8,
  'optimizer.learning_rate': 5e-3,
  'train': {'batch_size': 64, 'eval_every': 100, 'log_every': 200},  # steps
}


def name_product(collection: int, number: int) -> str:
  return f'{collection}-{number % PRODUCTS:02d}'


def write_log(path: pathlib.Path) -> None:
  """640 customers with 8 purchases each; one purchase in ten is by chance."""
  rng, hour = random.Random(0), 3640
  with path.open('w', newline='') as file:
    log = csv.writer(file)
    log.writerow(['customer', 'product', 'bought_at'])
    for customer in range(640):
      collection = rng.randrange(COLLECTIONS)
      start, time = rng.randrange(PRODUCTS), 1_700_000_000 + rng.randrange(9**6)
      for n in range(8):
        product = name_product(collection, start + n)
        if rng.random() < 0.1:
          product = name_product(rng.randrange(99) % 8, rng.randrange(99))
        log.writerow([f'customer-{customer}', product, time + n * hour])


def main() -> None:
  with tempfile.TemporaryDirectory() as folder:
    log = pathlib.Path(folder) / 'purchases.csv'
    write_log(log)
    names = dict(user='customer', item='product', time='bought_at')
    more = dict(settings=SETTINGS, steps=200, progress=False)
    run = genrec_jax.fit(log, 'sasrec', **names, **more)
    test, popularity = run.metrics['test'], run.baselines['popularity']['test']
    for name in ('hr@1', 'hr@10', 'ndcg@10'):
      print(f'{name:8} {test[name]:.3f}, popularity {popularity[name]:.3f}')

    run.save(f'{folder}/model')  # another process loads it, without the log
    model = genrec_jax.load(f'{folder}/model')
    for collection in range(3):
      history = [name_product(collection, number) for number in (3, 4, 5, 6)]
      (answers,) = model.recommend([history], k=3)
      items = [item for item, score in answers]
      print(f'after {" ".join(history)} come {" ".join(items)}')
      assert items[0] == name_product(collection, 7), 'the product that follows'
  assert test['hr@10'] > 2 * popularity['hr@10']


if __name__ == '__main__':
  main()
