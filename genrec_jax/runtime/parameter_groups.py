"""Settings of the dense optimizer for some of the parameters.

    groups = (
      ('.*/(bias|scale)', {'weight_decay': 0.0}),
      ('params/tower/.*', {'frozen': True}),
    )

A regex must match the whole path of a parameter, 'params/layer_0/uvqk/kernel'
or 'tables/item'. The first match counts, and what no pattern matches has the
settings of the section.
"""

import dataclasses
import difflib
import re
from collections.abc import Sequence
from typing import Any

import jax

from genrec_jax.config import ConfigError
from genrec_jax.config.loading import quote_value
from genrec_jax.parallel import rules

EXAMPLE = (('.*/bias', {'weight_decay': 0.0}),)
REST = 'rest'  # the label of parameters in no group


@dataclasses.dataclass(frozen=True)
class Settings:
  """What can differ between groups; the keys are those of `optimizer`.

  Attributes:
    frozen: the parameters stay as they are.
  """

  name: str
  learning_rate: float
  b1: float
  b2: float
  eps: float
  weight_decay: float
  schedule: str
  warmup_steps: int
  decay_steps: int
  end_factor: float
  frozen: bool = False

  @classmethod
  def of_section(cls, section) -> 'Settings':
    """Those of `config.optimizer` itself."""
    names = {field.name for field in dataclasses.fields(cls)} - {'frozen'}
    return cls(**{name: section[name] for name in names})


@dataclasses.dataclass(frozen=True)
class ParameterGroup:
  """One entry of `optimizer.groups`.

  Attributes:
    pattern: the regex, as given.
    settings: of its parameters.
  """

  pattern: str
  settings: Settings

  @property
  def where(self) -> str:
    """What errors call its keys."""
    return f'in optimizer.groups, {self.pattern!r}: '


def parse_groups(groups: Sequence, section: Settings) -> list[ParameterGroup]:
  """The groups as configured, each with all of its settings.

  >>> section = Settings('adam', 1e-3, .9, .99, 1e-8, .1, 'constant', 0, 0, 0.)
  >>> [group] = parse_groups((('.*/bias', {'weight_decay': 0}),), section)
  >>> group.settings.weight_decay, group.settings.learning_rate
  (0, 0.001)

  Args:
    groups: (regex, {key: value}) pairs.
    section: settings that a group does not override.

  Raises:
    ConfigError: for what is no such pair, no regex, no key or no value of it.
  """
  return [_parse_one(entry, section) for entry in groups]


def label_parameters(groups: Sequence[ParameterGroup], tree) -> Any:
  """The label of every parameter, as a tree: that of its group, or `REST`.

  Args:
    groups: as `parse_groups` gives them.
    tree: `{'params': ..., 'tables': ...}`.

  Raises:
    ConfigError: for a group without parameters.
  """
  names = list(rules.named_shapes(tree))
  sizes = [0] * len(groups)

  def find_group(path, _):
    for number, group in enumerate(groups):
      if re.fullmatch(group.pattern, rules.path_name(path)):
        sizes[number] += 1
        return label_of(number)
    return REST

  labels = jax.tree_util.tree_map_with_path(find_group, tree)
  # optax also asks for the state of no parameters at all, to learn which of
  # its leaves stand for one.
  for group, size in zip(groups, sizes, strict=True):
    if names and not size:
      raise ConfigError(_explain_empty(group.pattern, names))
  return labels


def label_of(number: int) -> str:
  """The label of a group; checkpoints name the optimizer's state by it."""
  return f'group_{number}'


def _explain_empty(pattern: str, names: list[str]) -> str:
  said = f'optimizer.groups: the pattern {pattern!r}'
  matched = [name for name in names if re.fullmatch(pattern, name)]
  if matched:
    return (
      f'{said} matches only parameters of patterns in front of it '
      f'({", ".join(matched[:3])}); the first match counts: put it before them'
    )
  plain = re.sub(r'[\\.*+?()\[\]{}|^$]+', '', pattern)

  def measure_likeness(name: str) -> float:
    """To the whole path, or to an end of it: people write '.*bias'."""
    steps = name.split('/')
    ends = ['/'.join(steps[i:]) for i in range(len(steps))]
    return max(difflib.SequenceMatcher(None, plain, e).ratio() for e in ends)

  near = sorted(names, key=measure_likeness, reverse=True)[:3]
  return (
    f'{said} matches no parameter, and it must match the whole path; the '
    f'nearest are {", ".join(map(repr, near))}'
  )


def _parse_one(entry, section: Settings) -> ParameterGroup:
  if not is_pair(entry):
    raise ConfigError(
      f'optimizer.groups holds {quote_value(entry)}, which is not a '
      f'(pattern, overrides) pair, as in {EXAMPLE!r}'
    )
  pattern, overrides = entry
  group = ParameterGroup(pattern, section)
  try:
    re.compile(pattern)
  except re.error as e:
    raise ConfigError(f'{group.where}this is not a regex, {e}') from None
  fields = {field.name: field.type for field in dataclasses.fields(Settings)}
  for key, value in overrides.items():
    if key not in fields:
      near = difflib.get_close_matches(str(key), fields, n=1, cutoff=0.4)
      hint = f'did you mean {near[0]!r}?' if near else ''
      raise ConfigError(
        f'{group.where}there is no key {key!r}; '
        + (hint or f'there are {", ".join(fields)}')
      )
    if not _fits_type(value, fields[key]):
      raise ConfigError(
        f'{group.where}{key} is {quote_value(value)}, must be of type '
        f'{fields[key].__name__}'
      )
  if overrides.get('frozen') and len(overrides) > 1:
    others = sorted(set(overrides) - {'frozen'})
    raise ConfigError(
      f'{group.where}frozen parameters have no use for {", ".join(others)}'
    )
  return ParameterGroup(pattern, dataclasses.replace(section, **overrides))


def is_pair(entry) -> bool:
  """Whether an entry of `optimizer.groups` is (pattern, overrides)."""
  return (
    isinstance(entry, tuple | list)
    and len(entry) == 2
    and isinstance(entry[0], str)
    and isinstance(entry[1], dict)
  )


def _fits_type(value, kind: type) -> bool:
  if kind is float:
    return isinstance(value, int | float) and not isinstance(value, bool)
  return type(value) is kind
