"""Formats of few bits in one table: bits, error, quality, time.

  python -m benchmarks.format_overview

Measures nothing: it puts together what `qsnr`, `low_precision` (the model
*clicks*: DLRM on a million generated clicks) and `quantiser_speed` have
measured, each of which names its data and seeds.

  bytes        of a row of 64 numbers
  qsnr_db      what the format keeps of normal numbers
  cast         NE of a model of bfloat16 evaluated in the format, in percent of
               its own, and the standard error over seeds
  trained      the same of a model trained in the format from the first step
  training_x   processor time of that training, as multiples of bfloat16's; the
               format is emulated
  encode_x     encoding numbers to codes, in copies of the same numbers
"""

from collections.abc import Mapping, Sequence

from benchmarks import cli
from genrec_jax.numerics.block_formats import BLOCK_FORMATS
from genrec_jax.numerics.block_rows import BLOCK_ROWS

COLUMNS = (
  'case', 'bits', 'bytes', 'qsnr_db', 'cast_ne_%', 'cast_se', 'trained_ne_%',
  'trained_se', 'seeds', 'training_x', 'encode_x',
)  # fmt: skip
MACHINE, WIDTH = 'cpu2', 64
NOTES = (
  'Put together of qsnr, low_precision (clicks) and quantiser_speed; ± are '
  'standard errors over seeds.',
)


def main(argv: list[str] | None = None) -> None:
  args = cli.parser('format_overview', __doc__).parse_args(argv)
  found = [
    cli.read_rows(args, name, MACHINE)
    for name in ('qsnr', 'low_precision', 'quantiser_speed')
  ]
  cli.finish(args, 'format_overview', put_together(*found), COLUMNS, NOTES)


def put_together(
  qsnr: Mapping[str, Mapping],
  quality: Mapping[str, Mapping],
  speed: Mapping[str, Mapping],
) -> Sequence[dict]:
  """A row for each format of blocks, by case of each of the results."""
  plain = quality.get('clicks/bfloat16', {})
  rows = [{'case': 'bfloat16', 'bits': 16, 'bytes': 2 * WIDTH}]
  if plain_error := qsnr.get('bfloat16, by rows of 1024'):
    rows[0]['qsnr_db'] = plain_error['qsnr_db']
  for name, number_format in BLOCK_FORMATS.items():
    row = {
      'case': name,
      'bits': number_format.mean_bits,
      'bytes': BLOCK_ROWS[name].bytes_per_row(WIDTH),
    }
    if name in qsnr:
      row['qsnr_db'] = qsnr[name]['qsnr_db']
    for how, case in (('cast', f'{name} cast'), ('trained', name)):
      of = quality.get(f'clicks/{case}', {})
      if 'ne_minus_%' in of:
        row[f'{how}_ne_%'] = of['ne_minus_%']
        row[f'{how}_se'] = of.get('ne_minus_%_se')
        row['seeds'] = min(row.get('seeds', of['seeds']), of['seeds'])
        if how == 'trained':
          row['training_x'] = of['core_s'] / plain['core_s']
    if f'{name}, encode' in speed:
      row['encode_x'] = speed[f'{name}, encode']['copy_x']
    rows.append({k: v for k, v in row.items() if v is not None})
  return rows


if __name__ == '__main__':
  main()
