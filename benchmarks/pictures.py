"""Draws the charts of docs/ from benchmarks/results.

python -m benchmarks.pictures           # rewrites what differs
python -m benchmarks.pictures --check   # exit status 1 when something differs
"""

import argparse
import json
import pathlib
import sys

from benchmarks import (
  check_n_run,
  dmt_picture,
  dnas_picture,
  exfm_picture,
  gr_scaling,
  learned_hash_curves,
  learned_hash_plane,
  long_histories,
  mfalcon,
  qsnr,
  quality_vs_cost,
  result,
  scaling_law,
  tbsm_curves,
  tbsm_history,
  tbsm_picture,
)

DOCS = pathlib.Path(__file__).parent.parent / 'docs'
# docs/NAME.svg is drawn from the rows of cpu2/NAME.json, or those of cpu1 if it
# was measured on one core; what has neither was not measured yet. Some pictures
# are of the rows of another name.
PICTURES = {
  'check_n_run': check_n_run.draw,
  'dmt_speedup': dmt_picture.draw,
  'dnas': dnas_picture.draw,
  'dnas_frappe': dnas_picture.draw_frappe,
  'exfm': exfm_picture.draw,
  'gr_scaling': gr_scaling.draw,
  'learned_hash': learned_hash_curves.draw_clicks,
  'learned_hash_deciles': learned_hash_curves.draw_deciles,
  'learned_hash_drift': learned_hash_curves.draw_ages,
  'learned_hash_films': learned_hash_curves.draw_films,
  'learned_hash_plane': learned_hash_plane.draw,
  'learned_hash_rows': learned_hash_curves.draw_rows,
  'long_histories': long_histories.draw,
  'mfalcon': mfalcon.draw,
  'qsnr': qsnr.draw,
  'quality_vs_cost': quality_vs_cost.draw,
  'scaling_law': scaling_law.draw,
  'tbsm': tbsm_curves.draw_differences,
  'tbsm_cost': tbsm_curves.draw_lengths,
  'tbsm_history': tbsm_history.draw,
  'tbsm_study': tbsm_picture.draw,
}
ROWS_OF = {
  'dnas_frappe': 'dnas',
  'learned_hash_films': 'learned_hash',
  'learned_hash_rows': 'learned_hash',
}


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks.pictures', description=__doc__
  )
  parser.add_argument('--check', action='store_true', help='write nothing')
  args = parser.parse_args(argv)
  differing = 0
  for name, draw in PICTURES.items():
    file = f'{ROWS_OF.get(name, name)}.json'
    found = [result.RESULTS / f'cpu{n}' / file for n in (2, 1)]
    rows, path = min(found, key=lambda x: not x.exists()), DOCS / f'{name}.svg'
    if not rows.exists() and not path.exists():
      continue
    picture = draw(json.loads(rows.read_text())['rows'])
    if not path.exists() or path.read_text() != picture:
      differing += 1
      print(f'docs/{name}.svg {"differs" if args.check else "written"}')
      if not args.check:
        path.write_text(picture)
  return int(args.check and differing > 0)


if __name__ == '__main__':
  sys.exit(main())
