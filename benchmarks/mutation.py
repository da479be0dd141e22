"""Which mistakes in the library would the tests not see?

  python -m benchmarks.mutation --mutants 100 --seed 0 --hours 3
  python -m benchmarks.mutation --only genrec_jax/runtime --tests tests/runtime
  python -m benchmarks.mutation --again     # survivors meet newer tests

A mutant is the library with one small mistake (`mutation_sites`), drawn by a
seeded generator among all places that some test runs. It meets the tests that
run its line, the quickest first, until one fails. One that no test kills is
listed with its lines: a test is missing there, or the mutation changes nothing,
which `mutation_equivalents` then argues. The score is killed / (all -
equivalent).

Everything happens in a copy of the checkout. Which test runs which line is
found out once, and kept below `--work` for as long as the sources and these
tests stay as they are. A row is written as soon as it is known, and is not
measured again while its file is the same: the same command continues.
"""

import argparse
import hashlib
import json
import os
import pathlib
import tempfile

import numpy as np

from benchmarks import cli, result
from benchmarks.mutation_checkout import ROOT, Checkout, copied
from benchmarks.mutation_equivalents import EQUIVALENT
from benchmarks.mutation_sites import Mutation, find

TARGETS = (
  'genrec_jax/runtime',
  'genrec_jax/report',
  'genrec_jax/train',
  'genrec_jax/tasks',
  'genrec_jax/embedding',
  'pallas_kernels/jagged_embedding/rules.py',
)
# Those that reach the targets within their own process.
TESTS = (
  'tests/embedding',
  'tests/evaluators',
  'tests/kernels/jagged_embedding_api_test.py',
  'tests/kernels/jagged_embedding_rules_test.py',
  'tests/kernels/jagged_embedding_test.py',
  'tests/kernels/jagged_embedding_update_test.py',
  'tests/report',
  'tests/runtime',
  'tests/serve',
  'tests/tasks',
  'tests/train',
  'tests/e2e/bits_test.py',
  'tests/e2e/sharded_test.py',
)
TESTS_S = 150.0  # of tests that a mutant meets at most, the quickest
START_S = 120.0  # until pytest has collected them, on a busy machine
LIMIT_X = 5.0  # times what the tests take without a mutation
KILLED = ('killed', 'timeout')
OUTCOMES = (*KILLED, 'survived', 'equivalent')
NOTES = (
  'score = killed / (mutants - equivalent); a mutant that runs out of time, '
  f'{LIMIT_X:g} times what its tests take without it, is killed.',
  f'A mutant meets tests of {TESTS_S:g} s at most, the quickest of those that '
  'run its line; `covering` is how many do.',
)


def main(argv: list[str] | None = None, root: pathlib.Path = ROOT) -> None:
  args = _parser().parse_args(argv)
  if args.smoke:
    args.mutants, args.only = 2, 'genrec_jax/embedding/plan.py'
    args.tests = ['tests/embedding/plan_test.py']
  keep = not args.smoke or args.results
  files = python_files(root, [args.only] if args.only else TARGETS)
  texts = {file: (root / file).read_text() for file in files}
  rows = _old_rows(args, root) if keep else {}
  with result.CoreTimer() as timer, copied(root, args.work) as checkout:
    covering = cover(checkout, files, args.tests)
    if args.again:
      drawn = survivors_of(rows, texts)
    else:
      drawn = draw(texts, covering, args.mutants, args.seed)
    for number, mutation in enumerate(drawn, 1):
      source = texts[mutation.file]
      case = case_of(mutation)
      if case in rows and not args.again:
        continue
      if timer.core_s > 3600 * args.hours:
        print(f'{args.hours:g} core-hours are spent; the same call continues.')
        break
      rows[case] = judge(checkout, mutation, source, covering)
      print(f'[{number}/{len(drawn)}]', rows[case]['outcome'], case, flush=True)
      if keep:
        _write(args, rows)
  if keep:  # also where nothing was left to run
    _write(args, rows)
  found = [score(rows.values()), *rows.values()]
  survivors = [row for row in found if row.get('outcome') == 'survived']
  for row in survivors:
    print(f'\n{row["file"]}:{row["line"]}\n{row["diff"]}')
  print(cli.table(found[:1], ('case', 'mutants', *OUTCOMES, 'score')))


def _parser() -> argparse.ArgumentParser:
  parser = cli.parser('mutation', __doc__)
  parser.add_argument('--mutants', type=int, default=100, help='drawn (100)')
  parser.add_argument('--seed', type=int, default=0, help='of the draw (0)')
  parser.add_argument(
    '--hours', type=float, default=3.0, help='core-hours of this call (3)'
  )
  parser.add_argument('--only', default='', help='a file or directory')
  parser.add_argument(
    '--tests', nargs='+', default=TESTS, help='files and directories of tests'
  )
  parser.add_argument(
    '--again', action='store_true', help='run what survived once more'
  )
  parser.add_argument(
    '--work',
    default=os.path.join(tempfile.gettempdir(), 'genrec_jax_mutation'),
    help='directory of copies, of compiled programs and of what is known '
    'about tests (%(default)s)',
  )
  return parser


def score(rows) -> dict:
  """The row that sums the others up."""
  counts = {
    outcome: sum(row['outcome'] == outcome for row in rows)
    for outcome in OUTCOMES
  }
  count = sum(counts.values())
  real = count - counts['equivalent']
  killed = sum(counts[outcome] for outcome in KILLED)
  found = {'case': 'score', 'mutants': count, **counts}
  return found | ({'score': killed / real} if real else {})


def case_of(mutation: Mutation) -> str:
  """What a row is known by, beside the text of its file."""
  m = mutation
  return f'{m.file}:{m.lines[0]} {m.kind} {m.start}-{m.end}'


def _old_rows(args, root: pathlib.Path) -> dict[str, dict]:
  """Rows of an earlier call that still hold."""
  directory = pathlib.Path(args.results or result.RESULTS)
  path = directory / result.machine_kind() / 'mutation.json'
  if not path.exists():
    return {}
  rows = {}
  for row in json.loads(path.read_text())['rows']:
    if row['case'] == 'score':
      continue
    file = root / row['file']
    same = file.exists() and row['blob'] == _digest(file.read_text())
    # It may have been argued for since.
    argument = EQUIVALENT.get((row['file'], *_sides(row['diff'])))
    if argument:
      row |= {'outcome': 'equivalent', 'argument': argument}
    if same:
      rows[row['case']] = row
  return rows


def _write(args, rows: dict[str, dict]) -> None:
  result.write(
    'mutation',
    [score(rows.values()), *rows.values()],
    notes=list(NOTES),
    results=args.results or result.RESULTS,
  )


# --- Tests and lines


def python_files(root: pathlib.Path, paths) -> list[str]:
  """Python files below some paths, as names below the root."""
  found = []
  for path in paths:
    path = root / path
    if not path.exists():
      cli.fail(f'there is no {path.relative_to(root)}')
    found += sorted(path.rglob('*.py')) if path.is_dir() else [path]
  return list(dict.fromkeys(p.relative_to(root).as_posix() for p in found))


def cover(checkout: Checkout, files, tests) -> dict:
  """Which tests run which lines.

  Args:
    checkout: where to find it out.
    files: of interest.
    tests: files and directories of tests; each runs in a process of its own,
      and is not run again while it and the `files` are the same.

  Returns:
    {file: {line: {test: its seconds}}}; the line 0 is any line of a function.
  """
  texts = [(checkout.root / file).read_text() for file in files]
  found = {file: {0: {}} for file in files}
  for path in dict.fromkeys(tests):
    inside = python_files(checkout.root, [path])
    more = [(checkout.root / file).read_text() for file in inside]
    known = checkout.work / f'{_digest(*files, *inside, *texts, *more)}.json'
    if not known.exists():
      print(f'which lines does {path} run?', flush=True)
      request = {'trace': [str(checkout.root / file) for file in files]}
      status, answer, output = checkout.pytest(request, [path])
      if 'tests' not in answer:
        cli.fail(f'{path} did not run (status {status}):\n{output}')
      if answer['left_out']:
        print(f'left out: {len(answer["left_out"])} that fail or are skipped')
      answer['root'] = str(checkout.root)
      temporary = known.with_suffix('.tmp')
      temporary.write_text(json.dumps(answer))
      os.replace(temporary, known)
    answer = json.loads(known.read_text())
    for test, ran in answer['tests'].items():
      for file, line in ran['lines']:
        file = os.path.relpath(file, answer['root'])
        found[file].setdefault(line, {})[test] = ran['seconds']
        found[file][0][test] = ran['seconds']
  return found


def tests_of(mutation: Mutation, covering: dict) -> dict[str, float]:
  """The tests that run a mutation's lines, with their seconds.

  Python names one line for what stands in several: if no line of the expression
  was seen, those of its statement count. What is run by an import alone, such
  as a constant, is for every test that runs anything of the file.
  """
  lines = covering[mutation.file]
  for first, last in (mutation.lines, mutation.within):
    found = {}
    for line in range(first, last + 1):
      found |= lines.get(line, {})
    if found:
      return found
  return lines[0] if mutation.imported else {}


def draw(texts: dict[str, str], covering, count: int, seed: int):
  """Draws mutations of lines that some test runs.

  Args:
    texts: file -> its source.
    covering: see `cover`.
    count: how many.
    seed: of the generator; fewer are the first of more.
  """
  sites = [
    mutation
    for file, text in texts.items()
    for mutation in find(file, text)
    if tests_of(mutation, covering)
  ]
  print(f'{len(sites):,} mutations of lines that a test runs')
  order = np.random.default_rng(seed).permutation(len(sites))
  return [sites[place] for place in order[:count]]


def survivors_of(rows: dict[str, dict], texts: dict[str, str]):
  """The mutations of rows that survived.

  Not drawn again: more tests run more lines, of which others would be drawn.
  """
  survived = {c for c, row in rows.items() if row['outcome'] == 'survived'}
  return [
    mutation
    for file, text in texts.items()
    for mutation in find(file, text)
    if case_of(mutation) in survived
  ]


def choose(tests: dict[str, float]) -> list[str]:
  """The quickest tests that fit into `TESTS_S`, in the order to run them in.

  Those of a file stay together, for they share fixtures.
  """
  chosen, total = {}, 0.0
  for test in sorted(tests, key=tests.get):
    total += tests[test]
    if chosen and total > TESTS_S:
      break
    chosen.setdefault(test.partition('::')[0], []).append(test)
  files = sorted(chosen, key=lambda f: sum(tests[t] for t in chosen[f]))
  return [test for file in files for test in chosen[file]]


def judge(checkout: Checkout, mutation: Mutation, source, covering) -> dict:
  """The row of a mutant: does a test fail?"""
  diff = mutation.diff(source)
  row = {
    'case': case_of(mutation),
    'file': mutation.file,
    'line': mutation.lines[0],
    'kind': mutation.kind,
    'diff': diff,
    'blob': _digest(source),
  }
  argument = EQUIVALENT.get((mutation.file, *_sides(diff)))
  if argument:
    return {**row, 'outcome': 'equivalent', 'argument': argument}
  tests = tests_of(mutation, covering)
  chosen = choose(tests)
  limit_s = START_S + LIMIT_X * sum(tests[test] for test in chosen)
  checkout.write(mutation.file, mutation.apply(source))
  try:
    with result.CoreTimer() as timer:
      status, answer, output = checkout.pytest(
        {'select': chosen},
        ['-x', *dict.fromkeys(test.partition('::')[0] for test in chosen)],
        limit_s,
      )
  finally:
    checkout.write(mutation.file, source)
  if status == 5:  # no test was collected
    cli.fail(f'{row["case"]}: the tests that were chosen are gone\n{output}')
  row |= {'outcome': 'survived', 'tests': len(chosen), 'covering': len(tests)}
  if status is None:
    row['outcome'] = 'timeout'
  elif status:
    # Without a test that failed, it is an import or the interpreter that did.
    by = answer.get('failed') or f'exit status {status}'
    row |= {'outcome': 'killed', 'by': by}
  return row | {
    'wall_s': round(timer.wall_s, 2),
    'core_s': round(timer.core_s, 2),
  }


def _sides(diff: str) -> tuple[str, str]:
  """The lines before and the lines after."""
  lines = diff.splitlines()
  return tuple(
    '\n'.join(line[2:] for line in lines if line[0] == sign) for sign in '-+'
  )


def _digest(*texts: str) -> str:
  return hashlib.sha256('\0'.join(texts).encode()).hexdigest()[:12]


if __name__ == '__main__':
  main()
