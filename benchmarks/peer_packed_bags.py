"""FBGEMM's bags of packed tables, timed for `benchmarks.serving_rows`.

  PATH benchmarks/peer_packed_bags.py IN.npz OUT.npz REPEATS

A program of its own: it needs torch, fbgemm-gpu-cpu and NumPy.
"""

import importlib.metadata
import sys

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import (
  EmbeddingLocation,
)
from fbgemm_gpu.split_table_batched_embeddings_ops_inference import (
  IntNBitTableBatchedEmbeddingBagsCodegen,
)
from peer_fused_rows import measure  # which lies beside this program

KINDS = {
  'float32': SparseType.FP32,
  'fbgemm_fp16': SparseType.FP16,
  'tbe_int8': SparseType.INT8,
  'tbe_int4': SparseType.INT4,
  'tbe_int2': SparseType.INT2,
}


def main(source: str, target: str, repeats: str) -> None:
  given = np.load(source)
  rows, width = given['table'].shape
  ids = torch.from_numpy(given['ids'])
  step = int(given['lengths'])
  offsets = torch.arange(0, len(ids) + 1, step, dtype=torch.int32)
  out = {'version': importlib.metadata.version('fbgemm_gpu-cpu')}
  for name, kind in KINDS.items():
    bag = IntNBitTableBatchedEmbeddingBagsCodegen(
      [('', rows, width, kind, EmbeddingLocation.HOST)],
      device='cpu',
      output_dtype=SparseType.FP32,
    )
    bag.fill_random_weights()
    out[f'{name}/s'] = measure(lambda bag=bag: bag(ids, offsets), int(repeats))
  np.savez(target, **out)


if __name__ == '__main__':
  main(*sys.argv[1:])
