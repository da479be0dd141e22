"""Which block sizes are fastest here? Retunes the table of `hstu_attention`.

  python -m benchmarks.tune_blocks                  # prints
  python -m benchmarks.tune_blocks --write          # and keeps the best

Measures the best backend of this device, or the one named, for each width of
heads, on a jagged batch. Each kernel of the backend is tuned by itself, the
others at their best so far: the forward kernels by the forward pass, the others
by both passes. Those that have other sizes for calls with biases are measured
without any, all others with both relative biases. Sizes that do not compile are
skipped. --write puts what won into `pallas_kernels/hstu_attention/tuned.json`,
which all programs on devices of this kind then use.
"""

import jax

from benchmarks import cli, hstu_attention
from pallas_kernels import dispatch
from pallas_kernels.hstu_attention import api, blocks, shapes

WIDTHS = (64, 128, 256)
COLUMNS = ('case', 'kernel', 'options', 'wall_ms', 'error')
# Option -> values to try, one by one.
CHOICES = {
  'triton': {
    'block_q': (32, 64, 128),
    'block_k': (32, 64, 128),
    'warps': (4, 8),
    'stages': (1, 2, 3, 4),
    'group': (1, 2, 4),
  },
  'pallas_tpu': {'block_q': (128, 256, 512), 'block_k': (128, 256, 512)},
  'interpret': {'block_q': (32, 64), 'block_k': (32, 64)},
}


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('tune_blocks', __doc__)
  parser.add_argument('--backend', choices=CHOICES, help='(the best here)')
  parser.add_argument('--widths', nargs='+', type=int, default=WIDTHS)
  parser.add_argument('--max-len', type=int, default=2048)
  parser.add_argument('--tokens', type=int, default=65_536, help='padded')
  parser.add_argument('--repeats', type=int, default=10)
  parser.add_argument('--write', action='store_true', help='keep the best')
  args = parser.parse_args(argv)
  backend = args.backend or hstu_attention.best_backend()
  if backend not in CHOICES:
    cli.fail(f'{backend} has no block sizes to tune; name one with --backend.')
  reason = api.BACKENDS[backend].why_not()
  if reason:
    cli.fail(f'{backend} cannot run here: {reason}')
  if args.smoke:
    args.widths, args.max_len, args.tokens, args.repeats = [16], 64, 256, 1
  rows = []
  for width in args.widths:
    rows += tune(backend, width, args)
  notes = ['Heads of one width, bfloat16, fill 0.5.']
  cli.finish(args, 'tune_blocks', rows, COLUMNS, notes)


def tune(backend: str, width: int, args) -> list[dict]:
  """Measures the choices for heads of a width; the best is in use after."""
  kind = dispatch.device_kind()
  entry = blocks.lookup(backend, kind, width, width, blocks.class_here(backend))
  # A flat entry is that of one kernel.
  kernels = [k for k, value in entry.items() if isinstance(value, dict)]
  rows = []
  for kernel in kernels or [None]:
    options = entry[kernel] if kernel else entry
    biased = kernel is None or f'{kernel} biased' not in entry
    backward = kernel is None or not kernel.startswith('forward')
    tried = {}
    for option, values in CHOICES[backend].items():
      if option == 'group' and not biased:
        continue  # heads share nothing then
      for value in values:
        candidate = {**options, option: value}
        key = tuple(sorted(candidate.items()))
        if key in tried:
          continue
        changed = {**entry, kernel: candidate} if kernel else candidate
        blocks.use(backend, kind, width, changed)
        row = _measure(backend, width, backward, biased, args)
        tried[key] = row.get('wall_ms', float('inf'))
        text = ' '.join(f'{k}={v}' for k, v in candidate.items())
        rows.append(
          {
            'case': f'{backend}/{width}/{kernel or "all"}/{text}',
            'kernel': kernel or 'all',
            'options': text,
            **row,
          }
        )
        print(cli.table(rows[-1:], COLUMNS), flush=True)
      options = dict(min(tried, key=tried.get))
    entry = {**entry, kernel: options} if kernel else options
  blocks.use(backend, kind, width, entry)
  print(f'{backend}, {kind}, heads of {width}: {entry}')
  if args.write:
    blocks.save(backend, kind, width, entry)
  return rows


def _measure(backend, width, backward, biased, args) -> dict:
  batch = hstu_attention.lengths(args.tokens // args.max_len, args.max_len, 0.5)
  heads = max(1, 512 // width) if not args.smoke else 1
  shape = shapes.Shape(
    len(batch), args.max_len, heads, width, width, 0,
    position_bias=biased, time_bias=biased,
  )  # fmt: skip
  arguments = shapes.inputs(shape, dtype='bfloat16', sizes=batch)
  jax.clear_caches()
  program = hstu_attention.ours(arguments, backend)
  return hstu_attention.measure(program, backward, args.repeats)


if __name__ == '__main__':
  main()
