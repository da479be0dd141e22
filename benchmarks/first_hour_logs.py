"""Logs that the replayed first hour reads, and what is right of its answers."""

import csv
import datetime
import gzip
import json
import pathlib
import random
import shutil
import subprocess
import tempfile

import numpy as np

COLLECTIONS, PRODUCTS = 8, 12
CUSTOMERS, PURCHASES = 640, 8
HOUR_S = 3640
PURCHASE_COLUMNS = (
  '--config.data.columns.user=customer',
  '--config.data.columns.item=product',
  '--config.data.columns.time=bought_at',
)
CLICKS, NEW_CLICKS = 30_000, 6_000
WIDTHS = (1200, 600)  # pixels of pictures


def name_product(collection: int, number: int) -> str:
  return f'{collection}-{number % PRODUCTS:02d}'


def make_purchases() -> list[tuple[str, str, int]]:
  """Customers buy a collection in order; one purchase in ten is by chance."""
  rng, rows = random.Random(0), []
  for customer in range(CUSTOMERS):
    collection = rng.randrange(COLLECTIONS)
    start, time = rng.randrange(PRODUCTS), 1_700_000_000 + rng.randrange(9**6)
    for n in range(PURCHASES):
      product = name_product(collection, start + n)
      if rng.random() < 0.1:
        product = name_product(rng.randrange(COLLECTIONS), rng.randrange(99))
      rows.append((f'customer-{customer}', product, time + n * HOUR_S))
  return rows


def write_table(path, header, rows, delimiter=',') -> None:
  opened = gzip.open if path.suffix == '.gz' else open
  with opened(path, 'wt', newline='') as file:
    out = csv.writer(file, delimiter=delimiter)
    if header:
      out.writerow(header)
    out.writerows(rows)


def write_purchases(path: pathlib.Path) -> None:
  write_table(path, ['customer', 'product', 'bought_at'], make_purchases())


def write_shapes(folder: pathlib.Path) -> dict[str, list[str]]:
  """One log in six shapes -> the words of the command line that read it."""
  rows = make_purchases()
  header = ['customer', 'product', 'bought_at']
  iso = [
    (u, i, datetime.datetime.fromtimestamp(t, datetime.UTC)
     .strftime('%Y-%m-%d %H:%M:%S UTC'))
    for u, i, t in rows
  ]  # fmt: skip
  write_table(folder / 'plain.csv', header, rows)
  write_table(folder / 'semicolons.csv', header, rows, ';')
  write_table(folder / 'tabs.tsv', header, rows, '\t')
  write_table(folder / 'bare.csv', None, rows)
  write_table(folder / 'dates.csv.gz', header, iso)
  by_number = [
    '--config.data.columns.user=0',
    '--config.data.columns.item=1',
    '--config.data.columns.time=2',
  ]
  words = {
    name: [f'--config.data.path={path}', *PURCHASE_COLUMNS]
    for name, path in (
      ('plain', 'plain.csv'),
      ('semicolons', 'semicolons.csv'),
      ('tabs', 'tabs.tsv'),
      ('dates', 'dates.csv.gz'),
    )
  }
  words['numbers'] = ['--config.data.path=bare.csv', *by_number]
  # A directory of files, as a job of each day writes them.
  days = folder / 'days'
  days.mkdir(exist_ok=True)
  for part in range(3):
    size = -(-len(rows) // 3)
    own = rows[part * size : (part + 1) * size]
    write_table(days / f'day-{part}.csv', header, own)
  words['directory'] = ['--config.data.path=days', *PURCHASE_COLUMNS]
  return words


def write_new_customers(path: pathlib.Path) -> dict[str, str]:
  """Histories of new customers; customer -> the product that follows."""
  rows, follows = [], {}
  for collection in range(3):
    customer = f'new-{collection}'
    for n in range(3, 7):
      time = 1_710_000_000 + n * HOUR_S
      rows.append((customer, name_product(collection, n), time))
    follows[customer] = name_product(collection, 7)
  write_table(path, ['customer', 'product', 'bought_at'], rows)
  return follows


def count_right(path: pathlib.Path, follows: dict[str, str]) -> int:
  """How many customers find the product that follows in their first three."""
  with open(path, newline='') as file:
    rows = list(csv.DictReader(file))
  found = {
    (next(iter(row.values())), value)
    for row in rows
    for value in row.values()
    if int(row.get('rank', 1)) <= 3
  }
  return sum((customer, item) in found for customer, item in follows.items())


def make_clicks(rng, count: int):
  """Columns of clicks, and their true probabilities."""
  user, item = rng.integers(0, 300, count), rng.integers(0, 120, count)
  device = rng.choice(['phone', 'tablet', 'desk'], count)
  age = rng.normal(40, 12, count).round(1)
  tastes = np.random.default_rng(7)
  logits = (
    tastes.normal(0, 1.0, 300)[user]
    + tastes.normal(0, 1.0, 120)[item]
    + 1.5 * (device == 'phone')
    - 1.5
  )
  chance = 1 / (1 + np.exp(-logits))
  times = 1_700_000_000 + np.arange(count) * 60
  return (
    {
      'clicked': (rng.random(count) < chance).astype(int),
      'user_id': [f'u{u}' for u in user],
      'item_id': [f'i{i}' for i in item],
      'device': device,
      'age': age,
      'shown_at': times,
    },
    chance,
  )


def write_clicks(folder: pathlib.Path) -> None:
  """clicks.csv to train with; new_clicks.csv without labels; their answers."""
  rng = np.random.default_rng(0)
  for name, count in (('clicks', CLICKS), ('new_clicks', NEW_CLICKS)):
    columns, chance = make_clicks(rng, count)
    if name == 'new_clicks':
      write_table(
        folder / 'new_clicks_answers.csv',
        ['clicked', 'chance'],
        zip(columns.pop('clicked'), chance, strict=True),
      )
    write_table(
      folder / f'{name}.csv', list(columns), zip(*columns.values(), strict=True)
    )


def measure_scores(
  scores: pathlib.Path, answers: pathlib.Path
) -> tuple[float, float]:
  """AUC of written scores, and of the true probabilities."""
  with open(scores, newline='') as file:
    rows = list(csv.DictReader(file))
  with open(answers, newline='') as file:
    known = list(csv.DictReader(file))
  assert len(rows) == len(known), (len(rows), len(known))
  labels = np.array([int(row['clicked']) for row in known])
  score = np.array([float(row['score']) for row in rows])
  chance = np.array([float(row['chance']) for row in known])
  return count_auc(labels, score), count_auc(labels, chance)


def count_auc(labels: np.ndarray, scores: np.ndarray) -> float:
  """The share of (positive, negative) pairs in the right order."""
  positive, negative = scores[labels == 1], np.sort(scores[labels == 0])
  below = np.searchsorted(negative, positive, 'left')
  upto = np.searchsorted(negative, positive, 'right')
  return float((below + upto).sum() / 2 / len(positive) / len(negative))


def read_report(workdir: pathlib.Path) -> dict:
  return json.loads((workdir / 'report.json').read_text())


def take_pictures(folder: pathlib.Path, pictures: pathlib.Path) -> None:
  """A picture of every page of the runs, at two widths."""
  chromium = shutil.which('chromium') or shutil.which('chromium-browser')
  if chromium is None:
    print('no pictures: chromium is not installed')
    return
  pictures.mkdir(parents=True, exist_ok=True)
  for page in sorted(folder.glob('*/report.html')):
    for width in WIDTHS:
      with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
          [
            chromium, '--headless', '--no-sandbox', '--disable-gpu',
            '--disable-background-networking', '--disable-component-update',
            '--disable-sync', '--no-first-run', f'--user-data-dir={profile}',
            f'--window-size={width},4200',
            f'--screenshot={pictures / f"{page.parent.name}_{width}.png"}',
            page.as_uri(),
          ],
          check=True,
          capture_output=True,
        )  # fmt: skip
