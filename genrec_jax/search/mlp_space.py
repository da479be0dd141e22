"""The space of MLPs: width of each layer, and which layers there are.

Layer l = 1 .. L makes h_l of one of the widths O_l. For each output size o of a
layer l > 1 a choice says what it is made of: of h_{l-1} with i of O_{l-1}
numbers, by a matrix of its own and a ReLU, or (`SKIP`) of h_{l-1} with o
numbers, which is left as it is. The last linear layer chooses the width that it
reads. So a path from the end to the input is an MLP.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from genrec_jax.search.choices import SKIP, Choice, Weights, read_weights

# (input size, output size) -> cost of a matrix, the sizes whole or in the mean.
MatrixCost = Callable


@dataclasses.dataclass(frozen=True)
class MlpSpace:
  """MLPs with an output layer.

  >>> space = MlpSpace('top', ((2, 3), (2, 3)), 1)
  >>> for choice in space.choices:
  ...   print(choice.name, choice.options)
  top.2.2 (2, 3, 'skip')
  top.2.3 (2, 3, 'skip')
  top.out (2, 3)

  Attributes:
    name: begins the names of choices.
    widths: of each hidden layer, the widths there are.
    outputs: width of the last layer.
    skips: whether layers but the first may be left out.
  """

  name: str
  widths: tuple[tuple[int, ...], ...]
  outputs: int
  skips: bool = True

  def __post_init__(self):
    for number, (before, after) in enumerate(
      itertools.pairwise(self.widths), 2
    ):
      if self.skips and not set(before) & set(after):
        raise ValueError(
          f'layer {number} of {self.name!r} cannot be left out: its widths '
          f'{after} have none in common with those before it, {before}; name '
          'one that both have, or set search.skips=False'
        )

  @property
  def layers(self) -> int:
    """Hidden layers, those that are left out included."""
    return len(self.widths)

  def choose_input(self, layer: int, size: int) -> Choice:
    """What the layer reads to make so many numbers."""
    options = self.widths[layer - 2]
    if self.skips and size in options:
      options = (*options, SKIP)
    return Choice(f'{self.name}.{layer}.{size}', options)

  @functools.cached_property
  def last(self) -> Choice | None:
    """The width that the output layer reads."""
    return Choice(f'{self.name}.out', self.widths[-1]) if self.widths else None

  @property
  def choices(self) -> list[Choice]:
    inner = [
      self.choose_input(layer, size)
      for layer in range(2, self.layers + 1)
      for size in self.widths[layer - 1]
    ]
    return [*inner, self.last] if self.widths else []

  def measure(
    self,
    weights: Weights,
    width: float,
    cost: MatrixCost,
    last: MatrixCost,
    drop_skips: bool = False,
  ):
    """Expected cost of the matrices.

    The probability that a layer makes o numbers goes down from the output, by
    matrices and by what is left out:

        q_{l-1}(j) = sum_o q_l(o) m_l(j|o) + q_l(j) m_l(skip|j).

    Args:
      weights: m, `[..., options]` of each choice.
      width: of the input, in the mean.
      cost: of a matrix with a ReLU behind it.
      last: of the output layer.
      drop_skips: without the last term, as in the published code: too little.

    Returns:
      `[...]`.
    """
    if not self.widths:
      return last(width, self.outputs)
    found = read_weights(weights, self.last)
    total, q = 0.0, {}
    for i, size in enumerate(self.last.options):
      q[size] = found[..., i]
      total += q[size] * last(size, self.outputs)
    for layer in range(self.layers, 1, -1):
      below = dict.fromkeys(self.widths[layer - 2], 0.0)
      for size in self.widths[layer - 1]:
        choice = self.choose_input(layer, size)
        m = read_weights(weights, choice)
        for i, option in enumerate(choice.options):
          share = q[size] * m[..., i]
          if option == SKIP:
            below[size] += 0.0 if drop_skips else share
          else:
            below[option] += share
            total += share * cost(option, size)
      q = below
    for size in self.widths[0]:
      total += q[size] * cost(width, size)
    return total

  def choose_hidden(self, options: Mapping[str, int | str]) -> tuple[int, ...]:
    """Widths of the hidden layers of an architecture.

    >>> space = MlpSpace('top', ((2, 3), (2, 3)), 1)
    >>> space.choose_hidden({'top.out': 3, 'top.2.3': 'skip', 'top.2.2': 2})
    (3,)
    >>> space.choose_hidden({'top.out': 2, 'top.2.3': 'skip', 'top.2.2': 3})
    (3, 2)

    Args:
      options: choice -> its option; those that no layer asks for do not count.
    """
    if not self.widths:
      return ()
    size = _take(options, self.last)
    hidden = []
    for layer in range(self.layers, 1, -1):
      below = _take(options, self.choose_input(layer, size))
      if below != SKIP:
        hidden.append(size)
        size = below
    return tuple(reversed([*hidden, size]))

  def describe_hidden(self, hidden: Sequence[int]) -> dict[str, int | str]:
    """Options with which `choose_hidden` gives these widths.

    What is left out are the last layers in which the width may stay.

    Args:
      hidden: widths of the hidden layers.
    """
    if not self.widths:
      return {}
    options = self._find_path(self.layers, tuple(hidden))
    if options is None:
      raise ValueError(f'{tuple(hidden)} is none of the MLPs of {self.name!r}')
    return {self.last.name: hidden[-1], **options}

  def _find_path(self, layer: int, hidden: tuple[int, ...]):
    """Options of the layers up to one that makes the last of `hidden`."""
    if hidden[-1] not in self.widths[layer - 1]:
      return None
    if layer == 1:
      return {} if len(hidden) == 1 else None
    choice = self.choose_input(layer, hidden[-1])
    if SKIP in choice.options:
      found = self._find_path(layer - 1, hidden)
      if found is not None:
        return {**found, choice.name: SKIP}
    if len(hidden) > 1 and hidden[-2] in choice.options:
      found = self._find_path(layer - 1, hidden[:-1])
      if found is not None:
        return {**found, choice.name: hidden[-2]}
    return None

  def list_mlps(self) -> list[tuple[int, ...]]:
    """Hidden widths of all MLPs, each once."""
    found = dict.fromkeys(hidden for hidden, _ in self.list_paths())
    return sorted(found, key=lambda hidden: (len(hidden), hidden))

  def list_paths(self) -> Iterator[tuple[tuple[int, ...], dict]]:
    """(hidden widths, the options that a path goes by) of every path."""
    if not self.widths:
      yield (), {}
      return

    def walk(layer, size):
      if layer == 1:
        yield (size,), {}
        return
      choice = self.choose_input(layer, size)
      for option in choice.options:
        below = size if option == SKIP else option
        for hidden, options in walk(layer - 1, below):
          own = hidden if option == SKIP else (*hidden, size)
          yield own, {**options, choice.name: option}

    for size in self.last.options:
      for hidden, options in walk(self.layers, size):
        yield hidden, {**options, self.last.name: size}

  def count_mlps(self) -> int:
    """How many `list_mlps` lists, without listing them.

    >>> MlpSpace('top', ((2, 3),) * 5, 1).count_mlps()
    62
    """
    if not self.widths:
      return 1
    # (layers at which an MLP may be, its last width) -> how many there are.
    places = {
      (self._stay({1}, size), size): 1 for size in dict.fromkeys(self.widths[0])
    }
    found = 0
    while places:
      above: dict[tuple[frozenset[int], int], int] = {}
      for (at, _), count in places.items():
        found += count if self.layers in at else 0
        for size in dict.fromkeys(itertools.chain(*self.widths)):
          up = {
            layer + 1
            for layer in at
            if layer < self.layers and size in self.widths[layer]
          }
          if up:
            key = self._stay(up, size), size
            above[key] = above.get(key, 0) + count
      places = above
    return found

  def _stay(self, layers: Iterable[int], size: int) -> frozenset[int]:
    """These layers, and those above them that may be left out."""
    found = set()
    for layer in layers:
      found.add(layer)
      while self.skips and layer < self.layers and size in self.widths[layer]:
        layer += 1
        found.add(layer)
    return frozenset(found)

  def find_extreme(
    self, width: int, cost: MatrixCost, last: MatrixCost, pick: Callable
  ) -> tuple[int, ...]:
    """The MLP that costs the least or the most.

    >>> space = MlpSpace('top', ((2, 3), (2, 3)), 1)
    >>> space.find_extreme(9, count_operations, count_operations, max)
    (3, 3)

    Args:
      width: of the input.
      cost: of a matrix with a ReLU behind it.
      last: of the output layer.
      pick: `min` or `max`.
    """
    if not self.widths:
      return ()
    # Last width -> (cost up to it, hidden widths), layer by layer.
    best = {size: (cost(width, size), (size,)) for size in self.widths[0]}
    for layer in range(2, self.layers + 1):
      above = {}
      for size in self.widths[layer - 1]:
        ways = [
          (known + cost(below, size), (*hidden, size))
          for below, (known, hidden) in best.items()
        ]
        if self.skips and size in best:
          ways.append(best[size])
        above[size] = pick(ways)
      best = above
    ends = [
      (known + last(size, self.outputs), hidden)
      for size, (known, hidden) in best.items()
    ]
    return pick(ends)[1]


def sum_products(sizes: Sequence[int]) -> int:
  """Weights of the matrices between layers of these sizes.

  >>> sum_products((3, 4, 1))
  16
  """
  return sum(a * b for a, b in itertools.pairwise(sizes))


def _take(options: Mapping[str, int | str], choice: Choice) -> int | str:
  if len(choice.options) == 1:
    return choice.options[0]
  return options[choice.name]


def count_operations(i, o):
  """Operations of x W + b: two for each weight, b among them.

  >>> count_operations(3, 2)
  12
  """
  return 2 * i * o


def count_weights(i, o, batch_norm: bool = False):
  """Weights of x W + b, and of a norm behind it.

  >>> count_weights(3, 2), count_weights(3, 2, batch_norm=True)
  (8, 12)
  """
  return i * o + o + (2 * o if batch_norm else 0)
