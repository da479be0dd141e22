"""Weights to and from safetensors files.

    python -m genrec_jax.weights export WORKDIR FILE.safetensors
        [--checkpoint=best|latest|STEP] [--names=hstu] [--ids=IDS.npy]
    python -m genrec_jax.weights import CHECKPOINT FILE.safetensors
        --names=hstu [--ids=IDS.npy]
    python -m genrec_jax.weights show FILE.safetensors

`export` writes what a training left in its workdir, under the names of this
library or, with --names, under those of a published model. `import` takes a
published checkpoint (.pt of PyTorch, which need not be installed, or
.safetensors) and writes a file to begin a run from: --config.train.init_from.
`show` lists the arrays of a file and the config they were trained with.
"""

import argparse
import os
import pathlib
import sys
import tempfile

import numpy as np

from genrec_jax import last_resort
from genrec_jax.data.quoting import escape
from genrec_jax.weights import convert, safetensors
from genrec_jax.weights.published import MODELS

_IDS = (
  'the ids behind the rows of the own table, WORKDIR/items/ids.npy say: row r '
  'is the published row ids[r - 1]. Without it rows keep their numbers'
)


def main(argv: list[str] | None = None) -> None:
  """Runs a command; user errors end without a traceback."""
  args = _make_parser().parse_args(argv)
  try:
    print(escape(args.run(args), keep='\n'))
  except (ValueError, OSError, ImportError) as e:
    sys.exit('error: ' + escape(str(e), keep='\n'))


def _make_parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog='python -m genrec_jax.weights',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  commands = parser.add_subparsers(required=True)
  export = commands.add_parser('export', help='a workdir to a file')
  export.set_defaults(run=_run_export)
  export.add_argument('workdir')
  export.add_argument('file')
  export.add_argument(
    '--checkpoint', default='best', help='best (default), latest or a step'
  )
  export.add_argument('--names', choices=MODELS, help='of a published model')
  export.add_argument('--ids', help=_IDS)
  imported = commands.add_parser('import', help='a published checkpoint')
  imported.set_defaults(run=_run_import)
  imported.add_argument('checkpoint')
  imported.add_argument('file')
  imported.add_argument('--names', choices=MODELS, required=True)
  imported.add_argument('--ids', help=_IDS)
  show = commands.add_parser('show', help='what a file holds')
  show.set_defaults(run=_run_show)
  show.add_argument('file')
  return parser


def _run_export(args) -> str:
  # Late: only this command needs JAX. It reads and writes: no device that a
  # training may be using is asked for.
  os.environ.setdefault('JAX_PLATFORMS', 'cpu')
  from genrec_jax import config as config_lib
  from genrec_jax import extensions
  from genrec_jax.weights.export import export_weights

  if args.ids and not args.names:
    raise ValueError('--ids is for the names of a published model, --names')
  checkpoint = args.checkpoint
  if checkpoint.isdecimal():
    checkpoint = int(checkpoint)
  path = pathlib.Path(args.workdir) / 'config.json'
  if not path.exists():
    raise FileNotFoundError(
      f'{args.workdir} is not the workdir of a run (no config.json)'
    )
  parts = extensions.load_extensions(
    config_lib.read_config(path).get('extensions', '')
  )
  if not args.names:
    return str(export_weights(args.workdir, args.file, checkpoint, parts))
  target = pathlib.Path(args.file).absolute()
  target.parent.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
    own = pathlib.Path(scratch) / 'own.safetensors'
    export_weights(args.workdir, own, checkpoint, parts)
    file = safetensors.open_file(own)
    arrays = convert.to_published(file, args.names, _load_ids(args))
    metadata = {**file.metadata, 'format': 'pt', 'names': args.names}
    safetensors.write_file(target, arrays, metadata)
  return f'{target}: {len(arrays)} arrays with the names of {args.names}'


def _run_import(args) -> str:
  published = convert.read_arrays(args.checkpoint)
  arrays = convert.from_published(published, args.names, _load_ids(args))
  metadata = {'format': 'genrec_jax 1', 'names': f'from {args.names}'}
  safetensors.write_file(args.file, arrays, metadata)
  return (
    f'{args.file}: {len(arrays)} arrays from {len(published)} of '
    f'{args.checkpoint}\nThey fit {convert.describe_model(arrays, args.names)}'
  )


def _load_ids(args) -> np.ndarray | None:
  if not args.ids:
    return None
  path = safetensors.find_file(args.ids)
  try:
    return np.lib.format.open_memmap(path, mode='r')
  except Exception as e:  # its header is Python, and can fail in any way
    raise ValueError(
      f'--ids={args.ids} is not an .npy file of integers: {e}'
    ) from None


def _run_show(args) -> str:
  file = safetensors.open_file(args.file)
  lines = [
    f'{escape(name)}  {spec}' for name, spec in sorted(file.specs.items())
  ]
  lines += [f'{escape(key)}: {text}' for key, text in file.metadata.items()]
  return '\n'.join(lines)


if __name__ == '__main__':
  last_resort.run_command(main, 'converting weights')
