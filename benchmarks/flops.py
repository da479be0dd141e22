"""The cost of a ranking model: multiply-accumulates and parameters.

Papers count 6 operations for each multiply-accumulate of an example, 2 forward
and 4 backward. Some papers count only dense layers, which see an example as one
vector; others also count products within an example. Both counts are available.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from flax import nnx

from genrec_jax.features import Features, Inputs
from genrec_jax.models.fields import first_order_table
from genrec_jax.parallel import rules


@dataclasses.dataclass(frozen=True)
class Macs:
  """Multiply-accumulates of the forward pass of one example.

  Attributes:
    layers: of matrices that every example multiplies as one vector.
    products: of all others: rows with rows, mixes of rows.
  """

  layers: int
  products: int

  @property
  def total(self) -> int:
    return self.layers + self.products

  @property
  def mflop(self) -> float:
    """Of dense layers, forward and backward, in millions."""
    return 6 * self.layers / 1e6


def example_inputs(model, config, features, examples: int = 1) -> Inputs:
  """Shapes of what a model sees."""
  shape = lambda *s: jax.ShapeDtypeStruct(s, jnp.float32)  # noqa: E731
  numbers = sum(f.kind == 'numeric' for f in features)
  return Inputs(
    vectors=tuple(
      shape(examples, width)
      for width in model.widths(config, features).values()
    ),
    numbers=shape(examples, numbers),
    linear=shape(examples),
    weights=shape(examples),
  )


def count_macs(model, config, features: Features, outputs: int = 1) -> Macs:
  """Counts the matrix products of the forward pass; nothing is computed.

  Args:
    model: class of the model.
    config: its `Config`.
    features: inputs.
    outputs: number of logits.
  """
  examples = 7919  # a prime: no width has it as a factor

  def forward(x):
    return model(config, features, outputs, nnx.Rngs(0))(x)

  jaxpr = jax.make_jaxpr(forward)(
    example_inputs(model, config, features, examples)
  )
  counts = {True: 0, False: 0}
  for equation in products(jaxpr.jaxpr):
    (contracted, _), (batch, _) = equation.params['dimension_numbers']
    left, right = (v.aval.shape for v in equation.invars)
    (out,) = (v.aval.shape for v in equation.outvars)
    count = math.prod(out) * math.prod(left[i] for i in contracted)
    dense = not batch and {len(left), len(right)} == {2}
    dense = dense and examples in (*left, *right)
    counts[dense] += count
  return Macs(*(counts[dense] // examples for dense in (True, False)))


def products(jaxpr):
  """Every dot_general, also those within other operations."""
  for equation in jaxpr.eqns:
    if equation.primitive.name == 'dot_general':
      yield equation
    for value in equation.params.values():
      for inner in value if isinstance(value, tuple | list) else (value,):
        inner = getattr(inner, 'jaxpr', inner)
        if hasattr(inner, 'eqns'):
          yield from products(inner)


def count_parameters(
  model, config, features: Features, outputs: int = 1
) -> int:
  """How many weights are trained, tables included.

  Running statistics are not trained. Features that share a table count it once.
  """

  def init():
    module = model(config, features, outputs, nnx.Rngs(0))
    return nnx.to_pure_dict(nnx.state(module, nnx.Param))

  widths = model.widths(config, features)
  tables = {}
  for f in features:
    if f.kind != 'numeric':
      tables[f.source] = f.rows * widths.get(f.name, 0)
      if model.linear:
        tables[first_order_table(config, f)] = f.rows
  return sum(tables.values()) + rules.count_weights(jax.eval_shape(init))
