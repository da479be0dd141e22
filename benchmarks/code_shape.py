"""How code looks: sizes, names, comments, docstrings, imports, doubles.

  python -m benchmarks.code_shape [--before COMMIT] [--beside NAME=DIR@ID ...]

measures the packages of this checkout and, with the same program, those of an
earlier commit and any other package for docs/structure.md. A row replaces the
one of its case in the result file, others stay. `--times` measures what the
command line costs before it does anything. `--clones` prints the doubles of
this checkout and writes nothing. Code of a newer Python than the one that runs
this is left out and named: packages that use one want that Python, which needs
none of the library's dependencies.

A file is one with code in it. Outside `tests`, files named as tests, and those
in folders `test` and `tests`, are left out. A licence, which is a comment above
the first statement that speaks of one, is left out everywhere.

  lines               of a file, with blank ones
  code_lines          that hold a token besides comments and docstrings
  comment_lines       that hold a comment and no code; what is said to a linter
                      or a type checker alone is not a comment
  docstring_lines     of modules, classes and functions
  comment_share       lines with a comment, also behind code, of all lines with
                      code or a comment
  file_p50, _p90      lines of a file; p90: nine of ten files have no more
  long_files          with more than 500 lines
  function_p50, ...   lines of a function from `def` to its end, docstring and
                      comments included; methods and inner functions count
  public_p50, _p90    names without an underscore a file defines at its top
                      level: functions, classes, values
  one_word_share      of function names (those like __init__ left out), words
                      being divided by underscores, capitals and digits
  name_p50            characters of a function name, without outer underscores
  documented_share    public functions, classes and methods with a docstring
  docstring_p50       lines of such a docstring
  args_share          public functions with three parameters or more (besides
                      self, cls, *args, **kwargs) that have a section Args,
                      Arguments or Parameters
  examples            docstrings with `>>>`, which a test can run
  blocks              docstrings with a block of code: ```, .. code-block::, ::
  typed_share         parameters of functions with a type
  fan_in, fan_out     the most modules of the package that import one module,
                      or that one module imports, inside functions too. An
                      import is of the most exact module it names, not also of
                      the packages above that module
  cycles              groups of modules that import each other; at_import:
                      without imports in functions and for type checkers
  depth               modules in the longest chain of imports at import
  clone_pairs         pairs of runs of 6 statements or more, as long as they
                      can be, that differ in literals and by a renaming of names
                      only. Imports are left out, and so are runs of fewer than
                      four forms of statements, such as lists of fields
  clone_lines, _share of code that stands in such a run
"""

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from benchmarks import cli, result, structure
from benchmarks.code_shape_clones import find_clones
from benchmarks.code_shape_measures import measure
from benchmarks.code_shape_source import read_package

ROOT = structure.ROOT
PACKAGES = ('genrec_jax', 'pallas_kernels', 'benchmarks', 'tests')
LIBRARY = PACKAGES[:2]
TIMED = {
  'python, nothing else': ('-c', 'pass'),
  'import genrec_jax': ('-c', 'import genrec_jax'),
  'genrec_jax.main --help': ('-m', 'genrec_jax.main', '--help'),
}
REPEATS = 9
COLUMNS = (
  'case', 'commit', 'files', 'code_lines', 'file_p50', 'file_p90', 'long_files',
  'function_p50', 'function_p90', 'function_max', 'public_p50', 'public_p90',
  'one_word_share', 'name_p50', 'comment_share', 'documented_share',
  'docstring_p50', 'args_share', 'examples', 'blocks', 'typed_share',
  'fan_in', 'fan_out', 'cycles', 'cycles_at_import', 'depth',
  'clone_pairs', 'clone_share', 'core_s', 'wall_s', 'target_core_s',
)  # fmt: skip
NOTES = (
  'shares are of 1; what is counted is said in the docstring of '
  'benchmarks/code_shape.py.',
  'unreadable: files in which this Python cannot parse something; left out.',
)


def main(argv: list[str] | None = None) -> None:
  p = cli.parser('code_shape', __doc__)
  p.add_argument('--before', help='also the library of this commit', default='')
  p.add_argument(
    '--beside',
    help='also other packages; @ID says which commit DIR holds',
    metavar='NAME=DIR[@ID]',
    nargs='+',
    default=[],
  )
  p.add_argument(
    '--times', action='store_true', help='time import and --help instead'
  )
  p.add_argument(
    '--clones', action='store_true', help='print doubles, write nothing'
  )
  args = p.parse_args(argv)
  packages = LIBRARY[1:] if args.smoke else PACKAGES
  if args.clones:
    _print_clones(packages)
    return
  if args.times:
    rows = [_time_row(case, 1 if args.smoke else REPEATS) for case in TIMED]
  else:
    others = [_beside(text) for text in args.beside]
    rows = [shape_row(name, ROOT / name) for name in packages]
    if args.before:
      rows += _rows_before(args.before)
    rows += [shape_row(name, *where) for name, *where in others]
  cli.finish(args, 'code_shape', rows, COLUMNS, NOTES)


def shape_row(case: str, folder: pathlib.Path, commit: str = '') -> dict:
  """All measures of one package.

  Args:
    case: name of the row.
    folder: of the package.
    commit: that the folder holds, or ''.
  """
  of_tests = folder.name == 'tests'
  sources, unreadable = read_package(folder, with_tests=of_tests)
  row = {'case': case, 'kind': 'shape'}
  if commit:
    row['commit'] = commit
  row |= measure(sources, of_tests)
  if unreadable:
    row['unreadable'] = unreadable
  return row


def _beside(text: str) -> tuple[str, pathlib.Path, str]:
  """'optax=/tmp/optax/optax@2edbcbe' -> name, folder, commit."""
  name, _, where = text.partition('=')
  folder, _, commit = where.partition('@')
  if not name or not pathlib.Path(folder or '?').is_dir():
    cli.fail(
      f'--beside {text}: {folder!r} is not a folder. Write NAME=DIR or '
      'NAME=DIR@ID with the folder of a package, e.g. '
      'optax=../optax/optax@2edbcbe'
    )
  return name, pathlib.Path(folder), commit


def _rows_before(commit: str) -> list[dict]:
  with tempfile.TemporaryDirectory() as directory:
    root = pathlib.Path(directory)
    structure.check_out(commit, root)
    return [
      shape_row(f'{name}, before', root / name, commit) for name in LIBRARY
    ]


def _print_clones(packages: Sequence[str]) -> None:
  for package in packages:
    sources, _ = read_package(ROOT / package, with_tests=package == 'tests')
    for c in find_clones(sources):
      print(
        f'{c.path}:{c.first}-{c.last}  '
        f'{c.other_path}:{c.other_first}-{c.other_last}'
      )


def _time_row(case: str, repeats: int) -> dict:
  """Medians of a program's seconds, after one run that fills the caches."""
  timers = [_run(TIMED[case]) for _ in range(repeats + 1)][1:]
  row = {
    'case': case,
    'kind': 'time',
    'repeats': repeats,
    'core_s': statistics.median(timer.core_s for timer in timers),
    'min_core_s': min(timer.core_s for timer in timers),
    'wall_s': statistics.median(timer.wall_s for timer in timers),
    'load_1min': os.getloadavg()[0],
  }
  if 'genrec_jax' in case:
    row['target_core_s'] = 0.3
  return row


def _run(words: Sequence[str]) -> result.CoreTimer:
  with result.CoreTimer() as timer, tempfile.TemporaryDirectory() as elsewhere:
    done = subprocess.run(
      [sys.executable, '-P', *words],
      capture_output=True,
      text=True,
      env={**os.environ, 'PYTHONPATH': str(ROOT)},
      cwd=elsewhere,
    )
  # absl ends a program that only printed its help with 1.
  if done.returncode > ('--help' in words):
    cli.fail(f'{" ".join(words)}\n{done.stderr}')
  return timer


if __name__ == '__main__':
  main()
