"""The logs on which the old runs were trained."""

import csv
import pathlib

import numpy as np

USERS, ITEMS, EXAMPLES = 26, 300, 130


def _write_events(path: pathlib.Path) -> None:
  """(user, item, time): more items than a few steps touch."""
  rng = np.random.default_rng(0)
  rows = []
  for user in range(USERS):
    count = rng.integers(6, 13)
    items = rng.choice(ITEMS, count, replace=False)
    times = 1_700_000_000 + np.cumsum(rng.integers(60, 90_000, count))
    rows += [
      (f'u{user:02}', f'i{item:03}', time)
      for item, time in zip(items, times, strict=True)
    ]
  _write(path, ('user', 'item', 'time'), rows)


def _write_examples(path: pathlib.Path) -> None:
  """A column of every kind of feature, some cells of it empty."""
  rng = np.random.default_rng(1)

  def some(values: int, most: int, letter: str) -> str:
    drawn = rng.integers(0, values, rng.integers(0, most + 1))
    return '^'.join(f'{letter}{value}' for value in drawn)

  rows = [
    (
      rng.integers(0, 2),
      f'u{rng.integers(0, 9)}',
      rng.choice(['de', 'fr', 'it', 'pl', '']),
      rng.choice(['', f'{rng.uniform(0, 50):.2f}'], p=[0.2, 0.8]),
      rng.integers(18, 80),
      some(6, 3, 't'),
      some(12, 6, 'b'),
    )
    for _ in range(EXAMPLES)
  ]
  names = ('label', 'user', 'country', 'price', 'age', 'tags', 'seen')
  _write(path, names, rows)


def _write(path: pathlib.Path, names, rows) -> None:
  with open(path, 'w', newline='') as file:
    writer = csv.writer(file, lineterminator='\n')
    writer.writerow(names)
    writer.writerows(rows)


WRITE = {'events.csv': _write_events, 'examples.csv': _write_examples}
