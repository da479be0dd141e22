"""Codes of other libraries, for `benchmarks.numerics_peers --peer_python PATH`.

  PATH benchmarks/peer_numerics.py ROWS.npz OUT.npz [MICROXCALING]

A program of its own: it needs torch and NumPy and what it compares, and nothing
of this project. ROWS holds float32 arrays by the names of data sets; OUT what
each library makes of them, as `library/data set/format/option`. MICROXCALING is
a checkout of microsoft/microxcaling.
"""

import importlib.metadata
import sys

import numpy as np
import torch

# Our name -> microxcaling's, torchao's.
ELEMENTS = {
  'mxfp8_e4m3': ('fp8_e4m3', torch.float8_e4m3fn),
  'mxfp8_e5m2': ('fp8_e5m2', torch.float8_e5m2),
  'mxfp6_e2m3': ('fp6_e2m3', 'fp6_e2m3'),
  'mxfp6_e3m2': ('fp6_e3m2', 'fp6_e3m2'),
  'mxfp4_e2m1': ('fp4_e2m1', torch.float4_e2m1fn_x2),
  'mxint8': ('int8', None),
}
ROUNDINGS = {'even': 'even', 'away': 'nearest', 'down': 'floor'}


def main(source: str, target: str, microxcaling: str = '') -> None:
  rows = {n: torch.from_numpy(x) for n, x in np.load(source).items()}
  out = {'torch': torch.__version__}
  for compare in (
    lambda *a: compare_microxcaling(*a, microxcaling),
    compare_torchao,
    compare_fbgemm,
  ):
    try:
      compare(rows, out)
    except ImportError as e:
      print(f'left out: {e}', file=sys.stderr)
  np.savez(target, **out)


def compare_microxcaling(rows, out, checkout) -> None:
  if not checkout:
    raise ImportError('no checkout of microxcaling is given')
  sys.path.insert(0, checkout)
  from mx.mx_ops import _quantize_mx

  out['version/microxcaling'] = '7bc4195'
  for data, x in rows.items():
    for name, (element, _) in ELEMENTS.items():
      for ours, theirs in ROUNDINGS.items():
        y = _quantize_mx(
          x, scale_bits=8, elem_format=element, axes=[-1], block_size=32,
          round=theirs, flush_fp32_subnorms=False,
        )  # fmt: skip
        out[f'microxcaling/{data}/{name}/{ours}'] = y.numpy()


def compare_torchao(rows, out) -> None:
  from torchao.prototype.mx_formats import mx_tensor
  from torchao.prototype.mx_formats.config import ScaleCalculationMode

  out['version/torchao'] = importlib.metadata.version('torchao')
  for data, x in rows.items():
    for name, (_, element) in ELEMENTS.items():
      if element is None:
        continue
      for mode in ScaleCalculationMode:
        scales, codes = mx_tensor.to_mx(x, element, 32, mode)
        key = f'torchao/{data}/{name}/{mode.value}'
        out[f'{key}/scales'] = scales.view(torch.uint8).numpy()
        out[f'{key}/codes'] = codes.view(torch.uint8).numpy()


def compare_fbgemm(rows, out) -> None:
  import fbgemm_gpu

  del fbgemm_gpu  # it loads the operators
  from fbgemm_gpu.triton.common import RoundingMode
  from fbgemm_gpu.triton.quantize_ref import py_quantize_mx4

  out['version/fbgemm'] = importlib.metadata.version('fbgemm_gpu-cpu')
  ops = torch.ops.fbgemm
  for data, x in rows.items():
    found = {'fbgemm_int8': ops.FloatToFused8BitRowwiseQuantized(x)}
    back = {'fbgemm_int8': ops.Fused8BitRowwiseQuantizedToFloat}
    for bits in (4, 2):
      found[f'fbgemm_int{bits}'] = ops.FloatToFusedNBitRowwiseQuantizedSBHalf(
        x, bits
      )
      back[f'fbgemm_int{bits}'] = lambda y, bits=bits: (
        ops.FusedNBitRowwiseQuantizedSBHalfToFloat(y, bits)
      )
    for name, bits, bias, most in (
      ('fbgemm_hfp8', 4, 15, 0.9375),
      ('fbgemm_hfp8 gradients', 5, 31, 0.875),
      ('tbe_fp8', 4, 7, 240.0),
    ):
      found[name] = ops.FloatToHFP8Quantized(x, bits, bias, most)
      back[name] = lambda y, bits=bits, bias=bias: ops.HFP8QuantizedToFloat(
        y, bits, bias
      )
    for name, codes in found.items():
      out[f'fbgemm/{data}/{name}/bytes'] = codes.numpy()
      out[f'fbgemm/{data}/{name}/back'] = back[name](codes).numpy()
    codes = py_quantize_mx4(x, rounding_mode=RoundingMode.even)
    out[f'fbgemm/{data}/fbgemm_mx4/bytes'] = codes.numpy().view(np.uint8)


if __name__ == '__main__':
  main(*sys.argv[1:])
