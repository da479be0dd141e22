"""Lookups that JAX can differentiate, with dense gradients of the table."""

import functools

import jax
import jax.numpy as jnp

from pallas_kernels.jagged_embedding.spec import MergedRows


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def bag(backend, mode, table, ids, lengths, weights):
  """`[B, D]` in the table's dtype; gradients of the table and the weights.

  Args:
    backend: a module as `spec` describes it.
    mode: 'sum' or 'mean'.
    table: `[rows, D]`.
    ids: `[K]` int32.
    lengths: `[B]` int32.
    weights: `[K]` or None.
  """
  if weights is not None:
    weights = weights.astype(jnp.float32)
  out = backend.bag(table, ids, lengths, weights)
  return divide(out, lengths, mode).astype(table.dtype)


def _bag_forward(backend, mode, *args):
  return bag(backend, mode, *args), args


def _bag_backward(backend, mode, saved, grads):
  table, ids, lengths, weights = saved
  grads = divide(grads.astype(jnp.float32), lengths, mode)
  factors = None if weights is None else weights.astype(jnp.float32)
  # Merged first: a scatter of sorted, distinct rows needs no atomics and sums
  # equal ids in their order.
  merged = backend.merge(ids, lengths, factors, grads, table.shape[0])
  weights_grad = None
  if weights is not None:
    weights_grad = backend.weight_gradient(table, ids, lengths, grads)
    weights_grad = weights_grad.astype(weights.dtype)
  return _dense(merged, table), None, None, weights_grad


bag.defvjp(_bag_forward, _bag_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def gather(backend, spare, table, ids, count):
  """`[K, D]` in the table's dtype; a gradient of the table.

  Args:
    backend: a module as `spec` describes it.
    spare: whether the id table.shape[0] is an unused entry.
    table: `[rows, D]`.
    ids: `[K]` int32.
    count: int32 scalar; ids from this one on are padding.
  """
  return backend.gather(table, ids, count, spare)


def _gather_forward(backend, spare, table, ids, count):
  return gather(backend, spare, table, ids, count), (table, ids, count)


def _gather_backward(backend, spare, saved, grads):
  table, ids, count = saved
  # Padding gets the number of no row, so that its gradient is left out.
  ids = jnp.where(jnp.arange(ids.shape[0]) < count, ids, table.shape[0])
  merged = backend.merge(
    ids, None, None, grads.astype(jnp.float32), table.shape[0]
  )
  return _dense(merged, table), None, None


gather.defvjp(_gather_forward, _gather_backward)


def _dense(merged: MergedRows, table: jax.Array) -> jax.Array:
  return (
    jnp.zeros_like(table)
    .at[merged.ids]
    .set(
      merged.grads.astype(table.dtype),
      mode='drop',
      indices_are_sorted=True,
      unique_indices=True,
    )
  )


def divide(x, lengths, mode):
  """`[B, D]`, divided by the lengths `[B]` if mode is 'mean'."""
  if mode == 'sum':
    return x
  # An empty bag stays zero rather than 0 / 0.
  return x / jnp.maximum(lengths, 1).astype(jnp.float32)[:, None]
