"""What keeping compiled programs saves: the same run, first and second.

  python -m benchmarks.compile_cache

Each case is the whole command line, in a process and a workdir of its own: once
with an empty cache directory, then again with what the first has left there.
`--smoke` runs one of them.
"""

import pathlib
import tempfile

from benchmarks import cli, runs
from benchmarks.result import CoreTimer

CASES = {
  'HSTU, generated stream': 'configs/quickstart.py:smoke',
  'Wukong, generated clicks': 'configs/wukong_synthetic.py:smoke',
}
COLUMNS = (
  'case', 'first_core_s', 'second_core_s', 'first_wall_s', 'second_wall_s',
  'core_x', 'programs', 'bytes',
)  # fmt: skip
# Set, these would keep programs elsewhere, or none.
_UNSET = {'JAX_COMPILATION_CACHE_DIR': '', 'JAX_ENABLE_COMPILATION_CACHE': '1'}


def main(argv: list[str] | None = None) -> None:
  args = cli.parser('compile_cache', __doc__).parse_args(argv)
  cases = dict(list(CASES.items())[: 1 if args.smoke else None])
  rows = [measure_case(case, config) for case, config in cases.items()]
  notes = [
    'Whole processes, from the start of Python to the report.',
    'core_x: core-seconds of the first run / of the second.',
  ]
  cli.finish(args, 'compile_cache', rows, COLUMNS, notes)


def measure_case(case: str, config: str) -> dict:
  """A config run twice, with a cache directory that is empty at first."""
  row = {'case': case}
  with tempfile.TemporaryDirectory() as directory:
    directory = pathlib.Path(directory)
    env = {'XDG_CACHE_HOME': str(directory / 'cache'), **_UNSET}
    # The C++ code is compiled once for a machine, not for a run.
    runs.train(config, directory / 'before', env=env)
    programs = directory / 'cache' / 'genrec_jax' / 'programs'
    for path in programs.glob('*/*'):
      path.unlink()
    for name in ('first', 'second'):
      with CoreTimer() as timer:
        runs.train(config, directory / name, env=env)
      row[f'{name}_core_s'] = timer.core_s
      row[f'{name}_wall_s'] = timer.wall_s
    kept = list(programs.glob('*/*-cache'))
    row |= {
      'core_x': row['first_core_s'] / row['second_core_s'],
      'programs': len(kept),
      'bytes': sum(path.stat().st_size for path in kept),
    }
  return row


if __name__ == '__main__':
  main()
