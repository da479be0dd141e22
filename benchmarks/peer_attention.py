"""The programs `benchmarks.hstu_attention` measures beside ours.

All but the HSTU layer work on the padded batch `[B, N, H, D]`, as programs
without jagged kernels do.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import pallas_kernels
from genrec_jax import config as config_lib
from genrec_jax.features import Columns, Jagged
from genrec_jax.models import hstu
from pallas_kernels import dispatch


class Program(NamedTuple):
  """`run(trained, data)`: gradients are taken of the trained arrays."""

  run: Callable
  trained: object
  data: object


def pad(arguments: dict) -> dict:
  """Packed arguments of `hstu_attention` as `[B, N, H, D]` and a mask."""
  size, lengths = arguments['max_len'], arguments['lengths']
  dense = {
    n: pallas_kernels.to_dense(arguments[n], lengths, size) for n in 'qkv'
  }
  return dense | {'lengths': lengths}


def padded_hstu(dense: dict, normaliser: float) -> Program:
  """SiLU attention with `[B, H, N, N]` scores."""
  size = dense['q'].shape[1]
  causal = jnp.tril(jnp.ones((size, size), bool))

  def attend(tensors, lengths):
    q, k, v = tensors
    real = jnp.arange(size)[None] < lengths[:, None]
    mask = causal[None] & real[:, None]
    scores = jnp.einsum(
      'bihd,bjhd->bhij', q, k, preferred_element_type=jnp.float32
    )
    weights = jnp.where(mask[:, None], jax.nn.silu(scores) / normaliser, 0.0)
    return jnp.einsum('bhij,bjhd->bihd', weights.astype(v.dtype), v)

  return Program(attend, [dense[n] for n in 'qkv'], dense['lengths'])


def padded_softmax(dense: dict) -> Program:
  """jax.nn's softmax attention: cuDNN's flash kernel on NVIDIA GPUs."""
  return Program(
    lambda tensors, _: _softmax(*tensors), [dense[n] for n in 'qkv'], None
  )


def _softmax(q, k, v):
  backend = 'cudnn' if dispatch.platform() == 'cuda' else 'xla'
  return jax.nn.dot_product_attention(
    q, k, v, is_causal=True, implementation=backend
  )


def torch_flash(dense: dict, backward: bool, repeats: int) -> dict | None:
  """Wall time of torch's flash kernel; None without torch and a GPU."""
  if dispatch.platform() != 'cuda':
    return None
  try:
    import torch
  except ImportError:
    return None
  if not torch.cuda.is_available():
    return None

  def tensor(name):
    x = np.asarray(dense[name].astype(jnp.float32)).swapaxes(1, 2)
    x = torch.from_numpy(np.ascontiguousarray(x)).to('cuda', torch.bfloat16)
    return x.requires_grad_(backward)

  q, k, v = (tensor(n) for n in 'qkv')
  attend = torch.nn.functional.scaled_dot_product_attention
  flash = torch.nn.attention.sdpa_kernel(
    torch.nn.attention.SDPBackend.FLASH_ATTENTION
  )
  seconds = []
  with flash:
    for _ in range(repeats + 2):
      torch.cuda.synchronize()
      begin = time.perf_counter()
      out = attend(q, k, v, is_causal=True)
      if backward:
        out.sum().backward()
      torch.cuda.synchronize()
      seconds.append(time.perf_counter() - begin)
  torch.cuda.empty_cache()
  return {'wall_s': float(np.median(seconds[2:])), 'torch': torch.__version__}


def hstu_layer(
  sizes, length: int, batch: np.ndarray, implementation=None
) -> Program:
  """An HSTU layer without biases on packed tokens, as the paper measures it."""
  dim = sizes.heads * sizes.width
  config = config_lib.hstu(
    dim=dim,
    blocks=1,
    heads=sizes.heads,
    dqk=sizes.width,
    dv=sizes.width,
    max_len=length,
    extra_positions=0,
    dropout=0.0,
    position_bias=False,
    time_bias=False,
    dtype=sizes.dtype,
    implementation=implementation,
  )
  config = config.to_dict()
  config.pop('name')
  block = hstu.Block(hstu.Config(**config), nnx.Rngs(0))
  graph, params = nnx.split(block)
  tokens = -(-int(batch.sum()) // 128) * 128
  x = jax.random.normal(jax.random.key(0), (tokens, dim), sizes.dtype)
  times = Columns(jnp.zeros((tokens, 2), jnp.int32), ('time', 'next_time'))
  packed = Jagged(times, jnp.asarray(batch))

  def run(trained, packed):
    params, x = trained
    return nnx.merge(graph, params)(x, packed, None)

  return Program(run, [params, x], packed)


def transformer_layer(sizes, length: int, batch: np.ndarray) -> Program:
  """A pre-norm Transformer layer, feed-forward of four times its width."""
  dim = sizes.heads * sizes.width
  keys = jax.random.split(jax.random.key(0), 5)
  weights = [
    0.02 * jax.random.normal(key, shape, sizes.dtype)
    for key, shape in zip(
      keys,
      [(dim, 3 * dim), (dim, dim), (dim, 4 * dim), (4 * dim, dim)],
      strict=False,
    )
  ]
  x = jax.random.normal(keys[4], (len(batch), length, dim), sizes.dtype)

  def norm(x):
    wide = x.astype(jnp.float32)
    return jax.nn.standardize(wide, epsilon=1e-6).astype(x.dtype)

  def run(trained, _):
    (qkv, project, up, down), x = trained
    heads = (*x.shape[:2], sizes.heads, sizes.width)
    q, k, v = (y.reshape(heads) for y in jnp.split(norm(x) @ qkv, 3, axis=-1))
    x = x + _softmax(q, k, v).reshape(x.shape) @ project
    return x + jax.nn.gelu(norm(x) @ up) @ down

  return Program(run, [weights, x], None)
