"""`towers.json`: which features share a tower.

    {"version": 1, "towers": [["user", "city"], ["item", "shop"]],
     "strategy": "coherent", "stress": 0.12, ...}

Only `version` and `towers` are needed, so that the file can be written by hand.
The other keys say where a partition comes from, for whoever reads it later.
This module needs the standard library alone.
"""

import dataclasses
import difflib
import hashlib
import json
import os
import pathlib
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence

from genrec_jax.config.errors import ConfigError

NAME = 'towers.json'
OF_A_RUN = 'model_towers.json'  # in its workdir: the towers that its model has
VERSION = 1
_MOST_BYTES = 1 << 26  # of a file; more cannot be names of features


@dataclasses.dataclass(frozen=True)
class TowerPlan:
  """Features by tower, and where the partition comes from.

  >>> plan = TowerPlan((('user', 'city'), ('item',)), strategy='by hand')
  >>> TowerPlan.from_json(plan.to_json()) == plan
  True
  >>> plan.find_tower('item')
  1

  Attributes:
    towers: the names of the features of each tower.
    strategy: how they were chosen, '' if nobody says.
    distance: what was near to what, such as '1 - mean |cos|'.
    seed: of the partition.
    stress: of the points that features were clustered as, a share of their
      distances; 0 keeps every distance as it is.
    dimensions: of these points.
    samples: examples that the distances were estimated from.
    source: what was looked at, such as the workdir of a run.
  """

  towers: tuple[tuple[str, ...], ...]
  strategy: str = ''
  distance: str = ''
  seed: int | None = None
  stress: float | None = None
  dimensions: int | None = None
  samples: int | None = None
  source: str = ''

  @property
  def features(self) -> tuple[str, ...]:
    """Every feature, tower by tower."""
    return tuple(name for tower in self.towers for name in tower)

  def find_tower(self, feature: str) -> int:
    """The number of a feature's tower, from 0."""
    for number, tower in enumerate(self.towers):
      if feature in tower:
        return number
    raise ConfigError(
      f'feature {feature!r} is in no tower{_hint(feature, self.features)}'
    )

  def to_json(self) -> dict:
    """As plain data; what is not known is left out."""
    out = {'version': VERSION, 'towers': [list(t) for t in self.towers]}
    for field in _FACTS:
      value = getattr(self, field.name)
      if value != field.default:
        out[field.name] = value
    return out

  @classmethod
  def from_json(cls, data) -> 'TowerPlan':
    """The inverse of `to_json`.

    Args:
      data: as `json.load` gives it.

    Raises:
      ConfigError: it is no such plan; the message says where.
    """
    if not isinstance(data, dict) or 'towers' not in data:
      raise ConfigError(
        'it must be an object with the keys "version" and "towers", a list of '
        'lists of features'
      )
    if data.get('version') != VERSION or type(data['version']) is not int:
      raise ConfigError(
        f'its version is {data.get("version")!r:.200}, and only version '
        f'{VERSION} is known here'
      )
    known = ['version', 'towers', *(field.name for field in _FACTS)]
    for key in data:
      if key not in known:
        raise ConfigError(f'unknown key {key!r:.200}{_hint(key, known)}')
    towers = data['towers']
    if not isinstance(towers, list) or not all(
      isinstance(tower, list) and all(map(_is_text, tower)) for tower in towers
    ):
      raise ConfigError('"towers" must be a list of lists of features\' names')
    facts = {}
    for field in _FACTS:
      if field.name in data:
        facts[field.name] = _read_fact(field.name, data[field.name])
    return cls(tuple(map(tuple, towers)), **facts)


_FACTS = tuple(f for f in dataclasses.fields(TowerPlan) if f.name != 'towers')


def _read_fact(name: str, value):
  if name in ('seed', 'samples', 'dimensions'):
    fits, wanted = type(value) is int and value >= 0, 'a whole number'
  elif name == 'stress':
    # Compared and not converted: a whole number may be larger than any float.
    fits = type(value) in (int, float) and abs(value) <= sys.float_info.max
    wanted = 'a number'
  else:
    fits, wanted = _is_text(value), 'a text'
  if not fits:
    raise ConfigError(f'"{name}" is {value!r:.200}, must be {wanted}')
  return value


def _is_text(value) -> bool:
  """Whether it can be written again: JSON may have half a character."""
  return isinstance(value, str) and not any(
    '\ud800' <= character <= '\udfff' for character in value
  )


def read_towers(path: str | os.PathLike) -> TowerPlan:
  """Reads a file of towers.

  Args:
    path: of the file, or of the directory that holds it as towers.json.

  Raises:
    ConfigError: it is damaged, or of another kind.
    FileNotFoundError: it is not there.
  """
  path = pathlib.Path(path)
  if os.path.isdir(path):
    path = path / NAME
  # os.path and not pathlib: a name that no file can have is not there either.
  if not os.path.exists(path):
    raise FileNotFoundError(f'{path}: there is no such file of towers')
  about = path.stat()
  if not stat.S_ISREG(about.st_mode):  # such as a device, which has no end
    raise ConfigError(f'{path} is no regular file, and no file of towers')
  if about.st_size > _MOST_BYTES:
    raise ConfigError(f'{path} is too large for a file of towers')
  try:
    data = json.loads(
      path.read_text(encoding='utf-8'), object_pairs_hook=_refuse_repeats
    )
  except OSError as error:
    raise ConfigError(f'{path} cannot be read: {error}') from None
  except (ValueError, RecursionError) as error:
    raise ConfigError(
      f'{path} is damaged, it is no JSON ({error}); write it again'
    ) from None
  try:
    return TowerPlan.from_json(data)
  except ConfigError as error:
    raise ConfigError(f'{path} is no file of towers: {error}') from None


def read_run_towers(workdir: str | os.PathLike, config) -> tuple:
  """The features of each tower of a trained run; () where its model has none.

  Args:
    workdir: of the run.
    config: of the run.

  Raises:
    ConfigError: the file of its towers is damaged or missing.
  """
  if not config.model.get('towers', ''):
    return ()
  path = pathlib.Path(workdir) / OF_A_RUN
  if not path.exists():
    raise ConfigError(
      f'{path} is missing, which says what features the towers of the model '
      f'have; {advise(config.model.towers)}'
    )
  return read_towers(path).towers


def advise(wanted: str) -> str:
  """How a run that has lost its towers comes by them again, in words.

  >>> advise('auto:4')
  'continue the training of this workdir, which writes it again'

  Args:
    wanted: `model.towers`, whose file may be gone, too.
  """
  again = 'continue the training of this workdir, which writes it again'
  of_data = wanted.isdecimal() or wanted.partition(':')[0] == 'auto'
  if of_data or os.path.exists(wanted):
    return again
  return (
    f'put it back, or put back {wanted!r:.200} (model.towers), which is '
    f'missing, too, and {again}'
  )


def mark_towers(fingerprint: str, towers: Sequence[Sequence[str]]) -> str:
  """A fingerprint of data that is one of towers, too; as it is without any.

  The weights of a tower belong to its features, in their order, and no shape
  tells these apart.

  >>> mark_towers('abc', [])
  'abc'
  >>> mark_towers('abc', [['user'], ['item']]).startswith('abc, towers ')
  True

  Args:
    fingerprint: of the data.
    towers: the features of each tower.
  """
  if not towers:
    return fingerprint
  text = json.dumps([list(own) for own in towers])
  digest = hashlib.sha256(text.encode()).hexdigest()[:12]
  return f'{fingerprint}, towers {digest}'


def same_towers(marked: str, towers: Sequence[Sequence[str]]) -> bool:
  """Whether what `mark_towers` has marked was of these towers.

  Args:
    marked: of a checkpoint or a file of weights.
    towers: the features of each tower.
  """
  _, _, mark = marked.partition(', towers ')
  return mark_towers('', towers).removeprefix(', towers ') == mark


def write_towers(path: str | os.PathLike, plan: TowerPlan) -> None:
  """Writes a file of towers; a reader sees the old one or all of the new one.

  Args:
    path: of the file.
    plan: what to write.
  """
  path = pathlib.Path(path)
  lines = [
    f'  {json.dumps(list(tower), ensure_ascii=False)}' for tower in plan.towers
  ]
  data = plan.to_json()
  # A line a tower: people read this file, and change it.
  pairs = [f' "version": {VERSION}', ' "towers": [\n' + ',\n'.join(lines) + ']']
  pairs += [
    f' {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}'
    for key, value in data.items()
    if key not in ('version', 'towers')
  ]
  partial = path.with_name(f'{path.name}.partial')
  partial.write_text('{\n' + ',\n'.join(pairs) + '\n}\n', encoding='utf-8')
  os.replace(partial, path)


def check_towers(
  towers: Sequence[Sequence[str]],
  features: Iterable[str],
  tables_of_features: Mapping[str, str] | None = None,
) -> None:
  """Refuses towers that are no partition of the features.

  >>> check_towers([['user'], ['item', 'shop']], ['user', 'item', 'shop'])

  Args:
    towers: the names of the features of each tower.
    features: every feature that must be in a tower.
    tables_of_features: feature -> the name of its table, for those that share
      one; None for none.

  Raises:
    ConfigError: a tower is empty; a feature is unknown, in no tower or in two;
      or features of two towers share a table.
  """
  features = list(features)
  known, places = set(features), {}
  if not towers:
    raise ConfigError('there is no tower')
  for number, tower in enumerate(towers):
    if not tower:
      raise ConfigError(f'tower {number} is empty; every tower has a feature')
    for name in tower:
      if name not in known:
        raise ConfigError(
          f'tower {number} names {name!r:.200}, which is no feature with a '
          f'table{_hint(name, features)}'
        )
      if name in places:
        where = f'towers {places[name]} and {number}'
        if places[name] == number:
          where = f'tower {number} twice'
        raise ConfigError(f'feature {name!r} is in {where}')
      places[name] = number
  if missing := [name for name in features if name not in places]:
    more = f' and {len(missing) - 3} more' if len(missing) > 3 else ''
    names = ', '.join(map(repr, missing[:3]))
    raise ConfigError(
      f'no tower has {names}{more}: every feature with a table must be in one'
    )
  first = {}  # table -> the feature that was first to read it
  for name in features:
    table = (tables_of_features or {}).get(name, name)
    other = first.setdefault(table, name)
    if places[other] != places[name]:
      raise ConfigError(
        f'features {other!r} and {name!r} share the table {table!r}, but are '
        f'in towers {places[other]} and {places[name]}: a table lies under one '
        'tower'
      )


def _refuse_repeats(pairs) -> dict:
  """An object of JSON without a key twice, of which one would be lost."""
  found = {}
  for key, value in pairs:
    if key in found:
      raise ValueError(f'the key {key!r} stands there twice')
    found[key] = value
  return found


def _hint(name: str, known: Sequence[str]) -> str:
  near = difflib.get_close_matches(name[:200], known, n=1, cutoff=0.4)
  return f'; did you mean {near[0]!r}?' if near else ''
