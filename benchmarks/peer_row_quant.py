"""Torch's row quantisers, for `benchmarks.row_quant --peer_python PATH`.

  PATH benchmarks/peer_row_quant.py ROWS.npy OUT.npz

A program of its own: it needs torch and NumPy and nothing of this project. OUT
holds FBGEMM's rows of codes, scale and bias, what they cost on one thread, and
for 3 bits, which FBGEMM does not pack, the ranges of the first rows.
"""

import sys
import time

import numpy as np
import torch

# bits -> (pack, bins); the share of a range that may go is the same for all.
PACK = {
  2: (torch.ops.quantized.embedding_bag_2bit_prepack, 25),
  4: (torch.ops.quantized.embedding_bag_4bit_prepack, 45),
}
RATIO, RANGES, REPEATS = 0.5, 3000, 3


def main(source: str, target: str) -> None:
  torch.set_num_threads(1)
  rows = torch.from_numpy(np.load(source))
  calls = {'asymmetric/8': (torch.ops.quantized.embedding_bag_byte_prepack,)}
  for bits, (pack, bins) in PACK.items():
    calls[f'asymmetric/{bits}'] = (pack, False, bins, RATIO)
    calls[f'adaptive/{bits}'] = (pack, True, bins, RATIO)
  out = {'torch': torch.__version__}
  for case, (pack, *settings) in calls.items():
    seconds = []
    for _ in range(REPEATS):
      begin = time.process_time()
      packed = pack(rows, *settings)
      seconds.append(time.process_time() - begin)
    out[case], out[f'{case}/core_s'] = packed.numpy(), np.median(seconds)
  ranges = [
    torch.choose_qparams_optimized(row, len(row), 25, RATIO, 3)[::-1]
    for row in rows[:RANGES]
  ]
  out['adaptive/3'] = np.array(ranges, np.float32).reshape(-1, 2)
  np.savez(target, **out)


if __name__ == '__main__':
  main(*sys.argv[1:])
