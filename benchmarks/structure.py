"""What an addition touches, what a step goes through, how much code there is.

  python -m benchmarks.structure

compares this checkout with commit a521de1, from before parts knew each other
by `contracts.py` alone, for docs/structure.md. `--root DIR` counts the lines of
any checkout, by package, and writes nothing. `--smoke` looks at places and the
kernels of this checkout alone, and traces nothing.
"""

import collections
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence

from benchmarks import cli, code_shape_source, structure_trace
from benchmarks.structure_walks import WALKS

ROOT = pathlib.Path(__file__).parent.parent
BEFORE = 'a521de1'
PACKAGES = structure_trace.PACKAGES
# The commit before the library, and what came with it.
BEFORE_LIBRARY = '8e20ef0'
LIBRARY = {
  'the library': ('library',),
  'weights in and out': ('weights',),
  '`ShardedEmbedding`': (
    'embedding/embedding_state.py',
    'embedding/embedding_table.py',
    'embedding/lookup_requests.py',
    'embedding/sharded_embedding.py',
  ),
  'former names of keys': ('config/renamed.py',),
}
TRACES = {
  'wukong': 'Wukong, one device',
  'hstu': "HSTU, 2x4 devices, pipeline 'exact'",
}
# What a program that loads weights and scores imports.
SERVER = ('genrec_jax.serve.weights', 'genrec_jax.serve.scorer')
COLUMNS = (
  'case', 'example', 'before_files', 'files', 'before_places', 'places',
  'in_packages',
  'before_lines', 'lines', 'more', 'before_depth', 'depth',
  'before_functions', 'functions', 'before_modules', 'modules',
)  # fmt: skip


def main(argv: list[str] | None = None) -> None:
  p = cli.parser('structure', __doc__)
  p.add_argument('--root', help='count the lines of this checkout', default='')
  args = p.parse_args(argv)
  if args.root:
    rows = _line_rows(count_packages(pathlib.Path(args.root)), {})
    print(cli.table(rows, ('case', 'files', 'lines')))
    return
  check_walks()
  if args.smoke:
    rows = _walk_rows() + _line_rows(count_packages(ROOT, PACKAGES[-1:]), {})
  else:
    with tempfile.TemporaryDirectory() as directory:
      before = pathlib.Path(directory)
      check_out(BEFORE, before)
      rows = [
        *_walk_rows(),
        *_line_rows(count_packages(ROOT), count_packages(before)),
        *(_trace_row(name, before) for name in TRACES),
        _import_row(before),
      ]
    with tempfile.TemporaryDirectory() as directory:
      check_out(BEFORE_LIBRARY, pathlib.Path(directory))
      rows += _library_rows(pathlib.Path(directory))
  notes = [
    f'before: commit {BEFORE}; its counts of an addition are those of a '
    'review, None where it did not count or it could not be done.',
    'lines: of Python, without comments, docstrings and blank lines; of rows '
    f'of kind library, before is commit {BEFORE_LIBRARY}.',
    'depth, functions, files of a step: own frames while it is traced.',
  ]
  cli.finish(args, 'structure', rows, COLUMNS, notes, merge=False)


def count_lines(source: str) -> int:
  """Lines of code without comments, docstrings and blank lines.

  >>> count_lines('def f():' + chr(10) + '  "Says."' + chr(10) + '  return 1')
  2
  """
  return len(code_shape_source.read_source(source).code)


def count_packages(
  root: pathlib.Path, packages: Sequence[str] = PACKAGES
) -> dict[str, tuple[int, int]]:
  """Package -> (files, lines of code) of a checkout.

  Args:
    root: of the checkout.
    packages: those below it. Modules directly in `genrec_jax` count as package
      `genrec_jax`.

  Returns:
    Packages down to the second level, in the order of their names.
  """
  found = collections.defaultdict(lambda: (0, 0))
  for package in packages:
    for path in sorted((root / package).rglob('*.py')):
      parts = path.relative_to(root).parts
      name = '.'.join(parts[: min(2, len(parts) - 1)])
      files, lines = found[name]
      found[name] = files + 1, lines + count_lines(path.read_text())
  if not found:
    cli.fail(f'{root} is not a checkout: it has no {" or ".join(PACKAGES)}')
  return dict(found)


def _library_rows(before: pathlib.Path) -> list[dict]:
  """Lines of `genrec_jax`: what came with the library, and everything else."""
  new = {
    case: sum(
      count_lines(path.read_text())
      for name in names
      for path in _list_files(ROOT / 'genrec_jax' / name)
    )
    for case, names in LIBRARY.items()
  }
  now, former = (
    sum(lines for _, lines in count_packages(root, ['genrec_jax']).values())
    for root in (ROOT, before)
  )
  rows = [{'case': case, 'lines': lines} for case, lines in new.items()]
  rest = now - sum(new.values())
  rows.append({'case': 'the rest', 'before_lines': former, 'lines': rest})
  rows.append({'case': 'genrec_jax', 'before_lines': former, 'lines': now})
  return [{'kind': 'library', **row} for row in rows]


def _list_files(path: pathlib.Path) -> list[pathlib.Path]:
  return [path] if path.is_file() else sorted(path.rglob('*.py'))


def check_walks(root: pathlib.Path = ROOT) -> None:
  """Fails where a walk names a place that is not there."""
  for walk in WALKS:
    for file, texts in walk.after.items():
      if not (root / file).exists():
        raise ValueError(f'{walk.job}, {walk.way}: there is no file {file}')
      source = (root / file).read_text()
      for text in texts:
        if text not in source:
          raise ValueError(f'{walk.job}, {walk.way}: no {text!r} in {file}')


def _walk_rows() -> list[dict]:
  return [
    {
      'case': f'{walk.job}, {walk.way}',
      'kind': 'walk',
      'job': walk.job,
      'way': walk.way,
      'example': walk.example,
      'before_files': walk.before[0],
      'files': len(walk.after),
      'before_places': walk.before[1],
      'places': sum(map(len, walk.after.values())),
      'in_packages': sum(f.startswith(PACKAGES) for f in walk.after),
      'list': ', '.join(f'`{file}`' for file in walk.after),
    }
    for walk in WALKS
  ]


def _line_rows(counts: dict, before: dict) -> list[dict]:
  rows = []
  names = sorted(counts.keys() | before.keys())
  for name in [*names, 'all']:
    row = {'case': name, 'kind': 'lines'}
    for prefix, found in (('before_', before), ('', counts)):
      if found:
        values = found.values() if name == 'all' else [found.get(name, (0, 0))]
        row[f'{prefix}files'] = sum(files for files, _ in values)
        row[f'{prefix}lines'] = sum(lines for _, lines in values)
    if before:
      row['more'] = row['lines'] - row['before_lines']
    rows.append(row)
  return rows


def _trace_row(name: str, before: pathlib.Path) -> dict:
  row = {'case': f'a step: {TRACES[name]}', 'kind': 'trace'}
  program = pathlib.Path(structure_trace.__file__)
  for prefix, root in (('before_', before), ('', ROOT)):
    found = json.loads(_run(root, program, name, root))
    row |= {prefix + key: value for key, value in found.items()}
  return row


def _import_row(before: pathlib.Path) -> dict:
  row = {'case': 'imported to load weights and score', 'kind': 'imports'}
  code = (
    f'import sys, {", ".join(SERVER)}; '
    f'own = [m for m in sys.modules if m.split(".")[0] in {PACKAGES}]; '
    'print(len(own), sum(m.startswith("genrec_jax.train.") for m in own))'
  )
  for prefix, root in (('before_', before), ('', ROOT)):
    modules, train = map(int, _run(root, '-c', code).split())
    row |= {f'{prefix}modules': modules, f'{prefix}train_modules': train}
  return row


def check_out(commit: str, directory: pathlib.Path) -> None:
  """Writes the files of a commit of this clone to a directory."""
  command = ('git', '-C', str(ROOT), 'archive', commit)
  done = subprocess.run(command, capture_output=True)
  if done.returncode:
    cli.fail(f'commit {commit} is not in this clone: {done.stderr.decode()}')
  with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
    # Python 3.11.2 and 3.11.3 know no filters, and take the attribute for any.
    archive.extraction_filter = getattr(tarfile, 'data_filter', None)
    archive.extractall(directory)


def _run(root: pathlib.Path, *words) -> str:
  """Output of Python with the packages of a checkout."""
  done = subprocess.run(
    [sys.executable, '-P', *map(str, words)],
    capture_output=True,
    text=True,
    env={**os.environ, 'PYTHONPATH': str(root), 'JAX_PLATFORMS': 'cpu'},
    cwd=tempfile.gettempdir(),
  )
  if done.returncode:
    cli.fail(f'{words}\n{done.stderr}')
  return done.stdout.splitlines()[-1]


if __name__ == '__main__':
  main()
