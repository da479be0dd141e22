"""Fuzzed inputs: is every file read as an oracle reads it, or refused?

python -m benchmarks.robustness_inputs --count 10000

A case is a file of one layout, good or mutated: bytes flipped, lines cut,
doubled or blank, quotes, mixed line ends, NUL, byte order marks, wrong UTF-8,
cut or flipped gzip, odd numbers, very long fields. Each is read in blocks of 1,
2, 7 and 2^18 rows. The outcomes are

  equal      accepted, and every field is the oracle's
  sentence   refused by a ValueError or OSError that names the file
  wrong      accepted with other values, or block by block differently, or a
             good file refused
  silent     accepted where the oracle refuses
  traceback  any other exception, or one that does not name the file
  crash      the process died
"""

import argparse
import collections
import dataclasses
import gzip
import json
import pathlib
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

from benchmarks import robustness_layouts as text
from benchmarks import robustness_parquet as parquet
from benchmarks import robustness_requests as requests
from benchmarks import robustness_serving as serving
from benchmarks.robustness_layouts import Layout
from benchmarks.robustness_mutations import mutate_bytes, mutate_text
from benchmarks.robustness_oracles import Refusal
from genrec_jax.data import readers

OUTCOMES = ('equal', 'sentence', 'wrong', 'silent', 'traceback', 'crash')
BLOCKS = (1, 2, 7, 1 << 18)
ROOT = pathlib.Path(__file__).parents[1]
BATCH = 1000  # cases of one process
LONGEST_SENTENCE = 1500  # characters, with the path


@dataclasses.dataclass(frozen=True)
class Case:
  """A file to read; `is_good` where nothing was done to it."""

  layout: str
  content: bytes
  is_good: bool = False


LAYOUTS = {
  'csv, whole ids': Layout(
    'log.csv',
    text.make_events_csv(False),
    text.read_csv('int'),
    text.expect_csv(False),
  ),
  'csv, text ids': Layout(
    'log.csv',
    text.make_events_csv(True),
    text.read_csv('str'),
    text.expect_csv(True),
  ),
  'csv.gz': Layout(
    'log.csv.gz',
    text.make_events_csv(True, True),
    text.read_csv('str'),
    text.expect_csv(True, True),
    packed=True,
  ),
  'csv, delimiter not said': Layout(
    'log.csv',
    text.make_found(True),
    text.read_found(text.FOUND),
    text.expect_found(True),
  ),
  'csv, no header': Layout(
    'log.tsv',
    text.make_found(False),
    text.read_found(text.BY_NUMBER),
    text.expect_found(False),
  ),
  'u.data': Layout(
    'u.data',
    text.make_fixed('\t', 'uirt'),
    text.read_fixed(readers.movielens_tab),
    text.expect_fixed('\t', 'uirt'),
  ),
  'ratings.dat': Layout(
    'ratings.dat',
    text.make_fixed('::', 'uirt'),
    text.read_fixed(readers.movielens_dat),
    text.expect_fixed('::', 'uirt'),
  ),
  'sasrec.txt': Layout(
    'sasrec.txt',
    text.make_fixed(' ', 'ui'),
    text.read_fixed(readers.sasrec_text),
    text.expect_fixed(' ', 'ui'),
  ),
  'movies.dat': Layout(
    'movies.dat',
    text.make_catalogue('::'),
    text.read_catalogue,
    text.expect_catalogue('::'),
  ),
  'u.item': Layout(
    'u.item',
    text.make_catalogue('|'),
    text.read_catalogue,
    text.expect_catalogue('|'),
  ),
  'movies.csv': Layout(
    'movies.csv',
    text.make_catalogue(','),
    text.read_catalogue,
    text.expect_catalogue(','),
  ),
  'titles': Layout(
    'titles.csv', text.make_titles, text.read_titles, text.expect_titles
  ),
  'part of a stream': Layout(
    'part.csv', text.make_events_csv(True), text.read_part, text.expect_part
  ),
  'histories to predict for': Layout(
    'new.csv',
    text.make_events_csv(True),
    serving.read_histories,
    serving.expect_histories,
  ),
  'ranking csv': Layout(
    'x.csv',
    text.make_examples,
    text.read_examples('csv', ['label', 'user', 'price']),
    text.expect_examples,
  ),
  'criteo': Layout(
    'train.txt',
    text.make_criteo,
    text.read_examples('criteo', text.CRITEO),
    text.expect_criteo,
  ),
  'libsvm': Layout(
    'x.libsvm',
    text.make_libsvm,
    text.read_examples('libsvm', ['label', 'indices']),
    text.expect_libsvm,
  ),
  'parquet': Layout(
    'log.parquet',
    parquet.make_parquet,
    parquet.read_parquet,
    parquet.expect_parquet,
    binary=True,
  ),
  'ranking parquet': Layout(
    'x.parquet',
    parquet.make_example_parquet,
    parquet.read_example_parquet,
    parquet.expect_example_parquet,
    binary=True,
  ),
  'records': Layout(
    'records.txt',
    serving.make_records,
    serving.read_records,
    serving.expect_records,
  ),
  'requests of ratings.csv': Layout(
    'ratings.csv',
    requests.make_ratings,
    requests.read_ratings,
    requests.expect_ratings,
  ),
  'requests of users.dat': Layout(
    'users.dat',
    requests.make_users,
    requests.read_users,
    requests.expect_users,
  ),
  'requests of KuaiRand': Layout(
    requests.KUAIRAND_LOG,
    requests.make_log,
    requests.read_log,
    requests.expect_log,
  ),
  'requests of Yambda': Layout(
    'multi_event.parquet',
    requests.make_yambda,
    requests.read_yambda,
    requests.expect_yambda,
    binary=True,
  ),
  'candidates to score': Layout(
    'candidates.csv',
    requests.make_candidates,
    requests.read_candidates,
    requests.expect_candidates,
  ),
}


def make_case(seed: int, number: int, name: str = '') -> Case:
  """Case `number` of a seed; one in eight is a good file.

  Args:
    seed: of all cases.
    number: of this one.
    name: of its layout; '' goes by the number.
  """
  rng = random.Random(f'{seed}/{number}')
  name = name or list(LAYOUTS)[number % len(LAYOUTS)]
  layout = LAYOUTS[name]
  content = layout.make(rng)
  if rng.random() < 1 / 8:
    return Case(name, content, True)
  if rng.random() < 0.01:
    return Case(name, rng.choice([b'', b'\n', rng.randbytes(50)]))
  for _ in range(rng.choice([1, 1, 2, 3])):
    if layout.binary or (layout.packed and rng.random() < 0.3):
      content = mutate_bytes(rng, content)
    elif layout.packed:
      try:
        text = gzip.decompress(content)
      except (OSError, EOFError, gzip.zlib.error):
        continue
      content = gzip.compress(mutate_text(rng, text))
    else:
      content = mutate_text(rng, content)
  return Case(name, content)


def judge(case: Case, directory: pathlib.Path) -> tuple[str, str]:
  """The outcome of a case, and what is to be said of it.

  Args:
    case: the file.
    directory: where it may be written.
  """
  layout = LAYOUTS[case.layout]
  return judge_layout(layout, case.content, case.is_good, directory)


def judge_layout(
  layout: Layout, content: bytes, is_good: bool, directory: pathlib.Path
) -> tuple[str, str]:
  """As `judge`, for any layout."""
  path = directory / layout.name
  path.write_bytes(content)
  try:
    expected = layout.expect(content)
  except Refusal:
    expected = None
  outcomes = {}
  for rows in BLOCKS:
    outcome, said = _judge_reading(layout, path, rows, expected)
    if outcome not in ('equal', 'sentence'):
      return outcome, f'blocks of {rows}: {said}'
    outcomes.setdefault(outcome, said)
  if len(outcomes) > 1:
    return 'wrong', f'by the block: {outcomes}'
  if is_good and expected is not None and 'sentence' in outcomes:
    return 'wrong', f'a good file is refused: {outcomes}'
  return outcomes.popitem()


def _judge_reading(layout, path, rows, expected) -> tuple[str, str]:
  try:
    actual = layout.read(path, rows)
  except (ValueError, OSError) as e:
    text = str(e)
    if str(path) not in text:
      return 'traceback', f'names no file: {e!r}'[:500]
    if len(text) - len(str(path)) > LONGEST_SENTENCE:
      return 'traceback', f'{len(text)} characters: {text[:300]}'
    return 'sentence', text
  except Exception as e:
    return 'traceback', f'{e!r}'[:500]
  if expected is None:
    return 'silent', f'{actual}'[:500]
  if repr(actual) != repr(expected):  # NaN, -0.0 and the types count
    return 'wrong', f'{actual} instead of {expected}'[:1000]
  return 'equal', ''


def judge_range(
  seed: int, numbers: range, directory: pathlib.Path
) -> Iterator[tuple[int, str, str, str]]:
  """(number, layout, outcome, what is to be said) of each case."""
  for number in numbers:
    case = make_case(seed, number)
    yield number, case.layout, *judge(case, directory)


def _judge_in_process(seed: int, numbers: range) -> Iterator[tuple]:
  """The same in another process, which a case may bring down."""
  while len(numbers):
    command = [sys.executable, '-m', 'benchmarks.robustness_inputs', '--judge']
    command += map(str, [seed, numbers.start, numbers.stop])
    options = dict(stdout=subprocess.PIPE, text=True, cwd=ROOT)
    with subprocess.Popen(command, **options) as child:
      for line in child.stdout:
        answer = json.loads(line)
        numbers = range(answer[0] + 1, numbers.stop)
        yield tuple(answer)
    if len(numbers):
      layout = make_case(seed, numbers.start).layout
      yield numbers.start, layout, 'crash', f'status {child.returncode}'
      numbers = range(numbers.start + 1, numbers.stop)


def run(
  count: int, seed: int, log: Callable[[str], None] = lambda line: None
) -> list[dict]:
  """Judges `count` cases.

  Args:
    count: of the cases.
    seed: of the cases; the same seed gives the same.
    log: told about each case that is neither 'equal' nor 'sentence'.

  Returns:
    A row for each layout, with the number of cases by outcome.
  """
  counts = {name: collections.Counter() for name in LAYOUTS}
  for first in range(0, count, BATCH):
    numbers = range(first, min(count, first + BATCH))
    for number, layout, outcome, said in _judge_in_process(seed, numbers):
      counts[layout][outcome] += 1
      if outcome not in ('equal', 'sentence'):
        log(f'{seed}/{number} {layout}: {outcome}: {said}')
  return [
    {'case': name, 'cases': sum(found.values())}
    | {outcome: found[outcome] for outcome in OUTCOMES}
    for name, found in counts.items()
  ]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--count', type=int, default=10_000)
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--judge', type=int, nargs=3, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.judge:
    seed, first, stop = args.judge
    with tempfile.TemporaryDirectory() as directory:
      for answer in judge_range(
        seed, range(first, stop), pathlib.Path(directory)
      ):
        print(json.dumps(answer), flush=True)
    return
  for row in run(args.count, args.seed, print):
    print(row)


if __name__ == '__main__':
  main()
