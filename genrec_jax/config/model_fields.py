"""Fields that several models have, and how fields are checked."""

import dataclasses
from collections.abc import Mapping, Sequence

from genrec_jax.config.key_rules import MODEL, NAMED
from genrec_jax.config.loading import quote_value


def check_fields(config, **allowed: Sequence) -> None:
  """Raises where a field of a config is none of the allowed values."""
  for field, values in allowed.items():
    if getattr(config, field) not in values:
      raise ValueError(
        f'model.{field} is {getattr(config, field)!r}, must be one of {values}'
      )


def check_rules(config) -> None:
  """Raises where a field of a config is nothing that its key may be.

  So options that are given in Python are judged by what judges a config.

  Args:
    config: of a model, a dataclass.
  """
  for field in dataclasses.fields(config):
    key, value = f'model.{field.name}', getattr(config, field.name)
    if key in NAMED:
      if not isinstance(value, Mapping):
        raise ValueError(f'{key} is {quote_value(value)}, must be a dict')
      values = {f'{key}.{name}': one for name, one in value.items()}
      rules = dict.fromkeys(values, NAMED[key])
    else:
      values, rules = {key: value}, {key: MODEL[field.name]}
    for key, rule in rules.items():
      if wanted := rule.explain(values[key]):
        raise ValueError(
          f'{key} is {quote_value(values[key])}, must be {wanted}'
        )


def check_window(config) -> None:
  """Raises where what says more of a window has none, and changes nothing."""
  if config.window is not None:
    return
  for name, what in (
    ('prefix', 'that are seen from beyond a window'),
    ('full_tail', 'that a window does not bind'),
  ):
    # Retrieval has no tail.
    if value := getattr(config, name, 0):
      raise ValueError(
        f'model.{name}={value} are tokens {what}, and there is none: set '
        f'model.window, or {name} to 0'
      )


@dataclasses.dataclass(frozen=True)
class Towers:
  """What models have that may stand on towers; see `models.dmt`.

  Attributes:
    towers: which features share a tower: '' for none, a number of towers, to
      which features are dealt in turn, 'auto' for as many as there are hosts,
      but two at least, or
      'auto:N' for N, of features that in the training data go together, or the
      path of a towers.json; see docs/dmt.md.
    tower: what a tower computes: 'own' is that of the model, 'dlrm', 'dcn' and
      'wukong' those of these models, 'wukong_layer' that of Wukong with sums of
      the vectors added, 'identity' nothing.
    tower_width: width of the rows of tables under towers; 0 is `dim`.
    tower_compression: how many times fewer numbers leave a tower than go in.
    tower_vectors: vectors made of a whole tower, c; 0 is what
      `tower_compression` asks for.
    tower_each: vectors made of each feature by the tower of DLRM, p.
    tower_cross: cross layers of the tower of DCN.
    tower_dropout: rate on what leaves a tower.
  """

  towers: str = ''
  tower: str = 'own'
  tower_width: int = 0
  tower_compression: float = 2.0
  tower_vectors: int = 0
  tower_each: int = 0
  tower_cross: int = 1
  tower_dropout: float = 0.0

  def __post_init__(self):
    check_fields(
      self,
      tower=('own', 'dlrm', 'dcn', 'wukong', 'wukong_layer', 'identity'),
    )
