"""Tables of what ran on a GPU (docs/kernels.md), in the form of tables.py."""

GPU = {
  'gpu_attention': {
    'files': ('h100/gpu_kernels', 'h200/gpu_kernels'),
    'columns': (
      ('machine', 'machine', ''),
      ('longest', 'max_len', ',d'),
      ('width of a head', 'width', 'd'),
      ('biases', 'bias', ''),
      ('pass', 'what', ''),
      ('kernels of', 'commit', ''),
      ('ms', 'ms', '.2f'),
      ('TFLOP/s', 'tflops', '.0f'),
      ('share of a matmul', 'matmul_share', '.0%'),
      ('beside it', 'beside', ''),
    ),
    'where': {
      'what': ('forward', 'forward+backward', 'layer'),
      'commit': ('5c890118', '41548525'),
    },
  },
  'gpu_peers': {
    'files': ('h100/gpu_peers',),
    'columns': (
      ('longest', 'max_len', ',d'),
      ('width of a head', 'width', 'd'),
      ('program', 'program', ''),
      ('pass', 'what', ''),
      ('ms', 'ms', '.2f'),
      ('TFLOP/s', 'tflops', '.0f'),
    ),
    'where': {'program': ('flash', 'layer', 'meta')},
  },
  'gpu_kernels': {
    'files': ('h100/gpu_tune', 'h200/gpu_tune'),
    'columns': (
      ('machine', 'machine', ''),
      ('width of a head', 'width', 'd'),
      ('biases', 'bias', ''),
      ('kernel', 'what', ''),
      ('block sizes, warps, stages, heads', 'shown_sizes', ''),
      ('ms', 'ms', '.2f'),
      ('share of a matmul', 'matmul_share', '.0%'),
    ),
    'where': {'best': True},
  },
  'gpu_embedding': {
    'files': ('h100/gpu_embedding', 'h200/gpu_embedding'),
    'columns': (
      ('machine', 'machine', ''),
      ('program', 'program', ''),
      ('pass', 'what', ''),
      ('width', 'width', 'd'),
      ('ids', 'draw', ''),
      ('ms', 'ms', '.2f'),
      ('GB/s', 'gbs', ',.0f'),
      ('share of a copy', 'copy_share', '.0%'),
      ('beside it', 'beside', ''),
    ),
    'where': {'program': ('triton', 'xla', 'torch')},
  },
  'gpu_trainings': {
    'files': ('h100/gpu_trainings',),
    'columns': (
      ('config', 'config', ''),
      ('what', 'what', ''),
      ('H100', 'gpu', ',.6g'),
      ('two CPU cores', 'cpu', ',.6g'),
    ),
  },
}
