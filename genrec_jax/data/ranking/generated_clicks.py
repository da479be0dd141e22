"""Frequencies of values and probabilities of clicks in generated logs."""

import numpy as np


def make_zipf(count: int, exponent: float) -> np.ndarray:
  """`[count]` frequencies, which fall with the number.

  >>> make_zipf(2, 1.0).round(3).tolist()
  [0.667, 0.333]
  """
  weight = (1.0 + np.arange(count)) ** -exponent
  return weight / weight.sum()


def draw_places(
  rng: np.random.Generator, frequencies: np.ndarray, shape
) -> np.ndarray:
  """Numbers of `shape`, drawn by their frequencies."""
  cumulative = np.cumsum(frequencies)[:-1]
  return np.searchsorted(cumulative, rng.random(shape), 'right')


def find_entropy(p: np.ndarray) -> np.ndarray:
  """Of a draw, in nats; 0 where it is sure.

  >>> find_entropy(np.array([0.0, 0.5])).round(3).tolist()
  [0.0, 0.693]
  """
  q = 1 - p
  inside = (p > 0) & (q > 0)
  p, q = np.where(inside, p, 0.5), np.where(inside, q, 0.5)
  return np.where(inside, -p * np.log(p) - q * np.log(q), 0.0)


def apply_sigmoid(x: np.ndarray) -> np.ndarray:
  """Probabilities of logits of any size."""
  return 0.5 + 0.5 * np.tanh(0.5 * x)
