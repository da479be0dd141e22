"""Writes the versions of all dependencies that pip chooses for this Python.

  python3.13 -m constraints.make            # constraints/py313.txt
  python3.11 -m constraints.make --lowest   # constraints/py311-lowest.txt

Run it in the root of a checkout. The first command takes the newest version of
everything that fits together. The second takes the lower bounds of setup.py for
what it names, and the newest that fits for the rest. Nothing is installed, but
pip downloads what it has to look into. `pip install -c FILE genrec_jax` uses a
file, and `.ci/portable PYTHON FILE` tests it.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parent.parent
# Those of accelerators have versions of their own, which follow JAX's.
PROJECT = '.[dev,docs,gcs,parquet]'
# The tools of developers have no lowest version: nobody has to live with it.
_TOOLS = re.compile(r'extra == .(?:dev|docs).')
_BOUND = re.compile(r'([\w.-]+)(?:\[.*?\])?[^;]*>=([\w.]+)')


def choose_versions(*options: str) -> tuple[dict[str, str], list[str]]:
  """What pip would install, and what the project requires.

  Args:
    options: more of pip's.

  Returns:
    The version of each distribution, and the lines of `Requires-Dist`.

  Raises:
    SystemExit: pip finds no versions that fit together, and has said which.
  """
  pip = (sys.executable, '-m', 'pip', 'install', '--quiet', '--dry-run')
  flags = ('--ignore-installed', '--only-binary', ':all:', '--report', '-')
  done = subprocess.run(
    [*pip, *flags, *options, PROJECT],
    cwd=ROOT, stdout=subprocess.PIPE, text=True,
  )  # fmt: skip
  if done.returncode:
    sys.exit(f'pip chooses no versions for {PROJECT} {" ".join(options)}')
  chosen = [entry['metadata'] for entry in json.loads(done.stdout)['install']]
  versions = {about['name']: about['version'] for about in chosen}
  del versions['genrec_jax']
  required = [a['requires_dist'] for a in chosen if a['name'] == 'genrec_jax']
  return versions, required[0]


def pin_lower_bounds(required: list[str]) -> list[str]:
  """Turns lower bounds into the only version allowed.

  >>> pin_lower_bounds(['jax>=0.10.2', 'etils[epath]>=1.9', 'jax[tpu]'])
  ['jax==0.10.2', 'etils==1.9']
  >>> pin_lower_bounds(['pyarrow<30,>=15; extra == "parquet"'])
  ['pyarrow==15']
  >>> pin_lower_bounds(['ruff>=0.15; extra == "docs"'])
  []

  Args:
    required: lines of `Requires-Dist`.
  """
  matches = [_BOUND.match(x) for x in required if not _TOOLS.search(x)]
  return [f'{match[1]}=={match[2]}' for match in matches if match]


def main(argv: list[str] | None = None) -> None:
  """Writes the file of the Python that runs this."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--lowest', action='store_true')
  lowest = parser.parse_args(argv).lowest
  versions, required = choose_versions()
  if lowest:
    with tempfile.NamedTemporaryFile('w', suffix='.txt') as file:
      file.write('\n'.join(pin_lower_bounds(required)))
      file.flush()
      versions, _ = choose_versions('--constraint', file.name)
  name = f'py{sys.version_info.major}{sys.version_info.minor}'
  path = ROOT / f'constraints/{name}{"-lowest" * lowest}.txt'
  lines = [
    f'# Made by `python -m constraints.make{" --lowest" * lowest}`',
    *(f'{name}=={versions[name]}' for name in sorted(versions, key=str.lower)),
  ]
  path.write_text('\n'.join(lines) + '\n')
  print(path)


if __name__ == '__main__':
  main()
