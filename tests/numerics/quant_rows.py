"""Rows that quantisers meet, and some they had better not."""

import numpy as np

# Mean L2 error of a row of 64, without outside help: specs of FBGEMM's levels.
DISTRIBUTIONS = {
  'normal': lambda rng, shape: rng.standard_normal(shape),
  't3': lambda rng, shape: rng.standard_t(3, shape),
  'uniform': lambda rng, shape: rng.uniform(-1, 1, shape),
}


def draw(name: str, count: int, dim: int = 64, seed: int = 0) -> np.ndarray:
  """Rows `[count, dim]` float32 of a distribution."""
  rng = np.random.default_rng(seed)
  return DISTRIBUTIONS[name](rng, (count, dim)).astype(np.float32)


def golden() -> np.ndarray:
  """One row of 32 of all magnitudes whose codes are known."""
  i = np.arange(32)
  x = ((37 * i * i + 11 * i + 5) % 401 - 200) / 64 * 2.0 ** ((5 * i) % 9 - 4)
  return x.astype(np.float32)[None]


def for_half(dim: int) -> np.ndarray:
  """Rows whose bias and scale float16 can hold."""
  rng = np.random.default_rng(1)
  x = rng.standard_normal((60, dim)).astype(np.float32)
  x[10:20] *= np.float32(1e-2)
  x[20:25] += np.float32(3)
  x[25:30] = np.abs(x[25:30]) + np.float32(1e-6) * x[:5]  # tiny biases
  x[30:35] = x[30:35, :1]  # constant
  x[35] = 0
  x[36:40] = np.rint(x[36:40])  # ties
  x[40:45, 0] *= np.float32(1e3)  # an outlier
  x[45:50] **= 3
  return x


def beyond_half(dim: int) -> np.ndarray:
  """Rows that float16 cannot: small, large, far from zero."""
  x = for_half(dim)
  x[50] += np.float32(1e6)
  x[51] *= np.float32(1e-30)
  x[52] *= np.float32(1e-42)
  x[53] *= np.float32(1e37) / np.abs(x[53]).max()
  x[54] = np.float32(1e6) + np.arange(dim) % 2
  x[55] = np.float32(1e-30)
  x[56] *= np.float32(1e-18)  # its squares leave float32
  x[57] *= np.float32(1e20)
  x[58] *= np.float32(1e-5)
  x[59, 1:] *= np.float32(1e-42)
  return x
