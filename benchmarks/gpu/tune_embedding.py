"""Which tiles are fastest for the Triton kernels of `jagged_embedding`?

The cases of `benchmarks.gpu.embedding` with other numbers in
`pallas_kernels/jagged_embedding/gpu_plan.TUNED`: put the best there. A tile is
segments, rows ahead, warps; a piece counts places of a long run. Processes
compile side by side, and what is timed holds a lock.
"""

from benchmarks.gpu import embedding, kit

# Width of a row -> tiles.
BAG_TILES = {
  128: (
    (1, 8, 1), (1, 16, 1), (1, 4, 1), (2, 8, 1), (4, 4, 4), (4, 8, 4),
    (1, 16, 2), (2, 8, 2),
  ),
  64: (
    (1, 16, 1), (1, 8, 1), (1, 32, 1), (2, 8, 1), (2, 16, 1), (4, 8, 2),
    (4, 16, 4),
  ),
}  # fmt: skip
RUN_TILES = {
  128: (
    (2, 2, 1), (4, 2, 1), (2, 4, 1), (4, 1, 1), (8, 1, 1), (1, 4, 1),
    (8, 2, 4), (16, 1, 4), (8, 1, 2), (4, 2, 2),
  ),
  64: (
    (4, 2, 1), (8, 2, 1), (4, 4, 1), (8, 1, 1), (16, 1, 1), (2, 4, 1),
    (16, 2, 4), (16, 1, 2),
  ),
}  # fmt: skip
PIECES = (16, 64, 128)


def cases(args) -> list[dict]:
  del args
  found = []

  def add(what, width, draw, **changes):
    case = embedding.case_of('triton', what, width, draw)
    said = ', '.join(f'{name} {value}' for name, value in changes.items())
    # Whether results are right is not asked again for each tile.
    row = dict(case, case=f'{case["case"]}, {said}', checked=False)
    found.append(row | changes)

  for width in (128, 64):
    for tile in BAG_TILES[width]:
      add('bag', width, 'uniform', tile=tile)
    for tile in RUN_TILES[width]:
      add('adagrad', width, 'uniform', tile=tile)
    for tile in RUN_TILES[width]:
      add('adagrad', width, 'zipf', tile=tile)
    for piece in PIECES:
      add('adagrad', width, 'zipf', piece=piece)
  return found


def work(case: dict, args) -> dict:
  from pallas_kernels.jagged_embedding import gpu_plan

  kernel = 'sum_bags' if case['what'] == 'bag' else 'update_runs'
  tuned = dict(gpu_plan.TUNED)
  try:
    # A process does several cases: what one changes is put back.
    if 'tile' in case:
      tile = {case['width']: gpu_plan.Tile(*case['tile'])}
      tiles = {**tuned['tiles'], kernel: {**tuned['tiles'][kernel], **tile}}
      gpu_plan.TUNED['tiles'] = tiles
    if 'piece' in case:
      gpu_plan.TUNED['pieces'] = {**tuned['pieces'], 'runs': case['piece']}
    return embedding.work(case, args)
  finally:
    gpu_plan.TUNED.update(tuned)


if __name__ == '__main__':
  kit.main(
    'benchmarks.gpu.tune_embedding', __doc__, cases, work, minutes=4, workers=6
  )
