"""A step with more than one gradient: parts that move before the loss.

A task may have auxiliary parameters, which its loss alone reads (`init_aux`),
and for some parts of them losses of their own (`aux_losses`). Such a part takes
its step on the batch first; the loss of the task sees it as it is after that
step, and sends no gradient into it.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from genrec_jax.parallel import collectives
from genrec_jax.parallel.dense import accumulate_sums

# (all auxiliary parameters, microbatch) -> (sum of losses, weight)
AuxLoss = Callable[[Any, Any], tuple[jax.Array, jax.Array]]


@dataclasses.dataclass(frozen=True)
class MovedParts:
  """What the steps of the parts have come to.

  Attributes:
    grads: part -> its gradient, clipped; the optimizer that moves everything
      else moves the parts by the same ones.
    params: part -> its parameters behind the step, as they are stored.
    measured: 'loss/PART' -> (sum of losses, weight) before the step.
  """

  grads: dict[str, Any]
  params: dict[str, Any]
  measured: dict[str, tuple[jax.Array, jax.Array]]


def name_measurement(part: str) -> str:
  """What a task with `aux_losses` declares for each part.

  >>> name_measurement('adapter')
  'loss/adapter'
  """
  return f'loss/{part}'


def move_parts(
  aux_losses: Mapping[str, AuxLoss],
  trained,
  batches,
  *,
  dense,
  sum_in_order: Callable | None,
  update: Callable,
) -> MovedParts:
  """Moves the parts that have losses of their own.

  Args:
    aux_losses: part -> its loss.
    trained: everything that optax updates, as stored; the parts are in 'aux'.
    batches: microbatches, `[P, ...]`.
    dense: how parameters are held.
    sum_in_order: (function of a microbatch, batches) -> sums over all of all
      devices in their order; None to sum them as they come.
    update: (gradients, stored parameters) -> stored parameters behind a step.
  """
  whole = dense.gather({'aux': trained['aux']})

  grads, measured = {}, {}
  for name in aux_losses:

    def run(microbatch, name=name):
      def summand(held):
        value, weight = aux_losses[name](dense.use(held)['aux'], microbatch)
        return jnp.float32(value), jnp.float32(weight)

      gradient = jax.value_and_grad(dense.remat(summand), has_aux=True)
      (value, weight), grad = gradient(whole)
      return (value, weight), {'aux': {name: grad['aux'][name]}}

    if sum_in_order is not None:
      sums, grad = sum_in_order(run, batches)
    else:
      sums, grad = accumulate_sums(run, batches)
      sums, grad = collectives.sum_over_shards(sums), dense.reduce(grad)
    # Of a mean; where nothing counts, gradients are zeros.
    share = 1.0 / jnp.maximum(sums[1], 1e-9)
    grad = jax.tree.map(lambda g, s=share: g * s.astype(g.dtype), grad)
    grad = dense.clip(grad, dense.norm(grad))
    grads[name] = grad['aux'][name]
    measured[name_measurement(name)] = sums
  zeros = jax.tree.map(jnp.zeros_like, dense.local_slice(trained))
  # What this does to all other parameters is computed for nobody, and XLA drops
  # it.
  moved = update(replace_parts(zeros, grads), trained)
  params = {name: moved['aux'][name] for name in aux_losses}
  return MovedParts(grads, params, measured)


def replace_parts(tree: Mapping, parts: Mapping) -> dict:
  """The tree with other parts in its 'aux'."""
  return {**tree, 'aux': {**tree['aux'], **parts}}


def hold_parts(aux: Mapping, names) -> dict:
  """The auxiliary parameters, without gradients into some parts."""
  return {
    name: jax.lax.stop_gradient(part) if name in names else part
    for name, part in aux.items()
  }
