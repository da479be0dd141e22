"""Lowers all learning rates after an evaluation that was not better."""

import dataclasses
import logging

import jax
import jax.numpy as jnp

LOG = logging.getLogger('genrec_jax')


def lower_rate(state, optimizer):
  """The state with its rates times `plateau_factor`.

  Two floors bound the product of these factors: `plateau_min` itself, and
  `plateau_min_rate` as a share of `optimizer.learning_rate`.

  Args:
    state: of the run.
    optimizer: `config.optimizer`.
  """
  if optimizer.plateau_factor == 1:
    return state
  least = optimizer.plateau_min
  if optimizer.plateau_min_rate:
    share = optimizer.plateau_min_rate / optimizer.learning_rate
    least = max(least, share)
  scale = jax.jit(
    lambda x: jnp.maximum(x * optimizer.plateau_factor, least),
    out_shardings=state.lr_scale.sharding,
  )(state.lr_scale)
  if float(scale) != float(state.lr_scale):
    LOG.info('not better: learning rates are now times %.3g', float(scale))
  return dataclasses.replace(state, lr_scale=scale)
