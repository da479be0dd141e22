"""Shows the checkpoints of a run.

    python -m genrec_jax.checkpoint.inspect WORKDIR [--directory=published]
        [--step=N] [--quick] [--contents] [--key-file=KEY]

Lists the steps of every directory of checkpoints in WORKDIR with the steps that
they need, their sizes and whether they are whole (or why not), then what one of
them holds and what its restore reads. Changes nothing and needs neither JAX nor
a device. Exits with status 1 if no step of a directory is whole, or if any step
except the newest is not; the newest may be one that is being saved right now.
"""

import argparse
import dataclasses
import datetime
import functools
import sys

from genrec_jax import last_resort
from genrec_jax.checkpoint import (
  chain,
  inspect_step,
  manifest,
  signing,
  storage,
)
from genrec_jax.checkpoint.inspect_text import format_columns
from genrec_jax.formatting import format_bytes

DIRECTORIES = ('checkpoints', 'published', 'best')
_HEAD = (
  ('>step', '<kind', '<needs', '>of base', '>bits', '>rows', '>dense')
  + ('>restore', '<written', '<state')  # fmt: skip
)


def report(
  workdir,
  *,
  directory: str | None = None,
  step: int | None = None,
  quick: bool = False,
  contents: bool = False,
  key: bytes | None = None,
) -> tuple[list[str], bool]:
  """Describes checkpoints.

  Args:
    workdir: of a run, or a directory of steps itself.
    directory: the one of `DIRECTORIES` to look at; None for all there are.
    step: what to describe; None for the newest whole step. Of the first
      directory that has steps.
    quick: compare sizes only, do not read the contents.
    contents: list arrays and host values too.
    key: what is not signed with it is no whole step.

  Returns:
    Lines to print, and whether all is well.
  """
  places = _find_directories(workdir, directory)
  if step is not None and step not in (steps := manifest.list_steps(places[0])):
    raise FileNotFoundError(
      f'no step {step} in {places[0]}, only {", ".join(map(str, steps))}'
    )
  lines, details, well = [], [], True
  for place in places:
    looked = _verify_steps(place, quick, key)
    lines += [f'{place}:', *_list_steps(looked, quick), '']
    well &= _is_healthy(looked)
    if place is not places[0]:
      continue
    whole = [s.step for s in looked if s.whole]
    shown = max(whole, default=None) if step is None else step
    if shown in whole:
      details = inspect_step.describe(
        place,
        {s.step: s.body for s in looked if s.body},
        shown,
        quick=quick,
        contents=contents,
      )
  return (lines + details if details else lines[:-1]), well


@dataclasses.dataclass(frozen=True)
class _Step:
  step: int
  body: dict | None  # its manifest, if that is intact
  needs: list[dict]  # manifests of the steps it needs, if those are intact
  error: manifest.CheckpointError | None
  written: float  # seconds since 1970

  @property
  def whole(self) -> bool:
    return self.error is None

  @property
  def half_written(self) -> bool:
    return isinstance(self.error, manifest.IncompleteError)


def _find_directories(workdir, directory: str | None) -> list:
  """Directories with steps, of those asked for."""
  names = [directory] if directory else DIRECTORIES
  places = [workdir / name for name in names] + [workdir]
  existing = [place for place in places if manifest.list_steps(place)]
  if not existing:
    where = workdir / directory if directory else workdir
    raise FileNotFoundError(f'no checkpoints in {where}')
  return existing


def _verify_steps(directory, quick: bool, key: bytes | None) -> list[_Step]:
  """Compares all files of all steps, each of them once."""
  seen = {}

  def verify_step(path) -> dict:
    if path.name not in seen:
      try:
        seen[path.name] = manifest.verify(path, quick=quick, key=key)
      except manifest.CheckpointError as e:
        seen[path.name] = e
    if isinstance(seen[path.name], manifest.CheckpointError):
      raise seen[path.name]
    return seen[path.name]

  rows = []
  for step in manifest.list_steps(directory):
    path = directory / str(step)
    body, needs, error = None, [], None
    try:
      body = manifest.read(path, key)
      verify_step(path)
      needs = chain.check_parents(directory, body, verify_step)
    except manifest.CheckpointError as e:
      error = e
    try:
      written = (body or {}).get('time')
      if written is None:
        written = storage.modification_time(path)
    except FileNotFoundError:  # removed by the training while we looked
      continue
    rows.append(_Step(step, body, needs, error, written))
  return rows


def _is_healthy(steps: list[_Step]) -> bool:
  under_way = [s for s in steps[-1:] if s.half_written]
  bad = [s for s in steps if not s.whole and s not in under_way]
  return not bad and any(s.whole for s in steps)


def _list_steps(steps: list[_Step], quick: bool) -> list[str]:
  rows = []
  for s in steps:
    when = datetime.datetime.fromtimestamp(s.written)
    cells = ['-'] * 7
    if s.body:
      rows_bytes = inspect_step.describe_rows(s.body)[1]
      total = inspect_step.describe_files(s.body)[1]
      entry = s.body.get('rows')
      below = [inspect_step.describe_files(body)[1] for body in s.needs]
      cells = [
        entry['kind'] if entry else 'whole',
        _format_parents(s.body),
        inspect_step.fraction_text(s.body, s.needs),
        str(entry['bits']) if entry else '-',
        format_bytes(rows_bytes) if entry else '-',
        format_bytes(total - rows_bytes),
        format_bytes(total + sum(below)) if s.whole else '-',
      ]
    state = 'sizes as written' if quick else 'whole'
    if not s.whole:
      unsigned = isinstance(s.error, manifest.UnsignedError)
      state = 'not signed' if unsigned else 'damaged'
      state = 'half-written' if s.half_written else state
    rows.append([str(s.step), *cells, f'{when:%Y-%m-%d %H:%M}', state])
  reasons = [f'  step {s.step}: {s.error}' for s in steps if s.error]
  return format_columns(_HEAD, rows) + reasons


def _format_parents(body: dict) -> str:
  parents = [str(step) for step, _ in chain.read_parents(body)]
  if len(parents) > 3:
    return f'{parents[0]}, {parents[1]} .. {parents[-1]} ({len(parents)})'
  return ', '.join(parents) or '-'


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
    prog='python -m genrec_jax.checkpoint.inspect',
    description='Shows the checkpoints of a run.',
  )
  parser.add_argument('workdir', type=storage.absolute_path)
  parser.add_argument(
    '--directory', choices=DIRECTORIES, help='only this one of the workdir'
  )
  parser.add_argument(
    '--step', type=int, help='what to describe (default: newest whole one)'
  )
  parser.add_argument(
    '--quick', action='store_true', help='compare sizes, read no contents'
  )
  parser.add_argument(
    '--contents', action='store_true', help='list arrays and host values too'
  )
  parser.add_argument(
    '--key-file', default='', help='report steps not signed with this key'
  )
  args = vars(parser.parse_args(argv))
  try:
    warn = functools.partial(print, file=sys.stderr)
    key = signing.read_key(args.pop('key_file'), warn)
    lines, well = report(args.pop('workdir'), key=key, **args)
  except (FileNotFoundError, manifest.CheckpointError) as e:
    parser.error(str(e))
  last_resort.print_result('\n'.join(lines))
  return 0 if well else 1


if __name__ == '__main__':
  last_resort.run_command(main, 'inspecting')
