"""Runs launches of Triton kernels in Triton's interpreter, without PyTorch.

`run` takes the place of `triton_call.run`, so a test goes through the same
preparation, plans and finish as a GPU. TRITON_INTERPRET=1 must be set before
any kernel is imported: `triton.jit` looks at it when it decorates.
"""

import functools
import threading

import jax
import ml_dtypes
import numpy as np

from pallas_kernels import triton_call

# XLA may call back from several threads; the interpreter's grid is global.
_LOCK = threading.Lock()
_TRITON_NAMES = {
  'float32': 'fp32',
  'bfloat16': 'bf16',
  'float16': 'fp16',
  'uint32': 'u32',
}


class _Storage:
  """The few methods of a PyTorch storage that the interpreter calls."""

  def __init__(self, array: np.ndarray):
    self.array = array

  def data_ptr(self) -> int:
    return self.array.ctypes.data

  def cpu(self) -> '_Storage':
    return self

  def copy_(self, other: '_Storage') -> None:
    assert other.array is self.array  # nothing was moved


class _Tensor:
  """A NumPy array with the few methods of a tensor that it calls."""

  def __init__(self, array: np.ndarray):
    self.storage = _Storage(array)
    self.dtype = _TRITON_NAMES.get(array.dtype.name, 'i32')

  def data_ptr(self) -> int:
    return self.storage.data_ptr()

  def untyped_storage(self) -> _Storage:
    return self.storage

  def new_empty(self, *_, **__) -> '_Tensor':
    return _Tensor(self.storage.array)

  def set_(self, storage: _Storage, *_) -> None:
    self.storage = storage

  def storage_offset(self) -> int:
    return 0

  def size(self) -> tuple[int, ...]:
    return self.storage.array.shape

  def stride(self) -> tuple[int, ...]:
    return self.storage.array.strides

  def copy_(self, other: '_Tensor') -> None:
    self.storage.copy_(other.storage)


@functools.cache
def _multiply_bfloat16() -> None:
  """Makes it widen bfloat16; it multiplies the integers that hold the bits."""
  import triton.language as tl
  from triton.runtime import interpreter

  builder = interpreter.InterpreterBuilder
  product = builder.create_dot

  def create_dot(self, a, b, *others):
    a, b = (
      self.cast_impl(x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x
      for x in (a, b)
    )
    return product(self, a, b, *others)

  builder.create_dot = create_dot


@functools.cache
def _round_to_bfloat16() -> None:
  """Makes it round to the nearest, as GPUs do; it cuts bits off."""
  import triton.language as tl
  from triton.runtime import interpreter

  builder = interpreter.InterpreterBuilder
  cast = builder.cast_impl

  def cast_impl(self, src, dst_type):
    if (src.dtype.scalar, dst_type.scalar) != (tl.float32, tl.bfloat16):
      return cast(self, src, dst_type)
    bits = src.data.astype(ml_dtypes.bfloat16).view(np.uint16)
    return interpreter.TensorHandle(bits, dst_type.scalar)

  builder.cast_impl = cast_impl


def run(function, launch: triton_call.Launch, *inputs) -> list[jax.Array]:
  """As `triton_call.run`; unwritten outputs hold NaN, or nonsense."""
  _multiply_bfloat16()
  _round_to_bfloat16()

  def interpret(*arrays):
    # Copies: a kernel must not be able to write what it only reads.
    arrays = [np.array(a, order='C') for a in arrays]
    outputs = [_garbage(o) for o in launch.outputs]
    for given, output in launch.aliases:
      outputs[output] = arrays[given].copy()
    given = [_Tensor(a) for a in (*arrays, *outputs)]
    with _LOCK, np.errstate(all='ignore'):
      function[(launch.grid,)](*given, s=launch.constants)
    return outputs

  return jax.pure_callback(interpret, list(launch.outputs), *inputs)


def _garbage(output: jax.ShapeDtypeStruct) -> np.ndarray:
  if output.dtype in (np.int32, np.uint32):
    # As an index it leads nowhere, so that a test fails.
    return np.full(output.shape, 2**30, output.dtype)
  assert output.dtype in (np.float32, np.float16, ml_dtypes.bfloat16)
  return np.full(output.shape, np.nan, output.dtype)
