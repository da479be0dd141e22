"""The products of activations with weights, and the precision of each.

Models multiply activations with weights by `dot` alone, so that a precision can
be chosen for each weight without a change to any model. A module declares each
of its product weights by a class attribute beside it:

    class Linear(nnx.Module):
      kernel_site = products.Site()  # of self.kernel

      def __call__(self, x):
        return products.dot(x, self.kernel[...], site=self.kernel_site)

`assign_products` then gives every site of a finished model its name, which is
the path of the weight in `TrainState.params`, and its product. Both are static
attributes of the modules: they are part of the graphdef, so that a jitted
function is compiled anew where a product changes, and nothing is read from
outside while it is traced. What is computed for a name is in `PRODUCTS`, or in
a mapping that the caller hands in.

Products of activations with each other (attention, factorisation machines) and
elementwise ones (norms, biases, `fields.embed_numbers`) have no site.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from genrec_jax.numerics import block_products
from genrec_jax.numerics.einsum import multiply_as_bfloat16, split_spec
from genrec_jax.numerics.policy import Rules, choose_products

# (activations, weight, spec=..., site=...) -> the product, in the dtype of the
# activations. `site` is the name, for those that keep records by site.
Product = Callable[..., jax.Array]
SUFFIX = '_site'  # after the name of a weight: the attribute of its site


def multiply_in_dtype(
  x: jax.Array, w: jax.Array, *, spec: str, site: str = ''
) -> jax.Array:
  """The product in the dtype of the activations.

  Args:
    x: activations.
    w: the weight, which is converted to the dtype of `x`.
    spec: axes, as in `dot`.
    site: name of the weight; not used.
  """
  left, right, out = split_spec(spec)
  w = w.astype(x.dtype)
  if right[-1] == out[0]:
    # As W^t x is written by hand. `einsum` would sum over the first axis of
    # both without transposing, which XLA need not round in the same way.
    right, w = right[::-1], w.T
  return jnp.einsum(f'{left},{right}->{out}', x, w)


def multiply_in_bfloat16(
  x: jax.Array, w: jax.Array, *, spec: str, site: str = ''
) -> jax.Array:
  """The product of operands rounded to bfloat16, summed in float32.

  Its gradients are computed in the same way.

  Args:
    x: activations.
    w: the weight.
    spec: axes, as in `dot`.
    site: name of the weight; not used.
  """
  return _multiply_in_bfloat16(x, w, spec)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _multiply_in_bfloat16(x, w, spec):
  return _round_and_multiply(spec, x, w).astype(x.dtype)


def _forward_bfloat16(x, w, spec):
  return _multiply_in_bfloat16(x, w, spec), (x, w)


def _backward_bfloat16(spec, saved, dy):
  # Not left to autodiff: a cotangent that passes through a cast is itself
  # rounded, where only the operands of the two products shall be.
  x, w = saved
  left, right, out = split_spec(spec)
  dx = _round_and_multiply(f'{out},{right}->{left}', dy, w)
  dw = _round_and_multiply(f'{left},{out}->{right}', x, dy)
  return dx.astype(x.dtype), dw.astype(w.dtype)


_multiply_in_bfloat16.defvjp(_forward_bfloat16, _backward_bfloat16)


def _round_and_multiply(spec, left, right):
  # XLA may drop a cast to fewer bits and back; it keeps `reduce_precision`.
  left, right = (jax.lax.reduce_precision(a, 8, 7) for a in (left, right))
  return multiply_as_bfloat16(spec, left, right)


PRODUCTS: Mapping[str, Product] = {
  'default': multiply_in_dtype,
  'bfloat16': multiply_in_bfloat16,
  **block_products.RECIPES,
}


@dataclasses.dataclass(frozen=True)
class Site:
  """A weight by which activations are multiplied, and the product to use.

  Attributes:
    name: path of the weight in the parameters, 'layer_0/uvqk/kernel'; '' as
      long as the module belongs to no model.
    product: name of the product.
    function: what computes it.
  """

  name: str = ''
  product: str = 'default'
  function: Product = dataclasses.field(default=multiply_in_dtype, repr=False)


def dot(
  x: jax.Array, w: jax.Array, *, site: Site, spec: str = 'bi,io->bo'
) -> jax.Array:
  """Multiplies activations with a weight, by the product of the site.

  >>> x, w = jnp.ones((2, 3)), jnp.ones((3, 4))
  >>> dot(x, w, site=Site()).shape
  (2, 4)
  >>> dot(x, jnp.ones((5, 3, 4)), site=Site(), spec='bi,kio->bko').shape
  (2, 5, 4)

  Args:
    x: activations.
    w: the weight as it is stored. The product decides what it is rounded to:
      a narrow one should see all of its bits.
    site: which weight it is, the attribute beside it.
    spec: axes of x, of w and of the result, as in `jnp.einsum`: a letter each,
      none twice in an operand. Every axis of one operand is one of the other
      operand or of the result.

  Returns:
    The product, in the dtype of x.
  """
  # Shows in profiles, and marks the operations for the test that no product
  # goes another way. It is not part of the program.
  with jax.named_scope(f'site:{site.name}'):
    return site.function(x, w, spec=spec, site=site.name)


def assign_products(
  model: nnx.Module,
  rules: Rules = (),
  extra: Mapping[str, Product] | None = None,
) -> nnx.Module:
  """Names the sites of a finished model and gives each its product.

  >>> class Linear(nnx.Module):
  ...   kernel_site = Site()
  ...   def __init__(self):
  ...     self.kernel = nnx.Param(jnp.ones((3, 4)))
  >>> model = assign_products(Linear(), [('.*', 'bfloat16')])
  >>> find_sites(model)
  {'kernel': Site(name='kernel', product='bfloat16')}

  Args:
    model: the whole model; paths start at it. Its attribute `outer_sites`, if
      it has one, names the weights of its first and of its last layer, in two
      tuples: of each, the first name that there is counts.
    rules: ordered (regex, product), see policy.py; () leaves every product as
      it is.
    extra: further products by name, beside `PRODUCTS`.

  Returns:
    The model itself.

  Raises:
    ValueError: for a rule without a site or a site without a rule, a product
      that does not exist or exists twice, or a weight without a path of its
      own.
  """
  known = _add_products(extra or {})
  declared = _declared_sites(model)
  shapes = {
    name: getattr(module, attribute.removesuffix(SUFFIX)).shape
    for name, (module, attribute) in declared.items()
  }
  outer = getattr(model, 'outer_sites', ())
  chosen = choose_products(list(rules), shapes, outer, known)
  for name, (module, attribute) in declared.items():
    product = chosen[name]
    # On the module, where it hides that of the class: the class is shared by
    # other models.
    setattr(module, attribute, Site(name, product, known[product]))
  return model


def find_sites(model: nnx.Module) -> dict[str, Site]:
  """Name -> site of every product weight of a model, sorted by name.

  The model may hold shapes instead of arrays. A task has its own in `.sites`.
  """
  return {
    name: getattr(module, attribute)
    for name, (module, attribute) in _declared_sites(model).items()
  }


def _declared_sites(model: nnx.Module) -> dict[str, tuple[nnx.Module, str]]:
  """Name -> the module of a product weight and the attribute of its site."""
  paths = {
    '/'.join(map(str, path))
    for path, _ in nnx.to_flat_state(nnx.state(model, nnx.Param))
  }
  declared = {}
  for path, module in list(nnx.iter_graph(model)):
    if not isinstance(module, nnx.Module):
      continue
    for attribute, _ in inspect.getmembers(
      type(module), lambda value: isinstance(value, Site)
    ):
      weight = attribute.removesuffix(SUFFIX)
      name = '/'.join(map(str, (*path, weight)))
      if weight == attribute or not hasattr(module, weight):
        raise ValueError(
          f'{type(module).__name__}.{attribute} is the site of no weight: call '
          f'it as the weight, with {SUFFIX!r} behind'
        )
      if getattr(module, weight) is None:
        continue  # this variant of the module does without
      if name not in paths:
        raise ValueError(
          f'the product weight {name!r} is not a parameter of its own: modules '
          'that share a weight must share the module that multiplies by it'
        )
      declared[name] = module, attribute
  return dict(sorted(declared.items()))


def _add_products(extra: Mapping[str, Product]) -> dict[str, Product]:
  for name in extra:
    if name in PRODUCTS:
      raise ValueError(
        f'a product {name!r} exists already; give yours another name'
      )
  return {**PRODUCTS, **extra}
