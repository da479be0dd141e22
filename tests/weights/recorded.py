"""State dicts with the names and shapes of published modules.

published_shapes.json holds those of their sizes for ML-1M; `python -m
benchmarks.weights_parity --shapes=FILE` writes it.
"""

import json
import pathlib

import numpy as np

SHAPES = json.loads(
  pathlib.Path(__file__).with_name('published_shapes.json').read_text()
)
# Case -> whose names these are.
CASES = {n: 'hstu' if n == 'hstu_large' else n for n in SHAPES}


def state_dict(case) -> dict[str, np.ndarray]:
  """Values for recorded names and shapes, each number of all another one."""
  state, start = {}, 1
  for name, shape in SHAPES[case].items():
    if name == '_attn_mask':
      state[name] = np.triu(np.ones(shape, bool), 1)
      continue
    size = int(np.prod(shape))
    values = np.arange(start, start + size, dtype=np.float32)
    state[name] = values.reshape(shape)
    start += size
  if case == 'sasrec_pytorch_2024':
    state['pos_emb.weight'][0] = 0
  return state
