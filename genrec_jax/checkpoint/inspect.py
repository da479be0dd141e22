"""Shows the checkpoints of a run.

    python -m genrec_jax.checkpoint.inspect WORKDIR [--step=N] [--quick]

Lists every step with its size and whether it is whole (or why not), then the
arrays of one of them. Leaves everything as it is, needs neither JAX nor a
device, and ends with status 1 if anything but the newest step is not whole or
nothing is: the newest may be one that is being saved right now.
"""

import argparse
import datetime
import pathlib
import sys

from genrec_jax.checkpoint import manifest


def report(
  directory: pathlib.Path, *, step: int | None = None, quick: bool = False
) -> tuple[list[str], bool]:
  """Describes a directory of checkpoints.

  Args:
    directory: a run's workdir, or its directory of checkpoints itself.
    step: whose arrays to list; None for the newest whole checkpoint.
    quick: compare sizes only, do not read the contents.

  Returns:
    Lines to print, and whether all is well.
  """
  if (directory / 'checkpoints').is_dir():
    directory = directory / 'checkpoints'
  steps = manifest.steps(directory)
  if not steps:
    raise FileNotFoundError(f'no checkpoints in {directory}')
  if step is not None and step not in steps:
    raise FileNotFoundError(
      f'no step {step} in {directory}, only {", ".join(map(str, steps))}'
    )
  lines = [f'{"step":>12}  {"bytes":>16}  {"written":19}  state']
  bodies, well = {}, True
  for s in steps:
    path = directory / str(s)
    try:
      bodies[s] = manifest.verify(path, quick=quick)
      state = 'sizes as written' if quick else 'whole'
    except manifest.CheckpointError as e:
      state = str(e)
      well &= isinstance(e, manifest.HalfWritten) and s == steps[-1]
    size = sum(f.stat().st_size for f in path.rglob('*') if f.is_file())
    written = datetime.datetime.fromtimestamp(path.stat().st_mtime)
    lines.append(f'{s:>12}  {size:>16,}  {written:%Y-%m-%d %H:%M:%S}  {state}')
  shown = max(bodies, default=None) if step is None else step
  if shown in bodies:
    lines += _contents(bodies[shown])
  return lines, well and bool(bodies)


def _contents(body: dict) -> list[str]:
  tree = body['tree']
  width = max(map(len, tree), default=0)
  return [
    '',
    f'step {body["step"]}: {len(tree)} arrays, '
    f'data iterator: {"yes" if body["data"] else "no"}, host: {body["host"]}',
    *(f'  {name:{width}}  {what}' for name, what in tree.items()),
  ]


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
    prog='python -m genrec_jax.checkpoint.inspect',
    description='Shows the checkpoints of a run.',
  )
  parser.add_argument('workdir', type=pathlib.Path)
  parser.add_argument(
    '--step', type=int, help='whose arrays to list (default: newest whole one)'
  )
  parser.add_argument(
    '--quick', action='store_true', help='compare sizes, read no contents'
  )
  args = parser.parse_args(argv)
  try:
    lines, well = report(args.workdir, step=args.step, quick=args.quick)
  except FileNotFoundError as e:
    parser.error(str(e))
  print('\n'.join(lines))
  return 0 if well else 1


if __name__ == '__main__':
  sys.exit(main())
