"""Which product each weight of a model has: the rules of `numerics.policy`.

    (('layer_0/.*', 'default'), ('.*', 'mx9'))

The first rule whose regex matches the whole name of a weight counts, and every
weight must have one. A rule that names weights gives them its product, whatever
they are. The regex '.*' names none: it stands for all the others, and leaves
the first and the last layer of the model, and matrices with fewer than 128 rows
or columns, in bfloat16 where the product is one of few bits (`few_bits` is true
of it). These are the weights that lose most by that, and gain least.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from genrec_jax.config.loading import hint_nearest, quote_value

Rules = Iterable[tuple[str, str]]  # ordered (regex of a site, product)

ALL_OTHERS = '.*'
LEAST_SIZE = 128  # of both axes of a matrix, for few bits to be worth it
PROTECTED = 'bfloat16'
_KEY = 'numerics.policy'


def choose_products(
  rules: Sequence[tuple[str, str]],
  sites: Mapping[str, tuple[int, ...]],
  outer: Sequence[Sequence[str]],
  known: Mapping[str, object],
) -> dict[str, str]:
  """Site -> product.

  >>> from genrec_jax.numerics.products import PRODUCTS
  >>> sites = {'a': (256, 256), 'b': (256, 256), 'c': (256, 1)}
  >>> choose_products([('b', 'mx9'), ('.*', 'mx6')], sites, (), PRODUCTS)
  {'a': 'mx6', 'b': 'mx9', 'c': 'bfloat16'}
  >>> choose_products([], sites, (), PRODUCTS)
  {'a': 'default', 'b': 'default', 'c': 'default'}

  Args:
    rules: ordered (regex, product).
    sites: name -> shape of the weight, of every product weight.
    outer: names of the first layer and of the last one; of each, the first that
      the model has.
    known: name -> product, of all there are.

  Raises:
    ValueError: for a rule without a site, a product that does not exist, or a
      site without a rule.
  """
  if not rules:
    return dict.fromkeys(sites, 'default')
  chosen = {}
  listed = ', '.join(sites) or 'none: this model multiplies by no weight'
  for rule in rules:
    pattern, product = check_rule(rule)
    if not isinstance(product, str) or product not in known:
      raise ValueError(
        f'{_KEY} has the product {quote_value(product)} for '
        f'{pattern.pattern!r:.200}; products are {", ".join(known)}'
        + hint_nearest(str(product), known)
      )
    matched = [name for name in sites if pattern.fullmatch(name)]
    if not matched:
      raise ValueError(
        f'{_KEY} has the pattern {pattern.pattern!r}, which matches no product '
        f'weight as a whole; they are {listed}'
      )
    # A rule that decides nothing is a mistake, and silence would hide it.
    if all(name in chosen for name in matched):
      raise ValueError(
        f'{_KEY}: patterns in front of {pattern.pattern!r} decide all that it '
        'matches, and the first match counts; move it to the front'
      )
    own = dict.fromkeys(matched, product)
    few = getattr(known[product], 'few_bits', False)
    if pattern.pattern == ALL_OTHERS and few:
      own |= dict.fromkeys(find_protected(sites, outer), PROTECTED)
    chosen = own | chosen
  if left := [name for name in sites if name not in chosen]:
    raise ValueError(
      f'{_KEY} says nothing of {", ".join(left)}; put a last pair behind the '
      "others, such as ('.*', 'default')"
    )
  return {name: chosen[name] for name in sites}


def find_protected(
  sites: Mapping[str, tuple[int, ...]], outer: Sequence[Sequence[str]]
) -> list[str]:
  """The sites that `ALL_OTHERS` leaves in bfloat16, see `choose_products`."""
  first_and_last = [
    next((name for name in names if name in sites), None) for names in outer
  ]
  return [
    name
    for name, shape in sites.items()
    if name in first_and_last or min(shape[-2:]) < LEAST_SIZE
  ]


def describe_products(products: Mapping[str, str]) -> str:
  """How many sites have which product, as a line of a log.

  >>> describe_products({'a': 'mx9', 'b': 'mx9', 'c': 'bfloat16'})
  '2 products in mx9, 1 in bfloat16'

  Args:
    products: site -> product.
  """
  counts = {}
  for product in products.values():
    counts[product] = counts.get(product, 0) + 1
  (first, most), *others = sorted(counts.items(), key=lambda x: -x[1])
  word = 'products' if most > 1 else 'product'
  rest = ''.join(f', {count} in {name}' for name, count in others)
  return f'{most} {word} in {first}{rest}'


def check_rule(
  rule, key: str = _KEY, what: str = 'product', example: str = PROTECTED
) -> tuple[re.Pattern, str]:
  """The pattern and the product of an entry of `numerics.policy`.

  Args:
    rule: the entry.
    key: of the config, if it is another one of such pairs.
    what: is named by the second of them.
    example: of what.

  Raises:
    ValueError: it is no such pair, or the pattern is no regex.
  """
  # A pair of words without the outer brackets reads as two rules.
  if not isinstance(rule, tuple | list) or len(rule) != 2:
    raise ValueError(
      f'{key} holds {quote_value(rule)}; it must hold pairs '
      f"(pattern, {what}), such as (('.*', {example!r}),)"
    )
  pattern, named = rule
  try:
    return re.compile(pattern), named
  except (TypeError, re.error) as e:
    raise ValueError(
      f'{key} has {quote_value(pattern)}, which is not a regex: {e}'
    ) from None
