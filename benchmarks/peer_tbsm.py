"""The public TBSM code, for `benchmarks.tbsm_parity --peer_python PATH`.

  PATH benchmarks/peer_tbsm.py TBSM DLRM QUESTION.npz ANSWER.npz

A program of its own: it needs torch and NumPy, and checkouts of
facebookresearch/tbsm and facebookresearch/dlrm, and nothing of this project.
The question holds, for each mechanism, weights by their names in torch, and the
ids of a batch; the answer the probabilities, and core-seconds of training steps
of each, with Adagrad as there.
"""

import importlib.machinery
import sys
import time
import types

import numpy as np
import torch

STEPS, WARM = 30, 5


def main(tbsm_dir: str, dlrm_dir: str, question: str, answer: str) -> None:
  torch.set_num_threads(1)
  _stand_in(
    'sklearn', 'sklearn.metrics', 'torch.utils.tensorboard', 'mlperf_logger',
    'extend_distributed', 'dlrm_data_pytorch', 'tbsm_data_pytorch',
    'optim.rwsadagrad', 'tricks.md_embedding_bag', 'tricks.qr_embedding_bag',
  )  # fmt: skip
  sys.modules['extend_distributed'].my_size = 1
  sys.path[:0] = [tbsm_dir, dlrm_dir]
  import dlrm_s_pytorch
  import tbsm_pytorch

  tbsm_pytorch.dlrm = dlrm_s_pytorch
  tbsm_pytorch.args = types.SimpleNamespace(run_fast=False)
  given = np.load(question)
  answers = {'version': np.array(torch.__version__)}
  for inner in ('dot', 'ind', 'def'):
    net = build(tbsm_pytorch, given, inner)
    batch = read_batch(given)
    with torch.no_grad():
      answers[inner] = net(*batch).numpy()[:, 0]
    if inner == 'def':
      answers['core_s'] = time_steps(net, given)
  np.savez(answer, **answers)


class _Anything:
  """What code that is not run here imports."""

  def __init__(self, *args, **kwargs):
    pass


def _find_anything(name: str):
  if name.startswith('__'):  # what looks at modules asks for such
    raise AttributeError(name)
  return _Anything


def _stand_in(*names: str) -> None:
  for name in names:
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__getattr__ = _find_anything
    sys.modules[name] = module


def build(tbsm_pytorch, given, inner: str) -> torch.nn.Module:
  """The net of a mechanism with the weights that are given."""
  rows = [len(given[f'{inner}/dlrm.emb_l.{i}.weight']) for i in range(3)]
  length = int(given['length'])
  net = tbsm_pytorch.TBSM_Net(
    16, np.array(rows), np.array([1, 16]), np.array([22, 15, 15]), 'dot', False,
    np.array([30, 60, 1]), np.array([15, 15]), 'dot', 'mlp', length,
    model_type='tsl', tsl_inner=inner, tsl_num_heads=1,
  )  # fmt: skip
  weights = {
    name.split('/')[1]: torch.tensor(given[name])
    for name in given.files
    if name.startswith(f'{inner}/')
  }
  missing, unexpected = net.load_state_dict(weights, strict=False)
  if missing or unexpected:
    raise ValueError(f'missing {missing}, unexpected {unexpected}')
  return net


def read_batch(given):
  """Numbers, offsets and ids of each step, the candidate last."""
  ids, numbers = given['ids'], given['numbers']  # [S, 3, B], [S, B]
  offsets = torch.arange(ids.shape[2])
  x = [torch.tensor(step)[:, None] for step in numbers]
  places = [[offsets] * 3 for _ in ids]
  return x, places, [[torch.tensor(row) for row in step] for step in ids]


def time_steps(net, given) -> np.ndarray:
  """Core-seconds of each of some training steps."""
  optimizer = torch.optim.Adagrad(net.parameters(), lr=0.05)
  loss = torch.nn.BCELoss()
  batch, labels = read_batch(given), torch.tensor(given['labels'])[:, None]
  spent = []
  for _ in range(WARM + STEPS):
    begun = time.process_time()
    optimizer.zero_grad()
    loss(net(*batch), labels).backward()
    optimizer.step()
    spent.append(time.process_time() - begun)
  return np.array(spent[WARM:])


if __name__ == '__main__':
  main(*sys.argv[1:])
