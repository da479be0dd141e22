"""FBGEMM's row operators, timed for `benchmarks.quantiser_speed`.

  PATH benchmarks/peer_fused_rows.py ROWS.npy OUT.npz REPEATS

A program of its own: it needs torch, fbgemm-gpu-cpu and NumPy.
"""

import importlib.metadata
import sys
import time

import fbgemm_gpu
import numpy as np
import torch

del fbgemm_gpu  # it loads the operators


def main(source: str, target: str, repeats: str) -> None:
  rows = torch.from_numpy(np.load(source))
  ops = torch.ops.fbgemm
  calls = {
    'fbgemm_int8': (
      lambda: ops.FloatToFused8BitRowwiseQuantized(rows),
      ops.Fused8BitRowwiseQuantizedToFloat,
    )
  }
  for bits in (4, 2):
    calls[f'fbgemm_int{bits}'] = (
      lambda bits=bits: ops.FloatToFusedNBitRowwiseQuantizedSBHalf(rows, bits),
      lambda data, bits=bits: ops.FusedNBitRowwiseQuantizedSBHalfToFloat(
        data, bits
      ),
    )
  out = {'version': importlib.metadata.version('fbgemm_gpu-cpu')}
  for name, (encode, decode) in calls.items():
    data = encode()
    out[f'{name}/s'] = measure(encode, int(repeats))
    out[f'{name}/back_s'] = measure(lambda d=data, f=decode: f(d), int(repeats))
  np.savez(target, **out)


def measure(function, repeats: int) -> float:
  function()
  seconds = []
  for _ in range(repeats):
    begin = time.perf_counter()
    function()
    seconds.append(time.perf_counter() - begin)
  return float(np.median(seconds))


if __name__ == '__main__':
  main(*sys.argv[1:])
