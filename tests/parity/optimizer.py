"""Gradients by complex steps and AdamW, float64: the other side's training."""

import jax
import numpy as np

STEP = 1e-30  # no difference is taken, so nothing cancels
CHUNK = 64  # perturbations evaluated at once


def gradient(fn, weights):
  """d fn / d weights, exact to rounding: Im fn(w + i h) / h.

  Args:
    fn: scalar, analytic; accepts leading axes on any leaf.
    weights: nested dict of float64 arrays.
  """
  leaves, structure = jax.tree.flatten(weights)
  grads = []
  for place, leaf in enumerate(leaves):
    grad = np.zeros(leaf.size)
    for first in range(0, leaf.size, CHUNK):
      which = np.arange(first, min(first + CHUNK, leaf.size))
      moved = np.repeat(leaf.reshape(1, -1), len(which), 0).astype(complex)
      moved[np.arange(len(which)), which] += 1j * STEP
      moved = moved.reshape(len(which), *leaf.shape)
      changed = [*leaves[:place], moved, *leaves[place + 1 :]]
      value = fn(jax.tree.unflatten(structure, changed))
      grad[which] = np.imag(value) / STEP
    grads.append(grad.reshape(leaf.shape))
  return jax.tree.unflatten(structure, grads)


def adamw(weights, grads, moments, step, *, lr=1e-3, b1=0.9, b2=0.98, eps=1e-8):
  """(weights, moments) after step number `step`, 1 for the first."""
  if moments is None:
    zeros = jax.tree.map(np.zeros_like, weights)
    moments = zeros, zeros
  m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, moments[0], grads)
  v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g**2, moments[1], grads)

  def moved(w, m, v):
    m, v = m / (1 - b1**step), v / (1 - b2**step)
    return w - lr * m / (np.sqrt(v) + eps)

  return jax.tree.map(moved, weights, m, v), (m, v)
