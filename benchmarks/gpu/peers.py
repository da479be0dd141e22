"""What do others take for the same batches? Runs with torch alone, no JAX.

Rows as those of `kernels`, their FLOPs too: the causal half of the real tokens.
  flash: torch's scaled_dot_product_attention, its flash kernel, causal, padded
  layer: a pre-norm Transformer layer around it, feed-forward four times as wide
  meta: Meta's Triton HSTU attention, jagged, no biases (it has none); where the
    environment variable GENERATIVE_RECOMMENDERS names a checkout of
    github.com/meta-recsys/generative-recommenders
"""

import os
import pathlib
import sys
import types

from benchmarks.gpu import kit, measure

CHECKOUT = 'GENERATIVE_RECOMMENDERS'
# Of Meta's kernels, of some seventy settings: each is compiled before one is
# chosen.
CONFIGS = 6

PRODUCTS = {'forward': 2, 'forward+backward': 7}


def cases(args) -> list[dict]:
  sizes = (64,) if args.rehearse else (8192, 1024, 256)
  found = [dict(case='matmul')]
  # Padded programs do not see the fill: once is enough.
  for fill, programs in (
    (0.5, ('flash', 'layer', 'meta')),
    (1.0, ('meta',)),
    (0.2, ('meta',)),
  ):
    for length in sizes:
      for width in (128, 64):
        for program in programs:
          for what in PRODUCTS:
            if program == 'meta' and CHECKOUT not in os.environ:
              continue
            if (program, what) != ('layer', 'forward'):
              found.append(_case(program, length, width, fill, what))
  return found


def _case(program, length, width, fill, what) -> dict:
  name = f'{length}, width {width}, none bias, fill {fill}, {what}'
  return dict(
    case=f'{program}: {name}',
    program=program,
    max_len=length,
    width=width,
    fill=fill,
    what=what,
  )


def work(case: dict, args) -> dict:
  import torch

  device = 'cpu' if args.rehearse else 'cuda'
  torch.manual_seed(0)
  if case['case'] == 'matmul':
    size = 256 if args.rehearse else 8192
    x, w = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    return _row(torch, lambda: x @ w, 2 * size**3, device)
  padded = 256 if args.rehearse else measure.PADDED_TOKENS
  sizes = measure.lengths(case['max_len'], case['fill'], padded)
  heads = measure.DIM // case['width']
  flops = measure.attention_flops(
    sizes, heads, case['width'], PRODUCTS[case['what']]
  )
  if case['program'] == 'layer':
    turn, flops = _layer(torch, case, len(sizes), heads, device), 0
  else:
    make = {'flash': _flash, 'meta': _meta}[case['program']]
    attend, given = make(torch, case, sizes, heads, device)
    turn = _turn(torch, attend, given, case['what'] != 'forward')
  tokens = int(sizes.sum())
  return _row(torch, turn, flops, device) | dict(tokens=tokens)


def _turn(torch, attend, given, backward: bool):
  if not backward:
    return lambda: attend(*given)
  given = [x.requires_grad_() for x in given]
  dout = torch.randn_like(attend(*given))

  def turn():
    torch.autograd.grad(attend(*given), given, dout)

  return turn


def _row(torch, turn, flops: float, device: str) -> dict:
  """Times turns by CUDA events; the first ones compile and tune."""

  def run(turns):
    for _ in range(turns):
      turn()
    if device == 'cuda':
      torch.cuda.synchronize()

  seconds = measure.time_calls(run, 0.0 if device == 'cpu' else 0.3)
  if device == 'cuda':
    turns = max(2, min(100, int(0.3 / seconds)))
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(turns):
      turn()
    end.record()
    torch.cuda.synchronize()
    seconds = begin.elapsed_time(end) / 1e3 / turns
  name = torch.cuda.get_device_name() if device == 'cuda' else 'cpu'
  return dict(
    ms=1e3 * seconds,
    tflops=flops / seconds / 1e12,
    torch=torch.__version__,
    device=name,
  )


def _sdpa(torch, q, k, v):
  """Causal softmax attention, `[B, H, N, D]`, by the flash kernel if it can."""
  kernels = torch.nn.attention.SDPBackend
  chosen = kernels.FLASH_ATTENTION if q.is_cuda else kernels.MATH
  with torch.nn.attention.sdpa_kernel(chosen):
    return torch.nn.functional.scaled_dot_product_attention(
      q, k, v, is_causal=True
    )


def _flash(torch, case, sizes, heads, device):
  shape = (len(sizes), heads, case['max_len'], case['width'])
  given = [torch.randn(shape, device=device).bfloat16() for _ in range(3)]
  return lambda *qkv: _sdpa(torch, *qkv), given


def _layer(torch, case, batch: int, heads: int, device: str):
  dim, length = measure.DIM, case['max_len']

  def weight(*shape):
    return (torch.randn(shape, device=device) * shape[0] ** -0.5).bfloat16()

  given = [
    torch.randn(batch, length, dim, device=device).bfloat16(),
    weight(dim, 3 * dim),
    weight(dim, dim),
    weight(dim, 4 * dim),
    weight(4 * dim, dim),
  ]

  def run(x, qkv, project, up, down):
    functions = torch.nn.functional
    mixed = functions.layer_norm(x, (dim,)) @ qkv
    heads_of = mixed.view(batch, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
    out = _sdpa(torch, *heads_of).transpose(1, 2).reshape(batch, length, dim)
    x = x + out @ project
    return x + functions.gelu(functions.layer_norm(x, (dim,)) @ up) @ down

  return _turn(torch, run, given, True)


def _meta(torch, case, sizes, heads, device):
  """`triton_hstu_mha` of generative-recommenders; its normaliser is max_len."""
  attention = _load_meta()
  starts = torch.tensor([0, *sizes.cumsum().tolist()], device=device)
  shape = (int(sizes.sum()), heads, case['width'])
  given = [torch.randn(shape, device=device).bfloat16() for _ in range(3)]
  size = case['max_len']

  def run(q, k, v, tma=True):
    return attention.triton_hstu_mha(
      size, 1.0, q, k, v, starts, sort_by_length=True, enable_tma=tma
    )

  try:
    run(*given)
  except Exception as error:  # the copy engine is not for every Triton
    print('without TMA:', error, file=sys.stderr)
    return lambda *qkv: run(*qkv, tma=False), given
  return run, given


def _load_meta():
  """Meta's module, with few settings to tune over; nothing of it is edited."""
  folder = pathlib.Path(os.environ[CHECKOUT])
  # Its packages' own __init__ files import much that is not needed.
  for name in ('', '.ops', '.ops.triton'):
    module = types.ModuleType('generative_recommenders' + name)
    module.__path__ = [str(folder / module.__name__.replace('.', '/'))]
    sys.modules[module.__name__] = module
  from generative_recommenders.ops.triton import (
    triton_hstu_attention as attention,
  )

  for name in ('_hstu_attn_fwd', '_hstu_attn_bwd'):
    tuner = getattr(attention, name)
    tuner.configs = _few(tuner.configs)
  return attention


def _few(configs: list) -> list:
  """Of each size of tile, largest first, one or two settings of most warps."""
  seen, chosen = {}, []

  def rank(config):
    sides = config.kwargs['BLOCK_M'], config.kwargs['BLOCK_N']
    return min(sides), sides, config.num_warps

  for config in sorted(configs, key=rank, reverse=True):
    sides = rank(config)[1]
    # TLX settings need a compiler of Meta's own.
    if not config.kwargs.get('USE_TLX') and seen.get(sides, 0) < 2:
      seen[sides] = seen.get(sides, 0) + 1
      chosen.append(config)
  return chosen[:CONFIGS]


if __name__ == '__main__':
  kit.main('benchmarks.gpu.peers', __doc__, cases, work, minutes=9, limit=240)
