"""Steps that move one group of parameters and leave all others as they are.

A task with an attribute `alternation` has some parameters that learn in steps
of their own, from data of their own: in these steps nothing else moves, neither
tables nor the state of an optimizer; in all others these parameters stand
still.
"""

import re
from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp
import optax

from genrec_jax.config import ConfigError
from genrec_jax.parallel import rules
from genrec_jax.runtime.parameter_groups import label_of


class Alternation(Protocol):
  """Whose steps are whose.

  Attributes:
    pattern: regex of the paths of the parameters that have steps of their own.
    groups: how many of `optimizer.groups`, the first ones, are theirs.
    outer_factor: of their gradient in all other steps, 0 to let them stand
      still.
  """

  pattern: str
  groups: int
  outer_factor: float

  def is_inner(self, step: jax.Array) -> jax.Array:
    """Whether a step, counted from 0, is one of theirs."""


class Moves:
  """What moves in one kind of step."""

  def __init__(self, alternation: Alternation, inner: bool):
    self._pattern = re.compile(alternation.pattern)
    self._inner, self._factor = inner, alternation.outer_factor
    self._own = {label_of(number) for number in range(alternation.groups)}

  def _scale(self, path) -> float:
    """The factor of the gradient of a parameter."""
    if self._pattern.fullmatch(rules.path_name(path)):
      return 1.0 if self._inner else self._factor
    return 0.0 if self._inner else 1.0

  def scale_gradients(self, grads):
    """Zeros for what stands still."""

    def scale_gradient(path, grad):
      factor = self._scale(path)
      if factor in (0.0, 1.0):
        return grad if factor else jnp.zeros_like(grad)
      return grad * jnp.asarray(factor, grad.dtype)

    return jax.tree_util.tree_map_with_path(scale_gradient, grads)

  def keep_params(self, before, after):
    """The parameters behind the step."""
    return jax.tree_util.tree_map_with_path(
      lambda path, old, new: new if self._scale(path) else old, before, after
    )

  def keep_averages(self, before, after):
    """The running averages behind the step."""
    if not before:
      return after
    return self.keep_params({'params': before}, {'params': after})['params']

  def keep_rows(self, state, pushed):
    """What a push of rows has come to, see `lookup.PushResult`."""
    if not self._inner:
      return pushed
    return pushed._replace(
      arrays={name: state.tables[name] for name in state.row_opt_state},
      slots=state.row_opt_state,
      square=jnp.float32(0),
      dirty_rows=state.dirty_rows,
    )

  def keep_optimizer(self, before, after):
    """The state of the optimizer behind the step.

    Schedules go on in all steps, since they fall over the whole training, as
    those of rows do.
    """
    if not hasattr(before, 'inner_states'):
      raise ConfigError(
        'the parameters that have steps of their own need settings of their '
        'own: the first of optimizer.groups'
      )
    found = {}
    for label, old in before.inner_states.items():
      new, own = after.inner_states[label], label in self._own
      moves = self._inner == own or (own and bool(self._factor))
      found[label] = new if moves else _go_on(old, new)
    return before._replace(inner_states=found)


def _go_on(before, after):
  """A state that stands still, but for the time of its schedules."""

  def is_time(x) -> bool:
    return isinstance(x, optax.ScaleByScheduleState)

  return jax.tree.map(
    lambda old, new: new if is_time(old) else old,
    before,
    after,
    is_leaf=is_time,
  )


def choose_learn(task, learn: Callable) -> Callable:
  """The second half of a step, see `step.Step.learn`.

  Args:
    task: what is trained.
    learn: takes these arguments, and `Moves` or None for everything.
  """
  alternation = getattr(task, 'alternation', None)
  if alternation is None:
    return lambda *args: learn(*args, None)
  inner, outer = (Moves(alternation, inner) for inner in (True, False))

  def learn_in_turns(state, *args):
    # Both are of one program, of which a step runs one branch.
    return jax.lax.cond(
      alternation.is_inner(state.step),
      lambda state, args: learn(state, *args, inner),
      lambda state, args: learn(state, *args, outer),
      state,
      args,
    )

  return learn_in_turns
